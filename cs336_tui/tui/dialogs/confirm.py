"""One question with two answers."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Label

from cs336_tui.tui.dialogs.window import Dialog


class Confirm(Dialog[bool]):
    """Answers true for `yes` (also by y) and false for Escape; `q_means` is what q answers, with which people leave."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes", id="confirm.yes"),
        Binding("q", "quit_key", "Yes", show=False, id="confirm.quit"),
        Binding("escape,n", "answer(False)", "No", id="confirm.no"),
        Binding("left,right", "app.focus_next", "Other", show=False, id="confirm.other"),
    ]

    DEFAULT_CSS = """
    Confirm {
        align: center middle;
        #box {
            width: 60; max-width: 100%; height: auto; max-height: 100%;
            border: round $border; background: $surface; padding: 1 2;
        }
        Label { width: 1fr; height: auto; }
        Horizontal { height: auto; margin-top: 1; align: right middle; }
        Button { margin-left: 2; }
    }
    """

    def __init__(self, question: str, yes: str, no: str, *, q_means: bool = False) -> None:
        super().__init__()
        self._question, self._yes, self._no, self._q_means = question, yes, no, q_means

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Label(self._question, markup=False)
            with Horizontal():
                yield Button(self._no, id="no", compact=True)
                yield Button(self._yes, id="yes", variant="error", compact=True)

    def action_quit_key(self) -> None:
        self.dismiss(self._q_means)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")
