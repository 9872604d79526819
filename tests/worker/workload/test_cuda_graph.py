"""Capture of a step as a CUDA graph: calls to CUDA in their order, and the state after it.

A recorder replaces torch's CUDA, under which a "capture" just runs; tests with a real one are in tests/gpu.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from cs336_tui.config.spec import ModelDims, Pass
from cs336_tui.worker.workload.building import make_optimizer
from cs336_tui.worker.workload.compile_and_capture import (
    END_ALLOCATING,
    WARMUP_STEPS,
    CapturedStep,
    CaptureError,
    captured,
    run_whole,
)
from cs336_tui.worker.workload.passes import Step, Training
from cs336_tui.worker.workload.transformer import Transformer, random_batch

DEVICE = torch.device("cuda:0")
CPU = torch.device("cpu")
POOL = (0, 7)
CAPTURED_PASSES: tuple[Pass, ...] = ("inference", "forward", "forward+loss", "forward+backward", "train-step")


class CapturedGenerator:
    """A real generator whose state a capture takes, as it does of CUDA's. A clone of a state is in no capture."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator or torch.Generator().manual_seed(0)
        self.is_captured = False

    def clone_state(self) -> CapturedGenerator:
        return CapturedGenerator(self.generator.clone_state())

    def graphsafe_set_state(self, other: CapturedGenerator) -> None:
        self.generator, self.is_captured = other.generator, other.is_captured

    def draw(self) -> float:
        if self.is_captured:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        return torch.rand((), generator=self.generator).item()


class Stream:
    def __init__(self, name: str, said: list[str]) -> None:
        self.name, self.said = name, said

    def __repr__(self) -> str:
        return self.name

    def wait_stream(self, other: object) -> None:
        self.said.append(f"{self} waits for {other}")


class Recorder:
    """The part of `torch.cuda` that a capture needs. Keeps its calls in `said`."""

    def __init__(self, ending: Callable[[], None] = lambda: None, end_allocating: str = END_ALLOCATING[0]) -> None:
        said = self.said = list[str]()
        self.default_generators = (CapturedGenerator(),)
        self._ending = ending
        self._stream = "main"
        self.Stream = lambda _device: Stream("side", said)
        self.current_stream = lambda _device: Stream(self._stream, said)
        self.current_device = lambda: 0
        self.graph_pool_handle = lambda: POOL
        self.CUDAGraph = lambda: SimpleNamespace(
            replay=partial(said.append, "replay"), reset=partial(said.append, "reset")
        )

        def allocates_no_more(device: int, pool: object) -> None:
            """Doing so twice is an error, as it is in torch."""
            if "captured" in said:
                raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
            said.append(f"{device} allocates no more to {pool}")

        self.memory = SimpleNamespace(_cuda_releasePool=lambda device, pool: said.append(f"{device} releases {pool}"))
        setattr(self.memory, end_allocating, allocates_no_more)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self._stream = stream.name
        self.said.append(f"on {stream}")
        yield
        self._stream = "main"
        self.said.append(f"off {stream}")

    def set_stream(self, stream: Stream) -> None:
        self._stream = stream.name
        self.said.append(f"back on {stream}")

    @contextmanager
    def graph(self, _graph: object, pool: object, stream: Stream) -> Iterator[None]:
        """Like torch's graph: if ending the capture fails, its stream stays the current one."""
        assert pool == POOL
        before, self._stream = self._stream, stream.name
        self.said.append(f"capture on {stream}")
        (generator,) = self.default_generators
        generator.is_captured = True
        try:
            yield
        finally:
            self._ending()
            generator.is_captured = False
            self.said.append("captured")
            self._stream = before


class Watched(nn.Module):
    """A model that reports its runs, and whether it found gradients."""

    def __init__(self, model: nn.Module, said: list[str]) -> None:
        super().__init__()
        self.model = model
        self.said = said

    def forward(self, tokens: Tensor) -> Tensor:
        with_gradients = any(parameter.grad is not None for parameter in self.model.parameters())
        self.said.append("forward over gradients" if with_gradients else "forward")
        out: Tensor = self.model(tokens)
        return out


def a_step(pass_: Pass, said: list[str], model: nn.Module | None = None) -> Step:
    if model is None:
        dims = ModelDims(d_model=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=12)
        model = Transformer(dims, arch="swiglu-rope", context_length=4, device="cpu")
        model.initialise(0)
    training = None
    if pass_ == "train-step":
        training = Training(*make_optimizer("adamw", model, "cpu"), "cpu", scale_gradients=False)
    batch = random_batch(2, 4, 12, device=CPU, seed=0)
    return Step(pass_, Watched(model, said), batch, nullcontext, training)


@pytest.mark.parametrize("pass_", CAPTURED_PASSES)
def test_a_step_is_warmed_up_on_its_own_stream_then_captured_there_then_replayed(pass_: Pass) -> None:
    """Gradients of before would lie outside the graph's memory; outputs are dropped after the capture."""
    cuda = Recorder()
    step = captured(inner := a_step(pass_, cuda.said), DEVICE, cuda)
    assert cuda.said == [
        "side waits for main", "on side", *["forward"] * WARMUP_STEPS, "off side", "main waits for side",
        "capture on side", "forward", "captured",
    ]  # fmt: skip
    cuda.said.clear()
    for _ in range(2):
        step.prepare()
        run_whole(step)
        step.clear()
    assert step.phases == ("graph",)
    assert cuda.said == ["replay", "replay"], "nothing else is asked of the host"
    assert step.logits_dtype == torch.float32
    assert step.failed_in is None
    if pass_ == "train-step":
        assert step.training.steps_taken == WARMUP_STEPS + 1
        assert step.training.optimizer.state, "the optimizer's state is there before the capture"
    else:
        assert inner._logits is None
        assert all(parameter.grad is None for parameter in inner._model.parameters())


def test_the_workspaces_of_matrix_products_are_made_anew_inside_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a replay would write to others' memory after they are cleared, as torch.compile does when it captures."""
    cuda = Recorder()
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: cuda.said.append("cleared"), raising=False)
    captured(a_step("forward", cuda.said), DEVICE, cuda)
    assert cuda.said[-5:] == ["cleared", "capture on side", "forward", "captured", "cleared"]


class Syncs(nn.Module):
    """A user's model that may run, but not be captured: like `.item()` on a GPU, it raises once a capture is on."""

    def __init__(self, cuda: Recorder, error: Exception) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(12))
        self._cuda, self._error = cuda, error

    def forward(self, tokens: Tensor) -> Tensor:
        if any(said.startswith("capture") for said in self._cuda.said):
            raise self._error
        return self.weight * tokens[..., None]


def ending_fails() -> None:
    """End as a broken capture does: with a second error on top of the first."""
    raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


def refused(error: Exception, kind: type[Exception] = CaptureError) -> str:
    """The message where a model raises this once a capture is on."""
    cuda = Recorder(ending_fails)
    with pytest.raises(kind) as raised:
        captured(a_step("forward", cuda.said, Syncs(cuda, error)), DEVICE, cuda)
    return str(raised.value)


def test_what_cannot_be_captured_is_one_line_that_says_what_was_wrong_first_and_what_to_do() -> None:
    said = refused(RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile with a flag"))
    assert said.startswith("the step cannot be captured in its forward: RuntimeError: CUDA error: operation")
    assert said.endswith("leave the CUDA graph off (--cuda-graph off)")
    assert "\n" not in said


@pytest.mark.parametrize("name", END_ALLOCATING)
def test_a_broken_capture_leaves_neither_its_stream_nor_its_pool_nor_its_generator_in_force(name: str) -> None:
    """torch leaves all of them: its allocator then refuses `empty_cache` for as long as the process lives, and its
    default generator to draw."""
    cuda = Recorder(ending_fails, name)
    with pytest.raises(CaptureError, match="cannot be captured: RuntimeError: CUDA error: operation failed"):
        captured(a_step("forward", cuda.said), DEVICE, cuda)
    assert cuda.said[-4:] == ["back on main", f"0 allocates no more to {POOL}", f"0 releases {POOL}", "reset"]
    (generator,) = cuda.default_generators
    assert generator.draw() == CapturedGenerator().draw(), "it goes on from where it was"


def test_this_torch_has_what_ends_a_broken_capture() -> None:
    assert any(hasattr(torch.cuda.memory, name) for name in END_ALLOCATING)
    assert hasattr(torch.cuda.memory, "_cuda_releasePool")
    assert all(hasattr(torch.Generator, name) for name in ("clone_state", "graphsafe_set_state"))


def test_a_capture_that_ended_well_has_nothing_left_to_end() -> None:
    cuda = Recorder()
    with pytest.raises(CaptureError, match="the mask"):
        captured(a_step("forward", cuda.said, Syncs(cuda, ValueError("the mask"))), DEVICE, cuda)
    assert cuda.said[-2:] == ["back on main", "reset"]


def test_the_error_that_a_users_own_error_came_from_is_not_taken_for_it() -> None:
    error = RuntimeError("the mask must be on the host")
    error.__context__ = KeyError("mask")
    assert "in its forward: RuntimeError: the mask must be on the host" in refused(error)


def test_checkpointing_that_restores_random_generators_is_told_as_what_it_is() -> None:
    said = refused(RuntimeError("Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture. If you need"))
    assert re.search(r"in its forward: .*; random generators cannot be read .*\(--checkpoint 0\)", said)
    assert ".item()" not in said


def test_running_out_of_memory_in_a_capture_stays_that() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert refused(error, torch.OutOfMemoryError) == str(error)


def test_an_error_of_the_warm_up_is_the_models_own() -> None:
    class Broken(nn.Module):
        def forward(self, _tokens: Tensor) -> Tensor:
            raise KeyError("rope")

    cuda = Recorder()
    with pytest.raises(KeyError, match="rope"):
        captured(a_step("inference", cuda.said, Broken()), DEVICE, cuda)
    assert not any(said.startswith("capture") for said in cuda.said)


def test_a_replay_that_fails_names_its_phase() -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    step = CapturedStep(a_step("forward", []), fail)
    with pytest.raises(RuntimeError):
        step.run("graph")
    assert step.failed_in == "graph"


@pytest.mark.parametrize("device_type", ["cpu", "mps"])
def test_only_cuda_has_graphs(device_type: str) -> None:
    with pytest.raises(ValueError, match=f"^cuda graph step: {device_type} has none, only cuda has$"):
        captured(a_step("forward", []), torch.device(device_type))
