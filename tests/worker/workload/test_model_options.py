"""Options of the reference model: dropout, biases, a tied head and the kind of GELU, against plain torch."""

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.predicted_peak import cpu_peak
from cs336_tui.analysis.fields import implied_params
from cs336_tui.config.flops import least_bytes, parameters, step_flops
from cs336_tui.config.spec import ARCHES, CellSpec
from cs336_tui.worker.estimate.predict import predict
from cs336_tui.worker.workload.building import build
from cs336_tui.worker.workload.norms import NORM_EPS
from cs336_tui.worker.workload.passes import cross_entropy
from cs336_tui.worker.workload.transformer import Linear, Transformer
from tests.worker.measure.cells import counted_flops, small_spec

CPU = torch.device("cpu")
ALL: dict[str, Any] = {"dropout": 0.25, "attention_dropout": 0.5, "bias": "on", "weight_tying": "on"}
EACH: list[dict[str, Any]] = [{}, *({key: value} for key, value in ALL.items()), ALL]
OF_2024: dict[str, Any] = {"arch": "gelu-learned", "num_heads": 2}


def built(**changes: Any) -> tuple[CellSpec, Transformer, Tensor, Tensor]:
    """The spec, its model with biases that are not 0, inputs and targets."""
    spec = small_spec(**OF_2024 | changes)
    workload = build(spec, CPU)
    model = workload.model
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.detach().normal_(generator=generator)
    return spec, model, *workload.batch


def plain_logits(spec: CellSpec, weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """The 2024 model in functions of torch: pre-norm, learned positions, GELU; dropout drawn in the order of use."""

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(name: str, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + NORM_EPS).sqrt() * weights[f"{name}.weight"]

    def drop(x: Tensor, share: float = spec.dropout) -> Tensor:
        return F.dropout(x, share, training=spec.pass_ != "inference")

    def gelu(x: Tensor) -> Tensor:
        if spec.gelu == "tanh":
            return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    batch, length = tokens.shape
    future = torch.ones(length, length).triu(1).bool()
    x = drop(weights["token_embedding.weight"][tokens] + weights["position_embedding.weight"][:length])
    for number in range(spec.num_layers):
        at = f"layers.{number}"
        inner = norm(f"{at}.attention_norm", x)
        q, k, v = (
            linear(f"{at}.attention.{name}", inner).view(batch, length, spec.num_heads, -1).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(future, -math.inf)
        mixed = drop(scores.softmax(-1), spec.attention_dropout) @ v
        x = x + drop(linear(f"{at}.attention.output", mixed.transpose(1, 2).reshape(batch, length, -1)))
        x = x + drop(linear(f"{at}.ffn.down", gelu(linear(f"{at}.ffn.up", norm(f"{at}.ffn_norm", x)))))
    head = weights["token_embedding.weight"] if spec.weight_tying == "on" else weights["head.weight"]
    return norm("final_norm", x) @ head.T


@pytest.mark.parametrize("gelu", ["exact", "tanh"])
@pytest.mark.parametrize("options", EACH)
@pytest.mark.parametrize("pass_", ["inference", "forward+backward"])
def test_logits_and_gradients_are_those_of_plain_torch(pass_: str, options: dict[str, Any], gelu: str) -> None:
    spec, model, tokens, targets = built(pass_=pass_, gelu=gelu, **options)
    plain = {name: nn.Parameter(each.detach().clone()) for name, each in model.named_parameters()}
    torch.manual_seed(7)
    logits = model(tokens)
    torch.manual_seed(7)
    expected = plain_logits(spec, plain, tokens)
    torch.testing.assert_close(logits, expected)
    if pass_ == "inference":
        torch.testing.assert_close(model(tokens[:, :5]), plain_logits(spec, plain, tokens[:, :5]))
        return
    for made in (logits, expected):
        cross_entropy(made, targets).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, plain[name].grad, msg=name)


def test_the_two_kinds_of_gelu_differ() -> None:
    exact, tanh = (built(gelu=kind)[1:3] for kind in ("exact", "tanh"))
    assert not torch.equal(exact[0](exact[1]), tanh[0](tanh[1]))


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(("bias", "tying"), itertools.product(["off", "on"], repeat=2))
def test_parameters_are_those_of_the_model(arch: str, bias: str, tying: str) -> None:
    spec = small_spec(arch=arch, bias=bias, weight_tying=tying, num_heads=2, d_ff=40)
    workload = build(spec, CPU)
    model = workload.model
    assert implied_params(spec) == sum(each.numel() for each in model.parameters())
    assert parameters(spec).tensors == len(list(model.parameters()))
    head = 0 if tying == "on" else spec.vocab_size * spec.d_model
    assert workload.facts.num_params_without_head == implied_params(spec) - head
    linears = {name: each for name, each in model.named_modules() if isinstance(each, Linear)}
    with_bias = {name for name, each in linears.items() if each.bias is not None}
    assert with_bias == (linears.keys() - {"head"} if bias == "on" else set())
    assert (model.head.weight is model.token_embedding.weight) == (tying == "on")


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("options", EACH)
@pytest.mark.parametrize("pass_", ["inference", "forward+backward", "train-step"])
def test_predictions_hold(arch: str, pass_: str, options: dict[str, Any]) -> None:
    spec = small_spec(
        arch=arch, pass_=pass_, d_model=64, d_ff=160, vocab_size=2000, context_length=32, num_heads=2, **options
    )
    predicted = predict(spec)
    assert predicted.peak_bytes == pytest.approx(cpu_peak(spec), abs=64)
    assert predicted.num_params == implied_params(spec)
    assert sum(predicted.flops.values()) == step_flops(spec)
    assert predicted.min_bytes_moved == least_bytes(spec)


@pytest.mark.parametrize("arch", ARCHES)
def test_predicted_flops_are_those_that_torch_counts(arch: str) -> None:
    spec = small_spec(arch=arch, num_heads=2, **ALL)
    assert predict(spec).flops == counted_flops(spec)


def test_a_mask_of_cuda_s_dropout_takes_a_byte_an_element() -> None:
    shape: dict[str, Any] = {"d_model": 64, "d_ff": 160, "context_length": 32, "num_layers": 3, "batch_size": 2}
    bytes_of = {
        device: predict(small_spec(device=device, dropout=0.1, **shape)).activation_peak_bytes
        - predict(small_spec(device=device, **shape)).activation_peak_bytes
        for device in ("cpu", "cuda:0")
    }
    elements = (2 * 3 + 1) * 2 * 32 * 64
    assert bytes_of == {"cpu": 4 * elements, "cuda:0": elements}


def test_a_seed_gives_the_same_steps_and_steps_differ() -> None:
    spec = small_spec(dropout=0.5)
    first, again = (build(spec, CPU) for _ in range(2))
    torch.manual_seed(spec.seed)
    logits = [first.model(first.batch.inputs) for _ in range(2)]
    assert not torch.equal(*logits)
    torch.manual_seed(spec.seed)
    assert torch.equal(logits[0], again.model(again.batch.inputs))
