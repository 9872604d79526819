"""Where the events of a session come from that this app does not run: a log that is played again, or one that others
write. Each has a thread of its own and talks to the app by messages."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from textual.message import Message

from cs336_tui.config.axis import UserError
from cs336_tui.runner.trust import Untrusted
from cs336_tui.session.load import Pace, replay
from cs336_tui.session.log import LogError
from cs336_tui.tui.live_source import Post, RunEnded, Sink, Trouble, thread
from cs336_tui.tui.session import Session, read_session

if TYPE_CHECKING:
    from cs336_tui.runner.jobs.bench import JobsBench

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


@dataclass(eq=False, repr=False)
class WatchEnded(Message):
    """A watched session is over, or cannot be followed any more for the reason given, or not without an answer of the
    person's."""

    log: Path
    error: str | None = None
    untrusted: Untrusted | None = None


class WatchSource:
    """Follows a session until it is over or this is closed, which changes nothing for the session. A session that
    nobody writes is written from here: the logs of its jobs are folded in."""

    def __init__(self, bench: JobsBench, post: Post) -> None:
        self.bench, self._post = bench, post
        self._closing = threading.Lock()

    def begin(self, *, resume: bool = False) -> None:
        """Follow it; with `resume` the cells without a result are submitted anew before."""
        thread("watch", lambda: self._work(resume=resume))

    def cancel(self) -> None:
        """Have its jobs cancelled; their ends are told as they come."""

        def cancel() -> None:
            try:
                self.bench.cancel()
            except (UserError, OSError) as error:
                self._post(Trouble(str(error)))

        thread("cancel", cancel)

    def close(self) -> None:
        """Follow it no more; blocks up to some seconds. Safe to call twice and from any thread."""
        with self._closing:
            self.bench.close()

    def _work(self, *, resume: bool) -> None:
        error: str | None = None
        untrusted: Untrusted | None = None
        try:
            if resume:
                self._resume()
            else:
                self.bench.watch()
            self.bench.work()
        except Untrusted as refused:
            untrusted = refused
        except (UserError, OSError) as refused:
            error = str(refused)
        except Exception as broken:  # the person must hear of it, whatever it was
            error = f"the session cannot be followed: {type(broken).__name__}: {broken}"
        self._post(WatchEnded(self.bench.log_path, error, untrusted))

    def _resume(self) -> None:
        from cs336_tui.runner.jobs.job import JobRequest

        self.bench.resume(JobRequest(session=self.bench.session, job="", cells=()))
