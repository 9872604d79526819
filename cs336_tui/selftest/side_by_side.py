"""The cost of running side by side: one cell in each lane of `cs336-tui bench --lanes`, in turns alone and beside all
others, whose processes are stopped meanwhile. So lanes, cores, memory and sampling are those of a real run."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from cs336_tui.events.events import CellFinished, CellStarted, Lane, LanesOpened, StepsTimed
from cs336_tui.selftest.programs import SAMPLING_S, Group, Groups, SelftestCell, SelftestError, TimedStep, back_to_back
from cs336_tui.selftest.turns import (
    PATIENCE_S,
    START_S,
    WARM_STEPS,
    Plan,
    Turn,
    TurnsProgress,
    log_ratio,
    named,
    turn_of,
)
from cs336_tui.session.log import LogError, LogReader
from cs336_tui.stats.quantities import counted
from cs336_tui.stats.ratio import Ratio

BENCH = "bench --lanes"
_TRIAL_STEPS = 5
_LOOK_S = 0.1

LaneRound = dict[int, tuple[Turn, Turn]]
"""The turns of each lane's cell in a round, by lane: alone and beside all others. Alone, beside, beside, alone: a turn
holds the steps of two, so that what drifts evenly is in both alike."""


class LaneRun(msgspec.Struct, frozen=True, kw_only=True):
    """All turns: the rounds of each start."""

    plan: Plan
    turn_s: float
    lanes: tuple[Lane, ...]
    starts: tuple[tuple[LaneRound, ...], ...]


class LaneCost(msgspec.Struct, frozen=True, kw_only=True):
    """The step times of a lane's cell beside all others over those alone; of all lanes with `lane` None. Steps are
    counted ones; None is unknown."""

    lane: Lane | None
    steps_alone: int
    steps_beside: int
    alone_s: float | None
    beside_s: float | None
    """Mean step times."""
    ratio: Ratio | None


def costs_of(run: LaneRun) -> tuple[LaneCost, ...]:
    """The cost of each lane, then that of all: round by round the geometric mean over the lanes."""
    by_lane = {
        lane.lane: [[_log_ratio(each[lane.lane]) for each in rounds] for rounds in run.starts] for lane in run.lanes
    }
    rows = [_cost(run, (lane,), lane, by_lane[lane.lane]) for lane in run.lanes]
    together = [
        [_mean([logs[start][number] for logs in by_lane.values()]) for number in range(len(rounds))]
        for start, rounds in enumerate(run.starts)
    ]
    return (*rows, _cost(run, run.lanes, None, together))


def _cost(run: LaneRun, lanes: Sequence[Lane], lane: Lane | None, logs: Sequence[Sequence[float | None]]) -> LaneCost:
    alone, beside = (
        [time_s for rounds in run.starts for each in rounds for one in lanes for time_s in each[one.lane][side].counted]
        for side in (0, 1)
    )
    return LaneCost(
        lane=lane,
        steps_alone=len(alone),
        steps_beside=len(beside),
        alone_s=statistics.fmean(alone) if alone else None,
        beside_s=statistics.fmean(beside) if beside else None,
        ratio=log_ratio([[math.exp(log) for log in rounds if log is not None] for rounds in logs]),
    )


def _log_ratio(turns: tuple[Turn, Turn]) -> float | None:
    alone, beside = (turn.counted for turn in turns)
    return math.log(statistics.fmean(beside) / statistics.fmean(alone)) if min(len(alone), len(beside)) > 1 else None


def _mean(logs: Sequence[float | None]) -> float | None:
    known = [log for log in logs if log is not None]
    return statistics.fmean(known) if len(known) == len(logs) else None


def command_of(work: SelftestCell, lanes: Sequence[Lane], sessions: Path) -> list[str]:
    """The command that runs the cell endlessly in each of these lanes."""
    pool = msgspec.structs.replace(work, device=",".join(dict.fromkeys(lane.device for lane in lanes)))
    many = ["--lanes", str(len(lanes)), "--repeats", str(len(lanes))]
    how = ["--warmup", "0", "--session-dir", str(sessions), "--device-interval", str(SAMPLING_S)]
    return [sys.executable, "-P", "-m", "cs336_tui", "bench", *pool.words, *many, *how]


def take_lane_turns(
    work: SelftestCell,
    lanes: Sequence[Lane],
    plan: Plan,
    say: Callable[[TurnsProgress], object],
    *,
    patience_s: float = PATIENCE_S,
) -> LaneRun:
    """Start the lanes, give their cells turns alone and together, end them. Raises `SelftestError` if one cannot go
    on."""
    starts: list[tuple[LaneRound, ...]] = []
    turn_s: float | None = None
    start_s = START_S
    for start in range(plan.starts):
        with Groups() as groups:
            turns, left = 2 * len(lanes) + 2, plan.starts - start
            left_s = None if turn_s is None else left * (start_s + plan.rounds * turns * turn_s)
            say(TurnsProgress(start + 1, plan.starts, 0, plan.rounds, turn_s, left_s))
            began = time.monotonic()
            stage = _Lanes(groups, work, lanes, patience_s)
            turn_s = turn_s or plan.turn_of(stage.step_time())
            start_s = time.monotonic() - began
            spans: list[list[tuple[tuple[int, ...], float, float]]] = []
            for number in range(plan.rounds):
                left_s = (left - 1) * (start_s + plan.rounds * turns * turn_s)
                left_s += (plan.rounds - number) * turns * turn_s
                say(TurnsProgress(start + 1, plan.starts, number + 1, plan.rounds, turn_s, left_s))
                spans.append([(who, *stage.turn(who, turn_s)) for who in _order([each.lane for each in lanes])])
            steps = stage.all_steps()
        starts.append(tuple(_round(lanes, steps, each) for each in spans))
    assert turn_s is not None, "there is at least one start"
    return LaneRun(plan=plan, turn_s=turn_s, lanes=tuple(lanes), starts=tuple(starts))


def _order(lanes: Sequence[int]) -> list[tuple[int, ...]]:
    """The lanes whose cells run in each turn of a round, the same forwards and backwards."""
    alone = [(lane,) for lane in lanes]
    return [*alone, tuple(lanes), tuple(lanes), *reversed(alone)]


def _round(
    lanes: Sequence[Lane], steps: dict[int, list[TimedStep]], spans: Sequence[tuple[tuple[int, ...], float, float]]
) -> LaneRound:
    def taken(lane: int, together: bool) -> Turn:
        turns = [
            turn_of(steps[lane], begin, end)
            for who, begin, end in spans
            if lane in who and (len(who) > 1) == together
        ]  # fmt: skip
        return Turn(
            tuple(time_s for turn in turns for time_s in turn.counted),
            tuple(time_s for turn in turns for time_s in turn.settling),
        )

    return {lane.lane: (taken(lane.lane, False), taken(lane.lane, True)) for lane in lanes}


class _Seen(NamedTuple):
    """A lane's cell as the session's log tells: its process and its steps, oldest first."""

    pid: int
    steps: list[TimedStep]


class _Lanes:
    """A started `bench --lanes`, the cells of whose lanes are warmed up and stopped."""

    def __init__(self, groups: Groups, work: SelftestCell, lanes: Sequence[Lane], patience_s: float) -> None:
        self._groups, self._patience_s, self._lanes = groups, patience_s, [lane.lane for lane in lanes]
        self._sessions = groups.folder / "sessions"
        self._bench: Group = groups.start("bench", command_of(work, lanes, self._sessions))
        self._cells: dict[int, _Seen] = {}
        for _ in self._until("did not time steps in all lanes"):
            self._missing = [lane for lane in self._lanes if len(self._steps(lane)) < WARM_STEPS]
        self._let(())

    def step_time(self) -> float:
        """Seconds of a step of all lanes together: the least of the slowest lane."""
        began = time.time()
        self._let(self._lanes)
        times: dict[int, list[float]] = {}
        for _ in self._until("timed no step together"):
            for lane in self._lanes:
                times[lane] = [step.took for step in self._steps(lane) if step.end - step.took >= began]
            self._missing = [lane for lane, found in times.items() if len(found) < _TRIAL_STEPS]
        self._let(())
        return max(min(found) for found in times.values())

    def turn(self, who: Sequence[int], turn_s: float) -> tuple[float, float]:
        """Let the cells of these lanes go on for `turn_s` seconds; returns begin and end, Unix time."""
        with named(BENCH, self._bench):
            begin = time.time()
            self._let(who)
            self._groups.wait(turn_s)
            end = time.time()
            self._let(())
            if self._bench.ending:
                raise SelftestError(self._bench.ending)
        return begin, end

    def all_steps(self) -> dict[int, list[TimedStep]]:
        """The steps of every lane until now, once each has told a later one: a pipe may hold back the last."""
        released = time.time()
        self._let(self._lanes)
        steps: dict[int, list[TimedStep]] = {}
        for _ in self._until("timed no further step"):
            steps = {lane: self._steps(lane) for lane in self._lanes}
            self._missing = [lane for lane, found in steps.items() if not found or found[-1].end <= released]
        return steps

    def _let(self, go_on: Sequence[int]) -> None:
        """Continue the cells of these lanes, stop those of the others."""
        for lane, cell in self._cells.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(cell.pid, signal.SIGCONT if lane in go_on else signal.SIGSTOP)

    def _steps(self, lane: int) -> list[TimedStep]:
        return self._cells[lane].steps if lane in self._cells else []

    def _read(self) -> None:
        """Read the session's log anew. Raises `SelftestError` when a cell has ended."""
        lane_of: dict[int, int] = {}
        found: dict[int, _Seen] = {}
        for log in self._sessions.glob("*.jsonl"):
            with contextlib.suppress(LogError):  # of a log that has only just been made
                for event in LogReader(log):
                    if isinstance(event, LanesOpened) and [lane.lane for lane in event.lanes] != self._lanes:
                        raise SelftestError(
                            f"it opened {counted(len(event.lanes), 'lane')} instead of {len(self._lanes)}"
                        )
                    if isinstance(event, CellStarted) and event.lanes and event.pid:
                        lane_of[event.cell] = event.lanes[0]
                        found[event.lanes[0]] = _Seen(event.pid, [])
                    if isinstance(event, CellFinished):
                        raise SelftestError(f"a cell is {event.status}: {event.error or 'no reason was given'}")
                    if isinstance(event, StepsTimed) and event.cell in lane_of:
                        found[lane_of[event.cell]].steps.extend(back_to_back(event))
        self._cells = found

    def _until(self, otherwise: str) -> Iterator[None]:
        """Iterate every `_LOOK_S` until no lane is missing. Raises `SelftestError` if a cell ends or takes too long."""
        give_up_at = time.monotonic() + self._patience_s
        self._missing = list(self._lanes)
        while self._missing:
            self._groups.wait(_LOOK_S)
            with named(BENCH, self._bench):
                self._read()
                if ending := self._bench.ending:
                    raise SelftestError(ending)
                if time.monotonic() > give_up_at:
                    raise SelftestError(f"{otherwise} in {self._patience_s:g} s")
            yield
