"""nsys reports: exports of several versions made by hand, hostile databases, and nsys itself run as a stand-in."""

import gzip
import os
import re
import sqlite3
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cs336_tui.analysis.kernel_cells import profiled
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.session.recordings.recording import Opening, OpeningCancelled
from tests.session.recordings import nsys_exports as made
from tests.session.recordings.nsys_exports import A_STEP, PID, call, export, kernel, nvtx
from tests.session.recordings.recordings import cells_if_any, cells_of, refusal, report_of

Groups = list[tuple[str, str, str, str, bool, tuple[int, ...]]]


def groups(report: KernelReport) -> Groups:
    return [(g.name, g.op, g.phase, g.range, g.backward, g.durations_ns) for g in report.groups]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "report.sqlite"


def test_kernels_have_their_times_operators_phases_and_ranges_and_the_device_is_told(file: Path) -> None:
    (cell,) = cells_of(export(file, A_STEP))
    assert (cell.report.spec.device, cell.facts) == ("cuda:0", ("NVIDIA H100 80GB HBM3", 85_000_000_000, "9.0"))
    report = report_of(file)
    assert not [path for group in report.groups for path in group.path if "nccl" in path], "no range of the user"
    assert (report.launches, report.total_ns) == (4, 1050)
    gemm, add = "void gemm<float>(int)", "void add<float>()"
    assert groups(report) == [
        (gemm, "aten::mm", "forward", "attention", False, (300,)),
        (add, "aten::add", "forward", "step 3", False, (50,)),
        (gemm, "aten::mm", "backward", "attention", True, (600,)),  # by the sequence of its forward
        (add, "", "optimizer", "warm", False, (100,)),
    ]
    assert [(g.name, g.kind, g.durations_ns) for g in report.copies] == [
        ("[CUDA memcpy Host-to-Device]", "copy", (100,)),
        ("[CUDA memset]", "copy", (10,)),
    ]


def test_figures_of_ten_steps_are_those_of_one(file: Path) -> None:
    """Each with a forward that launches two kernels, the last twice as slow."""
    rows: dict[str, list[Any]] = {table: [] for table in A_STEP if "KERNEL" in table or "RUNTIME" in table}
    rows |= {"StringIds": made.strings(made.TEXTS), "NVTX_EVENTS": []}
    for step in range(10):
        at, took = 1000 * step, 200 if step == 9 else 100
        rows["NVTX_EVENTS"].append(nvtx(at, at + 900, "forward"))
        for place in (1, 2):
            rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append(call(at + 5 * place, 2 * step + place))
            begin = at + 210 * place
            rows["CUPTI_ACTIVITY_KIND_KERNEL"].append(kernel(begin, begin + took, 2 * step + place))
    forward = profiled(report_of(export(file, rows)), "forward")
    assert (forward.times, forward.instances, forward.kernel_ns) == ("10 × forward", 2, 220)
    assert (forward.top and forward.top.instances, forward.span_ns) == (2, 320)


def test_an_old_version_without_processes_domains_and_registered_texts_is_read(file: Path) -> None:
    rows = {
        **A_STEP,
        "CUPTI_ACTIVITY_KIND_KERNEL": made.without(
            A_STEP["CUPTI_ACTIVITY_KIND_KERNEL"], "globalPid", "contextId", "gridX"
        ),
        "NVTX_EVENTS": made.without([row for row in A_STEP["NVTX_EVENTS"] if row["text"]], "domainId", "textId"),
    }
    del rows["CUPTI_ACTIVITY_KIND_MEMCPY"], rows["CUPTI_ACTIVITY_KIND_MEMSET"]
    found = groups(report_of(export(file, rows, made.OLD)))
    assert [(op, phase, backward, times) for _, op, phase, _, backward, times in found] == [
        ("aten::mm", "forward", False, (300,)),
        ("aten::add", "forward", False, (50,)),
        ("aten::mm", "backward", True, (600,)),
        ("", "optimizer", False, (100,)),
    ]


@pytest.mark.parametrize("table", [table for table in A_STEP if table != "CUPTI_ACTIVITY_KIND_KERNEL"])
def test_every_other_table_may_be_missing(file: Path, table: str) -> None:
    report = report_of(export(file, {name: rows for name, rows in A_STEP.items() if name != table}))
    assert (report.launches, report.total_ns) == (4, 1050)


def test_kernels_without_launching_calls_are_counted_without_an_operator(file: Path) -> None:
    rows = {name: A_STEP[name] for name in ("StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS")}
    report = report_of(export(file, rows))
    assert {group.op for group in report.groups} == {""}
    assert "4 of 4 kernels have no launching operator" in report.note


def test_calls_of_the_driver_link_kernels_too(file: Path) -> None:
    rows = dict(A_STEP)
    rows["CUPTI_ACTIVITY_KIND_DRIVER"] = rows.pop("CUPTI_ACTIVITY_KIND_RUNTIME")
    schema = {**made.NEW, "CUPTI_ACTIVITY_KIND_DRIVER": made.NEW["CUPTI_ACTIVITY_KIND_RUNTIME"]}
    report = report_of(export(file, rows, schema))
    assert [group.op for group in report.groups] == ["aten::mm", "aten::add", "aten::mm", ""]


def test_processes_and_devices_are_cells_of_their_own(file: Path) -> None:
    """Both processes use the same correlations; the second one has no range."""
    rows = {
        **A_STEP,
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            kernel(10, 20, 1), kernel(20, 50, 2, deviceId=1), kernel(10, 14, 1, "add", pid=PID + 1)
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [call(100, 1), call(105, 2), call(100, 1, pid=PID + 1)],
    }  # fmt: skip
    found = cells_of(export(file, rows))
    reports = [cell.report for cell in found if isinstance(cell.report, KernelReport)]
    assert [(report.spec.recording, report.spec.device, report.total_ns) for report in reports] == [
        (f"report.sqlite, process {PID}", "cuda:0", 10),
        (f"report.sqlite, process {PID}", "cuda:1", 30),
        (f"report.sqlite, process {PID + 1}", "cuda:0", 4),
    ]
    assert [group.op for report in reports for group in report.groups] == ["aten::mm", "aten::mm", ""]


def test_numbers_and_times_are_those_that_sqlite_counts(file: Path) -> None:
    kernels = [kernel(7 * place, 7 * place + place % 11, place, ("gemm", "add")[place % 2]) for place in range(5000)]
    export(file, {"StringIds": made.strings(made.TEXTS), "CUPTI_ACTIVITY_KIND_KERNEL": kernels})
    with closing(sqlite3.connect(file)) as base:
        (counted,) = base.execute("SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL")
    report = report_of(file)
    assert (report.launches, report.total_ns) == counted


def test_graphs_that_were_recorded_as_a_whole_are_told(file: Path) -> None:
    graph = {"start": 1, "end": 9, "deviceId": 0, "correlationId": 5}
    report = report_of(export(file, {**A_STEP, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [graph, graph]}))
    assert "2 launches of CUDA graphs not taken apart" in report.note
    alone = export(file.with_name("graphs.sqlite"), {"CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [graph]})
    assert "--cuda-graph-trace=node" in refusal(alone)


def test_a_report_without_kernels_says_how_to_record_them_and_a_compressed_one_that_it_is_unpacked(file: Path) -> None:
    rows: Mapping[str, Any] = {"NVTX_EVENTS": [nvtx(1, 2, "forward")], "CUPTI_ACTIVITY_KIND_RUNTIME": [call(1, 1)]}
    assert "--trace=cuda,nvtx" in refusal(export(file, rows))
    file.write_bytes(gzip.compress(file.read_bytes()))
    assert "unpacked" in refusal(file)


# Hostile and damaged databases.


def written(path: Path, script: str) -> Path:
    with closing(sqlite3.connect(path)) as base, base:
        base.executescript(script)
    return path


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start, x AS end FROM n"


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE t (a)",
        f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {ENDLESS}",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT)",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end); INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ('x', 1)",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end);INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1e300, 1)",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (-9223372036854775808, 9223372036854775807)",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end AS (length(hex(zeroblob(1000)))), a);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2)",
        "CREATE TABLE StringIds (id, value); CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end);"
        "INSERT INTO StringIds VALUES (1, zeroblob(2000000))",
        "CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING fts5(start, end)",
    ],
)
def test_what_is_no_report_is_refused_in_one_line(file: Path, script: str) -> None:
    assert refusal(written(file, script))


def test_odd_values_do_not_matter(file: Path) -> None:
    odd = kernel(1, 5, 1) | {"deviceId": "x", "streamId": -4, "demangledName": 10**12, "shortName": b"\xff"}
    ranges = [nvtx(1, 2, b"\xff\xfe"), nvtx(1, 2, "x", tid=0), nvtx(1, 2, "y") | {"globalTid": "z"}]  # type: ignore[arg-type]
    rows = {"StringIds": [], "CUPTI_ACTIVITY_KIND_KERNEL": [odd], "NVTX_EVENTS": ranges}
    report = report_of(export(file, rows))
    assert groups(report) == [("(unnamed kernel)", "", "", "", False, (4,))]


def test_opening_leaves_the_file_and_its_folder_as_they_were(file: Path) -> None:
    export(file, A_STEP)
    before = file.read_bytes()
    file.chmod(stat.S_IRUSR)
    report_of(file)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


@given(st.integers(0, 2**16), st.binary(min_size=1, max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_or_cut_database_opens_or_is_refused(tmp_path: Path, place: int, change: bytes) -> None:
    whole = tmp_path / "whole.sqlite"
    if not whole.exists():
        export(whole, A_STEP)
    data = bytearray(whole.read_bytes())
    place %= len(data) - len(change)
    data[place : place + len(change)] = change
    for content in (data, data[:place]):
        damaged = tmp_path / "damaged.sqlite"
        damaged.write_bytes(content)
        cells_if_any(damaged)


@pytest.mark.parametrize("text", [b"CUPTI_ACTIVITY_KIND_KERNEL", b"CREATE TABLE", b"StringIds", b"INTEGER", b"start"])
def test_bytes_that_are_no_text_anywhere_in_a_database_open_or_are_refused(file: Path, text: bytes) -> None:
    """SQLite's own message then has them, too."""
    data = export(file, A_STEP).read_bytes()
    places = [found.start() for found in re.finditer(re.escape(text), data)]
    assert places
    for place in places:
        for at in (place - 1, place, place + len(text) // 2, place + len(text)):
            file.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
            cells_if_any(file)


def test_reading_can_be_cancelled(file: Path) -> None:
    seen: list[tuple[int, int]] = []

    def watch(done: int, total: int) -> None:
        seen.append((done, total))
        if done:
            raise OpeningCancelled

    rows = {"StringIds": made.strings(made.TEXTS), "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 2, 1)] * 30_000}
    export(file, rows)
    with pytest.raises(OpeningCancelled):
        cells_of(file, Opening(watch))
    assert seen[-1][1] == file.stat().st_size
    assert 0 < seen[-1][0] <= seen[-1][1]


# nsys itself.


def stand_in(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program named nsys, alone on PATH."""
    folder.mkdir()
    program = folder / "nsys"
    program.write_text(f"#!{sys.executable}\nimport sys\n{body}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_report_is_exported_by_the_users_own_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = export(tmp_path / "exported.sqlite", A_STEP)
    body = (
        "import shutil\nassert sys.argv[1:3] == ['export', '--type=sqlite'], sys.argv\n"
        f"shutil.copy({str(exported)!r}, sys.argv[4].removeprefix('--output='))\nprint('Processing events...')"
    )
    stand_in(tmp_path / "bin", body, monkeypatch)
    report = tmp_path / "a step.nsys-rep"
    report.write_bytes(b"\x00anything\x80")
    found = report_of(report)
    assert (found.launches, found.total_ns, found.trace) == (4, 1050, str(report))
    assert {each.name for each in tmp_path.iterdir()} == {"exported.sqlite", "bin", "a step.nsys-rep"}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (None, "nsys, which is not on PATH"),
        ("print('Working')\nsys.exit('It is of a later version.')", "could not read it: It is of a later version."),
    ],
)
def test_without_nsys_or_where_it_cannot_read_the_report_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str | None, why: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if body:
        stand_in(tmp_path / "bin", body, monkeypatch)
    report = tmp_path / "x.nsys-rep"
    report.write_bytes(b"\x00")
    assert why in refusal(report)


def test_cancelling_ends_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(
        tmp_path / "bin",
        "import os, time\nopen(sys.argv[-1] + '.pid', 'w').write(str(os.getpid()))\ntime.sleep(60)",
        monkeypatch,
    )
    report = tmp_path / "x.nsys-rep"
    report.write_bytes(b"\x00")
    told = Path(f"{report}.pid")

    def watch(_done: int, _total: int) -> None:
        if told.exists() and told.read_text():
            raise OpeningCancelled

    begun = time.monotonic()
    with pytest.raises(OpeningCancelled):
        cells_of(report, Opening(watch))
    assert time.monotonic() - begun < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


def test_a_thread_of_another_process_names_nothing(file: Path) -> None:
    rows = {**A_STEP, "NVTX_EVENTS": [nvtx(0, 1_000, "other") | {"globalTid": made.global_tid(1, PID + 5)}]}
    assert {group.path for group in report_of(export(file, rows)).groups} == {()}
