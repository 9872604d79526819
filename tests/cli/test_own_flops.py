"""FLOPs of a user's own model in `bench`, `ab` and exports: predicted after the last cell, or the reason why not."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.commands import call
from tests.worker.workload.own_code import PLAIN

SMALL = (
    "--d-model 32 --d-ff 64 --num-layers 1 --num-heads 2 --vocab-size 64 --context 8 --batch 2 --warmup 1 "
    "--device cpu --threads 1 --pass forward+backward --model-path ."
).split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(PLAIN)
    return tmp_path


def run(*words: str, cwd: Path) -> tuple[str, str]:
    place = () if words[0] == "summary" else ("--session-dir", "sessions")
    done = call(*words, *place, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_bench_knows_the_flops_of_an_own_model_and_says_which_it_cannot_know(folder: Path) -> None:
    models = "mine:Odd,mine:Asks,reference"
    out, said = run("bench", *SMALL, "--steps", "3", "--model", models, "--format", "csv", cwd=folder)
    flops = {row["model"]: row["flops_per_step"] for row in csv.DictReader(io.StringIO(out))}
    assert int(flops["mine:Odd"]) > 0
    assert flops["mine:Asks"] == ""
    assert "Asks: memory could not be predicted: mine.py:" in said
    text, _ = run("export", "last", "--report", "roofline", "--format", "json", cwd=folder)
    assert len(json.loads(text)["rows"]) == 2
    (log,) = (folder / "sessions").glob("*.jsonl")
    run("summary", str(log), "-o", "summary", cwd=folder)
    table = (folder / "summary" / "tables" / "roofline.md").read_text()
    assert "model mine:Odd" in table
    assert "left out: FLOPs of Asks unknown: mine.py:" in table
    assert "depends on the value of a tensor" in table
    assert "FLOPs of Asks unknown" in (folder / "summary" / "tables" / "results.md").read_text()


def test_ab_knows_the_flops_of_both_sides(folder: Path) -> None:
    run("ab", "--a", "--model reference", "--b", "--model mine:Odd", "--rounds", "2", *SMALL, cwd=folder)
    text, _ = run("export", "last", "--report", "roofline", "--format", "json", cwd=folder)
    assert len(json.loads(text)["rows"]) == 4
