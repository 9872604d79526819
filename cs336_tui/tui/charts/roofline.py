"""A roofline drawn in characters: two ceilings in braille dots, cells as numbered points, both axes logarithmic; and in
the same way the bandwidth of a collective over the size of its message."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from cs336_tui.analysis.merge import Result, merge, title_of
from cs336_tui.analysis.published import Published, published
from cs336_tui.analysis.roofline import Curve, Point, curves, published_curves
from cs336_tui.config.spec import CellSpec
from cs336_tui.session.state import SessionState
from cs336_tui.tui.charts.bars import Scale
from cs336_tui.tui.widgets.lines import Line, Span, joined, line, runs

_LABEL = 8
_MARGIN = _LABEL + 2
_DOTS_ACROSS, _DOTS_DOWN = 2, 4
_BRAILLE = 0x2800
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a braille character, by row and column of the dot (Unicode 15, section 21.1)."""
_DASH = 3
"""Dots of a dash, and of a gap."""
_ROOM = 4.0
"""The factor by which the axis exceeds the outermost intensities."""
_NEAR = 3.0
"""The factor by which the axis begins below the lowest FLOP/s."""
_FEWEST_TICKS = 2
_LEAST = (24, 5)
"""Least columns and rows of a drawing."""
_of_curve = attrgetter("collective", "ranks", "backend_in_use", "precision", "device", "warmup_steps", "threads")
"""The choices that are the same in all cells of a curve."""
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B"))


class Roof(NamedTuple):
    """A line over the axis: a ceiling, the most FLOP/s at an intensity, or a curve, which is 0 where it ends; and its
    style."""

    attainable: Callable[[float], float]
    ridge: float | None
    role: str
    dashed: bool = False


class CellPoint(NamedTuple):
    """A measured cell: its place on both axes, FLOPs per byte and FLOP/s unless they are other ones, its number and
    style."""

    intensity: float
    flops_per_s: float
    number: int | None
    """None: it has no number beside it."""
    role: str = "strong"
    sign: str = "●"


def roofline_chart(
    roofs: Sequence[Roof],
    marks: Sequence[CellPoint],
    *,
    width: int,
    height: int,
    unit: tuple[str, float],
    below: str = "FLOP/B",
    text_below: Callable[[float], str] = "{:g}".format,
) -> list[Line]:
    """`height` rows of `width` characters, the last two the axis of intensities; none without room. `unit`: name of the
    vertical axis's unit and its size, FLOP/s; `below`: that of the horizontal one, and `text_below` the text of a value
    on it. Marks in one place have the style of the last, and all numbers that fit."""
    if width < _LEAST[0] or height < _LEAST[1] or not marks:
        return []
    columns, rows = width - _MARGIN, height - 2
    inside = [mark.intensity for mark in marks] + [roof.ridge for roof in roofs if roof.ridge]
    across = Scale(min(inside) / _ROOM, max(inside) * _ROOM)
    reached = [mark.flops_per_s for mark in marks]
    up = Scale(min(reached) / _NEAR, 1.5 * max(reached + [roof.attainable(across.high) for roof in roofs]))
    chars = [[" "] * columns for _ in range(rows)]
    roles = [["text"] * columns for _ in range(rows)]
    for roof in sorted(roofs, key=lambda roof: not roof.dashed):  # solid ones are seen where both are
        for (row, column), bits in _dots(roof, across, up, columns, rows).items():
            before = ord(chars[row][column]) - _BRAILLE if chars[row][column] != " " else 0
            chars[row][column] = chr(_BRAILLE | before | bits)
            roles[row][column] = roof.role
    _draw(marks, across, up, chars, roles)
    ticks = _ticks(up, rows, range(rows - 1))  # the row on top names the unit
    lines: list[Line] = []
    for row in range(rows):
        tick = ticks.get(rows - 1 - row)
        label = "" if tick is None else f"{tick / unit[1]:.4g}"
        axis = f"{label:>{_LABEL}} ┤" if label and row else f"{unit[0] if row == 0 else '':>{_LABEL}} │"
        lines.append((Span(axis, "axis"), *runs(chars[row], roles[row])))
    return [*lines, *_bottom(across, columns, below, text_below)]


def _dots(roof: Roof, across: Scale, up: Scale, columns: int, rows: int) -> Mapping[tuple[int, int], int]:
    """The braille bits of each character on the ceiling."""
    wide, high = columns * _DOTS_ACROSS, rows * _DOTS_DOWN
    found: dict[tuple[int, int], int] = {}
    before: int | None = None
    for x in range(wide):
        reached = roof.attainable(across.at((x + 0.5) / wide))
        if reached <= 0:
            before = None
            continue
        y = up.place(reached, high)
        begin = y if before is None or before == y else min(before + 1, y)
        before = y
        if roof.dashed and x // _DASH % 2:
            continue
        for dot in range(max(begin, 0), min(y, high - 1) + 1):
            row, part = divmod(high - 1 - dot, _DOTS_DOWN)
            at = row, x // _DOTS_ACROSS
            found[at] = found.get(at, 0) | _BITS[part][x % _DOTS_ACROSS]
    return found


def _draw(marks: Sequence[CellPoint], across: Scale, up: Scale, chars: list[list[str]], roles: list[list[str]]) -> None:
    """Draw a point for each mark, with the numbers of all marks in its place."""
    rows, columns = len(chars), len(chars[0])
    places: dict[tuple[int, int], list[CellPoint]] = {}
    for mark in marks:
        row = rows - 1 - min(max(up.place(mark.flops_per_s, rows), 0), rows - 1)
        column = min(max(across.place(mark.intensity, columns), 0), columns - 1)
        places.setdefault((row, column), []).append(mark)
    for (row, column), here in places.items():
        chars[row][column], roles[row][column] = here[-1].sign, here[-1].role
    taken = set(places)
    for (row, column), here in reversed(places.items()):
        numbers = [str(mark.number) for mark in here if mark.number is not None]
        every = ",".join(numbers)
        for text in (every, f"{numbers[-1]}…") if len(numbers) > 1 else (every,):
            starts = (column + 1, column - len(text))
            start = next((at for at in starts if _is_free(row, column, at, len(text), columns, taken)), None)
            if start is not None:
                chars[row][start : start + len(text)] = text
                roles[row][start : start + len(text)] = [here[-1].role] * len(text)
                taken |= {(row, at) for at in range(start, start + len(text))}
                break


def _is_free(row: int, own: int, start: int, length: int, columns: int, taken: set[tuple[int, int]]) -> bool:
    """True if a number fits there, apart from all points but that of column `own`."""
    if start < 0 or start + length > columns:
        return False
    return not any((row, at) in taken for at in range(start - 1, start + length + 1) if at != own)


def _ticks(scale: Scale, places: int, free: range) -> dict[int, float]:
    """Labelled values by their place, if among the `free` ones: powers of ten, and values between if these are few."""
    powers = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    found: dict[int, float] = {}
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        values = [step * 10.0**power for power in powers for step in steps]
        found = {place: value for value in values if (place := scale.place(value, places)) in free}
        if len(found) >= _FEWEST_TICKS:
            break
    return found


def _bottom(across: Scale, columns: int, title: str, text_of: Callable[[float], str]) -> list[Line]:
    axis, labels = ["─"] * columns, [" "] * columns
    labels[columns - len(title) :] = title
    for column, value in _ticks(across, columns, range(columns)).items():
        axis[column] = "┴"
        text = text_of(value)
        start = max(column - len(text) // 2, 0)
        room = labels[max(start - 1, 0) : start + len(text) + 1]
        if start + len(text) < columns and not "".join(room).strip():
            labels[start : start + len(text)] = text
    margin = " " * (_LABEL + 1)
    return [(Span(f"{margin}└{''.join(axis)}", "axis"),), (Span(f"{margin} {''.join(labels)}", "axis"),)]


@lru_cache(2)
def session_bandwidths(
    state: SessionState,
    settled: int,  # noqa: ARG001  # a key of the cache
    chosen: CellSpec,
    width: int,
    height: int,
) -> Sequence[Line]:
    """`bandwidth_lines` of a session, drawn again only when something changed, which `settled` tells."""
    return bandwidth_lines(merge([(title_of(state), state)]), chosen, published(), width, height)


def bandwidth_lines(
    results: Iterable[Result], chosen: CellSpec, rows: Iterable[Published], width: int, height: int
) -> list[Line]:
    """Curves of busbw of the operation of `chosen`, whose own is marked, over at most `height` lines. Dashed: those of
    `rows`, which others published, of its backend and number of ranks. Empty without two sizes, and without room."""
    of_operation = [result for result in results if result.spec.collective == chosen.collective]
    found = [curve for curve in curves(of_operation) if len(curve.points) > 1]
    if not found:
        return []
    by_ranks = len({curve.spec.ranks for curve in found}) == len(found)
    numbers = [curve.spec.ranks if by_ranks else number for number, curve in enumerate(found, 1)]
    others = published_curves(chosen, rows)
    heading = joined(_legend(chosen, found, others, by_ranks=by_ranks), width)
    roofs = [Roof(partial(_between, curve.points), None, "warmup", dashed=True) for curve in others]
    roofs += [Roof(partial(_between, curve.points), None, "measured") for curve in found]
    marks = [CellPoint(point.bytes, point.busbw, None, "warmup", "○") for curve in others for point in curve.points]
    marks += [
        CellPoint(point.bytes, point.busbw, number, "key" if is_own else "strong")
        for is_own in (False, True)
        for number, curve in zip(numbers, found, strict=True)
        if (_of_curve(curve.spec) == _of_curve(chosen)) is is_own
        for point in curve.points
    ]
    room = height - len(heading)
    chart = roofline_chart(roofs, marks, width=width, height=room, unit=("GB/s", 1e9), below="size", text_below=_size)
    return [*heading, *chart] if chart else []


def _legend(chosen: CellSpec, found: Sequence[Curve], others: Sequence[Curve], *, by_ranks: bool) -> list[Line]:
    parts = [line((f"busbw of {chosen.collective}", "title"))]
    if by_ranks:
        parts.append(line("● with the number of ranks"))
    else:
        parts += [line(f"●{number} {curve.name}") for number, curve in enumerate(found, 1)]
    return parts + [line((f"○ published on {curve.name}", "muted")) for curve in others]


def _between(points: Sequence[Point], size: float) -> float:
    """The busbw between two points, both axes logarithmic; 0 outside of them."""
    for low, high in pairwise(points):
        if low.bytes <= size <= high.bytes and low.bytes < high.bytes:
            return Scale(low.busbw, high.busbw).at(Scale(low.bytes, high.bytes).share(size))
    return 0.0


def _size(size_bytes: float) -> str:
    scale, unit = next((each for each in _UNITS if size_bytes >= each[0]), _UNITS[-1])
    return f"{size_bytes / scale:g}{unit}"
