"""`cs336-tui open`: from traces, memory snapshots and nsys reports to a session that every command shows."""

import csv
import io
import json
import pickle
import subprocess
from pathlib import Path
from typing import Any

from cs336_tui.session import store
from tests.commands import call
from tests.session.recordings import made_traces as made
from tests.session.recordings.made_traces import launch, op, trace_of, user, write
from tests.session.recordings.nsys_exports import A_STEP, export
from tests.session.recordings.test_nsys_stats import SUMS, TRACE
from tests.session.recordings.test_snapshot import made as made_snapshot
from tests.session.recordings.test_snapshot_blocks import MIB, a_segment, an_event


def command(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return call(*words, "--session-dir", str(folder / "sessions"), cwd=folder)


def opened(*files: Path, folder: Path, more: tuple[str, ...] = ()) -> str:
    done = command("open", *map(str, files), *more, folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    (name,) = done.stdout.splitlines()
    return name


def rows_of(session: str, *more: str, folder: Path, report: str = "kernels") -> list[dict[str, Any]]:
    """Every row of the tables of reports, as programs read them."""
    done = command("export", session, "--report", report, "--format", "json", *more, folder=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return [row for table in found.get("tables", [found]) for row in table["rows"]]


def ranks(folder: Path) -> list[Path]:
    """One run of two ranks, a folder each, with files of one name."""
    found = []
    for rank in (0, 1):
        path = folder / f"rank{rank}" / "trace.json.gz"
        path.parent.mkdir()
        about = {"distributedInfo": {"rank": rank}, "deviceProperties": [{"id": 0, "name": "GPU A"}]}
        events = [user("forward", 0, 9), op("aten::mm", 1, 5), launch("gemm", 1, 2, 3, 4 + rank)]
        found.append(write(path, trace_of(*events, **about)))
    return found


def test_several_ranks_become_one_session(tmp_path: Path) -> None:
    session = opened(*ranks(tmp_path), folder=tmp_path)
    names = [row["recording"] for row in rows_of(session, folder=tmp_path) if row["table"] == "use"]
    assert names == ["rank0/trace.json.gz, rank 0", "rank1/trace.json.gz, rank 1"]
    shown = command("show", session, folder=tmp_path).stdout
    assert "cells    2: 2 ok; 2 reports" in shown
    assert "trace.json.gz and 1 more" in shown
    assert "| rank1/trace.json.gz, rank 1 | cuda:0 | recorded |" in shown
    done = command("summary", session, "-o", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out/summary.md").read_text()
    assert "rank0/trace.json.gz, rank 0" in text
    assert "custom" not in text


def test_what_a_recording_does_not_tell_is_empty_or_null(tmp_path: Path) -> None:
    session = opened(write(tmp_path / "a.json", made.TRAINING), folder=tmp_path)
    document = json.loads(command("export", session, "--format", "json", folder=tmp_path).stdout)
    (cell,) = document["runs"]
    spec = cell["spec"]
    assert {key for key, value in spec.items() if value is not None} == {"device", "recording"}
    assert (spec["device"], spec["recording"]) == ("cuda:0", "a.json")
    assert {cell[key] for key in ("flops_per_step", "tokens_per_s", "num_params", "summary")} == {None}
    (row,) = csv.DictReader(io.StringIO(command("export", session, "--format", "csv", folder=tmp_path).stdout))
    assert {row[key] for key in ("size", "context_length", "batch_size", "precision", "flops_per_step")} == {""}
    text = command("export", session, folder=tmp_path).stdout
    assert "custom" not in text
    assert "not run" not in text
    for row in rows_of(session, folder=tmp_path):
        assert {row[key] for key in ("size", "context", "batch", "pass", "precision")} == {None}
    (info,) = store.list_sessions(tmp_path / "sessions")
    assert (info.name, info.cells, info.ok, info.left, info.reports) == ("a.json", 1, 1, 0, 1)
    assert info.devices == ("cuda:0",)


def test_ranges_choose_kernels(tmp_path: Path) -> None:
    session = opened(write(tmp_path / "a.json", made.TRAINING), folder=tmp_path)
    rows = rows_of(session, "--range", "step 3", "--range", "forward", folder=tmp_path)
    assert {row["name"] for row in rows} == {"gemm_forward", "add_forward"}
    failed = command("export", session, "--report", "kernels", "--range", "epoch", folder=tmp_path)
    assert failed.returncode == 2
    assert failed.stderr.startswith("cs336-tui: range epoch: no kernel of a.json · cuda:0 is in it; it has forward,")
    failed = command("export", session, "--range", "epoch", folder=tmp_path)
    assert (failed.returncode, failed.stderr) == (2, "cs336-tui: --range epoch needs --report kernels\n")


def test_names_of_phases_are_given(tmp_path: Path) -> None:
    trace = trace_of(user("model_fwd", 0, 9), op("aten::mm", 1, 5), launch("gemm", 1, 2, 3, 4))
    path = write(tmp_path / "a.json", trace)
    session = opened(path, folder=tmp_path, more=("--phase", "forward=model_*"))
    assert [row["phase"] for row in rows_of(session, "--range", "forward", folder=tmp_path)] == ["recording"]
    failed = command("open", str(path), "--phase", "forward", folder=tmp_path)
    assert (failed.returncode, len(failed.stderr.splitlines())) == (2, 1)


def test_two_recordings_can_be_exported_together(tmp_path: Path) -> None:
    first, second = (opened(path, folder=tmp_path) for path in ranks(tmp_path))
    done = command("export", first, second, "--report", "kernels-over-cells", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("gemm") >= 2
    assert "timed" not in done.stdout


def test_every_table_figure_and_page_of_a_snapshot_is_made(tmp_path: Path) -> None:
    trace = [an_event("alloc", 512 * place, 512) for place in range(3)]
    segment = a_segment(0, 2 * MIB, *[(512, "active_allocated")] * 3)
    session = opened(made_snapshot(tmp_path, trace, segments=[segment]), folder=tmp_path)
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
    snapshot = made_snapshot(tmp_path, [an_event("alloc", 0, 512)])
    session = opened(report, trace, totals, snapshot, folder=tmp_path)
    use = {row["recording"]: row for row in rows_of(session, folder=tmp_path) if row["table"] == "use"}
    assert {name: (row["launches"], row["total_ns"]) for name, row in use.items()} == {
        "a.sqlite": (4, 1050), "trace.csv": (3, 8699), "totals.csv": (3, 8699)
    }  # fmt: skip
    assert [row["recording"] for row in rows_of(session, report="memory", folder=tmp_path) if "step_bytes" in row] == [
        "made.pickle"
    ]
    inner = rows_of(session, "--range", "step 3", "--range", "attention", folder=tmp_path)
    assert {row["name"] for row in inner} == {"void gemm<float>(int)"}
    assert command("export", session, "--report", "kernels-over-cells", folder=tmp_path).returncode == 0


def test_what_is_no_recording_is_one_line_and_no_session(tmp_path: Path) -> None:
    evil = tmp_path / "evil.pickle"
    evil.write_bytes(pickle.dumps(print))
    done = command("open", str(write(tmp_path / "good.json", made.TRAINING)), str(evil), folder=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert evil.name in done.stderr
    assert store.folder_sessions(tmp_path / "sessions") == []


def test_show_of_a_snapshot_speaks_of_memory_alone(tmp_path: Path) -> None:
    session = opened(made_snapshot(tmp_path, [an_event("alloc", 0, MIB)]), folder=tmp_path)
    shown = command("show", session, "-v", folder=tmp_path).stdout
    assert "- 1 cell recorded elsewhere: memory; no step was timed here" in shown
    assert f"`cs336-tui export {session} --report memory` shows" in shown
    assert "kernels" not in shown
