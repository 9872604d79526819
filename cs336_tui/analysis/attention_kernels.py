"""Attention in a profiled step: its matrix products against its softmax, in time and in FLOPs."""

from __future__ import annotations

from typing import NamedTuple

from cs336_tui.analysis.kernels import MATMUL, in_phases, total_ns
from cs336_tui.events import kernel_kinds
from cs336_tui.events.kernel_report import FUSED, KernelReport

_ATTENTION_MATMULS = ("attention scores", "final matmul", "attention core")
_UNPARTED = ("attention rest",)
"""The range with the products and the softmax of attention that nothing takes apart, if its projections are named."""
_TOGETHER = ("attention core", FUSED)
"""Ranges in which products and softmax of attention are one."""


class AttentionSplit(NamedTuple):
    """Inside attention, in forward or backward: the matrix products of scores and values, and the softmax between them.
    Times of the products are of their kernels alone, without scaling and mask; those of the softmax of its whole range,
    or, `by_kind`, of its kernels alone. Both are None if nothing tells them apart: because of a fused kernel (`fused`),
    or of missing names (`unnamed`). FLOPs are None without a prediction, and if nothing tells."""

    phase: str
    matmul_ns: int | None
    softmax_ns: int | None
    matmul_flops: int | None
    softmax_flops: int | None
    fused: bool = False
    unnamed: bool = False
    by_kind: bool = False

    @property
    def time_ratio(self) -> float | None:
        """Softmax over matrix products."""
        return self.softmax_ns / self.matmul_ns if self.softmax_ns is not None and self.matmul_ns else None

    @property
    def flop_ratio(self) -> float | None:
        """Softmax over matrix products."""
        if self.softmax_flops is None or not self.matmul_flops:
            return None
        return self.softmax_flops / self.matmul_flops


def fuses_attention(report: KernelReport) -> bool:
    """True if nothing names the softmax of attention, and a kernel or a named range has it and the products in one."""
    ranges = {group.range for group in report.groups}
    others = {group.name for group in report.groups if group.kind == "other"}
    return "softmax" not in ranges and (
        not ranges.isdisjoint(_TOGETHER) or any(map(kernel_kinds.fuses_attention, others))
    )


def attention_split(report: KernelReport) -> tuple[AttentionSplit, ...]:
    """Matrix products against softmax in each of forward and backward that the step has."""
    found = []
    named = {group.range for group in report.groups}
    flops = report.prediction.flops_by_range if report.prediction else {}
    softmax_flops = report.prediction.softmax_flops if report.prediction else None
    nameless = named.isdisjoint((*_ATTENTION_MATMULS, "softmax", FUSED))
    unparted_kinds = {group.kind for group in report.groups if group.range in _UNPARTED}
    by_kind = nameless and "QKV projections" in named and unparted_kinds >= {MATMUL, "softmax"}
    products_in = _UNPARTED if by_kind else _ATTENTION_MATMULS
    told, fused = by_kind or "softmax" in named, fuses_attention(report)
    matmuls_told = told and not named.isdisjoint(products_in)
    counted = not flops.keys().isdisjoint(products_in)
    for way, phase in enumerate(("forward", "backward")):
        if phase not in report.phase_spans_ns:
            continue
        groups = in_phases(report, phase)
        products = total_ns(g for g in groups if g.range in products_in and g.kind == MATMUL)
        softmaxes = [g for g in groups if (g.range in _UNPARTED and g.kind if by_kind else g.range) == "softmax"]
        found.append(
            AttentionSplit(
                phase,
                matmul_ns=products if matmuls_told else None,
                softmax_ns=total_ns(softmaxes) if told else None,
                matmul_flops=sum(flops.get(name, (0, 0))[way] for name in products_in) if counted else None,
                softmax_flops=softmax_flops[way] if softmax_flops and (counted or told) else None,
                fused=fused and not told,
                unnamed=nameless and not by_kind and not counted and not fused,
                by_kind=by_kind,
            )
        )
    return tuple(found)


def tells_attention(report: KernelReport) -> bool:
    """True if some time is known to be of attention's products or softmax."""
    return any(each.matmul_ns or each.softmax_ns for each in attention_split(report))
