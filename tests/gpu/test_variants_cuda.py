"""Every variant of a cell once on a real GPU: it runs, and what was asked for is in force."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cs336_tui.config.spec import CellSpec, Pass
from cs336_tui.config.values import ATTENTIONS, OPTIMIZERS
from tests.gpu.cells import low_precision, needs, the_gpu
from tests.worker.measure.cells import Report, run, small_spec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def variant(**changes: Any) -> CellSpec:
    """A small cell whose heads are as wide as fused kernels like them."""
    fields = {
        "d_model": 128,
        "d_ff": 256,
        "num_layers": 2,
        "num_heads": 2,
        "vocab_size": 512,
        "context_length": 128,
        "pass_": "train-step",
        "precision": low_precision(),
        "device": "cuda:0",
        "threads": None,
    }
    return small_spec(**(fields | changes))


def ran(spec: CellSpec) -> Report:
    report = run(spec)
    assert report.finished.status == "ok", report.finished.error
    assert len(report.times_s()) == spec.measure_steps
    return report


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attentions(attention: str) -> None:
    spec = variant(attention=attention)
    if attention not in the_gpu().attentions:
        finished = run(spec).finished
        assert finished.status == "failed"
        assert finished.error
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
    assert peak
    assert without
    assert peak < without


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer: str) -> None:
    said = ran(variant(optimizer=optimizer)).built.in_force.optimizer
    assert said
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
