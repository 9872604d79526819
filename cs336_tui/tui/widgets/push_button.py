"""A button of one row: ``[ Run ]``, or ``Run`` without brackets while it cannot be pressed."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget


class PushButton(Widget, can_focus=True):
    """Pressed by enter, space or a click while it is not disabled; brackets say what the dimmed colour says, too."""

    DEFAULT_CSS = """
    PushButton {
        width: auto;
        height: 1;
        color: $primary;
        text-style: bold;
        &:focus { text-style: bold reverse; }
        &:hover { text-style: bold reverse; }
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

        @property
        def control(self) -> PushButton:
            return self.button

    def __init__(self, label: str, *, id: str, disabled: bool = False) -> None:
        super().__init__(id=id, disabled=disabled)
        self.set_reactive(PushButton.label, label)

    def render(self) -> Content:
        return Content(f"  {self.label}  " if self.disabled else f"[ {self.label} ]")

    def offer(self, label: str, enabled: bool) -> None:
        """Show another label, and whether the button can be pressed."""
        self.label, self.disabled = label, not enabled
        self.refresh()

    def action_press(self) -> None:
        self.post_message(self.Pressed(self))

    def on_click(self) -> None:
        self.action_press()
