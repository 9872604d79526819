"""Compositors that send the terminal only the cells that differ from what it shows.

Textual's updates start each changed row at the left edge of its widget, name the colours of every piece anew, and
repaint the whole screen for a new layout, whether or not a cell of it changes. That is most of the time of a small
change, and over SSH several times its bytes.

Rests on Textual's internals; hence its exact pin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import NamedTuple

from rich.cells import cell_len, get_character_cell_size
from rich.color import Color, ColorSystem
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from textual._compositor import Compositor, CompositorUpdate, LayoutUpdate
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget


class _Span(NamedTuple):
    """Columns `left` to `right`, exclusive, of row `y`."""

    y: int
    left: int
    right: int


class _Piece(NamedTuple):
    """A strip to write from column `x` of row `y` on."""

    y: int
    x: int
    strip: Strip


class _Pen(NamedTuple):
    """Parameters of the escape sequence that turns a style on; hyperlinks, which no widget here has, are left out."""

    attributes: str
    foreground: str
    background: str
    marks_blanks: bool
    """True if a blank written with it can be told from an empty cell."""


_Cell = tuple[str, _Pen]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ON_BLANKS = frozenset({"4", "7", "9", "21", "51", "52", "53"})
"""Attributes that show where there is no character: lines, frames, reversed colours."""
_GAP = 10
"""Up to so many unchanged columns between changed ones are sent again: a jump costs more bytes."""


def without_control(strip: Strip) -> Strip:
    """The strip without control characters: they take no column, and a terminal would obey them."""
    if not _CONTROL.search(strip.text):
        return strip
    return Strip([Segment(_CONTROL.sub("", text), style) for text, style, _ in strip], strip.cell_length)


class TightCompositor(Compositor):
    """A compositor that sends the terminal text alone, and of that the spans that may have changed. While a terminal
    becomes smaller it still knows what is where."""

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        for region, clip, strips in super()._get_renders(crop):
            yield region, clip, [*map(without_control, strips)]

    @property
    def layers_visible(self) -> list[list[tuple[Widget, Region, Region]]]:
        try:
            return super().layers_visible
        except IndexError:  # something still reaches beyond the last row, until the next layout
            return []

    def render_full_update(self, simplify: bool = False) -> LayoutUpdate:
        if simplify:
            return super().render_full_update(simplify)
        self._dirty_regions.clear()
        return self._update(self.size.region)  # type: ignore[return-value]

    def render_partial_update(self) -> TightUpdate | None:  # type: ignore[override]
        regions = [region.intersection(self.size.region) for region in self._dirty_regions]
        self._dirty_regions.clear()
        return self._update(*regions)

    def _update(self, *regions: Region) -> TightUpdate | None:
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
                    yield _Piece(y, start, strips[y - top].crop(start - region.x, stop - region.x))


class Drawn:
    """The cells that the terminal shows, as far as they are known: none at first."""

    def __init__(self) -> None:
        self._rows: dict[int, list[_Cell | None]] = {}
        self._wide: set[int] = set()
        """Rows that have had characters of other widths than one column."""

    def forget(self) -> None:
        """Take nothing for known: the terminal may have lost its content."""
        self._rows.clear()
        self._wide.clear()

    def take(self, y: int, x: int, cells: list[_Cell], *, narrow: bool = True) -> Iterator[tuple[int, list[_Cell]]]:
        """Take that these cells are shown from column `x` of row `y` on; the stretches of them that were not. `narrow`:
        each character takes one column. Terminals differ on the others: what is near one is sent with it."""
        row = self._rows.setdefault(y, [])
        if not narrow:
            self._wide.add(y)
        end = x + len(cells)
        row += [None] * (end - len(row))
        before, row[x:end] = row[x:end], cells
        if before == cells:
            return
        if y in self._wide or None in before:
            yield x, cells
            return
        start = stop = -1
        for at, (old, new) in enumerate(zip(before, cells, strict=True)):
            if old == new:
                continue
            if start < 0:
                start = at
            elif at - stop > _GAP:
                yield x + start, cells[start:stop]
                start = at
            stop = at + 1
        yield x + start, cells[start:stop]


class TightUpdate(CompositorUpdate):
    """Cursor movements, text, and styles where they differ from the last, of what `onto` does not show yet. What lies
    beyond `size` is left out: a terminal that has become smaller than the layout would write it into its last
    column."""

    def __init__(self, pieces: list[_Piece]) -> None:
        self._pieces = pieces
        self.onto = Drawn()
        self.size: Size | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.render_segments(console)

    def render_segments(self, console: Console) -> str:
        out: list[str] = []
        system = console._color_system or ColorSystem.TRUECOLOR
        pen: _Pen | None = None
        for y, x, strip in self._pieces:
            if self.size is not None and (y >= self.size.height or x >= self.size.width):
                continue
            whole, narrow = _cells(strip, system)
            if self.size is not None:
                del whole[self.size.width - x :]
            for at, cells in self.onto.take(y, x, whole, narrow=narrow):
                out.append(f"\x1b[{y + 1};{at + 1}H")
                for text, wanted in cells:
                    if wanted is not pen and not (text == " " and _as_blank(pen, wanted)):
                        out.append(_change(pen, wanted))
                        pen = wanted
                    out.append(text)
        return "".join([*out, "\x1b[0m"]) if out else ""


def _cells(strip: Strip, system: ColorSystem) -> tuple[list[_Cell], bool]:
    """A character and its pen for each column, without control characters, which take none; True if each of the others
    takes one. A segment with one that does not is the text of its first column; those of its others are empty."""
    cells: list[_Cell] = []
    narrow = True
    for text, style, _ in strip:
        if not text.isprintable():
            text = _CONTROL.sub("", text)
        pen, blank = _pens(style, system)
        if text.isascii() or _all_narrow(text):
            cells += [(char, blank if char == " " else pen) for char in text]
        else:
            cells += [(text, pen), *[("", pen)] * (cell_len(text) - 1)]
            narrow = False
    return cells, narrow


@lru_cache(4096)
def _all_narrow(text: str) -> bool:
    """True if each character takes one column."""
    return all(get_character_cell_size(char) == 1 for char in text)


def _as_blank(pen: _Pen | None, wanted: _Pen) -> bool:
    """True if a blank in this pen looks as one in the wanted."""
    return pen is not None and pen.background == wanted.background and not (pen.marks_blanks or wanted.marks_blanks)


@cache
def _pens(style: Style | None, system: ColorSystem) -> tuple[_Pen, _Pen]:
    """The pen of a style, and the pen of its blanks."""
    style = style or Style.null()
    on = style._attributes & style._set_attributes
    attributes = [code for bit, code in Style._style_map.items() if on & (1 << bit)]

    def codes(color: Color | None, foreground: bool) -> str:
        return ";".join(color.downgrade(system).get_ansi_codes(foreground)) if color else ""

    background, marks_blanks = codes(style.bgcolor, False), not _ON_BLANKS.isdisjoint(attributes)
    pen = _the_same(_Pen(";".join(attributes), codes(style.color, True), background, marks_blanks))
    return pen, pen if marks_blanks else _the_same(_Pen("", "", background, False))


@cache
def _the_same(pen: _Pen) -> _Pen:
    """One object for equal pens."""
    return pen


@cache
def _change(pen: _Pen | None, wanted: _Pen) -> str:
    """The escape sequence from one pen to another."""
    if pen is None or pen.attributes != wanted.attributes:
        parts = ["0", wanted.attributes, wanted.foreground, wanted.background]
    else:
        parts = [
            (wanted.foreground or "39") if wanted.foreground != pen.foreground else "",
            (wanted.background or "49") if wanted.background != pen.background else "",
        ]
    return f"\x1b[{';'.join(filter(None, parts))}m"
