"""Communication beside compute on each rank of a profiled step, as a table with a line of time below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cs336_tui.events.kernel_report import KernelReport, RankTraffic
from cs336_tui.export.tables import Column, Table, Value, attributes, cell_record, known
from cs336_tui.stats.quantities import NONE

_SHADES = "·░▒▓█"


def traffic_table(report: KernelReport) -> Table:
    """A row a rank: communication, what of it ran beside compute, and what did not; below it both over time."""
    columns: tuple[Column[RankTraffic], ...] = (
        Column("rank"),
        _milliseconds("span_ns", "step"),
        _milliseconds("compute_ns", "compute"),
        _milliseconds("communication_ns", "communication"),
        _milliseconds("overlapped_ns", "of it beside compute"),
        Column("overlapped_share", "overlap", show=lambda share: NONE if share is None else f"{share * 100:.1f} %"),
        _milliseconds("uncovered_ns", "of it alone"),
        Column("operations", left=True, text=lambda each: _operations(each)),
    )
    return Table.of(
        report.ranks,
        columns,
        record=lambda each: cell_record(report.spec) | _record(each),
        caption=f"Communication of each rank: {report.spec.heading} · {report.device_name}, torch {report.torch}",
        footnotes=_notes(report),
        label=f"rank-communication-{report.spec.title}",
    )


def _milliseconds(key: str, title: str) -> Column[RankTraffic]:
    return Column(key, f"{title} (ms)", show=known("{:.3f}"), read=lambda each: int(getattr(each, key)) / 1e6)


def _operations(each: RankTraffic) -> str:
    return ", ".join(f"{count} × {name}" for name, count in each.operations.items()) or NONE


def _record(each: RankTraffic) -> dict[str, Value]:
    names = ("rank", "span_ns", "compute_ns", "communication_ns", "overlapped_ns", "overlapped_share", "uncovered_ns")
    return {**attributes(each, *names), "operations": _operations(each), "trace": each.trace}


def _notes(report: KernelReport) -> Iterator[str]:
    yield "one profiled step, apart from timing; a profiled step is slower than a timed one"
    counted = "NCCL's and other kernels beside all others" if report.activity == "kernels" else "gloo's beside aten's"
    yield f"communication: {counted}; overlap: the share of its time in which compute ran"
    yield f"over the step, from {_SHADES[0]} none of the time to {_SHADES[-1]} all of it:"
    for each in report.ranks:
        yield f"rank {each.rank} compute       {_line(each.compute_over_time)}"
        yield f"rank {each.rank} communication {_line(each.communication_over_time)}"
    for each in report.ranks:
        if each.trace:
            yield f"rank {each.rank}, Chrome trace, for ui.perfetto.dev: {each.trace}"


def _line(shares: Sequence[float]) -> str:
    return "".join(_SHADES[-(-round(share * 100) * (len(_SHADES) - 1) // 100)] for share in shares)
