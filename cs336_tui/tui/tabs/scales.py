"""One unit and one number of decimals for a whole column, so that its figures can be compared at a glance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cs336_tui.tui import format

_MOST_DECIMALS = 3
_MOST_DIGITS = 6

Units = tuple[tuple[str, float], ...]
TIMES: Units = (("µs", 1e3), ("ms", 1e6))
"""Units of times in ns, smallest first."""
FLOPS: Units = (("MFLOP", 1e6), ("GFLOP", 1e9), ("TFLOP", 1e12))
FLOP_RATES: Units = (("MFLOP/s", 1e6), ("GFLOP/s", 1e9), ("TFLOP/s", 1e12))


class Scale(NamedTuple):
    """How the figures of a column are written."""

    unit: str
    per: float
    decimals: int

    def text(self, value: float | None) -> str:
        """Without the unit; a dash for what there is none of."""
        return format.NOT_YET if value is None else f"{value / self.per:.{self.decimals}f}"


def scale(values: Iterable[float], units: Units = TIMES, *, at_least: float = 1.0) -> Scale:
    """The largest unit of which the largest value is `at_least` so many, the smallest unit where there is none.

    Decimals leave three digits of the smallest value above 0, but are never more than three, nor so many that the
    largest value has more than six digits.
    """
    known = [value for value in values if value > 0]
    largest, smallest = max(known, default=0.0), min(known, default=0.0)
    unit, per = next((u for u in reversed(units) if largest >= u[1] * at_least), units[0])
    enough = next((d for d in range(_MOST_DECIMALS) if smallest / per * 10**d >= 100), _MOST_DECIMALS)
    return Scale(unit, per, min(enough, max(_MOST_DIGITS - _whole_digits(largest / per), 0)))


def time_text(time_ns: float) -> str:
    """A single time in four digits: ``153.2 ms``, ``8.000 µs``."""
    chosen = scale([time_ns])
    decimals = max(4 - _whole_digits(time_ns / chosen.per), 0)
    return f"{chosen._replace(decimals=decimals).text(time_ns)} {chosen.unit}"


def _whole_digits(value: float) -> int:
    return len(str(int(value)))
