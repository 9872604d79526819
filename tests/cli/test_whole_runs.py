"""From a run to its tables, as a user types both: sweeps, own models, and small variants of the problems' presets."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from cs336_tui.analysis.merge import merge
from cs336_tui.analysis.roofline import work_of
from cs336_tui.config.flops import step_flops
from cs336_tui.config.problems import problem_named
from cs336_tui.session.log import LogReader
from cs336_tui.session.state import fold
from tests.commands import DIMS, call
from tests.worker.workload.own_code import PLAIN

ON_CPU = "--warmup 1 --device cpu --threads 1".split()
SMALL = "--d-model 32 --d-ff 64 --num-layers 3 --num-heads 2 --vocab-size 64 --context 32 --batch 2 --steps 3".split()
OWN = [*DIMS, *"--context 8 --batch 2 --pass forward+backward --model-path .".split()]
QUICK = "--steps 2 --no-oom-explain".split()
MODEL = [*DIMS, "--batch", "1"]
RUNS = {
    "nsys_profile": [*MODEL, "--context", "8,16"],
    "memory_profiling": [*MODEL, "--context", "8,16"],
    "benchmarking_mixed_precision": [*MODEL, "--context", "8", "--pass", "forward+backward"],
    "gradient_checkpointing": [*MODEL, "--context", "8", "--checkpoint", "0,1", "--pass", "forward+backward"],
    "pytorch_attention": "--head-dim 8 --context 16,32 --batch 1".split(),
}


def run(*words: str, cwd: Path) -> tuple[str, str]:
    place = () if words[0] == "summary" else ("--session-dir", "sessions")
    done = call(*words, *(ON_CPU if words[0] in ("bench", "ab") else ()), *place, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def exported(*words: str, cwd: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(run("export", "last", *words, "--format", "csv", cwd=cwd)[0])))


def test_attention_alone(tmp_path: Path) -> None:
    cells = "--workload attention --head-dim 8,16 --context 32 --batch 2 --attention naive,sdpa --steps 3 --no-causal"
    run("bench", *cells.split(), cwd=tmp_path)
    shown, _ = run("export", "last", "--layout", "attention", cwd=tmp_path)
    times, _, memory = shown.partition("Attention alone, memory before backward")
    assert "| naive: forward (ms) | naive: backward (ms) | sdpa: forward (ms) | sdpa: backward (ms) |" in times
    rows = [line.strip("| ").split("|") for line in memory.splitlines() if line.startswith("| ")][2:]
    assert [row[0].strip() for row in rows] == ["8", "16"]
    for row in rows:
        _, length, naive, naive_accounted, fused, fused_accounted = (text.strip() for text in row)
        assert (length, naive, fused) == ("32", naive_accounted, fused_accounted)


def test_a_sweep_over_recomputed_blocks_has_predicted_peaks_and_marks_the_best(tmp_path: Path) -> None:
    run("bench", *SMALL, "--pass", "forward+backward", "--checkpoint", "0,1,2,3", cwd=tmp_path)
    rows = exported("--layout", "checkpointing", cwd=tmp_path)
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
        assert work.flops == step_flops(results[0].spec)


def test_optimizers_side_by_side(tmp_path: Path) -> None:
    run("bench", *SMALL, "--pass", "train-step", "--optimizer", "adamw-fused,adamw-for-loop", cwd=tmp_path)
    rows = exported("--layout", "optimizers", cwd=tmp_path)
    in_force = [("adamw-fused", "AdamW (fused)"), ("adamw-for-loop", "AdamW (for-loop)")]
    assert [(row["optimizer"], row["in force"]) for row in rows] == in_force
    for row in rows:
        assert 0 < float(row["share of step (%)"]) < 100
        assert float(row["optimizer (ms)"]) < float(row["step (ms)"])


def test_the_flops_of_an_own_model_are_known_and_it_is_said_which_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLAIN)
    models = "mine:Odd,mine:Asks,reference"
    out, said = run("bench", *OWN, "--steps", "3", "--model", models, "--format", "csv", cwd=tmp_path)
    flops = {row["model"]: row["flops_per_step"] for row in csv.DictReader(io.StringIO(out))}
    assert int(flops["mine:Odd"]) > 0
    assert flops["mine:Asks"] == ""
    assert "Asks: memory could not be predicted: mine.py:" in said
    assert len(exported("--report", "roofline", cwd=tmp_path)) == 2
    (log,) = (tmp_path / "sessions").glob("*.jsonl")
    run("summary", str(log), "-o", "summary", cwd=tmp_path)
    table = (tmp_path / "summary" / "tables" / "roofline.md").read_text()
    assert "model mine:Odd" in table
    assert "left out: FLOPs of Asks unknown: mine.py:" in table
    assert "depends on the value of a tensor" in table
    assert "FLOPs of Asks unknown" in (tmp_path / "summary" / "tables" / "results.md").read_text()


def test_ab_knows_the_flops_of_both_sides(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLAIN)
    run("ab", "--a", "--model reference", "--b", "--model mine:Odd", "--rounds", "2", *OWN, cwd=tmp_path)
    assert len(exported("--report", "roofline", cwd=tmp_path)) == 4


@pytest.mark.parametrize("name", RUNS)
def test_a_preset_runs_what_its_problem_shows(name: str, tmp_path: Path) -> None:
    _, said = run("bench", "--preset", f"2026/{name}", *RUNS[name], *QUICK, cwd=tmp_path)
    (log,) = (tmp_path / "sessions").glob("*.jsonl")
    assert re.search(rf"cs336-tui export \S*{re.escape(log.name)} --problem {name}", said)
    shown, _ = run("export", "last", "--problem", name, "--format", "json", cwd=tmp_path)
    problem, _ = problem_named(f"2026/{name}")
    for part, found in zip(problem.parts, json.loads(shown)["parts"], strict=True):
        assert not [note for note in found["notes"] if "in this session" in note], found["asks"]
        assert bool(found["tables"]) == bool(part.answers)


def test_presets_that_belong_together_are_run_together(tmp_path: Path) -> None:
    words = [*MODEL, "--head-dim", "8", "--context", "8", "--compile", "off", "--pass", "forward,train-step"]
    _, said = run("bench", "--preset", "2026/torch_compile", *words, *QUICK, cwd=tmp_path)
    assert "2026/compiled_attention, which belongs to it, keeps its pass" in said
    assert {(row["workload"], row["pass"]) for row in exported(cwd=tmp_path)} == {
        ("language-model", "forward"), ("language-model", "train-step"), ("attention", "forward"),
        ("attention", "backward"),
    }  # fmt: skip


def test_reports_of_the_preset_can_be_left_out(tmp_path: Path) -> None:
    words = [*MODEL, "--context", "8", "--pass", "forward", "--reports", "none"]
    _, said = run("bench", "--preset", "2026/nsys_profile", *words, *QUICK, cwd=tmp_path)
    assert "kernels of" not in said
    shown, _ = run("export", "last", "--problem", "nsys_profile", cwd=tmp_path)
    assert shown.count("nothing of this is in this session: cs336-tui bench --preset 2026/nsys_profile") == 5
