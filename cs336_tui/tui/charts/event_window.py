"""Which of a recording's events are in sight, and which column stands for which of them."""

from __future__ import annotations

from typing import NamedTuple

_SHORTEST = 8
"""Events that can fill the screen."""


class EventWindow(NamedTuple):
    """The events from `first` up to, not including, `end`, out of `events`; in equal columns."""

    first: int
    end: int
    events: int
    columns: int

    @classmethod
    def whole(cls, events: int, room: int) -> EventWindow:
        """All events in at most `room` columns; there is never more than one column for an event."""
        events = max(events, 1)
        return cls(0, events, events, max(min(room, events), 1))

    @property
    def is_whole(self) -> bool:
        return self.end - self.first >= self.events

    def edge(self, column: int) -> int:
        """The first event of a column; of the column behind the last one, the window's end."""
        return self.first + (self.end - self.first) * column // self.columns

    def column_of(self, event: int) -> int | None:
        """The column that an event belongs to; None when it is out of sight."""
        if not self.first <= event < self.end:
            return None
        column = (event - self.first) * self.columns // (self.end - self.first)
        while event >= self.edge(column + 1):
            column += 1
        return column

    def in_room(self, room: int) -> EventWindow:
        """The same stretch in another room."""
        return self._replace(columns=max(min(room, self.end - self.first), 1))

    def zoomed(self, factor: float, event: int, room: int) -> EventWindow:
        """A stretch `factor` times as long in which `event` keeps its place, at most everything."""
        length = max(min(max(round((self.end - self.first) * factor), _SHORTEST), self.events), 1)
        place = (event - self.first) / (self.end - self.first)
        return self._from(event - int(place * length), length).in_room(room)

    def following(self, event: int) -> EventWindow:
        """This window, or the one of the same length with `event` in its middle when that has left this one."""
        if self.first <= event < self.end:
            return self
        length = self.end - self.first
        return self._from(event - length // 2, length)

    def _from(self, first: int, length: int) -> EventWindow:
        first = min(max(first, 0), self.events - length)
        return self._replace(first=first, end=first + length)
