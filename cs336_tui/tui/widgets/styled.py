"""Roles of text, such as `muted`, and their styles in a theme."""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style
from textual.color import Color
from textual.widget import Widget


class Styled(Widget):
    """A widget that knows the style of each role in the current theme, on its own background."""

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


_ROLES: dict[str, tuple[str, str]] = {
    "text": ("foreground", ""),
    "strong": ("foreground", "bold"),
    "muted": ("text-muted", ""),
    "title": ("primary", "bold"),
    "good": ("ok", ""),
    "bad": ("bad", "bold"),
    "caution": ("caution", ""),
    "cursor": ("foreground", "reverse"),
    "key": ("accent", "bold"),
    "tab": ("text-muted", ""),
    "tab-on": ("primary", "bold underline"),
} | {
    name: (name, "")
    for name in (
        *("warmup", "measured", "axis", "memory", "utilisation"),
        *("phase-1", "phase-2", "phase-3", "phase-4", "phase-5"),
    )
}


def style_of(role: str, variables: Mapping[str, str], background: Color) -> Style:
    """The style of a role, from a theme's variables and the background. Raises KeyError."""
    variable, attributes = _ROLES[role]
    color = _color(variables[variable], variables["foreground"])
    if color.a < 1:
        color = background.blend(color, color.a, alpha=1.0) if background.ansi is None else color.with_alpha(1.0)
    return Style.parse(attributes) + Style.from_color(color.rich_color, background.rich_color)


def _color(value: str, foreground: str) -> Color:
    """A colour of a theme, perhaps with an opacity: ``#5aa9e6 40%``. ``auto 60%`` is the foreground at 60 %."""
    name, share = value.rsplit(maxsplit=1) if value.endswith("%") else (value, "100%")
    color = Color.parse(foreground if name == "auto" else name)
    return color.multiply_alpha(float(share.removesuffix("%")) / 100)
