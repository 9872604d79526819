"""Predicted peaks against those of a real GPU's allocator, with recomputed activations and each optimizer too;
gradients of recomputed blocks."""

from typing import Any

import pytest
import torch

from cs336_tui.config.spec import PASSES, CellSpec, Pass, Precision
from cs336_tui.config.values import OPTIMIZERS
from cs336_tui.worker.estimate.predict import predict
from cs336_tui.worker.workload.building import build, configure_torch
from cs336_tui.worker.workload.compile_and_capture import run_whole
from tests.gpu.cells import assert_peak_as_predicted, forget_workspaces, gpu_spec, low_precision


def peak_spec(**changes: Any) -> CellSpec:
    return gpu_spec(**{"pass_": "train-step", "warmup_steps": 2, "measure_steps": 2} | changes)


@pytest.mark.parametrize("arch", ["swiglu-rope", "gelu-learned"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed", "bf16"])
@pytest.mark.parametrize("pass_", PASSES)
def test_the_predicted_peak_is_within_3_percent_of_max_memory_allocated(
    pass_: Pass, precision: Precision, arch: str
) -> None:
    assert_peak_as_predicted(peak_spec(pass_=pass_, precision=precision, arch=arch))


@pytest.mark.parametrize("checkpoint", [0, 1])
def test_the_predicted_peak_holds_with_dropout_biases_and_a_tied_head(checkpoint: int) -> None:
    options = {"gelu": "tanh", "dropout": 0.1, "attention_dropout": 0.1, "bias": "on", "weight_tying": "on"}
    assert_peak_as_predicted(peak_spec(arch="gelu-learned", **options, checkpoint=checkpoint))


def test_the_predicted_end_of_forward_is_what_is_allocated_then() -> None:
    spec = gpu_spec(pass_="train-step", precision=low_precision())
    forget_workspaces()
    step = build(spec, configure_torch(spec)).step(spec)
    for _ in range(2):
        run_whole(step)
    step.run("zero_grad")
    step.run("forward")
    measured = torch.cuda.memory_allocated()
    predicted = predict(spec, capability=torch.cuda.get_device_capability()).forward_end_bytes
    assert predicted == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("arch", ["swiglu-rope", "gelu-learned"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
@pytest.mark.parametrize(("every", "nesting", "layers"), [(1, "off", 2), (2, "off", 2), (1, "halves", 8)])
def test_the_predicted_peak_of_recomputed_blocks(
    every: int, nesting: str, layers: int, precision: Precision, arch: str
) -> None:
    blocks = {"checkpoint": every, "nesting": nesting, "num_layers": layers}
    assert_peak_as_predicted(peak_spec(precision=precision, arch=arch, **blocks))


@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_predicted_peak_of_each_optimizer(optimizer: str, precision: Precision) -> None:
    assert_peak_as_predicted(peak_spec(precision=precision, optimizer=optimizer))


@pytest.mark.numbers
def test_gradients_of_recomputed_blocks_under_autocast() -> None:
    """Backward has a thread of its own on CUDA, where autocast must be in force again."""

    def gradients(every: int, nesting: str = "off") -> list[torch.Tensor]:
        fields = {"precision": low_precision(), "num_layers": 4, "checkpoint": every, "nesting": nesting}
        spec = gpu_spec(pass_="forward+backward", **fields)
        workload = build(spec, configure_torch(spec))
        step = workload.step(spec)
        run_whole(step)
        return [parameter.grad for parameter in workload.model.parameters() if parameter.grad is not None]

    for every, nesting in ((1, "off"), (2, "off"), (1, "halves")):
        for found, expected in zip(gradients(every, nesting), gradients(0), strict=True):
            torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-4)
