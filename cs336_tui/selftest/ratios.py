"""Judges step times taken in turns by each round's ratio to the bare script, which drift does not touch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from cs336_tui.selftest.programs import BARE, CONTROL
from cs336_tui.selftest.turns import Round
from cs336_tui.stats.intervals import LEVEL, t_quantile, t_tail
from cs336_tui.stats.ratio import Ratio, around, independent

Judged = Literal["pass", "fail", "cannot tell"]

FROM_STARTS = "t interval of the log ratios, a sample being the mean of a start's rounds"
FROM_ROUNDS = "t interval of the log ratios of one start's rounds: what differs from start to start is not in it"


class Tolerances(msgspec.Struct, frozen=True, kw_only=True):
    """The ratio of means must be within 1 ± `mean`, that of stds at most `std`."""

    mean: float
    std: float

    def noisy(self, means: Ratio | None, stds: Ratio | None) -> tuple[bool, bool]:
        """True, for means and stds, if equal programs differ by more than the tolerance, in either direction."""
        return (
            means is not None and abs(means.ratio - 1) > self.mean,
            stds is not None and abs(math.log(stds.ratio)) > math.log(self.std),
        )


ON_CPU = Tolerances(mean=0.02, std=1.2)
ON_GPU = Tolerances(mean=0.01, std=1.1)


def marks_for(device: str) -> Tolerances:
    """The tolerances of torch's device."""
    return ON_CPU if device == "cpu" else ON_GPU


class ProgramRatio(msgspec.Struct, frozen=True, kw_only=True):
    """A program compared with the bare script. `steps` and `bare_steps` are counted steps; None is unknown."""

    name: str
    steps: int
    bare_steps: int
    mean_s: float | None
    std_s: float | None
    """The mean and std of the program's counted steps; the std within its turns."""
    means: Ratio | None
    means_judged: Judged
    stds: Ratio | None
    stds_judged: Judged

    @property
    def judged(self) -> Judged:
        return worst([self.means_judged, self.stds_judged])


class SelftestResult(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of the judged programs and of the control. If that is noisy, so is the machine, and none is judged."""

    marks: Tolerances
    bare_mean_s: float | None
    bare_std_s: float | None
    rows: tuple[ProgramRatio, ...]
    control: ProgramRatio
    noisy_means: bool
    noisy_stds: bool

    @property
    def judged(self) -> Judged:
        return worst([row.judged for row in self.rows])


def worst(judged: Sequence[Judged]) -> Judged:
    """The worst of these; ``cannot tell`` without any."""
    return min(judged, key=("fail", "cannot tell", "pass").index, default="cannot tell")


def judge(starts: Sequence[Sequence[Round]], marks: Tolerances) -> SelftestResult:
    """Compare every program with the bare script; `starts` as in `Taken`."""
    rows = {name: _row(starts, name, marks) for name in starts[0][0] if name != BARE}
    control = rows.pop(CONTROL)
    noisy_means, noisy_stds = marks.noisy(control.means, control.stds)
    noisy = {"means_judged": noisy_means, "stds_judged": noisy_stds}
    doubted = {field: "cannot tell" for field, is_noisy in noisy.items() if is_noisy}
    bare = _times(starts, BARE)
    return SelftestResult(
        marks=marks,
        bare_mean_s=_mean(bare),
        bare_std_s=_std_within(bare),
        rows=tuple(msgspec.structs.replace(row, **doubted) for row in rows.values()),
        control=control,
        noisy_means=noisy_means,
        noisy_stds=noisy_stds,
    )


def log_ratio(starts: Sequence[Sequence[float]]) -> Ratio | None:
    """The geometric mean of ratios with its 95 % interval, from the ratios of each start's rounds. The rounds of a
    start share the luck of its processes, so a sample is the mean of a start's log ratios, and the interval Student's
    of these samples (1908). From one start the samples are its rounds. None below 2 samples."""
    logs = [[math.log(value) for value in rounds] for rounds in starts if rounds]
    by_start = len(logs) >= 2
    samples = [statistics.fmean(rounds) for rounds in logs] if by_start else [value for one in logs for value in one]
    if len(samples) < 2:
        return None
    sample = independent(samples)
    half = t_quantile(t_tail(LEVEL), sample.df) * math.sqrt(sample.variance)
    return around(sample.mean, half, LEVEL, FROM_STARTS if by_start else FROM_ROUNDS)


def _judged(ratio: Ratio | None, low: float, high: float) -> Judged:
    """Pass if the whole interval lies within these bounds, fail if it lies outside."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return "cannot tell"
    if low <= ratio.low and ratio.high <= high:
        return "pass"
    return "fail" if ratio.high < low or ratio.low > high else "cannot tell"


def _row(starts: Sequence[Sequence[Round]], name: str, marks: Tolerances) -> ProgramRatio:
    means = log_ratio(_ratios(starts, name, statistics.fmean))
    stds = log_ratio(_ratios(starts, name, statistics.stdev))
    times = _times(starts, name)
    return ProgramRatio(
        name=name,
        steps=sum(map(len, times)),
        bare_steps=sum(map(len, _times(starts, BARE))),
        mean_s=_mean(times),
        std_s=_std_within(times),
        means=means,
        means_judged=_judged(means, 1 - marks.mean, 1 + marks.mean),
        stds=stds,
        stds_judged=_judged(stds, 0.0, marks.std),
    )


def _ratios(starts: Sequence[Sequence[Round]], name: str, of: Callable[[Sequence[float]], float]) -> list[list[float]]:
    """For each start and round with two steps of both: `of` the program's times over `of` the bare script's."""
    return [
        [
            own / bare
            for each in rounds
            if min(len(each[name].counted), len(each[BARE].counted)) > 1
            and (own := of(each[name].counted)) > 0
            and (bare := of(each[BARE].counted)) > 0
        ]
        for rounds in starts
    ]


def _times(starts: Sequence[Sequence[Round]], name: str) -> list[tuple[float, ...]]:
    return [each[name].counted for rounds in starts for each in rounds]


def _mean(turns: Sequence[Sequence[float]]) -> float | None:
    times = [time_s for turn in turns for time_s in turn]
    return statistics.fmean(times) if times else None


def _std_within(turns: Sequence[Sequence[float]]) -> float | None:
    """The pooled std of the turns, without drift between them."""
    long = [turn for turn in turns if len(turn) > 1]
    freedom = sum(len(turn) - 1 for turn in long)
    if not freedom:
        return None
    return math.sqrt(math.fsum(statistics.variance(turn) * (len(turn) - 1) for turn in long) / freedom)
