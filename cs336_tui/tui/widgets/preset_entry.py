"""The preset: one line in the form, and the list that it opens."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from cs336_tui.presets import QUICK, Preset, all_presets
from cs336_tui.tui.widgets.entry import Entry


class PresetEntry(Entry, can_focus=True):
    """Names the preset that fills the form and whether its choices were changed since. Enter opens the list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "choose", "Choose a preset", show=False, id="preset.choose"),
    ]

    preset: reactive[Preset] = reactive(QUICK)
    changed: reactive[bool] = reactive(False)

    class Chosen(Message):
        def __init__(self, preset: Preset) -> None:
            super().__init__()
            self.preset = preset

    def __init__(self, preset: Preset) -> None:
        super().__init__("preset", "preset", tooltip="Fills the form with a ready sweep; * says that it was changed")
        self.set_reactive(PresetEntry.preset, preset)

    def content_rows(self, width: int) -> list[list[Segment]]:
        mark = " * ▾" if self.changed else " ▾"
        name, room = self.preset.name, max(width - len(mark), 1)
        if cell_len(name) > room:
            name = set_cell_size(name, room - 1) + "…"
        return [[Segment(name + mark, self.style_of("title") + Style(reverse=self.has_focus))]]

    def action_choose(self) -> None:
        def chosen(preset: Preset | None) -> None:
            if preset:
                self.post_message(self.Chosen(preset))

        self.app.push_screen(PresetList(self.preset), chosen)

    def on_click(self) -> None:
        self.action_choose()


class PresetList(ModalScreen[Preset | None]):
    """All presets with what they are for; dismisses with the chosen one, or None on escape."""

    DEFAULT_CSS = """
    PresetList {
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
        Binding("escape,q", "dismiss_list", "Close", show=False, id="presets.close"),
    ]

    def __init__(self, current: Preset) -> None:
        super().__init__()
        self._current = current
        found = all_presets()
        self._presets, self._problems = found.presets, found.problems

    def on_mount(self) -> None:
        if self._problems:
            self.notify("\n".join(self._problems), title="Presets", severity="warning", markup=False)

    def compose(self) -> ComposeResult:
        options = OptionList(
            *(Option(Content.assemble((preset.name, "bold"), f"\n  {preset.about}")) for preset in self._presets)
        )
        options.border_title = "Presets"
        options.border_subtitle = "enter choose · esc keep"
        options.highlighted = self._presets.index(self._current) if self._current in self._presets else 0
        yield options

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(self._presets[event.option_index])

    def action_dismiss_list(self) -> None:
        self.dismiss(None)
