"""Views of a profiled step beside the list of its kernels: its summary, kinds, parts, attention, gaps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cs336_tui.analysis import kernels
from cs336_tui.analysis.attention_kernels import AttentionSplit, attention_split
from cs336_tui.analysis.kernels import Phases, RangeShare
from cs336_tui.events.kernel_report import KINDS, Gap, KernelReport
from cs336_tui.export.kernels import UNNAMED_RECORDING
from cs336_tui.export.tables import Column, Table
from cs336_tui.stats.quantities import FLOP_RATES, FLOPS, counted, scale, time_text
from cs336_tui.tui import format
from cs336_tui.tui.charts.bars import phase_role
from cs336_tui.tui.tabs.kernels.listing import (
    NAME_WIDTH,
    NO_PART,
    WHOLE_RECORDING,
    WHOLE_STEP,
    WITHOUT_BACKWARD,
    model_phases,
    noun,
    phase_label,
    phases,
    whole_label,
)
from cs336_tui.tui.widgets.columns import Sheet, middle, shown_table

_TOGETHER = "fwd + bwd"
_KIND_RANKS = {
    WHOLE_STEP: 0,
    WHOLE_RECORDING: 0,
    "forward": 1,
    "backward": 2,
    "optimizer": 3,
    _TOGETHER: 4,
    "loss": 5,
    "zero_grad": 6,
}
_ALL = "all"
_LONGEST_TOP = 60
_UNNAMED = (
    "Nothing names the attention's parts: in Configure, model and variants, give annotate "
    "attention core=package.module:function."
)


def summary(report: KernelReport) -> tuple[str, ...]:
    """Launches, time, idle share and named share, the most important first."""
    what = "launch" if report.launches == 1 else "launches"
    if report.activity == "operators":
        what = f"operators by self time ({'CPU' if report.spec.device == 'cpu' else 'host'})"
    idle, host_ns = kernels.idle_share(report), report.host_ns
    return (
        f"{report.launches:,} {what}",
        time_text(report.total_ns) + (f" of {time_text(report.span_ns)} span" if report.span_ns else ""),
        *([f"idle {idle * 100:.1f} %"] if idle is not None else []),
        f"named {kernels.named_share(report) * 100:.1f} %",
        *([f"enqueued in {time_text(host_ns)}"] if host_ns is not None else []),
        *gap_words(report),
    )


def gap_words(report: KernelReport) -> tuple[str, ...]:
    """Launches a second, gaps and the overlap of communication with computation; empty where they are not known."""
    gaps, rate, share = report.gaps, kernels.launches_per_s(report), kernels.overlapped_share(report)
    if gaps is None:
        return ()
    return (
        *([f"{rate:,.0f} launches/s"] if rate else []),
        f"{counted(gaps.count, 'gap', ',')}" + (f", median {time_text(gaps.median_ns)}" if gaps.count else ""),
        *([f"communication {share * 100:.1f} % beside compute"] if share is not None else []),
    )


def gaps_sheet(report: KernelReport) -> Sheet:
    """The longest times in which the device ran nothing, and what ran before and after each."""
    gaps, overlap = report.gaps, report.overlap
    if gaps is None:
        return Sheet(Table(columns=(), rows=(), footnotes=("Gaps: only for kernels on a GPU.",)))
    times = scale(gap.ns for gap in gaps.largest)
    columns: tuple[Column[Gap], ...] = (
        Column("ns", f"gap {times.unit}", show=times.text),
        Column("after", left=True, show=_short),
        Column("before", left=True, show=_short),
    )
    idle = kernels.idle_share(report) or 0.0
    lead = (
        f"The GPU ran nothing for {time_text(gaps.total_ns)} of {time_text(report.span_ns)} ({idle * 100:.1f} %), in "
        f"{counted(gaps.count, 'gap', ',')} between kernels, copies and fills."
    )
    notes = []
    if overlap and (share := kernels.overlapped_share(report)) is not None:
        beside = f"in {time_text(overlap.overlapped_ns)} of it, {share * 100:.1f} %, another kernel ran"
        notes = [f"Communication (NCCL and others) took {time_text(overlap.communication_ns)}; {beside}."]
    return Sheet(Table.of(gaps.largest, columns, footnotes=notes), lead)


def _short(name: str) -> str:
    return middle(format.plain(kernels.short_name(name)), NAME_WIDTH)


def kinds_sheet(report: KernelReport) -> Sheet:
    """Time and share of each kind in each phase; the lead gives the share of matrix multiplication."""
    whole, *parts = phases(report)
    asked = [*parts, whole] if len(parts) > 1 else parts if any(parts) else [whole]  # the whole step last, as a sum
    found = {
        _TOGETHER if isinstance(phase, tuple) else phase_label(phase) if phase is not None else whole_label(report): {
            share.name: share for share in kernels.by_kind(report, phase)
        }
        for phase in asked
    }
    totals = {name: sum(share.total_ns for share in shares.values()) for name, shares in found.items()}
    times = scale(share.total_ns for shares in found.values() for share in shares.values())
    names = tuple(kind for kind in KINDS if kind in list(found.values())[-1])

    def column(name: str) -> Column[str]:
        def text(kind: str) -> str:
            share = found[name].get(kind)
            if kind == _ALL:
                return f"{times.text(totals[name])} {100:5.1f} %"
            return f"{times.text(share.total_ns)} {share.share * 100:5.1f} %" if share else format.NOT_YET

        return Column(name, f"{name} {times.unit}", rank=_KIND_RANKS.get(name, 4), text=text)

    columns = [Column[str]("kind", left=True, text=str), *map(column, found)]
    table = shown_table((*names, _ALL), columns, _tops(report))
    return Sheet(table, _matmul_sentence(report), (*names, None))


def parts_sheet(report: KernelReport) -> Sheet:
    """Time of each named part, with its backward, and a bar of its share of the step."""
    found = kernels.by_range(report)
    times = scale(share.total_ns for share in found)

    def way(share: RangeShare, time_ns: int | None) -> str:
        return times.text(time_ns if share.name not in WITHOUT_BACKWARD and time_ns else None)

    columns: tuple[Column[RangeShare], ...] = (
        Column("name", "part", left=True, show=lambda name: name or NO_PART),
        Column("share", "share %", show=lambda share: f"{share * 100:.1f}"),
        Column("forward_ns", f"forward {times.unit}", rank=2, text=lambda share: way(share, share.forward_ns)),
        Column("backward_ns", f"backward {times.unit}", rank=1, text=lambda share: way(share, share.backward_ns)),
        Column("total_ns", f"both {times.unit}", show=times.text),
        Column("instances", rank=3),
    )
    largest = max((share.share for share in found), default=0.0)
    bars = tuple(share.share / largest if largest else 0.0 for share in found)
    roles = tuple(role if (role := phase_role(share.name)) != "muted" else "measured" for share in found)
    keys = tuple(share.name for share in found)
    return Sheet(Table.of(found, columns), keys=keys, rest=8, shares=bars, roles=roles)


def attention_sheet(report: KernelReport) -> Sheet:
    """Matmul against softmax, in time and in FLOPs, forward, backward and both."""
    found = attention_split(report)
    if not any(split.matmul_ns or split.softmax_ns for split in found):
        fused = "Attention runs as one fused kernel: no separate matmul and softmax to compare."
        unnamed = f"{UNNAMED_RECORDING[0].upper()}{UNNAMED_RECORDING[1:]}." if report.spec.recording else _UNNAMED
        why = unnamed if any(split.unnamed for split in found) else fused
        return Sheet(Table(columns=(), rows=(), footnotes=(why,)))
    by_kind = any(split.by_kind for split in found)
    if len(found) == 2:
        found = (*found, _both(found))
    times = scale(t for split in found for t in (split.matmul_ns, split.softmax_ns) if t)
    columns: tuple[Column[AttentionSplit], ...] = (
        Column("phase", "", left=True),
        Column("matmul_ns", f"matmul {times.unit}", show=times.text),
        Column("softmax_ns", f"softmax {times.unit}", show=times.text),
        Column("time_ratio", "time ×", rank=1, show=_ratio),
        *(_flops(found) if report.prediction is not None else ()),
    )
    softmax = "its kernels, found by kind: the parts have no names" if by_kind else "every kernel of that part"
    notes = [
        *(f"{split.phase.capitalize()}: {_sentence(split)}" for split in found[1:]),
        "× is softmax over matmul. Matmul: the matrix products of attention scores and final matmul alone, without "
        f"scaling and mask; softmax: {softmax}.",
        *(["FLOPs unknown: the step could not be predicted."] if report.prediction is None else []),
    ]
    return Sheet(shown_table(found, columns, notes), f"{found[0].phase.capitalize()}: {_sentence(found[0])}")


def _flops(found: Sequence[AttentionSplit]) -> tuple[Column[AttentionSplit], ...]:
    rates = {
        split.phase: (_rate(split.matmul_flops, split.matmul_ns), _rate(split.softmax_flops, split.softmax_ns))
        for split in found
    }
    work = scale((f for s in found for f in (s.matmul_flops, s.softmax_flops) if f), FLOPS)
    speed = scale((rate for pair in rates.values() for rate in pair if rate), FLOP_RATES)
    return (
        Column("matmul_flops", f"matmul {work.unit}", rank=3, show=work.text),
        Column("softmax_flops", f"softmax {work.unit}", rank=4, show=work.text),
        Column("flop_ratio", "FLOP ×", rank=2, show=_ratio),
        Column("matmul_rate", f"matmul {speed.unit}", rank=5, text=lambda split: speed.text(rates[split.phase][0])),
        Column("softmax_rate", f"softmax {speed.unit}", rank=6, text=lambda split: speed.text(rates[split.phase][1])),
    )


def _matmul_sentence(report: KernelReport) -> str:
    shares = kernels.matmul_shares(report)
    parts = zip(("forward", "forward + backward", "a full step"), shares, strict=True)
    said = [f"{share * 100:.1f} % of {part}" for part, share in parts if share is not None]
    if not said:
        share = next((found.share for found in kernels.by_kind(report) if found.name == kernels.MATMUL), 0.0)
        phases_of_model = model_phases(report)
        part = phase_label(phases_of_model) if any(phases_of_model) else f"the {whole_label(report)}"
        said = [f"{share * 100:.1f} % of {part}"]
    return f"Matrix multiplication takes {', '.join(said)}."


def _tops(report: KernelReport) -> tuple[str, ...]:
    model = model_phases(report)
    parts: dict[str, Phases] = {"forward": "forward"} if "forward" in model else {}
    if len(model) > 1:
        parts["forward + backward"] = model
    if "optimizer" in report.phase_spans_ns or not parts:
        alone = len(report.phase_spans_ns) < 2 and any(model)
        parts[phase_label(model) if alone else f"the {whole_label(report)}"] = None
    said = []
    for part, phase in parts.items():
        if top := kernels.top_kernel(report, phase):
            name = middle(format.plain(top.row.short), _LONGEST_TOP)
            inside = part != "forward" and top.per_forward is not None
            each = f", {top.per_forward} of them in forward" if inside else ""
            times = "once" if top.row.instances == 1 else f"{top.row.instances} times"
            share = f"{top.row.share * 100:.1f} %, {time_text(top.row.total_ns)}"
            said.append(f"Top {noun(report, 1)} of {part}: {name}, {share}, {times}{each}.")
    if "loss" in model and len(model) > 1:
        said.append("Forward + backward includes the loss.")
    return tuple(said)


def _both(found: Sequence[AttentionSplit]) -> AttentionSplit:
    def total(values: tuple[int | None, ...]) -> int | None:
        return None if None in values else sum(value or 0 for value in values)

    figures = ((s.matmul_ns, s.softmax_ns, s.matmul_flops, s.softmax_flops) for s in found)
    matmul_ns, softmax_ns, matmul_flops, softmax_flops = map(total, zip(*figures, strict=True))
    return AttentionSplit("both", matmul_ns, softmax_ns, matmul_flops, softmax_flops)


def _sentence(split: AttentionSplit) -> str:
    if split.time_ratio is None:
        return f"softmax takes {time_text(split.softmax_ns or 0)}; no separate matmul of attention."
    with_ = f" with {_ratio(split.flop_ratio)}× their FLOPs" if split.flop_ratio is not None else ""
    return f"softmax takes {_ratio(split.time_ratio)}× the time of attention's matmuls{with_}."


def _ratio(value: float | None) -> str:
    """A ratio in two digits at least: ``0.80``, ``0.025``."""
    if value is None:
        return format.NOT_YET
    decimals = 2 if value >= 0.1 or not value else 1 - math.floor(math.log10(value))
    return f"{value:.{decimals}f}"


def _rate(flops: int | None, time_ns: int | None) -> float | None:
    return flops / time_ns * 1e9 if flops is not None and time_ns else None
