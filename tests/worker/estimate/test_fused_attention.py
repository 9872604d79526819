"""Predicted memory of a step with fused attention, against torch's allocations."""

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from benchmarks.predicted_peak import cpu_peak
from cs336_tui.config.spec import PASSES, CellSpec
from cs336_tui.worker.estimate.meta_device import MetaAttention
from cs336_tui.worker.estimate.predict import predict
from tests.attention_cells import attention_spec
from tests.worker.measure.cells import Operations, small_spec

GPU = "cuda:0"


def wide_spec(**changes: object) -> CellSpec:
    """A cell whose sequences are so long that the attention scores take most of the memory."""
    return small_spec(**{"d_model": 32, "num_heads": 2, "context_length": 256, **changes})


def kernel_of(device_type: str, capability: tuple[int, int] = (9, 0), **options: object) -> str:
    """The fused kernel that a device runs for these inputs; ``math`` if none."""
    tensor = {"dtype": torch.bfloat16, "shape": (2, 2, 8, 16), "mask": None, "grouped": False} | options
    shape = tensor["shape"]
    q = torch.empty(shape, dtype=tensor["dtype"], device="meta", requires_grad=True)
    kv = torch.empty((shape[0], 1, *shape[2:]), dtype=q.dtype, device="meta") if tensor["grouped"] else q
    with MetaAttention(device_type, capability), Operations() as seen:
        given = {"attn_mask": tensor["mask"], "enable_gqa": tensor["grouped"]}
        out = F.scaled_dot_product_attention(q, kv, kv, is_causal=tensor["mask"] is None, **given)
        assert out.shape == q.shape
        out.sum().backward()
    fused = {name for name in seen.names if name.startswith("_scaled") and not name.endswith("backward")}
    assert len(fused) <= 1
    return fused.pop().removeprefix("_scaled_dot_product_") if fused else "math"


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("attention", ["sdpa", "flash", "math"])
def test_the_peak_is_what_the_cpu_s_allocator_counts(attention: str, pass_: str) -> None:
    spec = wide_spec(attention=attention, pass_=pass_, context_length=64)
    measured = cpu_peak(spec)
    # Not seen is what kernels take for themselves: the fused one a block of scores for each thread, the softmax of math
    # a byte a score, to look for rows that are masked as a whole.
    softmax = spec.batch_size * spec.num_heads * spec.context_length**2 + 1024
    scratch = (softmax if pass_ == "inference" else 64) if attention == "math" else 0.03 * measured
    assert measured - scratch <= predict(spec).peak_bytes <= measured + 64


@pytest.mark.parametrize(
    ("device", "precision"), [("cpu", "fp32"), ("cpu", "bf16-mixed"), (GPU, "fp32"), (GPU, "bf16")]
)
def test_no_pair_of_tokens_is_kept(device: str, precision: str) -> None:
    """Doubling the sequence doubles what a fused step keeps, and the naive one's scores become four times as many."""

    def growth(attention: str) -> float:
        kept = [
            predict(wide_spec(device=device, precision=precision, attention=attention, context_length=length))
            for length in (512, 1024)
        ]
        return kept[1].forward_end_by_category["activations"] / kept[0].forward_end_by_category["activations"]

    assert growth("sdpa") == pytest.approx(2, abs=0.01)
    assert growth("naive") > 3


@pytest.mark.parametrize(("device", "precision"), [("cpu", "fp32"), (GPU, "fp32"), (GPU, "bf16-mixed")])
def test_products_are_those_of_naive_and_the_scores_once_more_in_backward(device: str, precision: str) -> None:
    spec = wide_spec(pass_="train-step", device=device, precision=precision)
    naive, fused = predict(spec), predict(replace(spec, attention="sdpa"))
    scores = 2 * spec.batch_size * spec.context_length**2 * spec.d_model * spec.num_layers
    assert fused.flops["forward"] == naive.flops["forward"]
    assert fused.flops["backward"] == naive.flops["backward"] + scores


@pytest.mark.parametrize(
    ("expected", "options"),
    [
        ("flash_attention", {}),
        ("flash_attention", {"shape": (2, 2, 8, 20)}),  # padded to 24
        ("flash_attention", {"grouped": True}),
        ("efficient_attention", {"dtype": torch.float32}),
        ("efficient_attention", {"capability": (7, 5), "dtype": torch.float16}),
        ("efficient_attention", {"shape": (2, 2, 8, 512)}),
        ("efficient_attention", {"mask": torch.empty(8, 8, dtype=torch.bool, device="meta")}),
        ("math", {"dtype": torch.float32, "shape": (2, 2, 8, 18)}),
        ("math", {"dtype": torch.float32, "grouped": True}),
        ("math", {"dtype": torch.float64}),
    ],
)
def test_cuda_s_kernels(expected: str, options: dict[str, object]) -> None:
    assert kernel_of("cuda", **options) == expected


@pytest.mark.parametrize(
    ("backend", "expected"),
    [("FLASH_ATTENTION", "flash"), ("EFFICIENT_ATTENTION", "efficient"), ("CUDNN_ATTENTION", "cudnn"), ("MATH", "")],
)
def test_kernels_that_are_switched_off_are_not_taken(backend: str, expected: str) -> None:
    with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
        assert kernel_of("cuda") == (f"{expected}_attention" if expected else "math")


def test_nothing_is_left_for_fp32_where_only_flash_may_be() -> None:
    with (
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION),
        pytest.raises(RuntimeError, match="No available kernel"),
    ):
        kernel_of("cuda", dtype=torch.float32)


@pytest.mark.parametrize("options", [{}, {"mask": torch.empty(8, 8, device="meta", dtype=torch.bfloat16)}])
def test_a_cpu_is_asked_itself(options: dict[str, object]) -> None:
    q = torch.randn(2, 2, 8, 16, dtype=torch.bfloat16, requires_grad=True)
    mask = None if "mask" not in options else torch.zeros(8, 8, dtype=torch.bfloat16)
    with Operations() as seen:
        F.scaled_dot_product_attention(q, q, q, attn_mask=mask, is_causal=mask is None)
    really = [name for name in seen.names if "flash_attention" in name]
    assert kernel_of("cpu", **options) == (really[0].removeprefix("_scaled_dot_product_") if really else "math")


def test_math_adds_its_mask_in_place_as_it_does_to_tensors_with_data() -> None:
    real, meta = (torch.zeros(1, 2, 8, 16, device=device, requires_grad=True) for device in ("cpu", "meta"))
    with sdpa_kernel(SDPBackend.MATH):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            F.scaled_dot_product_attention(real, real, real, is_causal=True)
        with Operations() as seen, MetaAttention("cuda"):
            F.scaled_dot_product_attention(meta, meta, meta, is_causal=True)
    assert {event.name for event in profiler.events()} & {"aten::add", "aten::add_"} == {"aten::add_"}
    assert "bmm" in seen.names
    assert "add" not in seen.names


def test_tensors_with_data_are_left_alone_and_metal_keeps_its_scores() -> None:
    q = torch.randn(1, 2, 8, 16)
    with MetaAttention("cuda"), Operations() as seen:
        F.scaled_dot_product_attention(q, q, q)
    assert "_scaled_dot_product_flash_attention_for_cpu" in seen.names
    assert kernel_of("mps") == "math"


@pytest.mark.parametrize(("device", "kept"), [("cuda:0", 1), ("cpu", 2)])
def test_torchs_rms_norm_keeps_a_number_a_row_on_cuda_and_the_scaled_rows_elsewhere(device: str, kept: int) -> None:
    """Beside rows, weights and the output's gradient: the output and, where it is no kernel, the scaled rows."""
    rows, width = 512, 256
    spec = attention_spec(
        workload="norm", norm="torch-rmsnorm", d_model=width, context_length=rows, batch_size=1, device=device
    )
    tensor, numbers = rows * width * 4, rows * 4
    found = predict(spec)
    assert found.forward_end_bytes - (2 * tensor + width * 4) == pytest.approx(kept * tensor + numbers, abs=512)
    layer = predict(replace(spec, norm="layernorm"))
    assert layer.forward_end_bytes - (2 * tensor + 2 * width * 4) == pytest.approx(tensor + 2 * numbers, abs=512)
