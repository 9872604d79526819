"""A sweep that is killed at a random moment, many times over: nothing that was finished is lost or doubled."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from benchmarks.reporting import publish, table
from cs336_tui.events import CellFinished, CellStarted, StepsTimed
from cs336_tui.session.log import LogReader
from cs336_tui.session.store import load

COMMAND = str(Path(sys.executable).with_name("cs336-tui"))
MODEL = "--d-model 32 --d-ff 64 --num-layers 1 --num-heads 2 --vocab-size 64 --context 8 --pass forward --threads 1"
SWEEP = f"{MODEL} --batch 1,2,3,4,5,6 --warmup 1 --steps 600 --device cpu"
CELLS, WARMUP, STEPS = 6, 1, 600


def steps_by_attempt(log: Path) -> dict[tuple[int, int], Counter[tuple[str, int]]]:
    """How often each step stands in the log, for each attempt (from 1) at each cell."""
    attempts: Counter[int] = Counter()
    found: dict[tuple[int, int], Counter[tuple[str, int]]] = {}
    for event in LogReader(log):
        match event:
            case CellStarted():
                attempts[event.cell] += 1
                found[event.cell, attempts[event.cell]] = Counter()
            case StepsTimed():
                steps = ((event.kind, event.first + i) for i in range(len(event.times_s)))
                found[event.cell, attempts[event.cell]].update(steps)
    return found


def one(home: Path, kill_after_s: float) -> tuple[int, int]:
    """Run the sweep, kill it so long after its log is there, resume it to its end.

    Returns how many cells had no result at the kill, and how much is wrong at the end.
    """
    words = [COMMAND, "bench", *SWEEP.split(), "--session-dir", str(home), "--device-interval", "0"]
    silent = subprocess.DEVNULL
    process = subprocess.Popen(words, start_new_session=True, stdin=silent, stdout=silent, stderr=silent)
    try:
        while process.poll() is None and not list(home.glob("*.jsonl")):
            time.sleep(0.005)
        process.wait(kill_after_s)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (log,) = home.glob("*.jsonl")
    before = [line for line in log.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    finished = {event.cell for event in LogReader(log) if isinstance(event, CellFinished)}
    subprocess.run(
        [COMMAND, "resume", str(log), "--device-interval", "0"],
        stdin=silent, stdout=silent, stderr=silent, check=bool(before[1:]),
    )  # fmt: skip
    if not any(b'"CellsQueued"' in line for line in before):
        return CELLS, 0  # killed before there was a cell to run
    state = load(log)
    wrong = sum(cell.status != "ok" for cell in state.cells.values()) + (len(state.cells) != CELLS)
    wrong += sum((len(c.warmup_times_s), len(c.step_times_s)) != (WARMUP, STEPS) for c in state.cells.values())
    # Every line that was whole before the kill still is where it was, and no step stands twice in an attempt.
    wrong += not log.read_bytes().startswith(b"".join(before))
    by_attempt = steps_by_attempt(log)
    wrong += sum(count != 1 for steps in by_attempt.values() for count in steps.values())
    wrong += sum((cell, 2) in by_attempt for cell in finished)
    results = Counter(event.cell for event in LogReader(log) if isinstance(event, CellFinished))
    wrong += sum(count != 1 for count in results.values())
    return CELLS - len(finished), wrong


@click.command()
@click.option("--kills", default=50, show_default=True)
@click.option("--seed", default=336, show_default=True)
@click.option(
    "--latest", default=3.0, show_default=True, help="The latest moment of a kill, seconds from the log's beginning."
)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(kills: int, seed: int, latest: float, output: Path | None) -> None:
    moments = random.Random(seed)
    left: Counter[int] = Counter()
    wrong = 0
    for _ in range(kills):
        with tempfile.TemporaryDirectory() as home:
            cells, errors = one(Path(home), moments.uniform(0.0, latest))
        left[cells] += 1
        wrong += errors
    spread = ", ".join(f"{cells}: {count}" for cells, count in sorted(left.items()))
    rows = [
        [f"kills, by cells then without a result (of {CELLS})", spread],
        [
            "cells without exactly one result, steps lost or doubled",
            f"{wrong}; at most 0: {'MISSED' if wrong else 'met'}",
        ],
    ]
    command = f"python -m benchmarks.kill_resume --kills {kills} --seed {seed} --latest {latest:g}"
    publish("Killed and resumed", command, table(["a sweep under SIGKILL", ""], rows), output)


if __name__ == "__main__":
    main()
