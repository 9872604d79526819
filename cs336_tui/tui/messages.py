"""What worker threads tell the app."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from cs336_tui.tui.session import Session


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


class Replayed(Message):
    """A replay that does not wait is at its end: all that its log holds."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
