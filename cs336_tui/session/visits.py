"""The visits of races in a session, and how long another one takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from cs336_tui.config.spec import CellSpec
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState

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
