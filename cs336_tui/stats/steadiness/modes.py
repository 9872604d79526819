"""Whether values lie around two levels rather than one."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cs336_tui.stats.steadiness.course import small_sample

Series = npt.NDArray[np.float64]

LEAST_SHARE = 0.1
"""A mode of fewer values than this share is a few outliers."""
LEAST_VALUES = 3
"""So are fewer values than this, of however few."""
LEAST_SEPARATION = 2.5
"""Means this many standard deviations apart; below 2 two equal normals have one peak (Ashman et al. 1994)."""
LEAST_GAIN = 2.8
"""Twice the log likelihood gained over one normal, in units of log n, for two parameters more; more is asked of small
samples."""
DEEPEST_VALLEY = 0.7
"""Values in the middle between the modes, over the mean of those at the modes, in windows of one width; nor are there
more than at either. Flat-topped and skewed distributions gain likelihood from two normals too, but have no valley."""


class Modes(NamedTuple):
    """Two levels: their means, the share of values at the upper one, and which are there."""

    low: float
    high: float
    upper_share: float
    upper: npt.NDArray[np.bool_]

    @property
    def interleaved(self) -> bool:
        """Whether the series goes back and forth: at least half the switches that coin tosses would make (Wald and
        Wolfowitz 1940). A level that moves once or twice is no mode."""
        switches = int(np.count_nonzero(self.upper[1:] != self.upper[:-1]))
        share = float(self.upper.mean())
        return switches >= 0.5 * 2 * share * (1 - share) * (len(self.upper) - 1) and switches >= 4


def two_modes(values: Series, least_gap: float) -> Modes | None:
    """The modes of values whose distribution has two, `least_gap` or more apart; None when it has not.

    Two normals of one variance, fitted by expectation and maximisation (Dempster et al. 1977) from the split of least
    squares, against one normal.
    """
    n = len(values)
    variance = float(values.var())
    if n < 8 or variance <= 0:
        return None
    low, high, share = _split(values)
    if high - low < least_gap:
        return None
    within = max(variance - share * (1 - share) * (high - low) ** 2, 1e-6 * variance)
    upper = np.empty(n)
    for _ in range(25):
        odds = math.log(share / (1 - share)) + (high - low) * (values - (low + high) / 2) / within
        upper = 1 / (1 + np.exp(-np.clip(odds, -500, 500)))
        share = float(np.clip(upper.mean(), 1 / n, 1 - 1 / n))
        high, low = float(upper @ values) / (n * share), float((1 - upper) @ values) / (n * (1 - share))
        within = float((upper * (values - high) ** 2 + (1 - upper) * (values - low) ** 2).mean())
        within = max(within, 1e-6 * variance)
    gap = high - low
    least_share = max(LEAST_SHARE, (LEAST_VALUES - 0.5) / n)
    if gap < max(least_gap, LEAST_SEPARATION * math.sqrt(within)) or min(share, 1 - share) < least_share:
        return None
    density = (1 - share) * np.exp(-((values - low) ** 2) / (2 * within))
    density += share * np.exp(-((values - high) ** 2) / (2 * within))
    gain = 2 * float(np.log(np.maximum(density, 1e-300)).sum()) + n + n * math.log(variance / within)
    between, at_low, at_high = (_near(values, centre, gap) for centre in ((low + high) / 2, low, high))
    valley = between <= min(at_low, at_high, DEEPEST_VALLEY * (at_low + at_high) / 2)
    if gain < LEAST_GAIN * math.log(n) * small_sample(n) ** 2 or not valley:
        return None
    return Modes(low, high, share, upper > 0.5)


def _split(values: Series) -> tuple[float, float, float]:
    """Means of the two groups of least squares, and the upper one's share."""
    ordered = np.sort(values)
    n = len(ordered)
    below = np.arange(1, n)
    sums = np.cumsum(ordered)
    low, high = sums[:-1] / below, (sums[-1] - sums[:-1]) / (n - below)
    best = int((below * (n - below) * (high - low) ** 2).argmax())
    return float(low[best]), float(high[best]), float(1 - below[best] / n)


def _near(values: Series, centre: float, gap: float) -> int:
    """How many values are within a sixth of the gap."""
    return int(np.count_nonzero(np.abs(values - centre) <= gap / 6))
