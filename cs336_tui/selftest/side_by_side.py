"""The cost of running side by side: one cell in each lane of `cs336-tui bench --lanes`, in turns alone and beside all
others, whose processes are stopped meanwhile. So lanes, cores, memory and sampling are those of a real run."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from cs336_tui.events.events import CellFinished, CellStarted, Lane, LanesOpened, StepsTimed
from cs336_tui.selftest.programs import SAMPLING_S, Groups, SelftestCell, SelftestError, TimedStep, back_to_back
from cs336_tui.selftest.turns import (
    PATIENCE_S,
    WARM_STEPS,
    Plan,
    Span,
    Stage,
    Turn,
    TurnsProgress,
    log_ratio,
    ratio_of,
    take,
    turn_of,
)
from cs336_tui.session.log import LogError, LogReader
from cs336_tui.stats.quantities import counted
from cs336_tui.stats.ratio import Ratio

BENCH = "bench --lanes"

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

    def ratio_in(taken: LaneRound, lanes: Sequence[Lane]) -> float | None:
        ratios = [ratio_of(beside, alone) for alone, beside in (taken[lane.lane] for lane in lanes)]
        known = [ratio for ratio in ratios if ratio is not None]
        return statistics.geometric_mean(known) if len(known) == len(lanes) else None

    def cost(lane: Lane | None, lanes: Sequence[Lane]) -> LaneCost:
        turns = [taken[one.lane] for rounds in run.starts for taken in rounds for one in lanes]
        alone, beside = ([time_s for sides in turns for time_s in sides[side].counted] for side in (0, 1))
        return LaneCost(
            lane=lane,
            steps_alone=len(alone),
            steps_beside=len(beside),
            alone_s=statistics.fmean(alone) if alone else None,
            beside_s=statistics.fmean(beside) if beside else None,
            ratio=log_ratio([[ratio_in(taken, lanes) for taken in rounds] for rounds in run.starts]),
        )

    return (*(cost(lane, (lane,)) for lane in run.lanes), cost(None, run.lanes))


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
    turn_s, taken = take(lambda groups: _Lanes(groups, work, lanes, patience_s), plan, say)
    starts = tuple(tuple(_round(lanes, steps, each) for each in rounds) for steps, rounds in taken)
    return LaneRun(plan=plan, turn_s=turn_s, lanes=tuple(lanes), starts=starts)


def _round(lanes: Sequence[Lane], steps: dict[int, list[TimedStep]], spans: Sequence[Span[int]]) -> LaneRound:
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


class _Lanes(Stage[int]):
    """A started `bench --lanes`, the cells of whose lanes are warmed up and stopped."""

    def __init__(self, groups: Groups, work: SelftestCell, lanes: Sequence[Lane], patience_s: float) -> None:
        numbers = [lane.lane for lane in lanes]
        self._sessions = groups.folder / "sessions"
        bench = groups.start("bench", command_of(work, lanes, self._sessions))
        super().__init__(groups, dict.fromkeys(numbers, (BENCH, bench)), numbers, patience_s)
        self._cells: dict[int, _Seen] = {}
        for _ in self._until("did not time steps in all lanes"):
            self._missing = [lane for lane in numbers if len(self._steps(lane)) < WARM_STEPS]
        self._let(())

    def order(self, rng: random.Random) -> list[tuple[int, ...]]:  # noqa: ARG002  # it is not left to chance
        """The same forwards and backwards."""
        alone = [(lane,) for lane in self._those]
        return [*alone, self._those, self._those, *reversed(alone)]

    def _let(self, go_on: Sequence[int]) -> None:
        for lane, cell in self._cells.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(cell.pid, signal.SIGCONT if lane in go_on else signal.SIGSTOP)

    def _steps(self, one: int) -> list[TimedStep]:
        return self._cells[one].steps if one in self._cells else []

    def _look(self) -> None:
        """Read the session's log anew."""
        lane_of: dict[int, int] = {}
        found: dict[int, _Seen] = {}
        for log in self._sessions.glob("*.jsonl"):
            with contextlib.suppress(LogError):  # of a log that has only just been made
                for event in LogReader(log):
                    if isinstance(event, LanesOpened) and [lane.lane for lane in event.lanes] != list(self._those):
                        opened = counted(len(event.lanes), "lane")
                        raise SelftestError(f"it opened {opened} instead of {len(self._those)}")
                    if isinstance(event, CellStarted) and event.lanes and event.pid:
                        lane_of[event.cell] = event.lanes[0]
                        found[event.lanes[0]] = _Seen(event.pid, [])
                    if isinstance(event, CellFinished):
                        raise SelftestError(f"a cell is {event.status}: {event.error or 'no reason was given'}")
                    if isinstance(event, StepsTimed) and event.cell in lane_of:
                        found[lane_of[event.cell]].steps.extend(back_to_back(event))
        self._cells = found
