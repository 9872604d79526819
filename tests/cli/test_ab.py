"""`cs336-tui ab` as scripts call it, and the choices of each side."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cs336_tui.cli.ab import SIDE, command_of_turns, side_sweep
from cs336_tui.cli.main import cli, main
from cs336_tui.session.load import load
from tests.commands import COMMAND
from tests.watching import PATIENCE_S

DIMS = "--d-model 32 --d-ff 64 --num-layers 1 --num-heads 2 --vocab-size 64"
SMALL = [*DIMS.split(), *"--context 8 --batch 1 --warmup 1 --device cpu --threads 1".split()]


Begin = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts the command, which is ended after the test with all its processes."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [COMMAND, "ab", "--session-dir", str(tmp_path / "sessions"), *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_whole_run_and_what_the_session_holds_of_it(begin: Begin, tmp_path: Path):
    process = begin("--a", "", "--b", "--precision bf16", *SMALL, "--rounds", "2", "--format", "json")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    document = json.loads(out)
    assert [row["round"] for row in document["rows"]] == [1, 2, "all"]
    every = document["rows"][2]
    assert every["a_n"] == every["b_n"] == 40
    if every["low"] is None:  # two rounds that differ much fix none, as they may on a busy machine
        assert every["method"].startswith("none: ")
    else:
        assert every["low"] <= every["ratio"] <= every["high"]
    assert every["verdict"] in ("faster", "slower", "same", "ambiguous")
    assert "precision: fp32 | bf16" in every["differs"]
    assert [line.partition(":")[0] for line in err.splitlines()] == ["round 1/2", "round 2/2", "session log"]
    (log,) = (tmp_path / "sessions").glob("*.jsonl")
    again = CliRunner().invoke(cli, ["export", str(log), "--report", "ab", "--format", "json"])
    assert json.loads(again.stdout) == document, "the verdict can be had again from the log"
    summary = tmp_path / "summary"
    assert CliRunner().invoke(cli, ["summary", str(log), "-o", str(summary)]).exit_code == 0
    assert "## Two cells in turns" in (summary / "summary.md").read_text()
    assert every["verdict"] in (summary / "tables" / "ab.md").read_text()
    state = load(log)
    assert [cell.spec.precision for cell in state.cells.values()] == ["fp32", "bf16"] * 2
    (command,) = state.commands
    words = shlex.split(command)
    assert words[:6] == ["cs336-tui", "ab", "--a", "--precision fp32", "--b", "--precision bf16"]


def test_ctrl_c_leaves_the_rounds_that_are_whole_and_exits_with_130(begin: Begin, tmp_path: Path):
    process = begin("--a", "", "--b", "", *SMALL, "--rounds", "50", "--steps", "500")
    assert process.stderr is not None
    first = process.stderr.readline()
    assert first.startswith("round 1/50: A ")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    stopped = r" of 50 rounds were not run: A and B unfinished: (not started|stopped by the user)"
    assert re.search(stopped, out), "it may come in a round or between two"
    (log,) = (tmp_path / "sessions").glob("*.jsonl")
    before = log.read_bytes()
    again = subprocess.run([COMMAND, "resume", str(log)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert again.returncode != 0
    assert "cells in turns cannot go on one by one; run again: cs336-tui ab" in again.stderr
    assert log.read_bytes() == before


def test_a_side_that_cannot_be_built_exits_with_1(begin: Begin):
    process = begin("--a", "", "--b", f"--vocab-size {2**30}", *SMALL, "--rounds", "2")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, err
    assert "A failed: B was not tried; B OOM: " in out
    assert "bench --repeats" in out


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("--precision bf16,fp32", ["--b", "comes to 2 cells", "precisions bf16,fp32"]),
        ("--precision fp12", ["--b", "fp12", "bf16-mixed"]),
        ("--preset nope", ["--b", "nope"]),
        ("--precison fp32", ["'--b'", "--precison"]),
        ("--context x", ["'--b'", "x", "whole numbers"]),
        ("fp32", ["'--b'", "fp32", "unexpected"]),
        ("--precision 'fp32", ["'--b'", "No closing quotation"]),
        ("--threads 2", ["threads 1 and 2", "A and B need the same"]),
        ("--steps auto", ["auto of B", "fixed"]),
    ],
)
def test_an_error_of_a_side_is_one_line_that_names_it(
    text: str, says: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    shared = ["--size", "tiny", "--threads", "1", "--session-dir", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        main(["ab", "--a", "", "--b", text, *shared])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    for part in says:
        assert part in line
    assert not list(tmp_path.iterdir()), "nothing was begun"


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
