"""How step times are written: in which unit, and to how many decimal places."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from cs336_tui.stats.quantities import UNKNOWN, millisecond_decimals
from cs336_tui.stats.summaries import Summary

NONE = "–"
"""In a table where there is nothing to show: it was not run or not measured, or a pass does not have it."""

Unit = Literal["ms", "s", "us"]
UNITS: tuple[str, ...] = get_args(Unit)

_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6}
_DECIMALS_AGAINST_MS = {"s": 3, "ms": 0, "us": -3}
_SYMBOLS = {"s": "s", "ms": "ms", "us": "µs"}


class Notation(NamedTuple):
    """A unit of time and the decimal places of times in it; None lets every std decide: 2 significant digits of it."""

    unit: Unit = "ms"
    decimals: int | None = None

    @property
    def symbol(self) -> str:
        """The unit as it is written."""
        return _SYMBOLS[self.unit]

    def scaled(self, time_s: float) -> float:
        """The time in this unit, not rounded."""
        return time_s * _PER_SECOND[self.unit]

    def time(self, time_s: float | None, *, mean_s: float | None, std_s: float | None) -> str:
        """A time without its unit, to the decimal place that a mean with this std supports."""
        if time_s is None:
            return UNKNOWN
        return f"{self.scaled(time_s):.{self._places(mean_s, std_s)}f}"

    def of(self, summary: Summary | None, field: str) -> str:
        """A field of a summary, such as ``median_s``."""
        if summary is None:
            return UNKNOWN
        return self.time(getattr(summary, field), mean_s=summary.mean_s, std_s=summary.std_s)

    def mean_and_std(self, summary: Summary) -> str:
        """``12.34 ± 0.05``, without the unit; the mean alone where there is no std."""
        mean = self.of(summary, "mean_s")
        return mean if summary.std_s is None else f"{mean} ± {self.of(summary, 'std_s')}"

    def _places(self, mean_s: float | None, std_s: float | None) -> int:
        if self.decimals is not None:
            return self.decimals
        return max(millisecond_decimals(mean_s, std_s) + _DECIMALS_AGAINST_MS[self.unit], 0)


MILLISECONDS = Notation()
SECONDS = Notation("s")
