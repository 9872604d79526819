"""Kernels of all cells side by side: each part of a cell's step, as it was profiled and as it was timed. Profiled times
are ns of one step, timed ones seconds over the measured steps; shares are 0 to 1 of the part's kernel time.
Attention in a profiled step: its matrix products against its softmax, in time and in FLOPs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from cs336_tui.analysis.fields import FIELDS, device_label, machine
from cs336_tui.analysis.kernels import (
    MATMUL,
    OPTIMIZER_PHASES,
    KernelRow,
    Phases,
    has_totals_alone,
    in_phases,
    matmul_share,
    runs_of,
    share_of,
    top_row,
    total_ns,
    whole,
)
from cs336_tui.analysis.merge import Result, ddof_of, grouped, measured, pooled, without_cells
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import PHASES
from cs336_tui.events import kernel_report
from cs336_tui.events.kernel_report import FUSED, KernelGroup, KernelReport, Runs
from cs336_tui.events.prediction import report_key
from cs336_tui.session.state import SessionState
from cs336_tui.stats.summaries import Summary, summarize

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
    is_fused = not ranges.isdisjoint(_TOGETHER) or any(map(kernel_report.fuses_attention, others))
    return is_fused and _SOFTMAX not in ranges


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


_MODEL = ("forward", "loss", "backward")
_SOFTMAX = "softmax"
"""The named range of attention's softmax, and the kind of its fused kernel."""
_BY = ("size", "context", "batch", "pass", "precision", "device", "warmup")
"""Fields in whose order the cells are."""


class Profiled(NamedTuple):
    """A part of a profiled step. `kernel_ns` is the sum of its kernels' times, `span_ns` from the first one's begin to
    the last one's end; None where several of a step's phases make the part, or if it is not known. Of a recording with
    `runs` these, `instances` and those of `top` are the means over them, and shares are of their kernels.
    `softmax_share` is of attention's softmax: all that runs in that named range, or kernels of this kind where nothing
    names it; None within a fused kernel."""

    kernel_ns: int
    span_ns: int | None
    instances: float
    top: KernelRow | None
    """The kernel with the most time."""
    matmul_share: float
    softmax_share: float | None
    optimizer_share: float
    runs: Runs | None = None

    @property
    def times(self) -> str:
        """``5 × step``; empty if nothing tells them apart."""
        return self.runs.text if self.runs else ""

    @property
    def kernel_std_ns(self) -> float | None:
        """The sample std of the kernels' time over `runs`."""
        return _std(self.runs.total_ns) if self.runs else None

    @property
    def span_std_ns(self) -> float | None:
        """The sample std of the span over `runs`."""
        return _std(self.runs.span_ns) if self.runs else None


class CellPart(NamedTuple):
    """A part of a cell's step. `result` stands for the repeats of a cell; a profile that no cell is of has one that was
    never run. `timed` is None where the part was not timed by itself, or not at all."""

    result: Result
    part: str
    profiled: Profiled | None
    timed: Summary | None
    same_as_forward: bool | None
    """True if the top kernel is that of the same profile's forward; None of the forward, and if one is unknown."""
    profile: str
    """The status of the cell's profile, ``ok`` if it is there; empty if none was asked for."""
    report: KernelReport | None = None

    @property
    def kernel_difference_s(self) -> float | None:
        """Kernel time less the timed mean."""
        return self._less_timed(self.profiled.kernel_ns) if self.profiled else None

    @property
    def span_difference_s(self) -> float | None:
        """Span less the timed mean."""
        return self._less_timed(self.profiled.span_ns) if self.profiled else None

    def _less_timed(self, time_ns: int | None) -> float | None:
        mean_s = self.timed.mean_s if self.timed else None
        return None if time_ns is None or mean_s is None else time_ns / 1e9 - mean_s

    def of_timed(self, difference_s: float | None) -> float | None:
        """A difference as a share of the timed mean."""
        mean_s = self.timed.mean_s if self.timed else None
        return difference_s / mean_s if difference_s is not None and mean_s else None


def kernel_cells(
    states: Sequence[SessionState], results: Sequence[Result], wanted: Callable[[CellSpec], bool] = lambda _: True
) -> tuple[CellPart, ...]:
    """The parts of all cells, and of the `wanted` profiles that no cell is of, in the cells' natural order; empty where
    no step was profiled. Repeats are one cell."""
    profiles = (report for state in states for report in state.contents(KernelReport))
    return cell_parts(states, results, wanted) if any(wanted(report.spec) for report in profiles) else ()


def cell_parts(
    states: Sequence[SessionState], results: Sequence[Result], wanted: Callable[[CellSpec], bool] = lambda _: True
) -> tuple[CellPart, ...]:
    """As `kernel_cells`, also where no step was profiled."""
    # Of what others recorded only kernels: nothing else of it was run, or can be profiled.
    results = [each for each in results if not each.spec.recording or each.state.report_of("kernels", each.spec)]
    groups = list(grouped(results, lambda result: (result.source, result.spec, machine(result))).values())
    contents = {id(state): {report_key(each.spec): each for each in state.contents(KernelReport)} for state in states}
    found: dict[int, KernelReport | None] = {}
    for result in (cells[0] for cells in groups):  # of its session, else of another on the same device and torch
        key, torch = report_key(result.spec), result.environment.torch if result.environment else None
        others = [of[key] for of in contents.values() if key in of]
        alike = (each for each in others if (each.device_name, each.torch) == (device_label(result), torch))
        found[id(result)] = contents.get(id(result.state), {}).get(key) or next(alike, None)
    taken = {id(report) for report in found.values()}
    for result, report in without_cells(states, results, KernelReport):
        if wanted(report.spec) and id(report) not in taken:
            found[id(result)] = report
            groups.append([result])
    groups.sort(key=lambda cells: tuple(FIELDS[key].order(cells[0]) for key in _BY))
    ddof = ddof_of(results)
    return tuple(part for cells in groups for part in _parts_of(cells, found[id(cells[0])], ddof))


def step_parts(phases: Sequence[str], whole: str = "step") -> tuple[tuple[str, Phases], ...]:
    """The parts to look at in a step of these phases, by name: the forward, forward and backward, the whole step (whose
    phases are None, and which is called `whole` if its phases do not name it), each once."""
    model = tuple(phase for phase in phases if phase in _MODEL)
    found: list[tuple[str, Phases]] = [("forward", "forward")] if "forward" in phases and len(phases) > 1 else []
    if 1 < len(model) < len(phases):
        found.append((_together(model), model))
    return (*found, (_together(phases) or whole, None))


def profiled(report: KernelReport, phases: Phases = None) -> Profiled:
    """The figures of these phases of a profiled step."""
    groups = in_phases(report, phases)
    is_named = any(group.range == _SOFTMAX for group in report.groups)

    def is_softmax(group: KernelGroup) -> bool:
        return (
            group.range == _SOFTMAX if is_named else group.kind == _SOFTMAX and "loss" not in (group.range, group.phase)
        )

    span = report.span_ns if phases is None else report.phase_spans_ns.get(phases) if isinstance(phases, str) else None
    kernel_ns, instances, runs = (
        total_ns(groups),
        float(sum(group.instances for group in groups)),
        runs_of(report, phases),
    )
    groups = tuple(group for group in groups if not runs or group.stepped != 0)
    top = top_row(groups, runs)
    if runs:
        kernel_ns, instances = round(statistics.fmean(runs.total_ns)), statistics.fmean(runs.launches)
        span = round(statistics.fmean(runs.span_ns)) if runs.span_ns else None
    if top and top.per_run is not None:
        top = top._replace(instances=top.per_run, total_ns=round(top.avg_ns * top.per_run))
    return Profiled(
        kernel_ns=kernel_ns,
        span_ns=span or None if has_totals_alone(report) else span,
        instances=int(instances) if instances.is_integer() else round(instances, 2),
        top=top,
        runs=runs,
        matmul_share=matmul_share(groups),
        softmax_share=None if fuses_attention(report) else share_of(groups, is_softmax),
        optimizer_share=share_of(groups, lambda group: group.phase in OPTIMIZER_PHASES),
    )


def _std(times_ns: Sequence[int]) -> float | None:
    return statistics.stdev(times_ns) if len(times_ns) > 1 else None


def _parts_of(cells: Sequence[Result], report: KernelReport | None, ddof: int) -> Iterator[CellPart]:
    result = next(iter(measured(cells)), cells[0])
    latest = None if report else result.state.report_of("kernels", result.spec)
    profile = "ok" if report else (latest.status or "unfinished") if latest else ""
    phases = tuple(report.phase_spans_ns) if report else tuple(result.cell.phase_times_s)
    forward: KernelRow | None = None
    for name, chosen in step_parts(phases or PHASES[result.spec.pass_], whole(result.spec)):
        found = profiled(report, chosen) if report else None
        top = found.top if found else None
        same = forward.name == top.name if forward and top else None
        yield CellPart(result, name, found, _timed(cells, chosen, ddof), same, profile, report)
        forward = top if name == "forward" else forward


def _timed(cells: Sequence[Result], phases: Phases, ddof: int) -> Summary | None:
    """The measured steps, or the sum of some of their phases, step by step."""
    if phases is None:
        return pooled(cells, ddof)
    names = (phases,) if isinstance(phases, str) else phases
    times: list[float] = []
    for result in measured(cells):
        of_phases = [result.cell.phase_times_s.get(name, ()) for name in names]
        times += map(sum, zip(*of_phases, strict=False))
    return summarize(times, ddof) if times else None


def _together(phases: Sequence[str]) -> str:
    """The name of several phases as one part; the loss is left out beside a backward. Empty if they have none."""
    if not phases or not {*phases} <= {*_MODEL}:
        return phases[0] if len(phases) == 1 else ""
    return "+".join(phase for phase in phases if phase != "loss" or "backward" not in phases)
