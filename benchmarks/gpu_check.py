"""Tests and benchmarks that need a CUDA GPU, in one command and one report, the most telling first.

Parts that do not fit into the budget are named at the end, with the command that runs them. What a part has said is in
the report as soon as it says it, so that a run that is cut off loses nothing.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks.reporting import machine, table

ROOT = Path(__file__).resolve().parent.parent
LEAST_S = 30.0
"""Least time for tests to begin, which includes importing torch and reaching the GPU."""
GRACE_S = 10.0
"""Before a part's end it is interrupted, so that pytest still sums up what it has."""
LINGER_S = 2.0
"""Time to read output of processes that a part has left behind, such as idle compilers."""
_PYTEST = [
    "-m", "pytest", "-v", "-rs", "--tb=short", "--timeout", "180", "-p", "no:cacheprovider",
    "-o", "addopts=",  # plugins that the settings name, and these tests do without, need not be installed
]  # fmt: skip


class Part(NamedTuple):
    """`about_s`: seconds that it may take on a data-centre GPU, a guess. `reports_itself`: whether it appends its own
    section to the report."""

    name: str
    title: str
    about_s: float
    arguments: Sequence[str]
    reports_itself: bool = False

    @property
    def least_s(self) -> float:
        """Seconds without which it is not worth beginning: half the tests tell something, half a benchmark nothing."""
        return LEAST_S if "pytest" in self.arguments else self.about_s


def _tests(name: str, title: str, about_s: float, *topics: str) -> Part:
    return Part(name, title, about_s, [*_PYTEST, *(f"tests/gpu/test_{topic}.py" for topic in topics)])


PARTS = (
    Part("doctor", "Doctor", 20, ["-m", "cs336_tui", "doctor"]),
    _tests("measuring", "GPU tests: measuring, device", 75, "measure_cuda", "nvml"),
    Part("do-bench", "Timer do_bench beside triton's", 30, ["-m", "benchmarks.do_bench"], True),
    _tests("do-bench-tests", "GPU tests: timer do_bench", 45, "do_bench_cuda"),
    _tests(
        "variants", "GPU tests: variants", 140, "cuda_graph", "attention_cuda", "float8_cuda", "imported_cuda",
        "agreement_cuda",
    ),
    _tests("predictions", "GPU tests: predicted peaks", 120, "predicted_peak", "checkpointing_cuda"),
    Part(
        "selftest", "Selftest", 190, ["-m", "cs336_tui", "selftest", "--device", "cuda", "--format", "markdown"],
    ),
    _tests(
        "reports", "GPU tests: reports, peaks", 160, "kernels_cuda", "memory_cuda", "peak_cuda", "dtypes_cuda",
        "reports_of_variants_cuda",
    ),
    _tests("problems", "GPU tests: problems, recordings", 150, "problems_cuda", "recordings_cuda"),
    _tests(
        "ranks", "GPU tests: several ranks, on two GPUs", 90, "shared_steps_cuda", "own_ranks_cuda", "collectives_cuda",
        "rank_memory_cuda", "rank_traffic_cuda", "gpus_of_ranks_cuda", "ranks_over_nodes_cuda",
    ),
    _tests("lanes", "GPU tests: lanes, on two GPUs", 90, "lanes_cuda", "cost_of_neighbours_cuda"),
    Part("creation", "Creation", 60, ["-m", "benchmarks.creation"], True),
    Part("overhead", "Overhead", 40, ["-m", "benchmarks.overhead", "--device", "cuda"], True),
    _tests("compiling", "GPU tests: compiling", 300, "variants_cuda", "compiling_cuda", "norms_cuda"),
    Part("start", "Start", 60, ["-m", "benchmarks.start"], True),
    Part("screen", "Screen", 70, ["-m", "benchmarks.screen_cost"], True),
    Part(
        "predicted-peak", "Predicted peak", 300, ["-m", "benchmarks.predicted_peak", "--device", "cuda", "--quick"],
        True,
    ),
)  # fmt: skip


class Done(NamedTuple):
    """`code`: None where the part was stopped for want of time."""

    code: int | None
    seconds: float
    said: str

    @property
    def result(self) -> str:
        return "stopped: no time left" if self.code is None else "passed" if not self.code else f"exit code {self.code}"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([part.name for part in PARTS]))
@click.option("--output", type=click.Path(path_type=Path), default=Path("gpu-report.md"), show_default=True)
@click.option("--budget", default=540.0, show_default=True, help="Seconds that all parts together may take.")
@click.option("--timeout", default=300.0, show_default=True, help="Seconds that one part may take.")
def main(names: tuple[str, ...], output: Path, budget: float, timeout: float) -> None:
    """Run these parts, by default all of them, in the order in which they tell most."""
    ends_at = time.monotonic() + budget
    output.write_text(f"# GPU report\n\n{machine()}\n\n")
    rows: list[list[str]] = []
    failed, left_out = [], []
    for part in PARTS:
        if names and part.name not in names:
            continue
        left_s = ends_at - time.monotonic()
        if left_s < part.least_s:
            left_out.append(part.name)
            rows.append([part.title, "left out: no time left", ""])
            continue
        click.echo(f"== {part.title}")
        done = _run(part, output, min(timeout, left_s))
        rows.append([part.title, done.result, f"{done.seconds:.0f}"])
        if done.code != 0:
            failed.append(part.name)
    summary = table(["part", "result", "seconds"], rows)
    if left_out:
        summary += f"\n\nStill to be run: `python -m benchmarks.gpu_check {' '.join(left_out)}`"
    with output.open("a") as report:
        report.write(f"## Parts\n\n{summary}\n")
    click.echo(f"{summary}\n\nwrote {output}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    sys.exit(bool(failed))


def _run(part: Part, output: Path, limit_s: float) -> Done:
    """Run one part and append its output to the report; if it reports itself, only after a failure."""
    own = ["--output", str(output.resolve())] if part.reports_itself else []
    with output.open("a") as report:

        def keep(text: str) -> None:
            report.write(text)
            report.flush()

        def tell(text: str) -> None:
            click.echo(text, nl=False)
            if not part.reports_itself:
                keep(text)

        if not part.reports_itself:
            keep(f"## {part.title}\n\n```\n")
        done = run([sys.executable, *part.arguments, *own], limit_s, tell)
        if not part.reports_itself:
            keep(f"```\n\n{done.result} after {done.seconds:.0f} s\n\n")
        elif done.code != 0:
            keep(f"## {part.title}\n\n```\n{done.said}```\n\n{done.result} after {done.seconds:.0f} s\n\n")
    return done


def run(command: Sequence[str], limit_s: float, tell: Callable[[str], None]) -> Done:
    """Run a command with all its processes for at most so many seconds; `tell` is given what it says, as it does.

    `GRACE_S` before the end (at most a third of the time) it is interrupted, as by Ctrl-C; at the end it is killed.
    """
    began = time.monotonic()
    interrupt_at = began + limit_s - min(GRACE_S, limit_s / 3)
    kill_at = began + limit_s
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": path}
    said: list[str] = []
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    stopped, listen_until = False, kill_at
    with process.stdout as pipe, selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (now := time.monotonic()) < listen_until:
            if now >= interrupt_at and not stopped:
                stopped = True
                _signal(process, signal.SIGINT)
            if process.poll() is not None:
                listen_until = min(listen_until, now + LINGER_S)
            if not selector.select(min(listen_until - now, 0.2)):
                continue
            if not (read := os.read(pipe.fileno(), 65536)):
                break
            said.append(read.decode(errors="replace"))
            tell(said[-1])
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(kill_at - time.monotonic(), 0))
    _signal(process, signal.SIGKILL)  # and what it has left behind
    code = process.wait()
    return Done(None if stopped else code, time.monotonic() - began, "".join(said))


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to the process and to those it started in its process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


if __name__ == "__main__":
    main()
