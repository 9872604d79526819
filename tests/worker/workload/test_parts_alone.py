"""Attention or a norm alone: results and gradients of its formula, written out or by any kernel or implementation;
norms of the reference model."""

import math
import sys
from contextlib import AbstractContextManager, nullcontext
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
from cs336_tui.worker.workload.ranges import name_parts
from tests.attention_cells import attention_spec
from tests.samples import a_spec
from tests.worker.measure.cells import UsersFolder, run_step

CPU = torch.device("cpu")


def built(**changes: object) -> Workload:
    spec = attention_spec(**changes)
    configure_torch(spec)
    return build(spec, CPU)


def assert_gradients(workload: Workload, exact: list[torch.Tensor]) -> None:
    for parameter, other in zip(workload.model.parameters(), exact, strict=True):
        torch.testing.assert_close(parameter.grad, other.grad.float())


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


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("attention", ["naive", "sdpa", "math"])
@pytest.mark.parametrize("causal", [True, False])
def test_output_and_gradients_of_each_head_are_those_of_the_formula(attention: str, causal: bool, heads: int) -> None:
    """Each is the formula over its own queries, keys and values, of width 4."""
    workload = built(attention=attention, causal=causal, d_model=4 * heads, num_heads=heads)
    output, gradient = workload.model(workload.batch.inputs), workload.batch.targets
    assert output.shape == gradient.shape == ((2, 24, 4) if heads == 1 else (2, heads, 24, 4))
    workload.loss(output, gradient).backward()
    exact = [parameter.detach().double().requires_grad_() for parameter in workload.model.parameters()]
    for head in range(heads):
        at = (slice(None), head) if heads > 1 else ()
        expected = by_formula(*(each[at] for each in exact), causal=causal)
        torch.testing.assert_close(output[at], expected.float())
        (expected * gradient[at].double()).sum().backward()
    assert_gradients(workload, exact)


@pytest.mark.parametrize(("heads", "dims", "shape"), [
    (3, 3, (6, 24, 4)), (3, 4, (2, 3, 24, 4)), (1, 3, (2, 24, 12)), (1, 4, (2, 1, 24, 12)),
])  # fmt: skip
def test_a_users_function_gets_heads_or_counts_them_as_sequences(
    folder: UsersFolder, heads: int, dims: int, shape: tuple[int, ...]
) -> None:
    module = folder.write(
        "import torch\n"
        "SEEN = []\n"
        "def attend(q, k, v, is_causal=False):\n"
        f"    assert q.dim() == {dims}, q.shape\n"
        "    SEEN.append(tuple(q.shape))\n"
        "    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)\n"
    )
    workload = built(d_model=12, num_heads=heads, attention=f"{module}:attend", model_path=folder.paths)
    reference = built(d_model=12, num_heads=heads)
    found = workload.model(workload.batch.inputs)
    torch.testing.assert_close(found, reference.model(reference.batch.inputs))
    assert sys.modules[module].SEEN[-1] == shape


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
    ("precision", "held", "output"),
    [
        ("fp32", torch.float32, torch.float32),
        ("bf16", torch.bfloat16, torch.bfloat16),
        ("bf16-mixed", torch.float32, torch.bfloat16),
    ],
)
@pytest.mark.parametrize(
    "operation",
    [{"attention": "naive"}, {"attention": "sdpa"}, *({"workload": "norm", "norm": norm} for norm in NORMS)],
    ids=str,
)
def test_a_step_runs_in_the_dtypes_of_its_precision(
    operation: dict[str, str], precision: str, held: torch.dtype, output: torch.dtype
) -> None:
    workload = built(**operation, precision=precision)
    step = run_step(workload, attention_spec(**operation, precision=precision))
    step.check()
    assert step.logits_dtype is output or "norm" in operation
    assert all(each.dtype is held and each.grad is not None for each in workload.model.parameters())


def test_it_can_be_made_at_any_size_without_data_and_says_how_many_numbers_it_has_and_how() -> None:
    made = build(attention_spec(context_length=65_536, batch_size=64, attention="naive"), torch.device("meta"))
    assert made.model(made.batch.inputs).shape == (64, 65_536, 8)
    assert built().facts.num_params == 3 * 2 * 24 * 8
    assert "naive" in built().facts.attention
    assert built(attention="math").facts.attention == "math (scores materialised)"


OWN_NORMS = """
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
class Module(torch.nn.Module):
    def forward(self, x, weight):
        return norm(x, weight)
module = Module()
def flat(x, weight):
    return x[0]
def eps(x, weight, eps):
    return x
def one(x):
    return x
"""


@pytest.fixture
def own_norms(tmp_path: Path) -> Path:
    """The folder of the user's module."""
    (tmp_path / "own_norms.py").write_text(OWN_NORMS)
    return tmp_path


def model_spec(**changes: Any) -> CellSpec:
    """A language model of two layers of width 8 on the CPU, with `changes`."""
    dims = {"size": "custom", "d_model": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 50}
    return a_spec(**{"device": "cpu", "context_length": 12, "batch_size": 2} | dims | changes)


def normed_by_formula(norm: str, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Row by row in float64: Zhang and Sennrich 2019, equation 4; Ba, Kiros and Hinton 2016, equation 4."""
    found = []
    for row in rows.flatten(0, 1):
        centred = row - row.mean() if norm == "layernorm" else row
        found.append(centred / (centred.square().mean() + 1e-5).sqrt() * weight)
    out = torch.stack(found).view_as(rows)
    return out if bias is None else out + bias


@pytest.mark.parametrize("norm", [*NORMS, "own_norms:norm", "own_norms:Norm"])
def test_output_and_gradients_of_a_norm_are_those_of_the_formula(norm: str, own_norms: Path) -> None:
    """The gradient of the output is the batch's: what ``output.backward(gradient)`` gives."""
    workload = built(workload="norm", norm=norm, model_path=(str(own_norms),))
    rows, weight, *bias = [each.detach().double().requires_grad_() for each in workload.model.parameters()]
    assert len(bias) == (norm == "layernorm")
    expected = normed_by_formula(norm, rows, weight, bias[0] if bias else None)
    output = workload.model(workload.batch.inputs)
    torch.testing.assert_close(output, expected.float())
    workload.loss(output, workload.batch.targets).backward()
    expected.backward(workload.batch.targets.double())
    assert_gradients(workload, [rows, weight, *bias])


def test_every_norm_that_is_offered_is_there() -> None:
    assert tuple(NORM_CLASSES) == NORMS


def test_the_loss_computes_nothing() -> None:
    """What is timed besides the norm's own work: between its forward and its backward nothing reads a tensor."""
    workload = built(workload="norm")
    output = workload.model(workload.batch.inputs)
    with torch.profiler.profile() as seen:
        loss = workload.loss(output, workload.batch.targets)
    assert {event.name for event in seen.events()} <= {"_Begin", "aten::as_strided", "aten::detach", "detach"}
    assert loss.dim() == 0


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
def test_a_function_that_is_no_norm_is_refused_in_one_line(name: str, why: str, workload: str, own_norms: Path) -> None:
    own = {"norm": f"own_norms:{name}", "model_path": (str(own_norms),)}
    spec = attention_spec(workload="norm", **own) if workload == "norm" else model_spec(**own)
    with pytest.raises((ImportProblem, ValueError), match=why):
        build(spec, CPU)


@pytest.mark.parametrize("norm", ["rmsnorm", "own_norms:norm", "own_norms:module"])
def test_every_norm_of_the_model_is_of_the_range_of_norms(norm: str, own_norms: Path) -> None:
    model = build(model_spec(norm=norm, model_path=(str(own_norms),)), CPU).model
    entered: list[str] = []

    def around(part: str) -> AbstractContextManager[None]:
        entered.append(part)
        return nullcontext()

    name_parts(model, around)
    model(torch.zeros(1, 4, dtype=torch.int64))
    assert (entered.count("norms"), entered.count("feed-forward")) == (5, 2)


@pytest.mark.parametrize("norm", [*NORMS, "own_norms:norm"])
def test_every_norm_of_the_reference_model_is_the_chosen_one(norm: str, own_norms: Path) -> None:
    """Two in each layer and the final one; as many parameters as the formula says; a user's is as the reference's."""
    spec = model_spec(norm=norm, model_path=(str(own_norms),))
    workload = build(spec, CPU)
    norms = [module for name, module in workload.model.named_modules() if name.endswith("norm")]
    assert len(norms) == 2 * spec.num_layers + 1
    assert {type(each).__name__ for each in norms} == {type(norms[0]).__name__}
    counted = parameters(spec)
    assert workload.facts.num_params == counted.numbers
    assert len(list(workload.model.parameters())) == counted.tensors
    logits = workload.model(workload.batch.inputs)
    plain = build(model_spec(), CPU)
    same = torch.allclose(logits, plain.model(plain.batch.inputs), atol=1e-4)
    assert same is (norm != "layernorm")
