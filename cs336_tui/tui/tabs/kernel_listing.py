"""The kernels of a profiled step in the style of Nsight Systems' summary: which are shown, in which order, and each in
full."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from glob import escape
from typing import Any

import msgspec

from cs336_tui.analysis import kernels
from cs336_tui.analysis.kernels import KernelRow, Phases, rows
from cs336_tui.events.kernel_report import KINDS, KernelReport
from cs336_tui.events.prediction import NO_RANGE
from cs336_tui.export.subjects.kernel_use import NSYS
from cs336_tui.stats.quantities import NONE, counted, scale, tenth_percent, time_text
from cs336_tui.tui import format
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.widgets.columns import Sheet, Sort, on_screen, shown_table
from cs336_tui.tui.widgets.lines import Line, labelled, line, wrapped

NAME_WIDTH = 38
"""Least width of a kernel's name in a list."""
NO_PART = "no named part"
_MS_FROM = 100
"""Times of single launches are in µs up to so many ms: most kernels take a few µs."""
WHOLE_STEP = "whole step"
_NO_PHASE = "no phase"
_BAR = 9
"""Columns of a kernel's bar, and the gap behind it."""
_KIND_ROLES = "phase-1 phase-3 measured phase-2 memory phase-4 sync axis".split()
_labelled = partial(labelled, label_width=15)


_COLUMNS = NSYS[:-1]
"""All but the full name."""
_RANKS = {"instances": 1, "avg_ns": 2, "kind": 3}
_OF_LAUNCHES = ("avg_ns", "med_ns", "min_ns", "max_ns", "std_ns")
SORTS = tuple(column.key for column in _COLUMNS)
"""The keys of the columns, in order: kernels can be sorted by each."""


def kind_role(kind: str) -> str:
    """The role of a kind's colour, the same in every view."""
    return _KIND_ROLES[KINDS.index(kind)] if kind in KINDS else "axis"


class Selection(msgspec.Struct, frozen=True):
    """The kernels that are shown, and their order. None: all."""

    phase: Phases = None
    range: str | None = None
    kind: str | None = None
    within: str = ""
    """A range that encloses them at any depth, or a phase; empty for all."""
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
        return (self.sort in ("kind", "short")) == self.reversed


def select(report: KernelReport, selection: Selection) -> tuple[KernelRow, ...]:
    """The selected kernels, sorted."""
    if selection.within:
        report = kernels.within(report, [escape(selection.within)])
    chosen = rows(report, phase=selection.phase, range_=selection.range, kind=selection.kind)
    wanted = selection.text.casefold()
    kept = [row for row in chosen if wanted in row.name.casefold() or wanted in row.short.casefold()]
    key = "total_ns" if selection.sort == "share" else selection.sort

    def order(row: KernelRow) -> float | str:
        value: float | str = getattr(row, key) or 0
        return value.casefold() if key == "short" and isinstance(value, str) else value

    return tuple(sorted(kept, key=order, reverse=selection.descending))


def described(report: KernelReport, selection: Selection, found: Sequence[KernelRow]) -> str:
    """``backward · final matmul · /gemm · 12 of 48 kernels · 3.21 ms, 14.2 % of the step``."""
    count, some, total_ns = _count(report), selection.filters, sum(row.total_ns for row in found)
    share = total_ns / report.total_ns if report.total_ns else 0.0
    whole = kernels.whole(report.spec)
    parts = [
        f"whole {whole}" if selection.phase is None else phase_label(selection.phase),
        selection.range if selection.range != NO_RANGE else NO_PART,
        selection.kind,
        selection.within and f"in {format.plain(selection.within)}",
        selection.text and "/" + format.plain(selection.text),
        f"{len(found)} of {count}" if some else count,
        some and f"{time_text(total_ns)}, {tenth_percent(share)} of the {whole}",
    ]
    return " · ".join(part for part in parts if part)


def kernels_sheet(report: KernelReport, selection: Selection, found: Sequence[KernelRow]) -> Sheet:
    """A row per kernel. Shares are of phase, part and kind; a search leaves them as they are."""
    each = scale((row.avg_ns for row in found), at_least=_MS_FROM)
    none = f"None of the {_count(report)} is selected. {key_name('kernels.clear')} shows all of them."
    table = shown_table(found, _COLUMNS, [] if found else [none])
    # A sorted column has the highest rank: it stays in sight.
    table = on_screen(table, _RANKS | {selection.sort: 0}, scales=dict.fromkeys(_OF_LAUNCHES, each))
    keys, sort = tuple(row.name for row in found), Sort(selection.sort, selection.descending)
    most = max((row.total_ns for row in found), default=0) or 1
    return Sheet(
        table,
        keys=keys,
        rest=NAME_WIDTH,
        bar=_BAR,
        shares=tuple(row.total_ns / most for row in found),
        roles=tuple(kind_role(row.kind) for row in found),
        sort=sort,
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
    places = sorted((g for g in report.groups if g.name == name), key=lambda g: -g.total_ns)
    for group in places:
        time_ns = group.total_ns
        share = time_ns / whole.total_ns if whole.total_ns else 0.0
        figures = f"{group.instances}× {time_text(time_ns)}, {tenth_percent(share)} of its time"
        lines += labelled(f"{group.phase} · {group.range or NO_PART} ", figures, label_width=33)
    seen_on = f"{format.plain(report.device_name)} · torch {format.plain(report.torch)}"
    return [*lines, (), *_labelled("seen on", seen_on), *remarks(report, width)]


def remarks(report: KernelReport, width: int) -> list[Line]:
    """The note and the trace of the report."""
    note = wrapped(f"! {report.note}", width, "caution", "  ") if report.note else []
    trace = wrapped(report.file_line, width, "muted", "  ") if report.trace else []
    return [*note, *trace]


def phases(report: KernelReport) -> tuple[Phases, ...]:
    """The phases to choose from: the whole step, each phase, and forward to backward if the step has more."""
    names, model = [share.name for share in kernels.by_phase(report)], model_phases(report)
    together = [model] if 1 < len(model) < len(names) else []
    return (None, *model, *together, *(name for name in names if name not in model))


def model_phases(report: KernelReport) -> tuple[str, ...]:
    """The phases of the model, without those of the optimizer."""
    return tuple(share.name for share in kernels.by_phase(report) if share.name not in kernels.OPTIMIZER_PHASES)


def choices(report: KernelReport, selection: Selection, field: str) -> tuple[Any, ...]:
    """Values that a field may have. Parts and kinds: None for all, then those that the other filters leave."""
    if field in ("phase", "sort"):
        return SORTS if field == "sort" else phases(report)
    other, order = ("kind", kernels.range_order(report)) if field == "range" else ("range", KINDS)
    phase, wanted = selection.phase, getattr(selection, other)
    within = (phase,) if isinstance(phase, str) else phase or report.phase_spans_ns
    found = (group for group in report.groups if group.phase in within and wanted in (None, getattr(group, other)))
    seen = {getattr(group, field) for group in found}
    return (None, *(name for name in order if name in seen))


def still_valid(report: KernelReport, selection: Selection) -> Selection:
    """The selection without filters that match nothing in this report."""
    of_all = {field: choices(report, Selection(), field) for field in ("phase", "range", "kind")}
    gone = [field for field, known in of_all.items() if getattr(selection, field) not in known]
    within = selection.within if selection.within in kernels.range_names(report) else ""
    return msgspec.structs.replace(selection, **dict.fromkeys(gone), within=within)


def range_choices(report: KernelReport, names: Sequence[str]) -> list[tuple[str, str]]:
    """Each range with the launches that it encloses and their time."""
    found = {name: [0, 0] for name in names}
    for group in report.groups:
        for name in {*group.ranges}:
            found[name][0] += group.instances
            found[name][1] += group.total_ns
    return [(format.plain(name), f"{counted(count, 'launch')}, {time_text(ns)}") for name, (count, ns) in found.items()]


def phase_label(phase: Phases) -> str:
    if phase is None:
        return WHOLE_STEP
    return (phase or _NO_PHASE) if isinstance(phase, str) else " + ".join(name or _NO_PHASE for name in phase)


def _count(report: KernelReport) -> str:
    """``48 kernels`` of the whole step."""
    return f"{len({group.name for group in report.groups})} {report.activity}"


def _figures(row: KernelRow) -> list[Line]:
    figures = (row.avg_ns, row.med_ns, row.min_ns, row.max_ns, row.std_ns)
    each = scale(filter(None, figures[:-1]), at_least=_MS_FROM)
    avg, med, least, most, std = (f"{each.text(value)} {each.unit}" if value is not None else NONE for value in figures)
    return [
        *_labelled("time", f"{time_text(row.total_ns)}, {tenth_percent(row.share)}"),
        *_labelled("instances", str(row.instances)),
        *_labelled("average", f"{avg} ± {std} (sample std)" if row.instances > 1 and row.std_ns is not None else avg),
        *_labelled("median", med),
        *_labelled("min to max", f"{least} to {most}"),
    ]
