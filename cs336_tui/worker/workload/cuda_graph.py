"""A whole step as one CUDA graph: launched once by the host, so that what is left is the device's own time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol

import torch

from cs336_tui.worker.workload.imported.problems import in_one_line
from cs336_tui.worker.workload.passes import Step, Training

PHASE = "graph"
"""The only phase of a captured step."""
WARMUP_STEPS = 3
"""Before a capture, on a stream of their own ("CUDA graphs" in torch's notes on CUDA semantics)."""


class Cuda(Protocol):
    """What of `torch.cuda` a capture needs."""

    @property
    def Stream(self) -> Callable[..., Any]: ...
    @property
    def CUDAGraph(self) -> Callable[[], Any]: ...
    @property
    def graph(self) -> Callable[..., AbstractContextManager[object]]: ...
    @property
    def stream(self) -> Callable[..., AbstractContextManager[object]]: ...
    @property
    def current_stream(self) -> Callable[..., Any]: ...
    @property
    def set_stream(self) -> Callable[[Any], object]: ...
    @property
    def current_device(self) -> Callable[[], int]: ...
    @property
    def graph_pool_handle(self) -> Callable[[], Any]: ...
    @property
    def memory(self) -> Any: ...
    @property
    def default_generators(self) -> Any: ...


class CaptureError(ValueError):
    """In one line: in which of its phases the step could not be captured, what was said, and what to do."""

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
    """A step whose phases are replayed at once, as one phase named ``graph``. Made by `captured`.

    What it works on stays where it was: batch, parameters, optimizer state. All that the step allocates lies in the
    graph's private memory pool, which is as large as the step's peak and belongs to the graph until that is dropped;
    replaying allocates nothing. Numbers that the host computed, such as an imported optimizer's count of steps, are as
    they were at the capture.
    """

    phases: tuple[str, ...] = (PHASE,)
    back_to_back = True
    """Nothing lies between two replays."""

    def __init__(self, step: Step, replay: Callable[[], object]) -> None:
        self._step = step
        self._replay = replay
        self.failed_in: str | None = None
        """The phase that raised, None while it has not."""

    @property
    def training(self) -> Training | None:
        return self._step.training

    @property
    def logits_dtype(self) -> torch.dtype | None:
        """dtype of the logits at the capture, which every replay writes again."""
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


def why_no_graph(device_type: str) -> str | None:
    """Why a step on this kind of device cannot be captured; None where it may be."""
    return None if device_type == "cuda" else f"cuda graph step: {device_type} has none, only cuda has"


def captured(step: Step, device: torch.device, cuda: Cuda = torch.cuda) -> CapturedStep:
    """The step as one graph: warmed up on a stream of its own, captured, and from now on replayed.

    The steps before the capture are whole steps. Those of a training step change the parameters, as warm-up steps do
    everywhere: an optimizer makes its state in its first step, and that must not become a part of the graph.

    Gradients are dropped before the capture, so that backward makes new ones in the graph's memory, there and at every
    replay, instead of adding to old ones.

    Raises ValueError, in one line, for a device without graphs, and `CaptureError` for a step that cannot be captured.
    What the steps before it raise, `Step.check` included, and running out of memory anywhere are raised as they are.
    """
    if (why := why_no_graph(device.type)) is not None:
        raise ValueError(why)
    # Libraries make their handles and workspaces when they are first used on a stream, which a capture forbids.
    stream = cuda.Stream(device)
    stream.wait_stream(cuda.current_stream(device))
    with cuda.stream(stream), _no_warning_of_capturable():
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
        # Ending a capture that has failed raises an error of its own on top.
        for first in (error, error.__context__):
            if isinstance(first, CaptureError | torch.OutOfMemoryError):
                raise first from first.__cause__
        raise CaptureError(error, None) from error
    step.clear()
    return CapturedStep(step, graph.replay)


@contextmanager
def _workspaces_of_its_own() -> Iterator[None]:
    """Have cuBLAS's workspaces made anew within, and dropped at the end: within a capture they lie in the graph's pool.

    Those that are there may be cleared by anybody, as by torch.compile where it captures graphs, and given to others;
    a replay would go on writing to them.
    """
    clear: Callable[[], None] = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    clear()
    try:
        yield
    finally:
        clear()


END_ALLOCATING = ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")
"""What `torch.cuda.memory` calls it, the latter before torch 2.7."""


def _forget(graph: Any, pool: Any, cuda: Cuda) -> None:
    """Have torch know that a capture is over whose end raised an error.

    ``CUDAGraph::capture_end`` does that only after CUDA has ended the capture well. Else, for as long as the process
    lives, the allocator takes it to be under way: it gives no memory back, not even where it runs out, and
    `empty_cache` fails. So does the device's default generator: whatever draws from it, such as dropout, raises. It
    gets a copy of its state, which no capture has had, and goes on from where it was.
    """
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


@contextmanager
def _no_warning_of_capturable() -> Iterator[None]:
    """torch warns where an optimizer that can be captured runs outside a capture, which it must do first."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*capturable=True")
        yield


def _capture(step: Step) -> None:
    try:
        _run(step)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise CaptureError(error, step.failed_in) from error
