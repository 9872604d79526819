"""The table of kernels, in the style of Nsight Systems' summary, and the details of one kernel."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import msgspec

from cs336_tui.analysis.kernels import KernelRow, Phases, rows
from cs336_tui.events.reports import FUSED, KINDS, NO_RANGE, RANGES, KernelGroup, KernelReport
from cs336_tui.export.tables import Column, Table
from cs336_tui.stats.quantities import Scale, scale, time_text
from cs336_tui.tui import format
from cs336_tui.tui.widgets.columns import Sheet
from cs336_tui.tui.widgets.lines import Line, labelled, line, wrapped

_NAME_WIDTH = 32
_MS_FROM = 100
"""Times of single launches are in µs up to so many ms: most kernels take a few µs."""
_UPDATES = ("zero_grad", "optimizer")
WHOLE_STEP = "whole step"
NO_PART = "no named part"
_labelled = partial(labelled, label_width=15)


def _columns(each: Scale, totals: Scale) -> tuple[Column[KernelRow], ...]:
    def time(key: str, title: str, rank: int) -> Column[KernelRow]:
        return Column(key, f"{title} {each.unit}", rank=rank, show=each.text)

    return (
        Column("share", "Time %", show=lambda share: f"{share * 100:.1f}"),
        Column("total_ns", f"Total {totals.unit}", show=totals.text),
        Column("instances", "Instances", rank=1),
        time("avg_ns", "Avg", 2),
        time("med_ns", "Med", 4),
        time("min_ns", "Min", 5),
        time("max_ns", "Max", 6),
        time("std_ns", "StdDev", 7),
        Column("kind", "Kind", left=True, rank=3),
        Column("short", "Name", left=True, show=format.plain),
    )


_ALPHABETIC = ("kind", "short")
SORTS = tuple(column.key for column in _columns(scale([]), scale([])))
"""The keys of the columns, in order: kernels can be sorted by each."""


class Selection(msgspec.Struct, frozen=True):
    """The kernels that are shown, and their order. None: all."""

    phase: Phases = None
    range: str | None = None
    kind: str | None = None
    text: str = ""
    """A part of the name, in any case."""
    sort: str = "total_ns"
    """One of `SORTS`."""
    reversed: bool = False
    """Reverses a column's own order, which is the largest first, and names from A."""

    @property
    def filters(self) -> bool:
        """True if some kernels are left out."""
        return self != self.cleared()

    def cleared(self) -> Selection:
        """The selection of all kernels, in the same order."""
        return Selection(sort=self.sort, reversed=self.reversed)

    @property
    def descending(self) -> bool:
        return (self.sort in _ALPHABETIC) == self.reversed


class Found(NamedTuple):
    """The selected kernels, sorted."""

    rows: tuple[KernelRow, ...]
    of: int
    """The number of kernels of the whole step."""
    total_ns: int


def select(report: KernelReport, selection: Selection) -> Found:
    chosen = rows(report, phase=selection.phase, range_=selection.range, kind=selection.kind)
    wanted = selection.text.casefold()
    kept = [row for row in chosen if wanted in row.name.casefold() or wanted in row.short.casefold()]
    ordered = sorted(kept, key=lambda row: _sort_key(row, selection.sort), reverse=selection.descending)
    names = {group.name for group in report.groups}
    return Found(tuple(ordered), len(names), sum(row.total_ns for row in kept))


def described(report: KernelReport, selection: Selection, found: Found) -> str:
    """``backward · final matmul · /gemm · 12 of 48 kernels · 3.21 ms, 14.2 % of the step``."""
    word = noun(report, 2)
    parts = [phase_label(selection.phase)]
    if selection.range is not None:
        parts.append(selection.range or NO_PART)
    if selection.kind is not None:
        parts.append(selection.kind)
    if selection.text:
        parts.append("/" + format.plain(selection.text))
    parts.append(f"{len(found.rows)} of {found.of} {word}" if selection.filters else f"{found.of} {word}")
    if selection.filters:
        share = found.total_ns / report.total_ns if report.total_ns else 0.0
        parts.append(f"{time_text(found.total_ns)}, {share * 100:.1f} % of the step")
    return " · ".join(parts)


def kernels_sheet(report: KernelReport, selection: Selection, found: Found) -> Sheet:
    """A row per kernel. Shares are of phase, part and kind; a search leaves them as they are."""
    totals = scale(row.total_ns for row in found.rows)
    each = scale((row.avg_ns for row in found.rows), at_least=_MS_FROM)
    mark = "▾" if selection.descending else "▴"
    columns = [
        column._replace(title=column.header + mark, rank=0) if column.key == selection.sort else column
        for column in _columns(each, totals)
    ]
    nothing = () if found.rows else (f"None of the {found.of} {noun(report, 2)} is selected. Esc shows all of them.",)
    table = Table.of(found.rows, columns, footnotes=nothing)
    return Sheet(
        table,
        keys=tuple(row.name for row in found.rows),
        rest=min(_NAME_WIDTH, max(map(len, table.texts("short")), default=0)),
    )


def detail(report: KernelReport, name: str, phase: Phases, width: int) -> list[Line]:
    """A kernel's full name, its figures in `phase` and in the whole step, and the places that launch it."""
    lines: list[Line] = [*wrapped(name, width, "strong", "  "), ()]
    whole = next(row for row in rows(report) if row.name == name)
    lines += _labelled("kind", whole.kind)
    for label, chosen in dict.fromkeys(((phase_label(phase), phase), (WHOLE_STEP, None))):
        if row := next((row for row in rows(report, phase=chosen) if row.name == name), None):
            lines += [(), line((f"In the {label}" if chosen is None else f"In {label}", "title")), *_figures(row)]
    lines += [(), line(("Where from", "title"))]
    places = sorted((g for g in report.groups if g.name == name), key=lambda g: -sum(g.durations_ns))
    for group in places:
        time_ns = sum(group.durations_ns)
        share = time_ns / whole.total_ns if whole.total_ns else 0.0
        figures = f"{len(group.durations_ns)}× {time_text(time_ns)}, {share * 100:.1f} % of its time"
        lines += labelled(f"{group.phase} · {group.range or NO_PART} ", figures, label_width=33)
    lines += [(), *about(report, width)]
    return lines


def about(report: KernelReport, width: int) -> list[Line]:
    """The device, the note and the trace of the report."""
    lines = _labelled("seen on", f"{format.plain(report.device_name)} · torch {format.plain(report.torch)}")
    if report.note:
        lines += wrapped(f"! {report.note}", width, "caution", "  ")
    if report.trace:
        lines += wrapped(f"trace, for ui.perfetto.dev: {report.trace}", width, "muted", "  ")
    return lines


def phases(report: KernelReport) -> tuple[Phases, ...]:
    """The phases to choose from: the whole step, each phase, and forward to backward if the step has more."""
    seen = {group.phase for group in report.groups}
    model = model_phases(report)
    updates = tuple(name for name in report.phase_spans_ns if name in seen and name not in model)
    together: tuple[Phases, ...] = (model,) if len(model) > 1 and updates else ()
    return (None, *model, *together, *updates)


def model_phases(report: KernelReport) -> tuple[str, ...]:
    """The phases of the model, without those of the optimizer."""
    seen = {group.phase for group in report.groups}
    return tuple(name for name in report.phase_spans_ns if name in seen and name not in _UPDATES)


def ranges(report: KernelReport, selection: Selection) -> tuple[str | None, ...]:
    """The parts among the kernels that the other filters select, after None for all."""
    seen = {group.range for group in _matching(report, selection) if selection.kind in (None, group.kind)}
    return (None, *(name for name in (*RANGES, FUSED, NO_RANGE) if name in seen))


def kinds(report: KernelReport, selection: Selection) -> tuple[str | None, ...]:
    """The kinds among the kernels that the other filters select, after None for all."""
    seen = {group.kind for group in _matching(report, selection) if selection.range in (None, group.range)}
    return (None, *(name for name in KINDS if name in seen))


def still_valid(report: KernelReport, selection: Selection) -> Selection:
    """The selection without filters that match nothing in this report."""
    known = report.groups
    return msgspec.structs.replace(
        selection,
        phase=selection.phase if selection.phase in phases(report) else None,
        range=selection.range if any(g.range == selection.range for g in known) else None,
        kind=selection.kind if any(g.kind == selection.kind for g in known) else None,
    )


def phase_label(phase: Phases) -> str:
    if phase is None:
        return WHOLE_STEP
    return phase if isinstance(phase, str) else " + ".join(phase)


def noun(report: KernelReport, count: int) -> str:
    """``kernel`` or ``operator``, in the plural unless `count` is 1."""
    return report.activity if count != 1 else report.activity.removesuffix("s")


def _matching(report: KernelReport, selection: Selection) -> Iterable[KernelGroup]:
    phase = selection.phase
    wanted = (phase,) if isinstance(phase, str) else phase
    return (group for group in report.groups if wanted is None or group.phase in wanted)


def _sort_key(row: KernelRow, sort: str) -> float | str:
    value: float | str = getattr(row, "total_ns" if sort == "share" else sort)
    return value.casefold() if sort == "short" and isinstance(value, str) else value


def _figures(row: KernelRow) -> list[Line]:
    figures = (row.avg_ns, row.med_ns, row.min_ns, row.max_ns, row.std_ns)
    each = scale(figures[:-1], at_least=_MS_FROM)
    avg, med, least, most, std = (f"{each.text(value)} {each.unit}" for value in figures)
    return [
        *_labelled("time", f"{time_text(row.total_ns)}, {row.share * 100:.1f} %"),
        *_labelled("instances", str(row.instances)),
        *_labelled("average", f"{avg} ± {std} (sample std)" if row.instances > 1 else avg),
        *_labelled("median", med),
        *_labelled("min to max", f"{least} to {most}"),
    ]
