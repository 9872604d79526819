"""A profile's launches in all, and how busy they kept the device: gaps, steps, copies; and the words of its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cs336_tui.analysis import kernels
from cs336_tui.analysis.kernels import KernelRow
from cs336_tui.events.kernel_report import KINDS, Gap, KernelReport
from cs336_tui.export.tables import Column, Table, Value, attributes, known, report_table
from cs336_tui.stats.quantities import NONE, TIMES, Scale

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
        Column("idle_share", "GPU idle", show=percent),
        Column("launches_per_s", f"{nouns(report)[1]}/s", rank=4, show=known("{:,.0f}", NONE)),
        Column("gaps", "gaps", rank=1, show=known("{:,}", NONE)),
        time_column("gap_ns", "gaps in all"),
        Column("gap_median_ns", "median gap (µs)", rank=3, show=microseconds),
        Column("gap_largest_ns", "largest gap (µs)", rank=2, show=microseconds),
        time_column("communication_ns", "communication"),
        Column("overlapped_share", "of it beside compute", rank=1, show=percent),
    )
    unknown = {"communication_ns", "overlapped_share"} if report.overlap is None else set[str]()
    unknown |= (
        {column.key for column in columns if column.key.startswith(("gap", "idle"))} if not report.gaps else set()
    )
    return report_table(
        report,
        [report],
        [column for column in columns if column.key not in unknown],
        f"Use of the device in {one(report)}",
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
    return report_table(
        report,
        report.gaps.largest if report.gaps else (),
        columns,
        f"Largest gaps between kernels in {one(report)}",
        "kernel-gaps",
        footnotes=footnotes(report),
        kind="gaps",
    )


def step_table(report: KernelReport) -> Table:
    """The steps that a recording names: the host's time, launches and their time."""
    columns: tuple[Column[kernels.StepUse], ...] = (
        Column("step", left=True),
        time_column("host_ns", "host"),
        Column("launches", nouns(report)[1]),
        time_column("total_ns", "time"),
        Column("matmul_share", "matrix multiply", show=percent),
    )
    return report_table(
        report,
        kernels.by_step(report),
        columns,
        f"Steps of {one(report)}",
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
        NSYS[:-2] + NSYS[-1:],
        f"Copies and fills in {one(report)}",
        "kernel-copies",
        record=KernelRow._asdict,
        footnotes=footnotes(report),
        kind="copies",
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
        f"{report.launches} {nouns(report)[1]}, {milliseconds(report.total_ns)} ms in all; "
        f"{percent(kernels.named_share(report))} of the time is in a named range",
        *([report.note] if report.note else []),
    )


def _use_notes(report: KernelReport) -> Iterator[str]:
    if report.gaps:
        yield "gaps: times from the first kernel, copy or fill to the last in which the GPU ran none of them"
    if report.overlap:
        yield "communication: kernels between GPUs, NCCL's and others; beside compute: while any other kernel ran"


def one(report: KernelReport) -> str:
    """The subject of a report, in a caption."""
    return "the recording" if report.spec.recording else "one step"


def nouns(report: KernelReport) -> tuple[str, str]:
    """The words for what the report counts, and for each time that one of them ran."""
    return ("kernel", "launches") if report.activity == "kernels" else ("operator", "calls")


def microseconds(time_ns: Value) -> str:
    """Nanoseconds as µs; a dash for None."""
    return f"{time_ns / 1e3:,.1f}" if isinstance(time_ns, int | float) else NONE


def percent(share: Value) -> str:
    """A share as ``46.8 %``; a dash for None."""
    return f"{share * 100:.1f} %" if isinstance(share, int | float) else NONE
