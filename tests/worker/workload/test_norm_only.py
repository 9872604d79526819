"""A norm alone: results and gradients of its formula, by any implementation; norms of the reference model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cs336_tui.config.flops import parameters
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import NORMS
from cs336_tui.worker.workload.building import Workload, build, configure_torch
from cs336_tui.worker.workload.import_problems import ImportProblem
from cs336_tui.worker.workload.norms import NORM_CLASSES
from tests.attention_cells import attention_spec
from tests.samples import a_spec

CPU = torch.device("cpu")
OWN = """
import torch
SEEN = []
class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        SEEN.append(tuple(x.shape))
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight
    @staticmethod
    def backward(ctx, gradient):
        x, weight, scale = ctx.saved_tensors
        inner = gradient * weight
        of_x = inner * scale - x * scale**3 * (inner * x).mean(-1, keepdim=True)
        return of_x, (gradient * x * scale).flatten(0, -2).sum(0)
def norm(x, weight):
    return Norm.apply(x, weight)
def flat(x, weight):
    return x[0]
def eps(x, weight, eps):
    return x
def one(x):
    return x
"""


def norm_spec(**changes: Any) -> CellSpec:
    """48 rows of width 8 on the CPU, with `changes`."""
    return attention_spec(**{"workload": "norm"} | changes)


def model_spec(**changes: Any) -> CellSpec:
    """A language model of two layers of width 8 on the CPU, with `changes`."""
    dims = {"size": "custom", "d_model": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 50}
    return a_spec(**{"device": "cpu", "context_length": 12, "batch_size": 2} | dims | changes)


def built(**changes: Any) -> Workload:
    spec = norm_spec(**changes)
    configure_torch(spec)
    return build(spec, CPU)


def by_formula(norm: str, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Row by row in float64: Zhang and Sennrich 2019, equation 4; Ba, Kiros and Hinton 2016, equation 4."""
    found = []
    for row in rows.flatten(0, 1):
        centred = row - row.mean() if norm == "layernorm" else row
        found.append(centred / (centred.square().mean() + 1e-5).sqrt() * weight)
    out = torch.stack(found).view_as(rows)
    return out if bias is None else out + bias


@pytest.mark.parametrize("norm", [*NORMS, "own_norms:norm", "own_norms:Norm"])
def test_output_and_gradients_are_those_of_the_formula(norm: str, tmp_path: Path) -> None:
    """The gradient of the output is the batch's: what ``output.backward(gradient)`` gives."""
    (tmp_path / "own_norms.py").write_text(OWN)
    workload = built(norm=norm, model_path=(str(tmp_path),))
    rows, weight, *bias = [each.detach().double().requires_grad_() for each in workload.model.parameters()]
    assert len(bias) == (norm == "layernorm")
    expected = by_formula(norm, rows, weight, bias[0] if bias else None)
    output = workload.model(workload.batch.inputs)
    torch.testing.assert_close(output, expected.float())
    workload.loss(output, workload.batch.targets).backward()
    expected.backward(workload.batch.targets.double())
    for parameter, exact in zip(workload.model.parameters(), (rows, weight, *bias), strict=True):
        assert parameter.grad is not None
        assert exact.grad is not None
        torch.testing.assert_close(parameter.grad, exact.grad.float())


def test_every_norm_that_is_offered_is_there() -> None:
    assert tuple(NORM_CLASSES) == NORMS


def test_the_loss_computes_nothing() -> None:
    """What is timed besides the norm's own work: between its forward and its backward nothing reads a tensor."""
    workload = built()
    output = workload.model(workload.batch.inputs)
    with torch.profiler.profile() as seen:
        loss = workload.loss(output, workload.batch.targets)
    assert {event.name for event in seen.events()} <= {"_Begin", "aten::as_strided", "aten::detach", "detach"}
    assert loss.dim() == 0


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
@pytest.mark.parametrize("norm", NORMS)
def test_a_step_runs_in_each_precision(norm: str, precision: str) -> None:
    spec = norm_spec(norm=norm, precision=precision)
    workload = built(norm=norm, precision=precision)
    step = workload.step(spec)
    step.prepare()
    for phase in step.phases:
        step.run(phase)
    step.check()
    held = torch.bfloat16 if precision == "bf16" else torch.float32
    assert all(each.dtype is held and each.grad is not None for each in workload.model.parameters())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("flat", r"norm .*:flat: returned \(2, 8\) for rows of \(1, 2, 8\); expected \(1, 2, 8\)"),
        ("eps", r"eps\(x, weight, eps\) needs eps, which has no default"),
        ("one", r"one\(x\) does not take rows and weights"),
        ("none", "own_norms has no none"),
    ],
)
@pytest.mark.parametrize("workload", ["norm", "language-model"])
def test_a_function_that_is_no_norm_is_refused_in_one_line(name: str, why: str, workload: str, tmp_path: Path) -> None:
    (tmp_path / "own_norms.py").write_text(OWN)
    own = {"norm": f"own_norms:{name}", "model_path": (str(tmp_path),)}
    spec = (
        norm_spec(**own)
        if workload == "norm"
        else model_spec(
            **own,
        )
    )
    with pytest.raises((ImportProblem, ValueError), match=why):
        build(spec, CPU)


@pytest.mark.parametrize("norm", [*NORMS, "own_norms:norm"])
def test_every_norm_of_the_reference_model_is_the_chosen_one(norm: str, tmp_path: Path) -> None:
    """Two in each layer and the final one; as many parameters as the formula says; a user's is as the reference's."""
    (tmp_path / "own_norms.py").write_text(OWN)
    spec = model_spec(
        norm=norm,
        model_path=(str(tmp_path),),
    )
    workload = build(spec, CPU)
    norms = [module for name, module in workload.model.named_modules() if name.endswith("norm")]
    assert len(norms) == 2 * spec.num_layers + 1
    assert {type(each).__name__ for each in norms} == {type(norms[0]).__name__}
    counted = parameters(spec)
    assert workload.facts.num_params == counted.numbers
    assert len(list(workload.model.parameters())) == counted.tensors
    logits = workload.model(workload.batch.inputs)
    plain = build(
        model_spec(),
        CPU,
    )
    same = torch.allclose(logits, plain.model(plain.batch.inputs), atol=1e-4)
    assert same is (norm != "layernorm")
