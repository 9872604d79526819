"""Intervals of ratios, a row each, on one logarithmic axis with 1 marked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from cs336_tui.tui.widgets.lines import Line, Span, runs

_STEPS = (1, 2, 5, 10)
_LEAST_SPAN = 0.02
"""Least width of an axis, as a share of its high end."""
_ONE, _POINT, _WHISKER = "│", "●", "━"
_LOWER, _HIGHER = "◂", "▸"
"""Signs for what lies beyond an end of the axis."""


class Scale(NamedTuple):
    """A logarithmic axis from `low` to `high`, both above 0."""

    low: float
    high: float

    def column(self, ratio: float, width: int) -> int:
        """The column of a ratio; below 0 or from `width` on if it is beyond an end."""
        share = math.log(ratio / self.low) / math.log(self.high / self.low)
        return math.floor(share * (width - 1) + 0.5)


def scale_of(ratios: Iterable[float]) -> Scale:
    """The axis that holds these ratios, with round ends, which change rarely."""
    found = [ratio for ratio in ratios if 0 < ratio < math.inf] or [1.0]
    low, high = min(found), max(found)
    span = max(high - low, _LEAST_SPAN * high)
    below, above = _step(min(span, low) / 5), _step(span / 5)
    first = math.floor(low / below + 1e-9) * below
    return Scale(first, max(math.ceil(high / above - 1e-9) * above, first + above))


def _step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least this."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))


def axis_line(scale: Scale, width: int) -> Line:
    """The labels of both ends and of 1, which is left out where it has no room or lies beyond an end."""
    low, high = f"{scale.low:.3g}", f"{scale.high:.3g}"
    row = list(low.ljust(width)[: width - len(high)] + high)
    one = scale.column(1.0, width)
    if len(low) < one < width - len(high) - 1:
        row[one] = "1"
    return (Span("".join(row), "axis"),)


def interval_line(
    scale: Scale, width: int, ratio: float | None, low: float | None, high: float | None, role: str
) -> Line:
    """The interval as a bar and the ratio as a point; the mark of 1 behind both. What is beyond an end is an arrow."""
    cells = [" "] * width
    roles = ["axis"] * width
    one = scale.column(1.0, width)
    if 0 <= one < width:
        cells[one] = _ONE

    def put(column: int, sign: str) -> None:
        at = min(max(column, 0), width - 1)
        cells[at] = _LOWER if column < 0 else _HIGHER if column >= width else sign
        roles[at] = role

    if ratio is not None:
        if low is not None and high is not None:
            first, last = (scale.column(each, width) for each in (low, high))
            for column in range(max(first, 0), min(last, width - 1) + 1):
                cells[column], roles[column] = _WHISKER, role
            for column in (first, last):
                if not 0 <= column < width:
                    put(column, _WHISKER)
        put(scale.column(ratio, width), _POINT)
    return tuple(runs(cells, roles))
