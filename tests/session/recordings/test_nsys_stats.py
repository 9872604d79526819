"""CSV of nsys stats, of several versions and units, against what stands in it."""

import csv
import gzip
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cs336_tui.analysis import kernels
from cs336_tui.export.subjects.kernels import kernel_document, kernel_table, kernel_tables
from cs336_tui.session.recordings import nsys_stats, recording
from cs336_tui.session.recordings.recording import Opening, OpeningCancelled
from tests.session.recordings.recordings import cells_if_any, cells_of, refusal, report_of

GEMM, COPY = "void gemm<float, 4>(float*, int)", "[CUDA memcpy Host-to-Device]"

TRACE = """\
Generating SQLite file report.sqlite from report.nsys-rep
Processing [report.sqlite] with [/opt/nsys/reports/cuda_gpu_trace.py]...

 ** CUDA GPU Trace (cuda_gpu_trace):

Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),Throughput \
(MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name
1000,52,101,,,,,,,,,,8.389,167.0,Pageable,Device,"NVIDIA H100, 80GB (1)",1,,7,[CUDA memcpy Host-to-Device]
2000,4301,102,64,64,1,256,1,1,64,0.001,0.000,,,,,"NVIDIA H100, 80GB (1)",1,,7,"void gemm<float, 4>(float*, int)"
7000,99,103,64,64,1,256,1,1,64,0.001,0.000,,,,,"NVIDIA H100, 80GB (1)",1,,7,add
8000,4299,104,64,64,1,256,1,1,64,0.001,0.000,,,,,"NVIDIA H100, 80GB (1)",1,,7,"void gemm<float, 4>(float*, int)"
"""
SUMS = """\
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
 98.9,8600,2,4300.0,4300.0,4299,4301,1.4,"void gemm<float, 4>(float*, int)"
 1.1,99,1,99.0,99.0,99,99,0.0,add
"""


def stats(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "stats.csv"


def test_every_launch_of_a_trace_is_there(file: Path) -> None:
    (cell,) = cells_of(stats(file, TRACE))
    report = cell.report
    assert {group.name: group.durations_ns for group in report.groups} == {GEMM: (4301, 4299), "add": (99,)}
    assert {group.name: group.durations_ns for group in report.copies} == {COPY: (52,)}
    assert (report.launches, report.total_ns, report.span_ns) == (3, 8699, 8000 + 4299 - 1000)
    assert (report.spec.device, cell.facts.label) == ("cuda:1", "NVIDIA H100, 80GB")


@pytest.mark.parametrize(("unit", "factor"), [("nsec", 1), ("us", 10**3), ("μs", 10**3), ("ms", 10**6), ("s", 10**9)])
def test_times_are_exact_in_every_unit(file: Path, unit: str, factor: int) -> None:
    durations = (1, 41_280, 999_999_999, 123_456_789_012)
    lines = [f"0,{duration / factor:.9f},k" for duration in durations]
    report = report_of(stats(file, "\n".join([f"Start({unit}),Duration({unit}),Name", *lines])))
    assert report.groups[0].durations_ns == durations


def test_tables_of_totals_show_the_files_figures(file: Path) -> None:
    report = report_of(stats(file, SUMS))
    table = kernel_table(report)
    keys = ("share", "total_ns", "instances", "avg_ns", "med_ns", "min_ns", "max_ns", "std_ns", "name")
    shown = [[row[key].strip() for key in map([c.key for c in table.columns].index, keys)] for row in table.rows]
    _, *wanted = csv.reader(io.StringIO(SUMS))
    assert [[text.replace(",", "") for text in row[:-1]] for row in shown] == [
        [t.strip() for t in row[:-1]] for row in wanted
    ]
    assert [row[-1] for row in shown] == [row[-1] for row in wanted]
    assert "StdDev: as nsys stats counted it" in table.footnotes[0]


def test_nothing_is_made_up_of_totals(file: Path) -> None:
    report = report_of(stats(file, SUMS))
    document = kernel_document(report)
    assert (document["launches"], document["total_ns"]) == (3, 8699)
    assert all(document[key] is None for key in ("span_ns", "busy_ns", "idle_share", "launches_per_s", "gaps"))
    assert {phase["span_ns"] for phase in document["phases"]} == {None}
    assert "no single launches" in report.note
    assert not [table.label for table in kernel_tables(report) if table.label.startswith("kernel-ranges")]
    (unnamed,) = kernels.by_range(report)
    assert (unnamed.total_ns, unnamed.forward_ns, unnamed.backward_ns) == (8699, None, None)


def test_totals_of_one_name_and_several_grids_are_added_and_the_rest_is_unknown(file: Path) -> None:
    """nsys stats --report cuda_gpu_kern_gb_sum."""
    text = (
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),GridXYZ,BlockXYZ,Name\n"
        "60.0,600,2,300.0,300.0,250,350,70.7, 896    1    1, 256    1    1,k\n"
        "40.0,400,1,400.0,400.0,400,400,0.0, 1    1    1, 256    1    1,k\n"
    )
    (row,) = kernels.rows(report_of(stats(file, text)))
    assert (row.total_ns, row.instances, row.min_ns, row.max_ns) == (1000, 3, 250, 400)
    assert (row.avg_ns, row.med_ns, row.std_ns) == (pytest.approx(1000 / 3), None, None)


def test_old_headers_and_missing_columns_are_read(file: Path) -> None:
    text = "Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name\n100,10,2,5,4,6,k"
    (row,) = kernels.rows(report_of(stats(file, text)))
    assert (row.avg_ns, row.med_ns, row.min_ns, row.max_ns, row.std_ns) == (5.0, None, 4, 6, None)


def test_of_a_file_with_launches_and_totals_the_launches_count(file: Path) -> None:
    report = report_of(stats(file, f"{SUMS}\nProcessing [report.sqlite] with [cuda_gpu_trace.py]...\n{TRACE}"))
    assert (report.launches, report.total_ns) == (3, 8699)
    assert all(group.summary is None for group in report.groups)


def test_reports_follow_each_other_without_an_empty_line_too(file: Path) -> None:
    assert [cell.report.total_ns for cell in cells_of(stats(file, SUMS + SUMS))] == [8699] * 2


def test_a_summary_with_copies_keeps_them_apart(file: Path) -> None:
    """nsys stats --report cuda_gpu_sum."""
    text = (
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Category,Operation\n"
        "90.0,900,1,900.0,900.0,900,900,0.0,CUDA_KERNEL,k\n"
        "10.0,100,2,50.0,50.0,50,50,0.0,MEMORY_OPER,[CUDA memset]\n"
    )
    report = report_of(stats(file, text))
    assert (report.launches, report.total_ns, [group.name for group in report.copies]) == (1, 900, ["[CUDA memset]"])


PACKED = gzip.compress(SUMS.encode(), mtime=0)


@pytest.mark.parametrize(
    "data", [*(SUMS.replace("\n", "\r\n").encode(encoding) for encoding in ("utf-8-sig", "utf-16")), PACKED]
)
def test_text_of_windows_and_compressed_text_is_read(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    assert report_of(file).total_ns == 8699


def test_compressed_text_that_is_cut_is_refused(file: Path) -> None:
    file.write_bytes(PACKED[:-12])
    assert "cut or broken" in refusal(file)


def test_a_bomb_is_refused_before_it_fills_the_memory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "INFLATED", 1 << 16)
    file.write_bytes(gzip.compress(HEAD.encode() + b"1,2,3,k\n" * 200_000))
    assert "too large to be read: more lines" in refusal(file)
    monkeypatch.setattr(nsys_stats, "MOST_BYTES", 100)
    assert "too large: of a CSV" in refusal(stats(file, TRACE)), "unread"


def test_times_whose_sum_would_overflow_are_refused(file: Path) -> None:
    lines = SUMS.splitlines()
    row = ",".join(["100.0", "2000000000000000000", *lines[1].split(",")[2:]])
    assert "longer than a century" in refusal(stats(file, "\n".join([lines[0], *[row] * 30])))


def test_tabs_separate_too(file: Path) -> None:
    assert report_of(stats(file, "Start (ns)\tDuration (ns)\tName\n1\t1,234\tk")).total_ns == 1234


HEAD = "Start (ns),Duration (ns),CorrId,Name\n"


TIMES = ("x", "-2", "nan", "inf", "1e30", "1e999999999")
ROWS = ("1,2,3,[CUDA memset]", "1,2", *(f"1,{time},3,k" for time in TIMES))


@pytest.mark.parametrize(
    "text",
    [
        "Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n100,5,1,5,cudaMalloc\n",
        "a,b,c\n1,2,3\n",
        *(HEAD + row for row in ("", *ROWS, '1,2,3,"' + "k" * 200_000)),
        "Total Time (ns),Instances,Name\n5,2000000000000000000,k\n",
        "Start (fortnights),Duration (fortnights),Name\n1,2,k",
        SUMS.splitlines()[0] + "\n1,2\n",
    ],
)
def test_what_is_no_such_report_is_refused_in_one_line(file: Path, text: str) -> None:
    assert refusal(stats(file, text))


@given(st.text(max_size=200), st.integers(0, 500))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_after_a_header_opens_or_is_refused(tmp_path: Path, text: str, place: int) -> None:
    path = tmp_path / "any.csv"
    for content in (HEAD + text, SUMS[:place] + text + SUMS[place:]):
        path.write_bytes(content.encode("utf-8", "replace"))
        cells_if_any(path)


def test_reading_can_be_cancelled(file: Path) -> None:
    def cancel(done: int, total: int) -> None:
        assert 0 < done <= total
        raise OpeningCancelled

    with pytest.raises(OpeningCancelled):
        cells_of(stats(file, HEAD + "1,2,3,k\n" * 10_000), Opening(cancel))
