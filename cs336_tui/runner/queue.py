"""The queue of cells, reports and peaks: changed from any thread, taken from by one, which may run cells in lanes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.events.peaks import DevicePeak, PeakError, WantedPeak
from cs336_tui.events.reports import ReportKind
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.session.state import SessionState

NOT_STARTED = "not started: the run was stopped"
STOPPED = "it was stopped"


def why_unusable(code: str, cell: int) -> str:
    """The reason to skip a cell that brings code which could not be used in another."""
    return f"cell {cell + 1} could not use {code}, and this one needs it too"


def unstarted(cell: int) -> ev.CellFinished:
    """The end of a cell that was stopped before it began."""
    return ev.CellFinished(at=time.time(), cell=cell, status="cancelled", error=NOT_STARTED)


class WaitingCell(NamedTuple):
    """A cell to run: alone, or beside others in these lanes, one for each of its ranks."""

    cell: int
    spec: CellSpec
    lanes: tuple[ev.Lane, ...] = ()


class WaitingReport(NamedTuple):
    kind: ReportKind
    spec: CellSpec
    cell: int | None


Tell = Callable[[DevicePeak | PeakError], object]


class WaitingPeak(NamedTuple):
    """A device's peak to measure; `tell` is given the result, on the thread that measures or stops."""

    wanted: WantedPeak
    tell: Tell


Taken = WaitingCell | WaitingReport | WaitingPeak


class CellQueue:
    """Cells that wait, and reports and peaks that come before them. `record` is given an event for every change of the
    cells, in the order of the changes. `stop` is set while what was taken is to be stopped.

    With lanes open, a cell on one of their devices, of no more ranks than there are lanes, is taken as soon as there is
    a free lane for each of its ranks, and runs in them until it is `over`; none overtakes one that waits for lanes.
    Everything else is taken once nothing runs, and is over at the next `take`."""

    def __init__(self, record: Callable[[Sequence[ev.Event]], None], stop: StopSignal) -> None:
        self._record, self._stop = record, stop
        self._closed = False
        self._changed = threading.Condition(threading.RLock())
        self._specs: dict[int, CellSpec] = {}
        self._waiting: list[int] = []
        self._asked: list[WaitingReport | WaitingPeak] = []
        self._taken: Taken | None = None
        self._in_lanes: dict[int, WaitingCell] = {}
        """The cells that run in lanes."""
        self._lanes: dict[int, ev.Lane] = {}
        """The open lanes that were not set aside."""
        self._opened: tuple[ev.Lane, ...] = ()
        self._why_aside = ""
        self.busy = False
        """True while a thread takes cells."""
        self.paused = False

    def restore(self, state: SessionState) -> None:
        """Take over the cells of a session that goes on."""
        with self._changed:
            self._specs = {number: cell.asked_spec for number, cell in state.cells.items()}
            self._waiting = list(state.waiting)

    def use(self, lanes: Sequence[ev.Lane]) -> None:
        """Run what waits in these lanes from now on, without any one after the other. What is added while a thread
        takes runs as what was there before."""
        with self._changed:
            if self.busy or tuple(lanes) == self._opened:
                return
            self._opened, self._lanes = tuple(lanes), {lane.lane: lane for lane in lanes}
            self._why_aside = ""
            if lanes:
                self._record([ev.LanesOpened(at=time.time(), lanes=self._opened)])

    def add(
        self,
        cells: Sequence[tuple[CellSpec, int]],
        *,
        command: str | None = None,
        ddof: int = 1,
        reports: tuple[str, ...] = (),
        numbers: Sequence[int] | None = None,
        in_turns: bool = False,
    ) -> tuple[int, ...]:
        """Queue cells last, each with the number of the run of its spec, from 1; returns the cells' numbers: those
        given, which no cell has yet, or the next ones. `in_turns` is noted: `take` gives them one by one."""
        with self._changed:
            first = max(self._specs, default=-1) + 1
            given = tuple(range(first, first + len(cells)) if numbers is None else numbers)
            self._specs |= {number: spec for number, (spec, _) in zip(given, cells, strict=True)}
            self._waiting += given
            self._record(list(queued(given, cells, command, ddof=ddof, reports=reports, in_turns=in_turns)))
            self._changed.notify_all()
            return given

    def order(self, cells: Sequence[int]) -> None:
        """Run these of the waiting cells first, in this order; the others follow in theirs."""
        with self._changed:
            waiting = set(self._waiting)
            first = {cell: None for cell in cells if cell in waiting}
            wanted = [*first, *(cell for cell in self._waiting if cell not in first)]
            if wanted != self._waiting:
                self._waiting = wanted
                self._record([ev.QueueOrdered(at=time.time(), cells=tuple(wanted))])

    def move(self, cell: int, by: int) -> None:
        """Move a waiting cell `by` places later, earlier if negative, within the queue."""
        with self._changed:
            if cell in self._waiting:
                others = [other for other in self._waiting if other != cell]
                place = min(max(self._waiting.index(cell) + by, 0), len(others))
                self.order([*others[:place], cell, *others[place:]])

    def skip(self, cells: Iterable[int], reason: str) -> None:
        with self._changed:
            wanted = set(cells)
            skipped = [cell for cell in self._waiting if cell in wanted]
            self._waiting = [cell for cell in self._waiting if cell not in wanted]
            if skipped:
                self._record([ev.CellSkipped(at=time.time(), cell=cell, reason=reason) for cell in skipped])

    def skip_if(self, fails: Callable[[CellSpec], bool], reason: str) -> None:
        """Skip the waiting cells whose spec `fails`."""
        with self._changed:
            self.skip([cell for cell in self._waiting if fails(self._specs[cell])], reason)

    def requeue(self, cells: Iterable[int]) -> None:
        """Queue cells again, last, that were skipped or are over."""
        with self._changed:
            left_alone = {*self._waiting, *self.running}
            again = [cell for cell in dict.fromkeys(cells) if cell in self._specs and cell not in left_alone]
            self._waiting += again
            if again:
                self._record([ev.CellRequeued(at=time.time(), cell=cell) for cell in again])
            self._changed.notify_all()

    def ask(self, asked: WaitingReport | WaitingPeak) -> None:
        """Queue a report or a peak before all cells, unless it waits already."""
        with self._changed:
            if asked not in (*self._asked, self._taken):
                self._asked.append(asked)
            self._changed.notify_all()

    @property
    def asked(self) -> tuple[WaitingReport, ...]:
        """The reports that wait."""
        return tuple(each for each in self._asked if isinstance(each, WaitingReport))

    def cancel(self) -> bool:
        """Stop what runs and cancel what waits; False if there was neither, but for peaks."""
        with self._changed:
            forgotten, self._asked = self._asked, []
            cancelled, self._waiting = self._waiting, []
            try:
                if cancelled:
                    self._record([unstarted(cell) for cell in cancelled])
            finally:  # also if a watcher is gone
                if self._taken is not None or self._in_lanes:
                    self._stop.set()
                self.paused = False
                self._changed.notify_all()
            at_work = (*self._in_lanes, self._taken)
            stopped = any(not isinstance(each, WaitingPeak | None) for each in (*cancelled, *forgotten, *at_work))
        for each in forgotten:
            if isinstance(each, WaitingPeak):
                each.tell(PeakError(STOPPED))
        return stopped

    def stop_running(self) -> None:
        """Stop what runs; what waits goes on."""
        with self._changed:
            if self._taken is not None or self._in_lanes:
                self._stop.set()

    def close(self) -> bool:
        """As `cancel`, and nothing runs any more."""
        with self._changed:
            self._closed = True
        return self.cancel()

    def pause(self, paused: bool = True) -> None:
        """Pause the waiting cells once the current one is over, or let them go on."""
        with self._changed:
            self.paused = paused
            self._changed.notify_all()

    @property
    def running(self) -> tuple[int, ...]:
        """The cells that run."""
        taken = self._taken
        return (*self._in_lanes, *((taken.cell,) if isinstance(taken, WaitingCell) else ()))

    def claim(self) -> bool:
        """Become the one thread that takes, until `take` gives None; False if another one is."""
        with self._changed:
            claimed, self.busy = not self.busy, True
            return claimed

    def take(self, more: Callable[[], Iterable[WaitingReport]] = tuple) -> Taken | None:
        """The next report, peak or cell; None when none waits and nothing runs, for which `more` is asked before.
        Blocks while cells are paused, and until there is room."""
        with self._changed:
            self._taken = None
            while True:
                self._changed.wait_for(self._may_go_on)
                if self._closed:
                    self.leave()
                    return None
                if not (self._asked or self._waiting):
                    self._asked += more()
                if not (self._asked or self._waiting):
                    self.leave()
                    return None
                if self._asked:
                    self._taken = self._asked.pop(0)
                    return self._taken
                if (found := self._next()) is not None:
                    self._waiting.remove(found.cell)
                    if found.lanes:
                        self._in_lanes[found.cell] = found
                    else:
                        self._taken = found
                    return found

    def over(self, taken: WaitingCell) -> None:
        """Free the lanes of a cell that has ended, unless it was taken anew meanwhile."""
        with self._changed:
            if self._in_lanes.get(taken.cell) is taken:
                del self._in_lanes[taken.cell]
            self._changed.notify_all()

    def set_aside(self, lane: int, reason: str, cell: int) -> None:
        """Use a lane no more; the cell that ran in it is over there and waits again, first."""
        with self._changed:
            del self._lanes[lane]
            self._why_aside = f"lane {lane} was set aside: {reason}"
            self._in_lanes.pop(cell, None)
            self._waiting.insert(0, cell)
            now = time.time()
            self._record([
                ev.LaneSetAside(at=now, lane=lane, reason=reason),
                ev.CellRequeued(at=now, cell=cell),
                ev.QueueOrdered(at=now, cells=(cell,)),
            ])  # fmt: skip
            self._changed.notify_all()

    def _may_go_on(self) -> bool:
        """True if there is something to take, or nothing any more."""
        if not self._in_lanes:
            self._stop.clear()
            return self._closed or bool(self._asked) or not (self.paused and self._waiting)
        if self._closed or self._stop.is_set() or self._asked or not self._waiting or self.paused:
            return False
        return self._next() is not None

    def _next(self) -> WaitingCell | None:
        """The first cell that waits, with its lanes, if there is room for it. Ends those for which there cannot be."""
        while self._waiting:
            cell = self._waiting[0]
            spec = self._specs[cell]
            if spec.device not in {lane.device for lane in self._opened} or spec.ranks > len(self._opened):
                return None if self._in_lanes else WaitingCell(cell, spec)
            if spec.ranks <= len(self._lanes):
                taken = {lane.lane for each in self._in_lanes.values() for lane in each.lanes}
                free = [lane for number, lane in self._lanes.items() if number not in taken]
                return WaitingCell(cell, spec, tuple(free[: spec.ranks])) if spec.ranks <= len(free) else None
            self._waiting.pop(0)
            left = f"no lane is left; {self._why_aside}"
            if self._lanes:
                left = f"its {spec.ranks} ranks need as many lanes, not the {len(self._lanes)} left; {self._why_aside}"
            self._record([ev.CellFinished(at=time.time(), cell=cell, status="failed", error=f"not started: {left}")])
        return None

    def leave(self) -> None:
        """Take no more, so that another thread may."""
        with self._changed:
            self._taken = None
            self.busy = self.paused = False

    def __len__(self) -> int:
        """The number of cells, reports and peaks that wait."""
        return len(self._waiting) + len(self._asked)


def queued(
    numbers: Sequence[int],
    cells: Sequence[tuple[CellSpec, int]],
    command: str | None = None,
    *,
    ddof: int,
    reports: tuple[str, ...],
    in_turns: bool = False,
) -> Iterator[ev.CellsQueued]:
    """The events of cells that are queued, one for those whose numbers follow one another."""
    groups = groupby(enumerate(zip(numbers, cells, strict=True)), lambda each: each[1][0] - each[0])
    for place, part in enumerate([[cell for _, cell in group] for _, group in groups] or [[]]):
        repeats = tuple(repeat for _, (_, repeat) in part)
        yield ev.CellsQueued(
            at=time.time(),
            first=part[0][0] if part else 0,
            specs=tuple(spec for _, (spec, _) in part),
            command=None if place else command,
            ddof=ddof,
            repeats=repeats if any(repeat != 1 for repeat in repeats) else (),
            reports=reports,
            in_turns=in_turns,
        )
