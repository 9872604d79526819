"""The queue of cells, reports and peaks: changed from any thread, taken from by one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from cs336_tui.config.order import brings_as, needs_at_least
from cs336_tui.config.spec import CellSpec, Precision
from cs336_tui.events.events import CellFinished, CellRequeued, CellSkipped, CellsQueued, Event, QueueOrdered
from cs336_tui.events.peaks import DevicePeak, PeakError
from cs336_tui.events.reports import ReportKind
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.session.state import SessionState

NOT_STARTED = "not started: the run was stopped"
STOPPED = "it was stopped"


def why_unusable(code: str, cell: int) -> str:
    """The reason to skip a cell that brings code which could not be used in another."""
    return f"cell {cell + 1} could not use {code}, and this one needs it too"


def unstarted(cell: int) -> CellFinished:
    """The end of a cell that was stopped before it began."""
    return CellFinished(at=time.time(), cell=cell, status="cancelled", error=NOT_STARTED)


class WaitingCell(NamedTuple):
    cell: int
    spec: CellSpec


class WaitingReport(NamedTuple):
    kind: ReportKind
    spec: CellSpec
    cell: int | None


Tell = Callable[[DevicePeak | PeakError], object]


class WaitingPeak(NamedTuple):
    """A device's peak to measure; `tell` is given the result, on the thread that measures or stops."""

    device: str
    precision: Precision
    threads: int | None
    tell: Tell


class CellQueue:
    """Cells that wait, and reports and peaks that come before them. `record` is given an event for every change of the
    cells, in the order of the changes. `stop` is set while what was taken is to be stopped."""

    def __init__(self, record: Callable[[Sequence[Event]], None], stop: StopSignal) -> None:
        self._record, self._stop = record, stop
        self._closed = False
        self._changed = threading.Condition(threading.RLock())
        self._specs: dict[int, CellSpec] = {}
        self._waiting: list[int] = []
        self._asked: list[WaitingReport | WaitingPeak] = []
        self._taken: WaitingCell | WaitingReport | WaitingPeak | None = None
        self.busy = False
        """True while a thread takes cells."""
        self.paused = False

    def restore(self, state: SessionState) -> None:
        """Take over the cells of a session that goes on."""
        with self._changed:
            self._specs = {number: cell.spec for number, cell in state.cells.items()}
            self._waiting = list(state.waiting)

    def add(
        self,
        cells: Sequence[tuple[CellSpec, int]],
        *,
        command: str | None = None,
        ddof: int = 1,
        reports: tuple[str, ...] = (),
    ) -> tuple[int, ...]:
        """Queue cells last, each with the number of the run of its spec, from 1; returns the cells' numbers."""
        with self._changed:
            first = max(self._specs, default=-1) + 1
            numbers = tuple(range(first, first + len(cells)))
            specs, repeats = tuple(spec for spec, _ in cells), tuple(repeat for _, repeat in cells)
            self._specs |= zip(numbers, specs, strict=True)
            self._waiting += numbers
            repeats = repeats if any(repeat != 1 for repeat in repeats) else ()
            queued = CellsQueued(
                at=time.time(),
                first=first,
                specs=specs,
                command=command,
                ddof=ddof,
                repeats=repeats,
                reports=reports,
            )
            self._record([queued])
            self._changed.notify_all()
            return numbers

    def order(self, cells: Sequence[int]) -> None:
        """Run these of the waiting cells first, in this order; the others follow in theirs."""
        with self._changed:
            waiting = set(self._waiting)
            first = {cell: None for cell in cells if cell in waiting}
            wanted = [*first, *(cell for cell in self._waiting if cell not in first)]
            if wanted != self._waiting:
                self._waiting = wanted
                self._record([QueueOrdered(at=time.time(), cells=tuple(wanted))])

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
                self._record([CellSkipped(at=time.time(), cell=cell, reason=reason) for cell in skipped])

    def skip_larger(self, failed: CellSpec, reason: str) -> None:
        """Skip the waiting cells that need at least the memory of `failed`."""
        with self._changed:
            self.skip([cell for cell in self._waiting if needs_at_least(self._specs[cell], failed)], reason)

    def skip_bringing(self, code: str, failed: CellSpec, cell: int) -> None:
        """Skip the waiting cells that bring the code that could not be used in `cell`, from the same folders."""
        with self._changed:
            alike = [each for each in self._waiting if brings_as(self._specs[each], code, failed)]
            self.skip(alike, why_unusable(code, cell))

    def requeue(self, cells: Iterable[int]) -> None:
        """Queue cells again, last, that were skipped or are over."""
        with self._changed:
            left_alone = {*self._waiting, self.current}
            again = [cell for cell in dict.fromkeys(cells) if cell in self._specs and cell not in left_alone]
            self._waiting += again
            if again:
                self._record([CellRequeued(at=time.time(), cell=cell) for cell in again])
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
                if self._taken is not None:
                    self._stop.set()
                self.paused = False
                self._changed.notify_all()
            stopped = any(not isinstance(each, WaitingPeak | None) for each in (*cancelled, *forgotten, self._taken))
        for each in forgotten:
            if isinstance(each, WaitingPeak):
                each.tell(PeakError(STOPPED))
        return stopped

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
    def cells_wait(self) -> bool:
        return bool(self._waiting)

    @property
    def current(self) -> int | None:
        """The cell that runs."""
        taken = self._taken
        return taken.cell if isinstance(taken, WaitingCell) else None

    def claim(self) -> bool:
        """Become the one thread that takes, until `take` gives None; False if another one is."""
        with self._changed:
            claimed, self.busy = not self.busy, True
            return claimed

    def take(self) -> WaitingCell | WaitingReport | WaitingPeak | None:
        """The next report, peak or cell, once the last is over; None when none waits. Blocks while cells are paused."""
        with self._changed:
            self._taken = None
            self._stop.clear()
            self._changed.wait_for(lambda: self._closed or self._asked or not (self.paused and self._waiting))
            if self._closed or not (self._asked or self._waiting):
                self.leave()
                return None
            if self._asked:
                self._taken = self._asked.pop(0)
            else:
                cell = self._waiting.pop(0)
                self._taken = WaitingCell(cell, self._specs[cell])
            return self._taken

    def leave(self) -> None:
        """Take no more, so that another thread may."""
        with self._changed:
            self._taken = None
            self.busy = self.paused = False

    def __len__(self) -> int:
        """The number of cells, reports and peaks that wait."""
        return len(self._waiting) + len(self._asked)
