"""Widgets of one row that are pressed: a button, and a fold."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget


class Fold(Widget, can_focus=True):
    """Shows or hides what follows: ``▸ more``, and ``▾ more`` if `open`; space, enter or a click turns it."""

    DEFAULT_CSS = """
    Fold {
        height: 1; width: 1fr; color: $text-muted; text-wrap: nowrap; text-overflow: ellipsis;
        &:focus { text-style: reverse; color: $foreground; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space,enter", "turn", "Show or hide", show=False, id="fold.turn"),
    ]

    open: reactive[bool] = reactive(False)
    label: reactive[str] = reactive("")

    class Turned(Message):
        """The user opened or closed the fold."""

        def __init__(self, fold: Fold) -> None:
            super().__init__()
            self.fold = fold

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


class PushButton(Widget, can_focus=True):
    """``[ Run ]``, pressed by enter, space or a click; a disabled button has no brackets."""

    DEFAULT_CSS = """
    PushButton {
        width: auto; height: 1; color: $primary; text-style: bold;
        &:focus, &:hover { text-style: bold reverse; }
        &:disabled { color: $text-muted; text-style: none; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "press", "Press", show=False, id="button.press"),
    ]

    label: reactive[str] = reactive("", layout=True)

    class Pressed(Message):
        def __init__(self, button: PushButton) -> None:
            super().__init__()
            self.button = button

    def __init__(self, label: str, *, id: str, disabled: bool = False) -> None:
        super().__init__(id=id, disabled=disabled)
        self.set_reactive(PushButton.label, label)

    def render(self) -> Content:
        return Content(f"  {self.label}  " if self.disabled else f"[ {self.label} ]")

    def offer(self, label: str, enabled: bool) -> None:
        """Set the label, and whether the button can be pressed."""
        self.label, self.disabled = label, not enabled
        self.refresh()

    def action_press(self) -> None:
        self.post_message(self.Pressed(self))

    def on_click(self) -> None:
        self.action_press()
