"""Lets programs that run the same cell take turns, one at a time, in rounds of random order, so that drift affects all
alike. All are restarted a few times, as the layout of memory differs between starts and stays for a process's life.
Judges step times by each round's ratio to the bare script, which drift does not touch."""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar

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

One = TypeVar("One", bound=str | int)
"""The name of a program, or the number of a lane."""
Span = tuple[tuple[One, ...], float, float]
"""A turn: those that had it, its begin and its end (Unix time)."""
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

    def round_of(steps: Mapping[str, list[TimedStep]], spans: Sequence[Span[str]]) -> Round:
        by_name = {name: (begin, end) for (name,), begin, end in spans}
        return {name: turn_of(steps[name], *by_name[name]) for name in steps}

    turn_s, taken = take(lambda groups: _Programs(groups, make(groups.folder), patience_s), plan, say)
    starts = tuple(tuple(round_of(steps, each) for each in rounds) for steps, rounds in taken)
    return Taken(plan=plan, turn_s=turn_s, starts=starts)


def turn_of(steps: Sequence[TimedStep], begin: float, end: float) -> Turn:
    """The steps that began and ended within a turn (Unix time)."""
    ended = [(step.end - step.took, step.took) for step in steps if begin < step.end <= end]
    return Turn(
        tuple(took for began, took in ended if began >= begin + SETTLE_S),
        tuple(took for began, took in ended if began < begin + SETTLE_S),
    )


class Stage(ABC, Generic[One]):
    """Started programs, warmed up and stopped. Each of those whose steps are told apart goes on in its turns alone."""

    def __init__(
        self, groups: Groups, programs: Mapping[One, tuple[str, Group]], timed: Sequence[One], patience_s: float
    ) -> None:
        """`programs` are those that each belongs to, with their names; `timed`: their step is the plan's."""
        self._groups, self._programs, self._timed, self._patience_s = groups, programs, timed, patience_s
        self._those, self._missing = tuple(programs), list(programs)

    @abstractmethod
    def order(self, rng: random.Random) -> list[tuple[One, ...]]:
        """Those that go on in each turn of a round."""

    @abstractmethod
    def _let(self, go_on: Sequence[One]) -> None:
        """Continue these, stop the others."""

    @abstractmethod
    def _steps(self, one: One) -> list[TimedStep]:
        """Its steps that are known, oldest first."""

    def _look(self) -> None:
        """Learn which steps there are. Raises `SelftestError` if there will be no more."""

    def step_time(self) -> float:
        """Seconds of a step of those that are timed, running together: the least of the slowest one."""
        began = time.time()
        self._let(self._timed)
        times: dict[One, list[float]] = {}
        for _ in self._until(f"timed no step {'alone' if len(self._timed) == 1 else 'together'}"):
            for one in self._timed:
                times[one] = [step.took for step in self._steps(one) if step.end - step.took >= began + SETTLE_S]
            self._missing = [one for one, found in times.items() if len(found) < _TRIAL_STEPS]
        self._let(())
        return max(map(min, times.values()))

    def turn(self, who: Sequence[One], turn_s: float) -> tuple[float, float]:
        """Let these go on for `turn_s` seconds; returns begin and end, Unix time."""
        name, group = self._programs[who[0]]
        with named(name, group):
            begin = time.time()
            self._let(who)
            self._groups.wait(turn_s)
            end = time.time()
            self._let(())
            if group.ending:
                raise SelftestError(group.ending)
        return begin, end

    def all_steps(self) -> dict[One, list[TimedStep]]:
        """The steps of each until now, once it has told a later one: a pipe may hold back the last."""
        released = time.time()
        self._let(self._those)
        steps: dict[One, list[TimedStep]] = {one: [] for one in self._those}
        for _ in self._until("timed no further step"):
            steps |= {one: self._steps(one) for one in self._missing}
            self._missing = [one for one in self._missing if not steps[one] or steps[one][-1].end <= released]
        return steps

    def _until(self, otherwise: str) -> Iterator[None]:
        """Iterate every `_LOOK_S` until none is missing. Raises `SelftestError` if one ends or takes too long."""
        give_up_at = time.monotonic() + self._patience_s
        self._missing = list(self._those)
        while self._missing:
            self._groups.wait(_LOOK_S)
            for name, group in dict(self._programs[one] for one in self._missing).items():
                with named(name, group):
                    self._look()
                    if ending := group.ending:
                        raise SelftestError(ending)
                    if time.monotonic() > give_up_at:
                        raise SelftestError(f"{otherwise} in {self._patience_s:g} s")
            yield


def take(
    begin: Callable[[Groups], Stage[One]], plan: Plan, say: Callable[[TurnsProgress], object]
) -> tuple[float, list[tuple[dict[One, list[TimedStep]], list[list[Span[One]]]]]]:
    """The seconds of a turn; for each start the steps of all, and its rounds. Raises `SelftestError`."""
    starts = []
    turn_s, start_s, turns = 0.0, START_S, 0

    def tell(start: int, number: int) -> None:
        round_s = turns * turn_s
        left_s = (plan.starts - start - bool(number)) * (start_s + plan.rounds * round_s)
        left_s += (plan.rounds - number + 1) * round_s if number else 0.0
        told = (turn_s, left_s) if turn_s else (None, None)
        say(TurnsProgress(start + 1, plan.starts, number, plan.rounds, *told))

    for start in range(plan.starts):
        with Groups() as groups:
            tell(start, 0)
            began = time.monotonic()
            stage = begin(groups)
            turn_s = turn_s or plan.turn_of(stage.step_time())
            start_s = time.monotonic() - began
            rng = random.Random(start)
            rounds = []
            for number in range(1, plan.rounds + 1):
                order = stage.order(rng)
                turns = len(order)
                tell(start, number)
                rounds.append([(who, *stage.turn(who, turn_s)) for who in order])
            starts.append((stage.all_steps(), rounds))
    return turn_s, starts


class _Programs(Stage[str]):
    """Several programs, each in a group of its own."""

    def __init__(self, groups: Groups, programs: Sequence[Program], patience_s: float) -> None:
        self._of = {program.name: program for program in programs}
        self._running = {
            name: groups.start(name, program.command, program.env, terminal=program.in_terminal)
            for name, program in self._of.items()
        }
        self._order = list(self._of)
        named_groups = {name: (name, group) for name, group in self._running.items()}
        super().__init__(groups, named_groups, self._order[:1], patience_s)
        prompted = {program.name for program in programs if program.prompt is not None}
        for _ in self._until("timed no step to warm up with"):
            for name in sorted(prompted):
                program, group = self._of[name], self._running[name]
                if group.terminal is not None and program.prompt and program.prompt.search(group.written):
                    os.write(group.terminal, program.keys.encode())
                    prompted.remove(name)
            for name in tuple(self._missing):
                if len(self._steps(name)) >= WARM_STEPS:
                    self._running[name].let(False)
                    self._missing.remove(name)

    def order(self, rng: random.Random) -> list[tuple[str, ...]]:
        rng.shuffle(self._order)
        return [(name,) for name in self._order]

    def _let(self, go_on: Sequence[str]) -> None:
        for name, group in self._running.items():
            group.let(name in go_on)

    def _steps(self, one: str) -> list[TimedStep]:
        with named(one, self._running[one]):
            return self._of[one].steps()


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


def log_ratio(starts: Sequence[Sequence[float | None]]) -> Ratio | None:
    """The geometric mean of ratios with its 95 % interval, from the known ratios of each start's rounds. Rounds of a
    start share the luck of its processes, so a sample is the mean of a start's log ratios, and the interval Student's
    of these samples (1908). From one start the samples are its rounds. None below 2 samples."""
    logs = [[math.log(value) for value in rounds if value is not None] for rounds in starts]
    logs = [rounds for rounds in logs if rounds]
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
    means, stds = (
        log_ratio([[ratio_of(each[name], each[BARE], statistic) for each in rounds] for rounds in starts])
        for statistic in (statistics.fmean, statistics.stdev)
    )
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


def ratio_of(one: Turn, other: Turn, statistic: Callable[[Sequence[float]], float] = statistics.fmean) -> float | None:
    """A statistic of a turn's counted times over that of another's; None without two steps of both, or if one is 0."""
    if min(len(one.counted), len(other.counted)) < 2:
        return None
    above, below = statistic(one.counted), statistic(other.counted)
    return above / below if above > 0 and below > 0 else None


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
