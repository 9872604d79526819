"""The state of a race: its beginning, its visits, its end, and the time that it and its next visit take."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean, median

from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState


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


Visited = Mapping[int, Sequence[CellState]]
"""The cells of each candidate that has any, in the order in which they were queued; turns among them."""


def visits_of(state: SessionState) -> Visited:
    """The visits of the session's last race; none without one."""
    return dict(state.races[-1].visits) if state.races else {}


def visit_cells(state: SessionState) -> frozenset[int]:
    """The numbers of the cells that are visits of any of the session's races."""
    return frozenset[int]().union(*(race.cells for race in state.races))


def is_race_alone(state: SessionState) -> bool:
    """True of a session that has a race, and no other cells."""
    return bool(state.races) and visit_cells(state) == state.cells.keys()


def visit_s(visited: Visited, candidates: Sequence[CellSpec], number: int) -> float | None:
    """Seconds that another visit of a candidate takes: as its own ones did, else as those of candidates with the same
    ``compile``, else as all. None before the first."""
    took = {each: seconds for each, cells in visited.items() if (seconds := _took_s(cells))}
    if number in took:
        return fmean(took[number])
    alike = [fmean(took[each]) for each in took if candidates[each].compile == candidates[number].compile]
    return median(alike or [fmean(each) for each in took.values()]) if took else None


def turns_s(visited: Visited, candidates: Sequence[CellSpec], a: int, b: int) -> float:
    """Seconds that another round of two candidates in turns takes: as their own did, else as a visit of each."""
    own = [cell.whole_run_s or 0.0 for cell in visited.get(a, ()) if cell.in_turns and cell.status == "ok"]
    return fmean(own) if own else sum(visit_s(visited, candidates, each) or 0.0 for each in (a, b))


def check_s(state: SessionState) -> float:
    """Seconds that another comparison of logits and gradients takes: as those that were made did, else as a visit."""
    made = [report for report in state.reports.values() if report.kind == "agreement"]
    took = [each.finished_at - each.started_at for each in made if each.finished_at is not None]
    if took:
        return fmean(took)
    runs = [seconds for cells in visits_of(state).values() for seconds in _took_s(cells)]
    return median(runs) if runs else 0.0


def _took_s(cells: Sequence[CellState]) -> list[float]:
    """Of visits that were not broken off."""
    return [
        cell.whole_run_s
        for cell in cells
        if cell.whole_run_s is not None and not cell.in_turns and cell.status in ("ok", "oom", "failed", "killed")
    ]
