"""Communication beside compute on each rank of a profiled step, as a table with a line of time below it; and its
all-gathers beside what uses them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cs336_tui.events.kernel_report import AllGather, KernelReport, RankTraffic
from cs336_tui.export.kernel_use import percent, time_column
from cs336_tui.export.tables import Column, Table, Value, attributes, cell_record, known
from cs336_tui.stats.quantities import NONE, counted, time_text

SHADES = "·░▒▓█"
"""None of the time to all of it."""


TRAFFIC: tuple[Column[RankTraffic], ...] = (
    Column("rank"),
    time_column("span_ns", "step"),
    time_column("compute_ns", "compute"),
    time_column("communication_ns", "communication"),
    time_column("overlapped_ns", "of it beside compute", short="beside compute"),
    Column("overlapped_share", "overlap", show=percent),
    time_column("uncovered_ns", "of it alone", short="alone"),
    Column("operations", rank=2, left=True, text=lambda each: _operations(each)),
)


def traffic_table(report: KernelReport) -> Table:
    """A row a rank: communication, what of it ran beside compute, and what did not; below it both over time."""
    return Table.of(
        report.ranks,
        TRAFFIC,
        record=lambda each: cell_record(report.spec) | _record(each),
        caption=f"Communication of each rank: {report.spec.heading} · {report.device_name}, torch {report.torch}",
        footnotes=_notes(report),
        label=f"rank-communication-{report.spec.title}",
    )


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
    return Table.of(
        gathers_of(report),
        GATHERS,
        record=lambda each: cell_record(report.spec) | _gather_record(each),
        caption=f"All-gathers: {report.spec.heading} · {report.device_name}, torch {report.torch}",
        footnotes=gather_notes(),
        label=f"all-gathers-{report.spec.title}",
    )


def _gather_record(each: Gather) -> dict[str, Value]:
    times = ("begin_ns", "end_ns", "alone_ns", "ready_ns", "early_ns", "waited_ns")
    known_of = {"rank": each.rank, "module": each.it.module or None, "of_pass": each.it.pass_ or None}
    return known_of | attributes(each.it, "bytes", *times)


def gather_notes() -> Iterator[str]:
    yield (
        "ended before: between the all-gather's end and the moment from which the forward or backward of the module "
        "could have begun; waited: from that moment to the all-gather's end, while nothing was computed"
    )
    yield "of it alone: without compute beside it, also where the call itself blocks the host; MB: 10^6 bytes"


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


def _record(each: RankTraffic) -> dict[str, Value]:
    names = ("rank", "span_ns", "compute_ns", "communication_ns", "overlapped_ns", "overlapped_share", "uncovered_ns")
    return {**attributes(each, *names), "operations": _operations(each), "trace": each.trace}


def _notes(report: KernelReport) -> Iterator[str]:
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
