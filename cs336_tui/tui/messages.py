"""What worker threads tell the app."""

from __future__ import annotations

from collections.abc import Sequence

from textual.message import Message

from cs336_tui.events import Event


class EventsArrived(Message):
    """A batch of events, oldest first."""

    def __init__(self, events: Sequence[Event]) -> None:
        super().__init__()
        self.events = events


class RunEnded(Message):
    """A run is over, or could not begin for the reason given."""

    def __init__(self, error: str | None = None) -> None:
        super().__init__()
        self.error = error


class Trouble(Message):
    """Something outside any cell went wrong; one line for the person."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
