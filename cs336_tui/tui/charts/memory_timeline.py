"""Live memory over the events of a step as columns from zero, coloured by phase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from cs336_tui.stats.quantities import ByteUnit
from cs336_tui.tui.charts.bars import AXIS, axis, nice_ceiling, phase_role
from cs336_tui.tui.widgets.lines import Line, Span, column, runs

_CURSOR = "strong"
_WITH_PHASES = 5
"""Height from which one row names the phases."""
_SHORTEST_NAME = 4


class EventMark(NamedTuple):
    """A moment named below the axis."""

    column: int
    name: str


class Picture(NamedTuple):
    """The drawing; a column shows its highest moment."""

    bytes: Sequence[int]
    phases: Sequence[str]
    """The phase of each column's highest moment."""
    top_bytes: int
    """The top of the axis, the same for every zoom."""
    unit: ByteUnit
    cursor: int | None = None
    marks: tuple[EventMark, ...] = ()


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


def _marked(marks: Sequence[EventMark], places: Sequence[int], cursor: int | None) -> list[Span]:
    """A tick under each mark, with its name beside it if it fits: left of the first, right of the others."""
    width = len(places)
    row = [" "] * width
    named: dict[int, str] = {}
    for mark in sorted(marks):
        place = places.index(mark.column)
        named[place] = f"{named[place]}, {mark.name}" if place in named else mark.name
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


_SHORTEST = 8
"""Fewest events in sight."""


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
