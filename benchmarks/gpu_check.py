"""Tests and benchmarks that need a CUDA GPU, in one command and one report, the most telling first.

It takes the torch of the Python that runs it, and needs nothing else to begin with: a part that lacks a package or a
second GPU is skipped, and says so. Parts that do not fit into the budget are named at the end, with the command that
runs them. What a part has said is in the report as soon as it says it, so that a run that is cut off loses nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from benchmarks.reporting import machine, table

ROOT = Path(__file__).resolve().parent.parent
LEAST_S = 30.0
"""Least time for tests to begin, which includes importing torch and reaching the GPU."""
GRACE_S = 10.0
"""Before a part's end it is interrupted, so that pytest still sums up what it has."""
LINGER_S = 2.0
"""Time to read output of processes that a part has left behind, such as idle compilers."""
SIMULATED = "SIMGPU_DEVICES" in os.environ
"""Whether the GPU is the simulated one of `tests/simgpu`, on which no claim of time can be settled."""
_PYTEST = [
    "-m", "pytest", "-v", "-rs", "--tb=short", "-p", "no:cacheprovider",
    "-o", "addopts=",  # plugins that the settings name, and these tests do without, need not be installed
    *(("--timeout", "180") if find_spec("pytest_timeout") else ()),
    *(("-m", "not real_numbers and not numbers") if SIMULATED else ()),
]  # fmt: skip
_OF_DOCTOR = ("click", "msgspec", "platformdirs", "psutil")
_OF_ALL = (*_OF_DOCTOR, "numpy", "rich", "tabulate")
_OF_SCREEN = ("textual", "ptyprocess", "pyte")
_SCREEN_NEEDS = (*_OF_ALL, *_OF_SCREEN)


class Part(NamedTuple):
    """`about_s`: seconds that it may take on a data-centre GPU, a guess. `reports_itself`: whether it appends its own
    section to the report. `gpus` and `needs`: how many GPUs and which modules it cannot do without. pip has these under
    the same names. `times`: whether its marks are claims of time, which only hardware can settle."""

    name: str
    title: str
    about_s: float
    arguments: Sequence[str]
    reports_itself: bool = False
    gpus: int = 1
    needs: Sequence[str] = _OF_ALL
    times: bool = False

    def lacks(self, gpus: int) -> str | None:
        """What this machine, on which torch sees so many GPUs, lacks for it; None if nothing."""
        if gpus < self.gpus:
            return f"needs {self.gpus} GPUs, and torch sees {gpus}"
        missing = [module for module in self.needs if find_spec(module) is None]
        return f"needs what `{sys.executable} -m pip install {' '.join(missing)}` installs" if missing else None

    @property
    def least_s(self) -> float:
        """Seconds without which it is not worth beginning: half the tests tell something, half a benchmark nothing."""
        return LEAST_S if "pytest" in self.arguments else self.about_s


def _tests(name: str, title: str, about_s: float, *topics: str, gpus: int = 1) -> Part:
    words = [*_PYTEST, *(f"tests/gpu/test_{topic}.py" for topic in topics)]
    return Part(name, title, about_s, words, gpus=gpus, needs=(*_OF_ALL, "pytest"))


PARTS = (
    Part("doctor", "Doctor", 20, ["-m", "cs336_tui", "doctor"], needs=_OF_DOCTOR),
    _tests("measuring", "GPU tests: measuring, device", 75, "measure_cuda", "nvml"),
    Part("do-bench", "Timer do_bench beside triton's", 30, ["-m", "benchmarks.do_bench"], True, times=True),
    _tests("do-bench-tests", "GPU tests: timer do_bench", 45, "do_bench_cuda"),
    _tests(
        "variants", "GPU tests: variants", 140, "cuda_graph", "attention_cuda", "float8_cuda", "imported_cuda",
        "agreement_cuda",
    ),
    _tests("predictions", "GPU tests: predicted peaks", 120, "predicted_peak"),
    Part(
        "selftest", "Selftest", 190, ["-m", "cs336_tui", "selftest", "--device", "cuda", "--format", "markdown"],
        times=True,
    ),
    _tests(
        "reports", "GPU tests: reports, peaks", 160, "kernels_cuda", "memory_cuda", "peak_cuda",
        "reports_of_variants_cuda",
    ),
    _tests("problems", "GPU tests: problems, recordings", 150, "problems_cuda", "recordings_cuda"),
    _tests(
        "ranks", "GPU tests: several ranks, on two GPUs", 90, "ranks_cuda", "collectives_cuda",
        "gpus_of_ranks_cuda", gpus=2,
    ),
    _tests("lanes", "GPU tests: lanes, on two GPUs", 90, "lanes_cuda", gpus=2),
    Part("creation", "Creation", 60, ["-m", "benchmarks.creation"], True, times=True),
    Part("overhead", "Overhead", 40, ["-m", "benchmarks.overhead", "--device", "cuda"], True, times=True),
    _tests("compiling", "GPU tests: compiling", 300, "variants_cuda", "compiling_cuda"),
    Part("start", "Start", 60, ["-m", "benchmarks.start"], True, needs=_SCREEN_NEEDS, times=True),
    Part("screen", "Screen", 70, ["-m", "benchmarks.screen_cost"], True, needs=_SCREEN_NEEDS, times=True),
    Part(
        "predicted-peak", "Predicted peak", 300, ["-m", "benchmarks.predicted_peak", "--device", "cuda", "--quick"],
        True,
    ),
)  # fmt: skip


_SUMMED_UP = re.compile(r"^=+ (.*) in [\d.]+s.* =+$", re.MULTILINE)
_COUNTED = re.compile(r"(\d+) (passed|skipped|failed|errors?)")
_SKIPPED = re.compile(r"^SKIPPED \[\d+\] \S+: (.*)$", re.MULTILINE)


class Done(NamedTuple):
    """`code`: None where the part was stopped for want of time."""

    code: int | None
    seconds: float
    said: str

    @property
    def result(self) -> str:
        """As it ended. Of tests that were skipped no part passed: their number, or why if no test ran."""
        if self.code is None:
            return "stopped: no time left"
        if self.code:
            return f"exit code {self.code}"
        summary = _SUMMED_UP.findall(self.said)
        tests = {what: int(number) for number, what in _COUNTED.findall(summary[-1])} if summary else {}
        if not tests.get("skipped"):
            return "passed"
        if tests.get("passed"):
            return f"passed, {tests['skipped']} of {sum(tests.values())} tests skipped"
        return f"skipped: {'; '.join(dict.fromkeys(_SKIPPED.findall(self.said)))}"


_ASK = """
import json, torch
gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
why = "" if torch.version.cuda else "it is built without CUDA"
if not gpus and not why:
    try:
        torch.cuda.init()
    except Exception as error:
        why = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
print(json.dumps([torch.__version__, gpus, why]))
"""
"""Asked in a process of its own, so that this one holds no context on a GPU."""


class TorchHere(NamedTuple):
    """The torch of this Python, how many CUDA GPUs it sees, and `why` it sees none, if it says."""

    version: str
    gpus: int
    why: str

    @property
    def problem(self) -> str | None:
        """Why nothing can be checked, in a line."""
        if self.gpus:
            return None
        because = f": {self.why}" if self.why else ""
        return f"no GPU to check: torch {self.version} of {sys.executable} sees none{because}"


def torch_here() -> TorchHere:
    """Ask the torch of this Python. Raises `SystemExit`, with a line, without one."""
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=False)
    if done.returncode:
        last = next(iter(done.stderr.strip().splitlines()[-1:]), f"exit code {done.returncode}")
        raise SystemExit(f"gpu_check: torch cannot be asked for GPUs: {last}")
    return TorchHere(*json.loads(done.stdout.splitlines()[-1]))


def _parser() -> argparse.ArgumentParser:
    about = "Run these parts, by default all of them, in the order in which they tell most."
    parser = argparse.ArgumentParser("python -m benchmarks.gpu_check", description=about)
    names = [part.name for part in PARTS]
    parser.add_argument("names", nargs="*", metavar="PART", help=", ".join(names), type=_one_of(names))
    parser.add_argument("--output", type=Path, default=Path("gpu-report.md"), help="The report: %(default)s.")
    parser.add_argument(
        "--budget", type=float, default=540.0, help="Seconds that all parts together may take: %(default)s."
    )
    parser.add_argument("--timeout", type=float, default=300.0, help="Seconds that one part may take: %(default)s.")
    return parser


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    def checked(name: str) -> str:
        if name not in names:
            raise argparse.ArgumentTypeError(f"{name} is no part; choose from {', '.join(names)}")
        return name

    return checked


def main(words: Sequence[str] | None = None) -> int:
    """Run the parts that are named, and return the exit code: 1 if one failed, if none ran or without a GPU."""
    options = _parser().parse_args(words)
    ends_at = time.monotonic() + options.budget
    here = torch_here()
    if here.problem:
        print(here.problem)
        return 1
    output: Path = options.output
    on = machine() if all(map(find_spec, _OF_ALL)) else f"Python {sys.version.split()[0]}"
    output.write_text(f"# GPU report\n\n{on}, torch {here.version}, GPUs: {here.gpus}{' (simulated)' * SIMULATED}\n\n")
    rows: list[list[str]] = []
    failed, left_out, ran = [], [], 0
    for part in PARTS:
        if options.names and part.name not in options.names:
            continue
        if why := part.lacks(here.gpus):
            print(f"== {part.title}\nskipped: {why}", flush=True)
            rows.append([part.title, f"skipped: {why}", ""])
            continue
        left_s = ends_at - time.monotonic()
        if left_s < part.least_s:
            left_out.append(part.name)
            rows.append([part.title, "left out: no time left", ""])
            continue
        print(f"== {part.title}", flush=True)
        done = _run(part, output, min(options.timeout, left_s))
        unsettled = "; its times only hardware can settle" if SIMULATED and part.times else ""
        rows.append([part.title, done.result + unsettled, f"{done.seconds:.0f}"])
        ran += not done.result.startswith("skipped")
        if done.code != 0:
            failed.append(part.name)
    summary = table(["part", "result", "seconds"], rows)
    if left_out:
        summary += f"\n\nStill to be run: `python -m benchmarks.gpu_check {' '.join(left_out)}`"
    with output.open("a") as report:
        report.write(f"## Parts\n\n{summary}\n")
    print(f"{summary}\n\nwrote {output}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return int(bool(failed) or not ran)


def _run(part: Part, output: Path, limit_s: float) -> Done:
    """Run one part and append its output to the report; if it reports itself, only after a failure."""
    own = ["--output", str(output.resolve())] if part.reports_itself else []
    with output.open("a") as report:

        def keep(text: str) -> None:
            report.write(text)
            report.flush()

        def tell(text: str) -> None:
            print(text, end="", flush=True)
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
    sys.exit(main())
