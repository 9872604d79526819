"""Sends the terminal only the columns that changed.

Textual's own partial update starts every changed row at the left edge of its widget, border included; over SSH that
is several times the bytes of what changed. Rests on Textual's internals, which is one reason to pin its version.
"""

from __future__ import annotations

from rich.console import Console
from rich.control import Control
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
        """The bytes of the changed spans: for each piece of a row a cursor movement and its styled text."""
        out: list[str] = []
        for y, left, right in self.spans:
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                start, stop = max(x, left), min(end, right, self._size.width)
                if strip is None or start >= stop:
                    continue
                out.append(Control.move_to(start, y).segment.text)
                out.append(strip.crop(start - x, stop - x).render(console))
        return "".join(out)
