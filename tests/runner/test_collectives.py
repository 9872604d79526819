"""Collectives of real processes, through the command that scripts call."""

import json
from pathlib import Path
from statistics import fmean

from cs336_tui.config.rules import AXES
from tests.commands import call

RUN = "comm --size 100KB --backend gloo --device cpu --warmup 1 --steps 4 --format json".split()


def test_every_operation_is_timed_on_its_slowest_rank(tmp_path: Path):
    operations = AXES["collective"].values
    done = call(*RUN, "--op", ",".join(operations), "--ranks", "3", "--session-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["schema"] == 1
    runs = data["runs"]
    assert {(run["spec"]["collective"], run["spec"]["ranks"]) for run in runs} == {
        (operation, 3) for operation in operations
    }
    for run in runs:
        assert run["status"] == "ok"
        operation, ranks = run["spec"]["collective"], run["spec"]["ranks"]
        assert [len(times) for times in run["rank_times_s"]] == [4] * ranks
        assert run["step_times_s"] == [max(step) for step in zip(*run["rank_times_s"], strict=True)]
        assert list(run["phase_times_s"]) == [operation]
        sent = 100_000 // (4 * ranks) * 4 * ranks
        assert abs(run["algbw_bytes_per_s"] / (sent / fmean(run["step_times_s"])) - 1) < 1e-9


def test_a_message_without_room_is_out_of_memory_and_the_table_has_its_columns(tmp_path: Path):
    size = "--size 1KB,900GB --ranks 2 --device cpu --warmup 0 --steps 1".split()
    done = call("comm", *size, "--session-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    header = done.stdout.splitlines()[0]
    for title in ("operation", "backend", "device", "size", "ranks", "mean (ms)", "skew (ms)", "algbw (GB/s)"):
        assert f" {title} " in header
    assert [line.split(" | ")[-1].strip(" |") for line in done.stdout.splitlines()[2:4]] == ["ok", "oom"]
