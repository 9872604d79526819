"""One row of tabs, each with the key that opens it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from cs336_tui.tui.widgets.lines import Lines, Span


class Tab(NamedTuple):
    id: str
    label: str
    key: str


class TabBar(Lines, can_focus=True):
    """Shows the tabs given to `offer`; left and right, a click or the app's number keys choose one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", "Previous tab", show=False, id="tabs.previous"),
        Binding("right", "step(1)", "Next tab", show=False, id="tabs.next"),
    ]

    class Chosen(Message):
        """Somebody chose the tab of this id."""

        def __init__(self, tab: str) -> None:
            super().__init__()
            self.tab = tab

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._tabs: tuple[Tab, ...] = ()
        self._active = ""

    def offer(self, tabs: Sequence[Tab], active: str) -> None:
        """Show these tabs, one of them as the open one."""
        self._tabs, self._active = tuple(tabs), active
        self._show()

    def _show(self) -> None:
        spans: list[Span] = []
        for tab, text in zip(self._tabs, self._texts(), strict=True):
            on = tab.id == self._active
            role = "tab" if not on else "cursor" if self.has_focus else "tab-on"
            spans += [Span(text, role), Span("│", "muted")]
        self.paint([tuple(spans[:-1])])

    def _texts(self) -> list[str]:
        """Key and label of each; where that is too wide, the label of the open one alone, at last without gaps."""
        full = [f" {tab.key} {tab.label} " for tab in self._tabs]
        if len("│".join(full)) <= self.content_size.width:
            return full
        short = [text if tab.id == self._active else f" {tab.key} " for tab, text in zip(self._tabs, full, strict=True)]
        return short if len("│".join(short)) <= self.content_size.width else [text.rstrip() for text in short]

    def on_resize(self) -> None:
        self._show()

    def on_focus(self) -> None:
        self._show()

    def on_blur(self) -> None:
        self._show()

    def action_step(self, by: int) -> None:
        ids = [tab.id for tab in self._tabs]
        if self._active in ids:
            self.post_message(self.Chosen(ids[(ids.index(self._active) + by) % len(ids)]))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        right = 0
        for tab, text in zip(self._tabs, self._texts(), strict=True):
            right += len(text) + 1
            if offset is not None and offset.x < right:
                self.post_message(self.Chosen(tab.id))
                return
