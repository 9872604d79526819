"""Preparation before the first warm-up step: compiling the model, capturing the step as a CUDA graph."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import psutil
import torch

from cs336_tui.config import environment_variables
from cs336_tui.config.axes import Compile
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.events.events import Stage, StepKind
from cs336_tui.worker.measure.devices import clock_for
from cs336_tui.worker.measure.failures import chain_of, says_out_of_memory
from cs336_tui.worker.workload.compiling import break_reasons, captures, compilations, forget_compiled
from cs336_tui.worker.workload.cuda_graph import WARMUP_STEPS, CapturedStep, captured
from cs336_tui.worker.workload.imported.problems import ImportProblem, is_users_file
from cs336_tui.worker.workload.passes import Step

LEAST_RUNS, LEAST_CAPTURING_RUNS, MOST_RUNS = 2, 3, 8
"""How often a step runs ahead: once to compile and once to see that all is compiled. Where CUDA graphs are captured,
once to compile, once to record and once to replay. A model that never stops being compiled is let go at the most."""
_COMPILERS = ("torch._dynamo", "torch._inductor", "triton")
"""Modules whose errors are of compiling."""
_FRAME = re.compile(r'File "(.+)", line (\d+), in (\w+)')
_TRIED_WITHOUT_DATA = re.compile(r"got (?P<kind>\w+)\((['\"])(?P<said>.+)\2\)")
"""How torch.compile tells of frames in the model, and of an operation that failed when it tried it without data."""
_FAILED_RUNNING = re.compile(r"\AFailed running [^\n]*:\n(?P<said>[^\n]+)")
"""How it tells of that up to torch 2.7, which names the error's kind nowhere."""
_WITHIN_CACHE = {"TRITON_CACHE_DIR": "triton"}
"""Variables of caches that lie inside torch.compile's own."""
_HEADER_FOLDERS = {"_HEADER_DIR": "headers", "_HEADER_LOCK_DIR": "headers/locks"}
"""Where torch keeps precompiled C++ headers: in one place, whatever folder its caches are in."""


class CompileError(RuntimeError):
    """What torch.compile could not do, in one line; all that it said is in the cause."""


class Compiled(NamedTuple):
    """What compiling took and came to, as in `cs336_tui.events.events.ModelPrepared`."""

    seconds: float
    graphs: int
    graph_breaks: tuple[str, ...]
    runs: int
    """How often the step ran for that."""


@contextmanager
def fresh_compiler(*modes: Compile) -> Iterator[None]:
    """For cells with these modes: nothing that was compiled before is there, in memory or on disk, nor will be after.

    So what compiling takes is what a first compilation takes, whatever ran before. Where a user names a folder for
    torch's caches (`environment_variables.USERS_CACHE_FOLDER`), that is used as it is.
    """
    if set(modes) <= {"off"}:
        yield
        return
    forget_compiled()
    try:
        if environment_variables.USERS_CACHE_FOLDER is not None:
            with _headers_in(environment_variables.USERS_CACHE_FOLDER):
                yield
        else:
            # A child that is killed leaves the folder: the runner has children make theirs inside its own.
            with tempfile.TemporaryDirectory(prefix="compile-", ignore_cleanup_errors=True) as folder:
                within = {name: os.path.join(folder, inner) for name, inner in _WITHIN_CACHE.items()}  # noqa: PTH118
                with _environment({environment_variables.CACHE_FOLDER: folder, **within}), _headers_in(folder):
                    yield
    finally:
        forget_compiled()


def compile_ahead(step: Step, device: torch.device, mode: Compile, go_on: Callable[[], object]) -> Compiled:
    """Run forward, loss and backward of the step, as far as its pass has them, until nothing is compiled any more.

    `seconds` are those of all runs but the last, which compiled nothing: compiling itself, the first runs of what was
    compiled and, where CUDA graphs are captured, recording them. A user waits for them all before a step is fast.

    The optimizer is left out, so that parameters stay as they are, and gradients are dropped. `go_on` is called between
    runs and may raise. Raises `CompileError` for what torch.compile cannot do, `ImportProblem` for what it finds wrong
    with the model, and whatever the model raises.
    """
    least = LEAST_CAPTURING_RUNS if captures(mode, device.type) else LEAST_RUNS
    clock, before = clock_for(device), compilations()
    clock.synchronize()
    began = time.perf_counter()
    seconds = 0.0
    with _compilers_that_end_with_this_process():
        for number in range(MOST_RUNS):
            go_on()
            seen, seconds = compilations(), time.perf_counter() - began
            try:
                _run_once(step)
                clock.synchronize()
            except Exception as error:
                if (found := next(filter(says_out_of_memory, chain_of(error)), None)) is not None:
                    raise found from None
                if (problem := _problem_of(error)) is not None:
                    raise problem from error
                raise
            if number + 1 >= least and compilations() == seen:
                break
        else:
            seconds = time.perf_counter() - began
    gc.collect()  # compiling leaves much behind, and nothing collects it while a cell runs
    return Compiled(seconds, compilations().graphs - before.graphs, break_reasons(before), number + 1)


class Recompilations:
    """How often torch.compile compiled again in steps of a cell, and in which.

    With `by_model` it is the model that calls it, so that nothing was compiled ahead: then warm-up steps are for that,
    and only what is compiled in measured ones is counted and told.
    """

    def __init__(self, *, by_model: bool = False) -> None:
        self.count = 0
        self._by_model = by_model
        self._found: dict[StepKind, list[int]] = {"warm-up": [], "measured": []}
        self._before = compilations()

    def step_begins(self) -> None:
        """What is compiled from here on is of the next steps. Never called within a timed region."""
        self._before = compilations()

    def steps_ended(self, kind: StepKind, first: int, count: int = 1) -> None:
        """Look at what was compiled in these steps, numbered from 0; of several nobody knows in which of them."""
        now = compilations()
        if now.frames != self._before.frames and not (self._by_model and kind == "warm-up"):
            self.count += now.frames - self._before.frames
            self._found[kind] += range(first, first + count)
        self._before = now

    def remarks(self) -> tuple[str, ...]:
        """What is to be known beside the cell's number."""
        told = []
        what = (
            "torch.compile, which the model calls itself, compiled"
            if self._by_model
            else "torch.compile compiled again"
        )
        if numbers := self._found["warm-up"]:
            told.append(f"{what} in {_steps('warm-up step', numbers)}")
        if numbers := self._found["measured"]:
            whose = "whose time includes it" if len(numbers) == 1 else "whose times include it"
            told.append(f"{what} in {_steps('measured step', numbers)}, {whose}")
        return tuple(told)


def _steps(noun: str, numbers: list[int]) -> str:
    """``measured steps 3, 4 and 5 (3 in all)``, counted from 1; of many the first few."""
    named = [str(number + 1) for number in numbers]
    if len(named) == 1:
        return f"{noun} {named[0]}"
    if len(named) > 5:
        return f"{noun}s {', '.join(named[:4])} and {len(named) - 4} more"
    return f"{noun}s {', '.join(named[:-1])} and {named[-1]}"


def _run_once(step: Step) -> None:
    """As a step of its pass runs, without the optimizer; leaves no gradients and no outputs."""
    step.prepare()
    for phase in step.phases:
        if phase != "optimizer":
            step.run(phase)
    step.clear()
    if step.back_to_back:
        step.run("zero_grad")


def _problem_of(error: Exception) -> Exception | None:
    """In one line, what torch.compile could not do, or found wrong with the model; None for an error of neither."""
    chain = list(chain_of(error))
    if not any(type(each).__module__.startswith(_COMPILERS) for each in chain):
        return None
    text = str(error)
    frames = _FRAME.findall(text)
    own = [frame for frame in frames if is_users_file(frame[0])] or frames
    place = f" ({Path(own[-1][0]).name}:{own[-1][1]} in {own[-1][2]})" if own else ""
    if tried := _tried_without_data(error):  # which would fail without torch.compile, too
        return ImportProblem(f"{tried.rstrip('.')}{place}")
    return CompileError(f"{_in_one_line(chain[-1])}{place}; choose --compile off to run the model as it is written")


def _tried_without_data(error: Exception) -> str | None:
    """What an operation of the model raised when torch.compile tried it without data; None for any other error."""
    text = str(error)
    if found := _TRIED_WITHOUT_DATA.search(text):
        return f"{found['kind']}: {found['said']}"
    if found := _FAILED_RUNNING.search(text):
        first = error.__context__ or error
        while first.__cause__ is not None:
            first = first.__cause__
        return f"{type(first).__name__}: {found['said']}"
    return None


def _in_one_line(error: Exception) -> str:
    """Its first line, and of a compiler's pages the first that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0].rstrip(".") if lines else type(error).__name__
    wrong = next((line for line in lines[1:] if "error:" in line), None)
    return f"{first}: {wrong}" if wrong else first


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables, and put them back."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _headers_in(folder: str) -> Iterator[None]:
    """Keep precompiled C++ headers in this folder, too. Older releases of torch precompile none."""
    try:
        codecache = importlib.import_module("torch._inductor.codecache")
    except Exception:  # compiling meets the same error, and tells it
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
    """Have a SIGTERM end the compilers that this process started before it ends the process.

    A compiler of C++ would go on for seconds, beside whatever is measured next.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(number: int, _frame: FrameType | None) -> None:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


ReadyStep = Step | CapturedStep
"""A step as it is timed."""


class Preparation(NamedTuple):
    """What it took, as in `cs336_tui.events.events.ModelPrepared`; None for what was not done."""

    compiled: Compiled | None
    capture_s: float | None


def prepare(
    step: Step, spec: CellSpec, device: torch.device, enter: Callable[[Stage], object], go_on: Callable[[], object]
) -> tuple[ReadyStep, Preparation | None]:
    """The step as it is to be timed, and what making it so took; None where nothing was to be done.

    `enter` is called with each stage, `go_on` between runs of the step, and may raise. The first run is checked, as
    `Step.check` does. Raises `CompileError` or ValueError, in one line, for what cannot be compiled or captured.
    """
    if spec.compile == spec.cuda_graph == "off":
        return step, None
    compiled, capture_s = None, None
    ready: ReadyStep = step
    if spec.compile != "off":
        enter("compiling")
        compiled = compile_ahead(step, device, spec.compile, go_on)
        step.check()
    if spec.cuda_graph != "off":
        enter("capturing")
        begin = time.perf_counter()
        ready = captured(step, device)
        capture_s = time.perf_counter() - begin
        step.check()
    return ready, Preparation(compiled, capture_s)


def allocates_in_steps(step: ReadyStep, spec: CellSpec) -> bool:
    """Whether each step asks the allocator for its memory; a replay of a CUDA graph has had it since its capture."""
    return not (isinstance(step, CapturedStep) or captures(spec.compile, torch.device(spec.device).type))


def why_not_cold(spec: CellSpec, found: Preparation | None) -> str | None:
    """What ran before the first step of a cell without warm-up, in words; None with warm-up, or where nothing did."""
    if spec.warmup_steps:
        return None
    ran = []
    if is_imported(spec.attention):
        ran.append(f"{spec.attention} was called once when it was built")
    if found and found.compiled:
        ran.append(f"compiling ran the model {found.compiled.runs} times")
    if found and found.capture_s is not None:
        ran.append(f"{WARMUP_STEPS} whole steps ran before the capture")
    return f"the first step is not cold: {' and '.join(ran)}" if ran else None
