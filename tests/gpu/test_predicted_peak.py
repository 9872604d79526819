"""Predicted peaks against those of a real GPU's allocator."""

from __future__ import annotations

import pytest
import torch

from cs336_tui.config.spec import PASSES, Pass, Precision
from cs336_tui.worker.estimate.predict import predict
from tests.gpu.cells import gpu_spec, low_precision, needs
from tests.worker.measure.cells import run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize("arch", ["swiglu-rope", "gelu-learned"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed", "bf16"])
@pytest.mark.parametrize("pass_", PASSES)
def test_the_predicted_peak_is_within_3_percent_of_max_memory_allocated(
    pass_: Pass, precision: Precision, arch: str
) -> None:
    needs(precision)
    spec = gpu_spec(pass_=pass_, precision=precision, arch=arch, warmup_steps=2, measure_steps=2)
    # cuBLAS keeps its workspaces between cells of one process, whichever thread they were made for.
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    measured = run(spec).finished.peak_allocated_bytes
    assert measured is not None
    predicted = predict(spec, capability=torch.cuda.get_device_capability()).peak_bytes
    assert predicted == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("checkpoint", [0, 1])
def test_the_predicted_peak_holds_with_dropout_biases_and_a_tied_head(checkpoint: int) -> None:
    spec = gpu_spec(
        arch="gelu-learned", gelu="tanh", dropout=0.1, attention_dropout=0.1, bias="on", weight_tying="on",
        pass_="train-step", warmup_steps=2, measure_steps=2, checkpoint=checkpoint,
    )  # fmt: skip
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    measured = run(spec).finished.peak_allocated_bytes
    assert measured is not None
    predicted = predict(spec, capability=torch.cuda.get_device_capability()).peak_bytes
    assert predicted == pytest.approx(measured, rel=0.03)


def test_the_predicted_end_of_forward_is_what_is_allocated_then() -> None:
    from cs336_tui.worker.workload.building import build, configure_torch

    spec = gpu_spec(pass_="train-step", precision=low_precision())
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    step = build(spec, configure_torch(spec)).step(spec)
    for _ in range(2):
        for phase in step.phases:
            step.run(phase)
    step.run("zero_grad")
    step.run("forward")
    measured = torch.cuda.memory_allocated()
    predicted = predict(spec, capability=torch.cuda.get_device_capability()).forward_end_bytes
    assert predicted == pytest.approx(measured, rel=0.03)
