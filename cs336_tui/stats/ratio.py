"""The ratio of two mean step times, its confidence interval and outcome. Pure Python, as the lists are short."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

from cs336_tui.stats.intervals import FEWEST, Sample, sample_of, t_quantile, t_tail
from cs336_tui.stats.intervals import LEVEL as LEVEL
from cs336_tui.stats.quantities import TOO_NOISY, WIDEST, is_too_noisy

Outcome = Literal["faster", "slower", "same", "ambiguous"]
Passing = Literal["not slower", "slower", "cannot tell"]
MARGIN = 0.01
"""The smallest relative difference of times that counts."""

FROM_RUNS = "Welch's interval of the log ratio, from the runs' means"
FROM_STEPS = "Welch's interval of the log ratio, from the step times and the effective number of them"
FROM_PAIRS = "t interval of the log ratio of neighbouring steps, from the rounds' means"
FROM_ONE_ROUND = "t interval of the log ratio of neighbouring steps, from one round"
HOLD = 2.0
"""Robust standard deviations from the mean to which `paired_ratio` holds the log ratio of a pair."""
FAR = 4.0
"""A pair this many robust standard deviations from its round's median is a spike."""
MOST_FAR = 0.05
"""If more than this share of all pairs are spikes, they are a habit of a side, and none is held."""
NO_INTERVAL, _NONE = "(no interval)", "none: "
_REACHES = f"it would reach further than a factor of {WIDEST:g}, as the times wander or are too few"
_ROUNDING = 1e-9


class Ratio(msgspec.Struct, frozen=True):
    """Mean time of A over mean time of B, with its confidence interval; below 1, A is faster. `method` is `FROM_RUNS`,
    `FROM_STEPS`, `FROM_PAIRS` or `FROM_ONE_ROUND`, of pairs also how many were held, and whether the interval was
    widened; without an interval, `low` and `high` are None and `method` says why."""

    ratio: float
    low: float | None
    high: float | None
    level: float
    method: str

    def __str__(self) -> str:
        """``0.8312 [0.8290, 0.8335]``: four significant digits each."""
        return f"{_digits(self.ratio)} {self.bounds()}"

    @property
    def inverse(self) -> Ratio:
        """Mean time of B over mean time of A."""
        low, high = (None if bound is None else 1 / bound for bound in (self.high, self.low))
        return Ratio(1 / self.ratio, low, high, self.level, self.method)

    @property
    def is_too_noisy(self) -> bool:
        """True if it has no interval because that would say nothing (`quantities.is_too_noisy`)."""
        return self.method == f"{_NONE}{_REACHES}"

    def bounds(self, spec: str = "") -> str:
        """``[0.8290, 0.8335]``, to four significant digits or in the format `spec`; else ``(no interval)``, or
        ``(too noisy)`` where it would say nothing."""
        if self.low is None or self.high is None:
            return f"({TOO_NOISY})" if self.is_too_noisy else NO_INTERVAL
        low, high = (format(value, spec) if spec else _digits(value) for value in (self.low, self.high))
        return f"[{low}, {high}]"


def ratio_of(
    a_runs: Sequence[Sequence[float]], b_runs: Sequence[Sequence[float]], level: float = LEVEL
) -> Ratio | None:
    """Mean time of A over mean time of B. Each side is its runs, each run its measured step times in seconds. None when
    a side has fewer than 2 steps, a time is not finite or a mean is not above 0. Raises ValueError for a level outside
    of 0 to 1.

    With two or more runs on both sides the sample is the runs' means, as steps of one process share its luck (memory
    layout, clocks). Otherwise it is all steps of a side in order, which count for their effective number
    (`intervals.sample_of`); the interval leaves out the variation between runs.

    With means a and b of variances p and q, the delta method gives log(a/b) the variance u + v, where u = p/a² and v =
    q/b² (Casella and Berger 2002, section 5.5.4). The interval is a/b · exp(± t · √(u + v)), with Welch and
    Satterthwaite's degrees of freedom (u + v)² / (u²/(n-1) + v²/(m-1)) (Welch 1947), n and m the runs of each side, or
    the effective numbers of its steps. From two runs a side, simulated, it holds the true ratio 97 times in 100. There
    is none if a side of steps has fewer than 10 of them, or if it would reach further than a factor of 4 to either
    side.
    """
    upper = t_tail(level)
    a, b = ([run for run in runs if run] for runs in (a_runs, b_runs))
    by_run = len(a) >= 2 and len(b) >= 2
    a_values, b_values = (
        [math.fsum(run) / len(run) for run in runs] if by_run else [time_s for run in runs for time_s in run]
        for runs in (a, b)
    )
    if min(len(a_values), len(b_values)) < 2 or not all(map(math.isfinite, (*a_values, *b_values))):
        return None
    x, y = (independent(values) if by_run else sample_of(values) for values in (a_values, b_values))
    if x.mean <= 0 or y.mean <= 0:
        return None
    if not by_run and (few := min(len(a_values), len(b_values))) < FEWEST:
        why = f"{few} steps are fewer than the {FEWEST} a side that are needed"
        return without_interval(math.log(x.mean / y.mean), level, why)
    u, v = (sample.variance / sample.mean**2 for sample in (x, y))
    half = 0.0
    if u + v > 0:
        share = u / (u + v)
        df = 1 / (share**2 / x.df + (1 - share) ** 2 / y.df)
        half = t_quantile(upper, df) * math.sqrt(u + v)
    return around(math.log(x.mean / y.mean), half, level, FROM_RUNS if by_run else FROM_STEPS)


def paired_ratio(rounds: Sequence[Sequence[tuple[float, float]]], level: float = LEVEL) -> Ratio | None:
    """Time of A over time of B from rounds of pairs, each pair a step of A and its neighbour of B, in seconds. None
    without a pair, with one round of a single pair, and when a time is not finite or not above 0. Raises ValueError for
    a level outside of 0 to 1.

    A round is a process of its own; one without pairs does not count. Drift affects both steps of a pair and cancels in
    the log of their ratio. The first step of a pair should alternate between A and B, so that being second costs both
    alike.

    A round's value is Huber's mean of these logs (1964): each is held to 2 robust standard deviations (1.4826 times the
    median deviation) from it. But if more than 5 % of all pairs lie farther than 4 robust deviations from their round's
    median, a side is often slow, and the value is the plain mean of the logs, with its variance. If the mean time of A
    over that of B, of all pairs, lies outside of the interval, the interval is widened to it.

    Pairs of a round share the luck of its process, so the interval comes from the rounds: the mean of their values ±
    t(level, rounds - 1) · std / √rounds. It is never narrower than the interval that the pairs alone imply, from the
    variance of every round's value (Huber 1964) by its effective number of pairs (`intervals.sample_of`). One round has
    that interval only; fewer than 10 pairs have none.
    """
    upper = t_tail(level)
    taken = [pairs for pairs in rounds if pairs]
    if not all(0 < time_s < math.inf for pairs in taken for pair in pairs for time_s in pair):
        return None
    logs = [[math.log(a_s) - math.log(b_s) for a_s, b_s in pairs] for pairs in taken]
    if not logs or (len(logs) == 1 and len(logs[0]) < 2):
        return None
    count, total = len(logs), sum(map(len, logs))
    deviations = [abs(value - middle) for values in logs for middle in (median(values),) for value in values]
    reach = FAR * 1.4826 * median(deviations)
    far = sum(deviation > reach for deviation in deviations)
    is_habit = far > MOST_FAR * total
    values, held = zip(*(_held(each, is_plain=is_habit) for each in logs), strict=True)
    within = [value for value in values if value.n > 1]
    half = 0.0
    if within:
        variance = math.fsum(value.variance for value in within) / len(within) / count
        half = t_quantile(upper, math.fsum(value.df for value in within)) * math.sqrt(variance)
    if count > 1:
        between = independent([value.mean for value in values])
        half = max(half, t_quantile(upper, between.df) * math.sqrt(between.variance))
    mean = math.fsum(value.mean for value in values) / count
    kept = f"{sum(held) or 'none'} of {total} pairs held to {HOLD:g} robust deviations"
    if is_habit:
        kept = f"none of {total} pairs held, as {far} lie farther than {FAR:g} robust deviations off"
    if count == 1 and total < FEWEST:
        return without_interval(mean, level, f"{total} pairs are fewer than the {FEWEST} that one round needs")
    found = around(mean, half, level, f"{FROM_PAIRS if count > 1 else FROM_ONE_ROUND}; {kept}")
    return _reaching(found, [pair for pairs in taken for pair in pairs])


def outcome(ratio: Ratio | None, margin: float = MARGIN) -> Outcome:
    """The outcome for A against B:

    - faster: the interval is wholly below 1 and the ratio at most 1 - margin;
    - slower: the interval is wholly above 1 and the ratio at least 1 + margin;
    - same: the interval is wholly within 1 ± margin, so that any difference is too small to matter;
    - ambiguous: everything else, also without a ratio or an interval. More steps or repeats narrow the interval.
    """
    if ratio is None or ratio.low is None or ratio.high is None:
        return "ambiguous"
    if ratio.high < 1 and ratio.ratio <= 1 - margin:
        return "faster"
    if ratio.low > 1 and ratio.ratio >= 1 + margin:
        return "slower"
    if ratio.low >= 1 - margin and ratio.high <= 1 + margin:
        return "same"
    return "ambiguous"


def passing(ratio: Ratio | None, by: float) -> Passing:
    """The place of the interval beside 1 + by. ``slower``: the whole interval is above it; ``not slower``: the whole
    interval is at most that; ``cannot tell``: it is on both sides, or there is none."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return "cannot tell"
    return "slower" if ratio.low > 1 + by else "not slower" if ratio.high <= 1 + by else "cannot tell"


def explain(
    ratio: Ratio | None, margin: float = MARGIN, a: str = "A", b: str = "B", more: str = "run more repeats"
) -> str:
    """The outcome and its reason in one sentence; `more` says what would narrow the interval."""
    if ratio is None:
        return f"{a} and {b} cannot be compared: each needs at least 2 measured steps."
    if ratio.low is None or ratio.high is None:
        why = ratio.method.removeprefix(_NONE)
        if ratio.is_too_noisy:
            why = f"{TOO_NOISY}, the {ratio.level * 100:g} % interval reaches further than a factor of {WIDEST:g}"
        else:
            why = f"ambiguous, no interval as {why}"
        return f"{a} takes {_digits(ratio.ratio)} times as long as {b}: {why}; {more}."
    interval, least = f"{ratio.level * 100:g} % interval", f"{margin * 100:g} %"
    doubt = f"a difference below {least} whose {interval} reaches past it"
    if ratio.low <= 1 <= ratio.high:
        doubt = f"the {interval} holds 1 and reaches past 1 ± {least}"
    said: dict[Outcome, str] = {
        "faster": f"faster, the whole {interval} is below 1",
        "slower": f"slower, the whole {interval} is above 1",
        "same": f"the same, the whole {interval} is within 1 ± {least}",
        "ambiguous": f"ambiguous, {doubt}; {more}",
    }
    return f"{a} takes {ratio} times as long as {b}: {said[outcome(ratio, margin)]}."


def around(log_ratio: float, half: float, level: float, method: str) -> Ratio:
    """The ratio whose logarithm is known to ± `half`; without an interval if that says nothing."""
    if half > math.log(WIDEST):
        return without_interval(log_ratio, level, _REACHES)
    ratio, factor = math.exp(log_ratio), math.exp(half)
    return Ratio(ratio, ratio / factor, ratio * factor, level, method)


def without_interval(log_ratio: float, level: float, why: str) -> Ratio:
    """The ratio whose logarithm has no interval."""
    return Ratio(math.exp(log_ratio), None, None, level, f"{_NONE}{why}")


def _digits(value: float) -> str:
    return f"{value:#.4g}".rstrip(".")


def independent(values: Sequence[float]) -> Sample:
    """Mean of two or more independent values and its variance, exactly 0 for equal values."""
    n = len(values)
    if min(values) == max(values):
        return Sample(n, values[0], 0.0, n, 0.0)
    mean = math.fsum(values) / n
    return Sample(n, mean, math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n, n, 0.0)


def _reaching(found: Ratio, pairs: Sequence[tuple[float, float]]) -> Ratio:
    """With an interval that holds the ratio of the mean times of the pairs, too."""
    ratio = math.fsum(a_s for a_s, _ in pairs) / math.fsum(b_s for _, b_s in pairs)
    if found.low is None or found.high is None or found.low * (1 - _ROUNDING) <= ratio <= found.high * (1 + _ROUNDING):
        return found
    low, high = min(found.low, ratio), max(found.high, ratio)
    if is_too_noisy(low, high):
        return without_interval(math.log(found.ratio), found.level, _REACHES)
    return msgspec.structs.replace(
        found, low=low, high=high, method=f"{found.method}; widened to hold {ratio:#.4g}, the ratio of the mean times"
    )


def _held(values: Sequence[float], *, is_plain: bool = False) -> tuple[Sample, int]:
    """Huber's mean of values in order, or the plain one, with its variance (0 of a single value), and the number of
    values held. If more than half are equal, all others are held to the median, with the variance of the plain mean."""
    if len(values) == 1:
        return Sample(1, values[0], 0.0, 1.0, 0.0), 0
    if is_plain:
        return sample_of(values), 0
    mean = median(values)
    reach = HOLD * 1.4826 * median(abs(value - mean) for value in values)
    if not reach:
        return msgspec.structs.replace(sample_of(values), mean=mean), sum(value != mean for value in values)
    kept = list(values)
    for _ in range(50):
        kept = [min(max(value, mean - reach), mean + reach) for value in values]
        before, mean = mean, math.fsum(kept) / len(kept)
        if abs(mean - before) <= 1e-9 * reach:
            break
    held = sum(now != value for now, value in zip(kept, values, strict=True))
    sample = sample_of(kept)
    free = max(len(values) - held, 1) / len(values)
    return msgspec.structs.replace(sample, variance=sample.variance / free**2), held
