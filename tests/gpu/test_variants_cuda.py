"""Every variant of a cell once on a real GPU: it runs, and what was asked for is in force. Norms alone: results, the
kernel that torch runs, predicted memory."""

from typing import Any

import pytest
import torch

from cs336_tui.config.spec import CellSpec, Pass
from cs336_tui.config.values import ATTENTIONS, NORMS, OPTIMIZERS
from cs336_tui.worker.workload.building import build, configure_torch
from tests.attention_cells import attention_spec
from tests.gpu.cells import assert_ok, assert_peak_as_predicted, low_precision, needs, needs_compiler, the_gpu
from tests.worker.measure.cells import Report, run, small_spec


def variant(**changes: Any) -> CellSpec:
    """A small cell whose heads are as wide as fused kernels like them."""
    fields = {
        "d_model": 128, "d_ff": 256, "num_layers": 2, "num_heads": 2, "vocab_size": 512, "context_length": 128,
        "pass_": "train-step", "precision": low_precision(), "device": "cuda:0", "threads": None,
    }  # fmt: skip
    return small_spec(**(fields | changes))


def ran(spec: CellSpec) -> Report:
    report = assert_ok(run(spec))
    assert len(report.times_s()) == spec.measure_steps
    return report


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attentions(attention: str) -> None:
    spec = variant(attention=attention)
    if attention not in the_gpu().attentions:
        finished = run(spec).finished
        assert finished.status == "failed"
        assert attention in finished.error
        return
    said = ran(spec).built.in_force.attention
    assert said
    assert ("naive" in said) == (attention == "naive")
    if attention not in ("naive", "sdpa"):
        assert attention in said


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_attention_alone(attention: str) -> None:
    fields: dict[str, Any] = {"workload": "attention", "attention": attention, "pass_": "forward+backward"}
    report = ran(variant(**fields, d_model=64, context_length=256, optimizer="adamw"))
    assert report.finished.before_backward_bytes


@pytest.mark.parametrize("every", [1, 2])
def test_checkpointing_saves_memory(every: int) -> None:
    shape = {"num_layers": 4, "context_length": 512, "batch_size": 8, "pass_": "forward+backward"}
    peak, without = (ran(variant(checkpoint=k, **shape)).finished.peak_allocated_bytes for k in (every, 0))
    assert 0 < peak < without


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer: str) -> None:
    said = ran(variant(optimizer=optimizer)).built.in_force.optimizer
    assert said == "AdamW (foreach)" if optimizer == "adamw" else optimizer.removeprefix("adamw-") in said


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_cuda_graphs_with_every_optimizer(optimizer: str) -> None:
    report = ran(variant(cuda_graph="step", optimizer=optimizer, precision="fp32"))
    assert set(report.steps("measured")[0].phases_s) == {"graph"}


@pytest.mark.parametrize("pass_", ["inference", "forward", "forward+loss", "forward+backward"])
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_cuda_graphs_of_attentions_and_checkpoints(attention: str, pass_: Pass) -> None:
    ran(variant(cuda_graph="step", attention=attention, pass_=pass_, checkpoint=1, precision="fp32"))


def test_float8() -> None:
    needs("fp8-mixed")
    report = ran(variant(precision="fp8-mixed", attention="sdpa", checkpoint=1))
    assert report.built.in_force.float8


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
    assert_peak_as_predicted(norm_spec(norm=norm, pass_=pass_, context_length=50_000))
