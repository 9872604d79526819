"""`cs336-tui ab` as scripts call it, and the choices of each side."""

import json
import re
import shlex
import subprocess
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cs336_tui.cli.ab import SIDE, _AbRun, command_of_turns, side_sweep
from cs336_tui.config.spec import SpecError
from cs336_tui.session.load import load
from tests.commands import call, running, stopped

DIMS = "--d-model 32 --d-ff 64 --num-layers 1 --num-heads 2 --vocab-size 64"
SMALL = [*DIMS.split(), *"--context 8 --batch 1 --warmup 1 --device cpu --threads 1".split()]


def begin(folder: Path, *words: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return running("ab", "--session-dir", str(folder / "sessions"), *words, cwd=folder)


def test_a_whole_run_and_what_the_session_holds_of_it(tmp_path: Path):
    where = ("--session-dir", str(tmp_path / "sessions"))
    done = call("ab", *where, "--a", "", "--b", "--precision bf16", *SMALL, "--rounds", "2", "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [row["round"] for row in document["rows"]] == [1, 2, "all"]
    every = document["rows"][2]
    assert every["a_n"] == every["b_n"] == 40
    if every["low"] is None:  # two rounds that differ much fix none, as they may on a busy machine
        assert every["method"].startswith("none: ")
    else:
        assert every["low"] <= every["ratio"] <= every["high"]
    assert every["verdict"] in ("faster", "slower", "same", "ambiguous")
    assert "precision: fp32 | bf16" in every["differs"]
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["round 1/2", "round 2/2", "session log"]
    (log,) = (tmp_path / "sessions").glob("*.jsonl")
    again = call("export", str(log), "--report", "ab", "--format", "json")
    assert json.loads(again.stdout) == document, "the verdict can be had again from the log"
    summary = tmp_path / "summary"
    assert call("summary", str(log), "-o", str(summary)).returncode == 0
    assert "## Two cells in turns" in (summary / "summary.md").read_text()
    assert every["verdict"] in (summary / "tables" / "ab.md").read_text()
    state = load(log)
    assert [cell.spec.precision for cell in state.cells.values()] == ["fp32", "bf16"] * 2
    (command,) = state.commands
    words = shlex.split(command)
    assert words[:6] == ["cs336-tui", "ab", "--a", "--precision fp32", "--b", "--precision bf16"]


def test_ctrl_c_leaves_the_rounds_that_are_whole_and_exits_with_130(tmp_path: Path):
    with begin(tmp_path, "--a", "", "--b", "", *SMALL, "--rounds", "50", "--steps", "500") as process:
        first = process.stderr.readline()
        assert first.startswith("round 1/50: A ")
        out = stopped(process)
    said = r" of 50 rounds were not run: A and B unfinished: (not started|stopped by the user)"
    assert re.search(said, out), "it may come in a round or between two"
    (log,) = (tmp_path / "sessions").glob("*.jsonl")
    before = log.read_bytes()
    again = call("resume", str(log))
    assert again.returncode != 0
    assert "cells in turns cannot go on one by one; run again: cs336-tui ab" in again.stderr
    assert log.read_bytes() == before


def test_a_side_that_cannot_be_built_exits_with_1(tmp_path: Path):
    words = ("--a", "", "--b", f"--vocab-size {2**30}", *SMALL, "--rounds", "2", "--session-dir", str(tmp_path))
    done = call("ab", *words)
    assert done.returncode == 1, done.stderr
    assert "A failed: B was not tried; B OOM: " in done.stdout
    assert "bench --repeats" in done.stdout


def own(text: str) -> dict[str, Any]:
    """Choices that the words of one side stand for."""
    return SIDE.convert(text, None, None)


def test_a_side_has_what_both_have_its_own_words_first():
    shared = {"contexts": (64,), "sizes": ("tiny",), "seed": None}
    sweep = side_sweep("--a", own("--precision bf16 --context 32"), shared)
    (spec,) = sweep.with_devices(("cpu",)).cells()
    assert (spec.precision, spec.context_length, spec.size) == ("bf16", 32, "tiny")
    assert (spec.pass_, spec.warmup_steps, spec.measure_steps) == ("forward", 5, 20), "the defaults of ab"


def test_a_side_may_have_dimensions_where_both_have_a_size_and_the_other_way_round():
    (raw,) = side_sweep("--a", own(DIMS), {"sizes": ("tiny",), "devices": ("cpu",)}).cells()
    assert raw.d_ff == 64
    dims = {"d_model": 32, "d_ff": 64, "num_layers": 1, "num_heads": 2, "devices": ("cpu",)}
    (named,) = side_sweep("--a", own("--size tiny"), dims).cells()
    assert (named.size, named.d_ff) == ("tiny", 1024)


def test_the_command_line_gives_the_same_sides_again():
    shared = {"sizes": ("tiny",), "devices": ("cpu",), "steps": 7}
    a = side_sweep("--a", own("--precision bf16"), shared)
    b = side_sweep("--b", own("--d-model 32 --d-ff 64 --num-layers 1 --num-heads 2 --warmup 2"), shared)
    words = shlex.split(command_of_turns(a, b, 3))
    assert words[:2] == ["cs336-tui", "ab"]
    said = {words[place]: words[place + 1] for place in (2, 4, 6)}
    assert said["--rounds"] == "3"
    both = own(shlex.join(words[8:]))
    assert side_sweep("--a", own(said["--a"]), both) == a
    assert side_sweep("--b", own(said["--b"]), both) == b


def test_the_command_line_of_attention_that_is_not_causal():
    shared = own("--workload attention --no-causal --context 64 --device cpu")
    a, b = (side_sweep(name, own(f"--attention {kind}"), shared) for name, kind in (("--a", "naive"), ("--b", "math")))
    words = shlex.split(command_of_turns(a, b, 3))
    both = own(shlex.join(words[8:]))
    assert both["causal"] is False
    assert (side_sweep("--a", own(words[3]), both), side_sweep("--b", own(words[5]), both)) == (a, b)


def test_by_answers_with_the_exit_code(tmp_path: Path):
    words = ["ab", "--session-dir", str(tmp_path), *SMALL, "--rounds", "3"]
    slower = call(*words, "--a", "--context 512 --num-layers 4", "--b", "", "--by", "2%")
    assert (slower.returncode, "slower: A takes " in slower.stdout) == (1, True), slower.stdout
    faster = call(*words, "--a", "", "--b", "--context 512 --num-layers 4", "--by", "2%", "--format", "json")
    assert faster.returncode == 0, faster.stdout
    assert json.loads(faster.stdout)["rows"][-1]["passing"] == "not slower"
    lost = call(*words, "--a", "", "--b", f"--vocab-size {2**30}", "--by", "2%")
    assert (lost.returncode, "cannot tell: " in lost.stdout) == (3, True), lost.stdout


def broken(error: Exception) -> int:
    raise error


def test_with_by_1_says_that_a_is_slower_and_nothing_else():
    for by, code in ((0.02, 3), (None, 1)):
        assert _AbRun(by).answered(lambda: 1) == code, "something could not be written"
    assert _AbRun(0.02).answered(partial(broken, OSError("no process"))) == 3
    with pytest.raises(OSError, match="no process"):
        _AbRun(None).answered(partial(broken, OSError("no process")))
    with pytest.raises(SpecError):
        _AbRun(0.02).answered(partial(broken, SpecError("size", "x", "none")))
