"""A profiled step as tables: rows as nsys has them, phases, kinds, ranges, attention's sides; and two steps, paired."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from cs336_tui.analysis import kernels
from cs336_tui.analysis.kernel_cells import AttentionSplit, attention_split, profiled, tells_attention
from cs336_tui.analysis.kernels import Phases, RangeShare, TimeShare, has_totals_alone, short_name, whole
from cs336_tui.analysis.merge import grouped
from cs336_tui.config.spec import known_choices
from cs336_tui.events.kernel_report import FUSED, KernelGroup, KernelReport
from cs336_tui.export.subjects.kernel_use import (
    NSYS,
    OF_RUNS,
    RUNS_NOTE,
    copy_table,
    gap_table,
    gathers_of,
    gathers_table,
    milliseconds,
    nouns,
    one,
    profile_table,
    step_table,
    time_column,
    traffic_table,
    use_record,
    use_table,
)
from cs336_tui.export.writing.footnotes import std_kind
from cs336_tui.export.writing.tables import Column, Table, Value, attributes, known
from cs336_tui.stats.quantities import FLOPS, NONE, count, tenth_percent

UNPHASED = "(no phase)"
UNNAMED = "(no range)"
_FUSED_NOTE = (
    f"{FUSED}: one kernel, or one annotated function, does products and softmax together; their times cannot be "
    f"separated"
)
_UNNAMED_NOTE = 'attention\'s parts are unnamed; use --annotate "attention core=package.module:function"'
UNNAMED_RECORDING = (
    "attention's parts are unnamed; record it with ranges (record_function, NVTX) named attention scores, "
    "softmax and final matmul"
)
_BY_KIND_NOTE = (
    "attention's parts are unnamed: matmul and softmax are the kernels of these kinds that its forward launches, "
    "without projections"
)

WAYS_NOTE = (
    "forward: everything but backward, loss and optimizer included; a sum of gradients counts for the part whose "
    "gradient completes it"
)

_Part = tuple[str, Phases]
"""A phase, or several together, after the name that tables have for it."""


def kernel_tables(report: KernelReport, ddof: int = 1, ranges: Sequence[str] = ()) -> tuple[Table, ...]:
    """The device's use, phases, kinds, ranges and attention first; then every kernel of the step and of each phase.
    With `ranges` the kernels that all of them enclose, in one table."""
    if ranges:
        return (kernel_table(kernels.within(report, ranges), ranges=ranges, ddof=ddof),)
    phases = [share.name for share in kernels.by_phase(report)]
    return (
        *((traffic_table(report),) if report.ranks else ()),
        use_table(report),
        *((gap_table(report),) if report.gaps and report.gaps.largest else ()),
        *((step_table(report),) if report.steps_ns else ()),
        phase_table(report),
        kind_table(report),
        *((range_table(report),) if not report.spec.recording or kernels.named_share(report) else ()),
        *((attention_table(report),) if not report.spec.recording or tells_attention(report) else ()),
        *((gathers_table(report),) if gathers_of(report) else ()),
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
    names = (phase,) if isinstance(phase, str) else phase or (whole(report.spec),)
    part = "+".join(name or UNPHASED for name in names)
    selected = f"{f'the whole {whole(report.spec)}' if phase is None else part}"
    selected = ", ".join([*ranges] or [selected, *([] if range_ is None else [range_ or UNNAMED])])
    std = "as nsys stats counted it" if has_totals_alone(report) else std_kind(ddof)
    rows, columns, runs = (
        kernels.rows(report, phase=phase, range_=range_, ddof=ddof),
        NSYS,
        kernels.runs_of(report, phase),
    )
    if runs and not ranges:
        columns = (*NSYS[:3], Column("per_run", f"Per {runs.unit}"), *NSYS[3:])
    return profile_table(
        report,
        "kernels",
        rows,
        columns,
        f"{nouns(report)[0].capitalize()}s of {selected}",
        f"Time (%): of the time shown here; StdDev: {std}",
        record=lambda row: {"phase": part, "range": ", ".join(ranges) or range_} | row._asdict(),
        label="-".join(["kernels", *names, range_ or "", *ranges]),
    )


def phase_table(report: KernelReport) -> Table:
    """Each phase, forward and backward together, the whole step: time, matrix multiplication's share, top kernel."""
    singular, launched = nouns(report)
    columns: tuple[Column[_Part], ...] = (
        Column("phase", left=True, show=lambda name: name or UNPHASED),
        Column("times", left=True, show=_dashed),
        time_column("total_ns", "time"),
        time_column("std_ns", "± of time", 6),
        Column("share", f"share of {whole(report.spec)}", show=tenth_percent),
        time_column("span_ns", "from first to last", 3),
        time_column("span_std_ns", "± of first to last", 7),
        Column("instances", launched, rank=1),
        Column("matmul_share", "matrix multiply", show=tenth_percent),
        Column("top_short", f"top {singular}", left=True, show=_dashed),
        Column("top_share", "its share", rank=2, show=tenth_percent),
        Column("top_instances", "its instances", rank=4, show=_dashed),
        Column("top_per_forward", "per forward", rank=5, show=_dashed),
    )
    notes = [RUNS_NOTE] if report.runs else []
    columns = columns if report.runs else tuple(each for each in columns if each.key not in OF_RUNS)
    title, record = f"Phases of {one(report)}", partial(_phase_record, report)
    found = profile_table(report, "phases", _parts(report), columns, title, *notes, record=record)
    return msgspec.structs.replace(found, footnotes=(*found.footnotes, *_step_notes(report)))


def kind_shares(report: KernelReport) -> dict[str, dict[str, TimeShare]]:
    """The kinds in every phase, in forward and backward together, in the whole step, which is the last."""
    return {name: {share.name: share for share in kernels.by_kind(report, phases)} for name, phases in _parts(report)}


def kind_table(report: KernelReport) -> Table:
    """Each kind's share of every phase and of the whole step."""
    shares = kind_shares(report)
    singular, launched = nouns(report)
    all_of_it = whole(report.spec)

    def record(kind: str) -> dict[str, Value]:
        found: dict[str, Value] = {"kind": kind}
        for name, of_part in shares.items():
            share = of_part.get(kind, TimeShare(kind, 0.0, 0, 0))
            found |= {f"{name}_share": share.share, f"{name}_ns": share.total_ns, f"{name}_instances": share.instances}
        return found

    def part(name: str) -> Column[str]:
        def text(kind: str) -> str:
            return tenth_percent(shares[name][kind].share) if kind in shares[name] else NONE

        return Column(f"{name}_share", name or UNPHASED, text=text)

    together = (time_column(f"{all_of_it}_ns", "time"), Column[str](f"{all_of_it}_instances", launched))
    columns = (Column[str]("kind", left=True), *map(part, shares), *together)
    title = f"Kinds of {singular}s, as shares of the time of each phase"
    note = f"time and {launched}: of the whole {all_of_it}"
    return profile_table(report, "kinds", shares[all_of_it], columns, title, note, record=record)


def range_table(report: KernelReport) -> Table:
    """Each named range with its own work and its backward, in the order in which a step comes to them."""
    knows = kernels.knows_phases(report)
    ways = (time_column("forward_ns", "forward"), time_column("backward_ns", "backward"))
    columns: tuple[Column[RangeShare], ...] = (
        Column("name", "range", left=True, show=lambda name: name or UNNAMED, short="part"),
        Column("share", f"share of {whole(report.spec)}", show=tenth_percent, short="share"),
        *(ways if knows else ()),
        time_column("total_ns", "both" if knows else "time"),
        Column("instances", nouns(report)[1], rank=1),
    )
    rows, notes = kernels.by_range(report), [WAYS_NOTE] if knows else []
    title = f"Named ranges of {one(report)}"
    return profile_table(report, "ranges", rows, columns, title, *notes, record=RangeShare._asdict)


def _of_attention(key: str, title: str) -> Column[AttentionSplit]:
    """A time that a fused kernel does not tell."""

    def text(each: AttentionSplit) -> str:
        return FUSED if each.fused else milliseconds(getattr(each, key))

    return time_column(key, title)._replace(text=text)


ATTENTION: tuple[Column[AttentionSplit], ...] = (
    Column("phase", left=True),
    _of_attention("matmul_ns", "matmul"),
    _of_attention("softmax_ns", "softmax"),
    Column("time_ratio", "softmax / matmul time", show=known("{:.3g}"), short="time ×"),
    Column("matmul_flops", "matmul FLOPs", rank=2, show=count, short="matmul", units=FLOPS),
    Column("softmax_flops", "softmax FLOPs", rank=3, show=count, short="softmax", units=FLOPS),
    Column("flop_ratio", "softmax / matmul FLOPs", rank=1, show=known("{:.3g}"), short="FLOP ×"),
)


def attention_table(report: KernelReport) -> Table:
    """Inside attention: matrix products against softmax, in time and in FLOPs."""
    split = attention_split(report)
    notes = [*attention_notes(split)]
    if any(each.unnamed for each in split):
        notes.append(UNNAMED_RECORDING if report.spec.recording else _UNNAMED_NOTE)
    title = "Softmax against matrix multiplication inside attention"
    return profile_table(
        report, "attention", split, ATTENTION, title, *notes, record=_attention_record, label="attention"
    )


def attention_notes(split: Sequence[AttentionSplit]) -> Iterator[str]:
    """The meaning of matmul and softmax, and why their times may be unknown."""
    by_kind = any(each.by_kind for each in split)
    yield (
        "matmul: the matrix products of attention scores and final matmul alone, 2 m n k FLOPs each; "
        f"softmax: its {'kernels' if by_kind else 'whole range'}, 5 FLOPs an element forward and 4 backward"
    )
    if by_kind:
        yield _BY_KIND_NOTE
    if any(each.fused for each in split):
        yield _FUSED_NOTE


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
        "attention": [_attention_record(each) for each in attention_split(report)],
        "kernels": [row._asdict() for row in kernels.rows(report)],
        "groups": [
            attributes(group, "name", "kind", "phase", "range", "backward", "op")
            | {"path": list(group.path)}
            | {"instances": group.instances, "total_ns": group.total_ns}
            for group in report.groups
        ],
        "copies": [row._asdict() for row in kernels.rows_of(report.copies)],
        "ranks": msgspec.to_builtins(report.ranks),
        "trace": report.trace,
        "note": report.note,
    }


def _step_notes(report: KernelReport) -> Iterator[str]:
    if report.spec.recording:
        return
    if (idle := kernels.idle_share(report)) is not None:
        yield (
            f"GPU idle: {tenth_percent(idle)} of the {milliseconds(report.span_ns)} ms from the first kernel to the "
            "last; profiling slows the host, so without it the GPU idles at most this much"
        )
    if report.host_ns is not None:
        yield f"host time to enqueue the step, while profiled: {milliseconds(report.host_ns)} ms"
    if report.trace:
        yield report.file_line


def _parts(report: KernelReport) -> tuple[_Part, ...]:
    """Phases in which something ran; forward to backward together where more was run; the whole step."""
    names = [share.name for share in kernels.by_phase(report)]
    model = tuple(name for name in names if name in ("forward", "loss", "backward"))
    together = [("forward+backward", model)] if len(model) > 1 and len(model) < len(names) else []
    single = [(name, name) for name in names] if len(names) > 1 else []
    return (*single, *together, (whole(report.spec), None))


def _phase_record(report: KernelReport, part: _Part) -> dict[str, Value]:
    name, phases = part
    found = profiled(report, phases)
    return {
        "phase": name,
        "times": found.times or None,
        "total_ns": found.kernel_ns,
        "std_ns": found.kernel_std_ns,
        "share": kernels.total_ns(kernels.in_phases(report, phases)) / report.total_ns if report.total_ns else None,
        **attributes(found, "span_ns", "span_std_ns", "instances", "matmul_share"),
        **attributes(found.top, top="name", top_short="short", top_share="share", top_instances="instances"),
        "top_per_forward": kernels.launches_in_forward(report, found.top.name) if found.top else None,
    }


def _attention_record(each: AttentionSplit) -> dict[str, Value]:
    return each._asdict() | {"time_ratio": each.time_ratio, "flop_ratio": each.flop_ratio}


_dashed = known("{}", NONE)


class KernelPair(NamedTuple):
    """A kernel's launches and their time, ns, in two profiles; 0 where it is in one alone."""

    name: str
    kind: str
    a_ns: int
    a_instances: int
    b_ns: int
    b_instances: int

    @property
    def short(self) -> str:
        return short_name(self.name)

    @property
    def difference_ns(self) -> int:
        """B less A."""
        return self.b_ns - self.a_ns

    @property
    def ratio(self) -> float | None:
        """B over A; None where one has none."""
        return self.b_ns / self.a_ns if self.a_ns and self.b_ns else None


def kernel_pairs(a: KernelReport, b: KernelReport) -> tuple[KernelPair, ...]:
    """Every kernel of either profile, by its full name; the largest difference first."""
    of_a, of_b = (grouped(report.groups, lambda group: group.name) for report in (a, b))

    def sums(groups: Sequence[KernelGroup]) -> tuple[int, int]:
        return sum(group.total_ns for group in groups), sum(group.instances for group in groups)

    both = {name: (of_a.get(name, []), of_b.get(name, [])) for name in of_a | of_b}
    pairs = (KernelPair(name, (*a, *b)[0].kind, *sums(a), *sums(b)) for name, (a, b) in both.items())
    return tuple(sorted(pairs, key=lambda pair: (-abs(pair.difference_ns), pair.name)))


def pairs_table(a: KernelReport, b: KernelReport) -> Table:
    """A row for each kernel of either profile, and for all of them together."""
    pairs = kernel_pairs(a, b)
    both = KernelPair("all", "", a.total_ns, a.launches, b.total_ns, b.launches)
    columns: tuple[Column[KernelPair], ...] = (
        Column("kind", rank=3, left=True),
        Column("short", "kernel", left=True, text=lambda pair: pair.name if pair is both else pair.short),
        time_column("a_ns", "A"),
        Column("a_instances", "A launches", rank=2),
        time_column("b_ns", "B"),
        Column("b_instances", "B launches", rank=2),
        Column("difference_ns", "B - A (ms)", show=lambda ns: f"{ns / 1e6:+.3f}"),
        Column("ratio", "B / A", show=known("{:.3f}", NONE)),
    )
    notes = (
        f"A: {a.device_name}, {a.spec.heading}; B: {b.device_name}, {b.spec.heading}",
        "matched by full name: a product in another precision or tile is another kernel; whole profile",
    )

    def record(pair: KernelPair) -> dict[str, Value]:
        return attributes(pair, "short", *KernelPair._fields, "difference_ns", "ratio")

    caption = f"Kernels of A ({a.spec.heading}) and B ({b.spec.heading})"
    return Table.of((*pairs, both), columns, record=record, caption=caption, footnotes=notes, label="kernels-a-b")
