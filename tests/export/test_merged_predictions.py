"""Predictions of several sessions in one export name their sessions."""

import csv
import io

from cs336_tui.events.events import CellsPredicted
from cs336_tui.export.reports import report_tables
from cs336_tui.export.writing.formats import render_all
from cs336_tui.export.writing.tables import Table
from cs336_tui.session.state import SessionState
from tests.export.grids import LAPTOP, SMALL, by, grid_events, merged
from tests.made_predictions import made_prediction
from tests.samples import START, state_of

SPECS = by([SMALL], pass_=["forward"], device=["cpu"])


def predicted(session: str) -> SessionState:
    predictions = CellsPredicted(at=START, predictions=tuple(map(made_prediction, SPECS)))
    return state_of([*grid_events(SPECS, session=session, environment=LAPTOP), predictions])


def tables(*sessions: str) -> tuple[Table, ...]:
    states = [predicted(session) for session in sessions]
    return report_tables(states, merged(*states))["predictions"]


def test_predictions_of_several_sessions_name_theirs() -> None:
    found = tables("one", "two")
    assert [table.caption.rpartition(", session ")[2] for table in found] == ["one", "one", "two", "two"]
    assert len({table.label for table in found}) == len(found)
    for rows in (found[::2], found[1::2]):
        read = csv.DictReader(io.StringIO(render_all(rows, "csv")))
        assert {row["session"] for row in read} == {"one", "two"}


def test_predictions_of_one_session_need_no_name() -> None:
    found = tables("one")
    assert not any("session" in table.caption or "session" in table.records[0] for table in found)
