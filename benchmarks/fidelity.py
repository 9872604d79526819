"""Fidelity: step times of a bare script, of `cs336-tui bench` and of the app in a terminal, taken in turns.

All three run the same endless cell at once, but only one at a time is let go on (the others are stopped, SIGSTOP), a
short turn each, round after round. So a machine whose speed drifts, drifts for all of them. A step counts when it began
and ended within a turn of its program; the first of each turn does not, since the others have had the caches.
A ratio of means is taken round by round and its median reported; the ratio of std is that of all counted steps.

Whether glibc's malloc gives a step's memory back and faults it in again differs from one start of a bare
script to the next. A cell's process always keeps it (`runner/child.py`), so the
bare script is told to do the same, by environment variables; ``--plain-malloc`` leaves it to its luck.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.reporting import publish, spread, table, verdict
from cs336_tui.events import StepsTimed
from cs336_tui.session.log import LogReader
from cs336_tui.stats import summarize
from tests.terminal import Terminal

COMMAND = str(Path(sys.executable).with_name("cs336-tui"))
MEAN_MARK, STD_MARK = (0.98, 1.02), (0.0, 1.2)
ENDLESS = 1_000_000
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20)}


@dataclass(frozen=True)
class Timed:
    """One step: when it ended (Unix time) and how long it took, seconds."""

    end: float
    took: float


@dataclass(frozen=True)
class Program:
    """A running program: its process group, and a way to read the steps it has timed so far."""

    group: int
    steps: Callable[[], list[Timed]]

    def let(self, go_on: bool) -> None:
        os.killpg(self.group, signal.SIGCONT if go_on else signal.SIGSTOP)


def session_steps(directory: Path) -> list[Timed]:
    """Steps in the directory's session log, measured or warm-up, oldest first."""
    steps: list[Timed] = []
    for log in directory.glob("*.jsonl"):
        for event in LogReader(log):
            if isinstance(event, StepsTimed):
                # Merged events tell the end of their last step only; the others ended before it, back to back.
                end = event.at
                for took in reversed(event.times_s):
                    steps.append(Timed(end, took))
                    end -= took
    return sorted(steps, key=lambda step: step.end)


def bare_steps(file: Path) -> list[Timed]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [Timed(*map(float, line.split())) for line in lines if len(line.split()) == 2]


@contextlib.contextmanager
def programs(words: list[str], folder: Path, plain_malloc: bool = False) -> Iterator[dict[str, Program]]:
    """The three programs, started."""
    bare_env = os.environ | ({} if plain_malloc else KEEP_MEMORY)
    silent = subprocess.DEVNULL
    output = folder / "bare"
    cell = [*words, "--warmup", "0"]
    commands = {
        "bare": [sys.executable, "-m", "benchmarks.bare", *words, "--output", str(output)],
        "bench": [COMMAND, "bench", *cell, "--session-dir", str(folder / "bench")],
    }
    started = {
        name: subprocess.Popen(
            command,
            start_new_session=True,
            stdin=silent,
            stdout=silent,
            stderr=silent,
            env=bare_env if name == "bare" else None,
        )
        for name, command in commands.items()
    }
    terminal = Terminal([COMMAND, *cell, "--session-dir", str(folder / "app")], emulate=False)
    try:
        terminal.until_bytes(b"torch")
        terminal.send("r")
        yield {
            "bare": Program(started["bare"].pid, lambda: bare_steps(output)),
            "bench": Program(started["bench"].pid, lambda: session_steps(folder / "bench")),
            "app": Program(terminal.pid, lambda: session_steps(folder / "app")),
        }
    finally:
        for process in started.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(terminal.pid, signal.SIGKILL)
        terminal.close()


def run_case(size: str, pass_: str, device: str, rounds: int, turn_s: float, plain_malloc: bool) -> list[list[str]]:
    """Rows of the report: the ratios of `bench` and of the app to the bare script."""
    words = f"--size {size} --context 128 --batch 4 --pass {pass_} --steps {ENDLESS} --device {device}".split()
    turns: list[dict[str, tuple[float, float]]] = []
    with tempfile.TemporaryDirectory() as scratch, programs(words, Path(scratch), plain_malloc) as running:
        while not all(len(program.steps()) >= 5 for program in running.values()):
            time.sleep(0.5)
        for program in running.values():
            program.let(False)
        names = list(running)
        for number in range(rounds):
            spans = {}
            for name in names[number % 3 :] + names[: number % 3]:
                begin = time.time()
                running[name].let(True)
                time.sleep(turn_s)
                spans[name] = (begin, time.time())
                running[name].let(False)
            turns.append(spans)
        for program in running.values():
            program.let(True)
        time.sleep(1.0)  # what was in a pipe when its reader was stopped reaches the log
        steps = {name: program.steps() for name, program in running.items()}

    def counted(name: str, spans: dict[str, tuple[float, float]]) -> list[float]:
        begin, end = spans[name]
        inside = [step.took for step in steps[name] if begin <= step.end - step.took and step.end <= end]
        return inside[1:]

    rows = []
    bare = summarize([took for spans in turns for took in counted("bare", spans)])
    for name in ("bench", "app"):
        pairs = [(counted(name, spans), counted("bare", spans)) for spans in turns]
        means = [statistics.fmean(a) / statistics.fmean(b) for a, b in pairs if a and b]
        ours = summarize([took for a, _ in pairs for took in a])
        std = (ours.std_s or 0.0) / (bare.std_s or 1.0)
        rows.append(
            [
                f"{size} {pass_}",
                f"{name} / bare",
                f"{bare.n}, {ours.n}",
                f"{(bare.mean_s or 0) * 1e3:.2f} ± {(bare.std_s or 0) * 1e3:.2f}",
                spread(means),
                verdict(statistics.median(means), *MEAN_MARK),
                f"{std:.2f}",
                verdict(std, *STD_MARK),
            ]
        )
    return rows


@click.command()
@click.option(
    "--case", "cases", multiple=True, default=("tiny:forward:60:1.5", "small:forward:20:6"), show_default=True
)
@click.option("--device", default="cpu", show_default=True)
@click.option("--plain-malloc", is_flag=True, help="Do not tell the bare script's malloc to keep freed memory.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(cases: tuple[str, ...], device: str, plain_malloc: bool, output: Path | None) -> None:
    """Each --case is SIZE:PASS:ROUNDS:SECONDS, the seconds being those of a turn."""
    rows = []
    for case in cases:
        size, pass_, rounds, turn_s = case.split(":")
        rows += run_case(size, pass_, device, int(rounds), float(turn_s), plain_malloc)
    header = [
        "context 128, batch 4",
        "ratio",
        "steps",
        "bare, ms ± std",
        "of means: median over rounds (least to greatest)",
        "0.98 to 1.02",
        "of std",
        "at most 1.2",
    ]
    command = f"python -m benchmarks.fidelity {' '.join(f'--case {case}' for case in cases)} --device {device}"
    command += " --plain-malloc" if plain_malloc else ""
    publish("Fidelity", command, table(header, rows), output)


if __name__ == "__main__":
    main()
