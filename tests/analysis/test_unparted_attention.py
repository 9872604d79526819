"""Attention written out within one module: its parts are told by the kinds of kernels."""

from __future__ import annotations

import msgspec

from cs336_tui.analysis.kernel_cells import attention_split
from cs336_tui.events.kernel_report import KernelGroup
from cs336_tui.export.subjects.kernels import attention_table
from tests.made_kernels import a_group, a_kernel_report, a_prediction_for

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


def test_without_named_projections_their_products_could_be_among_them() -> None:
    assert is_nothing_told(WRITTEN_OUT[1:])


def test_a_softmax_that_is_no_kernel_of_its_own_is_not_told() -> None:
    assert is_nothing_told((*WRITTEN_OUT[:2], WRITTEN_OUT[3]))


def is_nothing_told(groups: tuple[KernelGroup, ...]) -> bool:
    (forward,) = attention_split(a_kernel_report(groups=groups))
    return forward.unnamed and (forward.matmul_ns, forward.softmax_ns) == (None, None)
