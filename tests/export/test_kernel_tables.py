"""Kernel reports as tables and as a document; two profiles kernel by kernel; communication of ranks; kernels of all
cells."""

import json
from pathlib import Path

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.kernel_cells import kernel_cells
from cs336_tui.analysis.merge import merge
from cs336_tui.config.spec import recorded_spec
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.export.reports import report_sections, report_tables
from cs336_tui.export.subjects.kernel_cells import kernel_cells_table
from cs336_tui.export.subjects.kernels import (
    attention_table,
    kernel_document,
    kernel_table,
    kernel_tables,
    pairs_table,
)
from cs336_tui.export.subjects.results import results_of
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.formats import render_all
from cs336_tui.export.writing.tables import Table
from cs336_tui.session.state import SessionState
from tests.analysis.test_kernel_cells import TRAIN, a_session, report, train_state
from tests.export.keeping import kept
from tests.made_kernels import GEMM, STEP, a_group, a_kernel_report, a_prediction_for, an_operator_report
from tests.made_ranks import a_traffic_report
from tests.samples import a_spec
from tests.session.made import Cell, cell
from tests.session.recordings import recordings
from tests.session.recordings.made_traces import launch, op, trace_of, write

REPORT = a_kernel_report(trace="/sessions/a/kernels.json.gz")
PREDICTED = msgspec.structs.replace(REPORT, prediction=a_prediction_for(REPORT.spec))
EMPTY = a_kernel_report(groups=())
BACKWARD_ONLY = a_kernel_report(groups=(a_group(GEMM, "matrix multiply", "backward", "head", (1.0,), backward=True),))


def test_a_kernel_table_of_a_phase_or_a_range_says_so_and_the_note_of_a_report_is_a_footnote() -> None:
    table = kernel_table(msgspec.structs.replace(REPORT, note="No kernel could be seen."), "backward", "softmax")
    assert "backward, softmax" in table.caption
    assert [(record["phase"], record["range"]) for record in table.records] == [("backward", "softmax")]
    assert "No kernel could be seen." in table.footnotes
    together = kernel_table(REPORT, ("forward", "backward"))
    assert {record["phase"] for record in together.records} == {"forward+backward"}


@pytest.mark.parametrize("report", [an_operator_report(), BACKWARD_ONLY, EMPTY])
def test_every_report_renders_in_every_format(report: KernelReport) -> None:
    assert all(render_all(kernel_tables(report), format_) for format_ in FORMATS)


def test_records_of_a_table_have_the_same_keys_and_labels_differ() -> None:
    tables = kernel_tables(PREDICTED)
    for table in tables:
        assert len({tuple(record) for record in table.records}) == 1
        assert len(table.records) == len(table.rows)
        assert len({record["table"] for record in table.records}) == 1
    assert len({table.label for table in tables}) == len(tables)


def test_the_document_is_plain_data_that_agrees_with_the_report() -> None:
    document = json.loads(json.dumps(kernel_document(PREDICTED)))
    assert document["total_ns"] == REPORT.total_ns
    assert sum(row["total_ns"] for row in document["kernels"]) == REPORT.total_ns
    assert sum(group["total_ns"] for group in document["groups"]) == REPORT.total_ns
    assert document["matmul_shares"]["full_step"] == pytest.approx(0.719, abs=1e-3)
    assert document["attention"][0]["flop_ratio"] == pytest.approx(0.025)
    assert document["spec"]["pass"] == "train-step"


def test_attention_that_nothing_names_says_what_names_it_and_that_of_a_fused_kernel_is_not_parted(
    snapshot: SnapshotAssertion,
) -> None:
    unnamed = a_group("aten::bmm", "matrix multiply", "forward", "attention rest", (4.0,))
    fused = a_group("flash_fwd", "other", "forward", "attention core", (4.0,))
    predicted = a_kernel_report(groups=(fused,), prediction=a_prediction_for(REPORT.spec))
    assert kept(*map(attention_table, (a_kernel_report(groups=(unnamed,)), predicted, REPORT))) == snapshot


def report_of(folder: Path, name: str, **kernels: list[float]) -> KernelReport:
    """A trace with these kernels, each with the times of its launches in µs."""
    events, at = [], 0
    for kernel, durations in kernels.items():
        for duration in durations:
            at += 100
            events += [op("aten::mm", at, 10), *launch(kernel, at, at + 1, at + 20, duration)]
    return recordings.report_of(write(folder / name, trace_of(events)))


def test_each_kernel_stands_beside_itself_the_largest_difference_first_and_all_of_them_last(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    a = report_of(tmp_path, "a.json", gemm=[10, 12], softmax=[5], gone=[1])
    b = report_of(tmp_path, "b.json", gemm=[6, 6], softmax=[5.5], new=[40])
    assert kept(pairs_table(a, b)) == snapshot


def test_notes_say_what_counts_on_this_backend() -> None:
    of_nccl, of_gloo = (
        kernel_tables(a_traffic_report(communication_ns=0, operations={}, backend=backend))[0].footnotes[1]
        for backend in ("nccl", "gloo")
    )
    assert of_nccl.startswith("communication: kernels between GPUs, NCCL's and others; compute: kernels that only")
    assert of_gloo.startswith("communication: gloo's operations; compute: ")


def test_without_all_gathers_there_is_no_table_of_them() -> None:
    captions = [table.caption for table in kernel_tables(a_traffic_report(all_gathers=()))]
    assert "Communication of each rank" in captions[0]
    assert not any("All-gathers" in caption for caption in captions)


def table_of(*states: SessionState) -> Table:
    return kernel_cells_table(kernel_cells(states, merge([("one", state) for state in states])))


def test_a_row_says_what_was_profiled_what_was_timed_and_the_difference_of_both(snapshot: SnapshotAssertion) -> None:
    operators = a_session(*report(an_operator_report(a_spec(pass_="forward+backward", device="cpu"))))
    assert kept(table_of(train_state()), table_of(operators)) == snapshot


def test_cells_without_a_profile_fused_attention_and_recordings(snapshot: SnapshotAssertion) -> None:
    """Dashes and why; attention that has no softmax of its own; files in place of choices that nobody knows."""
    cells = [cell([0.1], pass_="forward"), Cell(TRAIN, status="oom"), cell([0.1], pass_="backward")]
    of_forward = a_kernel_report(cells[0].spec, groups=tuple(group for group in STEP if group.phase == "forward"))
    lost = a_session(*report(of_forward), *report(None, TRAIN, error="no room"), cells=cells)
    fused = (a_group("flash_fwd_kernel", "other", "forward", "attention core", (2.0,)),)
    spec = recorded_spec("a.json.gz", "cuda:0")
    recorded = report(a_kernel_report(spec))
    states = (
        lost,
        a_session(*report(a_kernel_report(a_spec(pass_="forward"), groups=fused))),
        a_session(*recorded),
        a_session(*recorded, *report(a_kernel_report(TRAIN)), cells=[Cell(TRAIN)]),
    )
    tables = [table_of(state) for state in states]
    assert {record["profile"] for record in tables[0].records} == {"ok", "oom", "none"}
    assert tables[1].records[0]["softmax_share"] is None
    assert kept(*tables) == snapshot


def test_it_is_a_report_of_the_session_and_in_its_summary() -> None:
    state = train_state()
    tables = report_tables([state], results_of(state))
    assert list(tables)[:2] == ["kernels", "kernels-over-cells"]
    assert "Kernels over cells" in dict(report_sections([state], results_of(state)))
    plain = a_session(cells=[cell([0.1])])
    assert "kernels-over-cells" not in report_tables([plain], results_of(plain))
