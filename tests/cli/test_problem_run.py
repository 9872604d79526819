"""One command a problem: a small variant of a preset is run on the CPU, and its export lacks nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cs336_tui.config.problems import problem_named
from tests.commands import DIMS, call

QUICK = "--warmup 1 --steps 2 --device cpu --threads 1 --no-oom-explain".split()
MODEL = [*DIMS, "--batch", "1"]
RUNS = {
    "nsys_profile": [*MODEL, "--context", "8,16"],
    "memory_profiling": [*MODEL, "--context", "8,16"],
    "benchmarking_mixed_precision": [*MODEL, "--context", "8", "--pass", "forward+backward"],
    "gradient_checkpointing": [*MODEL, "--context", "8", "--checkpoint", "0,1", "--pass", "forward+backward"],
    "pytorch_attention": "--head-dim 8 --context 16,32 --batch 1".split(),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_preset_runs_what_its_problem_shows(name: str, tmp_path: Path) -> None:
    folder = ["--session-dir", str(tmp_path)]
    ran = call("bench", "--preset", f"2026/{name}", *RUNS[name], *QUICK, *folder, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    (log,) = tmp_path.glob("*.jsonl")
    assert f"cs336-tui export {log} --problem {name}" in ran.stderr
    shown = call("export", "last", "--problem", name, "--format", "json", *folder, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    problem, _ = problem_named(f"2026/{name}")
    for part, found in zip(problem.parts, json.loads(shown.stdout)["parts"], strict=True):
        assert not [note for note in found["notes"] if "in this session" in note], found["asks"]
        assert bool(found["tables"]) == bool(part.answers)


def test_presets_that_belong_together_are_run_together(tmp_path: Path) -> None:
    words = [*MODEL, "--head-dim", "8", "--context", "8", "--compile", "off", "--pass", "forward,train-step"]
    ran = call("bench", "--preset", "2026/torch_compile", *words, *QUICK, "--session-dir", str(tmp_path), cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "2026/compiled_attention, which belongs to it, keeps its pass" in ran.stderr
    listed = call("export", "last", "--format", "json", "--session-dir", str(tmp_path), cwd=tmp_path)
    specs = [run["spec"] for run in json.loads(listed.stdout)["runs"]]
    assert {(spec["workload"], spec["pass"]) for spec in specs} == {
        ("language-model", "forward"), ("language-model", "train-step"), ("attention", "forward"),
        ("attention", "backward"),
    }  # fmt: skip


def test_reports_of_the_preset_can_be_left_out(tmp_path: Path) -> None:
    words = [*MODEL, "--context", "8", "--pass", "forward", "--reports", "none"]
    ran = call("bench", "--preset", "2026/nsys_profile", *words, *QUICK, "--session-dir", str(tmp_path), cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "kernels of" not in ran.stderr
    shown = call("export", "last", "--problem", "nsys_profile", "--session-dir", str(tmp_path), cwd=tmp_path)
    assert shown.stdout.count("nothing of this is in this session: cs336-tui bench --preset 2026/nsys_profile") == 5
