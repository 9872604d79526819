"""A profile's launches in all, and how busy they kept the device: gaps, steps, copies; of each rank its communication
beside compute, and its all-gathers beside what uses them; and the words of these tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from cs336_tui.analysis import kernels
from cs336_tui.analysis.kernels import KernelRow, StepUse
from cs336_tui.events.kernel_report import KINDS, AllGather, Gap, KernelReport, RankTraffic
from cs336_tui.export.writing.tables import Column, Source, Table, Value, attributes, known, report_table
from cs336_tui.stats.quantities import NONE, TIMES, Scale, counted, tenth_percent, time_text

T = TypeVar("T")

_ROOM = len("12345.67")
"""Of times on a screen: the filter and the order do not move them."""


def _nsys_time(key: str, short: str, show: Callable[[Any], str], rank: int = 0, title: str = "") -> Column[KernelRow]:
    return Column(key, f"{title or short} (ns)", rank=rank, show=show, room=_ROOM, short=short, units=TIMES)


NSYS: tuple[Column[KernelRow], ...] = (
    Column("share", "Time (%)", show=lambda share: f"{share * 100:.1f}", room=len("100.0"), short="Time %"),
    _nsys_time("total_ns", "Total", "{:,}".format, title="Total Time"),
    Column("instances", "Instances", room=len("Instances")),
    _nsys_time("avg_ns", "Avg", "{:,.1f}".format),
    _nsys_time("med_ns", "Med", known("{:,.1f}", NONE), 4),
    _nsys_time("min_ns", "Min", known("{:,}", NONE), 8),
    _nsys_time("max_ns", "Max", known("{:,}", NONE), 7),
    _nsys_time("std_ns", "StdDev", known("{:,.1f}", NONE), 5),
    Column("kind", "Kind", left=True, rank=6, room=max(map(len, KINDS))),
    Column("short", "Short name", left=True, short="Name"),
    Column("name", "Name", left=True, rank=9),
)
"""As ``nsys stats --report cuda_gpu_kern_sum`` has them, and what the kernel is."""
milliseconds = Scale("ms", 1e6, 3).text
"""Nanoseconds as ms; a dash for None."""


def time_column(key: str, title: str, rank: int = 0, short: str = "") -> Column[Any]:
    """A time in ns, which files have in ms."""
    return Column(key, f"{title} (ms)", rank=rank, show=milliseconds, short=short or title, units=TIMES)


def use_table(report: KernelReport) -> Table:
    """One row: launches and their time, and how busy they kept the device."""
    columns: tuple[Column[KernelReport], ...] = (
        Column("launches", nouns(report)[1]),
        time_column("total_ns", "time"),
        time_column("span_ns", "from first to last"),
        Column("idle_share", "GPU idle", show=tenth_percent),
        Column("launches_per_s", f"{nouns(report)[1]}/s", rank=4, show=known("{:,.0f}", NONE)),
        Column("gaps", "gaps", rank=1, show=known("{:,}", NONE)),
        time_column("gap_ns", "gaps in all"),
        Column("gap_median_ns", "median gap (µs)", rank=3, show=microseconds),
        Column("gap_largest_ns", "largest gap (µs)", rank=2, show=microseconds),
        time_column("communication_ns", "communication"),
        Column("overlapped_share", "of it beside compute", rank=1, show=tenth_percent),
    )
    notes: list[str] = []
    if report.gaps:
        notes.append("gaps: times from the first kernel, copy or fill to the last in which the GPU ran none of them")
    else:
        columns = tuple(column for column in columns if not column.key.startswith(("gap", "idle")))
    if report.overlap:
        notes.append(
            "communication: kernels between GPUs, NCCL's and others; beside compute: while any other kernel ran"
        )
    else:
        columns = tuple(column for column in columns if column.key not in ("communication_ns", "overlapped_share"))
    return profile_table(
        report, "use", [report], columns, f"Use of the device in {one(report)}", *notes, record=use_record
    )


def use_record(report: KernelReport) -> dict[str, Value]:
    """Launches, their time, and how busy they kept the device; None where that is not known."""
    gaps, overlap = report.gaps, report.overlap
    return {
        **attributes(report, "launches", "total_ns"),
        **attributes(None if kernels.has_totals_alone(report) else report, span_ns="span_ns", busy_ns="busy_ns"),
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
        Column("ns", "gap (µs)", show=microseconds, short="gap", units=TIMES),
        Column("after", "after", left=True, show=kernels.short_name),
        Column("before", "before", left=True, show=kernels.short_name),
    )
    largest = report.gaps.largest if report.gaps else ()
    return profile_table(report, "gaps", largest, columns, f"Largest gaps between kernels in {one(report)}")


def step_table(report: KernelReport) -> Table:
    """The steps that a recording names: the host's time, launches and their time."""
    columns: tuple[Column[StepUse], ...] = (
        Column("step", left=True),
        time_column("host_ns", "host"),
        Column("launches", nouns(report)[1]),
        time_column("total_ns", "time"),
        Column("matmul_share", "matrix multiply", show=tenth_percent),
    )
    note = "host: from the step's begin to its end on the host, while recorded"
    return profile_table(report, "steps", kernels.by_step(report), columns, f"Steps of {one(report)}", note)


def copy_table(report: KernelReport, ddof: int = 1) -> Table:
    """Copies and fills of a recording, which are no kernels."""
    rows, columns = kernels.rows_of(report.copies, ddof), NSYS[:-2] + NSYS[-1:]
    title = f"Copies and fills in {one(report)}"
    return profile_table(report, "copies", rows, columns, title, record=KernelRow._asdict)


def profile_table(
    report: KernelReport,
    kind: str,
    items: Iterable[T],
    columns: Sequence[Column[T]],
    title: str,
    *notes: str,
    record: Callable[[T], Mapping[str, Value]] | None = None,
    label: str = "",
) -> Table:
    """As `report_table`: a kind of table, with the notes of all below its own."""
    below = (*notes, *footnotes(report))
    return report_table(report, label or f"kernel-{kind}", items, columns, title, below, record=record, kind=kind)


OF_RUNS = frozenset(("times", "std_ns", "span_std_ns", "kernel_std_ns"))
"""Columns of recordings whose steps can be told apart."""
RUNS_NOTE = (
    "times: time, from first to last, launches, the top kernel and shares of kernels are of one of them, on average; "
    "±: sample std over them; without times: totals"
)


def footnotes(report: KernelReport) -> tuple[str, ...]:
    """The counts and how much of them is known; the same under every table of the report."""
    counted = "kernels, copies and fills of the GPU" if report.activity == "kernels" else "operators by self time"
    made = f"one profiled step after warm-up, apart from timing: {counted}"
    if report.spec.recording:
        made = "recorded elsewhere: kernels of the GPU; its copies and fills are counted apart"
        made = made if report.activity == "kernels" else f"recorded elsewhere: {counted}"
    return (
        made,
        *([steps_note(report)] if report.spec.recording else []),
        f"{report.launches} {nouns(report)[1]}, {milliseconds(report.total_ns)} ms in all; "
        f"{tenth_percent(kernels.named_share(report))} of the time is in a named range",
        *([report.note] if report.note else []),
    )


def steps_note(report: KernelReport) -> str:
    """The steps of a recording, or that nothing tells them apart."""
    if runs := report.runs.get("recording"):
        return f"steps that were told apart: {runs.text}"
    if any(step.launches for step in kernels.by_step(report)):
        return "steps not told apart by the version that opened the file: open the file again; figures are totals"
    return "nothing tells steps apart (a range round each, or forward): figures are totals of all that was recorded"


def one(report: KernelReport) -> str:
    """The subject of a report, in a caption."""
    return "the recording" if report.spec.recording else "one step"


def nouns(report: KernelReport) -> tuple[str, str]:
    """The words for what the report counts, and for each time that one of them ran."""
    return ("kernel", "launches") if report.activity == "kernels" else ("operator", "calls")


def microseconds(time_ns: Value) -> str:
    """Nanoseconds as µs; a dash for None."""
    return f"{time_ns / 1e3:,.1f}" if isinstance(time_ns, int | float) else NONE


SHADES = "·░▒▓█"
"""None of the time to all of it."""


TRAFFIC: tuple[Column[RankTraffic], ...] = (
    Column("rank"),
    time_column("span_ns", "step"),
    time_column("compute_ns", "compute"),
    time_column("communication_ns", "communication"),
    time_column("overlapped_ns", "of it beside compute", short="beside compute"),
    Column("overlapped_share", "overlap", show=tenth_percent),
    time_column("uncovered_ns", "of it alone", short="alone"),
    Column("operations", rank=2, left=True, read=lambda each: _operations(each)),
)


def traffic_table(report: KernelReport) -> Table:
    """A row a rank: communication, what of it ran beside compute, and what did not; below it both over time."""
    columns: tuple[Source[RankTraffic], ...] = (*TRAFFIC, lambda each: {"trace": each.trace})
    title, notes = "Communication of each rank", _traffic_notes(report)
    return report_table(report, "rank-communication", report.ranks, columns, title, notes)


class Gather(NamedTuple):
    """An all-gather of a rank."""

    rank: int
    it: AllGather

    @property
    def megabytes(self) -> float | None:
        return None if self.it.bytes is None else self.it.bytes / 1e6

    @property
    def took_ns(self) -> int:
        return self.it.end_ns - self.it.begin_ns

    @property
    def in_time(self) -> str:
        """``ended 1.234 ms before its backward``, ``its forward waited 56.78 µs``; a dash if neither is known."""
        if self.it.early_ns is not None:
            return f"ended {time_text(self.it.early_ns)} before its {self.it.pass_}"
        return NONE if self.it.waited_ns is None else f"its {self.it.pass_} waited {time_text(self.it.waited_ns)}"


def gathers_of(report: KernelReport, rank: int | None = None) -> list[Gather]:
    """The all-gathers of a rank, or of all."""
    return [Gather(each.rank, it) for each in report.ranks if rank in (None, each.rank) for it in each.all_gathers]


GATHERS: tuple[Column[Gather], ...] = (
    Column("rank"),
    Column("module", left=True, text=lambda each: each.it.module or NONE),
    Column("megabytes", "MB", show=known("{:.3f}", NONE), read=lambda each: each.megabytes),
    time_column("begin_ns", "begin", 1)._replace(read=lambda each: each.it.begin_ns),
    time_column("took_ns", "time")._replace(read=lambda each: each.took_ns),
    time_column("alone_ns", "of it alone", short="alone")._replace(read=lambda each: each.it.alone_ns),
    Column("in_time", "in time", left=True),
)


def gathers_table(report: KernelReport) -> Table:
    """A row for each all-gather of each rank: whether it ended before the pass that uses it could begin."""
    times = ("begin_ns", "end_ns", "alone_ns", "ready_ns", "early_ns", "waited_ns")

    def record(each: Gather) -> dict[str, Value]:
        known_of = {"rank": each.rank, "module": each.it.module or None, "of_pass": each.it.pass_ or None}
        return known_of | attributes(each.it, "bytes", *times)

    return report_table(report, "all-gathers", gathers_of(report), GATHERS, "All-gathers", _GATHER_NOTES, record=record)


_GATHER_NOTES = (
    "ended before: between the all-gather's end and the moment from which the forward or backward of the module "
    "could have begun; waited: from that moment to the all-gather's end, while nothing was computed",
    "of it alone: without compute beside it, also where the call itself blocks the host; MB: 10^6 bytes",
)


def gather_sums(rank: RankTraffic) -> Iterator[str]:
    """The all-gathers of a rank together; nothing without any."""
    if not rank.all_gathers:
        return
    told = [each for each in rank.all_gathers if each.waited_ns is not None]
    early = sum(each.early_ns is not None for each in told)
    waited_ns = sum(each.waited_ns or 0 for each in told)
    waited = f"passes waited {time_text(waited_ns)}" if waited_ns else "no pass waited"
    of_passes = f"{early} of {counted(len(told), 'all-gather')} ended before the pass that uses it, {waited}, "
    alone = time_text(sum(each.alone_ns for each in rank.all_gathers))
    yield f"rank {rank.rank}: {of_passes if told else ''}{alone} of all-gathers had no compute beside them"
    if unknown := len(rank.all_gathers) - len(told):
        yield f"rank {rank.rank}: {counted(unknown, 'all-gather')} whose module is not known"


def _operations(each: RankTraffic) -> str:
    return ", ".join(f"{count} × {name}" for name, count in each.operations.items()) or NONE


def _traffic_notes(report: KernelReport) -> Iterator[str]:
    yield "one profiled step, apart from timing; a profiled step is slower than a timed one"
    moves = "gloo's operations" if report.spec.backend_in_use == "gloo" else "kernels between GPUs, NCCL's and others"
    computes = "kernels that only compute" if report.activity == "kernels" else "torch's operators (aten)"
    yield f"communication: {moves}; compute: {computes}; overlap: share of the former in which the latter ran"
    for each in report.ranks:
        yield from gather_sums(each)
    yield f"over the step, from {SHADES[0]} none of the time to {SHADES[-1]} all of it:"
    for each in report.ranks:
        yield f"rank {each.rank} compute       {shades(each.compute_over_time)}"
        yield f"rank {each.rank} communication {shades(each.communication_over_time)}"
    for each in report.ranks:
        if each.trace:
            yield f"rank {each.rank}, Chrome trace, for ui.perfetto.dev: {each.trace}"


def shades(shares: Sequence[float], width: int | None = None) -> str:
    """A line of time, a character for each share; over `width` characters if it is given."""
    if width is not None:
        shares = [_mean_of(shares, place / width, (place + 1) / width) for place in range(width)]
    return "".join(SHADES[-(-round(share * 100) * (len(SHADES) - 1) // 100)] for share in shares)


def _mean_of(shares: Sequence[float], begin: float, end: float) -> float:
    """The mean from one place to another, from 0 to 1, of equal parts."""
    low, high, count = begin * len(shares), end * len(shares), len(shares)
    inside = (min(high, part + 1) - max(low, part) for part in range(int(low), min(math.ceil(high), count)))
    return sum(share * shares[part] for part, share in zip(range(int(low), count), inside, strict=False)) / (high - low)
