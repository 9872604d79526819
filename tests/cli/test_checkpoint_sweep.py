"""A sweep over how many blocks are recomputed together, from the command to its table; and one over optimizers."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from cs336_tui.analysis.merge import merge
from cs336_tui.analysis.roofline import work_of
from cs336_tui.config.flops import step_flops
from cs336_tui.session.log import LogReader
from cs336_tui.session.state import fold
from tests.commands import call

SMALL = (
    "--d-model 32 --d-ff 64 --num-layers 3 --num-heads 2 --vocab-size 64 --context 32 --batch 2 --warmup 1 --steps 3 "
    "--device cpu --threads 1"
).split()


def run(*words: str, cwd: Path) -> str:
    done = call(*words, "--session-dir", "sessions", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_sweep_s_table_has_predicted_peaks_and_marks_the_best(tmp_path: Path) -> None:
    run("bench", *SMALL, "--pass", "forward+backward", "--checkpoint", "0,1,2,3", cwd=tmp_path)
    text = run("export", "last", "--layout", "checkpointing", "--format", "csv", cwd=tmp_path)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["k"] for row in rows] == ["0", "1", "2", "3"]
    (rss,) = (name for name in rows[0] if name.startswith("peak RSS ("))
    (header,) = (name for name in rows[0] if name.startswith("predicted peak ("))
    peaks = [float(row[header]) for row in rows]
    assert 0 < peaks[1] < peaks[2] < peaks[3] <= peaks[0]
    assert [row["mark"] for row in rows] == ["neighbour", "best", "neighbour", ""]
    assert all(float(row["step time (ms)"]) > 0 and float(row[rss]) > 0 for row in rows)
    (log,) = (tmp_path / "sessions").glob("*.jsonl")
    results = merge([("one", fold(LogReader(log)))])
    for result in results:  # a share of the peak is of the model's FLOPs, computed again or not
        work = work_of(result)
        assert work is not None
        assert work.flops == step_flops(results[0].spec)


def test_optimizers_side_by_side(tmp_path: Path) -> None:
    run("bench", *SMALL, "--pass", "train-step", "--optimizer", "adamw-fused,adamw-for-loop", cwd=tmp_path)
    text = run("export", "last", "--layout", "optimizers", "--format", "csv", cwd=tmp_path)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["optimizer"], row["in force"]) for row in rows] == [
        ("adamw-fused", "AdamW (fused)"),
        ("adamw-for-loop", "AdamW (for-loop)"),
    ]
    for row in rows:
        assert 0 < float(row["share of step (%)"]) < 100
        assert float(row["optimizer (ms)"]) < float(row["step (ms)"])
