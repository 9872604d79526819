"""A step as one CUDA graph on a real GPU: same results, little host time, and one line on a model that cannot be
captured."""

from collections.abc import Iterator
from contextlib import nullcontext
from statistics import fmean

import pytest
import torch
from torch import Tensor, nn

from cs336_tui.config.spec import CellSpec, Pass
from cs336_tui.events.events import ModelPrepared
from cs336_tui.worker.workload.building import build
from cs336_tui.worker.workload.compile_and_capture import (
    WARMUP_STEPS,
    CaptureError,
    captured,
    run_whole,
    why_cannot_compile,
)
from cs336_tui.worker.workload.passes import Step
from cs336_tui.worker.workload.transformer import random_batch
from tests.gpu.cells import assert_ok, forget_workspaces, low_precision, needs
from tests.worker.measure.cells import run, small_spec

DEVICE = torch.device("cuda:0")
CAPTURED_PASSES: tuple[Pass, ...] = ("inference", "forward", "forward+loss", "forward+backward", "train-step")


@pytest.fixture(autouse=True)
def _no_memory_of_others() -> Iterator[None]:
    """cuBLAS keeps workspaces between cells of one process, for each stream its own."""
    forget_workspaces()
    yield
    forget_workspaces()


def graph_spec(**changes: object) -> CellSpec:
    """A cell of many small kernels, which a GPU runs faster than a host launches them."""
    fields = {
        "d_model": 128, "d_ff": 256, "num_layers": 8, "num_heads": 4, "vocab_size": 500, "context_length": 64,
        "device": "cuda:0", "threads": None, "warmup_steps": 3, "measure_steps": 10, "cuda_graph": "step",
    }  # fmt: skip
    return small_spec(**(fields | changes))


@pytest.mark.parametrize("sync", ["each-step", "pipelined"])
@pytest.mark.parametrize("pass_", CAPTURED_PASSES)
def test_every_pass_is_captured_and_timed_as_one_phase(pass_: Pass, sync: str) -> None:
    report = assert_ok(run(graph_spec(pass_=pass_, sync=sync)))
    (prepared,) = (event for event in report.events if isinstance(event, ModelPrepared))
    assert prepared.capture_s
    assert report.outline.index("capturing") < report.outline.index("warm-up")
    assert all(tuple(event.phases_s) == ("graph",) for event in report.steps("measured"))
    assert len(report.times_s()) == 10
    assert report.finished.logits_dtype == "float32"


@pytest.mark.real_numbers
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16"])
def test_replays_train_the_model_as_steps_do(precision: str) -> None:
    """Replays go on from the steps before the capture; capturing itself computes nothing.

    Both sides have the optimizer that can be captured, whose bias corrections are numbers of the device: the other one
    rounds differently, which in bfloat16 moves a parameter as far as a step does.
    """
    needs(precision)
    replays = 5
    spec = graph_spec(pass_="train-step", precision=precision, num_layers=2)

    def parameters(steps: int, *, capture: bool) -> list[Tensor]:
        torch.manual_seed(0)
        workload = build(spec, DEVICE)
        step = workload.step(spec)
        ready = captured(step, DEVICE) if capture else step
        for _ in range(steps):
            ready.prepare()
            run_whole(ready)
            ready.clear()
        torch.cuda.synchronize()
        return [parameter.detach().clone() for parameter in workload.model.parameters()]

    def apart(a: list[Tensor], b: list[Tensor]) -> float:
        """Distance by the Euclidean norm: single parameters without a gradient differ by rounding."""
        return sum(float((x.float() - y.float()).square().sum()) for x, y in zip(a, b, strict=True)) ** 0.5

    written = parameters(WARMUP_STEPS + replays, capture=False)
    replayed = parameters(replays, capture=True)
    assert apart(written, replayed) < apart(written, parameters(replays - 1, capture=True)) / 2


@pytest.mark.timed
@pytest.mark.parametrize("pass_", CAPTURED_PASSES)
def test_the_host_has_next_to_nothing_to_do(pass_: Pass) -> None:
    graph = assert_ok(run(graph_spec(pass_=pass_)))
    written = assert_ok(run(graph_spec(pass_=pass_, cuda_graph="off")))
    host_s = [
        fmean([time for event in report.steps("measured") for time in event.host_s]) for report in (graph, written)
    ]
    print(f"{pass_}: host {host_s[0] * 1e6:.0f} instead of {host_s[1] * 1e6:.0f} us a step")
    assert host_s[0] < host_s[1] / 3


@pytest.mark.timed
@pytest.mark.real_numbers
@pytest.mark.parametrize("pass_", CAPTURED_PASSES)
def test_a_step_of_short_kernels_takes_less_time(pass_: Pass) -> None:
    graph, written = (
        fmean(assert_ok(run(graph_spec(pass_=pass_, cuda_graph=choice))).times_s()) for choice in ("step", "off")
    )
    print(f"{pass_}: step {graph * 1e6:.0f} instead of {written * 1e6:.0f} us")
    assert graph < written


@pytest.mark.parametrize("pass_", ["forward+backward", "train-step"])
def test_the_peak_is_that_of_the_step(pass_: Pass) -> None:
    shape = {"pass_": pass_, "context_length": 512, "batch_size": 8}
    peaks = []
    for choice in ("step", "off"):
        forget_workspaces()
        peaks.append(assert_ok(run(graph_spec(**shape, cuda_graph=choice))).finished.peak_allocated_bytes)
    assert all(peaks)
    assert peaks[0] == pytest.approx(peaks[1], rel=0.1)


def test_a_graph_gives_its_memory_back() -> None:
    assert_ok(run(graph_spec(pass_="train-step")))
    before = torch.cuda.memory_reserved()
    assert_ok(run(graph_spec(pass_="train-step", context_length=512, batch_size=16)))
    assert torch.cuda.memory_reserved() - before < 64 * 2**20


class Waits(nn.Module):
    """A user's model that asks the device for a number in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(12, device=DEVICE))

    def forward(self, tokens: Tensor) -> Tensor:
        scale = self.weight.sum().item()
        return self.weight * tokens[..., None] * scale


def test_a_step_that_waits_for_the_device_is_refused_in_one_line_and_poisons_nothing() -> None:
    step = Step("forward+backward", Waits(), random_batch(2, 4, 12, device=DEVICE, seed=0), nullcontext)
    with pytest.raises(CaptureError, match="cannot be captured in its forward") as refused:
        captured(step, DEVICE)
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith("leave the CUDA graph off (--cuda-graph off)")
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.empty_cache()  # raises where the allocator takes the capture to be under way
    torch.rand(2, device=DEVICE)  # raises where the generator does
    assert_ok(run(graph_spec(measure_steps=1)))


@pytest.mark.real_numbers
def test_a_graph_bears_that_others_clear_the_workspaces_of_matrix_products() -> None:
    """torch.compile clears them when it captures graphs, which in `ab` may happen between two replays."""
    spec = graph_spec(pass_="forward+backward", precision=low_precision())
    workload = build(spec, DEVICE)
    step = workload.step(spec)
    ready = captured(step, DEVICE)
    forget_workspaces()
    elsewhere = [torch.full((2**20,), 7.0, device=DEVICE) for _ in range(64)]
    for _ in range(3):
        ready.run("graph")
    torch.cuda.synchronize()
    assert all(bool((each == 7).all()) for each in elsewhere)


def test_running_out_of_memory_stays_that() -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    finished = run(graph_spec(context_length=2048, batch_size=total // (4 * 4 * 2048**2) + 1)).finished
    assert (finished.status, finished.stage) == ("oom", "capturing")
    assert_ok(run(graph_spec(measure_steps=1)))


@pytest.mark.skipif(why_cannot_compile("cuda") is not None, reason="torch.compile cannot work here")
def test_a_compiled_model_can_be_captured() -> None:
    report = assert_ok(run(graph_spec(compile="default", num_layers=1, pass_="train-step")))
    (prepared,) = (event for event in report.events if isinstance(event, ModelPrepared))
    assert prepared.compile_s
    assert prepared.capture_s
