"""Fidelity: step times of a bare script, of `cs336-tui bench` and of the app in a terminal, taken in turns.

All run the same endless cell at once, but only one at a time is let go on (the others are stopped, SIGSTOP), a short
turn each, round after round. So a machine whose speed drifts, drifts for all of them. A step counts when it began
`SETTLE_S` or more after its turn did, since the others have had the caches, and ended within it.

A second copy of the bare script runs along as a control: how far its ratio to the first is from 1 is what this machine
adds to any ratio. All programs are started afresh a few times over, because where memory comes to lie differs from
one start to the next and stays for a process's life. Ratios of means and of std are taken round by round and the median
over all rounds reported, with the least and the greatest of the starts' own medians.

Whether glibc's malloc gives a step's memory back and faults it in again also differs from one start of a bare script to
the next. A cell's process always keeps it (`runner/child.py`); ``--keep-memory`` has the bare script do the same.
"""

from __future__ import annotations

import contextlib
import json
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

from benchmarks.reporting import publish, table, verdict
from cs336_tui.events import StepsTimed
from cs336_tui.session.log import LogReader
from cs336_tui.stats import summarize
from tests.terminal import Terminal

COMMAND = str(Path(sys.executable).with_name("cs336-tui"))
MEAN_MARK, STD_MARK = (0.98, 1.02), (0.0, 1.2)
ENDLESS = 1_000_000
SETTLE_S = 0.25
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
def programs(words: list[str], folder: Path, keep_memory: bool) -> Iterator[dict[str, Program]]:
    """The programs, started: two of the bare script, `bench`, and the app in a terminal of its own."""
    cell = [*words, "--warmup", "0"]
    silent = subprocess.DEVNULL

    def start(command: list[str], env: dict[str, str]) -> int:
        started.append(
            subprocess.Popen(
                command, start_new_session=True, stdin=silent, stdout=silent, stderr=silent, env=os.environ | env
            )
        )
        return started[-1].pid

    def bare(name: str) -> Program:
        command = [sys.executable, "-m", "benchmarks.bare", *words, "--output", str(folder / name)]
        group = start(command, KEEP_MEMORY if keep_memory else {})
        return Program(group, lambda: bare_steps(folder / name))

    def bench() -> Program:
        group = start([COMMAND, "bench", *cell, "--session-dir", str(folder / "bench")], {})
        return Program(group, lambda: session_steps(folder / "bench"))

    started: list[subprocess.Popen[bytes]] = []
    terminal = Terminal([COMMAND, *cell, "--session-dir", str(folder / "app")], emulate=False)
    try:
        running = {"bare": bare("bare"), "control": bare("control"), "bench": bench()}
        terminal.until_bytes(b"torch")
        terminal.send("r")
        yield running | {"app": Program(terminal.pid, lambda: session_steps(folder / "app"))}
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(terminal.pid, signal.SIGKILL)
        terminal.close()


def take_turns(words: list[str], rounds: int, turn_s: float, keep_memory: bool) -> list[dict[str, list[float]]]:
    """One start of all programs: the counted steps of each, round by round, seconds."""
    turns: list[dict[str, tuple[float, float]]] = []
    with tempfile.TemporaryDirectory() as scratch, programs(words, Path(scratch), keep_memory) as running:
        while not all(len(program.steps()) >= 5 for program in running.values()):
            time.sleep(0.5)
        for program in running.values():
            program.let(False)
        names = list(running)
        for number in range(rounds):
            first = number % len(names)
            spans = {}
            for name in names[first:] + names[:first]:
                begin = time.time()
                running[name].let(True)
                time.sleep(turn_s)
                spans[name] = (begin + SETTLE_S, time.time())
                running[name].let(False)
            turns.append(spans)
        for program in running.values():
            program.let(True)
        time.sleep(1.0)  # what was in a pipe when its reader was stopped reaches the log
        steps = {name: program.steps() for name, program in running.items()}

    def counted(name: str, begin: float, end: float) -> list[float]:
        return [step.took for step in steps[name] if begin <= step.end - step.took and step.end <= end]

    return [{name: counted(name, *spans[name]) for name in spans} for spans in turns]


def ratios(
    starts: list[list[dict[str, list[float]]]], name: str, of: Callable[[list[float]], float]
) -> list[list[float]]:
    """For each start, for each of its rounds: `of` the program's steps over `of` the bare script's."""
    return [
        [of(spans[name]) / of(spans["bare"]) for spans in rounds if len(spans[name]) > 1 and len(spans["bare"]) > 1]
        for rounds in starts
    ]


def median_of(values: list[list[float]]) -> tuple[float, str]:
    """Median over all rounds, and as text with the least and the greatest of the starts' medians."""
    median = statistics.median(value for rounds in values for value in rounds)
    each = [statistics.median(rounds) for rounds in values]
    return median, f"{median:.3f} ({min(each):.3f} to {max(each):.3f})"


def report(case: str, starts: list[list[dict[str, list[float]]]]) -> list[list[str]]:
    """Rows of the table: `bench`, the app and the control, each over the bare script."""
    rows = []
    bare = summarize([took for rounds in starts for spans in rounds for took in spans["bare"]])
    for name in ("bench", "app", "control"):
        n = sum(len(spans[name]) for rounds in starts for spans in rounds)
        mean, means = median_of(ratios(starts, name, statistics.fmean))
        std, stds = median_of(ratios(starts, name, statistics.stdev))
        judged = name != "control"
        rows.append(
            [
                case,
                f"{name} / bare" if judged else "bare / bare",
                f"{n}, {bare.n}",
                f"{(bare.mean_s or 0) * 1e3:.1f} ± {(bare.std_s or 0) * 1e3:.1f}",
                means,
                verdict(mean, *MEAN_MARK) if judged else "",
                stds,
                verdict(std, *STD_MARK) if judged else "",
            ]
        )
    return rows


@click.command()
@click.option(
    "--case", "cases", multiple=True, default=("tiny:forward:4:16:1.5", "small:forward:3:5:6"), show_default=True
)
@click.option("--device", default="cpu", show_default=True)
@click.option("--keep-memory", is_flag=True, help="Tell the bare script's malloc to keep freed memory.")
@click.option("--raw", type=click.Path(path_type=Path), help="Write every counted step time to this JSON file.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(cases: tuple[str, ...], device: str, keep_memory: bool, raw: Path | None, output: Path | None) -> None:
    """Each --case is SIZE:PASS:STARTS:ROUNDS:SECONDS, the seconds being those of a turn."""
    rows = []
    data = {}
    for case in cases:
        size, pass_, starts, rounds, turn_s = case.split(":")
        words = f"--size {size} --context 128 --batch 4 --pass {pass_} --steps {ENDLESS} --device {device}".split()
        data[case] = [take_turns(words, int(rounds), float(turn_s), keep_memory) for _ in range(int(starts))]
        rows += report(f"{size} {pass_}", data[case])
    if raw is not None:
        raw.write_text(json.dumps(data))
    header = [
        "context 128, batch 4",
        "ratio",
        "steps",
        "bare, ms ± std",
        "of means: median over rounds (least to greatest start)",
        "0.98 to 1.02",
        "of std: the same",
        "at most 1.2",
    ]
    command = f"python -m benchmarks.fidelity {' '.join(f'--case {case}' for case in cases)} --device {device}"
    command += " --keep-memory" if keep_memory else ""
    publish("Fidelity", command, table(header, rows), output)


if __name__ == "__main__":
    main()
