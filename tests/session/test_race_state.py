"""Races in a session: which cells are their visits, and the time that they have used."""

from __future__ import annotations

from collections.abc import Sequence

from cs336_tui.events.environment import HostSample
from cs336_tui.events.events import (
    CellFinished,
    CellRequeued,
    CellsQueued,
    CellStarted,
    DeviceSampled,
    Event,
    Notice,
    ReportFinished,
    ReportStarted,
    SessionResumed,
    TuningStarted,
)
from cs336_tui.session.state import SessionState, fold, visit_cells, visits_of
from tests.made_race import race_events
from tests.samples import START, a_spec

NOW = START + 1000


def queued_after(events: Sequence[Event], candidate: int = 0) -> tuple[SessionState, int]:
    """The session in which this candidate of the last race is queued once more, and the number of its cell."""
    state = fold(events)
    assert state.tuning is not None
    number = len(state.cells)
    state.apply(CellsQueued(at=NOW, first=number, specs=(state.tuning.candidates[candidate],)))
    return state, number


def test_a_candidate_that_is_queued_while_the_race_goes_on_is_visited() -> None:
    state, number = queued_after(race_events())
    assert visits_of(state)[0][-1].cell == number
    assert number in visit_cells(state)


def test_a_cell_of_a_candidate_after_the_end_is_no_visit() -> None:
    ended = race_events(ended="decided")
    state, number = queued_after(ended)
    assert visits_of(state).keys() == visits_of(fold(ended)).keys()
    assert visit_cells(state) == visit_cells(fold(ended))
    assert number not in visit_cells(state)


def test_visits_of_an_earlier_race_stay_visits() -> None:
    first = race_events(ended="decided")
    (begun,) = (event for event in first if isinstance(event, TuningStarted))
    state, number = queued_after([*first, begun])
    assert {each: [cell.cell for cell in cells] for each, cells in visits_of(state).items()} == {0: [number]}
    assert visit_cells(state) == visit_cells(fold(first)) | {number}
    assert state.tuning_ended is None
    assert len(state.races) == 2


def test_the_time_of_a_race_is_that_in_which_it_runs() -> None:
    events = race_events()
    spent_s, at = fold(events).race_spent_s, events[-1].at
    assert spent_s == at - START
    idle = DeviceSampled(at=at + 50, host=HostSample())
    assert fold([*events, idle, Notice(at=at + 60, text="idle")]).race_spent_s == spent_s
    went_on: list[Event] = [SessionResumed(at=at + 100, app="0"), CellStarted(at=at + 103, cell=0, pid=1)]
    assert fold([*events, idle, *went_on]).race_spent_s == spent_s + 3


def test_samples_of_a_visit_and_checks_are_time_of_the_race() -> None:
    running, spec = race_events(running=4), a_spec()
    at = running[-1].at
    checked: list[Event] = [
        ReportStarted(at=at + 2, report=0, kind="agreement", spec=spec),
        ReportFinished(at=at + 5, report=0, status="ok"),
    ]
    assert fold([*running, DeviceSampled(at=at + 1, host=HostSample())]).race_spent_s == at + 1 - START
    assert fold([*running, *checked]).race_spent_s == at + 5 - START


def test_what_else_runs_after_a_stop_takes_no_time_of_the_race() -> None:
    running = race_events(running=4)
    at, visit = running[-1].at, len(fold(running).cells) - 1
    stopped = [*running, CellFinished(at=at + 1, cell=visit, status="cancelled")]
    others: list[Event] = [
        ReportStarted(at=at + 100, report=0, kind="kernels", spec=a_spec()),
        ReportFinished(at=at + 110, report=0, status="ok"),
        CellsQueued(at=at + 200, first=visit + 1, specs=(a_spec(context_length=64),)),
        CellStarted(at=at + 201, cell=visit + 1, pid=1),
        DeviceSampled(at=at + 202, host=HostSample()),
        CellFinished(at=at + 203, cell=visit + 1, status="ok"),
    ]
    assert fold([*stopped, *others]).race_spent_s == at + 1 - START
    goes_on: list[Event] = [
        CellRequeued(at=at + 300, cell=visit),
        SessionResumed(at=at + 301, app="0"),
        CellStarted(at=at + 303, cell=visit, pid=1),
    ]
    assert fold([*stopped, *others, *goes_on]).race_spent_s == at + 3 - START
