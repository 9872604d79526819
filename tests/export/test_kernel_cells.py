"""Kernels of all cells as a table, in every format."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.kernel_cells import kernel_cells
from cs336_tui.analysis.merge import merge
from cs336_tui.config.spec import recorded_spec
from cs336_tui.export.reports import report_sections, report_tables
from cs336_tui.export.subjects.kernel_cells import kernel_cells_table
from cs336_tui.export.subjects.results import results_of
from cs336_tui.export.writing.tables import Table
from cs336_tui.session.state import SessionState
from tests.analysis.test_kernel_cells import TRAIN, a_session, report, train_state
from tests.export.keeping import kept
from tests.made_kernels import STEP, a_group, a_kernel_report, an_operator_report
from tests.samples import a_spec
from tests.session.made import Cell, cell


def table_of(*states: SessionState) -> Table:
    return kernel_cells_table(kernel_cells(states, merge([("one", state) for state in states])))


def row(table: Table, part: str) -> dict[str, str]:
    """The first row of this part, by header."""
    headers = [column.header for column in table.columns]
    (found, *_) = (each for each in table.rows if each[headers.index("part")] == part)
    return dict(zip(headers, found, strict=True))


def test_a_row_says_what_was_profiled_what_was_timed_and_the_difference_of_both(snapshot: SnapshotAssertion) -> None:
    table = table_of(train_state())
    forward, both, _ = table.records
    assert forward["span_difference_s"] == pytest.approx(forward["span_ns"] / 1e9 - forward["timed_s"])
    assert forward["kernel_difference_share"] == pytest.approx(-0.06475)
    assert both["span_ns"] is both["span_difference_s"] is None
    operators = table_of(a_session(*report(an_operator_report(a_spec(pass_="forward+backward", device="cpu")))))
    assert kept(table, operators) == snapshot


def test_cells_without_a_profile_have_dashes_and_why() -> None:
    cells = [cell([0.1], pass_="forward"), Cell(TRAIN, status="oom"), cell([0.1], pass_="backward")]
    of_forward = a_kernel_report(cells[0].spec, groups=tuple(group for group in STEP if group.phase == "forward"))
    state = a_session(*report(of_forward), *report(None, TRAIN, error="no room"), cells=cells)
    table = table_of(state)
    step = row(table, "step")
    assert (step["kernels (ms)"], step["top kernel"], step["softmax"], step["timed (ms)"]) == ("–", "–", "–", "OOM")
    notes = "\n".join(table.footnotes)
    assert f"{TRAIN.title}: no profile, its report ran out of memory" in notes
    assert "cells without a profile have dashes" in notes
    assert {record["profile"] for record in table.records} == {"ok", "oom", "none"}


def test_a_fused_attention_has_no_softmax_of_its_own() -> None:
    groups = (a_group("flash_fwd_kernel", "other", "forward", "attention core", (2.0,)),)
    table = table_of(a_session(*report(a_kernel_report(a_spec(pass_="forward"), groups=groups))))
    assert row(table, "forward")["softmax"] == "fused"
    assert table.records[0]["softmax_share"] is None


def test_it_is_a_report_of_the_session_and_in_its_summary() -> None:
    state = train_state()
    tables = report_tables([state], results_of(state))
    assert list(tables)[:2] == ["kernels", "kernels-over-cells"]
    assert "Kernels over cells" in dict(report_sections([state], results_of(state)))
    plain = a_session(cells=[cell([0.1])])
    assert "kernels-over-cells" not in report_tables([plain], results_of(plain))


def test_recordings_are_named_by_their_file_and_not_by_choices_that_nobody_knows() -> None:
    spec = recorded_spec("a.json.gz", "cuda:0")
    table = table_of(a_session(*report(a_kernel_report(spec))))
    assert [column.key for column in table.columns][:2] == ["recording", "part"]
    assert table.rows[0][0] == "a.json.gz"
    assert any("recorded on NVIDIA H100" in note for note in table.footnotes)
    both = table_of(a_session(*report(a_kernel_report(spec)), *report(a_kernel_report(TRAIN)), cells=[Cell(TRAIN)]))
    assert {"size", "recording"} <= {column.key for column in both.columns}
