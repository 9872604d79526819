"""Confidence intervals of mean step times and of the ratio of two, and what a ratio says.

Pure Python: the lists are short, and the user interface calls this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from cs336_tui.student import LEVEL as LEVEL
from cs336_tui.student import t_quantile

Verdict = Literal["faster", "slower", "same", "ambiguous"]
MARGIN = 0.01
"""A relative difference of times smaller than this is none."""

FROM_RUNS = "Welch's interval of the log ratio, from the runs' means"
FROM_STEPS = "Welch's interval of the log ratio, from the step times"


class Interval(msgspec.Struct, frozen=True):
    """Confidence interval of a mean, in the unit of what was averaged."""

    mean: float
    low: float
    high: float
    level: float
    n: int


class Ratio(msgspec.Struct, frozen=True):
    """Mean time of A over mean time of B, with its confidence interval; below 1, A is faster.

    `method` says in words how the interval was made (`FROM_RUNS`, `FROM_STEPS`).
    """

    ratio: float
    low: float
    high: float
    level: float
    method: str

    def __str__(self) -> str:
        """``0.8312 [0.8290, 0.8335]``: four significant digits each."""
        ratio, low, high = (f"{value:#.4g}".rstrip(".") for value in (self.ratio, self.low, self.high))
        return f"{ratio} [{low}, {high}]"


def interval(times_s: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Interval of the mean of independent times: mean ± t(level, n - 1) · std / √n (Student 1908).

    None below 2 times or when one is not finite. Raises ValueError for a level outside of 0 to 1.
    """
    if len(times_s) < 2 or not all(map(math.isfinite, times_s)):
        return None
    sample = _moments(times_s)
    half = _two_sided(level, sample.n - 1) * math.sqrt(sample.variance / sample.n)
    return Interval(sample.mean, sample.mean - half, sample.mean + half, level, sample.n)


def ratio_of(
    a_runs: Sequence[Sequence[float]], b_runs: Sequence[Sequence[float]], level: float = LEVEL
) -> Ratio | None:
    """Mean time of A over mean time of B. Each side is its runs, each run its measured step times in seconds.

    With two or more runs on both sides a sample is the runs' means: steps of one process share its luck (memory
    layout, clocks), so that between runs there is more variation than within one, and only runs show it. Otherwise a
    sample is all steps of a side, and the interval leaves out what differs from run to run.

    With means a and b of n and m values of standard deviation s and r, the delta method gives log(a/b) the variance
    u + v, where u = s²/(n a²) and v = r²/(m b²) (Casella and Berger 2002, section 5.5.4). The interval is
    a/b · exp(± t · √(u + v)), with Welch and Satterthwaite's degrees of freedom (u + v)² / (u²/(n-1) + v²/(m-1))
    (Welch 1947). From two runs a side it is a little wide: simulated, it holds the true ratio 97 times in 100. It is of
    no width where no value varies, and swapping A and B gives its reciprocal.

    None when a side has fewer than 2 steps, a time is not finite or a mean is not above 0. Raises ValueError for a
    level outside of 0 to 1.
    """
    a, b = ([run for run in runs if run] for runs in (a_runs, b_runs))
    by_run = len(a) >= 2 and len(b) >= 2
    a_values, b_values = (
        [math.fsum(run) / len(run) for run in runs] if by_run else [time_s for run in runs for time_s in run]
        for runs in (a, b)
    )
    if min(len(a_values), len(b_values)) < 2 or not all(map(math.isfinite, (*a_values, *b_values))):
        return None
    x, y = _moments(a_values), _moments(b_values)
    if x.mean <= 0 or y.mean <= 0:
        return None
    u, v = (sample.variance / sample.n / sample.mean**2 for sample in (x, y))
    half = 0.0
    if u + v > 0:
        share = u / (u + v)
        df = 1 / (share**2 / (x.n - 1) + (1 - share) ** 2 / (y.n - 1))
        half = min(_two_sided(level, df) * math.sqrt(u + v), 700.0)  # e^710 is past the largest float
    ratio = x.mean / y.mean
    method = FROM_RUNS if by_run else FROM_STEPS
    return Ratio(ratio, ratio * math.exp(-half), ratio * math.exp(half), level, method)


def verdict(ratio: Ratio | None, margin: float = MARGIN) -> Verdict:
    """What the ratio of two times says of A against B.

    - faster: the interval is wholly below 1 and the ratio at most 1 - margin;
    - slower: the interval is wholly above 1 and the ratio at least 1 + margin;
    - same: the interval is wholly within 1 ± margin, so that any difference is too small to matter;
    - ambiguous: everything else. The interval holds 1 and reaches past the margin; or it leaves 1 out, but the
      difference measured is below the margin and the interval reaches past it, so that nobody can tell whether it
      matters. More steps or repeats narrow the interval. Without a ratio the verdict is ambiguous too.
    """
    if ratio is None:
        return "ambiguous"
    if ratio.high < 1 and ratio.ratio <= 1 - margin:
        return "faster"
    if ratio.low > 1 and ratio.ratio >= 1 + margin:
        return "slower"
    if ratio.low >= 1 - margin and ratio.high <= 1 + margin:
        return "same"
    return "ambiguous"


def explain(ratio: Ratio | None, margin: float = MARGIN, a: str = "A", b: str = "B") -> str:
    """The verdict and its reason in one sentence."""
    if ratio is None:
        return f"{a} and {b} cannot be compared: each needs at least 2 measured steps."
    takes = f"{a} takes {ratio} times as long as {b}"
    percent, near = f"{ratio.level * 100:g} %", f"1 ± {margin * 100:g} %"
    match verdict(ratio, margin):
        case "faster":
            return f"{takes}: faster, the whole {percent} interval is below 1."
        case "slower":
            return f"{takes}: slower, the whole {percent} interval is above 1."
        case "same":
            return f"{takes}: the same, the whole {percent} interval is within {near}."
        case _ if ratio.low <= 1 <= ratio.high:
            return f"{takes}: ambiguous, the {percent} interval holds 1 and reaches past {near}; run more repeats."
        case _:
            return (
                f"{takes}: ambiguous, a difference below {margin * 100:g} % whose {percent} interval reaches past it."
            )


def _two_sided(level: float, df: float) -> float:
    """How many standard errors an interval of this level reaches to either side."""
    if not 0 < level < 1:
        raise ValueError(f"confidence level {level}: expected a number between 0 and 1")
    return t_quantile((1 + level) / 2, df)


class _Moments(NamedTuple):
    n: int
    mean: float
    variance: float


def _moments(values: Sequence[float]) -> _Moments:
    """Mean and sample variance (n - 1) of two or more values; equal values have none, whatever rounding says."""
    n = len(values)
    if min(values) == max(values):
        return _Moments(n, values[0], 0.0)
    mean = math.fsum(values) / n
    return _Moments(n, mean, math.fsum((value - mean) ** 2 for value in values) / (n - 1))
