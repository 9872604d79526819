"""Tables of communication beside compute and of all-gathers."""

from __future__ import annotations

from cs336_tui.export.subjects.kernels import kernel_tables
from tests.made_ranks import a_traffic_report


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
