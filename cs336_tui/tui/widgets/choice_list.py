"""A window with a list of things to choose one from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from cs336_tui.tui.dialogs.window import Dialog


class ChoiceList(Dialog[int | None]):
    """Each choice has a name and, below it, what it is; dismisses with the place of the chosen one, or None on escape.

    `at` is the place of the one that is highlighted first.
    """

    DEFAULT_CSS = """
    ChoiceList {
        align: center middle;
        OptionList {
            width: 72;
            max-width: 100%;
            height: auto;
            max-height: 100%;
            background: $surface;
            &, &:focus { border: round $primary; }
        }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss_list", "Close", show=False, id="choices.close"),
    ]

    def __init__(self, title: str, choices: Sequence[tuple[str, str]], at: int = 0) -> None:
        super().__init__()
        self._title, self._choices, self._at = title, choices, at

    def compose(self) -> ComposeResult:
        options = OptionList(
            *(Option(Content.assemble((name, "bold"), f"\n  {about}")) for name, about in self._choices)
        )
        options.border_title = self._title
        options.border_subtitle = "enter choose · esc keep"
        options.highlighted = self._at
        yield options

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(event.option_index)

    def action_dismiss_list(self) -> None:
        self.dismiss(None)
