"""Recomputed activations and the optimizers on a real GPU: predicted peaks, and the same gradients."""

from __future__ import annotations

import pytest
import torch

from cs336_tui.config.spec import CellSpec, Precision
from cs336_tui.config.values import OPTIMIZERS
from cs336_tui.worker.estimate.predict import predict
from cs336_tui.worker.workload.building import build, configure_torch
from tests.gpu.cells import gpu_spec, low_precision, needs
from tests.worker.measure.cells import run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def assert_peak_as_predicted(spec: CellSpec) -> None:
    needs(spec.precision)
    # cuBLAS keeps its workspaces between cells of one process, whichever thread they were made for.
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    measured = run(spec).finished.peak_allocated_bytes
    assert measured is not None
    predicted = predict(spec, capability=torch.cuda.get_device_capability()).peak_bytes
    assert predicted == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("arch", ["swiglu-rope", "gelu-learned"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
@pytest.mark.parametrize(("every", "nesting", "layers"), [(1, "off", 2), (2, "off", 2), (1, "halves", 8)])
def test_the_predicted_peak_of_recomputed_blocks(
    every: int, nesting: str, layers: int, precision: Precision, arch: str
) -> None:
    assert_peak_as_predicted(
        gpu_spec(
            pass_="train-step", precision=precision, arch=arch, checkpoint=every, nesting=nesting, num_layers=layers,
            warmup_steps=2, measure_steps=2,
        )
    )  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_predicted_peak_of_each_optimizer(optimizer: str, precision: Precision) -> None:
    assert_peak_as_predicted(
        gpu_spec(pass_="train-step", precision=precision, optimizer=optimizer, warmup_steps=2, measure_steps=2)
    )


@pytest.mark.numbers
def test_gradients_of_recomputed_blocks_under_autocast() -> None:
    """Backward has a thread of its own on CUDA, where autocast must be in force again."""

    def gradients(every: int, nesting: str = "off") -> list[torch.Tensor]:
        fields = {"precision": low_precision(), "num_layers": 4, "checkpoint": every, "nesting": nesting}
        spec = gpu_spec(pass_="forward+backward", **fields)
        workload = build(spec, configure_torch(spec))
        step = workload.step(spec)
        for phase in step.phases:
            step.run(phase)
        return [parameter.grad for parameter in workload.model.parameters() if parameter.grad is not None]

    for every, nesting in ((1, "off"), (2, "off"), (1, "halves")):
        for found, expected in zip(gradients(every, nesting), gradients(0), strict=True):
            torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-4)
