"""Lets programs that run the same cell take turns, one at a time, in rounds of random order, so that drift affects all
alike. All are restarted a few times, as the layout of memory differs between starts and stays for a process's life."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from cs336_tui.selftest.programs import Group, Groups, Program, SelftestError, TimedStep

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
