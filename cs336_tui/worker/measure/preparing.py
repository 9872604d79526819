"""Preparation before the first warm-up step: compiling the model, capturing the step as a CUDA graph."""

from __future__ import annotations

import importlib
import os
import re
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import NamedTuple

import psutil
import torch

from cs336_tui.config import processes
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import WITHOUT_BACKWARD, Compile
from cs336_tui.config.variants import is_imported
from cs336_tui.events.events import Stage, StepKind
from cs336_tui.stats.quantities import counted
from cs336_tui.worker.measure.autotuned import kernels
from cs336_tui.worker.measure.failures import chain_of, says_out_of_memory
from cs336_tui.worker.measure.timing import ESTIMATING_RUNS, clock_for
from cs336_tui.worker.workload.building import collect_garbage
from cs336_tui.worker.workload.compile_and_capture import (
    WARMUP_STEPS,
    CapturedStep,
    ReadyStep,
    break_reasons,
    captured,
    captures,
    compilations,
    forget_compiled,
)
from cs336_tui.worker.workload.import_problems import ImportProblem, is_users_file
from cs336_tui.worker.workload.passes import Step

LEAST_RUNS, LEAST_CAPTURING_RUNS, MOST_RUNS = 2, 3, 8
"""Runs of a step ahead: one to compile, one to see that all is compiled; with CUDA graphs one to compile, one to record
and one to replay; at most `MOST_RUNS` for a model that never stops being compiled."""
_COMPILERS = ("torch._dynamo", "torch._inductor", "triton")  # Modules that raise the errors of compiling
_FRAME = re.compile(r'File "(.+)", line (\d+), in (\w+)')
_TRIED_WITHOUT_DATA = re.compile(r"got (?P<kind>\w+)\((['\"])(?P<said>.+)\2\)")  # Of an operation tried without data
_FAILED_RUNNING = re.compile(r"\AFailed running [^\n]*:\n(?P<said>[^\n]+)")  # The same up to torch 2.7, without a kind
_WITHIN_CACHE = {"TRITON_CACHE_DIR": "triton"}  # Variables of caches inside torch.compile's own
_HEADER_FOLDERS = {"_HEADER_DIR": "headers", "_HEADER_LOCK_DIR": "headers/locks"}  # They do not follow torch's caches


class CompileError(RuntimeError):
    """torch.compile's failure in one line; its full message is in the cause."""


class Preparation(NamedTuple):
    """The work before the first warm-up step, as in `cs336_tui.events.events.ModelPrepared`."""

    compile_s: float | None = None
    graphs: int = 0
    graph_breaks: tuple[str, ...] = ()
    runs: int = 0  # Of the step, by compiling
    capture_s: float | None = None


@contextmanager
def fresh_compiler(*modes: Compile, always: bool = False) -> Iterator[None]:
    """Run cells with these modes with empty caches, in memory and on disk, so that compiling takes its full time; only
    if one of them compiles, or `always`, for what user code compiles itself. If the user names a folder for torch's
    caches (`processes.USERS_CACHE_FOLDER`), it is used as it is."""
    if set(modes) <= {"off"} and not always:
        yield
        return
    forget_compiled()
    with ExitStack() as around:
        around.callback(forget_compiled)
        if (folder := processes.USERS_CACHE_FOLDER) is None:
            # A killed child leaves the folder: the runner makes children create theirs inside its own.
            made = tempfile.TemporaryDirectory(prefix="compile-", ignore_cleanup_errors=True)
            folder = around.enter_context(made)
            within = {name: os.path.join(folder, inner) for name, inner in _WITHIN_CACHE.items()}  # noqa: PTH118
            around.enter_context(processes.environment({processes.CACHE_FOLDER: folder, **within}))
        around.enter_context(_headers_in(folder))
        yield


def compile_ahead(
    step: Step,
    device: torch.device,
    mode: Compile,
    go_on: Callable[[], object],
    settled: Callable[[bool], bool] = bool,
    compiled: Callable[[], object] = lambda: None,
) -> Preparation:
    """Run forward, loss and backward of the step, as far as its pass has them, until nothing is compiled any more.

    `compile_s` is that of all runs but the last: compiling, first runs and recording of CUDA graphs. Without the
    optimizer parameters keep their values; gradients are dropped. `go_on` is called between runs and may raise;
    `settled` tells of all ranks, from each one's own, whether nothing is compiled any more; `compiled` is called after
    the first run, which compiles and tunes, before CUDA graphs are recorded. Raises `CompileError` if torch.compile
    fails, `ImportProblem` if it finds a fault of the model, and what the model raises.
    """
    least = LEAST_CAPTURING_RUNS if captures(mode, device.type) else LEAST_RUNS
    clock, before = clock_for(device), compilations()
    clock.synchronize()
    began = perf_counter()
    seconds = 0.0
    with _compilers_that_end_with_this_process():
        for number in range(MOST_RUNS):
            go_on()
            seen, seconds = compilations(), perf_counter() - began
            try:
                step.run_trial()
                step.end_trial()
                clock.synchronize()
            except Exception as error:
                if (found := next(filter(says_out_of_memory, chain_of(error)), None)) is not None:
                    raise found from None
                if (problem := _problem_of(error)) is not None:
                    raise problem from error
                raise
            if not number:
                compiled()
            if number + 1 >= least and settled(compilations() == seen):
                break
        else:
            seconds = perf_counter() - began
    collect_garbage()  # compiling leaves much garbage, and the collector is off while a cell runs
    return Preparation(seconds, compilations().graphs - before.graphs, break_reasons(before), number + 1)


class Recompilations:
    """Counts recompilations in steps of a cell. With `by_model` the model calls torch.compile itself, so that nothing
    was compiled ahead: compilation in warm-up is then expected, and only that in measured steps counts."""

    def __init__(self, *, by_model: bool = False) -> None:
        self.count = 0
        self._by_model = by_model
        self._found: dict[StepKind, list[int]] = {"warm-up": [], "measured": []}
        self._before = compilations()

    def step_begins(self) -> None:
        """Count compilations from here on to the next steps. Never called within a timed region."""
        self._before = compilations()

    def steps_ended(self, kind: StepKind, first: int, count: int = 1) -> None:
        """Count compilations in these steps, numbered from 0; of several, all are named."""
        now = compilations()
        if now.frames != self._before.frames and not (self._by_model and kind == "warm-up"):
            self.count += now.frames - self._before.frames
            self._found[kind] += range(first, first + count)
        self._before = now

    def remarks(self) -> tuple[str, ...]:
        """Remarks on the recompilations."""
        remarks = []
        own = "torch.compile, which the model calls itself, compiled"
        what = own if self._by_model else "torch.compile compiled again"
        if numbers := self._found["warm-up"]:
            remarks.append(f"{what} in {_steps('warm-up step', numbers)}")
        if numbers := self._found["measured"]:
            whose = "whose time includes it" if len(numbers) == 1 else "whose times include it"
            remarks.append(f"{what} in {_steps('measured step', numbers)}, {whose}")
        return tuple(remarks)


def _steps(noun: str, numbers: list[int]) -> str:
    """``measured steps 3, 4 and 5``, counted from 1; of many the first four."""
    *first, last = (str(number + 1) for number in numbers)
    if not first:
        return f"{noun} {last}"
    if len(first) > 4:
        return f"{noun}s {', '.join(first[:4])} and {len(first) - 3} more"
    return f"{noun}s {', '.join(first)} and {last}"


def _problem_of(error: Exception) -> Exception | None:
    """The failure of torch.compile, or the model's fault that it found, in one line; None for another error."""
    chain = list(chain_of(error))
    if not any(type(each).__module__.startswith(_COMPILERS) for each in chain):
        return None
    text = str(error)
    frames = _FRAME.findall(text)
    own = [frame for frame in frames if is_users_file(frame[0])] or frames
    place = f" ({Path(own[-1][0]).name}:{own[-1][1]} in {own[-1][2]})" if own else ""
    if tried := _tried_without_data(error):  # fails without torch.compile, too
        return ImportProblem(f"{tried.rstrip('.')}{place}")
    # The error's first line, and the first of a compiler's lines that contains "error:".
    lines = [line.strip() for line in str(chain[-1]).splitlines() if line.strip()]
    message = lines[0].rstrip(".") if lines else type(chain[-1]).__name__
    if wrong := next((line for line in lines[1:] if "error:" in line), None):
        message = f"{message}: {wrong}"
    return CompileError(f"{message}{place}; choose --compile off to run the model as it is written")


def _tried_without_data(error: Exception) -> str | None:
    """The error of an operation that torch.compile tried without data; None for any other error."""
    text = str(error)
    if found := _TRIED_WITHOUT_DATA.search(text):
        return f"{found['kind']}: {found['said']}"
    if found := _FAILED_RUNNING.search(text):
        first = error.__context__ or error
        while first.__cause__ is not None:
            first = first.__cause__
        return f"{type(first).__name__}: {found['said']}"
    return None


@contextmanager
def _headers_in(folder: str) -> Iterator[None]:
    """Keep precompiled C++ headers in this folder. Older releases of torch precompile none."""
    try:
        codecache = importlib.import_module("torch._inductor.codecache")
    except Exception:  # compiling meets and reports the same error
        yield
        return
    before = {name: getattr(codecache, name) for name in _HEADER_FOLDERS if hasattr(codecache, name)}
    forget = getattr(getattr(codecache, "_precompile_header", None), "cache_clear", lambda: None)
    forget()
    for name in before:
        setattr(codecache, name, os.path.join(folder, _HEADER_FOLDERS[name]))  # noqa: PTH118
    try:
        yield
    finally:
        forget()
        for name, value in before.items():
            setattr(codecache, name, value)


@contextmanager
def _compilers_that_end_with_this_process() -> Iterator[None]:
    """Make a SIGTERM kill the compilers that this process started: they would run on beside the next measurement."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(number: int, _frame: FrameType | None) -> None:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def prepare(
    step: Step,
    spec: CellSpec,
    device: torch.device,
    enter: Callable[[Stage], object],
    go_on: Callable[[], object],
    *,
    settled: Callable[[bool], bool] = bool,
    compiled: Callable[[], object] = lambda: None,
    tried_s: float = 0.0,
) -> tuple[ReadyStep, Preparation | None]:
    """Compile and capture the step if the spec asks for it or it has Triton's kernels of a user's own: the step to be
    timed, and what that took. `tried_s` is what such kernels took as they were tried before. `enter` is called with
    each stage, `go_on` between runs; both may raise. `settled` and `compiled` are those of `compile_ahead`.
    `Step.check` checks the first run. Raises `CompileError` or ValueError, in one line, for what cannot be compiled or
    captured."""
    own_kernels = spec.brings_own_code and any(kernels(is_users_file))  # which are compiled when they first run
    if spec.compile == spec.cuda_graph == "off" and not own_kernels:
        return step, None
    ready: ReadyStep = step
    done = Preparation()
    if spec.compile != "off" or own_kernels:
        enter("compiling")
        done = compile_ahead(step, device, spec.compile, go_on, settled, compiled)
        done = done._replace(compile_s=(done.compile_s or 0.0) + (tried_s if own_kernels else 0.0))
        step.check()
    if spec.cuda_graph != "off":
        enter("capturing")
        begin = perf_counter()
        ready = captured(step, device)
        done = done._replace(capture_s=perf_counter() - begin)
        step.check()
    return ready, done


def allocates_in_steps(step: ReadyStep, spec: CellSpec) -> bool:
    """True if each step allocates its memory; a CUDA graph has its memory since the capture."""
    return not (isinstance(step, CapturedStep) or captures(spec.compile, torch.device(spec.device).type))


def why_not_cold(spec: CellSpec, found: Preparation | None) -> str | None:
    """A remark on what ran before the first step of a cell without warm-up; None with warm-up, or if nothing ran."""
    if spec.warmup_steps:
        return None
    ran = []
    for code in filter(is_imported, (spec.attention, spec.norm)):
        ran.append(f"{code} was called once when it was built")
    if spec.is_collective:
        ran.append(f"one {spec.collective} ran ahead, to be checked")
    elif spec.parallel != "none" and spec.pass_ not in WITHOUT_BACKWARD:
        ran.append("steps were compared with one process")
    if found and found.runs:
        ran.append(f"compiling ran the model {counted(found.runs, 'time')}")
    if spec.timer == "do_bench" and spec.steps_for is not None:
        ran.append(f"{1 + ESTIMATING_RUNS} steps ran to estimate its time")
    if found and found.capture_s is not None:
        ran.append(f"{WARMUP_STEPS} whole steps ran before the capture")
    return f"the first step is not cold: {' and '.join(ran)}" if ran else None
