"""The timeline of a memory report, and live memory at its cursor."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from cs336_tui.events.reports import CATEGORIES, MemoryReport
from cs336_tui.stats.quantities import ByteUnit
from cs336_tui.tui.charts import memory_timeline as chart
from cs336_tui.tui.tabs.memory.allocations import block_details, blocks_table, category_lines
from cs336_tui.tui.widgets.lines import Line, Span, fit, line, width_of, wrapped
from cs336_tui.tui.widgets.rows import Page

if TYPE_CHECKING:
    from cs336_tui.analysis.memory import Moment, Timeline

BESIDE = 100
"""Width from which the facts are beside the drawing, not under it."""
_FACTS = 54
_LOWEST, _HIGHEST = 4, 16
"""Least and most rows of a drawing with facts under it."""
_PLACES = 20


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
    rows = len(CATEGORIES) if height >= 2 * len(CATEGORIES) + 2 else len(CATEGORIES) // 2
    lines = [_moment_line(moment, report, window, unit, width), *category_lines(moment.by_category, unit, width, rows)]
    if moment.blocks:
        heading, *blocks = blocks_table(moment.blocks, unit, width)
        lines += [heading, *(fit(block, width) for block in blocks)]
    return lines[:height]


def _moment_line(moment: Moment, report: MemoryReport, window: chart.EventWindow, unit: ByteUnit, width: int) -> Line:
    """The moment in one row; without room the share of the peak is left out first."""
    live = Span(f"{unit.text(moment.total_bytes)} live", "strong")
    phase = Span(moment.phase or "before the step", chart.phase_role(moment.phase))
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
    """Everything about a moment, for a window."""
    report = timeline.report
    unit = ByteUnit.for_largest(report.peak_bytes)
    moment = timeline.at(event)
    lines = [
        _moment_line(moment, report, chart.EventWindow.whole(report.events, 1), unit, width),
        *category_lines(moment.by_category, unit, width, len(CATEGORIES)),
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
