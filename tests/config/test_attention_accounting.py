"""Bytes that attention alone keeps for its backward, against sums made by hand and a prediction."""

from __future__ import annotations

import pytest

from cs336_tui.config.flops import accounting_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.worker.estimate.predict import predict
from tests.attention_cells import attention_spec

WORKSPACES = 64 * 2**20
"""Bytes of cuBLAS's workspaces on Hopper: 32 MiB for each of the two threads that multiply."""


def accounted(spec: CellSpec) -> int:
    accounting = accounting_of(spec)
    assert accounting is not None
    assert accounting.bytes == sum(term.bytes for term in accounting.terms)
    return accounting.bytes


def test_naive_by_hand() -> None:
    spec = attention_spec(batch_size=8, context_length=16_384, d_model=64, causal=False)
    tensors, weights = 8 * 16_384 * 64 * 4, 8 * 16_384**2 * 4
    assert accounted(spec) == 6 * tensors + weights  # q, k, v, gradient, scaled q, output
    found = accounting_of(spec)
    assert found is not None
    assert found.in_words == (
        "3 B T K x 4 bytes (q, k, v) + B T K x 4 bytes (gradient of the output) + B T K x 4 bytes (scaled q)"
        " + B T T x 4 bytes (weights) + B T K x 4 bytes (output)"
    )


def test_a_mask_is_as_large_as_the_scores_of_one_sequence() -> None:
    causal, full = (attention_spec(batch_size=8, context_length=512, causal=causal) for causal in (True, False))
    assert accounted(causal) - accounted(full) == 512 * 512 * 4


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


def test_heads_have_a_letter() -> None:
    """The 2025 leaderboard's: 16 heads of width 64, 16,384 tokens, bfloat16."""
    spec = attention_spec(
        batch_size=1, context_length=16_384, d_model=1024, num_heads=16, precision="bf16", attention="flash"
    )
    found = accounting_of(spec)
    assert found is not None
    assert "3 B H T K x 2 bytes (q, k, v)" in found.in_words
    assert "B H T x 4 bytes (logsumexp)" in found.in_words
    assert accounted(spec) == 5 * 16 * 16_384 * 64 * 2 + 16 * 16_384 * 4


def test_of_a_users_function_nobody_knows() -> None:
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
