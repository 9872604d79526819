"""FLOPs and bytes by formula, against a count of every operation of a step."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings

from cs336_tui.analysis.estimates import timed_flops
from cs336_tui.analysis.fields import implied_params
from cs336_tui.config.flops import least_bytes, step_flops
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
