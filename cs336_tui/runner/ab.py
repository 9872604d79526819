"""Runs two cells in turns, round after round; each round is one child process that times both."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import msgspec

from cs336_tui.events.events import CellFinished, CellStarted, Event, Stage, StageChanged, Status, StepsTimed
from cs336_tui.runner.cells import CellRunner
from cs336_tui.runner.launcher import StartError
from cs336_tui.runner.queue import CellQueue, WaitingCell, unstarted
from cs336_tui.runner.ranks import RankFold, run_here

BOTH_IN_MEMORY = "both models are in memory at once; `bench --repeats` and `compare` need one at a time"

Record = Callable[[Sequence[Event]], None]


def run_rounds(queue: CellQueue, cells: CellRunner, first: int = 1) -> None:
    """Run the waiting cells two by two, the first of them A, each two as a round, until none waits. A begins in odd
    rounds, counted from `first`, B in even ones. When one ran out of memory, or a user's own code could not be built,
    the waiting rounds are skipped."""
    for number in itertools.count(first):
        a = queue.take()
        if not isinstance(a, WaitingCell):
            return
        b = queue.take()
        if not isinstance(b, WaitingCell):  # stopped between the two
            cells.record([unstarted(a.cell)])
            return
        endings = _run_round(a, b, cells, number % 2 == 0)
        cells.watch.await_sample(cells.stop)
        reason = ""
        if names := [name for name, ending in zip("AB", endings, strict=True) if ending.status == "oom"]:
            reason = f"{' and '.join(names)} ran out of memory in round {number}"
        elif any(
            side.spec.brings_own_code and (ending.status, ending.stage) == ("failed", "building")
            for side, ending in zip((a, b), endings, strict=True)
        ):
            reason = f"what failed while it was built in round {number} would fail again"
        if reason:
            queue.skip(range(b.cell + 1, b.cell + 1 + len(queue)), reason)


def _run_round(a: WaitingCell, b: WaitingCell, cells: CellRunner, b_first: bool) -> tuple[CellFinished, CellFinished]:
    if why := cells.why_not(a.spec):
        return _record_ends(cells.record, _ended(a, "oom", why), _ended(b, "failed", "A was not tried"))
    if why := cells.why_not(b.spec):
        return _record_ends(cells.record, _ended(a, "failed", "B was not tried"), _ended(b, "oom", why))
    if why := cells.why_not(a.spec, b.spec):
        return _record_ends(cells.record, *(_ended(side, "oom", why) for side in (a, b)))
    started_at = time.time()
    assert cells.launcher is not None, "two cells in turns have a process"
    try:
        numbers = (a.cell, b.cell)
        ranks = cells.launcher.start_round(numbers, (a.spec, b.spec), b_first=b_first)
    except StartError as error:
        return _record_ends(cells.record, *(_ended(side, cells.status_unstarted(), str(error)) for side in (a, b)))
    pids = [rank.child.process.pid for rank in ranks]
    cells.record([CellStarted(at=started_at, cell=side.cell, pid=pids[0]) for side in (a, b)])
    watched = (a if b.spec.device == "cpu" else b).spec
    environment = cells.environment
    cells.watch.point(environment.device(watched.device), *pids, others=environment.others_of(watched))
    recorder = _RoundRecorder(numbers, cells.record)
    run_here(ranks, [RankFold(cell, len(ranks)) for cell in numbers], recorder, cells.stop, cells.timeout_s())
    return _record_ends(cells.record, *recorder.endings())


class _RoundRecorder:
    """Records the events of both cells and keeps their ends: a process that dies leaves one end for both."""

    def __init__(self, cells: tuple[int, int], record: Record) -> None:
        self._cells, self._record = cells, record
        self._ends: dict[int, CellFinished] = {}
        self._stages: dict[int, Stage] = dict.fromkeys(cells, "starting")
        self._steps = dict.fromkeys(cells, 0)

    def __call__(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case CellFinished():
                    self._ends[event.cell] = event
                case StageChanged():
                    self._stages[event.cell], self._steps[event.cell] = event.stage, 0
                case StepsTimed():
                    self._steps[event.cell] += len(event.times_s)
        if rest := [event for event in events if not isinstance(event, CellFinished)]:
            self._record(rest)

    def endings(self) -> tuple[CellFinished, CellFinished]:
        """The ends of A and B as they reported them, else the end of their process, reported of A, for both."""
        a, b = self._cells
        how = self._ends[a]
        if b in self._ends:
            return how, self._ends[b]
        status: Status = "failed" if how.status == "ok" else how.status
        why = how.error or "the process ended before it reported both results"
        first, second = (
            CellFinished(
                at=how.at, cell=cell, status=status, error=why, stage=self._stages[cell], step=self._steps[cell]
            )
            for cell in self._cells
        )
        return first, second


def _ended(side: WaitingCell, status: Status, why: str) -> CellFinished:
    return CellFinished(at=time.time(), cell=side.cell, status=status, error=why)


def _record_ends(record: Record, *endings: CellFinished) -> tuple[CellFinished, CellFinished]:
    """Record the ends of A and B; one out of memory says that there were two models."""
    first, second = (
        msgspec.structs.replace(end, error=f"{end.error or 'out of memory'} ({BOTH_IN_MEMORY})")
        if end.status == "oom"
        else end
        for end in endings
    )
    record([first, second])
    return first, second
