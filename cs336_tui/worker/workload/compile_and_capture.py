"""torch.compile and CUDA graphs: their requirements, the compiled form of a model and counts of its work, and the
capture of a whole step as one graph, which the host launches once: the time left is the device's own."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn

from cs336_tui.config.values import CAPTURING, Compile
from cs336_tui.worker.workload.import_problems import in_one_line
from cs336_tui.worker.workload.passes import Results, Step, Training

_OFF = "or choose --compile off"
_WRAPPER = str(Path("torch", "nn", "parallel", "distributed.py"))


class Compilations(NamedTuple):
    """Counts of torch.compile's work in this process."""

    frames: int  # Functions, or parts of them, that it took up to compile; again for each time
    graphs: int  # Graphs that it made of them
    breaks: int  # Places at which it had to end a graph, in the order of `break_reasons`


def why_cannot_compile(device_type: str) -> str | None:
    """The requirement of torch.compile that this kind of device lacks, in one line; None if none is known."""
    try:
        torch.compile(backend="inductor")  # without a model it only checks Python's version
    except RuntimeError as error:
        return f"{str(error).splitlines()[0]}; use another Python, {_OFF}"
    if device_type == "cuda" and find_spec("triton") is None:
        return f"torch.compile needs Triton on CUDA: install the package triton, {_OFF}"
    if device_type not in ("cpu", "cuda"):
        return None
    # The compiler's language, the variable that names it, the usual commands: Inductor's `cpp.cxx`, Triton's.
    cxx = ("clang++",) if sys.platform == "darwin" else ("g++",)
    language, variable, usual = ("C", "CC", ("gcc", "clang")) if device_type == "cuda" else ("C++", "CXX", cxx)
    named = os.environ.get(variable)
    if named and shutil.which(named) is None:
        return f"torch.compile needs a {language} compiler and {variable}={named} names none: set it to one, {_OFF}"
    if not named and not any(map(shutil.which, usual)):
        return f"torch.compile needs a {language} compiler: install {usual[0]} or set {variable} to one, {_OFF}"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return f"torch.compile needs the headers of Python (Python.h): install python3-dev, or what brings them, {_OFF}"
    return None


def compiled(model: nn.Module, mode: Compile, device: torch.device) -> nn.Module:
    """The model, to be compiled at its first call. Raises ValueError, in one line, if torch.compile cannot work."""
    if why := why_cannot_compile(device.type):
        raise ValueError(f"compile {mode}: {why}")
    made: nn.Module = torch.compile(model, mode=None if mode == "default" else mode)
    return made


def nothing_compiled() -> AbstractContextManager[object]:
    """A context in which a user's compiled code runs uncompiled: a trial would compile it for the trial's sizes."""
    if "torch._dynamo" not in sys.modules:  # not imported, which takes a second: nothing was compiled
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def captures(mode: Compile, device_type: str) -> bool:
    """True if torch.compile captures CUDA graphs in this mode, in its first calls."""
    return mode in CAPTURING and device_type == "cuda"


def compilations() -> Compilations:
    """The counts so far. Takes microseconds and imports nothing."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return Compilations(0, 0, 0)
    counters = utils.counters
    return Compilations(
        counters["frames"]["total"], counters["stats"]["unique_graphs"], len(getattr(utils, "graph_break_reasons", ()))
    )


def break_reasons(since: Compilations) -> tuple[str, ...]:
    """Reasons of the graph breaks since then, a line each: place in the model's source, and what was not compiled."""
    utils = sys.modules.get("torch._dynamo.utils")
    reasons = getattr(utils, "graph_break_reasons", [])[since.breaks :]
    lines: dict[str, None] = {}
    for each in reasons:
        files = [str(getattr(frame, "filename", "")) for frame in each.user_stack]
        # torch's DistributedDataParallel ends the graph round every model.
        of_wrapper = any(file.endswith(_WRAPPER) for file in files) or "`DistributedDataParallel." in str(each.reason)
        if getattr(each, "graph_break", True) and not of_wrapper:
            lines[_break_line(str(each.reason), each.user_stack)] = None
    return tuple(lines)


def _break_line(reason: str, stack: Sequence[object]) -> str:
    """The reason in one line: the first sentence of torch's explanation."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    explained = next((line.partition(":")[2].strip() for line in lines if line.startswith("Explanation:")), "")
    text = explained or (lines[0] if lines else "for a reason that torch does not give")
    text = text.removeprefix("Dynamo does not know how to ").partition(". ")[0].rstrip(".")
    frame = stack[-1] if stack else None
    name, line = getattr(frame, "filename", None), getattr(frame, "lineno", None)
    return f"{Path(name).name}, line {line}: {text}" if name else text


def forget_compiled() -> None:
    """Drop everything that was compiled in this process."""
    if "torch._dynamo" not in sys.modules:
        return
    torch._dynamo.reset()
    if (inductor := sys.modules.get("torch._inductor.utils")) is not None:
        # Its name from torch 2.6 on.
        getattr(inductor, "clear_inductor_caches", lambda: None)()


def forget_sizes() -> None:
    """Make torch.compile forget the sizes that functions met: once they differ, in any model, it else makes code for
    any size. Keeps compiled code. Takes microseconds and imports nothing."""
    if (pgo := sys.modules.get("torch._dynamo.pgo")) is not None:
        pgo.reset_code_state()


def effective_compiler(model: nn.Module) -> str | None:
    """Backend and options of a compiled model, in words; None for an uncompiled one."""
    context = getattr(model, "dynamo_ctx", None)
    if context is None:
        return None
    backend = getattr(context, "callback", None)
    while backend is not None and not hasattr(backend, "compiler_name"):
        older = getattr(backend, "_torchdynamo_orig_callable", None)
        backend = getattr(backend, "_torchdynamo_orig_backend", None) or older
    if backend is None:
        return "torch.compile"
    options = getattr(backend, "config", None) or {}
    return ", ".join([str(backend.compiler_name), *(f"{name}={value}" for name, value in sorted(options.items()))])


PHASE = "graph"  # The only phase of a captured step
WARMUP_STEPS = 3  # Before a capture, on a stream of their own ("CUDA graphs" in torch's notes on CUDA semantics)


class CaptureError(ValueError):
    """One line: the phase that could not be captured, the error and the remedy."""

    def __init__(self, error: Exception, phase: str | None) -> None:
        where = f" in its {phase}" if phase else ""
        why, instead = "a step that waits for the device, as .item() does, never can be", ""
        if "CUDAGeneratorImpl" in str(error):
            why = "random generators cannot be read meanwhile, as checkpointing of a model of your own does"
            instead = "checkpoint nothing (--checkpoint 0) or "
        super().__init__(
            f"the step cannot be captured{where}: {in_one_line(error)}; {why}: {instead}leave the CUDA graph off "
            f"(--cuda-graph off)"
        )


class CapturedStep:
    """A step that is replayed as one phase, ``graph``. Made by `captured`.

    Batch, parameters and optimizer state stay in place. Other memory lies in the graph's private pool, as large as the
    step's peak, until the graph is dropped; a replay allocates nothing. Numbers that the host computed, such as an
    imported optimizer's step count, keep their values of the capture.
    """

    phases: tuple[str, ...] = (PHASE,)
    back_to_back = True  # Nothing lies between two replays
    prepares = False

    def __init__(self, step: Step, replay: Callable[[], object]) -> None:
        self._step = step
        self._replay = replay
        self.failed_in: str | None = None  # The phase that raised, None while it has not

    @property
    def training(self) -> Training | None:
        return self._step.training

    @property
    def logits_dtype(self) -> torch.dtype | None:
        return self._step.logits_dtype

    @property
    def results(self) -> Results:
        """Those of the last replay, in the graph's memory; only a train-step keeps them."""
        return self._step.results

    def prepare(self) -> None:
        """Nothing: every phase is in the graph."""

    def run(self, phase: str) -> None:
        assert phase == PHASE
        try:
            self._replay()
        except BaseException:
            self.failed_in = PHASE
            raise

    def check(self) -> None:
        """Nothing: the steps before the capture were checked."""

    def clear(self) -> None:
        """Nothing: a replay leaves nothing that it will not overwrite."""


ReadyStep = Step | CapturedStep  # A step as it is timed


def run_whole(step: ReadyStep) -> None:
    """Run all phases of a step that is prepared."""
    for phase in step.phases:
        step.run(phase)


def captured(step: Step, device: torch.device, cuda: ModuleType = torch.cuda) -> CapturedStep:
    """Warm the step up on a stream of its own, capture it, and replay it from now on.

    Warm-up runs whole steps, in which an optimizer makes its state outside the graph. Gradients are dropped before the
    capture, so that every replay makes new ones. Raises ValueError, in one line, for a device without graphs, and
    `CaptureError` for a step that cannot be captured. Errors of the warm-up and of lack of memory are raised as they
    are.
    """
    if device.type != "cuda":
        raise ValueError(f"cuda graph step: {device.type} has none, only cuda has")
    # A capture forbids libraries to create handles and workspaces, which they do at first use of a stream.
    stream = cuda.Stream(device)
    stream.wait_stream(cuda.current_stream(device))
    with cuda.stream(stream), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*capturable=True")  # it must run outside a capture at first
        for _ in range(WARMUP_STEPS):
            run_whole(step)
            step.clear()
            step.check()
        if step.back_to_back:
            step.run("zero_grad")
    before = cuda.current_stream(device)
    before.wait_stream(stream)
    graph, pool = cuda.CUDAGraph(), cuda.graph_pool_handle()
    try:
        with _workspaces_of_its_own(), cuda.graph(graph, pool=pool, stream=stream):
            _capture(step)
    except Exception as error:
        cuda.set_stream(before)
        _forget(graph, pool, cuda)
        # The end of a failed capture raises another error.
        for first in (error, error.__context__):
            if isinstance(first, CaptureError | torch.OutOfMemoryError):
                raise first from first.__cause__
        raise CaptureError(error, None) from error
    step.clear()
    return CapturedStep(step, graph.replay)


@contextmanager
def _workspaces_of_its_own() -> Iterator[None]:
    """Make cuBLAS allocate new workspaces, which a capture puts into the graph's pool, and drop them at the end.
    Existing ones may be cleared, as by torch.compile, and given to others; a replay would go on writing to them."""
    clear: Callable[[], None] = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    clear()
    try:
        yield
    finally:
        clear()


END_ALLOCATING = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")  # The latter before 2.7


def _forget(graph: Any, pool: Any, cuda: ModuleType) -> None:
    """End a capture for torch, as ``CUDAGraph::capture_end`` only does on success: else the allocator gives no memory
    back, `empty_cache` fails, and the device's default generator, which gets a copy of its state, raises on every
    draw."""
    memory, device = cuda.memory, cuda.current_device()
    end = next(getattr(memory, name) for name in END_ALLOCATING if hasattr(memory, name))
    with suppress(RuntimeError):  # the capture itself ended well
        end(device, pool)
        memory._cuda_releasePool(device, pool)
    with suppress(RuntimeError):
        graph.reset()
        generator = cuda.default_generators[device]
        generator.graphsafe_set_state(generator.clone_state())


def _capture(step: Step) -> None:
    try:
        run_whole(step)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise CaptureError(error, step.failed_in) from error
