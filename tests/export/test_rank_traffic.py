"""Tables of communication beside compute and of all-gathers."""

from __future__ import annotations

import pytest

from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.export.kernels import kernel_tables
from tests.made_ranks import a_traffic_report


@pytest.fixture(scope="module")
def report() -> KernelReport:
    return a_traffic_report()


def test_a_row_a_rank_and_its_step_as_a_line_of_time(report: KernelReport) -> None:
    table = kernel_tables(report)[0]
    assert table.texts("overlapped_share") == ("25.0 %", "50.0 %")
    assert [record["uncovered_ns"] for record in table.records] == [3_000_000, 2_000_000]
    notes = "\n".join(table.footnotes)
    assert "rank 0 compute       " + "█" * 30 + "·" * 30 in notes
    assert "rank 1, Chrome trace, for ui.perfetto.dev: /traces/rank1.json.gz" in notes


def test_each_all_gather_ended_in_time_or_was_waited_for(report: KernelReport) -> None:
    (table,) = (table for table in kernel_tables(report) if table.caption.startswith("All-gathers"))
    assert table.texts("rank") == ("0", "0", "0", "1", "1", "1")
    assert table.texts("in_time")[:3] == ("its forward waited 1.500 ms", "ended 250.0 µs before its backward", "–")
    assert table.texts("module")[:3] == ("embedding, head", "layers.0", "–")
    assert [record["bytes"] for record in table.records[:3]] == [2_000_000, 1_000_000, None]
    assert [record["early_ns"] for record in table.records[:3]] == [None, 250_000, None]
    notes = [note for note in kernel_tables(report)[0].footnotes if note.startswith("rank 0: ")]
    assert notes[0] == (
        "rank 0: 1 of 2 all-gathers ended before the pass that uses it, passes waited 1.500 ms, 1.900 ms of "
        "all-gathers had no compute beside them"
    )
    assert notes[1] == "rank 0: 1 all-gather whose module is not known"


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
