"""Draws and sends the terminal only what changed.

Textual's own partial update goes through every line of every widget, starts each changed row at the left edge of its
widget, border included, and names the colours of every piece anew; that is most of the time that a small change
takes, and over SSH several times its bytes. Rests on Textual's internals, which is one reason to pin its version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.segment import Segment
from rich.style import Style
from textual._compositor import Compositor, CompositorUpdate
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget


class _Span(NamedTuple):
    """Columns `left` to `right`, exclusive, of row `y`."""

    y: int
    left: int
    right: int


class _Piece(NamedTuple):
    """What to write from column `x` of row `y` on."""

    y: int
    x: int
    strip: Strip


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def without_control(strip: Strip) -> Strip:
    """The strip without control characters: they take no column, and a terminal would obey them."""
    if not _CONTROL.search(strip.text):
        return strip
    return Strip([Segment(_CONTROL.sub("", text), style) for text, style, _ in strip], strip.cell_length)


class SteadyCompositor(Compositor):
    """A compositor that sends the terminal text alone, and that may be asked what is where while a terminal becomes
    smaller."""

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        for region, clip, strips in super()._get_renders(crop):
            yield region, clip, [*map(without_control, strips)]

    @property
    def layers_visible(self) -> list[list[tuple[Widget, Region, Region]]]:
        try:
            return super().layers_visible
        except IndexError:  # something still reaches beyond the last row, until the next layout
            return []


class TightCompositor(SteadyCompositor):
    """A compositor whose partial updates hold the changed spans and nothing else."""

    def render_partial_update(self) -> TightUpdate | None:  # type: ignore[override]
        regions = [region.intersection(self.size.region) for region in self._dirty_regions]
        self._dirty_regions.clear()
        spans = [_Span(*span) for span in self._regions_to_spans(regions)]
        return TightUpdate(sorted(self._pieces(spans), key=lambda piece: piece[:2])) if spans else None

    def _pieces(self, missing: list[_Span]) -> Iterator[_Piece]:
        """The spans as the widgets show them, which come front to back: the first to cover a column has it."""
        for widget, (region, clip) in self.visible_widgets.items():
            if not missing:
                return
            seen = region.intersection(clip)
            mine: list[_Span] = []
            others: list[_Span] = []
            for y, left, right in missing:
                start, stop = max(left, seen.x), min(right, seen.right)
                if not (seen.y <= y < seen.bottom and start < stop):
                    others.append(_Span(y, left, right))
                    continue
                mine.append(_Span(y, start, stop))
                others += [rest for rest in (_Span(y, left, start), _Span(y, stop, right)) if rest.left < rest.right]
            missing = others
            if mine:
                top, bottom = min(span.y for span in mine), max(span.y for span in mine) + 1
                strips = widget.render_lines(Region(0, top - region.y, region.width, bottom - top))
                for y, start, stop in mine:
                    yield _Piece(y, start, without_control(strips[y - top].crop(start - region.x, stop - region.x)))


class TightUpdate(CompositorUpdate):
    """Cursor movements, text, and styles where they differ from the last."""

    def __init__(self, pieces: list[_Piece]) -> None:
        self._pieces = pieces

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del options
        yield self.render_segments(console)

    def render_segments(self, console: Console) -> str:
        out: list[str] = []
        current: Style | None = None
        for y, x, strip in self._pieces:
            out.append(Control.move_to(x, y).segment.text)
            for text, style, _ in strip:
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
