"""Attention alone: results and gradients of its formula, written out or by any kernel."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

from cs336_tui.worker.workload.building import Workload, build, configure_torch
from tests.attention_cells import attention_spec

CPU = torch.device("cpu")


def built(**changes: object) -> Workload:
    spec = attention_spec(**changes)
    configure_torch(spec)
    return build(spec, CPU)


def by_formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
    """softmax(Q K^T / sqrt(K)) V in float64 (Vaswani et al. 2017, equation 1), token by token."""
    out = torch.empty_like(q)
    for batch in range(q.shape[0]):
        for token in range(q.shape[1]):
            seen = token + 1 if causal else q.shape[1]
            scores = k[batch, :seen] @ q[batch, token] / math.sqrt(q.shape[-1])
            shares = scores.exp() / scores.exp().sum()
            out[batch, token] = shares @ v[batch, :seen]
    return out


@pytest.mark.parametrize("attention", ["naive", "sdpa", "math"])
@pytest.mark.parametrize("causal", [True, False])
def test_output_and_gradients_are_those_of_the_formula(attention: str, causal: bool) -> None:
    workload = built(attention=attention, causal=causal)
    exact = [parameter.detach().double().requires_grad_() for parameter in workload.model.parameters()]
    expected = _differentiable(*exact, causal=causal)
    output = workload.model(workload.batch.inputs)
    assert output.shape == (2, 24, 8)
    torch.testing.assert_close(output, by_formula(*(x.detach() for x in exact), causal=causal).float())
    workload.loss(output, workload.batch.targets).backward()
    (expected * workload.batch.targets.double()).sum().backward()
    for parameter, other in zip(workload.model.parameters(), exact, strict=True):
        assert parameter.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(parameter.grad, other.grad.float())


@pytest.mark.parametrize("attention", ["naive", "sdpa", "math"])
@pytest.mark.parametrize("causal", [True, False])
def test_each_head_is_attention_of_its_own(attention: str, causal: bool) -> None:
    """Three heads of width 4: each is the formula over its own queries, keys and values, gradients too."""
    workload = built(attention=attention, causal=causal, d_model=12, num_heads=3)
    output = workload.model(workload.batch.inputs)
    assert output.shape == workload.batch.targets.shape == (2, 3, 24, 4)
    workload.loss(output, workload.batch.targets).backward()
    exact = [parameter.detach().double().requires_grad_() for parameter in workload.model.parameters()]
    for head in range(3):
        own = [each[:, head] for each in exact]
        torch.testing.assert_close(output[:, head], by_formula(*(x.detach() for x in own), causal=causal).float())
        (_differentiable(*own, causal=causal) * workload.batch.targets[:, head].double()).sum().backward()
    for parameter, other in zip(workload.model.parameters(), exact, strict=True):
        assert parameter.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(parameter.grad, other.grad.float())


@pytest.mark.parametrize("shape", [3, 4])
def test_a_users_function_gets_heads_or_counts_them_as_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: int
) -> None:
    (tmp_path / f"heads_{shape}.py").write_text(
        "import torch\n"
        "SEEN = []\n"
        "def attend(q, k, v, is_causal=False):\n"
        f"    assert q.dim() == {shape}, q.shape\n"
        "    SEEN.append(tuple(q.shape))\n"
        "    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)\n"
    )
    own = {"attention": f"heads_{shape}:attend", "model_path": (str(tmp_path),)}
    workload = built(d_model=12, num_heads=3, **own)
    reference = built(d_model=12, num_heads=3)
    found = workload.model(workload.batch.inputs)
    torch.testing.assert_close(found, reference.model(reference.batch.inputs))
    assert sys.modules[f"heads_{shape}"].SEEN[-1] == ((2, 3, 24, 4) if shape == 4 else (6, 24, 4))
    monkeypatch.delitem(sys.modules, f"heads_{shape}", raising=False)


def _differentiable(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ v


def test_numbers_are_standard_normal_by_the_seed_and_the_gradient_is_none_of_them() -> None:
    one, again, other = built(context_length=2000), built(context_length=2000), built(context_length=2000, seed=1)
    values = list(one.model.parameters())
    assert [tuple(value.shape) for value in values] == [(2, 2000, 8)] * 3
    for value in (*values, one.batch.targets):
        assert value.std().item() == pytest.approx(1, abs=0.02)
        assert value.mean().item() == pytest.approx(0, abs=0.02)
    for value, same, different in zip(values, again.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(value, same)
        assert not torch.equal(value, different)
    assert not any(torch.equal(value, one.batch.targets) for value in values)


@pytest.mark.parametrize(
    ("precision", "parameters", "output"),
    [("fp32", "float32", "float32"), ("bf16", "bfloat16", "bfloat16"), ("bf16-mixed", "float32", "bfloat16")],
)
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_a_step_runs_in_the_dtypes_of_its_precision(
    attention: str, precision: str, parameters: str, output: str
) -> None:
    spec = attention_spec(attention=attention, precision=precision)
    configure_torch(spec)
    workload = build(spec, CPU)
    step = workload.step(spec)
    step.prepare()
    for phase in step.phases:
        step.run(phase)
    assert {parameter.dtype for parameter in workload.model.parameters()} == {getattr(torch, parameters)}
    assert step.logits_dtype is getattr(torch, output)
    assert all(parameter.grad is not None for parameter in workload.model.parameters())


def test_it_can_be_made_at_any_size_without_data() -> None:
    spec = attention_spec(context_length=65_536, batch_size=64, attention="naive")
    made = build(spec, torch.device("meta"))
    assert made.model(made.batch.inputs).shape == (64, 65_536, 8)


def test_facts_say_how_many_numbers_and_how() -> None:
    assert built().facts.num_params == 3 * 2 * 24 * 8
    assert "naive" in built().facts.attention
    assert built(attention="math").facts.attention == "math (scores materialised)"


def test_a_users_function_gets_what_the_courses_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs_alone.py").write_text(
        "import torch\n"
        "def attend(q, k, v, is_causal=False):\n"
        "    assert q.dim() == 3, q.shape\n"
        "    scores = q @ k.mT / q.shape[-1] ** 0.5\n"
        "    if is_causal:\n"
        "        scores = scores + torch.full_like(scores, float('-inf')).triu(1)\n"
        "    return scores.softmax(-1) @ v\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    theirs = built(attention="theirs_alone:attend", model_path=(str(tmp_path),))
    ours = built()
    torch.testing.assert_close(theirs.model(theirs.batch.inputs), ours.model(ours.batch.inputs))
