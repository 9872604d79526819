"""Finds two levels, waves and evenly spaced levels in a series. A wave is a sum of a few harmonics of one period under
first-order autoregressive noise, fitted and penalised as a course is (`course`), so that both can be compared. The
periods to try come from the periodogram of the whitened series (Fourier frequencies, four times oversampled; harmonics
added up, as for pulsars by Groth 1975)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cs336_tui.stats.course import (
    CORRELATIONS,
    RESOLUTION,
    Course,
    Series,
    likelihood_cost,
    small_sample,
    squared,
    whitened,
)
from cs336_tui.stats.intervals import t_quantile

LEAST_SHARE = 0.1
"""The least share of values of a mode; fewer are outliers."""
LEAST_VALUES = 3
"""The fewest values of a mode."""
LEAST_SEPARATION = 2.5
"""Means this many standard deviations apart; below 2 two equal normals have one peak (Ashman et al. 1994)."""
LEAST_GAIN = 2.8
"""Of twice the log likelihood over one normal, in units of log n, for two parameters more; larger for small samples."""
DEEPEST_VALLEY = 0.7
"""The most values in the middle between the modes, over the mean of those at the modes, in windows of one width."""
BY_CHANCE = 1e-3
"""Chance with which independent noise may look like two levels in turns, before their least distance is asked for."""
LEAST_PERIOD, LEAST_PERIODS = 3.0, 2.5
"""The shortest period in steps, and the fewest periods of a series."""
FEWEST = 12
HARMONICS = (1, 2, 4)
PENALTY, PENALTY_HARMONIC = 5.0, 1.2
"""In units of log n, of twice the log likelihood: of a wave, and of each harmonic but the first."""
CANDIDATES = 5
"""Best periods of the periodogram that are fitted exactly."""
OVERSAMPLED = 4
LEAST_RESETS, UNEQUAL = 3, 0.2
"""Teeth have this many sudden resets, whose distances differ by this share of them at most."""

LEAST_TICK, MOST_TICK, MOST_REACH = 0.015, 0.08, 20.0
"""The least and the largest distance of levels, as shares of the step time, and how far apart the values may lie in
which levels so near are looked for."""
EXACT = 1e-6
"""Times this near are one reading of a clock."""
LEAST_CONCENTRATION, LEAST_RAYLEIGH = 0.5, 8.0
"""The mean resultant length of times around their levels, and the Rayleigh statistic: its square times n."""
LEAST_SPREAD = 0.45
"""The standard deviation in distances of levels: two equal levels have 0.5. A single level is narrower."""
MOST_SEEN = 2000
"""Times that are looked at for levels."""


class Modes(NamedTuple):
    """Two levels: their means, the share of values at the upper one, and a mask of these."""

    low: float
    high: float
    upper_share: float
    upper: npt.NDArray[np.bool_]

    @property
    def interleaved(self) -> bool:
        """True if the series goes back and forth: at least half the switches of coin tosses (Wald and Wolfowitz 1940).
        A level that moves once or twice is no mode."""
        switches = int(np.count_nonzero(self.upper[1:] != self.upper[:-1]))
        share = float(self.upper.mean())
        return switches >= 0.5 * 2 * share * (1 - share) * (len(self.upper) - 1) and switches >= 4


def two_modes(values: Series, least_gap: float) -> Modes | None:
    """The two modes of the values, `least_gap` or more apart; None if there is one. Two normals of one variance, fitted
    by expectation and maximisation (Dempster et al. 1977), are compared with one normal."""
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
    centres = ((low + high) / 2, low, high)
    between, at_low, at_high = (int(np.count_nonzero(np.abs(values - centre) <= gap / 6)) for centre in centres)
    valley = between <= min(at_low, at_high, DEEPEST_VALLEY * (at_low + at_high) / 2)
    if gain < LEAST_GAIN * math.log(n) * small_sample(n) ** 2 or not valley:
        return None
    return Modes(low, high, share, upper > 0.5)


def in_turns(values: Series, least_gap: float) -> Modes | None:
    """The two levels of values that go up and down step by step, `least_gap` or more apart; None of any others.

    Differences of neighbours then have signs that alternate. With these signs changed to one, Student's t is asked for
    the pairs that begin at even values and for those that begin at odd ones: in either no value counts twice, and of a
    drift one of the two has the other sign."""
    if len(values) < 8:
        return None
    signs = (-1.0) ** np.arange(len(values))
    rises = signs[1:] * np.diff(values)
    gap = float(rises.mean())
    for pairs in (rises[::2], rises[1::2]):
        error = float(pairs.std(ddof=1)) / math.sqrt(len(pairs))
        least = error * t_quantile(1 - BY_CHANCE / 2, len(pairs) - 1)
        if abs(gap) < least_gap or math.copysign(1, gap) * float(pairs.mean()) < least:
            return None
    upper = signs * gap > 0
    return Modes(float(values[~upper].mean()), float(values[upper].mean()), float(upper.mean()), upper)


def _split(values: Series) -> tuple[float, float, float]:
    """Means of the two groups of least squares, and the upper one's share."""
    ordered = np.sort(values)
    n = len(ordered)
    below = np.arange(1, n)
    sums = np.cumsum(ordered)
    low, high = sums[:-1] / below, (sums[-1] - sums[:-1]) / (n - below)
    best = int((below * (n - below) * (high - low) ** 2).argmax())
    return float(low[best]), float(high[best]), float(1 - below[best] / n)


class Wave(NamedTuple):
    """A periodic change; `values` has mean 0 over its periods, in the series' unit."""

    period: float
    """In steps."""
    values: Series
    cost: float
    """As of a course: minus twice the log likelihood and the penalty."""

    @property
    def size(self) -> float:
        """From the lowest to the highest of the wave."""
        return float(self.values.max() - self.values.min())


def find_wave(values: Series) -> Wave | None:
    """The likeliest wave of values around 1; None when the likeliest is no better than none at all."""
    n = len(values)
    if n < FEWEST:
        return None
    series = whitened(values)
    best: Wave | None = None
    one = whitened(np.ones(n))
    level = (np.einsum("pn,pn->p", one, series) / squared(one))[:, None] * one
    none = float(likelihood_cost(squared(series - level), n).min())
    for period in _periods(values):
        for harmonics in HARMONICS:
            if harmonics == 1 or period > 2 * harmonics:
                wave = _fit(series, period, harmonics)
                best = wave if best is None or wave.cost < best.cost else best
    return best if best is not None and best.cost < none else None


def teeth(found: Course) -> Wave | None:
    """The wave of a course with sudden resets: three or more steps of one sign and about one height, at equal
    distances, against a ramp. A few harmonics fit such teeth badly."""
    if len(found.steps) < LEAST_RESETS or len(found.terms) > len(found.steps) + 1:
        return None
    at, heights = (np.array(each, dtype=float) for each in zip(*found.steps, strict=True))
    gaps, rise = np.diff(at), float(found.ramp[-1] - found.ramp[0])
    alike = gaps.max() - gaps.min() <= max(2.0, UNEQUAL * gaps.mean())
    if not alike or (heights * rise >= 0).any() or np.abs(heights).max() > 2 * np.abs(heights).min():
        return None
    return Wave(float(gaps.mean()), found.mean - found.mean.mean(), found.cost)


def _periods(values: Series) -> list[float]:
    """The best periods by the periodogram, in steps."""
    n = len(values)
    length = OVERSAMPLED * n
    deviations = values - values.mean()
    frequencies = np.arange(length // 2 + 1) / length
    white = np.abs(1 - CORRELATIONS[:, None] * np.exp(-2j * np.pi * frequencies)) ** 2
    gains = 2 / n * np.abs(np.fft.rfft(deviations, length)) ** 2 * white
    squares = squared(whitened(deviations))[:, None]
    tried = np.flatnonzero((frequencies <= 1 / LEAST_PERIOD) & (frequencies * n >= LEAST_PERIODS))
    if not len(tried):
        return []
    costs = np.full(len(tried), math.inf)
    total = np.zeros((len(CORRELATIONS), len(tried)))
    for harmonic in range(1, max(HARMONICS) + 1):
        at = harmonic * tried
        total = total + np.where(at <= length // 2, gains[:, np.minimum(at, length // 2)], 0)
        if harmonic in HARMONICS:
            left = np.maximum(squares - total, RESOLUTION**2 * n)
            costs = np.minimum(costs, (likelihood_cost(left, n) + _penalty(harmonic, n)).min(axis=0))
    periods: list[float] = []
    for index in np.argsort(costs, kind="stable"):
        frequency = float(frequencies[tried[index]])
        if all(abs(frequency - 1 / other) > 1 / n for other in periods):
            periods += [1 / frequency]
            if len(periods) == CANDIDATES:
                break
    return periods


def _fit(series: Series, period: float, harmonics: int) -> Wave:
    """The wave of least cost near this period; `series` is whitened (P, n)."""
    n = series.shape[1]
    best: Wave | None = None
    for shift in (-0.1, 0.0, 0.1):
        near = 1 / (1 / period + shift / n)
        t = 2 * np.pi * np.arange(n) / near
        columns = np.stack([f(k * t) for k in range(1, harmonics + 1) for f in (np.cos, np.sin)])
        design = whitened(np.concatenate([np.ones((1, n)), columns]))
        products = np.einsum("pkn,pjn->pkj", design, design) + 1e-9 * np.eye(len(columns) + 1)
        heights = np.linalg.solve(products, np.einsum("pkn,pn->pk", design, series)[..., None])[..., 0]
        costs = likelihood_cost(squared(series - np.einsum("pk,pkn->pn", heights, design)), n)
        likeliest = int(costs.argmin())
        cost = float(costs[likeliest]) + _penalty(harmonics, n)
        if best is None or cost < best.cost:
            best = Wave(near, np.einsum("k,kn->n", heights[likeliest, 1:], columns), cost)
    assert best is not None
    return best


def _penalty(harmonics: int, n: int) -> float:
    return (PENALTY + PENALTY_HARMONIC * (harmonics - 1)) * math.log(n) * small_sample(n)


def clock_tick(values: Series) -> float | None:
    """The tick of a coarse clock that timed values around 1: every value recurs, at exact multiples of one distance.
    None otherwise, and of equal values."""
    ordered = np.sort(values)
    gaps = np.diff(ordered)
    gaps = gaps[gaps > EXACT]
    if not len(gaps) or len(gaps) + 1 > len(values) / 2:
        return None
    tick = float(gaps.min())
    off = np.abs(gaps / tick - np.round(gaps / tick)).max()
    # A clock that ticks more seldom than there are steps reads most of them as 0.
    return tick if LEAST_TICK <= tick <= 1 and off * tick <= EXACT * max(1, float(gaps.max()) / tick) else None


def find_levels(values: Series) -> float | None:
    """The distance of evenly spaced levels around which values near 1 lie, as of a device's clock that moves in large
    ticks; None without. For a distance g the angles 2π x/g of values x near multiples of g gather (Rayleigh's test, as
    in Mardia and Jupp 2000, section 6.3). Values at one level gather too, so they must spread over half a distance."""
    seen = values[:MOST_SEEN]
    spread = float(seen.std())
    most = min(MOST_TICK, spread / LEAST_SPREAD)
    reach = max(float(seen.max() - seen.min()), LEAST_TICK)
    if len(seen) < FEWEST or most < LEAST_TICK or reach > MOST_REACH:
        return None
    ticks = 1 / np.arange(1 / most, 1 / LEAST_TICK, 0.05 / reach)
    if not len(ticks):
        return None
    gathered = np.abs(np.exp(2j * np.pi * (seen - np.median(seen)) / ticks[:, None]).mean(axis=1))
    best = int(gathered.argmax())
    concentration = float(gathered[best])
    if concentration < LEAST_CONCENTRATION or len(seen) * concentration**2 < LEAST_RAYLEIGH:
        return None
    return float(ticks[best])
