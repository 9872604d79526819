"""A widget whose text is styled by roles."""

from __future__ import annotations

from rich.style import Style
from textual.widget import Widget

from cs336_tui.tui.widgets.palette import style_of


class Styled(Widget):
    """Gives its subclasses the style of a role (see `palette`) in the theme in force, on their own background."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._styles_of_roles: dict[str, Style] = {}

    def style_of(self, role: str) -> Style:
        style = self._styles_of_roles.get(role)
        if style is None:
            behind = self.background_colors[1]
            style = self._styles_of_roles[role] = style_of(role, self.app.theme_variables, behind)
        return style

    def notify_style_update(self) -> None:
        self._styles_of_roles.clear()
        super().notify_style_update()
