"""Memory over the backward of each block: gradients by hand, saved tensors by torch's hooks, the change as recorded."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from cs336_tui.analysis.memory import BlockRow, block_rows
from cs336_tui.events.reports import MemoryReport
from cs336_tui.worker.measure import memory_record
from tests.worker.measure.cells import memory_of, of_user, saved_by_hooks, small_spec
from tests.worker.measure.users_models import Layer

D, F, H, B, T = 48, 80, 2, 2, 24
N = B * T
FP32 = 4
pytestmark = pytest.mark.usefixtures("no_prediction")
NUMBER = 8
"""Bytes of a number that scales a tensor. Autograd keeps it, unseen by hooks on saved tensors."""

SHAPE = {
    "d_model": D, "d_ff": F, "num_layers": 3, "num_heads": H, "batch_size": B, "context_length": T, "vocab_size": 60,
}  # fmt: skip


def record(**changes: Any) -> MemoryReport:
    return memory_of(small_spec(**(SHAPE | changes)))


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({"arch": "swiglu-rope"}, 4 * D * D + 3 * D * F + 2 * D),
        ({"arch": "gelu-learned", "pass_": "train-step"}, 4 * D * D + 2 * D * F + 2 * D),
        ({"pass_": "backward"}, 4 * D * D + 3 * D * F + 2 * D),
        ({"pass_": "train-step", "precision": "bf16-mixed"}, 4 * D * D + 3 * D * F + 2 * D),
    ],
)
def test_gradients_come_as_many_as_there_are_parameters_and_what_was_saved_goes(
    changes: dict[str, Any], numbers: int
) -> None:
    rows = block_rows(record(**changes))
    assert [row.module for row in rows] == ["layers.0", "layers.1", "layers.2"]
    for row in rows:
        assert row.gradient_bytes == FP32 * numbers
        assert row.saved_bytes
        assert row.expected_bytes == row.gradient_bytes - row.saved_bytes
        assert row.difference_bytes == row.change_bytes - row.expected_bytes
        assert abs(row.difference_bytes) <= NUMBER
        assert row.seen_gradient_bytes == pytest.approx(row.gradient_bytes, abs=NUMBER)
        assert row.forward_bytes == pytest.approx(row.saved_bytes, abs=NUMBER)
        assert row.peak_bytes > max(row.before_bytes, row.after_bytes)
    assert all(one.before_bytes == other.after_bytes for one, other in pairwise(rows))


def test_parameters_in_half_precision_have_gradients_in_it() -> None:
    (row, *_) = block_rows(record(precision="bf16"))
    assert row.gradient_bytes == 2 * (4 * D * D + 3 * D * F + 2 * D)
    assert abs(row.difference_bytes or 0) <= NUMBER


def test_a_user_s_blocks_change_memory_by_what_torch_s_own_hooks_and_their_gradients_say(folder: Path) -> None:
    layer = Layer(D, F)
    layer(torch.randn(B, T, D)).sum().backward()
    gradients = sum(each.grad.nbytes for each in layer.parameters() if each.grad is not None)
    assert gradients == FP32 * (2 * D * F + D + F)
    _, saved = saved_by_hooks(lambda: layer(torch.randn(B, T, D, requires_grad=True)), layer.parameters())
    assert saved == FP32 * N * (D + F)  # the input, and relu's result, which the second layer shares
    for pass_ in ("forward+backward", "train-step"):
        rows = block_rows(record(**of_user(folder, "Blocks") | SHAPE, pass_=pass_))
        assert [row.module for row in rows] == ["layers.0", "layers.1", "layers.2"]
        for row in rows:
            assert (row.gradient_bytes, row.saved_bytes) == (gradients, saved)
            assert (row.change_bytes, row.difference_bytes) == (gradients - saved, 0)


def test_a_block_whose_input_has_no_gradient_is_left_out_and_frozen_parameters_have_none(folder: Path) -> None:
    rows = block_rows(record(**of_user(folder, "Frozen") | SHAPE))
    assert [row.module for row in rows] == ["layers.1", "layers.2"]
    assert rows[0].gradient_bytes == FP32 * (D * F + D)
    assert rows[1].gradient_bytes == FP32 * (2 * D * F + D + F)
    assert [row.difference_bytes for row in rows] == [0, 0]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"checkpoint": 2, "num_layers": 5}, ["layers.0-1", "layers.2-3", "layers.4"]),
        ({"checkpoint": 1, "num_layers": 5, "nesting": "halves"}, ["layers.0-2", "layers.3-4"]),
        ({"checkpoint": 1, "num_layers": 2}, ["layers.0", "layers.1"]),
    ],
)
def test_blocks_that_are_recomputed_together_keep_what_enters_them(changes: dict[str, Any], names: list[str]) -> None:
    report = record(**changes)
    rows = block_rows(report)
    assert [row.module for row in rows] == names
    block, entering = FP32 * (4 * D * D + 3 * D * F + 2 * D), FP32 * N * D
    blocks = [int(last) - int(first) + 1 for first, last in map(_places, names)]
    assert [row.gradient_bytes for row in rows] == [count * block for count in blocks]
    assert [row.saved_bytes for row in rows] == [entering] * len(names)
    (kept,) = report.saved[0].contributors
    assert (kept.node, kept.range, kept.shape) == ("checkpoint", "residual", (B, T, D))
    for row, count in zip(rows, blocks, strict=True):
        assert abs(row.change_bytes - (count * block - entering)) <= count * NUMBER


def _places(name: str) -> tuple[str, str]:
    first, _, last = name.removeprefix("layers.").partition("-")
    return first, last or first


def test_recomputed_activations_are_in_the_peak_of_their_group_and_nested_ones_are_less() -> None:
    def above(row: BlockRow) -> int:
        return row.peak_bytes - row.before_bytes

    whole, nested = (
        block_rows(record(checkpoint=every, num_layers=8, nesting=nesting))[-1]
        for every, nesting in ((4, "off"), (1, "halves"))
    )
    assert whole.module == nested.module == "layers.4-7"
    assert above(nested) < above(whole) / 1.5


def test_tensors_alone_tell_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = block_rows(record())
    monkeypatch.setattr(memory_record, "kineto_available", lambda: False)
    found = block_rows(record())
    assert [row.module for row in found] == [row.module for row in expected]
    assert [row.change_bytes for row in found] == [row.expected_bytes for row in expected]


@pytest.mark.parametrize(
    "changes", [{"pass_": "forward"}, {"pass_": "inference"}, {"workload": "attention", "pass_": "backward"}]
)
def test_without_a_backward_or_a_list_of_blocks_there_are_no_rows(changes: dict[str, Any]) -> None:
    assert record(**changes).blocks == ()
