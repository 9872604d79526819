"""Setting precisions and reading them back; linear layers in float8, whose products torch computes on a CPU too, if
slowly."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_tui.config.spec import PRECISIONS, ModelDims
from cs336_tui.worker.workload.model_parts import checkpoint_blocks
from cs336_tui.worker.workload.precision import (
    FORMAT,
    GRADIENT_FORMAT,
    RECIPES,
    autocast_for,
    check_capability,
    check_precision,
    effective_autocast,
    float8_description,
    linear,
    tf32_allowed,
    to_float8,
    use_float8,
    why_no_float8,
)
from cs336_tui.worker.workload.transformer import Transformer
from tests.worker.measure.cells import multiplies_float8


@pytest.fixture(autouse=True)
def _restore() -> object:
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_setting_and_reading_back_agree_without_a_warning(precision: str) -> None:
    torch.set_float32_matmul_precision("medium")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.set_float32_matmul_precision(RECIPES[precision].matmul)
        assert torch.get_float32_matmul_precision() == ("high" if precision == "tf32" else "highest")
        assert tf32_allowed() == (precision == "tf32")


def test_the_newer_switch_is_seen_and_overruled() -> None:
    """torch 2.9 and later have a second way to allow TF32; whatever it was left at, a cell sets its own."""
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has only the older switch")
    matmul.fp32_precision = "tf32"
    assert tf32_allowed()
    torch.set_float32_matmul_precision("highest")
    assert not tf32_allowed()
    assert torch.get_float32_matmul_precision() == "highest"


def test_autocast_is_read_from_torch() -> None:
    mixed = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16, "fp8-mixed": torch.bfloat16}
    for precision in PRECISIONS:
        assert effective_autocast(autocast_for(RECIPES[precision], "cpu"), "cpu") == mixed.get(precision)
    assert effective_autocast(lambda: torch.autocast("cpu", torch.bfloat16, enabled=False), "cpu") is None


@pytest.mark.parametrize("precision", ["tf32", "fp8-mixed"])
def test_tf32_and_float8_need_cuda(precision: str) -> None:
    check_precision(precision, "cuda")
    check_precision("fp32", "cpu")
    for device_type in ("cpu", "mps"):
        with pytest.raises(ValueError, match=f"precision {precision}: {device_type} cannot do it, only cuda can"):
            check_precision(precision, device_type)


def test_float8_needs_a_gpu_that_has_it_and_nvidias_torch_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_no_float8((8, 9), "NVIDIA L4") is None
    assert why_no_float8((10, 0), "NVIDIA B200") is None
    assert why_no_float8((8, 0), "NVIDIA A100") == (
        "precision fp8-mixed: needs compute capability 8.9 or later, NVIDIA A100 has 8.0"
    )

    with monkeypatch.context() as patched:
        patched.setattr(torch.version, "hip", "6.4")
        assert "this one is for ROCm 6.4" in str(why_no_float8((9, 4), "AMD Instinct MI300X"))
    monkeypatch.delattr(torch, "_scaled_mm")
    assert f"torch {torch.__version__} has no scaled float8 products" in str(why_no_float8((9, 0), "NVIDIA H100"))
    check_capability("bf16-mixed", torch.device("cuda:0"))  # without a GPU here: asking would raise
    check_capability("fp8-mixed", torch.device("meta"))


VOCAB = 48


def a_transformer(device: str = "cpu", arch: str = "swiglu-rope", **changes: int) -> Transformer:
    sides = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": VOCAB}
    model = Transformer(ModelDims(**(sides | changes)), arch=arch, context_length=8, device=device)
    if device != "meta":
        model.initialise(0)
    return model


@torch.no_grad()
def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize(("dtype", "share"), [(FORMAT, 2**-4), (GRADIENT_FORMAT, 2**-3)])
@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("magnitude", [1e-8, 1.0, 1e8])
def test_a_tensor_of_any_magnitude_keeps_its_numbers_to_half_a_step_of_the_format(
    dtype: torch.dtype, share: float, of: torch.dtype, magnitude: float
) -> None:
    x = (torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) * magnitude).to(of)
    small, scale = to_float8(x, dtype)
    assert (small.dtype, scale.dtype, scale.shape) == (dtype, torch.float32, ())
    back = small.double() * scale.double()
    exact = x.double()
    # bfloat16 rounds the quotient before the format does, by 2^-9 of it; below the least normal number steps are even.
    rounding = share * (1 + 2**-3)
    least = torch.finfo(dtype).smallest_normal * float(scale)
    assert bool(((back - exact).abs() <= rounding * exact.abs().clamp_min(least)).all())
    assert small.double().abs().max() == torch.finfo(dtype).max


def test_a_transposed_tensor_is_written_out_by_rows() -> None:
    """A gradient may be transposed; CUDA's product refuses it, a CPU's does not."""
    x = torch.arange(32.0).reshape(2, 16).t()
    small, scale = to_float8(x, FORMAT)
    assert small.is_contiguous()
    assert torch.equal((small.float() * scale)[:, 0].argsort(), torch.arange(16))


def test_zeros_stay_zeros_and_what_is_not_finite_is_seen() -> None:
    small, scale = to_float8(torch.zeros(16, 16), FORMAT)
    assert not small.float().any()
    assert scale > 0
    small, scale = to_float8(torch.ones(16, 16).index_fill(0, torch.tensor(3), torch.nan), FORMAT)
    assert (small.float() * scale).isnan().any()


@multiplies_float8
@pytest.mark.parametrize("shape", [(32, 64), (4, 8, 64), (3, 5, 64), (1, 64)])
@pytest.mark.parametrize("bias", [False, True])
def test_products_and_gradients_come_near_the_exact_ones(shape: tuple[int, ...], bias: bool) -> None:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=random, requires_grad=True)
    weight = torch.randn(48, 64, generator=random, requires_grad=True)
    added = torch.randn(48, generator=random, requires_grad=True) if bias else None
    given = torch.randn(*shape[:-1], 48, generator=random)
    leaves = [leaf for leaf in (x, weight, added) if leaf is not None]
    exact_out = F.linear(x, weight, added)
    exact = torch.autograd.grad(exact_out, leaves, given)
    out = linear(x, weight, added)
    found = torch.autograd.grad(out, leaves, given.to(out.dtype))
    assert (out.dtype, out.shape) == (torch.bfloat16, exact_out.shape)
    assert relative_error(out, exact_out) < 0.05
    for ours, theirs in zip(found, exact, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert relative_error(ours, theirs) < 0.1
    # The error is float8's: a bfloat16 product would be far nearer.
    assert relative_error(out, exact_out) > 0.01


@multiplies_float8
@pytest.mark.parametrize("arch", ["swiglu-rope", "gelu-learned"])
def test_every_layer_of_the_reference_but_the_head_is_changed_and_nothing_else(arch: str) -> None:
    model = a_transformer(arch=arch)
    names, before = [name for name, _ in model.named_parameters()], [*model.parameters()]
    heard: list[str] = []
    model.layers[0].ffn.up.register_forward_hook(lambda *_: heard.append("up"))
    head = type(model.head)
    use_float8(model, VOCAB)
    linears = 2 * (7 if arch == "swiglu-rope" else 6)
    assert float8_description(model) == f"float8_e4m3fn and float8_e5m2 in {linears} of {linears + 1} linear layers"
    assert type(model.head) is head
    assert [name for name, _ in model.named_parameters()] == names
    assert all(now is then for now, then in zip(model.parameters(), before, strict=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(torch.zeros(2, 8, dtype=torch.int64))
    assert heard == ["up"]
    assert logits.dtype == torch.bfloat16


def test_a_model_on_the_meta_device_goes_through_forward_and_backward() -> None:
    model = a_transformer("meta")
    use_float8(model, VOCAB)
    logits = model(torch.zeros(2, 8, dtype=torch.int64, device="meta"))
    logits.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


class Own(nn.Module):
    """A user's model: two layers that fit, one that does not, one of a class of its own, and a head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.gate = nn.Linear(width, 3)
        self.own = OwnLinear(width, width)
        self.head = nn.Linear(width, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = self.own(self.down(self.up(x).relu())) * self.gate(x).sum(-1, keepdim=True)
        return self.head(x)


class OwnLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


@multiplies_float8
def test_a_users_layers_are_changed_where_they_can_be() -> None:
    model = Own(32)
    use_float8(model, VOCAB)
    assert float8_description(model) == "float8_e4m3fn and float8_e5m2 in 2 of 5 linear layers"
    assert type(model.gate) is type(model.head) is nn.Linear
    assert type(model.own) is OwnLinear
    assert isinstance(model.up, nn.Linear), "whoever looks for linear layers still finds them"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.zeros(2, 8, dtype=torch.int64)).float().sum()
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Embedding(VOCAB, 32), OwnLinear(32, 32)), "Sequential has no torch.nn.Linear to run in it"),
        (nn.Sequential(nn.Embedding(VOCAB, 32), nn.Linear(32, VOCAB)), "Sequential has no torch.nn.Linear to run in"),
        (Own(24), "no linear layer of Own has sides that are multiples of 16"),
        (a_transformer(d_model=24, d_ff=40), "no linear layer of the reference model"),
    ],
    ids=["none", "the head alone", "odd sides", "the reference with odd sides"],
)
def test_a_model_without_such_a_layer_is_refused_instead_of_run_in_bfloat16(model: nn.Module, said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        use_float8(model, VOCAB)
    assert str(raised.value).startswith("precision fp8-mixed: ")
    assert str(raised.value).endswith("choose bf16-mixed")
    assert float8_description(model) is None


@multiplies_float8
def test_torch_compile_follows_it_without_a_break() -> None:
    torch.compiler.reset()
    random = torch.Generator().manual_seed(3)
    x = torch.randn(3, 5, 32, generator=random, requires_grad=True)
    weight = torch.randn(16, 32, generator=random, requires_grad=True)
    found = []
    for run in (linear, torch.compile(linear, backend="aot_eager", fullgraph=True)):
        out = run(x, weight)
        found.append((out, *torch.autograd.grad(out.float().square().sum(), (x, weight))))
    for written, followed in zip(*found, strict=True):
        assert followed.dtype == written.dtype
        assert relative_error(followed, written) < 0.01


@multiplies_float8
def test_checkpointed_blocks_stay_in_float8() -> None:
    gradients = []
    for checkpoint in (False, True):
        model = a_transformer()
        use_float8(model, VOCAB)
        if checkpoint:
            checkpoint_blocks(model, 1)
        model(torch.zeros(2, 8, dtype=torch.int64)).float().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


@multiplies_float8
def test_a_model_in_float8_learns_as_one_in_bfloat16_does() -> None:
    tokens = torch.randint(0, VOCAB, (4, 8), generator=torch.Generator().manual_seed(2))

    def losses(small: bool) -> list[float]:
        model = a_transformer(num_layers=1)
        if small:
            use_float8(model, VOCAB)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
        found = []
        for _ in range(5):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
            optimizer.step()
            found.append(float(loss.detach()))
        return found

    wide, small = losses(False), losses(True)
    assert small != wide
    assert small[0] == pytest.approx(wide[0], rel=0.05)
    assert small[-1] == pytest.approx(wide[-1], rel=0.2, abs=0.1)
    assert small[-1] < 0.9 * small[0]
