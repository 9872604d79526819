"""Kernel reports as tables and as a document."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from cs336_tui.export.file_formats import FORMATS
from cs336_tui.export.formats import render, render_all
from cs336_tui.export.kernels import (
    attention_table,
    kernel_document,
    kernel_table,
    kernel_tables,
    kind_table,
    phase_table,
    range_table,
)
from cs336_tui.export.tables import Table
from tests.export.grids import unranked
from tests.made_kernels import GEMM, a_group, a_kernel_report, a_prediction_for, an_operator_report

REPORT = a_kernel_report(trace="/sessions/a/kernels.json.gz")
PREDICTED = msgspec.structs.replace(REPORT, prediction=a_prediction_for(REPORT.spec))
EMPTY = a_kernel_report(groups=())
BACKWARD_ONLY = a_kernel_report(groups=(a_group(GEMM, "matrix multiply", "backward", "head", (1.0,), backward=True),))


def cells(table: Table, first: str) -> dict[str, str]:
    """The row that begins with this, by header."""
    (row,) = (row for row in table.rows if row[0] == first)
    return dict(zip((column.header for column in table.columns), row, strict=True))


def test_the_kernel_table_has_the_columns_of_nsys_and_names_in_full() -> None:
    table = kernel_table(REPORT)
    headers = [column.header for column in table.columns]
    assert headers[:8] == [
        "Time (%)", "Total Time (ns)", "Instances", "Avg (ns)", "Med (ns)", "Min (ns)", "Max (ns)", "StdDev (ns)",
    ]  # fmt: skip
    assert headers[-1] == "Name"
    assert table.rows[0][:3] == ("62.9", "525,500", "13")
    assert table.rows[0][-1] == GEMM
    assert table.records[0]["name"] == GEMM
    assert table.records[0]["total_ns"] == 525_500
    assert table.records[0]["share"] == pytest.approx(0.629, abs=1e-3)


def test_a_kernel_table_of_a_phase_or_a_range_says_so() -> None:
    table = kernel_table(REPORT, "backward", "softmax")
    assert "backward, softmax" in table.caption
    assert [(record["phase"], record["range"]) for record in table.records] == [("backward", "softmax")]
    together = kernel_table(REPORT, ("forward", "backward"))
    assert {record["phase"] for record in together.records} == {"forward+backward"}


def test_phases_show_the_matmul_share_and_the_top_kernel_with_its_count_per_forward() -> None:
    table = phase_table(REPORT)
    assert [row[0] for row in table.rows] == ["forward", "loss", "backward", "optimizer", "forward+backward", "step"]
    forward = cells(table, "forward")
    assert forward["matrix multiply"] == "75.0 %"
    assert forward["top kernel"] == "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32"
    assert (forward["its share"], forward["its instances"], forward["per forward"]) == ("68.3 %", "7", "7")
    assert cells(table, "step")["matrix multiply"] == "71.9 %"
    assert table.records[-1]["total_ns"] == REPORT.total_ns


def test_kinds_show_every_phase_side_by_side() -> None:
    table = kind_table(REPORT)
    matmul = cells(table, "matrix multiply")
    assert (matmul["forward"], matmul["forward+backward"], matmul["step"]) == ("75.0 %", "82.8 %", "71.9 %")
    assert cells(table, "optimizer")["forward"] == "–"
    assert sum(record["step_ns"] for record in table.records) == REPORT.total_ns  # type: ignore[misc]


def test_ranges_show_forward_backward_and_both() -> None:
    table = range_table(REPORT)
    head = cells(table, "head")
    assert (head["forward (ms)"], head["backward (ms)"], head["both (ms)"]) == ("0.052", "0.104", "0.156")
    assert table.rows[-1][0] == "(no range)"
    assert sum(record["total_ns"] for record in table.records) == REPORT.total_ns  # type: ignore[misc]


def test_attention_shows_time_and_flops_side_by_side() -> None:
    forward = cells(attention_table(PREDICTED), "forward")
    assert forward == {
        "phase": "forward",
        "matmul (ms)": "0.025",
        "softmax (ms)": "0.011",
        "softmax / matmul time": "0.44",
        "matmul FLOPs": "2.00M",
        "softmax FLOPs": "50.0k",
        "softmax / matmul FLOPs": "0.025",
    }
    without = cells(attention_table(REPORT), "backward")
    assert (without["matmul FLOPs"], without["softmax / matmul FLOPs"]) == ("n/a", "n/a")


def test_tables_say_what_was_counted_where_and_how_much_of_it_is_known() -> None:
    table = phase_table(REPORT)
    assert "NVIDIA H100 80GB HBM3, torch 2.13.0+cu130" in table.caption
    assert REPORT.spec.title in table.caption
    notes = "\n".join(table.footnotes)
    assert "39 launches" in notes
    assert "98.9 % of the time is in a named range" in notes
    assert "GPU idle: 10.0 %" in notes
    assert "/sessions/a/kernels.json.gz" in notes
    explained = kernel_table(msgspec.structs.replace(REPORT, note="No kernel could be seen."))
    assert "No kernel could be seen." in explained.footnotes


def test_a_host_has_operators_and_no_idle_share() -> None:
    table = phase_table(an_operator_report())
    notes = "\n".join(table.footnotes)
    assert "operators by self time" in notes
    assert "idle" not in notes
    assert "top operator" in [column.header for column in table.columns]


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("report", [PREDICTED, an_operator_report(), BACKWARD_ONLY, EMPTY])
def test_every_report_renders_in_every_format(report: object, format_: str) -> None:
    assert render_all(kernel_tables(report), format_)  # type: ignore[arg-type]


def test_records_of_a_table_have_the_same_keys_and_labels_differ() -> None:
    tables = kernel_tables(PREDICTED)
    for table in tables:
        assert len({tuple(record) for record in table.records}) == 1
        assert len(table.records) == len(table.rows)
        assert len({record["table"] for record in table.records}) == 1
    assert len({table.label for table in tables}) == len(tables)


def test_names_survive_markup() -> None:
    assert r"CUDAFunctor_add\<float\>" in render(kernel_table(REPORT), "markdown")
    assert GEMM.replace("_", r"\_") in render(unranked(kernel_table(REPORT)), "latex").replace("-{}-", "--")


def test_latex_leaves_out_what_a_page_has_no_room_for_and_names_it() -> None:
    text = render(kernel_table(REPORT), "latex")
    assert GEMM.replace("_", r"\_") not in text.replace("-{}-", "--")
    assert re.search(r"columns left out to fit the page: .*Name", text)


def test_the_document_is_plain_data_that_agrees_with_the_report() -> None:
    document = json.loads(json.dumps(kernel_document(PREDICTED)))
    assert document["total_ns"] == REPORT.total_ns
    assert sum(row["total_ns"] for row in document["kernels"]) == REPORT.total_ns
    assert sum(group["total_ns"] for group in document["groups"]) == REPORT.total_ns
    assert document["matmul_shares"]["full_step"] == pytest.approx(0.719, abs=1e-3)
    assert document["attention"][0]["flop_ratio"] == pytest.approx(0.025)
    assert document["spec"]["pass"] == "train-step"


def test_attention_that_nothing_names_has_no_numbers_and_says_what_names_it() -> None:
    group = a_group("aten::bmm", "matrix multiply", "forward", "attention rest", (4.0,))
    table = attention_table(a_kernel_report(groups=(group,)))
    assert cells(table, "forward")["matmul FLOPs"] == "n/a"
    note = 'attention\'s parts are unnamed; use --annotate "attention core=package.module:function"'
    assert note in table.footnotes
    assert note not in attention_table(REPORT).footnotes


def test_fused_attention_prints_fused_in_place_of_times() -> None:
    group = a_group("flash_fwd", "other", "forward", "attention core", (4.0,))
    table = attention_table(a_kernel_report(groups=(group,), prediction=a_prediction_for(REPORT.spec)))
    forward = cells(table, "forward")
    assert (forward["matmul (ms)"], forward["softmax (ms)"], forward["softmax / matmul time"]) == (
        "fused",
        "fused",
        "n/a",
    )
    assert forward["softmax FLOPs"] == "50.0k"
    assert any(note.startswith("fused: ") for note in table.footnotes)
    (record,) = table.records
    assert record["matmul_ns"] is None
    assert not any(note.startswith("fused: ") for note in attention_table(REPORT).footnotes)
