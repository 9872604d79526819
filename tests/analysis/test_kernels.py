"""Analysis of a kernel report: rows, shares, attention's two sides, the top kernel, short names."""

import statistics
from collections import Counter

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cs336_tui.analysis.kernel_cells import attention_split
from cs336_tui.analysis.kernels import (
    by_kind,
    by_phase,
    by_range,
    idle_share,
    launches_in_forward,
    matmul_shares,
    named_share,
    rows,
    short_name,
)
from cs336_tui.config.variants import RANGES
from cs336_tui.events.kernel_report import FUSED, KINDS, KernelGroup
from cs336_tui.events.prediction import NO_RANGE
from cs336_tui.export.subjects.kernels import attention_table
from tests.made_kernels import (
    ADAM,
    ADD,
    FUSED_ADAM,
    GEMM,
    MEAN,
    MUL,
    SMALL_GEMM,
    SOFTMAX,
    a_group,
    a_kernel_report,
    a_prediction_for,
    an_operator_report,
)

REPORT = a_kernel_report()


def test_a_row_sums_up_all_launches_of_a_kernel() -> None:
    found = {row.name: row for row in rows(REPORT)}
    row, alone = found[SMALL_GEMM], found[SOFTMAX]
    durations = [12_000, 13_000, 12_500, 13_500, 12_000, 12_200]
    assert (row.total_ns, row.instances, row.min_ns, row.max_ns) == (75_200, 6, 12_000, 13_500)
    assert row.avg_ns == pytest.approx(statistics.mean(durations))
    assert row.med_ns == statistics.median(durations)
    assert row.std_ns == pytest.approx(statistics.stdev(durations))
    assert row.share == pytest.approx(75_200 / REPORT.total_ns)
    assert row.kind == "matrix multiply"
    assert (alone.instances, alone.std_ns) == (1, 0.0)


def test_rows_are_ordered_by_total_and_their_shares_add_up_to_one() -> None:
    found = rows(REPORT)
    totals = [row.total_ns for row in found]
    assert totals == sorted(totals, reverse=True)
    assert sum(totals) == REPORT.total_ns
    assert sum(row.share for row in found) == pytest.approx(1)
    assert sum(row.instances for row in found) == REPORT.launches


def test_shares_of_a_selection_are_of_that_selection() -> None:
    assert sum(row.share for row in rows(REPORT, phase="backward")) == pytest.approx(1)
    (gemm, other) = rows(REPORT, phase="forward", kind="matrix multiply")
    assert (gemm.name, other.name) == (GEMM, SMALL_GEMM)
    assert gemm.share == pytest.approx(255_500 / 280_500)
    assert [row.name for row in rows(REPORT, range_="norms")] == [MUL, MEAN]
    assert [row.name for row in rows(REPORT, phase=("loss", "optimizer"))] == [ADAM, MEAN]
    assert rows(REPORT, phase="zero_grad") == ()


def test_kinds_and_phases_each_cover_the_whole_step() -> None:
    for shares in (by_kind(REPORT), by_phase(REPORT)):
        assert sum(share.total_ns for share in shares) == REPORT.total_ns
        assert sum(share.share for share in shares) == pytest.approx(1)
        assert sum(share.instances for share in shares) == REPORT.launches
    assert [share.name for share in by_phase(REPORT)] == ["forward", "loss", "backward", "optimizer"]
    kinds = [share.name for share in by_kind(REPORT)]
    assert kinds == [kind for kind in KINDS if kind in kinds]


def test_ranges_count_their_backward_and_what_has_none_comes_last() -> None:
    found = {share.name: share for share in by_range(REPORT)}
    head = found["head"]
    assert (head.forward_ns, head.backward_ns, head.instances) == (52_000, 104_000, 3)
    assert found["optimizer"].forward_ns == 110_200
    assert list(found) == [*(name for name in RANGES if name in found), ""]
    assert sum(share.share for share in found.values()) == pytest.approx(1)
    assert named_share(REPORT) == pytest.approx(1 - found[""].share)


def test_matmul_shares_are_of_each_part_of_the_step() -> None:
    shares = matmul_shares(REPORT)
    products = Counter({"forward": 280_500, "backward": 320_200})
    totals = {share.name: share.total_ns for share in by_phase(REPORT)}
    assert shares.forward == pytest.approx(products["forward"] / totals["forward"])
    model = totals["forward"] + totals["loss"] + totals["backward"]
    assert shares.forward_and_backward == pytest.approx(products.total() / model)
    assert shares.full_step == pytest.approx(products.total() / REPORT.total_ns)
    forward = a_kernel_report(groups=(a_group(GEMM, "matrix multiply", "forward", "head", (1.0,)),))
    assert matmul_shares(forward) == (1.0, None, None)
    assert matmul_shares(an_operator_report()).full_step is None


def test_attention_sets_its_matrix_products_against_its_softmax() -> None:
    forward, backward = attention_split(a_kernel_report(prediction=a_prediction_for(REPORT.spec)))
    assert (forward.matmul_ns, forward.softmax_ns) == (25_000, 11_000)  # without adding the mask
    assert (backward.matmul_ns, backward.softmax_ns) == (50_200, 14_000)
    assert (forward.matmul_flops, forward.softmax_flops) == (2_000_000, 50_000)
    assert (backward.matmul_flops, backward.softmax_flops) == (4_000_000, 40_000)
    assert forward.time_ratio == pytest.approx(11 / 25)
    assert forward.flop_ratio == pytest.approx(0.025)
    unpredicted, _ = attention_split(REPORT)
    assert unpredicted[1:5] == (25_000, 11_000, None, None)
    assert unpredicted.flop_ratio is None


def test_a_forward_launches_a_kernel_so_often() -> None:
    assert [launches_in_forward(REPORT, name) for name in (GEMM, ADAM)] == [7, 0]
    backward = a_kernel_report(groups=(a_group(ADD, "elementwise", "backward", "head", (1.0,), backward=True),))
    assert launches_in_forward(backward, ADD) is None


def test_an_empty_report_has_no_rows_and_divides_by_nothing() -> None:
    empty = a_kernel_report(groups=())
    assert rows(empty) == by_kind(empty) == by_phase(empty) == by_range(empty) == attention_split(empty) == ()
    assert matmul_shares(empty) == (None, None, None)
    assert (named_share(empty), idle_share(empty)) == (0.0, None)
    assert idle_share(a_kernel_report(span_ns=1000, busy_ns=750)) == 0.25
    assert idle_share(an_operator_report()) is None, "of a GPU only"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (MUL, "elementwise MulFunctor<float>"),
        (ADAM, "multi_tensor_apply PointwiseOpScalarListFunctor<float>"),
        (FUSED_ADAM, "multi_tensor_apply FusedAdamMathFunctor<float>"),
        ("void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const> > >(int)", "dot<float>"),
        ("std::enable_if<(((8)>(0)))&&a::exists, void>::type b::norm_kernel<c10::Half, 8>(int)", "norm<Half>"),
        (SMALL_GEMM, "cutlass_80_simt_sgemm_128x64_8x5_nt"),
        ("ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_32x3_nn", "ampere_bf16_s16816gemm_bf16_256x128_nn"),
        ("aten::mm", "mm"),
        ("aten::_softmax_backward_data", "_softmax_backward_data"),
        ("MmBackward0", "MmBackward0"),
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "evaluate AccumulateGrad"),
    ],
)
def test_short_names_keep_what_tells(name: str, short: str) -> None:
    """Beside those of ``tests/data/kernel-names.tsv``."""
    assert short_name(name) == short


@given(st.text(max_size=80) | st.text("abc<>():,_ 0123gemm", max_size=80))
@example(f"k<{'a, ' * 100_000}>")  # its patterns take a time that grows with the square of the length
def test_a_short_name_is_neither_empty_nor_without_end(name: str) -> None:
    assert len(short_name(name)) < 5_000
    assert short_name(name).strip()


FUSED_ATTENTION = (
    a_group("flash_fwd", "other", "forward", "attention core", (4.0,)),
    a_group(GEMM, "matrix multiply", "forward", "feed-forward", (6.0,)),
)


def test_attention_that_is_one_kernel_is_not_split() -> None:
    report = a_kernel_report(groups=FUSED_ATTENTION, prediction=a_prediction_for(REPORT.spec))
    (forward,) = attention_split(report)
    assert (forward.matmul_ns, forward.softmax_ns, forward.time_ratio) == (None, None, None)
    assert forward.fused
    assert (forward.matmul_flops, forward.softmax_flops) == (2_000_000, 50_000)


@pytest.mark.parametrize(
    ("name", "fused"),
    [
        ("void pytorch_flash::flash_fwd_kernel<...>()", True),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)", True),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", True),
        ("aten::_scaled_dot_product_efficient_attention", True),
        ("aten::scaled_dot_product_attention", False),
        ("void cudnn::ops::nchwToNhwcKernel<float>()", False),
    ],
)
def test_attention_is_known_to_be_fused_by_the_name_of_its_kernel(name: str, fused: bool) -> None:
    (forward,) = attention_split(a_kernel_report(groups=(a_group(name, "other", "forward", "", (4.0,)),)))
    assert (forward.fused, forward.unnamed) == (fused, not fused)


def test_attention_that_nothing_names_is_not_called_fused_and_has_no_flops_either() -> None:
    groups = (a_group(GEMM, "matrix multiply", "forward", "attention rest", (4.0,)),)
    prediction = a_prediction_for(REPORT.spec)
    whole = msgspec.structs.replace(prediction, flops_by_range={"feed-forward": (7, 14)})
    for predicted in (None, whole):
        (forward,) = attention_split(a_kernel_report(groups=groups, prediction=predicted))
        assert (forward.matmul_ns, forward.matmul_flops, forward.softmax_flops, forward.flop_ratio) == (None,) * 4
        assert (forward.fused, forward.unnamed) == (False, True)
    softmax = (*groups, a_group(SOFTMAX, "softmax", "forward", "softmax", (2.0,)))
    (forward,) = attention_split(a_kernel_report(groups=softmax, prediction=whole))
    assert (forward.matmul_ns, forward.softmax_ns) == (None, 2000)
    assert (forward.matmul_flops, forward.softmax_flops) == (None, prediction.softmax_flops[0])
    assert not forward.unnamed


def test_what_is_compiled_is_in_no_named_range_but_told_apart_from_what_has_none() -> None:
    report = a_kernel_report(
        groups=(
            a_group("triton_poi_fused_add_0", "elementwise", "forward", FUSED, (3.0,)),
            a_group(GEMM, "matrix multiply", "forward", NO_RANGE, (1.0,)),
            a_group(ADD, "elementwise", "loss", "loss", (4.0,)),
        )
    )
    shares = [(share.name, share.share) for share in by_range(report)]
    assert shares == [("loss", 0.5), (FUSED, 0.375), (NO_RANGE, 0.125)]
    assert named_share(report) == 0.5


WRITTEN_OUT = (
    a_group("aten::addmm", "matrix multiply", "forward", "QKV projections", (9.0,)),
    a_group("aten::bmm", "matrix multiply", "forward", "attention rest", (3.0, 4.0)),
    a_group("aten::_softmax", "softmax", "forward", "attention rest", (2.0,)),
    a_group("aten::masked_fill", "elementwise", "forward", "attention rest", (8.0,)),
)
"""A forward, in µs."""


def test_products_and_softmax_are_told_by_their_kinds() -> None:
    report = a_kernel_report(groups=WRITTEN_OUT)
    prediction = a_prediction_for(report.spec)
    flops = msgspec.structs.replace(prediction, flops_by_range={"attention rest": (7, 14)})
    report = a_kernel_report(groups=WRITTEN_OUT, prediction=flops)
    (forward,) = attention_split(report)
    assert (forward.matmul_ns, forward.softmax_ns) == (7_000, 2_000)
    assert (forward.matmul_flops, forward.softmax_flops) == (7, prediction.softmax_flops[0])
    assert forward.by_kind
    assert not forward.unnamed
    notes = " ".join(attention_table(report).footnotes)
    assert "softmax: its kernels, " in notes
    assert "kernels of these kinds that its forward launches, without projections" in notes


@pytest.mark.parametrize("groups", [WRITTEN_OUT[1:], (*WRITTEN_OUT[:2], WRITTEN_OUT[3])], ids=["products", "softmax"])
def test_without_named_projections_or_a_kernel_of_the_softmax_nothing_is_told(groups: tuple[KernelGroup, ...]) -> None:
    (forward,) = attention_split(a_kernel_report(groups=groups))
    assert (forward.unnamed, forward.matmul_ns, forward.softmax_ns) == (True, None, None)
