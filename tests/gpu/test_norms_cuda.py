"""Norms alone on a real CUDA GPU: results, the kernel that torch runs, predicted memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import NORMS
from cs336_tui.worker.estimate.predict import predict
from cs336_tui.worker.workload.building import build, configure_torch
from tests.attention_cells import attention_spec
from tests.gpu.cells import needs, needs_compiler
from tests.worker.measure.cells import run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

GPU = torch.device("cuda:0")


def norm_spec(**changes: Any) -> CellSpec:
    """4,096 rows of width 1,024."""
    rows = {"d_model": 1024, "context_length": 4096, "batch_size": 1, "threads": None}
    return attention_spec(**{"workload": "norm", "device": "cuda:0"} | rows | changes)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("norm", "mode"),
    [
        *(pytest.param(each, "off", marks=pytest.mark.numbers) for each in NORMS),
        pytest.param("rmsnorm", "default", marks=pytest.mark.real_numbers),
    ],
)
def test_output_and_gradients_are_those_of_float64(norm: str, mode: str, precision: str) -> None:
    needs(precision)
    needs_compiler(mode)
    spec = norm_spec(norm=norm, compile=mode, precision=precision, context_length=1024)
    configure_torch(spec)
    workload = build(spec, GPU)
    rows, weight, *bias = [each.detach().double().requires_grad_() for each in workload.model.parameters()]
    centred = rows - rows.mean(-1, keepdim=True) if norm == "layernorm" else rows
    exact = centred * (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight + (bias[0] if bias else 0)
    exact.backward(workload.batch.targets.double())
    output = workload.runs(workload.batch.inputs)
    workload.loss(output, workload.batch.targets).backward()
    slack = 1e-5 if precision == "fp32" else 0.02
    found = [output, *(parameter.grad for parameter in workload.model.parameters())]
    for one, other in zip(found, [exact, *(each.grad for each in (rows, weight, *bias))], strict=True):
        assert (one.double() - other).norm() <= slack * other.norm()


@pytest.mark.parametrize("pass_", ["forward", "forward+backward"])
@pytest.mark.parametrize("norm", NORMS)
def test_the_predicted_peak_is_within_3_percent_of_max_memory_allocated(norm: str, pass_: str) -> None:
    spec = norm_spec(norm=norm, pass_=pass_, context_length=50_000)
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    measured = run(spec).finished.peak_allocated_bytes
    assert measured is not None
    assert predict(spec).peak_bytes == pytest.approx(measured, rel=0.03)
