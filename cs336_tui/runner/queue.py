"""The cells that wait to run: added, ordered, skipped, held back and cancelled from any thread, taken by one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from cs336_tui.config.order import brings_as, needs_at_least
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import (
    CellFinished,
    CellRequeued,
    CellSkipped,
    CellsQueued,
    Event,
    QueueOrdered,
)
from cs336_tui.events.reports import ReportKind
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.session.state import SessionState

NOT_STARTED = "not started: the run was stopped"


def why_unusable(code: str, cell: int) -> str:
    """Why a cell is skipped that brings what could not be used in another one."""
    return f"cell {cell + 1} could not use {code}, and this one needs it too"


class WaitingCell(NamedTuple):
    """A cell that is to run next."""

    cell: int
    spec: CellSpec


class WaitingReport(NamedTuple):
    """A report that is to be made next."""

    kind: ReportKind
    spec: CellSpec
    cell: int | None


class CellQueue:
    """Cells that wait, and reports that come between them.

    Every change of the cells is told to `record` as an event, in the order in which the changes take effect.

    `stop` is set while what was taken is to be stopped.
    """

    def __init__(self, record: Callable[[Sequence[Event]], None], stop: StopSignal) -> None:
        self._record, self._stop = record, stop
        self._closed = False
        self._changed = threading.Condition(threading.RLock())
        self._specs: dict[int, CellSpec] = {}
        self._waiting: list[int] = []
        self._asked: list[WaitingReport] = []
        self._taken: WaitingCell | WaitingReport | None = None
        self._claimed = False
        self._paused = False

    def restore(self, state: SessionState) -> None:
        """Hold the cells of a session that goes on."""
        with self._changed:
            self._specs = {number: cell.spec for number, cell in state.cells.items()}
            self._waiting = list(state.waiting)

    # What waits.

    def add(
        self, cells: Sequence[tuple[CellSpec, int]], *, command: str | None = None, ddof: int = 1
    ) -> tuple[int, ...]:
        """Let cells wait behind all others, each with which run of its spec it is; returns their numbers."""
        with self._changed:
            first = max(self._specs, default=-1) + 1
            numbers = tuple(range(first, first + len(cells)))
            self._specs |= zip(numbers, (spec for spec, _ in cells), strict=True)
            self._waiting += numbers
            repeats = tuple(repeat for _, repeat in cells)
            self._record(
                [
                    CellsQueued(
                        at=time.time(),
                        first=first,
                        specs=tuple(spec for spec, _ in cells),
                        command=command,
                        ddof=ddof,
                        repeats=repeats if any(repeat != 1 for repeat in repeats) else (),
                    )
                ]
            )
            self._changed.notify_all()
            return numbers

    def order(self, cells: Sequence[int]) -> None:
        """Run these of the waiting cells first, in this order; the others keep theirs behind them."""
        with self._changed:
            waiting = set(self._waiting)
            first = {cell: None for cell in cells if cell in waiting}
            wanted = [*first, *(cell for cell in self._waiting if cell not in first)]
            if wanted != self._waiting:
                self._waiting = wanted
                self._record([QueueOrdered(at=time.time(), cells=tuple(wanted))])

    def move(self, cell: int, by: int) -> None:
        """Let a waiting cell run `by` places later, or earlier when negative; as far as there are places."""
        with self._changed:
            if cell in self._waiting:
                others = [other for other in self._waiting if other != cell]
                place = min(max(self._waiting.index(cell) + by, 0), len(others))
                self.order([*others[:place], cell, *others[place:]])

    def skip(self, cells: Iterable[int], reason: str) -> None:
        """Do not run these of the waiting cells."""
        with self._changed:
            wanted = set(cells)
            skipped = [cell for cell in self._waiting if cell in wanted]
            self._waiting = [cell for cell in self._waiting if cell not in wanted]
            if skipped:
                self._record([CellSkipped(at=time.time(), cell=cell, reason=reason) for cell in skipped])

    def skip_larger(self, failed: CellSpec, reason: str) -> None:
        """Do not run the waiting cells that surely need as much memory as `failed`."""
        with self._changed:
            self.skip([cell for cell in self._waiting if needs_at_least(self._specs[cell], failed)], reason)

    def skip_bringing(self, code: str, failed: CellSpec, cell: int) -> None:
        """Do not run the waiting cells that bring what could not be used in `cell`, of the same folders."""
        with self._changed:
            alike = [each for each in self._waiting if brings_as(self._specs[each], code, failed)]
            self.skip(alike, why_unusable(code, cell))

    def requeue(self, cells: Iterable[int]) -> None:
        """Let cells that were skipped or are over wait again, behind all others."""
        with self._changed:
            left_alone = {*self._waiting, self.current}
            again = [cell for cell in dict.fromkeys(cells) if cell in self._specs and cell not in left_alone]
            self._waiting += again
            if again:
                self._record([CellRequeued(at=time.time(), cell=cell) for cell in again])
            self._changed.notify_all()

    def ask(self, kind: ReportKind, spec: CellSpec, cell: int | None = None) -> None:
        """Let a report wait; it comes before the cells that wait, and only once."""
        with self._changed:
            asked = WaitingReport(kind, spec, cell)
            if asked not in (*self._asked, self._taken):
                self._asked.append(asked)
            self._changed.notify_all()

    @property
    def asked(self) -> tuple[WaitingReport, ...]:
        """The reports that wait."""
        return tuple(self._asked)

    def cancel(self) -> bool:
        """Stop what runs and run nothing that waits; False when there was neither."""
        with self._changed:
            forgotten, self._asked = self._asked, []
            cancelled, self._waiting = self._waiting, []
            now = time.time()
            try:
                if cancelled:
                    self._record(
                        [CellFinished(at=now, cell=cell, status="cancelled", error=NOT_STARTED) for cell in cancelled]
                    )
            finally:  # what runs is stopped even if nobody can be told any more
                if self._taken is not None:
                    self._stop.set()
                self._paused = False
                self._changed.notify_all()
            return bool(cancelled or forgotten) or self._taken is not None

    def close(self) -> bool:
        """As `cancel`, and nothing will run any more."""
        with self._changed:
            self._closed = True
            return self.cancel()

    # Whoever runs them.

    @property
    def paused(self) -> bool:
        return self._paused

    def pause(self, paused: bool = True) -> None:
        """Hold the waiting cells back once the current one is over, or let them go on."""
        with self._changed:
            self._paused = paused
            self._changed.notify_all()

    @property
    def current(self) -> int | None:
        """The cell that was taken and is not over."""
        taken = self._taken
        return taken.cell if isinstance(taken, WaitingCell) else None

    @property
    def busy(self) -> bool:
        """Whether somebody takes cells."""
        return self._claimed

    def claim(self) -> bool:
        """Become the one who takes; False when somebody already is. It lasts until `take` gives None."""
        with self._changed:
            claimed, self._claimed = not self._claimed, True
            return claimed

    def take(self) -> WaitingCell | WaitingReport | None:
        """The next report or cell, what was taken before being over; None when none waits. Cells block while paused."""
        with self._changed:
            self._taken = None
            self._stop.clear()
            self._changed.wait_for(lambda: self._closed or self._asked or not (self._paused and self._waiting))
            if self._closed or not (self._asked or self._waiting):
                self.leave()
                return None
            self._taken = (
                self._asked.pop(0) if self._asked else WaitingCell(self._waiting[0], self._specs[self._waiting[0]])
            )
            if isinstance(self._taken, WaitingCell):
                del self._waiting[0]
            return self._taken

    def leave(self) -> None:
        """Take no more, so that another may."""
        with self._changed:
            self._taken = None
            self._claimed = self._paused = False

    def __len__(self) -> int:
        """How much waits."""
        return len(self._waiting) + len(self._asked)
