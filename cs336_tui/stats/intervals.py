"""Confidence interval of a mean step time whose neighbours are alike, and quantiles of Student's t. Times are modelled
as a first-order autoregression. Pure Python but for the bootstrap, which loads numpy at its first call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice, pairwise
from operator import mul
from statistics import NormalDist, median
from typing import NamedTuple

import msgspec

from cs336_tui.stats.quantities import half_width

LEVEL = 0.95
"""Default level of every confidence interval."""
BOOTSTRAP = "bootstrap-t interval, residuals of a first-order autoregression resampled"
FROM_EFFECTIVE_N = "t interval from the effective number of steps, first-order autoregression"
FEWEST = 10
"""The fewest times of which the autocorrelation can be estimated; without it intervals may be too narrow."""
STRONGEST = 0.95
CAUTION = 0.5
"""Standard errors added to the estimated autocorrelation: its error costs more on one side than on the other."""
RESAMPLING_CAUTION = 1.0
"""The same for the bootstrap's series; larger than `CAUTION`, or it would undo that."""
REACH = 3.0
"""Robust standard deviations from the median to which times are held, for one of the estimates of r only."""
FARTHEST = 2.0
"""The bootstrap's interval reaches at most this many times as far as the t interval, to either side."""
_SEED = 336
_MANY_DF = 1e4
_SERIES, _ROWS = 1000, 64


class Sample(msgspec.Struct, frozen=True):
    """Mean of times in order, and its variance, in the unit of the times."""

    n: int
    mean: float
    variance: float
    """Of the mean, not of a time: s² over `effective_n`."""
    effective_n: float
    """The number of independent values that would fix the mean as well; at most `n`."""
    correlation: float
    """Of neighbouring values, as estimated; `effective_n` is computed from a slightly larger one."""

    @property
    def df(self) -> float:
        """Degrees of freedom of `variance`; one at least."""
        return max(self.effective_n - 1, 1.0)


class MeanInterval(Sample, frozen=True, kw_only=True):
    """A mean with its confidence interval; `method` is `BOOTSTRAP` or `FROM_EFFECTIVE_N`."""

    low: float
    high: float
    level: float
    method: str

    @property
    def half_share(self) -> float:
        """Half the width over the mean: 0.01 is ± 1 %."""
        return (self.high - self.low) / 2 / self.mean

    @property
    def half_width(self) -> str:
        """The same in %, as text (`quantities.half_width`)."""
        return half_width(self.low, self.high, self.mean)


def sample_of(times: Sequence[float]) -> Sample:
    """Mean of times in order and its variance, for correlated neighbours, in the unit of the times. Raises ValueError
    below 2 times.

    With correlation r of neighbours, n values of variance s² have a mean of variance s² v / n, where v = (1 + r)/(1 -
    r) - 2 r (1 - rⁿ)/(n (1 - r)²), and squares around their mean that add up to s² (n - v) (Anderson 1971, section
    8.2). So n/v values count. r is the larger of two estimates: from the times, and from the times held to 3 robust
    standard deviations (1.4826 times the median deviation) from their median, since spikes hide correlation. From 10
    times on it is freed of its bias (1 + 3 r)/n (Marriott and Pope 1954); it is raised by half its standard error √((1
    - r²)/n), and kept within 0 and 0.95. Equal times have no variance.
    """
    n = len(times)
    if n < 2:
        raise ValueError(f"{n} times: a variance needs at least 2")
    least, most = min(times), max(times)
    if least == most:
        return Sample(n, times[0], 0.0, n, 0.0)
    mean, squares, estimate = _moments(times)
    middle = median(times)
    reach = REACH * 1.4826 * median([abs(time - middle) for time in times])
    low, high = middle - reach, middle + reach
    if reach and not low <= least <= most <= high:
        estimate = max(estimate, _moments([min(max(time, low), high) for time in times])[2])
    correlation = _unbiased(estimate, n)
    inflation = _inflation(_raised(correlation, n, CAUTION), n)
    return Sample(n, mean, squares / (n - inflation) * inflation / n, n / inflation, correlation)


def t_interval(times: Sequence[float], level: float = LEVEL) -> MeanInterval | None:
    """Interval of the mean of times in order: mean ± t(level, n' - 1) · √variance, n' and variance by `sample_of`.
    Student's (1908) for uncorrelated neighbours; about as good as `mean_interval`'s if times are not skewed. None below
    2 times or when one is not finite. Raises ValueError for a level outside of 0 to 1."""
    upper = t_tail(level)
    if len(times) < 2 or not all(map(math.isfinite, times)):
        return None
    sample = sample_of(times)
    t = t_quantile(upper, sample.df)
    return _interval(times, sample, -t, t, level, FROM_EFFECTIVE_N)


def mean_interval(times: Sequence[float], level: float = LEVEL) -> MeanInterval | None:
    """Interval of the mean of times in order, by a bootstrap-t of autoregressions like theirs. None below 10 times and
    when one is not finite; `t_interval`'s for equal times. Raises ValueError for a level outside of 0 to 1.

    The residuals of a first-order autoregression are centred, scaled to the series' variance and drawn with
    replacement. They make 1,000 series as long as this one with mean 0 (the sieve bootstrap of Bühlmann 1997, of order
    1), with the estimate of r raised by a whole standard error. Each gives a t: its mean over its standard error, as in
    `sample_of` but with r from all times. With the 2.5 % and 97.5 % quantiles of t, the 95 % interval is mean - t(97.5
    %) · error to mean - t(2.5 %) · error (Efron and Tibshirani 1993, section 12.5), at most twice as far as
    `t_interval`'s. The draws are the same every time. `benchmarks/steady_state.py` simulates its coverage.
    """
    t_tail(level)
    if len(times) < FEWEST or not all(map(math.isfinite, times)):
        return None
    if (sample := sample_of(times)).variance == 0:
        return t_interval(times, level)
    farthest = FARTHEST * t_quantile(t_tail(level), sample.df)
    low, high = _t_of_series_like(times, sample, level)
    return _interval(times, sample, max(low, -farthest), min(high, farthest), level, BOOTSTRAP)


class MedianInterval(NamedTuple):
    """A median with its confidence interval."""

    median: float
    low: float
    high: float

    @property
    def half_share(self) -> float:
        """Half the width over the median."""
        return (self.high - self.low) / 2 / self.median


def median_interval(times: Sequence[float], level: float = LEVEL) -> MedianInterval | None:
    """Interval of the median of times in order, which rare spikes hardly move, however large. None below 10 times and
    when one is not finite. Raises ValueError for a level outside of 0 to 1.

    The number of n independent times below their true median is binomial, with standard deviation √n / 2 (Conover 1999,
    section 3.2). Of correlated times it is taken as n / (2 √n'), with n' by `sample_of`. Of the ordered times, the
    interval ends at those that are z such deviations from the middle."""
    z = NormalDist().inv_cdf(t_tail(level))
    n = len(times)
    if n < FEWEST or not all(map(math.isfinite, times)):
        return None
    ordered = sorted(times)
    rank = max(math.floor((n + 1 - z * n / math.sqrt(sample_of(times).effective_n)) / 2), 1)
    return MedianInterval(median(ordered), ordered[rank - 1], ordered[n - rank])


def t_tail(level: float) -> float:
    """The quantile at the upper end of a two-sided interval of this level. Raises ValueError outside of 0 to 1."""
    if not 0 < level < 1:
        raise ValueError(f"confidence level {level}: expected a number between 0 and 1")
    return (1 + level) / 2


def _interval(
    times: Sequence[float], sample: Sample, low_t: float, high_t: float, level: float, method: str
) -> MeanInterval:
    """The interval, held to the least and the greatest time: the error of few, similar times is hardly known."""
    error = math.sqrt(sample.variance)
    low, high = max(sample.mean - high_t * error, min(times)), min(sample.mean - low_t * error, max(times))
    return MeanInterval(**msgspec.structs.asdict(sample), low=low, high=high, level=level, method=method)


def _t_of_series_like(times: Sequence[float], sample: Sample, level: float) -> tuple[float, float]:
    """The two quantiles of t that hold `level` of 1,000 series like `times`, made 64 steps at a time to save memory."""
    import numpy as np

    n = sample.n
    rng = np.random.default_rng(_SEED)
    r = _raised(sample.correlation, n, RESAMPLING_CAUTION)
    deviations = np.asarray(times, dtype=float) - sample.mean
    deviations /= deviations.std()
    residuals = deviations[1:] - r * deviations[:-1]
    residuals -= residuals.mean()
    residuals *= math.sqrt(1 - r**2) / (residuals.std() or 1.0)

    first = last = deviations[rng.integers(n, size=_SERIES)]
    sums, squares, products = first.copy(), first**2, np.zeros(_SERIES)
    for begin in range(1, n, _ROWS):
        block = np.empty((min(_ROWS, n - begin) + 1, _SERIES))
        block[0] = last
        block[1:] = residuals[rng.integers(len(residuals), size=(len(block) - 1, _SERIES), dtype=np.int32)]
        for before, step in pairwise(block):
            step += r * before
        sums += block[1:].sum(axis=0)
        squares += np.einsum("ij,ij->j", block[1:], block[1:])
        products += np.einsum("ij,ij->j", block[1:], block[:-1])
        last = block[-1]

    means = sums / n
    around = squares - n * means**2
    products += (n - 1) * means**2 - means * (2 * sums - first - last)
    estimates = products / np.maximum(around, 1e-12 * n)
    inflation = np.array([_inflation(_raised(_unbiased(each, n), n, CAUTION), n) for each in estimates.tolist()])
    varied = around > 1e-12 * n
    errors = np.sqrt(np.where(varied, around, 1.0) / (n - inflation) * inflation / n)
    t = np.where(varied, means / errors, np.copysign(np.inf, means))
    low, high = np.quantile(t, (1 - t_tail(level), t_tail(level)), method="nearest")
    return float(low), float(high)


def _moments(times: Sequence[float]) -> tuple[float, float, float]:
    """Mean, sum of squares around it and correlation of neighbours, for times that are not all equal."""
    mean = math.fsum(times) / len(times)
    deviations = [time - mean for time in times]
    squares = math.fsum(map(mul, deviations, deviations))
    return mean, squares, math.fsum(map(mul, deviations, islice(deviations, 1, None))) / squares


def _unbiased(estimate: float, n: int) -> float:
    """The r whose expected estimate from n values is r - (1 + 3 r)/n; for very few values, the estimate itself."""
    return min(max((estimate + 1 / n) / (1 - 3 / n), -STRONGEST), STRONGEST) if n >= FEWEST else estimate


def _raised(correlation: float, n: int, errors: float) -> float:
    """The correlation plus some of its standard errors, within 0 and `STRONGEST`."""
    return min(max(correlation + errors * math.sqrt(max(1 - correlation**2, 0) / n), 0.0), STRONGEST)


def _inflation(correlation: float, n: int) -> float:
    """Variance of the mean of n correlated values over that of independent ones."""
    rest = 1 - correlation
    return (1 + correlation) / rest - 2 * correlation * (1 - correlation**n) / (n * rest**2)


@lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """The `p` quantile of Student's t distribution with `df` degrees of freedom, a whole number or not, exact to about
    10 digits. Newton's method on the upper tail I_x(df/2, 1/2) / 2 at x = df / (df + t²) (Abramowitz and Stegun
    26.7.1), from the normal quantile, so that no step overshoots. From 10,000 degrees of freedom on: the expansion in
    1/df of A&S 26.7.5. Raises ValueError for `p` outside of 0 to 1 or `df` not above 0."""
    if not (0 < p < 1 and df > 0):
        raise ValueError(f"t quantile of p {p}, df {df}: expected 0 < p < 1 and df > 0")
    if p < 0.5:
        return -t_quantile(1 - p, df)
    z = NormalDist().inv_cdf(p)
    if df >= _MANY_DF:
        return z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df * math.pi)
    t = z
    for _ in range(100):
        tail = _incomplete_beta(df / 2, 0.5, df / (df + t * t), t * t / (df + t * t)) / 2
        step = (tail - (1 - p)) / (scale * (1 + t * t / df) ** (-(df + 1) / 2))
        t += step
        if abs(step) <= 1e-13 * t:
            break
    return t


def _incomplete_beta(a: float, b: float, x: float, y: float) -> float:
    """The regularised incomplete beta function I_x(a, b) by the continued fraction DLMF 8.17.22, by Lentz's method; y =
    1 - x is given so that no digits are lost."""
    if x <= 0 or y <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # where the fraction of the other tail converges
        return 1 - _incomplete_beta(b, a, y, x)
    log_front = a * math.log(x) + b * math.log(y) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            c, d = 1 + term / c, 1 / (1 + term * d)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(log_front) / a * fraction
