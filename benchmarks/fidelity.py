"""Fidelity: step times measured by a bare script, by `cs336-tui bench` and by the app in a terminal, interleaved.

Each round runs the three one after another, in an order that turns with the round, so that a machine that drifts
drifts for all of them. A ratio is taken within a round; the median over rounds is reported.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.reporting import publish, spread, table, verdict
from cs336_tui.events import CellFinished
from cs336_tui.session.log import LogReader
from cs336_tui.session.state import SessionState
from cs336_tui.stats import summarize
from tests.terminal import Terminal

COMMAND = str(Path(sys.executable).with_name("cs336-tui"))
MEAN_MARK, STD_MARK = (0.98, 1.02), (0.0, 1.2)


@dataclass(frozen=True)
class Case:
    size: str
    pass_: str
    steps: int
    device: str

    @property
    def words(self) -> list[str]:
        return (
            f"--size {self.size} --context 128 --batch 4 --pass {self.pass_} --warmup 5 --steps {self.steps} "
            f"--device {self.device}"
        ).split()


def bare(case: Case) -> list[float]:
    """Measured step times of the bare script, seconds."""
    done = subprocess.run([sys.executable, "-m", "benchmarks.bare", *case.words], capture_output=True, check=True)
    times: list[float] = json.loads(done.stdout)
    return times


def headless(case: Case) -> list[float]:
    """Measured step times of `cs336-tui bench`, seconds."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [COMMAND, "bench", *case.words, "--format", "json", "--session-dir", home], capture_output=True, check=True
        )
    times: list[float] = json.loads(done.stdout)["runs"][0]["step_times_s"]
    return times


def in_the_app(case: Case) -> list[float]:
    """Measured step times of the app in a 120x40 terminal, seconds, read from its session log."""
    with tempfile.TemporaryDirectory() as home:
        terminal = Terminal([COMMAND, *case.words, "--session-dir", home], emulate=False)
        try:
            terminal.until_bytes(b"Configure")
            terminal.send("r")
            while True:
                time.sleep(0.5)  # rarely, so as not to take the processor from what is measured
                for log in Path(home).glob("*.jsonl"):
                    state, over = SessionState(), False
                    for event in LogReader(log):
                        state.apply(event)
                        over |= isinstance(event, CellFinished)
                    if over:
                        return state.cells[0].step_times_s
                assert not terminal.is_over, "the app ended before its cell did"
        finally:
            terminal.close()


MEASURES: dict[str, Callable[[Case], list[float]]] = {"bare": bare, "bench": headless, "app": in_the_app}


def run_case(case: Case, rounds: int) -> list[list[str]]:
    """Rows of the report: the ratios of `bench` and of the app to the bare script."""
    means: dict[str, list[float]] = {name: [] for name in MEASURES}
    stds: dict[str, list[float]] = {name: [] for name in MEASURES}
    for number in range(rounds):
        names = list(MEASURES)
        for name in names[number % 3 :] + names[: number % 3]:
            summary = summarize(MEASURES[name](case))
            means[name].append(summary.mean_s or 0.0)
            stds[name].append(summary.std_s or 0.0)
    rows = []
    for name in ("bench", "app"):
        mean = [a / b for a, b in zip(means[name], means["bare"], strict=True)]
        std = [a / b for a, b in zip(stds[name], stds["bare"], strict=True)]
        rows.append(
            [
                f"{case.size} {case.pass_}",
                f"{name} / bare",
                f"{statistics.median(means['bare']) * 1e3:.1f}",
                spread(mean),
                verdict(statistics.median(mean), *MEAN_MARK),
                spread(std, 2),
                verdict(statistics.median(std), *STD_MARK),
            ]
        )
    return rows


@click.command()
@click.option("--rounds", default=9, show_default=True)
@click.option("--small-steps", default=8, show_default=True)
@click.option("--tiny-steps", default=150, show_default=True)
@click.option("--passes", default="forward,train-step", show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(rounds: int, small_steps: int, tiny_steps: int, passes: str, device: str, output: Path | None) -> None:
    rows = []
    for size, steps in (("tiny", tiny_steps), ("small", small_steps)):
        for pass_ in passes.split(","):
            rows += run_case(Case(size, pass_, steps, device), rounds)
    header = ["context 128, batch 4", "ratio", "bare, ms", "of means", "0.98 to 1.02", "of std", "at most 1.2"]
    command = (
        f"python -m benchmarks.fidelity --rounds {rounds} --tiny-steps {tiny_steps} --small-steps {small_steps} "
        f"--passes {passes} --device {device}"
    )
    body = f"Median over {rounds} rounds (least to greatest).\n\n" + table(header, rows)
    publish("Fidelity", command, body, output)


if __name__ == "__main__":
    main()
