"""The state of a race: its beginning, its visits, its end, and the time that it has used."""

from __future__ import annotations

from collections.abc import Collection

from cs336_tui.events import events as ev
from cs336_tui.session.cell_state import CellState


class RaceState:
    """A race among the `candidates` of `begun`; `ended` is None while it has no end."""

    def __init__(self, begun: ev.TuningStarted) -> None:
        self.begun = begun
        self.ended: ev.TuningEnded | None = None
        self.visits: dict[int, list[CellState]] = {}
        """The cells of each candidate that has any, by its number, in the order in which they were queued; turns among
        them."""
        self.cells: set[int] = set()
        """The numbers of all these cells."""
        self._number_of = {spec: number for number, spec in enumerate(begun.candidates)}
        self._checks: set[int] = set()  # the reports of logits and gradients
        # Unix seconds; the first moves on by the breaks between two runs.
        self._began_at, self._ran_until = begun.at - begun.spent_s, begun.at

    @property
    def spent_s(self) -> float:
        """Seconds of its budget that it has used until its last event, without breaks between two runs."""
        return max(self._ran_until - self._began_at, 0.0)

    def take(self, cell: CellState, at: float) -> None:
        """Add a cell that was queued, if it is one of a candidate."""
        number = self._number_of.get(cell.asked_spec)
        if number is not None:
            self.visits.setdefault(number, []).append(cell)
            self.cells.add(cell.cell)
            self._ran_until = at

    def end(self, event: ev.TuningEnded) -> None:
        self.ended, self._ran_until = event, event.at

    def count_time(self, event: ev.Event, running: Collection[int]) -> None:
        """Count the time until an event of this race. The others are of a break: after a stop, other cells and reports
        may be made."""
        if isinstance(event, ev.SessionResumed):
            self._began_at += event.at - self._ran_until
        if isinstance(event, ev.SessionResumed) or self._is_own(event, running):
            self._ran_until = event.at

    def _is_own(self, event: ev.Event, running: Collection[int]) -> bool:
        match event:
            case ev.CellRequeued():  # as a race that was stopped is to go on
                return False
            case ev.CellEvent():
                return event.cell in self.cells
            case ev.DeviceSampled():
                return not self.cells.isdisjoint(running)
            case ev.ReportStarted() if event.kind == "agreement":
                self._checks.add(event.report)
                return True
            case ev.ReportStage() | ev.ReportFinished():
                return event.report in self._checks
        return False
