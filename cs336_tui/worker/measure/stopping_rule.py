"""Stopping rule of automatic counts: ends warm-up and measurement by the step times so far.

A look costs milliseconds, in which a GPU's clocks and a CPU's caches may change. So looks lie between steps, at counts
that grow by a quarter, and `AFTER_LOOK` warm-up steps follow the last one.

Stopping at a narrow interval favours moments of small noise. Simulated with normal noise of 0.5, 1 and 2 % (500 series
each, share 1 %; `test_stopping_rule.py` repeats some), the 95 % interval at the stop holds the true mean in 95 % if
steps are independent (as with a fixed count), in 91 to 96 % if neighbours correlate by 0.5 (fixed: 94 to 96 %), and in
89 to 95 % if by 0.8 (fixed: 93 to 96 %).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import fsum, sqrt
from statistics import fmean, median, pstdev

from cs336_tui.config.counts import FEWEST, duration_words
from cs336_tui.stats.intervals import MeanInterval, mean_interval, t_interval
from cs336_tui.stats.quantities import TOO_NOISY, counted, is_too_noisy
from cs336_tui.stats.ratio import MARGIN
from cs336_tui.stats.steady import FEWEST as FEWEST_TO_TELL
from cs336_tui.stats.steady import Class, classify

AFTER_LOOK = 2  # Warm-up steps after the last look, so that its pause does not affect the first measured step
LEAST_S = 0.5  # Minimum sum of measured steps for an automatic count to end
FEWEST_FOR_NOISE = 50
_GOING: frozenset[Class] = frozenset(("warm-up", "slowdown", "drift", "bimodal", "periodic"))
SETTLED = 0.05  # Largest relative variation of settled noise


def warmup_looks(most: int) -> Iterator[int]:
    """Counts of warm-up steps at which to look: 10, 15, 20, 30, 40, 50, 62, ..., `most`."""
    return _looks(FEWEST["warmup_steps"], most, lambda count: max(5 if count < 20 else 10, count // 4))


def why_not_warm(times_s: Sequence[float]) -> str:
    """The reason for which the last of these warm-up steps are not steady; empty if they are: the detector
    (`stats.steady`) finds no drift, and the mean stays within 1 % of its last value for the last 10 steps or more.
    It sees steep changes only, so the median of their first half must not be 1 % above the second's either."""
    found = classify(times_s)
    if "too-few" in found.classes:
        return "too few steps to tell whether they are steady"
    if found.warmup_steps is None:
        return "still falling"
    if found.steady_after is None:
        return "still not steady"
    steady = times_s[found.steady_after :]
    half = len(steady) // 2
    if len(steady) < FEWEST_TO_TELL or median(steady[:half]) >= median(steady[half:]) * (1 + MARGIN):
        return "still falling"
    return ""


def step_looks(most: int) -> Iterator[int]:
    """Counts of measured steps at which to look: from 20, each time a quarter more, to `most`."""
    return _looks(FEWEST["measure_steps"], most, lambda count: count // 4)


def _looks(count: int, most: int, more: Callable[[int], int]) -> Iterator[int]:
    while count < most:
        yield count
        count += more(count)
    yield most


def enough_measured(times_s: Sequence[float], share: float) -> bool:
    """True after at least 20 steps and 0.5 s if the whole 95 % interval of the mean is narrower than `share` of it
    (`is_narrow`), or if, from 50 steps on, the noise has settled (`noise_has_settled`) and the steps neither warm up,
    slow down, drift, oscillate nor switch between two levels."""
    if len(times_s) < FEWEST["measure_steps"] or fsum(times_s) < LEAST_S:
        return False
    return is_narrow(times_s, share) or (noise_has_settled(times_s) and not _GOING & {*classify(times_s).classes})


def why_stopped(times_s: Sequence[float], share: float) -> str:
    """The reason for which no more steps were measured, in words."""
    interval, stopped = mean_interval(times_s), f"stopped after {len(times_s)} steps"
    known = _known(interval) if interval else ""
    missed = "" if is_narrow(times_s, share) else f", not at the ± {_half(share / 2)} asked for"
    if not enough_measured(times_s, share):
        return f"{stopped}{missed}, the limit{': ' if known else ''}{known}"
    return f"{stopped}{missed}: {known}{', and its noise no longer changes' if missed else ''}"


def steps_left(times_s: Sequence[float], most: int, for_s: float, *, at_once: bool = False) -> int:
    """Steps to run before the next look, until these come to `for_s` seconds or there are `most`; 0 at the end. One by
    one, or with `at_once` half of those that are still needed at their mean."""
    left_s = for_s - fsum(times_s)
    if times_s and (left_s <= 0 or len(times_s) >= most):
        return 0
    needed = left_s / fmean(times_s) if times_s and at_once else 1
    return max(1, min(int(needed / 2), most - len(times_s)))


def why_short(kind: str, most: int, sum_s: float, for_s: float) -> str:
    """The remark on a count that ended before its time."""
    taken = f"{counted(most, f'{kind} step')}, the limit, took {sum_s:.3g} s"
    return f"{taken} of {duration_words(for_s)}; raise the most with {duration_words(for_s)}:MAX"


def is_narrow(times_s: Sequence[float], share: float) -> bool:
    """True if the whole interval of the mean is narrower than `share` of it: of `intervals.mean_interval`, which is
    computed only if the quick `intervals.t_interval` is narrow enough."""
    return all(
        interval is not None and 2 * interval.half_share < share
        for interval in (estimate(times_s) for estimate in (t_interval, mean_interval))
    )


def noise_has_settled(times_s: Sequence[float]) -> bool:
    """True if the noise of at least 50 steps is known, after NVBench's criterion (`stdrel_criterion.cxx`): the running
    std over mean has, over the last half of the steps, a standard deviation of at most 5 % of its mean."""
    if len(times_s) < FEWEST_FOR_NOISE:
        return False
    noise = _running_noise(times_s)[-(len(times_s) // 2) :]
    return pstdev(noise) <= SETTLED * fmean(noise)


def _running_noise(times_s: Sequence[float]) -> list[float]:
    """The std (n - 1) over the mean of the steps so far, after each step from the second on."""
    first = times_s[0]  # moments about it lose no digits if steps are alike
    sums = accumulate(time_s - first for time_s in times_s)
    squares = accumulate((time_s - first) ** 2 for time_s in times_s)
    noise = []
    for n, (total, square) in enumerate(zip(sums, squares, strict=True), 1):
        if n > 1:
            variance = max(square - total**2 / n, 0.0) / (n - 1)
            noise.append(sqrt(variance) / (first + total / n))
    return noise


def _known(interval: MeanInterval) -> str:
    """The 95 % interval of the mean, in words."""
    level = f"({interval.level * 100:g} %)"
    if is_too_noisy(interval.low, interval.high):
        return f"{TOO_NOISY} to tell the mean {level}"
    return f"the mean is known to ± {_half(interval.half_share)} {level}"


def _half(share: float) -> str:
    """Half an interval over the mean, in %."""
    percent = 100 * share
    return f"{percent:.2g} %" if percent < 9.95 else f"{percent:.0f} %"
