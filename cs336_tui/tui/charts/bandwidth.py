"""Bandwidth of a collective over the size of its message, drawn in characters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise

from cs336_tui.analysis.collectives import Curve, Point, curves, published_curves
from cs336_tui.analysis.merge import Result, merge, title_of
from cs336_tui.analysis.published import Published, published
from cs336_tui.config.spec import CellSpec
from cs336_tui.session.state import SessionState
from cs336_tui.tui.charts.roofline import Across, CellPoint, Roof, roofline_chart
from cs336_tui.tui.widgets.lines import Line, joined, line

_NO_LINES: tuple[tuple[object, ...], Sequence[Line]] = (), ()
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B"))


class Bandwidths:
    """Draws `bandwidth_lines` of a session, again only when something changed, which `settled` tells."""

    _drawn = _NO_LINES

    def lines(self, state: SessionState, settled: int, chosen: CellSpec, width: int, height: int) -> Sequence[Line]:
        asked = (id(state), settled, chosen, width, height)
        if self._drawn[0] != asked:
            results = merge([(title_of(state), state)])
            self._drawn = asked, bandwidth_lines(results, chosen, published(), width, height)
        return self._drawn[1]


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
        if _is_beside(curve.spec, chosen) is is_own
        for point in curve.points
    ]
    room = height - len(heading)
    chart = roofline_chart(roofs, marks, width=width, height=room, unit=("GB/s", 1e9), below=Across("size", _size))
    return [*heading, *chart] if chart else []


def _legend(chosen: CellSpec, found: Sequence[Curve], others: Sequence[Curve], *, by_ranks: bool) -> list[Line]:
    parts = [line((f"busbw of {chosen.collective}", "title"))]
    if by_ranks:
        parts.append(line("● with the number of ranks"))
    else:
        parts += [line(f"●{number} {curve.name}") for number, curve in enumerate(found, 1)]
    return parts + [line((f"○ published on {curve.name}", "muted")) for curve in others]


def _is_beside(spec: CellSpec, other: CellSpec) -> bool:
    """True if both are of one curve."""
    fields = ("collective", "ranks", "backend_in_use", "precision", "device", "warmup_steps", "threads")
    return all(getattr(spec, field) == getattr(other, field) for field in fields)


def _between(points: Sequence[Point], size: float) -> float:
    """The busbw between two points, both axes logarithmic; 0 outside of them."""
    for low, high in pairwise(points):
        if low.bytes <= size <= high.bytes and low.bytes < high.bytes:
            share = math.log(size / low.bytes) / math.log(high.bytes / low.bytes)
            return float(low.busbw ** (1 - share) * high.busbw**share)
    return 0.0


def _size(size_bytes: float) -> str:
    scale, unit = next((each for each in _UNITS if size_bytes >= each[0]), _UNITS[-1])
    return f"{size_bytes / scale:g}{unit}"
