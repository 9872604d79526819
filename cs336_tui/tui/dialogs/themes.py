"""The list of themes, each of which is on while the cursor is on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import OptionList

from cs336_tui.tui.dialogs.questions import ChoiceList
from cs336_tui.tui.keys import bind, key_name


class ThemeList(ChoiceList):
    """Answers with the place of a theme, or None on Escape. The first `own` come with this tool or are the person's."""

    BINDINGS: ClassVar[list[BindingType]] = [bind("theme", "next", "Next", "themes.next", show=False)]

    def __init__(self, names: Sequence[str], own: int, on: str) -> None:
        at = names.index(on) if on in names else 0
        super().__init__("Theme", [(name, "") for name in names], at, headings={own: "Textual's own"})
        self._names = names

    def compose(self) -> ComposeResult:
        for options in super().compose():
            options.border_subtitle = f"Enter keep for good · {key_name('choices.close')} back"
            yield options

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        if event.option.id is not None:
            self.app.theme = self._names[int(event.option.id)]

    def action_next(self) -> None:
        self.query_one(OptionList).action_cursor_down()
