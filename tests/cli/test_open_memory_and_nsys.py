"""`cs336-tui open` of memory snapshots and nsys reports, as commands show them."""

from __future__ import annotations

import json
import pickle
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from cs336_tui.session import store
from tests.cli.test_open import command, kernels, opened
from tests.session.recordings.nsys_exports import A_STEP, export
from tests.session.recordings.test_nsys_stats import SUMS, TRACE
from tests.session.recordings.test_snapshot import INFERENCE, TRAINING, content_of, made, real_path
from tests.session.recordings.test_snapshot_blocks import MIB, a_segment, an_event


def memory_rows(session: str, folder: Path) -> list[dict[str, Any]]:
    done = command("export", session, "--report", "memory", "--format", "json", folder=folder)
    assert done.returncode == 0, done.stderr
    return [row for table in json.loads(done.stdout)["tables"] for row in table["rows"]]


@pytest.mark.parametrize("name", [INFERENCE, TRAINING])
def test_the_peak_of_a_real_snapshot_is_exported(tmp_path: Path, name: str) -> None:
    """Against the trace's own requests, counted back from the segments; rests of blocks are a few MiB more."""
    content = content_of(name)
    signs = {"alloc": 1, "free_completed": -1}
    changes = [signs.get(event["action"], 0) * event["size"] for event in content["device_traces"][0]]
    at_end = sum(segment["allocated_size"] for segment in content["segments"])
    requested = at_end - sum(changes) + max(accumulate(changes))
    first, *_ = memory_rows(opened(real_path(name), folder=tmp_path), tmp_path)
    assert first["recording"] == f"{name}.memory-snapshot.pickle"
    assert first["peak_bytes"] == first["step_bytes"] == pytest.approx(requested, abs=4 * MIB)


def test_every_table_figure_and_page_of_a_snapshot_is_made(tmp_path: Path) -> None:
    trace = [an_event("alloc", 512 * place, 512) for place in range(3)]
    segment = a_segment(0, 2 * MIB, *[(512, "active_allocated")] * 3)
    session = opened(made(tmp_path, trace, segments=[segment]), folder=tmp_path)
    for words in (("export", session, "--report", "memory"), ("summary", session, "-o", "out"), ("show", session)):
        done = command(*words, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "custom" not in done.stdout
    assert "made.pickle" in (tmp_path / "out/summary.md").read_text()


def test_files_of_several_kinds_become_one_session(tmp_path: Path) -> None:
    report, trace, totals = tmp_path / "a.sqlite", tmp_path / "trace.csv", tmp_path / "totals.csv"
    export(report, A_STEP)
    trace.write_text(TRACE)
    totals.write_text(SUMS)
    snapshot = made(tmp_path, [an_event("alloc", 0, 512)])
    session = opened(report, trace, totals, snapshot, folder=tmp_path)
    use = {row["recording"]: row for row in kernels(session, folder=tmp_path) if row["table"] == "use"}
    assert {name: (row["launches"], row["total_ns"]) for name, row in use.items()} == {
        "a.sqlite": (4, 1050), "trace.csv": (3, 8699), "totals.csv": (3, 8699)
    }  # fmt: skip
    assert [row["recording"] for row in memory_rows(session, tmp_path) if "step_bytes" in row] == ["made.pickle"]
    inner = kernels(session, "--range", "step 3", "--range", "attention", folder=tmp_path)
    assert {row["name"] for row in inner} == {"void gemm<float>(int)"}
    assert command("export", session, "--report", "kernels-over-cells", folder=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("evil.pickle", pickle.dumps(print)),
        ("cut.pickle", pickle.dumps({"segments": []})[:-3]),
        ("other.sqlite", b"SQLite format 3\0" + bytes(2000)),
        ("other.csv", b"a,b\n1,2\n"),
        ("empty.pickle", b""),
        ("noise.bin", bytes(range(256))),
    ],
)
def test_what_is_no_recording_is_one_line_and_no_session(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    done = command("open", str(tmp_path / name), folder=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert name in done.stderr
    assert store.folder_sessions(tmp_path / "sessions") == []
