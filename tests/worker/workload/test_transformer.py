"""The reference model and its batch against plain torch, its number of parameters, and the time to create it."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.creation import create
from benchmarks.plain_model import PlainTransformer
from cs336_tui.analysis.fields import implied_params
from cs336_tui.config.spec import ARCHES, Arch, ModelDims, dims_of
from cs336_tui.worker.workload.passes import cross_entropy
from cs336_tui.worker.workload.transformer import (
    GELU,
    Attention,
    Embedding,
    Linear,
    RMSNorm,
    Rotary,
    SwiGLU,
    Transformer,
    random_batch,
    truncated_normal_,
)
from tests.samples import a_spec

DIMS = ModelDims(d_model=32, d_ff=48, num_layers=2, num_heads=4, vocab_size=50)
CPU = torch.device("cpu")
CONTEXT = 12
EPS, THETA = 1e-5, 10_000.0


def a_model(arch: Arch = "swiglu-rope", seed: int = 0, dtype: torch.dtype = torch.float32) -> Transformer:
    model = Transformer(DIMS, arch=arch, context_length=CONTEXT, device=CPU, dtype=dtype)
    model.initialise(seed)
    return model


def tokens(batch: int = 3, length: int = CONTEXT) -> Tensor:
    return torch.randint(DIMS.vocab_size, (batch, length), generator=torch.Generator().manual_seed(7))


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def initialise(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(2)
    for part in module.modules():
        if isinstance(part, Linear):
            part.initialise(generator)


def assert_same_with_gradients(ours: Tensor, plain: Tensor, inputs: list[Tensor]) -> None:
    """Equal values, and equal gradients of every input for the same random cotangent."""
    torch.testing.assert_close(ours, plain)
    cotangent = random(*ours.shape, seed=3).detach()
    torch.testing.assert_close(
        torch.autograd.grad(ours, inputs, cotangent, retain_graph=True),
        torch.autograd.grad(plain, inputs, cotangent, retain_graph=True),
    )


def rotate_as_complex(x: Tensor) -> Tensor:
    """Rotary embedding as multiplication by e^(i t theta_k) of pairs read as complex numbers."""
    length, width = x.shape[-2:]
    frequency = THETA ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    turn = torch.polar(torch.ones(()).double(), torch.arange(length).double()[:, None] * frequency)
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


def plain_logits(model: Transformer, tokens: Tensor) -> Tensor:
    """The model's logits from its weights and torch's own functions."""
    weight = dict(model.named_parameters())
    learned = "position_embedding.weight" in weight
    x = F.embedding(tokens, weight["token_embedding.weight"])
    if learned:
        x = x + weight["position_embedding.weight"][: tokens.shape[1]]
    for i in range(DIMS.num_layers):

        def w(name: str, layer: str = f"layers.{i}.") -> Tensor:
            return weight[f"{layer}{name}.weight"]

        h = F.rms_norm(x, (DIMS.d_model,), w("attention_norm"), EPS)
        q, k, v = (
            (h @ w(f"attention.{name}").T).unflatten(-1, (DIMS.num_heads, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        if not learned:
            q, k = rotate_as_complex(q), rotate_as_complex(k)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).flatten(2) @ w("attention.output").T
        h = F.rms_norm(x, (DIMS.d_model,), w("ffn_norm"), EPS)
        up = h @ w("ffn.up").T
        hidden = F.gelu(up) if learned else F.silu(h @ w("ffn.gate").T) * up
        x = x + hidden @ w("ffn.down").T
    return F.rms_norm(x, (DIMS.d_model,), weight["final_norm.weight"], EPS) @ weight["head.weight"].T


@pytest.mark.parametrize("arch", ARCHES)
def test_logits_and_every_gradient_are_those_of_plain_torch(arch: Arch) -> None:
    model = a_model(arch)
    batch = tokens()
    assert_same_with_gradients(model(batch), plain_logits(model, batch), list(model.parameters()))


@pytest.mark.parametrize("arch", ARCHES)
def test_shapes_up_to_the_context_length(arch: Arch) -> None:
    model = a_model(arch)
    assert model(tokens(3)).shape == (3, CONTEXT, DIMS.vocab_size)
    assert model(tokens(1, 5)).shape == (1, 5, DIMS.vocab_size)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("changed", [0, 5, CONTEXT - 1])
def test_a_token_changes_only_itself_and_its_future(arch: Arch, changed: int) -> None:
    model = a_model(arch)
    before = tokens(1)
    after = before.clone()
    after[0, changed] = (before[0, changed] + 1) % DIMS.vocab_size
    was, now = model(before)[0], model(after)[0]
    torch.testing.assert_close(now[:changed], was[:changed], rtol=0, atol=0)
    assert ((now - was).abs().amax(dim=-1)[changed:] > 1e-6).all()


@pytest.mark.parametrize(
    ("size", "edition", "millions"), [("small", "2026", 120.95), ("medium", "2026", 412.94), ("large", "2026", 956.61)]
)
def test_parameter_counts_less_the_head_are_the_published_ones(size: str, edition: str, millions: float) -> None:
    model = Transformer(dims_of(size, edition), arch="swiglu-rope", context_length=512, device="meta")
    assert round(model.num_params_without_head / 1e6, 2) == millions


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(("size", "edition"), [("tiny", "2026"), ("2.7B", "2025"), ("10B", "2026")])
def test_parameter_counts_follow_from_the_dimensions(arch: Arch, size: str, edition: str) -> None:
    dims, context = dims_of(size, edition), 256
    model = Transformer(dims, arch=arch, context_length=context, device="meta")
    matrices = 3 if arch == "swiglu-rope" else 2
    layer = 4 * dims.d_model**2 + matrices * dims.d_model * dims.d_ff + 2 * dims.d_model
    tables = dims.vocab_size * dims.d_model + (context * dims.d_model if arch == "gelu-learned" else 0)
    assert model.num_params_without_head == dims.num_layers * layer + tables + dims.d_model
    assert model.num_params - model.num_params_without_head == dims.vocab_size * dims.d_model


@pytest.mark.parametrize("arch", ARCHES)
def test_everything_is_created_on_the_device_and_in_the_dtype_asked_for(arch: Arch) -> None:
    model = Transformer(DIMS, arch=arch, context_length=CONTEXT, device="meta", dtype=torch.bfloat16)
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"meta"}
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.state_dict().keys() == dict(model.named_parameters()).keys(), "tables are no part of a checkpoint"


def test_attention_is_scaled_dot_product_attention() -> None:
    ours = Attention(32, 4, None, device=CPU, dtype=torch.float32)
    initialise(ours)
    x = random(2, CONTEXT, 32)
    mask = torch.full((CONTEXT, CONTEXT), -math.inf).triu(1)
    q, k, v = (part(x).unflatten(-1, (4, 8)).transpose(1, 2) for part in (ours.query, ours.key, ours.value))
    plain = ours.output(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
    assert_same_with_gradients(ours(x, mask), plain, [x, *ours.parameters()])


def test_norm_is_torchs_rms_norm() -> None:
    ours, plain = RMSNorm(32, device=CPU, dtype=torch.float32), nn.RMSNorm(32, eps=EPS)
    weight = random(32)
    ours.weight.data = plain.weight.data = weight.detach()
    x = random(2, 5, 32)
    assert_same_with_gradients(ours(x), plain(x), [x])
    torch.testing.assert_close(
        torch.autograd.grad(ours(x).square().sum(), ours.weight),
        torch.autograd.grad(plain(x).square().sum(), plain.weight),
    )


def test_norm_of_bf16_is_computed_in_fp32() -> None:
    norm = RMSNorm(512, device=CPU, dtype=torch.bfloat16)
    x = random(4, 512).detach().bfloat16() * 30
    exact = F.rms_norm(x.float(), (512,), None, EPS).bfloat16()
    torch.testing.assert_close(norm(x), exact, rtol=0, atol=0)


def test_rotary_is_complex_multiplication() -> None:
    x = random(2, 4, CONTEXT, 8)
    assert_same_with_gradients(Rotary(8, CONTEXT, device=CPU)(x), rotate_as_complex(x), [x])


def test_rotary_scores_depend_on_distance_only() -> None:
    rotary = Rotary(16, 64, device=CPU)
    q, k = (rotary(random(1, 1, 1, 16, seed=s).detach().expand(1, 1, 64, 16))[0, 0] for s in (1, 2))
    torch.testing.assert_close(q[30] @ k[10], q[50] @ k[30], rtol=1e-4, atol=1e-4)
    assert not torch.isclose(q[30] @ k[10], q[30] @ k[11])


def test_swiglu_and_gelu_are_torchs() -> None:
    x = random(2, 5, 32)
    swiglu = SwiGLU(32, 48, device=CPU, dtype=torch.float32)
    initialise(swiglu)
    gate, up, down = (part.weight for part in (swiglu.gate, swiglu.up, swiglu.down))
    plain = (nn.SiLU()(x @ gate.T) * (x @ up.T)) @ down.T
    assert_same_with_gradients(swiglu(x), plain, [x, gate, up, down])

    gelu = GELU(32, 48, device=CPU, dtype=torch.float32)
    initialise(gelu)
    plain = nn.GELU()(x @ gelu.up.weight.T) @ gelu.down.weight.T
    assert_same_with_gradients(gelu(x), plain, [x, gelu.up.weight, gelu.down.weight])


def test_bf16_model_stays_in_bf16() -> None:
    model = a_model(dtype=torch.bfloat16)
    assert model(tokens()).dtype == torch.bfloat16
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("arch", ARCHES)
def test_same_seed_same_parameters(arch: Arch) -> None:
    first, again, other = a_model(arch, 3), a_model(arch, 3), a_model(arch, 4)
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name
        if "norm" not in name:
            assert not torch.equal(parameter, other.get_parameter(name)), name


def test_initial_scales() -> None:
    dims = ModelDims(d_model=128, d_ff=512, num_layers=1, num_heads=2, vocab_size=2000)
    model = Transformer(dims, arch="gelu-learned", context_length=256, device=CPU)
    model.initialise(0)
    for name, module in model.named_modules():
        if isinstance(module, Linear | Embedding):
            rows, columns = module.weight.shape
            assert_truncated_normal(
                module.weight, math.sqrt(2 / (rows + columns)) if isinstance(module, Linear) else 1.0, name
            )
        elif isinstance(module, RMSNorm):
            assert torch.equal(module.weight, torch.ones(128)), name


def assert_truncated_normal(x: Tensor, std: float, what: str = "") -> None:
    """Moments and tails of a normal cut at 3 std, whose own std is 0.98658 of the uncut one's; 5 sigma of slack."""
    z = x.detach().flatten().double() / std
    slack = 5 / math.sqrt(z.numel())
    assert abs(z.mean()) < slack, what
    assert abs(z.std() - 0.98658) < slack, what
    assert z.abs().max() <= 3 + 1e-6, what
    for bound, share in ((1.0, 0.31613), (2.0, 0.04292)):
        assert abs((z.abs() > bound).double().mean() - share) < slack, (what, bound)


@pytest.mark.parametrize("count", [2, 1000, 2**16, 2**16 + 1, 1_000_000])
def test_truncated_normal_of_any_length(count: int) -> None:
    x = truncated_normal_(torch.full((count,), math.nan), 0.02, torch.Generator().manual_seed(5))
    assert_truncated_normal(x, 0.02)


@pytest.mark.parametrize("count", [2, 2**16 + 1])
def test_a_seed_draws_the_same_in_every_dtype(count: int) -> None:
    draws = (
        truncated_normal_(torch.empty(count, dtype=dtype), 0.02, torch.Generator().manual_seed(5))
        for dtype in (torch.float32, torch.bfloat16)
    )
    single, rounded = draws
    assert torch.equal(single.bfloat16(), rounded)


def test_nothing_is_piled_up_at_the_cut() -> None:
    """The density goes on falling smoothly up to the cut: what was outside was drawn again, not clamped."""
    x = truncated_normal_(torch.empty(1_000_000), 1.0, torch.Generator().manual_seed(6)).abs()
    for low in (2.94, 2.96, 2.98):
        middle = low + 0.01
        expected = 1_000_000 * 0.02 * 2 * math.exp(-(middle**2) / 2) / math.sqrt(2 * math.pi) / 0.9973
        found = int(((x > low) & (x <= low + 0.02)).sum())
        assert abs(found - expected) < 5 * math.sqrt(expected), low


_PARTS = {
    "token_embedding": "embedding", "layers": "blocks", "attention_norm": "norm_1", "ffn_norm": "norm_2",
    "attention.query": "q", "attention.key": "k", "attention.value": "v", "attention.output": "o", "ffn.gate": "gate",
    "ffn.up": "up", "ffn.down": "down", "final_norm": "norm",
}  # fmt: skip


def plain_name(name: str) -> str:
    for ours, plain in _PARTS.items():
        name = name.replace(ours, plain)
    return name


def test_logits_and_gradients_of_the_benchmarks_plain_model_are_the_references() -> None:
    """So that the benchmark's plain model and the reference have comparable times."""
    reference = a_model()
    plain = PlainTransformer(DIMS.vocab_size, CONTEXT, DIMS.d_model, DIMS.num_layers, DIMS.num_heads, DIMS.d_ff)
    plain.load_state_dict({plain_name(name): value for name, value in reference.state_dict().items()})
    inputs, targets = torch.randint(DIMS.vocab_size, (2, 3, CONTEXT), generator=torch.Generator().manual_seed(1))
    logits = [model(inputs) for model in (reference, plain)]
    torch.testing.assert_close(*logits)
    for made in logits:
        cross_entropy(made, targets).backward()
    theirs = dict(plain.named_parameters())
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[plain_name(name)].grad, msg=name)


def test_targets_are_the_next_tokens() -> None:
    batch = random_batch(4, 16, 100, device="cpu", seed=0)
    assert batch.inputs.shape == batch.targets.shape == (4, 16)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert batch.inputs.is_contiguous()
    assert batch.targets.is_contiguous()


def test_tokens_cover_the_vocabulary_and_no_more() -> None:
    inputs = random_batch(8, 512, 10, device="cpu", seed=0).inputs
    assert inputs.unique().tolist() == list(range(10))


def test_same_seed_same_tokens() -> None:
    first, again, other = (random_batch(4, 16, 100, device="cpu", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)


@pytest.mark.parametrize(
    "changes", [{}, {"arch": "gelu-learned", "context_length": 64}, {"num_layers": 1, "vocab_size": 64, "d_ff": 100}]
)
def test_implied_parameters_are_the_models(changes: dict[str, Any]) -> None:
    spec = a_spec(**changes)
    model = Transformer(spec.dims, arch=spec.arch, context_length=spec.context_length, device="meta")
    assert implied_params(spec) == model.num_params


@pytest.mark.parametrize("arch", ARCHES)
def test_three_billion_parameters_are_there_at_once(arch: str) -> None:
    """A fresh process, where torch has not yet imported the modules of its meta device. The mark is 0.5 s;
    this bound is for a machine that is busy."""
    (first_s, second_s), count, _ = create("xl", arch, "meta")
    assert count > 3e9 if arch == "swiglu-rope" else count > 2e9
    assert first_s < 2
    assert second_s < 1


def test_no_operation_runs_on_the_meta_device() -> None:
    """A single one makes torch import its compiler, which takes a second."""
    code = """
import sys
from cs336_tui.config.spec import ModelDims
from cs336_tui.worker.workload.transformer import Transformer
dims = ModelDims(d_model=8, d_ff=8, num_layers=1, num_heads=2, vocab_size=8)
before = set(sys.modules)
Transformer(dims, arch="swiglu-rope", context_length=8, device="meta")
print(sorted(name for name in set(sys.modules) - before if name.startswith(("torch._dynamo", "sympy"))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
