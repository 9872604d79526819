"""Models that were run before: one line in the form, and the list that it opens."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.reactive import reactive

from cs336_tui.config.recent_models import RecentModel
from cs336_tui.tui.dialogs.questions import ChoiceList
from cs336_tui.tui.widgets.entries import Entry


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
