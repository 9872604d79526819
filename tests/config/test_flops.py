"""FLOPs and bytes by formula, against a count of every operation of a step, sums made by hand and a prediction."""

import msgspec
import pytest
from hypothesis import given, settings

from cs336_tui.analysis.estimates import timed_flops
from cs336_tui.analysis.fields import implied_params
from cs336_tui.config.flops import accounting_of, least_bytes, step_flops
from cs336_tui.config.spec import ARCHES, PASSES, PRECISIONS, CellSpec
from cs336_tui.config.values import NORMS
from cs336_tui.worker.estimate.predict import predict
from tests.attention_cells import attention_spec
from tests.samples import a_spec
from tests.strategies import run_specs
from tests.worker.estimate.cells import small_cells
from tests.worker.measure.cells import small_spec


def assert_as_predicted(spec: CellSpec) -> None:
    predicted = predict(spec)
    assert step_flops(spec) == timed_flops(predicted)
    assert least_bytes(spec) == predicted.min_bytes_moved


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_every_kind_of_cell_is_as_predicted(arch: str, pass_: str, precision: str, device: str) -> None:
    assert_as_predicted(small_spec(arch=arch, pass_=pass_, precision=precision, device=device, d_ff=32))


@given(small_cells())
@settings(max_examples=25)
def test_any_dimensions_are_as_predicted(spec: CellSpec) -> None:
    assert_as_predicted(spec)


@given(run_specs())
def test_inference_moves_each_parameter_once_but_for_rows_that_no_token_reads(spec: CellSpec) -> None:
    spec = msgspec.structs.replace(spec, pass_="inference")
    unread = max(spec.vocab_size - spec.tokens_per_step, 0) * spec.d_model
    assert least_bytes(spec) == (implied_params(spec) - unread) * (2 if spec.precision == "bf16" else 4)


def test_a_forward_of_small_by_hand() -> None:
    weights = 12 * (4 * 768**2 + 3 * 768 * 3072) + 10_000 * 768
    attention = 2 * 2 * 128 * 128 * 768 * 12 * 4  # scores and values of 4 sequences
    assert step_flops(a_spec(pass_="forward")) == 2 * 512 * weights + attention


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "bf16"])
@pytest.mark.parametrize("pass_", ["inference", "forward", "forward+loss", "backward", "forward+backward"])
def test_naive_attention_alone_is_as_predicted(pass_: str, precision: str, causal: bool) -> None:
    for heads in (1, 4):
        _is_as_predicted(attention_spec(pass_=pass_, precision=precision, causal=causal, num_heads=heads))


def _is_as_predicted(spec: CellSpec) -> None:
    assert step_flops(spec) == timed_flops(predict(spec))


def test_attention_alone_by_hand() -> None:
    spec = attention_spec(batch_size=8, context_length=1024, d_model=64, causal=False, pass_="forward")
    pairs, tensor = 8 * 1024**2, 8 * 1024 * 64 * 4
    assert step_flops(spec) == 2 * pairs * 64 * 2
    assert least_bytes(spec) == 4 * tensor
    both = msgspec.structs.replace(spec, pass_="forward+backward")
    assert (step_flops(both), least_bytes(both)) == (3 * step_flops(spec), 8 * tensor)


@pytest.mark.parametrize(
    ("pass_", "tensors"),
    [("inference", 2), ("forward", 2), ("forward+loss", 2), ("backward", 3), ("forward+backward", 4)],
)
@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_alone_has_no_products_and_moves_its_rows(norm: str, pass_: str, tensors: int) -> None:
    spec = attention_spec(workload="norm", norm=norm, d_model=64, pass_=pass_, precision="bf16")
    _is_as_predicted(spec)
    assert (step_flops(spec), least_bytes(spec)) == (0, tensors * 2 * 24 * 64 * 2)


def test_a_fused_kernel_may_leave_out_what_is_masked() -> None:
    spec = attention_spec(batch_size=1, context_length=4, d_model=2, pass_="forward")
    assert step_flops(spec) == 4 * 16 * 2
    assert step_flops(msgspec.structs.replace(spec, attention="sdpa")) == 4 * 10 * 2
    assert step_flops(msgspec.structs.replace(spec, attention="sdpa"), all_pairs=True) == 4 * 16 * 2
    assert step_flops(msgspec.structs.replace(spec, attention="my.attention:flash")) == 4 * 10 * 2
    assert step_flops(msgspec.structs.replace(spec, attention="math")) == 4 * 16 * 2
    assert step_flops(msgspec.structs.replace(spec, attention="sdpa", causal=False)) == 4 * 16 * 2


WORKSPACES = 64 * 2**20
"""Bytes of cuBLAS's workspaces on Hopper: 32 MiB for each of the two threads that multiply."""


def accounted(spec: CellSpec) -> int:
    accounting = accounting_of(spec)
    assert accounting.bytes == sum(term.bytes for term in accounting.terms)
    return accounting.bytes


def test_naive_attention_and_its_mask_by_hand() -> None:
    spec = attention_spec(batch_size=8, context_length=16_384, d_model=64, causal=False)
    tensors, weights = 8 * 16_384 * 64 * 4, 8 * 16_384**2 * 4
    assert accounted(spec) == 6 * tensors + weights  # q, k, v, gradient, scaled q, output
    found = accounting_of(spec)
    assert found.in_words == (
        "3 B T K x 4 bytes (q, k, v) + B T K x 4 bytes (gradient of the output) + B T K x 4 bytes (scaled q)"
        " + B T T x 4 bytes (weights) + B T K x 4 bytes (output)"
    )
    causal, full = (attention_spec(batch_size=8, context_length=512, causal=causal) for causal in (True, False))
    assert accounted(causal) - accounted(full) == 512 * 512 * 4, "a mask is as large as the scores of one sequence"


@pytest.mark.parametrize("attention", ["sdpa", "flash", "memory-efficient", "cudnn"])
def test_a_fused_kernel_holds_nothing_that_grows_with_the_square(attention: str) -> None:
    one, two = (attention_spec(attention=attention, context_length=length) for length in (4096, 8192))
    assert accounted(two) == 2 * accounted(one)
    assert accounted(one) == 5 * 2 * 4096 * 8 * 4 + 2 * 4096 * 4


@pytest.mark.parametrize("attention", ["naive", "sdpa", "math"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
def test_heads_count_as_sequences_but_for_the_mask(attention: str, precision: str) -> None:
    shape = {"attention": attention, "precision": precision, "context_length": 64}
    heads = attention_spec(**shape, batch_size=2, d_model=48, num_heads=6)
    sequences = attention_spec(**shape, batch_size=12, d_model=8)
    assert accounted(heads) == accounted(sequences)


def test_heads_have_a_letter_and_of_a_users_function_nobody_knows() -> None:
    """The 2025 leaderboard's: 16 heads of width 64, 16,384 tokens, bfloat16."""
    spec = attention_spec(
        batch_size=1, context_length=16_384, d_model=1024, num_heads=16, precision="bf16", attention="flash"
    )
    found = accounting_of(spec)
    assert "3 B H T K x 2 bytes (q, k, v)" in found.in_words
    assert "B H T x 4 bytes (logsumexp)" in found.in_words
    assert accounted(spec) == 5 * 16 * 16_384 * 64 * 2 + 16 * 16_384 * 4
    assert accounting_of(attention_spec(attention="theirs:attend")) is None


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed", "fp16-mixed"])
@pytest.mark.parametrize("causal", [True, False])
def test_on_a_gpu_it_is_what_a_prediction_holds(precision: str, causal: bool) -> None:
    """The prediction follows each operation under CUDA's autocast, whose softmax differs from the CPU's."""
    for heads in (1, 4):
        spec = attention_spec(
            precision=precision, causal=causal, device="cuda:0", context_length=256, d_model=16 * heads, num_heads=heads
        )
        assert predict(spec).forward_end_bytes - WORKSPACES == accounted(spec)
