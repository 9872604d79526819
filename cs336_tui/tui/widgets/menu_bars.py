"""The first and the last row of the screen: the tabs, and the keys in force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from rich.cells import cell_len
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from cs336_tui.tui.keys import bind_keys
from cs336_tui.tui.widgets.lines import Lines, Span, width_of

_BEFORE, _BEHIND = "‹", "›"
_SEPARATOR = "│"


class TabBar(Lines, can_focus=True):
    """Shows the tabs given to `offer`; left and right, a click or the app's keys choose one. If not all fit, it shows
    those around the open one, with an arrow at each end that has more."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind_keys("left", "step(-1)", "Previous tab", "tabs.previous", show=False),
        bind_keys("right", "step(1)", "Next tab", "tabs.next", show=False),
    ]

    @dataclass(eq=False, repr=False)
    class Chosen(Message):
        """The user chose the tab with this id."""

        tab: str

    _titles: Mapping[str, str] = {}
    _active = ""

    def offer(self, titles: Mapping[str, str], active: str) -> None:
        """Show the tabs of these titles, by their ids, the active one marked."""
        self._titles, self._active = titles, active
        self.show_again()

    def show_again(self) -> None:
        spans: list[Span] = []
        for tab, text in self._items():
            on = tab == self._active
            is_arrow = text in (_BEFORE, _BEHIND)
            role = "key" if is_arrow else "tab" if not on else "cursor" if self.has_focus else "tab-on"
            spans += [Span(text, role), Span(_SEPARATOR, "muted")]
        self.paint([tuple(spans[:-1])])

    def _items(self) -> list[tuple[str, str]]:
        """The ids and the texts of the tabs that fit around the open one, with an arrow for the next tab at either
        end."""
        items = [(tab, f" {title} ") for tab, title in self._titles.items()]
        if not items:
            return []
        active = next((place for place, (tab, _) in enumerate(items) if tab == self._active), 0)
        widths = [len(text) + len(_SEPARATOR) for _, text in items]
        room, arrow = self.content_size.width + len(_SEPARATOR), len(_BEFORE + _SEPARATOR)
        first, end = window(widths, active, room, arrow)
        before = [(items[first - 1][0], _BEFORE)] if first else []
        behind = [(items[end][0], _BEHIND)] if end < len(items) else []
        return [*before, *items[first:end], *behind]

    def action_step(self, by: int) -> None:
        ids = [*self._titles]
        if self._active in ids:
            self.post_message(self.Chosen(ids[(ids.index(self._active) + by) % len(ids)]))

    def on_click(self, event: events.Click) -> None:
        items = self._items()
        place = self.place_of(event, [len(text) + len(_SEPARATOR) for _, text in items])
        if place is not None:
            self.post_message(self.Chosen(items[place][0]))


def window(widths: Sequence[int], middle: int, room: int, arrow: int) -> tuple[int, int]:
    """The longest run around `middle`, with it, that fits in `room` with an arrow at each cut end; end exclusive."""
    first, end = middle, middle + 1

    def fits(first: int, end: int) -> bool:
        arrows = arrow * ((first > 0) + (end < len(widths)))
        return sum(widths[first:end]) + arrows <= room

    if fits(0, len(widths)):
        return 0, len(widths)
    grows = True
    while grows:
        grows = False
        if end < len(widths) and fits(first, end + 1):
            end, grows = end + 1, True
        if first > 0 and fits(first - 1, end):
            first, grows = first - 1, True
    return first, end


class KeyBar(Lines):
    """Lists the keys of the focused pane, then those of the app, as many as fit; a click presses the key."""

    _LAST = ("app.maximise", "app.help", "app.quit")
    """Keys that stand at the end, whatever else fits: they lead to all others, and out."""

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._on_bindings)

    def _on_bindings(self, screen: Screen[object]) -> None:
        if screen.is_attached and screen.is_current:
            self.show_again()

    def _shown(self) -> list[_Key]:
        """The keys that fit: of the pane, of the app, and the last ones."""
        seen: dict[str, _Key] = {}
        for active in self.screen.active_bindings.values():
            binding = active.binding
            if binding.show and active.enabled and binding.action not in seen:
                seen[binding.action] = _Key(self.app.get_key_display(binding), binding)
        last = [key for key in seen.values() if key.binding.id in self._LAST]
        room = self.content_size.width - sum(key.width for key in last)
        fitting: list[_Key] = []
        for key in seen.values():
            if key not in last and key.width <= room:
                fitting.append(key)
                room -= key.width
        return [*fitting, *last]

    def show_again(self) -> None:
        spans: list[Span] = []
        for key in self._shown():
            item = [Span(f" {key.text}", "key"), Span(f" {key.binding.description} ", "muted")]
            if width_of((*spans, *item)) > self.content_size.width:
                break
            spans += item
        self.paint([tuple(spans)])

    async def on_click(self, event: events.Click) -> None:
        shown = self._shown()
        place = self.place_of(event, [key.width for key in shown])
        if place is not None:
            await self.app.run_action(shown[place].binding.action)


class _Key(msgspec.Struct, frozen=True):
    text: str
    binding: Binding

    @property
    def width(self) -> int:
        return cell_len(f" {self.text} {self.binding.description} ")
