"""The views of one cell's memory: the timeline, allocations, what is saved for backward, why a cell did not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cs336_tui.events.prediction import CATEGORIES, UNKNOWN_USE, MemoryBlock, Prediction
from cs336_tui.events.reports import MemoryReport, OomReport
from cs336_tui.export.memory import spaced, tensor_text
from cs336_tui.export.tables import Column, Table
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import NONE, ByteUnit
from cs336_tui.tui import format
from cs336_tui.tui.charts import memory_timeline as chart
from cs336_tui.tui.charts.bars import phase_role
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.tabs.status import how_it_ended
from cs336_tui.tui.widgets.columns import TableLines, shown_table, table_lines
from cs336_tui.tui.widgets.lines import Line, Span, bar, facts, fit, line, width_of, wrapped
from cs336_tui.tui.widgets.rows import Page

if TYPE_CHECKING:
    from cs336_tui.analysis.memory import Allocation, Moment, Timeline

_Category = TypeVar("_Category", bound=str)
COLUMNS = "memory.columns"
"""The binding that turns pages of columns: the keys of other tables move in the timeline here."""
BESIDE = 100
"""Width from which the facts are beside the drawing, not under it."""
_FACTS = 54
_LOWEST, _HIGHEST = 4, 16
"""Least and most rows of a drawing with facts under it."""
_PLACES = 20
_BACKWARD = "∂"
"""Marks the backward of a place in the code."""
_NAMES = len("optimizer state") + 1
_FIGURES = len("12.345 GB 100 %")
_NARROWEST_BAR, _WIDEST_BAR = 6, 40
_CLOSE = 0.03
"""A prediction within this share of the measured peak is good."""
_MOST = 1_000
"""Most allocations that are listed."""


def difference(predicted: int, measured: int) -> Span:
    """The error of a prediction as a share of the measured peak: ``(+0.7 %)``."""
    if not measured:
        return Span("")
    share = predicted / measured - 1
    percent = f"{share * 100:+.1f}"
    return Span(f"({percent.replace('-0.0', '+0.0')} %)", "good" if abs(share) <= _CLOSE else "caution")


def summary(report: MemoryReport, prediction: Prediction | None, width: int) -> Line:
    """The peak as recorded, that of activations, the predicted one, the allocator's own, and the recorder: each whole
    or, where `width` has no room for it, not at all."""
    unit = ByteUnit.for_largest(report.peak_bytes)
    found = next((span.phase for span in report.phases if span.first <= report.peak_event < span.end), "")
    peak = line(
        (f"peak {unit.text(report.peak_bytes)}", "strong"), f" in {found}" if found else f" before the {report.subject}"
    )
    parts: list[Line] = []
    if report.activation_peak_bytes is not None:
        parts.append(line(f"activation peak {unit.text(report.activation_peak_bytes)}"))
    if prediction:
        error = difference(prediction.peak_bytes, report.allocator_peak_bytes or report.peak_bytes)
        parts.append((Span(f"predicted {unit.text(prediction.peak_bytes)} "), error))
    if not report.spec.recording:
        parts.append(line(f"allocator's own {unit.text(report.allocator_peak_bytes)}"))
    return facts(peak, [*parts, line((f"recorded by: {report.recorder}", "muted"))], width)


def about(report: MemoryReport, width: int) -> list[Line]:
    """The recorder, the device, the snapshot's path and the note."""
    lines = wrapped(f"{report.recorder} · {report.device_name} · torch {report.torch}", width, "muted")
    if report.snapshot:
        lines += wrapped(f"snapshot, for pytorch.org/memory_viz: {report.snapshot}", width, "text", "  ")
    return [*lines, *(wrapped(report.note, width, "muted") if report.note else [])]


class _Alike(NamedTuple):
    """Allocations that differ only in their moments, and when they live."""

    block: MemoryBlock
    lives: str
    allocations: tuple[Allocation, ...] = ()


def largest_page(timeline: Timeline, level_mb: int, width: int, columns_page: int) -> Page:
    """The allocations of at least `level_mb` MB; those that differ only in their moments are one row."""
    report = timeline.report
    least = level_mb * 10**6
    allocations = timeline.allocations(least, _MOST)
    total = sum(map(least.__le__, report.bytes))
    groups: dict[_Alike, list[Allocation]] = {}
    for found in allocations:
        begins = found.phase or "before"
        ends = "after" if found.died is None else timeline.phase_at(found.died) or "after"
        lives = begins if begins == ends else f"{begins} → {ends}"
        groups.setdefault(_Alike(found.block, lives), []).append(found)
    rows = [alike._replace(allocations=tuple(each)) for alike, each in groups.items()]
    unit = ByteUnit.for_largest(max(report.bytes, default=0))
    size, *others = _block_columns(unit, Column("lives", left=True, rank=3), tensor_rank=4)
    times = Column[_Alike]("times", "×", text=lambda row: str(len(row.allocations)))
    drawn = table_lines(shown_table(rows, (size, times, *others)), width, page=columns_page, binding=COLUMNS)
    listed = f"the largest {len(allocations):,} of {total:,}" if total > len(allocations) else f"{total:,}"
    above = f"Allocations of at least {level_mb} MB" if level_mb else "All allocations"
    keys = key_name("memory.level", "memory.level_up")
    told = line((above, "strong"), (f"  {keys}", "key"), (f" · {listed}; {len(report.bytes):,} in all", "muted"))
    none = f"No allocation that large; {key_name('memory.level')} shows smaller ones."
    details = {place: _lives(row.block, row.allocations, report) for place, row in enumerate(rows)}
    return Page((told, *drawn.heading), tuple(drawn.rows) or (line((none, "muted")),), details, drawn.pages)


def _lives(block: MemoryBlock, alike: Sequence[Allocation], report: MemoryReport) -> str:
    together = sum(found.block.bytes for found in alike)
    lines = [f"{len(alike)} alike, {together:,} bytes if all were live at once; they are live from"]
    for found in alike:
        begins = f"event {found.born + 1:,}" if found.born else f"before the {report.subject}"
        ends = f"event {found.died + 1:,}" if found.died is not None else f"after the {report.subject}"
        lines.append(f"  {begins} to {ends}")
    return "\n".join([block_details(block), "", *lines, f"of {report.events:,} events"])


def category_lines(by_category: Mapping[_Category, int], unit: ByteUnit, width: int, rows: int) -> list[Line]:
    """Every category with its size, and its share and a bar if `width` allows; side by side if `rows` are too few."""
    abreast = -(-len(by_category) // max(rows, 1))
    each = width // abreast - 2
    bar_width = min(each - _NAMES - _FIGURES - 1, _WIDEST_BAR)
    total = sum(by_category.values())
    cells: list[Line] = []
    for category, held in by_category.items():
        share = held / total if total else 0.0
        spans = [Span(f"{spaced(category):<{_NAMES}}", "muted")]
        if bar_width >= _NARROWEST_BAR:
            spans.append(Span(bar(share, bar_width) + " ", "memory"))
        spans.append(Span(f"{unit.text(held):>9}"))
        if each >= _NAMES + _FIGURES:
            spans.append(Span(f" {share * 100:3.0f} %", "muted"))
        cells.append((*spans, Span("  ")))
    down = -(-len(cells) // abreast)
    return [tuple(span for cell in cells[row::down] for span in cell) for row in range(down)]


def where(block: MemoryBlock) -> str:
    """The place in the model's code, else the operation; its backward is marked."""
    site = block.site
    place = format.plain(site.frame or site.op) or (format.NOT_AVAILABLE if site.phase else _before(block))
    return f"{_BACKWARD} {place}" if site.backward else place


def _before(block: MemoryBlock) -> str:
    return f"before the {'recording' if block.category == UNKNOWN_USE else 'step'}"


def _block_columns(unit: ByteUnit, when: Column[_Alike], *, tensor_rank: int) -> list[Column[_Alike]]:
    """The columns of an allocation; `when`: the column that tells when it lives."""

    def text(key: str, title: str | None, rank: int, show: Callable[[MemoryBlock], str]) -> Column[_Alike]:
        return Column(key, title, left=True, rank=rank, text=lambda row: show(row.block))

    return [
        Column("bytes", unit.name, text=lambda row: unit.figure(row.block.bytes)),
        text("category", "held for", 2, lambda block: spaced(block.category)),
        text("range", "part", 1, lambda block: block.site.range or NONE),
        text("tensor", None, tensor_rank, lambda block: tensor_text(block) or NONE),
        when,
        text("operation", None, 5, lambda block: format.plain(block.site.op) or NONE),
        text("where", f"where ({_BACKWARD} in backward)", 0, where),
    ]


def blocks_table(
    blocks: Sequence[MemoryBlock], unit: ByteUnit, width: int, columns_page: int | None = None
) -> TableLines:
    """A row for each allocation."""
    columns = _block_columns(unit, Column("lives", "phase", left=True, rank=4), tensor_rank=3)
    rows = [_Alike(block, block.site.phase or NONE) for block in blocks]
    return table_lines(shown_table(rows, columns), width, page=columns_page, binding=COLUMNS)


def block_details(block: MemoryBlock) -> str:
    site = block.site
    facts = {
        "size": f"{block.bytes:,} bytes ({ByteUnit.for_largest(block.bytes).text(block.bytes)})",
        "held for": spaced(block.category),
        "tensor": tensor_text(block) or "unknown, such as a workspace",
        "operation": site.op or format.NOT_AVAILABLE,
        "first frame": site.frame or "unknown",
        "part of the model": site.range or "none",
        "phase": site.phase or _before(block),
        "in backward": "yes; the frame is the forward operation's" if site.backward else "no",
    }
    return "\n".join(f"{name}: {value}" for name, value in facts.items())


def failure_lines(cell: CellState, prediction: Prediction | None, width: int) -> list[Line]:
    """The end of the cell, and its predicted peak."""
    lines = wrapped(how_it_ended(cell) or cell.status, width, "caution")
    if cell.finished and cell.finished.error:
        lines += wrapped(cell.finished.error, width)
    if prediction:
        lines += wrapped(_expected(prediction, None, ByteUnit.for_largest(prediction.peak_bytes)), width)
    return lines


def oom_page(report: OomReport, prediction: Prediction | None, width: int, columns_page: int) -> Page:
    """Live memory by category when memory ran out, beside the prediction, and the largest live allocations."""
    predicted = report.prediction or prediction
    unit = ByteUnit.for_largest(max(report.live_bytes, report.capacity_bytes or 0))
    why = (
        "Observed: a second run was out of memory, too." if report.observed
        else "Predicted, not observed: live memory up to the point where it no longer fits."
    )  # fmt: skip
    known = wrapped(f"{why} {report.note}", width, "muted")
    expected = wrapped(_expected(predicted, report.capacity_bytes, unit), width) if predicted else []
    happened = wrapped(_what_happened(report, unit), width, "strong")
    held = _categories(report, predicted, unit, width, columns_page)
    rows = [*happened, *known, *expected, (), *held.lines]
    largest = blocks_table(report.largest, unit, width, columns_page)
    if largest.rows:
        how = "observed" if report.observed else "predicted"
        rows += [(), line((f"Largest live allocations · {how}", "title")), *largest.heading]
    details = {place: block_details(block) for place, block in enumerate(report.largest, len(rows))}
    return Page((), (*rows, *largest.rows), details, max(held.pages, largest.pages, key=len))


def _what_happened(report: OomReport, unit: ByteUnit) -> str:
    where = {None: "", "building": " while the model was built"}.get(report.phase, f" in {report.phase}")
    asked = (
        f"{unit.text(report.request_bytes)} was asked for" if report.request_bytes is not None else "more was asked for"
    )
    has = f" of the device's {unit.text(report.capacity_bytes)}" if report.capacity_bytes else ""
    return f"Memory ran out{where}: {asked} with {unit.text(report.live_bytes)}{has} live."


def _expected(predicted: Prediction, capacity_bytes: int | None, unit: ByteUnit) -> str:
    beyond = ""
    if capacity_bytes:
        over = predicted.peak_bytes - capacity_bytes
        beyond = f", {unit.text(abs(over))} {'more' if over > 0 else 'less'} than the device has"
    whole = f"The whole step is predicted to need {unit.text(predicted.peak_bytes)} in {predicted.peak_phase}{beyond}."
    if predicted.activation_peak_bytes is None:
        return whole
    return f"{whole} Activations alone: {unit.text(predicted.activation_peak_bytes)}."


def _categories(
    report: OomReport, predicted: Prediction | None, unit: ByteUnit, width: int, columns_page: int
) -> TableLines:
    def row(name: str, live: int, share: str, peak: int) -> tuple[str, ...]:
        return name, unit.figure(live), share, unit.figure(peak) if predicted else format.NOT_YET

    columns = (
        Column("held for", left=True),
        Column(f"live, {unit.name}"),
        Column("share", rank=2),
        Column("predicted peak", rank=1),
    )
    whole, live = report.live_bytes, {category: report.by_category.get(category, 0) for category in CATEGORIES}
    shares = {category: format.percent(held / whole if whole else None) for category, held in live.items()}
    peaks = predicted.by_category if predicted else {}
    rows = [row(spaced(name), live[name], shares[name], peaks.get(name, 0)) for name in CATEGORIES]
    rows.append(row("all", whole, "", predicted.peak_bytes if predicted else 0))
    return table_lines(Table(columns=columns, rows=tuple(rows)), width, page=columns_page, binding=COLUMNS)


def columns_in(width: int) -> int:
    return chart.room_for_columns(_picture_width(width))


def _picture_width(width: int) -> int:
    return width - max(_FACTS, width * 2 // 5) - 2 if width >= BESIDE else width


def timeline_page(timeline: Timeline, window: chart.EventWindow, event: int, width: int, height: int) -> Page:
    """The drawing with its cursor at `event`, and the facts of that moment; at most `height` rows."""
    report, moment = timeline.report, timeline.at(event)
    unit = ByteUnit.for_largest(report.peak_bytes)
    picture = picture_of(timeline, window, event)
    wide = _picture_width(width)
    if wide < width:
        drawn = chart.memory_timeline(picture, width=wide, height=height)
        facts = moment_lines(moment, report, window, unit, width - wide - 2, height)
        beside = zip_longest(drawn, facts, fillvalue=())
        return Page(tuple((*left, Span(" " * (wide + 2 - width_of(left))), *right) for left, right in beside))
    high = min(max(height // 2, _LOWEST), _HIGHEST)
    drawn = chart.memory_timeline(picture, width=width, height=high) if height > _LOWEST else []
    return Page((*drawn, *moment_lines(moment, report, window, unit, width, height - len(drawn))))


def picture_of(timeline: Timeline, window: chart.EventWindow, event: int) -> chart.Picture:
    report = timeline.report
    moments = timeline.moments(window.columns, window.first, window.end)
    forward = [span.end - 1 for span in report.phases if span.phase == "forward" and span.end > span.first]
    named = [(report.peak_event, "peak"), *([(max(forward), "end of forward")] if forward else [])]
    return chart.Picture(
        tuple(map(int, timeline.live_total[moments])),
        [timeline.phase_at(int(moment)) for moment in moments],
        report.peak_bytes,
        ByteUnit.for_largest(report.peak_bytes),
        window.column_of(event),
        tuple(chart.EventMark(place, name) for event, name in named if (place := window.column_of(event)) is not None),
    )


def moment_lines(
    moment: Moment, report: MemoryReport, window: chart.EventWindow, unit: ByteUnit, width: int, height: int
) -> list[Line]:
    """Live memory at a moment: the total, by category, the largest allocations; at most `height` rows."""
    categories = len(moment.by_category)
    rows = categories if height >= 2 * categories + 2 else -(-categories // 2)
    lines = [_moment_line(moment, report, window, unit, width), *category_lines(moment.by_category, unit, width, rows)]
    if moment.blocks:
        largest = blocks_table(moment.blocks, unit, width)
        lines += [*largest.heading, *(fit(block, width) for block in largest.rows)]
    return lines[:height]


def _moment_line(moment: Moment, report: MemoryReport, window: chart.EventWindow, unit: ByteUnit, width: int) -> Line:
    """The moment in one row; without room the share of the peak is left out first."""
    live = Span(f"{unit.text(moment.total_bytes)} live", "strong")
    phase = Span(moment.phase or f"before the {report.subject}", phase_role(moment.phase))
    event = Span(f" · event {moment.event + 1:,} of {report.events:,}", "muted")
    share = moment.total_bytes / report.peak_bytes if report.peak_bytes else 0.0
    of_peak = Span(f", {share * 100:.0f} % of the peak", "muted")
    in_sight = Span(f", in sight {window.first + 1:,} to {window.end:,}", "muted")
    between = Span(" · ", "muted")
    zoomed = () if window.is_whole else (in_sight,)
    for found in ((live, of_peak, between, phase, event, *zoomed), (live, between, phase, event, *zoomed)):
        if width_of(found) <= width:
            return found
    return fit((live, between, phase, event), width)


def moment_details(timeline: Timeline, event: int, width: int) -> list[Line]:
    """Everything about a record and a moment of it, for a window."""
    report, moment = timeline.report, timeline.at(event)
    unit = ByteUnit.for_largest(report.peak_bytes)
    lines = [
        *about(report, width),
        (),
        _moment_line(moment, report, chart.EventWindow.whole(report.events, 1), unit, width),
        *category_lines(moment.by_category, unit, width, len(moment.by_category)),
        (),
        line(("Live bytes by place", "title")),
    ]
    for row in timeline.by_site(event)[:_PLACES]:
        count = f" in {row.allocations:,} allocations" if row.allocations > 1 else ""
        place = row.frame or "no frame known"
        lines += wrapped(f"{unit.text(row.bytes)}{count} · {row.range or 'no part'} · {place}", width, indent="  ")
    lines += [(), line(("Largest live allocations", "title"))]
    for block in moment.blocks:
        first, *rest = block_details(block).splitlines()
        lines += [*wrapped(first, width, "strong"), *wrapped(" · ".join(rest), width, indent="  ")]
    return lines
