"""Kernels of all cells as a table, in every format."""

from __future__ import annotations

import json

import pytest

from cs336_tui.analysis.kernel_cells import kernel_cells
from cs336_tui.analysis.merge import merge
from cs336_tui.config.spec import recorded_spec
from cs336_tui.export.reports import report_sections, report_tables
from cs336_tui.export.subjects.kernel_cells import kernel_cells_table
from cs336_tui.export.subjects.results import results_of
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.formats import render, render_all
from cs336_tui.export.writing.tables import Table
from cs336_tui.session.state import SessionState
from tests.analysis.test_kernel_cells import TRAIN, a_session, report, train_state
from tests.export.grids import unranked
from tests.made_kernels import GEMM, STEP, a_group, a_kernel_report, an_operator_report
from tests.samples import a_spec
from tests.session.made import Cell, cell


def table_of(*states: SessionState) -> Table:
    return kernel_cells_table(kernel_cells(states, merge([("one", state) for state in states])))


def row(table: Table, part: str) -> dict[str, str]:
    """The first row of this part, by header."""
    headers = [column.header for column in table.columns]
    (found, *_) = (each for each in table.rows if each[headers.index("part")] == part)
    return dict(zip(headers, found, strict=True))


def test_a_row_says_what_was_profiled_what_was_timed_and_the_difference_of_both() -> None:
    forward = row(table_of(train_state()), "forward")
    assert forward == {
        "size": "small", "context": "128", "pass": "train-step", "precision": "fp32", "part": "forward",
        "kernels (ms)": "0.374", "kernels - timed (ms, %)": "-0.026, -6.5 %",
        "first to last (ms)": "0.416", "first to last - timed (ms, %)": "+0.016, +3.9 %",
        "timed (ms)": "0.40 ± 0.14", "top kernel": forward["top kernel"], "its instances": "7", "its share": "68.3 %",
        "matrix multiply": "75.0 %", "softmax": "2.9 %", "optimizer": "0.0 %", "same as forward": "–",
    }  # fmt: skip
    assert forward["top kernel"].startswith("sm90_xmma_gemm_f32f32_tf32f32")
    step = row(table_of(train_state()), "step")
    assert (step["same as forward"], step["optimizer"]) == ("yes", "13.2 %")


def test_json_has_base_units_and_the_kernel_in_full() -> None:
    table = table_of(train_state())
    document = json.loads(render(table, "json"))
    forward, both, step = document["rows"] if isinstance(document, dict) else document
    assert forward["kernel_ns"] == 374_100
    assert forward["timed_s"] == pytest.approx(0.0004)
    assert forward["kernel_difference_s"] == pytest.approx(-0.0000259)
    assert forward["kernel_difference_share"] == pytest.approx(-0.06475)
    assert forward["span_difference_s"] == pytest.approx(forward["span_ns"] / 1e9 - forward["timed_s"])
    assert (forward["top_name"], forward["top_instances"], forward["top_total_ns"]) == (GEMM, 7, 255_500)
    assert both["span_ns"] is both["span_difference_s"] is None
    assert (forward["same_as_forward"], step["same_as_forward"]) == (None, True)
    assert forward["profile"] == "ok"


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


def test_the_footnotes_say_what_each_time_is_of() -> None:
    notes = "\n".join(table_of(train_state()).footnotes)
    assert "kernels: the sum of the kernels' times in one profiled step" in notes
    assert "from the first kernel's start to the last one's end" in notes
    assert "profiled on NVIDIA H100 80GB HBM3, torch 2.13.0+cu130: kernels, copies and fills of the GPU" in notes
    operators = an_operator_report(a_spec(pass_="forward+backward", device="cpu"))
    assert "operators by self time" in "\n".join(table_of(a_session(*report(operators))).footnotes)


def test_a_fused_attention_has_no_softmax_of_its_own() -> None:
    groups = (a_group("flash_fwd_kernel", "other", "forward", "attention core", (2.0,)),)
    table = table_of(a_session(*report(a_kernel_report(a_spec(pass_="forward"), groups=groups))))
    assert row(table, "forward")["softmax"] == "fused"
    assert table.records[0]["softmax_share"] is None


def test_every_format_has_every_row() -> None:
    table = table_of(train_state())
    for format_ in FORMATS:
        text = render_all([unranked(table)], format_)
        rows = 1 if format_ in ("table", "latex", "typst") else 3  # these say once what all rows have
        assert text.count("sm90_xmma") + text.count(r"sm90\_xmma") >= rows, format_


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
