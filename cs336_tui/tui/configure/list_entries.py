"""Entries of one line that open a list: the preset, and the models that were run before."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.reactive import reactive

from cs336_tui.config.presets import QUICK, Preset, all_presets
from cs336_tui.config.recent_models import RecentModel
from cs336_tui.tui.dialogs.questions import ChoiceList
from cs336_tui.tui.widgets.entries import Entry


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
        found = all_presets()
        if found.problems:
            self.app.notify("\n".join(found.problems), title="Presets", severity="warning", markup=False)

        def chosen(place: int | None) -> None:
            if place is not None:
                self.post_message(self.Chosen(found.presets[place]))

        at = found.presets.index(self.preset) if self.preset in found.presets else 0
        about = [(preset.name, preset.about) for preset in found.presets]
        self.app.push_screen(ChoiceList("Presets", about, at), chosen)

    def on_click(self) -> None:
        self.action_choose()


class RecentEntry(Entry, can_focus=True):
    """Says how many models of one's own were run before. Enter opens the list of them, newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "choose", "Choose a recent model", show=False, id="recent.choose"),
    ]

    models: reactive[tuple[RecentModel, ...]] = reactive(())

    class Chosen(Message):
        def __init__(self, model: RecentModel) -> None:
            super().__init__()
            self.model = model

    def __init__(self, models: tuple[RecentModel, ...]) -> None:
        super().__init__("recent", "recent", tooltip="Your own models that were run before, with their arguments")
        self.set_reactive(RecentEntry.models, models)

    def content_rows(self, width: int) -> list[list[Segment]]:
        del width
        count = len(self.models)
        text = f"{count} model{'s' * (count != 1)} run before ▾"
        return [[Segment(text, self.style_of("title") + Style(reverse=self.has_focus))]]

    def action_choose(self) -> None:
        models = self.models

        def chosen(place: int | None) -> None:
            if place is not None:
                self.post_message(self.Chosen(models[place]))

        self.app.push_screen(ChoiceList("Recent models", [(model.model, _about(model)) for model in models]), chosen)

    def on_click(self) -> None:
        self.action_choose()


def _about(model: RecentModel) -> str:
    """What it was run with."""
    args = ", ".join(f"{name}={value}" for name, value in model.args)
    return " · ".join(filter(None, [args, f"in {', '.join(model.path)}" if model.path else ""]))
