"""One line of text asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, Label

from cs336_tui.tui.dialogs.window import Dialog


class AskText(Dialog[str | None]):
    """Answers with what was entered, or None on Escape.

    `check` says in one line why a text is refused, empty when it is taken. `warn` says what should be known of a text
    that is taken all the same; it needs a second Enter.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel", id="ask.cancel")]

    DEFAULT_CSS = """
    AskText {
        align: center middle;
        #box {
            width: 64; max-width: 100%; height: auto; max-height: 100%;
            border: round $border; border-title-color: $primary; border-subtitle-color: $text-muted;
            background: $surface; padding: 0 2;
        }
        Label { width: 1fr; height: auto; }
        Input { height: 1; border: none; padding: 0 1; background: $panel; margin: 1 0; }
        Input:focus { border: none; }
        #problem { color: $bad; }
    }
    """

    def __init__(
        self,
        title: str,
        about: str = "",
        value: str = "",
        *,
        check: Callable[[str], str] = lambda _: "",
        warn: Callable[[str], str] = lambda _: "",
    ) -> None:
        super().__init__()
        self._title, self._about, self._value = title, about, value
        self._check, self._warn = check, warn
        self._warned_of = ""
        self._problem = Label("", id="problem", markup=False)

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = self._title
            box.border_subtitle = "enter take · esc leave"
            if self._about:
                yield Label(self._about, markup=False)
            field = Input(self._value, compact=True, max_length=200)
            field.cursor_blink = False
            yield field
            yield self._problem

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    @on(Input.Changed)
    def _changed(self) -> None:
        self._warned_of = ""
        self._problem.update("")

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        text = event.value.strip()
        if problem := self._check(text):
            self._problem.update(f"✗ {problem}")
        elif (warning := self._warn(text)) and self._warned_of != text:
            self._warned_of = text
            self._problem.update(f"! {warning}")
        else:
            self.dismiss(text)
