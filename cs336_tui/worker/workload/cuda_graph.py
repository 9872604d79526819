"""Captures a whole step as one CUDA graph, which the host launches once: the time left is the device's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol

import torch

from cs336_tui.worker.workload.imported.problems import in_one_line
from cs336_tui.worker.workload.passes import Step, Training

PHASE = "graph"  # The only phase of a captured step
WARMUP_STEPS = 3  # Before a capture, on a stream of their own ("CUDA graphs" in torch's notes on CUDA semantics)


class Cuda(Protocol):
    """The part of `torch.cuda` that a capture needs."""

    Stream: Callable[..., Any]
    CUDAGraph: Callable[[], Any]
    graph: Callable[..., AbstractContextManager[object]]
    stream: Callable[..., AbstractContextManager[object]]
    current_stream: Callable[..., Any]
    set_stream: Callable[[Any], object]
    current_device: Callable[[], int]
    graph_pool_handle: Callable[[], Any]
    memory: Any
    default_generators: Any


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


def why_no_graph(device_type: str) -> str | None:
    """The reason for which this kind of device cannot capture a step; None if it can."""
    return None if device_type == "cuda" else f"cuda graph step: {device_type} has none, only cuda has"


def captured(step: Step, device: torch.device, cuda: Cuda = torch.cuda) -> CapturedStep:
    """Warm the step up on a stream of its own, capture it, and replay it from now on.

    Warm-up runs whole steps, in which an optimizer makes its state outside the graph. Gradients are dropped before the
    capture, so that every replay makes new ones. Raises ValueError, in one line, for a device without graphs, and
    `CaptureError` for a step that cannot be captured. Errors of the warm-up and of lack of memory are raised as they
    are.
    """
    if (why := why_no_graph(device.type)) is not None:
        raise ValueError(why)
    # A capture forbids libraries to create handles and workspaces, which they do at first use of a stream.
    stream = cuda.Stream(device)
    stream.wait_stream(cuda.current_stream(device))
    with cuda.stream(stream), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*capturable=True")  # it must run outside a capture at first
        for _ in range(WARMUP_STEPS):
            _run(step)
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


def _forget(graph: Any, pool: Any, cuda: Cuda) -> None:
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


def _run(step: Step) -> None:
    for phase in step.phases:
        step.run(phase)


def _capture(step: Step) -> None:
    try:
        _run(step)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise CaptureError(error, step.failed_in) from error
