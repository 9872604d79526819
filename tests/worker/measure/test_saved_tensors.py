"""Tensors that a Transformer block saves for its backward, against a list made by hand."""

from __future__ import annotations

import gc

import pytest
import torch

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import SavedBlock
from cs336_tui.worker.measure.cell_memory import saved_for_backward
from cs336_tui.worker.workload.building import build
from tests.worker.measure.cells import small_spec

D, F, B, T, H = 16, 24, 2, 8, 2
N = B * T
"""Tokens."""
FP32 = 4


def saved(spec: CellSpec) -> tuple[SavedBlock, ...]:
    return saved_for_backward(build(spec, torch.device("cpu")))


def elements(block: SavedBlock, range_: str) -> int:
    return sum(tensor.bytes // FP32 for tensor in block.contributors if tensor.range == range_)


def test_a_block_of_the_reference_model_saves_what_its_formulas_need() -> None:
    first, second = saved(small_spec(d_model=D, d_ff=F, batch_size=B, context_length=T, num_heads=H))
    assert (first.module, second.module) == ("layers.0", "layers.1")
    assert first.contributors == second.contributors
    # Both norms: their input, the normed input before the weight, and the scale of each token.
    assert elements(first, "norms") == 2 * (N * D + N * D + N)
    # The input of query, key and value, which they share. Rotary needs only its tables, which are buffers.
    assert elements(first, "QKV projections") == N * D
    assert elements(first, "rotary") == 0
    assert elements(first, "attention scores") == 2 * N * D  # scaled queries, and keys
    assert elements(first, "softmax") == B * H * T * T  # its result, which the final matmul shares
    assert elements(first, "final matmul") == N * D  # values, a head after the other
    assert elements(first, "output projection") == N * D
    # The input of gate and up, gate's output, silu's and up's, and their product.
    assert elements(first, "feed-forward") == N * D + 4 * N * F
    assert first.bytes == FP32 * (10 * N * D + 2 * N + B * H * T * T + 4 * N * F)
    assert first.bytes == sum(tensor.bytes for tensor in first.contributors)


def test_a_gelu_network_saves_its_input_and_two_hidden_tensors() -> None:
    for block in saved(small_spec(arch="gelu-learned", d_model=D, d_ff=F, batch_size=B, context_length=T)):
        assert elements(block, "feed-forward") == N * D + 2 * N * F


def test_each_kind_names_its_node_shape_and_dtype_largest_first() -> None:
    (block, _) = saved(small_spec(d_model=D, d_ff=F, batch_size=B, context_length=T, num_heads=H))
    softmax = next(tensor for tensor in block.contributors if tensor.range == "softmax")
    assert (softmax.node, softmax.shape, softmax.dtype, softmax.count) == (
        "SoftmaxBackward0",
        (B, H, T, T),
        "float32",
        1,
    )
    products = next(tensor for tensor in block.contributors if tensor.node == "SiluBackward0")
    assert (products.range, products.shape) == ("feed-forward", (B, T, F))
    sizes = [tensor.bytes for tensor in block.contributors]
    assert sizes == sorted(sizes, reverse=True)


def test_autocast_saves_low_precision_copies_of_the_weights_too() -> None:
    (block, _) = saved(small_spec(d_model=D, d_ff=F, batch_size=5, precision="bf16-mixed"))
    copies = [tensor for tensor in block.contributors if tensor.shape in ((D, D), (D, F), (F, D))]
    assert {tensor.dtype for tensor in copies} == {"bfloat16"}
    assert sum(tensor.bytes for tensor in copies) == 2 * (4 * D * D + 3 * D * F)


@pytest.mark.parametrize("layers", [1, 3])
def test_there_is_a_row_for_every_block(layers: int) -> None:
    assert [block.module for block in saved(small_spec(num_layers=layers))] == [f"layers.{n}" for n in range(layers)]


@pytest.mark.parametrize("changes", [{}, {"precision": "bf16-mixed"}, {"checkpoint": 1}])
def test_no_tensor_of_the_forward_outlives_it(changes: dict[str, object]) -> None:
    """Softmax saves its own result: node and result must not keep each other."""

    def live() -> int:
        gc.collect()
        return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())

    workload = build(small_spec(**changes), torch.device("cpu"))
    before = live()
    for _ in range(3):
        assert saved_for_backward(workload)
        assert live() == before
