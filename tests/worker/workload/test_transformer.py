"""The reference model and its batch against plain torch, its number of parameters, and the time to create it."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.creation import create
from benchmarks.plain_model import PlainTransformer
from cs336_tui.config.spec import ARCHES, Arch, ModelDims, dims_of
from cs336_tui.worker.workload.norms import NORM_EPS
from cs336_tui.worker.workload.passes import cross_entropy
from cs336_tui.worker.workload.transformer import (
    Embedding,
    Linear,
    RMSNorm,
    Transformer,
    random_batch,
    truncated_normal_,
)
from tests.loading import python

DIMS = ModelDims(d_model=32, d_ff=48, num_layers=2, num_heads=4, vocab_size=50)
CPU = torch.device("cpu")
CONTEXT = 12


def a_model(arch: Arch = "swiglu-rope", seed: int = 0, dtype: torch.dtype = torch.float32) -> Transformer:
    model = Transformer(DIMS, arch=arch, context_length=CONTEXT, device=CPU, dtype=dtype)
    model.initialise(seed)
    return model


def tokens(batch: int = 3, length: int = CONTEXT) -> Tensor:
    return torch.randint(DIMS.vocab_size, (batch, length), generator=torch.Generator().manual_seed(7))


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


@pytest.mark.parametrize(("size", "millions"), [("small", 120.95), ("medium", 412.94), ("large", 956.61)])
def test_parameter_counts_less_the_head_are_the_published_ones(size: str, millions: float) -> None:
    model = Transformer(dims_of(size, "2026"), arch="swiglu-rope", context_length=512, device="meta")
    assert round(model.num_params_without_head / 1e6, 2) == millions


@pytest.mark.parametrize("arch", ARCHES)
def test_everything_is_created_on_the_device_and_in_the_dtype_asked_for(arch: Arch) -> None:
    model = Transformer(DIMS, arch=arch, context_length=CONTEXT, device="meta", dtype=torch.bfloat16)
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"meta"}
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.state_dict().keys() == dict(model.named_parameters()).keys(), "tables are no part of a checkpoint"


def test_norm_of_bf16_is_computed_in_fp32() -> None:
    norm = RMSNorm(512, device=CPU, dtype=torch.bfloat16)
    x = torch.randn(4, 512, generator=torch.Generator().manual_seed(1)).bfloat16() * 30
    exact = F.rms_norm(x.float(), (512,), None, NORM_EPS).bfloat16()
    torch.testing.assert_close(norm(x), exact, rtol=0, atol=0)


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
            std = math.sqrt(2 / (rows + columns)) if isinstance(module, Linear) else 1.0
            assert_truncated_normal(module.weight, std, name)
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
    single, rounded = (
        truncated_normal_(torch.empty(count, dtype=dtype), 0.02, torch.Generator().manual_seed(5))
        for dtype in (torch.float32, torch.bfloat16)
    )
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
    """Two writings of the same formulas, which have comparable times; of shorter sequences than the context too."""
    reference = a_model()
    plain = PlainTransformer(DIMS.vocab_size, CONTEXT, DIMS.d_model, DIMS.num_layers, DIMS.num_heads, DIMS.d_ff)
    plain.load_state_dict({plain_name(name): value for name, value in reference.state_dict().items()})
    inputs, targets = torch.randint(DIMS.vocab_size, (2, 3, CONTEXT), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(reference(inputs[:, :5]), plain(inputs[:, :5]))
    logits = [model(inputs) for model in (reference, plain)]
    torch.testing.assert_close(*logits)
    for made in logits:
        cross_entropy(made, targets).backward()
    theirs = dict(plain.named_parameters())
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[plain_name(name)].grad, msg=name)


def test_targets_are_the_next_of_all_tokens_which_follow_from_the_seed() -> None:
    batch = random_batch(4, 16, 100, device="cpu", seed=0)
    assert batch.inputs.shape == batch.targets.shape == (4, 16)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert batch.inputs.is_contiguous()
    assert batch.targets.is_contiguous()
    assert random_batch(8, 512, 10, device="cpu", seed=0).inputs.unique().tolist() == list(range(10))
    first, again, other = (random_batch(4, 16, 100, device="cpu", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)


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
    assert python(code).stdout == "[]\n"
