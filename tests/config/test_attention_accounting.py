"""Bytes that attention alone keeps for its backward, against sums made by hand and a prediction."""

from __future__ import annotations

import pytest

from cs336_tui.config.attention_accounting import accounting_of
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


def test_of_a_users_function_nobody_knows() -> None:
    assert accounting_of(attention_spec(attention="theirs:attend")) is None


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed", "fp16-mixed"])
@pytest.mark.parametrize("causal", [True, False])
def test_on_a_gpu_it_is_what_a_prediction_holds(precision: str, causal: bool) -> None:
    """The prediction follows each operation under CUDA's autocast, whose softmax differs from the CPU's."""
    spec = attention_spec(precision=precision, causal=causal, device="cuda:0", context_length=256, d_model=16)
    assert predict(spec).forward_end_bytes - WORKSPACES == accounted(spec)
