"""Lets programs that run the same cell take turns, one at a time, in rounds of random order, so that drift affects all
alike. All are restarted a few times, as the layout of memory differs between starts and stays for a process's life.
Judges step times by each round's ratio to the bare script, which drift does not touch."""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from cs336_tui.selftest.programs import BARE, CONTROL, Group, Groups, Program, SelftestError, TimedStep
from cs336_tui.stats.intervals import LEVEL, t_quantile, t_tail
from cs336_tui.stats.ratio import Ratio, around, independent

SETTLE_S = 0.25
"""Seconds of a turn in which steps are not counted, as the others have used the caches."""
WARM_STEPS = 5
"""Steps of every program before its first turn."""
PATIENCE_S = 180.0
"""Limit of a warm-up or of a step, seconds."""
START_S = 12.0
"""Estimate of a start's time before the first, seconds."""
_TRIAL_STEPS = 5
_LOOK_S = 0.1

MakePrograms = Callable[[Path], Sequence[Program]]
"""Makes the programs with their files in a folder; the first is the one whose step is timed for the plan."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of starts and of rounds; a turn lasts at least `turn_s` seconds and at least `steps` steps."""

    starts: int
    rounds: int
    turn_s: float = 1.0
    steps: int = 20

    def turn_of(self, step_s: float) -> float:
        """Seconds of a turn, given those of a step."""
        return max(self.turn_s, SETTLE_S + self.steps * step_s)

    def lasts_s(self, programs: int, step_s: float) -> float:
        """About the seconds of all starts and turns."""
        return self.starts * (START_S + self.rounds * programs * self.turn_of(step_s))


class Turn(msgspec.Struct, frozen=True):
    """Times of steps in seconds, oldest first: the counted ones, and those that began within `SETTLE_S`."""

    counted: tuple[float, ...]
    settling: tuple[float, ...]


Round = dict[str, Turn]
"""A turn of each program, by name."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """All turns: the rounds of each start."""

    plan: Plan
    turn_s: float
    starts: tuple[tuple[Round, ...], ...]


class TurnsProgress(NamedTuple):
    """Progress: `round` is 0 while programs start; `left_s` counts from the beginning of the round; None is unknown."""

    start: int
    starts: int
    round: int
    rounds: int
    turn_s: float | None
    left_s: float | None


def take_turns(
    make: MakePrograms, plan: Plan, say: Callable[[TurnsProgress], object], *, patience_s: float = PATIENCE_S
) -> Taken:
    """Start the programs, give them turns by the plan, end them. Raises `SelftestError` if one cannot go on."""
    starts: list[tuple[Round, ...]] = []
    turn_s: float | None = None
    start_s = START_S
    for start in range(plan.starts):
        with Groups() as groups:
            programs = make(groups.folder)
            starts_left, rounds_left = plan.starts - start, plan.rounds * (plan.starts - start)
            left_s = None if turn_s is None else starts_left * start_s + rounds_left * len(programs) * turn_s
            say(TurnsProgress(start + 1, plan.starts, 0, plan.rounds, turn_s, left_s))
            began = time.monotonic()
            stage = _Stage(groups, programs, patience_s)
            turn_s = turn_s or plan.turn_of(stage.step_time(programs[0].name))
            start_s = time.monotonic() - began
            order = [program.name for program in programs]
            shuffle = random.Random(start).shuffle
            spans: list[dict[str, tuple[float, float]]] = []
            for number in range(plan.rounds):
                left_s = (starts_left - 1) * start_s + (rounds_left - number) * len(programs) * turn_s
                say(TurnsProgress(start + 1, plan.starts, number + 1, plan.rounds, turn_s, left_s))
                shuffle(order)
                spans.append({name: stage.turn(name, turn_s) for name in order})
            steps = stage.all_steps()
        starts.append(tuple({name: turn_of(steps[name], *each[name]) for name in steps} for each in spans))
    assert turn_s is not None, "there is at least one start"
    return Taken(plan=plan, turn_s=turn_s, starts=tuple(starts))


def turn_of(steps: Sequence[TimedStep], begin: float, end: float) -> Turn:
    """The steps that began and ended within a turn (Unix time)."""
    ended = [(step.end - step.took, step.took) for step in steps if begin < step.end <= end]
    return Turn(
        tuple(took for began, took in ended if began >= begin + SETTLE_S),
        tuple(took for began, took in ended if began < begin + SETTLE_S),
    )


class _Stage:
    """Started programs, warmed up and stopped."""

    def __init__(self, groups: Groups, programs: Sequence[Program], patience_s: float) -> None:
        self._groups, self._patience_s = groups, patience_s
        self._programs = {program.name: program for program in programs}
        self._running = {
            program.name: groups.start(program.name, program.command, program.env, terminal=program.in_terminal)
            for program in programs
        }
        prompted = {program.name for program in programs if program.prompt is not None}
        warm: set[str] = set()
        for _ in self._until("timed no step to warm up with"):
            for name in sorted(prompted):
                program, group = self._programs[name], self._running[name]
                if group.terminal is not None and program.prompt and program.prompt.search(group.written):
                    os.write(group.terminal, program.keys.encode())
                    prompted.remove(name)
            for name in self._programs.keys() - warm:
                if len(self._steps(name)) >= WARM_STEPS:
                    self._running[name].let(False)
                    warm.add(name)
            self._missing = sorted(self._programs.keys() - warm)

    def step_time(self, name: str) -> float:
        """Seconds of a step of the program running alone: the least of a few."""
        began = time.time()
        self._running[name].let(True)
        times: list[float] = []
        for _ in self._until("timed no step alone"):
            times = [step.took for step in self._steps(name) if step.end - step.took >= began + SETTLE_S]
            self._missing = [] if len(times) >= _TRIAL_STEPS else [name]
        self._running[name].let(False)
        return min(times)

    def turn(self, name: str, turn_s: float) -> tuple[float, float]:
        """Let one program go on for `turn_s` seconds; returns begin and end, Unix time."""
        group = self._running[name]
        with named(name, group):
            begin = time.time()
            group.let(True)
            self._groups.wait(turn_s)
            end = time.time()
            group.let(False)
            if group.ending:
                raise SelftestError(group.ending)
        return begin, end

    def all_steps(self) -> dict[str, list[TimedStep]]:
        """The steps of every program until now, once each has told a later one: a pipe may hold back the last."""
        released = time.time()
        for group in self._running.values():
            group.let(True)
        steps: dict[str, list[TimedStep]] = {name: [] for name in self._programs}
        for _ in self._until("timed no further step"):
            steps |= {name: self._steps(name) for name in self._missing}
            self._missing = [name for name in self._missing if not steps[name] or steps[name][-1].end <= released]
        return steps

    def _steps(self, name: str) -> list[TimedStep]:
        with named(name, self._running[name]):
            return self._programs[name].steps()

    def _until(self, otherwise: str) -> Iterator[None]:
        """Iterate every `_LOOK_S` until no program is missing. Raises `SelftestError` if one ends or takes too long."""
        give_up_at = time.monotonic() + self._patience_s
        self._missing = sorted(self._programs)
        while self._missing:
            self._groups.wait(_LOOK_S)
            for name in self._missing:
                with named(name, self._running[name]):
                    if ending := self._running[name].ending:
                        raise SelftestError(ending)
                    if time.monotonic() > give_up_at:
                        raise SelftestError(f"{otherwise} in {self._patience_s:g} s")
            yield


@contextmanager
def named(name: str, group: Group) -> Iterator[None]:
    """Adds the program's name and last output to a `SelftestError`."""
    try:
        yield
    except SelftestError as error:
        said = group.last_output or "nothing"
        raise SelftestError(f"{name}: {error}; its last output:\n{said}") from None


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
