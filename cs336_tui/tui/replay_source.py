"""Plays the log of a session again, on a thread of its own; talks to the app by messages only."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from textual.message import Message

from cs336_tui.session.load import Pace, replay
from cs336_tui.session.log import LogError
from cs336_tui.tui.live_source import Post, RunEnded, Sink, thread
from cs336_tui.tui.session import Session, read_session

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Speeds of a replay that the keys go through."""


@dataclass(eq=False, repr=False)
class Replayed(Message):
    """A replay that does not wait is at its end: all that its log holds."""

    session: Session


class ReplaySource:
    """Plays a session log; its pace can be changed while it plays."""

    def __init__(self, path: Path, sink: Sink, post: Post, speed: float) -> None:
        self.path, self.pace = path, Pace(speed)
        self._sink, self._post = sink, post
        self._stop = threading.Event()
        self._at_end = False

    @property
    def mode(self) -> str:
        """Pace of the replay, in words."""
        if self._at_end:
            return "replay, at its end"
        return "replay paused" if self.pace.paused else f"replay ×{self.pace.speed:g}"

    def begin(self) -> None:
        thread("replay", self._play)

    def close(self) -> None:
        self._stop.set()

    def change_speed(self, by: int) -> None:
        """The next faster (1) or slower (-1) speed."""
        nearest = min(range(len(SPEEDS)), key=lambda index: abs(SPEEDS[index] - self.pace.speed))
        self.pace.speed = SPEEDS[min(max(nearest + by, 0), len(SPEEDS) - 1)]

    def _play(self) -> None:
        error: str | None = None
        try:
            if self.pace.speed or self.pace.paused:
                replay(self.path, self._sink, stop=self._stop, pace=self.pace)
            else:
                session = read_session(self.path)
                error = session.problem
                self._post(Replayed(session))
        except LogError as unreadable:
            error = str(unreadable)
        self._at_end = True
        if not self._stop.is_set():
            self._post(RunEnded(error))
