"""A list that typing narrows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from cs336_tui.tui.dialogs.window import Dialog
from cs336_tui.tui.keys import bind_keys, key_name
from cs336_tui.tui.widgets.entries import InputLine


class Pick(Dialog[str | None]):
    """Choices, each a name and a few words on it; answers with a name, or None on Escape. What is typed keeps those
    that have all of its words; the first is under the cursor. `meant` finds the choice of a text that fits none; empty
    if there is none."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind_keys("escape", "dismiss(None)", "Keep", "pick.close"),
        bind_keys("down", "move('cursor_down')", "Down", "pick.down", show=False),
        bind_keys("up", "move('cursor_up')", "Up", "pick.up", show=False),
        bind_keys("pagedown", "move('page_down')", "Page down", "pick.page_down", show=False),
        bind_keys("pageup", "move('page_up')", "Page up", "pick.page_up", show=False),
    ]

    def __init__(
        self,
        title: str,
        choices: Sequence[tuple[str, str]],
        *,
        label: Callable[[str], str] = str,
        meant: Callable[[str], str] = lambda _: "",
    ) -> None:
        super().__init__()
        self._title, self._choices, self._label, self._meant = title, choices, label, meant
        self._kept: list[str] = []
        self._problem = Label("", id="problem", markup=False)

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = self._title
            box.border_subtitle = (
                f"type to narrow · {key_name('pick.up', 'pick.down')} · Enter choose · {key_name('pick.close')} keep"
            )
            field = InputLine(placeholder="all", compact=True, max_length=100)
            field.cursor_blink = False
            yield field
            options = OptionList()
            options.can_focus = False
            yield options
            yield self._problem

    def on_mount(self) -> None:
        self._fill("")

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        self._fill(event.value)

    def _fill(self, text: str) -> None:
        words = text.lower().split()
        kept = [(name, about) for name, about in self._choices if _has(words, f"{name} {about}".lower())]
        if not kept and (name := self._meant(text)):
            kept = [choice for choice in self._choices if choice[0] == name]
        self._kept = [name for name, _ in kept]
        options = self.query_one(OptionList)
        options.clear_options()
        wide = max((len(self._label(name)) for name, _ in self._choices), default=0)
        options.add_options(
            Option(Content.assemble((self._label(name).ljust(wide), "bold"), f"  {about}")) for name, about in kept
        )
        options.highlighted = 0 if kept else None
        self._problem.update("" if kept else "✗ none has all of these words")

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        at = self.query_one(OptionList).highlighted
        if at is not None:
            self.dismiss(self._kept[at])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(self._kept[event.option_index])

    def action_move(self, how: str) -> None:
        if self._kept:
            getattr(self.query_one(OptionList), f"action_{how}")()


def _has(words: Iterable[str], text: str) -> bool:
    return all(word in text for word in words)
