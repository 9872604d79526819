"""Predictions and estimates as tables: for people and as data; of several sessions each names its own."""

from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.estimates import Estimate, Unpredicted, judge_all
from cs336_tui.analysis.targets import named_target, search
from cs336_tui.events.events import CellsPredicted
from cs336_tui.events.gpus import find_gpu
from cs336_tui.export.reports import report_tables
from cs336_tui.export.subjects.estimates import (
    Fitted,
    category_table,
    estimate_table,
    fit_document,
    fit_table,
    sweep_note,
)
from cs336_tui.export.writing.formats import render_all
from cs336_tui.export.writing.tables import Table
from cs336_tui.session.state import SessionState
from tests.export.grids import SMALL, by, grid_events, merged
from tests.export.keeping import csv_rows, kept
from tests.made_predictions import MIB, made_prediction
from tests.samples import LAPTOP, START, a_spec, state_of
from tests.session.made import Cell, session_of

H100 = named_target(find_gpu("H100"))


def estimates(*changes: dict[str, object]) -> tuple[Estimate, ...]:
    return judge_all([made_prediction(a_spec(**each)) for each in changes], H100)


def test_what_was_not_predicted_is_counted_apart_from_what_does_not_fit(snapshot: SnapshotAssertion) -> None:
    fits, too_large, larger = estimates({}, {"batch_size": 4000}, {"batch_size": 5000})
    lost = Unpredicted(a_spec(batch_size=9), fits.target, "it hangs")
    of_cells = ([fits, too_large, lost], [too_large, lost], [fits, too_large], [too_large, larger])
    assert list(map(sweep_note, of_cells)) == snapshot


def fitted(limit: int | None = None, room: int | None = None) -> Fitted:
    spec = a_spec(pass_="train-step")
    free = H100.free_bytes if room is None else room
    return Fitted(spec, search(spec, "batch", made_prediction, free - H100.context_bytes, limit=limit), H100)


def test_what_fits_and_what_no_longer_does_where_it_ended_and_how_it_went(snapshot: SnapshotAssertion) -> None:
    result = fitted()
    (record,) = fit_table([result]).records
    assert record["next_peak_bytes"] - record["peak_bytes"] == 128 * MIB
    assert record["peak_bytes"] <= H100.free_bytes - H100.context_bytes < record["next_peak_bytes"]
    state = session_of(
        Cell(result.fit.spec, [0.1], peak=84_000_000_000), Cell(result.fit.next_spec, status="oom", peak=None)
    )
    ran, ran_next = state.cells.values()
    none = fitted(room=2 * 10**9)
    each = (result, fitted(limit=8), none, result._replace(ran=ran, ran_next=ran_next))
    assert kept(*(fit_table([one]) for one in each)) == snapshot
    assert fit_document(none)["spec"] is None


def test_a_variant_that_all_cells_have_is_named_and_a_fit_names_its_variants(snapshot: SnapshotAssertion) -> None:
    own = {"model": "mine:GPT", "model_path": ("/somewhere",)}
    predictions = [made_prediction(a_spec(**own))]
    named = (estimate_table(estimates(own)), estimate_table(predictions), category_table(predictions))
    fit = fit_table([fitted(room=1)._replace(asked=a_spec(pass_="train-step", attention="sdpa"))])
    assert kept(*named, fit, estimate_table(estimates({}, {"batch_size": 8}))) == snapshot


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
        read = csv_rows(render_all(rows, "csv"))
        assert {row["session"] for row in read} == {"one", "two"}


def test_predictions_of_one_session_need_no_name() -> None:
    found = tables("one")
    assert not any("session" in table.caption or "session" in table.records[0] for table in found)
