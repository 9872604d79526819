"""Two profiles kernel by kernel."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.export.subjects.kernels import kernel_pairs, pairs_table
from cs336_tui.session.recordings import chrome
from cs336_tui.session.recordings.recording import Opening
from tests.session.recordings.made_traces import launch, op, trace_of, write


def report_of(folder: Path, name: str, **kernels: list[float]) -> KernelReport:
    """A trace with these kernels, each with the times of its launches in µs."""
    events, at = [], 0
    for kernel, durations in kernels.items():
        for duration in durations:
            at += 100
            events += [op("aten::mm", at, 10), *launch(kernel, at, at + 1, at + 20, duration)]
    (cell,) = chrome.read(write(folder / name, trace_of(events)), Opening(), name)
    assert isinstance(cell.report, KernelReport)
    return cell.report


def test_each_kernel_stands_beside_itself_and_the_largest_difference_first(tmp_path: Path) -> None:
    a = report_of(tmp_path, "a.json", gemm=[10, 12], softmax=[5], gone=[1])
    b = report_of(tmp_path, "b.json", gemm=[6, 6], softmax=[5.5], new=[40])
    found = [(p.name, p.a_ns, p.a_instances, p.b_ns, p.b_instances, p.ratio) for p in kernel_pairs(a, b)]
    assert found == [
        ("new", 0, 0, 40_000, 1, None),
        ("gemm", 22_000, 2, 12_000, 2, 12 / 22),
        ("gone", 1_000, 1, 0, 0, None),
        ("softmax", 5_000, 1, 5_500, 1, 1.1),
    ]


def test_the_last_row_is_all_of_them(tmp_path: Path) -> None:
    a, b = report_of(tmp_path, "a.json", gemm=[10, 12]), report_of(tmp_path, "b.json", gemm=[6], add=[3])
    table = pairs_table(a, b)
    assert table.caption == "Kernels of A (a.json · cpu) and B (b.json · cpu)".replace("cpu", "cuda:0")
    assert table.records[-1]["difference_ns"] == b.total_ns - a.total_ns == -13_000
    assert table.rows[-1] == ("", "all", "0.022", "2", "0.009", "2", "-0.013", "0.409")
    rows = table.records[:-1]
    assert sum(int(str(row["a_instances"])) for row in rows) == a.launches
    assert sum(int(str(row["b_ns"])) for row in rows) == b.total_ns


def test_the_same_profile_twice_differs_in_nothing(tmp_path: Path) -> None:
    a = report_of(tmp_path, "a.json", gemm=[10, 12], softmax=[5])
    again = msgspec.structs.replace(a)
    assert {(pair.difference_ns, pair.ratio) for pair in kernel_pairs(a, again)} == {(0, 1.0)}
