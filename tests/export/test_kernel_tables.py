"""Kernel reports as tables and as a document."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from cs336_tui.export.subjects.kernels import (
    attention_table,
    kernel_document,
    kernel_table,
    kernel_tables,
)
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.formats import render, render_all
from cs336_tui.export.writing.tables import Table
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


def test_a_kernel_table_of_a_phase_or_a_range_says_so() -> None:
    table = kernel_table(REPORT, "backward", "softmax")
    assert "backward, softmax" in table.caption
    assert [(record["phase"], record["range"]) for record in table.records] == [("backward", "softmax")]
    together = kernel_table(REPORT, ("forward", "backward"))
    assert {record["phase"] for record in together.records} == {"forward+backward"}


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


def test_the_note_of_a_report_is_a_footnote() -> None:
    explained = kernel_table(msgspec.structs.replace(REPORT, note="No kernel could be seen."))
    assert "No kernel could be seen." in explained.footnotes


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
