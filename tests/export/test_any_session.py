"""Data, summary and tables of any session are made and rendered, and the results leave no cell out."""

import json

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from cs336_tui.analysis.merge import merge
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.tuning import Over, Tuning
from cs336_tui.events.events import CellsQueued, Event, TuningStarted
from cs336_tui.export.folder import tables_of
from cs336_tui.export.record import document_of, to_csv, to_json
from cs336_tui.export.reports import report_tables
from cs336_tui.export.summary import summary_markdown
from cs336_tui.export.writeups import layout_tables
from cs336_tui.export.writing.footnotes import has_result
from cs336_tui.export.writing.formats import render_all
from cs336_tui.export.writing.terminal import Looks, terminal_text
from tests.export.grids import grid, merged
from tests.export.keeping import csv_rows
from tests.export.test_record import no_constants
from tests.samples import state_of
from tests.strategies import any_event, run_specs


@given(st.lists(st.lists(any_event, max_size=25), min_size=1, max_size=2))
def test_any_sessions_have_their_data_summaries_and_tables(sessions: list[list[Event]]) -> None:
    results = merge([("same title", state_of(events)) for events in sessions])
    for state in map(state_of, sessions):
        document = json.loads(to_json(document_of(state)), parse_constant=no_constants)
        assert len(document["runs"]) == len(csv_rows(to_csv(document_of(state)))) == len(state.finished_cells)
        text = summary_markdown(state)
        assert text.startswith("# cs336-tui session ")
        assert "\x1b" not in text
    tables = tables_of(results)
    for several in tables.values():
        for table in several:
            assert all(len(row) == len(table.columns) for row in table.rows)
        for format_ in ("markdown", "typst", "json"):
            render_all(several, format_)
        for width in (60, 120):
            text = terminal_text(several, Looks(width=width, styled=False, verbose=True))
            assert max(map(cell_len, text.splitlines())) <= width
    shown = sum(bool(result.state.ended) or has_result(result.cell) for result in results)
    assert ("results" in tables) == any(has_result(result.cell) for result in results)
    assert "results" not in tables or shown == len(tables["results"][0].rows)


@given(run_specs(), st.lists(any_event, max_size=25))
def test_any_session_may_have_a_race(base: CellSpec, events: list[Event]) -> None:
    over = (Over("attention", ("naive", "sdpa")), Over("checkpoint", (0, 1)))
    queued = {spec for event in events if isinstance(event, CellsQueued) for spec in event.specs}
    tuning = Tuning(base=base, over=over)
    state = state_of([TuningStarted(at=0.0, tuning=tuning, candidates=(base, *(queued - {base}))), *events])
    results = merge([("race", state)])
    tables = report_tables([state], results, keys=["race"])["race"]
    assert len(tables[0].rows) == len(queued | {base})
    render_all(tables, "json")
    assert "\n- **Race:** " in summary_markdown(state)
    assert {*tables_of(results)} <= {"results", "verdicts"}, "all cells are visits"


@given(st.lists(run_specs(), min_size=1, max_size=5), st.integers(1, 2))
def test_every_measured_step_is_in_the_tables_of_a_layout_once(specs: list[CellSpec], sessions: int) -> None:
    results = merged(*(grid(specs, times=lambda _: [0.01, 0.02]) for _ in range(sessions)))
    steps = 2 * len(results)
    assert (
        sum(record["profile_steps"] for table in layout_tables(results, "by-mean") for record in table.records) == steps
    )
    raw = [record["measured steps (ms)"] for table in layout_tables(results, "raw-steps") for record in table.records]
    assert sum(map(len, raw)) == steps
    assert tables_of(results).keys() >= {"results", "by-mean", "min-max", "raw-steps", "reference"}
