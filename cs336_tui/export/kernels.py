"""A profiled step as tables: rows as nsys has them, phases, kinds, named ranges, attention's two sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from cs336_tui.analysis import kernels
from cs336_tui.analysis.kernels import AttentionSplit, KernelRow, Phases, RangeShare, TimeShare
from cs336_tui.config.spec import known_choices
from cs336_tui.events.reports import FUSED, Gap, KernelReport
from cs336_tui.export.footnotes import std_kind
from cs336_tui.export.tables import Column, Table, Value, attributes, known, report_table
from cs336_tui.stats.quantities import NONE, count

STEP, RECORDING = "step", "recording"
"""All phases of a step together, and all of a recording."""
UNPHASED = "(no phase)"
UNNAMED = "(no range)"
_FUSED_NOTE = (
    f"{FUSED}: one kernel, or one annotated function, does products and softmax together, so that their times cannot "
    "be told apart"
)
_UNNAMED_NOTE = 'nothing names the attention\'s parts; use --annotate "attention core=package.module:function"'
_BY_KIND_NOTE = (
    "nothing names the attention's parts: matmul and softmax are what its own forward, without its projections, "
    "launches of these kinds"
)

_NSYS: tuple[Column[KernelRow], ...] = (
    Column("share", "Time (%)", show=lambda share: f"{share * 100:.1f}"),
    Column("total_ns", "Total Time (ns)", show="{:,}".format),
    Column("instances", "Instances"),
    Column("avg_ns", "Avg (ns)", show="{:,.1f}".format),
    Column("med_ns", "Med (ns)", show=known("{:,.1f}", NONE)),
    Column("min_ns", "Min (ns)", show=known("{:,}", NONE)),
    Column("max_ns", "Max (ns)", show=known("{:,}", NONE)),
    Column("std_ns", "StdDev (ns)", show=known("{:,.1f}", NONE)),
    Column("kind", "Kind", left=True),
    Column("short", "Short name", left=True),
    Column("name", "Name", left=True),
)
"""As ``nsys stats --report cuda_gpu_kern_sum`` has them, and what the kernel is."""


_Part = tuple[str, Phases]
"""A phase, or several together, after the name that tables have for it."""


def kernel_tables(report: KernelReport, ddof: int = 1, ranges: Sequence[str] = ()) -> tuple[Table, ...]:
    """The device's use, phases, kinds, ranges and attention first; then every kernel of the step and of each phase.
    With `ranges` the kernels that all of them enclose, in one table."""
    if ranges:
        return (kernel_table(kernels.within(report, ranges), ranges=ranges, ddof=ddof),)
    phases = [share.name for share in kernels.by_phase(report)]
    return (
        use_table(report),
        *((gap_table(report),) if report.gaps and report.gaps.largest else ()),
        *((step_table(report),) if report.steps_ns else ()),
        phase_table(report),
        kind_table(report),
        range_table(report),
        *((attention_table(report),) if not report.spec.recording or kernels.tells_attention(report) else ()),
        *((copy_table(report, ddof),) if report.copies else ()),
        kernel_table(report, ddof=ddof),
        *(kernel_table(report, phase, ddof=ddof) for phase in phases if len(phases) > 1),
    )


def kernel_table(
    report: KernelReport,
    phase: Phases = None,
    range_: str | None = None,
    *,
    ranges: Sequence[str] = (),
    ddof: int = 1,
) -> Table:
    """A row per kernel, largest total first, with the columns of ``nsys stats --report cuda_gpu_kern_sum``. `ranges`
    are those that the report was restricted to. nsys's std has a `ddof` of 1."""
    names = (phase,) if isinstance(phase, str) else phase or (_whole(report),)
    part = "+".join(name or UNPHASED for name in names)
    selected = f"{f'the whole {_whole(report)}' if phase is None else part}"
    selected = ", ".join([*ranges] or [selected, *([] if range_ is None else [range_ or UNNAMED])])
    return report_table(
        report,
        kernels.rows(report, phase=phase, range_=range_, ddof=ddof),
        _NSYS,
        f"{_nouns(report)[0].capitalize()}s of {selected}",
        "-".join(["kernels", *names, range_ or "", *ranges]),
        record=lambda row: {"phase": part, "range": ", ".join(ranges) or range_} | row._asdict(),
        footnotes=(f"Time (%): of the time shown here; StdDev: {_std_kind(report, ddof)}", *footnotes(report)),
        kind="kernels",
    )


def _has_totals_alone(report: KernelReport) -> bool:
    return any(group.summary for group in report.groups)


def _std_kind(report: KernelReport, ddof: int) -> str:
    return "as nsys stats counted it" if _has_totals_alone(report) else std_kind(ddof)


def use_table(report: KernelReport) -> Table:
    """One row: launches and their time, and how busy they kept the device."""
    columns: tuple[Column[KernelReport], ...] = (
        Column("launches", _nouns(report)[1]),
        Column("total_ns", "time (ms)", show=_ms),
        Column("span_ns", "from first to last (ms)", show=_ms),
        Column("idle_share", "GPU idle", show=_percent),
        Column("launches_per_s", f"{_nouns(report)[1]}/s", show=known("{:,.0f}", NONE)),
        Column("gaps", "gaps", show=count),
        Column("gap_ns", "gaps in all (ms)", show=_ms),
        Column("gap_median_ns", "median gap (µs)", show=_us),
        Column("gap_largest_ns", "largest gap (µs)", show=_us),
        Column("communication_ns", "NCCL (ms)", show=_ms),
        Column("overlapped_share", "of it beside compute", show=_percent),
    )
    unknown = {"communication_ns", "overlapped_share"} if report.overlap is None else set[str]()
    unknown |= (
        {column.key for column in columns if column.key.startswith(("gap", "idle"))} if not report.gaps else set()
    )
    return report_table(
        report,
        [report],
        [column for column in columns if column.key not in unknown],
        f"Use of the device in {_one(report)}",
        "kernel-use",
        record=use_record,
        footnotes=(*_use_notes(report), *footnotes(report)),
        kind="use",
    )


def use_record(report: KernelReport) -> dict[str, Value]:
    """Launches, their time, and how busy they kept the device; None where that is not known."""
    gaps, overlap = report.gaps, report.overlap
    return {
        **attributes(report, "launches", "total_ns"),
        **attributes(None if _has_totals_alone(report) else report, span_ns="span_ns", busy_ns="busy_ns"),
        "idle_share": kernels.idle_share(report),
        "launches_per_s": kernels.launches_per_s(report),
        **attributes(gaps, gaps="count", gap_ns="total_ns", gap_median_ns="median_ns"),
        "gap_largest_ns": max((gap.ns for gap in gaps.largest), default=None) if gaps else None,
        **attributes(overlap, "communication_ns", "overlapped_ns"),
        "overlapped_share": kernels.overlapped_share(report),
    }


def gap_table(report: KernelReport) -> Table:
    """The longest times in which the device ran nothing, and what ran before and after each."""
    columns: tuple[Column[Gap], ...] = (
        Column("ns", "gap (µs)", show=_us),
        Column("after", "after", left=True, show=kernels.short_name),
        Column("before", "before", left=True, show=kernels.short_name),
    )
    return report_table(
        report,
        report.gaps.largest if report.gaps else (),
        columns,
        f"Largest gaps between kernels in {_one(report)}",
        "kernel-gaps",
        footnotes=footnotes(report),
        kind="gaps",
    )


def step_table(report: KernelReport) -> Table:
    """The steps that a recording names: the host's time, launches and their time."""
    columns: tuple[Column[kernels.StepUse], ...] = (
        Column("step", left=True),
        Column("host_ns", "host (ms)", show=_ms),
        Column("launches", _nouns(report)[1]),
        Column("total_ns", "time (ms)", show=_ms),
        Column("matmul_share", "matrix multiply", show=_percent),
    )
    return report_table(
        report,
        kernels.by_step(report),
        columns,
        f"Steps of {_one(report)}",
        "kernel-steps",
        record=lambda each: each._asdict(),
        footnotes=("host: from the step's begin to its end on the host, while recorded", *footnotes(report)),
        kind="steps",
    )


def copy_table(report: KernelReport, ddof: int = 1) -> Table:
    """Copies and fills of a recording, which are no kernels."""
    return report_table(
        report,
        kernels.rows_of(report.copies, ddof),
        _NSYS[:-2] + _NSYS[-1:],
        f"Copies and fills in {_one(report)}",
        "kernel-copies",
        record=KernelRow._asdict,
        footnotes=footnotes(report),
        kind="copies",
    )


def phase_table(report: KernelReport) -> Table:
    """Each phase, forward and backward together, the whole step: time, matrix multiplication's share, top kernel."""
    singular, launched = _nouns(report)
    columns: tuple[Column[_Part], ...] = (
        Column("phase", left=True, show=lambda name: name or UNPHASED),
        Column("total_ns", "time (ms)", show=_ms),
        Column("share", f"share of {_whole(report)}", show=_percent),
        Column("span_ns", "from first to last (ms)", show=_ms),
        Column("instances", launched),
        Column("matmul_share", "matrix multiply", show=_percent),
        Column("top_short", f"top {singular}", left=True, show=_dashed),
        Column("top_share", "its share", show=_percent),
        Column("top_instances", "its instances", show=_dashed),
        Column("top_per_forward", "per forward", show=_dashed),
    )
    return report_table(
        report,
        _parts(report),
        columns,
        f"Phases of {_one(report)}",
        "kernel-phases",
        record=lambda part: _phase_record(report, part),
        footnotes=(*footnotes(report), *_step_notes(report)),
        kind="phases",
    )


def kind_table(report: KernelReport) -> Table:
    """Each kind's share of every phase and of the whole step."""
    shares = {name: {share.name: share for share in kernels.by_kind(report, phases)} for name, phases in _parts(report)}
    singular, launched = _nouns(report)
    whole = _whole(report)

    def record(kind: str) -> dict[str, Value]:
        found: dict[str, Value] = {"kind": kind}
        for name, of_part in shares.items():
            share = of_part.get(kind, TimeShare(kind, 0.0, 0, 0))
            found |= {f"{name}_share": share.share, f"{name}_ns": share.total_ns, f"{name}_instances": share.instances}
        return found

    def part(name: str) -> Column[str]:
        of_part = shares[name]
        return Column(
            f"{name}_share",
            name or UNPHASED,
            text=lambda kind: _percent(of_part[kind].share) if kind in of_part else NONE,
        )

    columns = (
        Column("kind", left=True),
        *map(part, shares),
        Column(f"{whole}_ns", "time (ms)", show=_ms),
        Column(f"{whole}_instances", launched),
    )
    return report_table(
        report,
        shares[whole],
        columns,
        f"Kinds of {singular}s, as shares of the time of each phase",
        "kernel-kinds",
        record=record,
        footnotes=(f"time and {launched}: of the whole {whole}", *footnotes(report)),
        kind="kinds",
    )


def range_table(report: KernelReport) -> Table:
    """Each named range with its own work and its backward, in the order in which a step comes to them."""
    columns: tuple[Column[RangeShare], ...] = (
        Column("name", "range", left=True, show=lambda name: name or UNNAMED),
        Column("share", f"share of {_whole(report)}", show=_percent),
        Column("forward_ns", "forward (ms)", show=_ms),
        Column("backward_ns", "backward (ms)", show=_ms),
        Column("total_ns", "both (ms)", show=_ms),
        Column("instances", _nouns(report)[1]),
    )
    return report_table(
        report,
        kernels.by_range(report),
        columns,
        f"Named ranges of {_one(report)}",
        "kernel-ranges",
        record=lambda each: each._asdict() | {"total_ns": each.forward_ns + each.backward_ns},
        footnotes=(
            "forward: all that is not backward, so of loss and optimizer their own time; a sum of gradients is "
            "counted to the part whose gradient completes it",
            *footnotes(report),
        ),
        kind="ranges",
    )


def attention_table(report: KernelReport) -> Table:
    """Inside attention: matrix products against softmax, in time and in FLOPs."""
    split = kernels.attention_split(report)
    columns: tuple[Column[AttentionSplit], ...] = (
        Column("phase", left=True),
        Column("matmul_ns", "matmul (ms)", text=lambda each: FUSED if each.fused else _ms(each.matmul_ns)),
        Column("softmax_ns", "softmax (ms)", text=lambda each: FUSED if each.fused else _ms(each.softmax_ns)),
        Column("time_ratio", "softmax / matmul time", show=_ratio),
        Column("matmul_flops", "matmul FLOPs", show=count),
        Column("softmax_flops", "softmax FLOPs", show=count),
        Column("flop_ratio", "softmax / matmul FLOPs", show=_ratio),
    )
    return report_table(
        report,
        split,
        columns,
        "Softmax against matrix multiplication inside attention",
        "attention",
        record=_attention_record,
        footnotes=(
            "matmul: the matrix products of attention scores and final matmul alone, 2 m n k FLOPs each; "
            f"softmax: its {'kernels' if any(each.by_kind for each in split) else 'whole range'}, "
            "5 FLOPs an element forward and 4 backward",
            *([_BY_KIND_NOTE] if any(each.by_kind for each in split) else []),
            *([_FUSED_NOTE] if any(each.fused for each in split) else []),
            *([_UNNAMED_NOTE] if any(each.unnamed for each in split) else []),
            *footnotes(report),
        ),
        kind="attention",
    )


def kernel_document(report: KernelReport) -> dict[str, Any]:
    """The report for programs: ns, bytes and shares of 1. `groups` are the launches by where they came from."""
    return {
        "spec": known_choices(report.spec),
        **attributes(report, "activity", "device_name", "torch", "host_ns"),
        **use_record(report),
        "largest_gaps": msgspec.to_builtins(report.gaps.largest) if report.gaps else [],
        "named_share": kernels.named_share(report),
        "matmul_shares": kernels.matmul_shares(report)._asdict(),
        "phases": [_phase_record(report, part) for part in _parts(report)],
        "kinds": [share._asdict() for share in kernels.by_kind(report)],
        "ranges": [share._asdict() for share in kernels.by_range(report)],
        "attention": [_attention_record(each) for each in kernels.attention_split(report)],
        "kernels": [row._asdict() for row in kernels.rows(report)],
        "groups": [
            attributes(group, "name", "kind", "phase", "range", "backward", "op")
            | {"path": list(group.path)}
            | {"instances": group.instances, "total_ns": group.total_ns}
            for group in report.groups
        ],
        "copies": [row._asdict() for row in kernels.rows_of(report.copies)],
        "trace": report.trace,
        "note": report.note,
    }


def footnotes(report: KernelReport) -> tuple[str, ...]:
    """The counts and how much of them is known; the same under every table of the report."""
    counted = "kernels, copies and fills of the GPU" if report.activity == "kernels" else "operators by self time"
    made = f"one profiled step after warm-up, apart from timing: {counted}"
    if report.spec.recording:
        made = "recorded elsewhere: kernels of the GPU; its copies and fills are counted apart"
        made = made if report.activity == "kernels" else f"recorded elsewhere: {counted}"
    return (
        made,
        f"{report.launches} {_nouns(report)[1]}, {_ms(report.total_ns)} ms in all; "
        f"{_percent(kernels.named_share(report))} of the time is in a named range",
        *([report.note] if report.note else []),
    )


def _step_notes(report: KernelReport) -> Iterator[str]:
    if report.spec.recording:
        return
    if (idle := kernels.idle_share(report)) is not None:
        yield (
            f"GPU idle: {_percent(idle)} of the {_ms(report.span_ns)} ms from the first kernel to the last; profiling "
            "slows the host, without it the GPU idles no more than this"
        )
    if report.host_ns is not None:
        yield f"host time to enqueue the step, while profiled: {_ms(report.host_ns)} ms"
    if report.trace:
        yield f"Chrome trace, for ui.perfetto.dev: {report.trace}"


def _use_notes(report: KernelReport) -> Iterator[str]:
    if report.gaps:
        yield "gaps: times between the first and the last kernel in which the GPU ran no kernel, copy or fill"
    if report.overlap:
        yield "of it beside compute: the share of the time of NCCL's kernels in which another kernel ran"


def _whole(report: KernelReport) -> str:
    return RECORDING if report.spec.recording else STEP


def _one(report: KernelReport) -> str:
    return "the recording" if report.spec.recording else "one step"


def _nouns(report: KernelReport) -> tuple[str, str]:
    """The words for what the report counts, and for each time that one of them ran."""
    return ("kernel", "launches") if report.activity == "kernels" else ("operator", "calls")


def _parts(report: KernelReport) -> tuple[_Part, ...]:
    """Phases in which something ran; forward to backward together where more was run; the whole step."""
    names = [share.name for share in kernels.by_phase(report)]
    model = tuple(name for name in names if name in ("forward", "loss", "backward"))
    together = [("forward+backward", model)] if len(model) > 1 and len(model) < len(names) else []
    single = [(name, name) for name in names] if len(names) > 1 else []
    return (*single, *together, (_whole(report), None))


def _phase_record(report: KernelReport, part: _Part) -> dict[str, Value]:
    name, phases = part
    kinds = kernels.by_kind(report, phases)
    total = sum(share.total_ns for share in kinds)
    top = kernels.top_kernel(report, phases)
    # What lies between the first and the last of several phases together is not known.
    span = report.span_ns if phases is None else report.phase_spans_ns.get(phases) if isinstance(phases, str) else None
    span = span or None if _has_totals_alone(report) else span
    return {
        "phase": name,
        "total_ns": total,
        "share": total / report.total_ns if report.total_ns else None,
        "span_ns": span,
        "instances": sum(share.instances for share in kinds),
        "matmul_share": next((share.share for share in kinds if share.name == kernels.MATMUL), 0.0),
        **attributes(top and top.row, top="name", top_short="short", top_share="share", top_instances="instances"),
        "top_per_forward": top.per_forward if top else None,
    }


def _attention_record(each: AttentionSplit) -> dict[str, Value]:
    return each._asdict() | {"time_ratio": each.time_ratio, "flop_ratio": each.flop_ratio}


_dashed, _ratio = known("{}", NONE), known("{:.3g}")


def _ms(time_ns: Value) -> str:
    return f"{time_ns / 1e6:.3f}" if isinstance(time_ns, int | float) else NONE


def _us(time_ns: Value) -> str:
    return f"{time_ns / 1e3:,.1f}" if isinstance(time_ns, int | float) else NONE


def _percent(share: Value) -> str:
    return f"{share * 100:.1f} %" if isinstance(share, int | float) else NONE
