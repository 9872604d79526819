"""Numbers as people read them: times, bytes, counts and sparklines. What is unknown reads ``n/a``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

UNKNOWN = "n/a"
BARS = "▁▂▃▄▅▆▇█"
FINEST_DECIMALS = 6
"""Milliseconds are never shown finer than a nanosecond, which no clock here resolves."""


def millisecond_decimals(mean_s: float | None, std_s: float | None) -> int:
    """Decimal places, in ms, that leave 2 significant digits of the std, or 4 of the mean where there is no std.

    Whole milliseconds are never rounded away.
    """
    if std_s:
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


def duration(time_s: float | None) -> str:
    """A whole number of seconds as a clock shows it: ``0:48``, ``12:03``, ``1:02:03``."""
    if time_s is None:
        return UNKNOWN
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def sparkline(values: Sequence[float], top: float | None = None, width: int | None = None) -> str:
    """One bar per value, its height from 0 to `top` (the largest value unless given): noise of 1 % stays flat.

    Where there are more values than `width`, each bar is the largest of its share of them.
    """
    if not values:
        return ""
    bars = len(values) if width is None else min(width, len(values))
    edges = [round(i * len(values) / bars) for i in range(bars + 1)]
    heights = [max(values[start:end]) for start, end in itertools.pairwise(edges)]
    ceiling = top or max(values)
    if ceiling <= 0:
        return BARS[0] * bars
    return "".join(BARS[min(max(math.ceil(h / ceiling * len(BARS)) - 1, 0), len(BARS) - 1)] for h in heights)


def _decimals(value: float, significant: int) -> int:
    """Decimal places that show `value` in that many significant digits, after rounding to them."""
    exponent = int(f"{value:.{significant - 1}e}".partition("e")[2])
    return min(max(significant - 1 - exponent, 0), FINEST_DECIMALS)
