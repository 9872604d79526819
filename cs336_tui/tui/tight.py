"""Sends the terminal only the columns that changed.

Textual's own partial update starts every changed row at the left edge of its widget, border included, and names the
colours of every piece anew; over SSH that is several times the bytes of what changed. Rests on
Textual's internals, which is one reason to pin its version.
"""

from __future__ import annotations

from rich.color import ColorSystem
from rich.console import Console
from rich.control import Control
from rich.style import Style
from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Size


class TightCompositor(Compositor):
    """A compositor whose partial updates are cropped on both sides."""

    def render_partial_update(self) -> ChopsUpdate | None:
        update = super().render_partial_update()
        return update and _TightUpdate(update.chops, update.spans, update.chop_ends, self.size)


class _TightUpdate(ChopsUpdate):
    def __init__(
        self,
        chops: object,
        spans: list[tuple[int, int, int]],
        chop_ends: list[list[int]],
        size: Size,
    ) -> None:
        super().__init__(chops, spans, chop_ends)  # type: ignore[arg-type]
        self._size = size

    def render_segments(self, console: Console) -> str:
        """The bytes of the changed spans: cursor movements, text, and styles where they differ from the last."""
        out: list[str] = []
        current: Style | None = None
        for y, left, right in self.spans:
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                start, stop = max(x, left), min(end, right, self._size.width)
                if strip is None or start >= stop:
                    continue
                out.append(Control.move_to(start, y).segment.text)
                for text, style, _ in strip.crop(start - x, stop - x):
                    if style != current:
                        out.append(_RESET + _opening(style, console))
                        current = style
                    out.append(text)
        return "".join([*out, _RESET])


_RESET = "\x1b[0m"
_openings: dict[tuple[Style, ColorSystem], str] = {}


def _opening(style: Style | None, console: Console) -> str:
    """What turns a style on; hyperlinks, which no widget here has, are left out."""
    if style is None:
        return ""
    system = console._color_system or ColorSystem.TRUECOLOR
    key = (style, system)
    if key not in _openings:
        rendered = style.update_link(None).render("x", color_system=system)
        _openings[key] = rendered.partition("x")[0]
    return _openings[key]
