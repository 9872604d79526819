"""What worker threads tell the app."""

from __future__ import annotations

from textual.message import Message


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
