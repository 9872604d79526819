"""Over a hundred faults at random launches: one row each with its reason, no process left, all in their time.

A cell whose process meets a fault is followed by one that meets none, and is sound.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

TINY = "--d-model 16 --d-ff 32 --num-layers 1 --num-heads 2 --vocab-size 64 --batch 1 --warmup 1 --steps 3".split()
PATIENCE_S = 400
TIMEOUT_S = 60
"""Limit of a cell that ends by itself."""
AFTER_S = 5.0
"""Seconds in which a cell is over after its limit."""
GONE_S = 10.0
"""Seconds in which all processes are gone after a command."""
FIRST = 20
"""The launch from which on a process may meet a fault."""
SOUND = "0"
"""The line of a process that meets no fault."""


class Kind(NamedTuple):
    """A fault, as the simulation takes it, and how the row of its cell tells of it."""

    code: int
    said: str
    status: str = "failed"


ILLEGAL = Kind(700, "an illegal memory access was encountered")
LAUNCH = Kind(719, "unspecified launch failure")
ECC = Kind(214, "uncorrectable ECC error encountered")
TIMED_OUT = Kind(702, "the launch timed out and was terminated")
ASSERT = Kind(710, "device-side assert triggered")
HANG = Kind(-1, "no result within the per-cell timeout of", "killed")
SILENT = Kind(-2, "no result within the per-cell timeout of", "killed")
LOST = Kind(-3, "unspecified launch failure")
CAPTURE = Kind(901, "the step cannot be captured")
BREAKING = (ILLEGAL, LAUNCH, ECC, TIMED_OUT, ASSERT)


class Row(NamedTuple):
    """How a cell or report ended."""

    number: int
    status: str
    error: str
    lasted_s: float


class Ran(NamedTuple):
    """A command's events, and its rows in the order of their ends."""

    events: Sequence[dict[str, Any]]
    rows: Sequence[Row]


def run(folder: Path, lines: Sequence[str], *words: str, timeout_s: float = TIMEOUT_S, **knobs: object) -> Ran:
    """Run a command in which each process takes a line of faults. Each cell or report has one row, in its time, and no
    process is left."""
    faults, sessions = folder / "faults", folder / "sessions"
    faults.write_text("".join(f"{line}\n" for line in lines))
    own = {"FAULTS": faults, "BOARD": folder / "board", "KERNEL_US": 5} | knobs
    variables = os.environ | {f"SIMGPU_{name}": str(value) for name, value in own.items()}
    flags = ["--session-dir", str(sessions), "--timeout", f"{timeout_s:g}", "--format", "json"]
    command = [sys.executable, "-m", "cs336_tui", *words, *([] if words[0] == "comm" else TINY), *flags]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert_no_process_has(str(faults))
    (log,) = sessions.glob("*.jsonl")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    rows = list(rows_of(events))
    assert faults.read_text() == "", "each process took its line"
    assert "Traceback" not in done.stderr
    assert done.returncode == int(any(row.status != "ok" for row in rows)), done.stderr[-4000:]
    assert sorted(row.number for row in rows) == list(range(len(rows))), "none is lost or doubled"
    assert all(row.lasted_s < timeout_s + AFTER_S for row in rows)
    if words[0] in ("bench", "comm"):
        assert len(json.loads(done.stdout)["runs"]) == len(rows)
    return Ran(events, rows)


def rows_of(events: Sequence[dict[str, Any]]) -> Iterator[Row]:
    """The ends of cells and reports, each with the seconds since its last start."""
    began: dict[int, float] = {}
    for event in events:
        number = event.get("report", event.get("cell"))
        if event["type"] in ("CellStarted", "ReportStarted"):
            began[number] = event["at"]
        if event["type"] in ("CellFinished", "ReportFinished"):
            yield Row(number, event["status"], event.get("error") or "", event["at"] - began[number])


def assert_no_process_has(value: str) -> None:
    """Wait until no process has a variable of this value."""
    until = time.monotonic() + GONE_S
    while left := [each.name for each in Path("/proc").iterdir() if each.name.isdigit() and value in variables(each)]:
        assert time.monotonic() < until, f"left behind: {left}"
        time.sleep(0.05)


def variables(process: Path) -> str:
    try:
        return (process / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def contexts(cells: int) -> list[str]:
    """So many cells of a bench."""
    return ["--order", "as-given", "--context", ",".join(map(str, range(8, 8 + cells)))]


def at_random(kinds: Sequence[Kind], launches: int, seed: int) -> list[str]:
    """A fault of each kind at one of so many launches, each followed by none."""
    chance = random.Random(seed)
    return [line for kind in kinds for line in (f"{chance.randint(FIRST, launches)} {kind.code}", SOUND)]


def assert_rows(rows: Sequence[Row], kinds: Sequence[Kind]) -> None:
    """The rows in turn of these faults and of sound cells."""
    assert [row.status for row in rows] == [status for kind in kinds for status in (kind.status, "ok")], rows
    for row, kind in zip(rows[::2], kinds, strict=True):
        assert kind.said in row.error, row
        assert "\n" not in row.error


@pytest.mark.parametrize(
    ("launches", "words"),
    [
        (690, "--pass train-step"),
        (690, "--pass train-step --sync pipelined --precision bf16-mixed"),
        (180, "--pass forward --timer do_bench"),
        (680, "--pass train-step --cuda-graph step"),
    ],
)
def test_a_fault_ends_its_cell_alone_with_the_true_reason(tmp_path: Path, launches: int, words: str) -> None:
    kinds = BREAKING * 4 if "graph" not in words else (*BREAKING * 2, *[CAPTURE] * 5)
    lines = at_random(kinds, launches, seed=launches + len(words))
    ran = run(tmp_path, lines, "bench", "--device", "cuda:0", *words.split(), *contexts(len(lines)))
    assert_rows(ran.rows, kinds)


def test_a_kernel_that_never_ends_is_ended_by_the_limit(tmp_path: Path) -> None:
    kinds = [HANG] * 5
    lines = at_random(kinds, 690, seed=1)
    words = ["--device", "cuda:0", "--pass", "train-step", *contexts(len(lines))]
    assert_rows(run(tmp_path, lines, "bench", *words, timeout_s=8.0).rows, kinds)


def of_rank_1(lines: Sequence[str]) -> list[str]:
    return [f"{SOUND} {SOUND} 1" if line == SOUND else f"{line} 1" for line in lines]


def ranks(number: int, lines: Sequence[str]) -> list[str]:
    """Words for cells of ranks whose steps are computed, since ranks check them."""
    shared = ["--device", "cuda", "--ranks", str(number), "--parallel", "ddp", "--batch", str(number)]
    return ["bench", *shared, "--pass", "train-step", *contexts(len(lines))]


def test_a_fault_of_one_rank_of_four_ends_all(tmp_path: Path) -> None:
    """The rank's step meets it, or NCCL's watchdog does and ends the process."""
    kinds = (ILLEGAL, LAUNCH, ECC, TIMED_OUT)
    lines = of_rank_1(at_random(kinds, 700, seed=4))
    ran = run(tmp_path, lines, *ranks(4, lines), DEVICES=4, COMPUTE=1)
    assert_rows(ran.rows, kinds)
    assert all(row.error.startswith("rank 1: ") for row in ran.rows[::2])


def test_a_fault_of_a_rank_in_a_collective_ends_all(tmp_path: Path) -> None:
    kinds = BREAKING
    lines = of_rank_1(at_random(kinds, 45, seed=6))
    sizes = ",".join(f"{10 * cell}kB" for cell in range(1, len(lines) + 1))
    ran = run(tmp_path, lines, "comm", "--device", "cuda", "--ranks", "2", "--size", sizes, DEVICES=2)
    assert_rows(ran.rows, kinds)


def test_a_rank_that_comes_to_no_collective_is_ended_by_the_limit(tmp_path: Path) -> None:
    lines = of_rank_1(at_random([SILENT], 300, seed=5))
    ran = run(tmp_path, lines, *ranks(2, lines), timeout_s=20.0, DEVICES=2, COMPUTE=1)
    assert_rows(ran.rows, [SILENT])


def test_a_gpu_that_is_lost_ends_its_cell_and_no_sample_ends_the_next(tmp_path: Path) -> None:
    ran = run(tmp_path, ["300 -3", SOUND], "bench", "--device", "cuda:0", "--pass", "train-step", *contexts(2))
    assert_rows(ran.rows, [LOST])
    assert any("the GPU is lost" in (event.get("why") or "") for event in ran.events)


def test_a_fault_in_a_lane_ends_its_cell_alone(tmp_path: Path) -> None:
    """The GPU is tried in a fresh process, where it computes, and the lane goes on."""
    kinds = (ILLEGAL, LAUNCH, ASSERT) * 3
    lines = at_random(kinds, 690, seed=2)
    words = ["--device", "cuda", "--lanes", "2", "--pass", "train-step", *contexts(len(lines))]
    ran = run(tmp_path, lines, "bench", *words, DEVICES=2, COMPUTE=1)
    said = Counter(next((kind.said for kind in kinds if kind.said in row.error), row.status) for row in ran.rows)
    assert said == Counter([*(kind.said for kind in kinds), *["ok"] * len(kinds)])


def test_a_lane_whose_memory_fails_is_set_aside_and_its_cell_runs_in_another(tmp_path: Path) -> None:
    lines = [f"300 {ECC.code}", *[SOUND] * 4]
    words = ["--device", "cuda", "--lanes", "2", "--pass", "train-step", *contexts(4)]
    ran = run(tmp_path, lines, "bench", *words, DEVICES=2, COMPUTE=1)
    assert [row.status for row in ran.rows] == ["ok"] * 4
    (aside,) = (event for event in ran.events if event["type"] == "LaneSetAside")
    assert ECC.said in aside["reason"]


@pytest.mark.parametrize("report", ["kernels", "memory"])
def test_a_fault_in_a_report_ends_that_report_alone(tmp_path: Path, report: str) -> None:
    lines = at_random([ILLEGAL, ECC], 300, seed=3)
    ran = run(tmp_path, lines, report, "--device", "cuda:0", "--pass", "train-step", *contexts(len(lines))[2:])
    assert_rows(ran.rows, [ILLEGAL, ECC])
