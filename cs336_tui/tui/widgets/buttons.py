"""A line that shows or hides what follows it."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget


class Fold(Widget, can_focus=True):
    """``▸ more`` and, when `open`, ``▾ more``; space, enter or a click turns it."""

    DEFAULT_CSS = """
    Fold {
        height: 1;
        width: 1fr;
        color: $text-muted;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        &:focus { text-style: reverse; color: $foreground; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "turn", "Show or hide", show=False, id="fold.turn"),
    ]

    open: reactive[bool] = reactive(False)
    label: reactive[str] = reactive("")

    class Turned(Message):
        """The fold was opened or closed by a person."""

        def __init__(self, fold: Fold) -> None:
            super().__init__()
            self.fold = fold

        @property
        def control(self) -> Fold:
            return self.fold

    def __init__(self, label: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.set_reactive(Fold.label, label)

    def render(self) -> Content:
        return Content(f"{'▾' if self.open else '▸'} {self.label}")

    def action_turn(self) -> None:
        self.open = not self.open
        self.post_message(self.Turned(self))

    def on_click(self) -> None:
        self.action_turn()
