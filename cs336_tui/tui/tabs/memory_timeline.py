"""Memory over the events of a step: the drawing, columns from zero coloured by phase, and the facts of a moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cs336_tui.events.prediction import Prediction
from cs336_tui.events.reports import MemoryReport
from cs336_tui.export.subjects.memory import spaced
from cs336_tui.stats.quantities import ByteUnit, whole_percent
from cs336_tui.tui.charts.bars import AXIS, axis, nice_ceiling, phase_role
from cs336_tui.tui.tabs.memory_tables import block_details, blocks_table, difference
from cs336_tui.tui.widgets.lines import Line, Span, bar, column, facts, fit, line, runs, width_of, wrapped
from cs336_tui.tui.widgets.rows import Page

if TYPE_CHECKING:
    from cs336_tui.analysis.memory import Moment, Timeline


_CURSOR = "strong"
_WITH_PHASES = 5
"""Height from which one row names the phases."""
_SHORTEST_NAME = 4
_SHORTEST = 8
"""Fewest events in sight."""
_Category = TypeVar("_Category", bound=str)
BESIDE = 100
"""Width from which the facts are beside the drawing, not under it."""
_FACTS = 54
_LOWEST, _HIGHEST = 4, 16
"""Least and most rows of a drawing with facts under it."""
_PLACES = 20
_NAMES = len("optimizer state") + 1
_FIGURES = len("12.345 GB 100 %")
_NARROWEST_BAR, _WIDEST_BAR = 6, 40


class Picture(NamedTuple):
    """The drawing; a column shows its highest moment."""

    bytes: Sequence[int]
    phases: Sequence[str]
    """The phase of each column's highest moment."""
    top_bytes: int
    """The top of the axis, the same for every zoom."""
    unit: ByteUnit
    cursor: int | None = None
    marks: tuple[tuple[int, str], ...] = ()
    """Columns of moments that have a name below the axis."""


def room_for_columns(width: int) -> int:
    """The columns of a picture that is `width` characters wide with its axis."""
    return max(width - AXIS, 0)


def memory_timeline(picture: Picture, *, width: int, height: int) -> list[Line]:
    """`height` rows of at most `width` characters; the last one or two have the marks and the phases' names. Few
    columns are drawn wider. The cursor is a line through its column, with ``▲`` below."""
    count, room = len(picture.bytes), room_for_columns(width)
    below = 2 if height >= _WITH_PHASES else 1
    rows = height - below
    if rows < 1 or not 0 < count <= room:
        return []
    places = [place * count // room for place in range(room)] if count < room else list(range(count))
    cursor = places.index(picture.cursor) if picture.cursor is not None else None
    top, unit = nice_ceiling(picture.top_bytes), picture.unit
    columns = [column(min(value, top), top, rows) for value in picture.bytes]
    roles = [phase_role(picture.phases[place]) for place in places]
    lines: list[Line] = []
    for row in range(rows):
        chars = [columns[place][row] for place in places]
        styles = list(roles)
        if cursor is not None:
            styles[cursor] = _CURSOR
            if chars[cursor] == " ":
                chars[cursor] = "│"
        half = f"{top / unit.bytes / 2:g}" if rows >= _WITH_PHASES and row == rows // 2 else ""
        label = f"{top / unit.bytes:g} {unit.name}" if row == 0 else "0" if row == rows - 1 else half
        lines.append((axis(label), *runs(chars, styles)))
    margin = Span(" " * AXIS)
    lines.append((margin, *_marked(picture.marks, places, cursor)))
    if below == 2:
        lines.append((margin, *_names([picture.phases[place] for place in places])))
    return lines


def _marked(marks: Sequence[tuple[int, str]], places: Sequence[int], cursor: int | None) -> list[Span]:
    """A tick under each mark, with its name beside it if it fits: left of the first, right of the others."""
    width = len(places)
    row = [" "] * width
    named: dict[int, str] = {}
    for marked, name in sorted(marks):
        place = places.index(marked)
        named[place] = f"{named[place]}, {name}" if place in named else name
    ticks = sorted(named)
    for place in ticks:
        row[place] = "╵"
    for order, place in enumerate(ticks):
        name = named[place]
        left, right = place - len(name), place + 1
        for start in (left, right) if order == 0 and len(ticks) > 1 else (right, left):
            if start >= 0 and start + len(name) <= width and not "".join(row[start : start + len(name)]).strip():
                row[start : start + len(name)] = name
                break
    if cursor is not None:
        row[cursor] = "▲"
    return runs(row, [_CURSOR if place == cursor else "muted" for place in range(width)])


def _names(phases: Sequence[str]) -> Iterator[Span]:
    """Each phase's name where it begins, cut to its stretch, or left out if the stretch is too short."""
    for phase, run in groupby(phases):
        width = len(list(run))
        name = phase[: width - 1]
        yield Span((name if len(name) >= _SHORTEST_NAME or name == phase else "").ljust(width), phase_role(phase))


class EventWindow(NamedTuple):
    """The events in sight, from `first` up to, not including, `end`, of `events`; in equal columns."""

    first: int
    end: int
    events: int
    columns: int

    @classmethod
    def whole(cls, events: int, room: int) -> EventWindow:
        """All events in at most `room` columns; an event has at most one column."""
        events = max(events, 1)
        return cls(0, events, events, max(min(room, events), 1))

    @property
    def is_whole(self) -> bool:
        return self.end - self.first >= self.events

    def edge(self, column: int) -> int:
        """The first event of a column; the window's end for the column after the last."""
        return self.first + (self.end - self.first) * column // self.columns

    def column_of(self, event: int) -> int | None:
        """The column of an event; None if it is out of sight."""
        if not self.first <= event < self.end:
            return None
        column = (event - self.first) * self.columns // (self.end - self.first)
        while event >= self.edge(column + 1):
            column += 1
        return column

    def in_room(self, room: int) -> EventWindow:
        """The same events in another number of columns."""
        return self._replace(columns=max(min(room, self.end - self.first), 1))

    def zoomed(self, factor: float, event: int, room: int) -> EventWindow:
        """A window `factor` times as long in which `event` keeps its place."""
        length = max(min(max(round((self.end - self.first) * factor), _SHORTEST), self.events), 1)
        place = (event - self.first) / (self.end - self.first)
        return self._from(event - int(place * length), length).in_room(room)

    def following(self, event: int) -> EventWindow:
        """This window; if `event` is outside, one of the same length around it."""
        if self.first <= event < self.end:
            return self
        length = self.end - self.first
        return self._from(event - length // 2, length)

    def _from(self, first: int, length: int) -> EventWindow:
        first = min(max(first, 0), self.events - length)
        return self._replace(first=first, end=first + length)


def summary(report: MemoryReport, prediction: Prediction | None, width: int) -> Line:
    """The peak as recorded, that of activations, the predicted one, the allocator's own, and the recorder: each whole
    or, where `width` has no room for it, not at all."""
    unit = ByteUnit.for_largest(report.peak_bytes)
    found = next((span.phase for span in report.phases if span.first <= report.peak_event < span.end), "")
    when = f" in {found}" if found else f" before the {report.subject}"
    peak = line((f"peak {unit.text(report.peak_bytes)}", "strong"), when)
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


def columns_in(width: int) -> int:
    return room_for_columns(_picture_width(width))


def _picture_width(width: int) -> int:
    return width - max(_FACTS, width * 2 // 5) - 2 if width >= BESIDE else width


def timeline_page(timeline: Timeline, window: EventWindow, event: int, width: int, height: int) -> Page:
    """The drawing with its cursor at `event`, and the facts of that moment; at most `height` rows."""
    report, moment = timeline.report, timeline.at(event)
    unit = ByteUnit.for_largest(report.peak_bytes)
    picture = picture_of(timeline, window, event)
    wide = _picture_width(width)
    if wide < width:
        drawn = memory_timeline(picture, width=wide, height=height)
        facts = moment_lines(moment, report, window, unit, width - wide - 2, height)
        beside = zip_longest(drawn, facts, fillvalue=())
        return Page(tuple((*left, Span(" " * (wide + 2 - width_of(left))), *right) for left, right in beside))
    high = min(max(height // 2, _LOWEST), _HIGHEST)
    drawn = memory_timeline(picture, width=width, height=high) if height > _LOWEST else []
    return Page((*drawn, *moment_lines(moment, report, window, unit, width, height - len(drawn))))


def picture_of(timeline: Timeline, window: EventWindow, event: int) -> Picture:
    report = timeline.report
    moments = timeline.moments(window.columns, window.first, window.end)
    forward = [span.end - 1 for span in report.phases if span.phase == "forward" and span.end > span.first]
    named = [(report.peak_event, "peak"), *([(max(forward), "end of forward")] if forward else [])]
    return Picture(
        tuple(map(int, timeline.live_total[moments])),
        [timeline.phase_at(int(moment)) for moment in moments],
        report.peak_bytes,
        ByteUnit.for_largest(report.peak_bytes),
        window.column_of(event),
        tuple((place, name) for event, name in named if (place := window.column_of(event)) is not None),
    )


def moment_lines(
    moment: Moment, report: MemoryReport, window: EventWindow, unit: ByteUnit, width: int, height: int
) -> list[Line]:
    """Live memory at a moment: the total, by category, the largest allocations; at most `height` rows."""
    categories = len(moment.by_category)
    rows = categories if height >= 2 * categories + 2 else -(-categories // 2)
    lines = [_moment_line(moment, report, window, unit, width), *category_lines(moment.by_category, unit, width, rows)]
    if moment.blocks:
        largest = blocks_table(moment.blocks, report.subject, width)
        lines += [*largest.heading, *(fit(block, width) for block in largest.rows)]
    return lines[:height]


def _moment_line(moment: Moment, report: MemoryReport, window: EventWindow, unit: ByteUnit, width: int) -> Line:
    """The moment in one row; without room the share of the peak is left out first."""
    live = Span(f"{unit.text(moment.total_bytes)} live", "strong")
    phase = Span(moment.phase or f"before the {report.subject}", phase_role(moment.phase))
    event = Span(f" · event {moment.event + 1:,} of {report.events:,}", "muted")
    share = moment.total_bytes / report.peak_bytes if report.peak_bytes else 0.0
    of_peak = Span(f", {whole_percent(share)} of the peak", "muted")
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
        _moment_line(moment, report, EventWindow.whole(report.events, 1), unit, width),
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
