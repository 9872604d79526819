"""Numbers as people read them: times, sizes, rates, shares and counts. What is unknown reads ``n/a``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from cs336_tui.stats.summaries import Summary

UNKNOWN = "n/a"
UNSTATED = "unknown"
"""A figure that no known data sheet has."""
NOT_MEASURED = "not measured"
"""A figure of a device that nobody measured."""
NONE = "–"
"""In a table: there is nothing to show. It was not run or not measured, or a pass does not have it."""
BARS = "▁▂▃▄▅▆▇█"
TOO_NOISY = "too noisy"
"""In the place of an interval that says nothing, by `is_too_noisy`."""
WIDEST = 4.0
"""An interval that reaches further than this factor to either side says nothing: the FLOPs of neighbouring sizes of the
handouts differ by less, so that it does not even tell one size from the next."""
FINEST_DECIMALS = 6
"""Milliseconds are never shown finer than a nanosecond, which no clock here resolves."""


_ROUNDING = 1e-12
"""A std that is a smaller share of its mean is that of equal times, which doubles do not sum exactly."""


def is_too_noisy(low: float, high: float) -> bool:
    """True of an interval of something above 0, such as a time or a ratio, that reaches further than `WIDEST` to either
    side of its (geometric) middle, or down to 0."""
    return not (low > 0 and high <= low * WIDEST**2)


def millisecond_decimals(mean_s: float | None, std_s: float | None) -> int:
    """Decimal places, in ms, that leave 2 significant digits of the std, or 4 of the mean where there is none but what
    sums of equal times are rounded by. Whole milliseconds are never rounded away."""
    if std_s and std_s > _ROUNDING * (mean_s or 0.0):
        return _decimals(std_s * 1e3, significant=2)
    return _decimals(mean_s * 1e3, significant=4) if mean_s else 0


def fixed_milliseconds(time_s: float | None, decimals: int) -> str:
    """A time in ms, without the unit: 0.1532 s with 1 decimal is ``153.2``."""
    return UNKNOWN if time_s is None else f"{time_s * 1e3:.{decimals}f}"


def milliseconds(mean_s: float | None, std_s: float | None) -> tuple[str, str]:
    """Mean and std in ms to the same decimal place, as many as the std supports: ``("153.20", "0.41")``."""
    decimals = millisecond_decimals(mean_s, std_s)
    return fixed_milliseconds(mean_s, decimals), fixed_milliseconds(std_s, decimals)


def gigabytes(size_bytes: float | None) -> str:
    """Bytes as GB (10⁹ bytes), without the unit: ``38.4``, ``0.051``."""
    if size_bytes is None:
        return UNKNOWN
    return f"{size_bytes / 1e9:.{min(_decimals(size_bytes / 1e9, significant=3), 3)}f}"


def mebibytes(size_bytes: int) -> str:
    """Bytes as MiB (2²⁰ bytes), without the unit, with a decimal at least: ``20.0``, ``1.125``."""
    size = size_bytes / 2**20
    text = f"{size:.4g}" if size < 1000 else f"{size:.1f}"
    return text if "." in text or "e" in text else f"{text}.0"


def count(value: float | None) -> str:
    """A count in 3 significant digits: ``850``, ``102k``, ``1.24B``."""
    if value is None:
        return UNKNOWN
    if abs(value) < 1000 and float(value).is_integer():
        return f"{value:.0f}"
    for suffix in ("", "k", "M", "B"):
        shown = f"{value:.{_decimals(value, significant=3)}f}"
        if abs(float(shown)) < 1000:
            return shown + suffix
        value /= 1000
    return f"{value:.{_decimals(value, significant=3)}f}T"


def counted(number: float, what: str, grouping: str = "") -> str:
    """``1 sample``, ``2 samples``, ``3 launches``, ``2 retries``; ``1,200 events`` with a comma for the grouping."""
    ending = "es" if what.endswith(("s", "x", "ch", "sh")) else "s"
    several = f"{what[:-1]}ies" if what.endswith("ry") else f"{what}{ending}"
    return f"{number:{grouping}} {what if number == 1 else several}"


def named(names: Sequence[str], most: int = 3, between: str = "; ", last: str = " and ") -> str:
    """The first names, and the number of others: ``a; b; c and 2 more``."""
    more = len(names) - most
    return between.join(names[:most]) + (f"{last}{more} more" if more > 0 else "")


def spans(numbers: Iterable[int], to: str = "–", between: str = ", ") -> str:
    """``0–3, 6`` of 0, 1, 2, 3 and 6."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return between.join(to.join(map(str, each)) for each in found)


def duration(time_s: float | None) -> str:
    """A whole number of seconds as a clock shows it: ``0:48``, ``12:03``, ``1:02:03``."""
    if time_s is None:
        return UNKNOWN
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def sparkline(values: Sequence[float], top: float | None = None, width: int | None = None) -> str:
    """One bar per value, its height from 0 to `top` (the largest value unless given): noise of 1 % stays flat. Where
    there are more values than `width`, each bar is the largest of its share of them."""
    if not values:
        return ""
    bars = len(values) if width is None else min(width, len(values))
    edges = [round(i * len(values) / bars) for i in range(bars + 1)]
    heights = [max(values[start:end]) for start, end in itertools.pairwise(edges)]
    ceiling = top or max(values)
    if ceiling <= 0:
        return BARS[0] * bars
    return "".join(BARS[min(max(math.ceil(h / ceiling * len(BARS)) - 1, 0), len(BARS) - 1)] for h in heights)


def percent(share: float | None, unknown: str = UNKNOWN) -> str:
    """A share in %, without the sign, in 3 significant digits."""
    return unknown if share is None else f"{share * 100:.3g}"


def half_width(low: float | None, high: float | None, mean: float | None) -> str:
    """Half an interval over its mean, in %, without the sign: ``0.42``, ``12``; ``too noisy`` where it says nothing."""
    if low is None or high is None or not mean:
        return UNKNOWN
    return TOO_NOISY if is_too_noisy(low, high) else two_digit_percent((high - low) / 2 / mean).removesuffix(" %")


def whole_percent(share: float | None) -> str:
    """A share from 0 to 1 as ``99 %``."""
    return UNKNOWN if share is None else f"{share * 100:.0f} %"


def tenth_percent(share: float | None) -> str:
    """A share as ``46.8 %``, so that all in a column are as fine; a dash for None."""
    return NONE if share is None else f"{share * 100:.1f} %"


def two_digit_percent(share: float) -> str:
    """A share of any size as ``0.0015 %``, ``12 %``: two significant digits, from 100 on whole numbers."""
    return f"{share * 100:.2g} %" if share < 0.995 else f"{share * 100:.0f} %"


def change_percent(share: float, finest: int = 1) -> str:
    """A change, or a part of a time, as ``6.1 %``: whole numbers from 10 on; below 1 `finest` decimals."""
    percent = abs(share) * 100
    return f"{percent:.{0 if percent >= 9.95 else 1 if percent >= 0.995 else finest}f} %"


def used_of(used: int | None, total: int | None) -> str:
    """Bytes as ``61.2/80.0 GB``; n/a for whichever is unknown."""
    if total is None:
        return UNKNOWN if used is None else f"{gigabytes(used)} GB"
    return f"{used / 1e9:.1f}/{total / 1e9:.1f} GB" if used is not None else f"{UNKNOWN}/{gigabytes(total)} GB"


def bandwidth(bytes_per_s: float | None, unknown: str = UNKNOWN) -> str:
    """A rate in GB/s, without the unit, in 4 significant digits."""
    return unknown if bytes_per_s is None else f"{bytes_per_s / 1e9:.4g}"


class ByteUnit(NamedTuple):
    """The unit of all sizes that are read together: GB (10⁹ bytes) or MB (10⁶ bytes)."""

    name: str
    bytes: float

    @classmethod
    def for_largest(cls, size_bytes: float) -> ByteUnit:
        """GB, or MB if even the largest size is less than one GB."""
        return cls("GB", 1e9) if size_bytes >= 1e9 else cls("MB", 1e6)

    def figure(self, size_bytes: float) -> str:
        """The size in 3 significant digits but at most 3 decimals, without the unit."""
        return gigabytes(size_bytes * (1e9 / self.bytes))

    def text(self, size_bytes: float | None) -> str:
        """The size with its unit, ``n/a`` for None."""
        return UNKNOWN if size_bytes is None else f"{self.figure(size_bytes)} {self.name}"

    def fixed(self, size_bytes: float | None) -> str:
        """The size with 3 decimals, without the unit; a dash for None."""
        return NONE if size_bytes is None else f"{size_bytes / self.bytes:.3f}"


class Rate(NamedTuple):
    """The unit of all rates that are read together: TFLOP/s or GFLOP/s."""

    name: str
    flops_per_s: float

    @classmethod
    def for_all(cls, values: Iterable[float | None]) -> Rate:
        """TFLOP/s if the largest reaches one, else GFLOP/s."""
        largest = max((value for value in values if value is not None), default=0.0)
        return cls("TFLOP/s", 1e12) if largest >= 1e12 else cls("GFLOP/s", 1e9)

    def show(self, value: float | None, unknown: str = UNKNOWN) -> str:
        """The rate in 4 significant digits, without the unit."""
        return unknown if value is None else f"{value / self.flops_per_s:.4g}"


def rate_text(flops_per_s: float | None) -> str:
    """A single rate with its unit: ``989.4 TFLOP/s``."""
    rate = Rate.for_all([flops_per_s])
    return f"{rate.show(flops_per_s)} {rate.name}"


Units = tuple[tuple[str, float], ...]
TIMES: Units = (("µs", 1e3), ("ms", 1e6))
"""Units of times in ns, smallest first."""
FLOPS: Units = (("MFLOP", 1e6), ("GFLOP", 1e9), ("TFLOP", 1e12))
FLOP_RATES: Units = (("MFLOP/s", 1e6), ("GFLOP/s", 1e9), ("TFLOP/s", 1e12))
_MOST_DECIMALS = 3
_MOST_DIGITS = 6


class Scale(NamedTuple):
    """One unit and one number of decimals for a whole column, so that its figures compare at a glance."""

    unit: str
    per: float
    decimals: int

    def text(self, value: float | None) -> str:
        """The value without the unit; a dash for None."""
        return NONE if value is None else f"{value / self.per:.{self.decimals}f}"


def scale(values: Iterable[float], units: Units = TIMES, *, at_least: float = 1.0) -> Scale:
    """The largest unit of which the largest value is `at_least` so many; the smallest unit if there is none. Decimals
    leave 3 digits of the smallest value above 0; at most 3, and at most 6 digits of the largest value."""
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


Unit = Literal["ms", "s", "us"]
UNITS: tuple[str, ...] = get_args(Unit)
_UNITS = {"s": ("s", 1.0, 3), "ms": ("ms", 1e3, 0), "us": ("µs", 1e6, -3)}
"""Of each unit its symbol, the number of them in a second, and its decimals more than those of milliseconds."""


class Notation(NamedTuple):
    """A unit of step times and its decimals; None: 2 significant digits of each std decide."""

    unit: Unit = "ms"
    decimals: int | None = None

    @property
    def symbol(self) -> str:
        return _UNITS[self.unit][0]

    def scaled(self, time_s: float) -> float:
        """The time in this unit, not rounded."""
        return time_s * _UNITS[self.unit][1]

    def time(self, time_s: float | None, *, mean_s: float | None, std_s: float | None) -> str:
        """A time without its unit, to the decimal place that a mean with this std supports, but in 2 digits at least:
        beside a large std a short time is not 0."""
        if time_s is None:
            return UNKNOWN
        value, decimals = self.scaled(time_s), self.decimals
        if decimals is None:
            supported = millisecond_decimals(mean_s, std_s) + _UNITS[self.unit][2]
            is_zero = abs(time_s) <= _ROUNDING * (mean_s or 0.0)
            decimals = max(supported, 0 if is_zero else _decimals(value, significant=2), 0)
        return f"{value:.{decimals}f}"

    def of(self, summary: Summary | None, field: str) -> str:
        """A field of a summary, such as ``median_s``."""
        if summary is None:
            return UNKNOWN
        return self.time(getattr(summary, field), mean_s=summary.mean_s, std_s=summary.std_s)

    def mean_and_std(self, summary: Summary) -> str:
        """``12.34 ± 0.05``, without the unit; the mean alone if there is no std."""
        mean = self.of(summary, "mean_s")
        return mean if summary.std_s is None else f"{mean} ± {self.of(summary, 'std_s')}"


MILLISECONDS = Notation()


def _whole_digits(value: float) -> int:
    return len(str(int(value)))


def _decimals(value: float, significant: int) -> int:
    """Decimal places that show `value` in that many significant digits, after rounding to them."""
    exponent = int(f"{value:.{significant - 1}e}".partition("e")[2])
    return min(max(significant - 1 - exponent, 0), FINEST_DECIMALS)
