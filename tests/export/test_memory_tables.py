"""Memory reports as tables, documents and a figure."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from cs336_tui.events.prediction import CATEGORIES
from cs336_tui.events.reports import MemoryReport
from cs336_tui.export.reports import document_of_reports
from cs336_tui.export.subjects.memory import MOST_ROWS, memory_document, memory_tables
from cs336_tui.export.subjects.memory_peaks import memory_figure, oom_table, peaks_table
from cs336_tui.export.writing.drawing import FIGURE_FORMATS
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.formats import render, render_all
from cs336_tui.export.writing.tables import Table
from tests.export.grids import MAGIC, unranked
from tests.made_memory import MB, MemoryMaker, a_memory_report, an_oom_report, many_events
from tests.samples import a_spec

REPORT = a_memory_report()


def largest_table(report: MemoryReport, min_bytes: int = 0) -> Table:
    return memory_tables(report, min_bytes=min_bytes)[2]


def every_table() -> list[Table]:
    return [peaks_table([REPORT]), *memory_tables(REPORT), oom_table(an_oom_report())]


@pytest.mark.parametrize("table", every_table(), ids=lambda table: table.label)
def test_rows_fit_their_columns_and_records_have_the_same_keys(table: Table) -> None:
    assert table.rows
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert {tuple(record) for record in table.records} == {tuple(table.records[0])}
    assert any("GB = 10⁹ bytes" in note for note in table.footnotes)


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_takes_them(format_: str) -> None:
    text = render_all(list(map(unranked, every_table())), format_)
    for words in ("softmax", "optimizer", "SoftmaxBackward0"):
        assert words in text


def test_peaks_have_a_row_for_each_context_and_precision() -> None:
    specs = [a_spec(context_length=c, precision=p) for c in (128, 512) for p in ("fp32", "bf16-mixed")]
    table = peaks_table([a_memory_report(spec=spec) for spec in specs])
    assert [(record["context"], record["precision"]) for record in table.records] == [
        (128, "fp32"), (128, "bf16-mixed"), (512, "fp32"), (512, "bf16-mixed"),
    ]  # fmt: skip
    assert table.records[0]["step_bytes"] == table.records[0]["allocator_bytes"] == REPORT.peak_bytes
    assert "301.000" in table.rows[0]
    assert "step (MB)" in [column.header for column in table.columns]


def test_peaks_are_in_gigabytes_where_they_are_that_large() -> None:
    made = MemoryMaker()
    made.allocate(46_500 * MB, "parameters")
    made.phase("forward")
    table = peaks_table([made.report()])
    assert "46.500" in table.rows[0]
    assert "step (GB)" in [column.header for column in table.columns]


def test_categories_add_up_recorded_and_predicted() -> None:
    *each, whole = memory_tables(REPORT)[1].records
    assert [record["category"] for record in each] == [*CATEGORIES]
    for key in ("forward_end_bytes", "predicted_forward_end_bytes", "peak_bytes", "predicted_peak_bytes"):
        assert sum(int(str(record[key])) for record in each) == whole[key]
    assert whole["peak_bytes"] == REPORT.peak_bytes
    assert whole["forward_end_bytes"] == REPORT.forward_end_bytes
    assert "activation peak, apart from all else: 118.000 MB recorded, 151.500 MB predicted" in (
        memory_tables(REPORT)[1].footnotes
    )
    stream = "one tensor of the residual stream: B × T × d_model × 4 bytes = 4 × 128 × 768 × 4 = 1.5 MiB"
    assert stream in memory_tables(REPORT)[1].footnotes
    assert "–" in memory_tables(a_memory_report(prediction=None))[1].rows[0]


def test_the_largest_are_above_the_level_that_is_named() -> None:
    table = largest_table(REPORT, 30 * MB)
    assert "of at least 30 MB" in table.caption
    assert [record["bytes"] for record in table.records] == [60 * MB, 40 * MB]
    assert table.records[1]["times"] == 3
    assert table.rows[0][6] == "passes.py:129 _optimizer"
    assert largest_table(REPORT, 10**12).rows == ()


def test_more_allocations_than_rows_are_counted() -> None:
    table = largest_table(many_events(2_000))
    assert len(table.rows) == MOST_ROWS
    assert any(note.startswith(f"the first {MOST_ROWS} of") for note in table.footnotes)


def test_saved_tensors_come_with_share_rest_and_sum() -> None:
    records = memory_tables(REPORT)[3].records
    assert {record["module"] for record in records} == {"layers.0 to layers.2, each"}
    *parts, whole = records
    assert len(parts) == 6
    assert sum(int(str(record["bytes"])) for record in parts) == whole["bytes"]
    assert sum(float(str(record["share"])) for record in parts) == pytest.approx(1)
    assert memory_tables(REPORT)[3].rows[-1][-1] == "100.0 %"
    assert len(memory_tables(a_memory_report(saved=()))) == len(memory_tables(REPORT)) - 1


def test_blocks_show_what_comes_and_goes_in_their_backward_beside_what_was_recorded() -> None:
    table = memory_tables(REPORT)[4]
    saved = REPORT.saved[0].bytes
    assert [record["module"] for record in table.records] == ["layers.0", "layers.1", "layers.2"]
    for record in table.records:
        assert (record["gradient_bytes"], record["saved_bytes"]) == (20 * MB, saved)
        assert record["expected_bytes"] == 20 * MB - saved
        assert record["change_bytes"] == 20 * MB - saved + 512
        assert record["difference_bytes"] == 512
        assert record["seen_gradient_bytes"] == 20 * MB + 512
        assert record["forward_bytes"] == saved
    assert table.rows[2] == (
        "layers.2", "20.000", "29.884", "-9.884", "-9.884", "512", "20.001", "280.000", "270.116", "295.000", "29.884",
    )  # fmt: skip
    assert json.loads(json.dumps(memory_document(REPORT)))["blocks"][0]["difference_bytes"] == 512
    alone = memory_tables(a_memory_report(saved=()))[-1]
    assert [record["expected_bytes"] for record in alone.records] == [None] * 3
    assert alone.rows[0][2:4] == ("–", "–")
    assert memory_document(a_memory_report(blocks=()))["blocks"] == []


def test_out_of_memory_names_the_phase_the_request_and_where_blocks_come_from() -> None:
    table = oom_table(an_oom_report())
    assert table.rows[0] == ("asked for", "2.147", "in forward")
    assert "feed-forward · transformer.py:158 forward · mm · 4×128×3072 float32" in table.rows[11][2]
    assert "what was live: seen in a second attempt" in table.footnotes
    unseen = oom_table(an_oom_report(observed=False, phase=None, request_bytes=None, capacity_bytes=None))
    assert unseen.rows[0] == ("asked for", "–", "")
    assert "what was live: predicted, not seen" in unseen.footnotes


def test_a_document_has_every_allocation_only_when_asked() -> None:
    document = json.loads(json.dumps(memory_document(REPORT)))
    assert document["peak_bytes"] == REPORT.peak_bytes == sum(document["by_category"].values())
    assert document["forward_end_bytes"] == sum(document["forward_end_by_category"].values())
    assert (document["peak_phase"], document["spec"]["pass"]) == ("optimizer", "train-step")
    assert document["saved_for_backward"][-1]["node"] == "all"
    assert "born" not in document
    whole = json.loads(json.dumps(memory_document(REPORT, arrays=True)))
    assert (whole["born"], whole["bytes"]) == ([*REPORT.born], [*REPORT.bytes])
    assert document_of_reports([an_oom_report()])["by_category"]["activations"] == 38_000 * MB


def test_notes_and_the_snapshot_stand_under_the_tables() -> None:
    text = render(memory_tables(a_memory_report(note="Only tensors are seen."))[0], "markdown")
    assert "Only tensors are seen." in text
    assert "memory-1.pickle" in text


@pytest.mark.parametrize("format_", FIGURE_FORMATS)
def test_the_figure_is_the_same_each_time(format_: str) -> None:
    data = memory_figure(REPORT).render(format_, dpi=60)
    assert data.startswith(MAGIC[format_])
    assert data == memory_figure(REPORT).render(format_, dpi=60)


def test_the_figure_names_phases_categories_and_the_peak() -> None:
    report = a_memory_report(activation_peak_bytes=12_345_678)
    root = ElementTree.fromstring(memory_figure(report).render("svg"))
    text = "\n".join("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))
    for words in (
        "live (MB)",
        "forward",
        "backward",
        "zero_grad",
        "optimizer state",
        "activations",
        "peak 301.000 MB (activations at most 12.346)",
    ):
        assert words in text
    assert memory_figure(REPORT).name == "memory-timeline-small-ctx-128-train-step-fp32-cuda-0-b4"


def test_a_long_timeline_and_one_without_events_can_be_drawn() -> None:
    assert len(memory_figure(many_events(50_000)).render("svg")) < 2_000_000
    made = MemoryMaker()
    made.allocate(MB, "parameters")
    made.phase("forward")
    assert memory_figure(made.report()).render("svg")
