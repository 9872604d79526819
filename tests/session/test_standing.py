"""Progress of a session, of one that runs, was stopped, was killed or is done."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import astuple

from cs336_tui.events.events import CellFinished, CellRequeued, CellsQueued, Event, SessionEnded, Status
from cs336_tui.session.state import SessionState
from cs336_tui.session.store import Stage, describe, info_of, session_time, standing_of
from tests.made_race import race_events
from tests.samples import START, a_spec, cell_end, cell_start, session_start, steps, summary_of
from tests.tui.kept_sessions import STOPPED, keep, stopped_session

# Two cells of a warm-up step and five measured ones, the second in the midst of its steps.
SPECS = [a_spec(warmup_steps=1, measure_steps=5), a_spec(warmup_steps=1, measure_steps=5, context_length=512)]
FIRST = [*session_start(SPECS), *cell_start(0), *steps(0, (0.2,), (0.1,) * 5), cell_end(0)]
MIDST = [*FIRST, *cell_start(1), *steps(1, (0.2,), (0.1, 0.1))]
CANCELLED = CellFinished(at=START + 90, cell=1, status="cancelled", warmup_steps_done=1, summary=summary_of((0.1, 0.1)))


def after(events: list[Event]) -> SessionState:
    state = SessionState()
    for event in events:
        state.apply(event)
    return state


@pytest.mark.parametrize(
    ("events", "runs", "stage", "steps_done", "left"),
    [
        ([], True, "empty", 0, 0),
        (FIRST, True, "running", 6, 1),
        (MIDST, True, "running", 9, 1),
        (MIDST, False, "killed", 9, 1),
        ([*MIDST, CANCELLED], True, "stopped", 9, 1),
        ([*MIDST, CANCELLED], False, "stopped", 9, 1),
        ([*FIRST, SessionEnded(at=START + 90, reason="interrupted")], False, "stopped", 6, 1),
        ([*FIRST, *cell_start(1), *steps(1, (0.2,), (0.1,) * 5), cell_end(1)], True, "done", 12, 0),
    ],
)
def test_a_stopped_session_stays_where_it_was(
    events: list[Event], runs: bool, stage: Stage, steps_done: int, left: int
) -> None:
    found = standing_of(after(events), runs=runs)
    assert (found.stage, found.steps_done, found.left) == (stage, steps_done, left)
    assert found.steps_total == (12 if events else 0)
    assert found.can_resume == (stage in ("stopped", "killed"))


def test_it_goes_on_from_the_cells_that_ended() -> None:
    state = after([*MIDST, CANCELLED, CellRequeued(at=START + 95, cell=1)])
    found = standing_of(state, runs=True)
    assert (found.stage, found.steps_done, found.steps_total) == ("running", 6, 12)


def test_what_is_added_to_a_stopped_run_is_counted_alone_until_it_is_over() -> None:
    added = CellsQueued(at=START + 95, first=2, specs=(SPECS[0],))
    state = after([*MIDST, CANCELLED, added])
    assert (state.steps_done, state.steps_total) == (6, 12)
    for event in (*cell_start(2), *steps(2, (0.2,), (0.1,) * 5), cell_end(2)):
        state.apply(event)
    assert astuple(standing_of(state, runs=True))[:3] == ("stopped", 15, 18)


@pytest.mark.parametrize("events", [MIDST, [*MIDST, CANCELLED]], ids=["killed", "stopped"])
def test_the_list_of_sessions_tells_the_same_as_the_session(events: list[Event], tmp_path: Path) -> None:
    path = keep(tmp_path, STOPPED, events)
    info, state = info_of(path), after(events)
    told = standing_of(state, runs=False)
    assert (info.stage, info.steps_done, info.steps_total, info.left) == astuple(told)[:4] == (told.stage, 9, 12, 1)
    assert info.standing_at(told) == describe(state, path)


@pytest.mark.parametrize(("status", "stage"), [("cancelled", "stopped"), ("ok", "killed")])
def test_a_race_without_an_end_is_left(status: Status, stage: str) -> None:
    events = race_events()
    events[-1] = msgspec.structs.replace(events[-1], status=status)
    assert standing_of(after(events), runs=True).stage == "running"
    told = standing_of(after(events), runs=False)
    assert (told.stage, told.can_resume) == (stage, True)
    assert told.words == f"{stage} in a race"
    assert standing_of(after(race_events(ended="decided")), runs=False).stage == "done"


def test_the_words() -> None:
    found = standing_of(after(stopped_session()), runs=False)
    assert (found.words, found.cells_left) == (
        f"stopped at {found.steps_done}/{found.steps_total} steps",
        "2 cells left",
    )
    assert standing_of(SessionState(), runs=False).words == ""


def test_a_session_began_when_its_name_says() -> None:
    assert session_time("2026-11-20T14-03-22-ab12", 1.0) == "2026-11-20 14:03"
    assert session_time("my own name") == ""
    assert session_time("my own name", 1_700_000_000.0).startswith("2023-11-1")
