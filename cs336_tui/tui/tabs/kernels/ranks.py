"""The view of the Kernels tab over the ranks of a step: communication beside compute, and the all-gathers of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cs336_tui.events.kernel_report import KernelReport, RankTraffic
from cs336_tui.export.rank_traffic import SHADES, Gather, gather_sums, gathers_of, shades
from cs336_tui.export.tables import Column
from cs336_tui.stats.quantities import NONE, counted, scale, time_text
from cs336_tui.tui import format
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.widgets.columns import Sheet, middle, shown_table, table_lines
from cs336_tui.tui.widgets.lines import Line, Span, labelled, line, paragraphs, wrapped

_LABEL = len("rank 0 communicates ")
_LONGEST_MODULE = 26
_SHADED = f"Over the step: {SHADES[0]} none of the time, {SHADES[-1]} all of it."
_LONGEST = 120  # characters of a line of time, twice its parts


def ranks_sheet(report: KernelReport) -> Sheet:
    """A row a rank. The lead gives the overlap over ranks, and which all-gathers ended in time."""
    times = scale(
        time_ns for each in report.ranks for time_ns in (each.span_ns, each.compute_ns, each.communication_ns)
    )
    columns: tuple[Column[RankTraffic], ...] = (
        Column("rank"),
        Column("span_ns", f"step {times.unit}", rank=2, show=times.text),
        Column("compute_ns", f"compute {times.unit}", show=times.text),
        Column("communication_ns", f"communication {times.unit}", show=times.text),
        Column("overlapped_ns", f"beside compute {times.unit}", rank=1, show=times.text),
        Column("overlapped_share", "overlap %", show=_percent),
        Column("uncovered_ns", f"alone {times.unit}", show=times.text),
        *([Column[RankTraffic]("gathers", "gathers in time", rank=3, text=_in_time)] if gathers_of(report) else []),
    )
    return Sheet(shown_table(report.ranks, columns), _lead(report), tuple(str(each.rank) for each in report.ranks))


def timelines(report: KernelReport, width: int) -> Iterator[Line]:
    """Two lines of time a rank, compute over communication, as long as `width` allows."""
    long = max(min(width - _LABEL, _LONGEST), 10)
    yield ()
    for each in report.ranks:
        yield from _timeline(each, long)
    about = f"{_SHADED} {key_name('rows.choose')}: a rank's figures and all-gathers."
    yield from wrapped(about, width, "muted", "  ")


def detail(report: KernelReport, rank: int, width: int) -> list[Line]:
    """All figures of a rank, its line of time and its all-gathers."""
    (of,) = (each for each in report.ranks if each.rank == rank)
    lines: list[Line] = [line((format.plain(f"{report.spec.title} · rank {rank}"), "title")), ()]

    def said(label: str, text: str) -> None:
        lines.extend(labelled(label, format.plain(text), width, _LABEL))

    said("step", f"{time_text(of.span_ns)}, profiled")
    said("compute", time_text(of.compute_ns))
    beside = f", {_percent(of.overlapped_share)} % of it beside compute" if of.communication_ns else ""
    said("communication", f"{time_text(of.communication_ns)}{beside}, {time_text(of.uncovered_ns)} alone")
    said("operations", ", ".join(f"{count} × {name}" for name, count in of.operations.items()) or format.NOT_YET)
    if of.trace:
        said("Chrome trace", f"{of.trace} (ui.perfetto.dev)")
    lines += [(), *_timeline(of, max(min(width - _LABEL, _LONGEST), 10))]
    if gathers := gathers_of(report, rank):
        lines += [(), line(("All-gathers", "title"))]
        lines += table_lines(shown_table(gathers, _gather_columns(gathers)), width).lines
        lines += paragraphs(gather_sums(of), width, "muted", "  ")
    return lines


def _gather_columns(gathers: Sequence[Gather]) -> tuple[Column[Gather], ...]:
    times = scale(time_ns for each in gathers for time_ns in (each.took_ns, each.it.alone_ns))
    return (
        Column("module", left=True, text=lambda each: middle(format.plain(each.it.module) or NONE, _LONGEST_MODULE)),
        Column(
            "bytes", "MB", rank=3, text=lambda each: NONE if each.it.bytes is None else f"{each.it.bytes / 1e6:.3f}"
        ),
        Column("took_ns", f"time {times.unit}", rank=2, text=lambda each: times.text(each.took_ns)),
        Column("alone_ns", f"alone {times.unit}", rank=1, text=lambda each: times.text(each.it.alone_ns)),
        Column("in_time", "in time", left=True),
    )


def _timeline(of: RankTraffic, long: int) -> Iterator[Line]:
    for what, shares, role in (
        ("computes", of.compute_over_time, "measured"),
        ("communicates", of.communication_over_time, "caution"),
    ):
        yield Span(f"{f'rank {of.rank} {what}':<{_LABEL}}", "muted"), Span(shades(shares, long), role)


def _lead(report: KernelReport) -> str:
    shares = [each.overlapped_share for each in report.ranks if each.overlapped_share is not None]
    if not shares:
        return "No communication between ranks in this step."
    span = " to ".join(dict.fromkeys(f"{share * 100:.1f}" for share in (min(shares), max(shares))))
    said = f"{span} % of a rank's communication is beside compute."
    return f"{said} {_all_gathers(report.ranks)}".rstrip()


def _all_gathers(ranks: Sequence[RankTraffic]) -> str:
    told = [each for rank in ranks for each in rank.all_gathers if each.waited_ns is not None]
    if not told:
        return ""
    early = sum(each.early_ns is not None for each in told)
    most_ns = max(sum(each.waited_ns or 0 for each in rank.all_gathers) for rank in ranks)
    waited = f" longest wait of a rank for the others: {time_text(most_ns)}." if most_ns else ""
    return (
        f"{early} of {counted(len(told), 'all-gather')} ended before they were needed{';' if waited else '.'}{waited}"
    )


def _in_time(of: RankTraffic) -> str:
    told = [each for each in of.all_gathers if each.waited_ns is not None]
    return f"{sum(each.early_ns is not None for each in told)} of {len(told)}"


def _percent(share: float | None) -> str:
    return format.NOT_YET if share is None else f"{share * 100:.1f}"
