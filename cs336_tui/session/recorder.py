"""Where events become durable: first the log, then whoever watches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cs336_tui.events import Event, Notice
from cs336_tui.session.log import LogError, SessionLog

Sink = Callable[[Sequence[Event]], None]


class Recorder:
    """Writes events to the session's log and hands them on to `sink`, in one order, from any thread.

    The log file is made by `open`, not before. When a later write fails, the run goes on unsaved and one notice
    says so.
    """

    def __init__(self, directory: Path, session: str, sink: Sink) -> None:
        self._directory, self.session, self._sink = directory, session, sink
        self._lock = threading.Lock()
        self._log: SessionLog | None = None

    @property
    def path(self) -> Path:
        """The log's path, also before it exists."""
        return self._directory / f"{self.session}.jsonl"

    @property
    def is_open(self) -> bool:
        return self._log is not None

    def open(self, *, resume: bool = False, take_over: bool = False) -> None:
        """Create the log, or with `resume` go on with the one that is there. Raises `LogError`."""
        with self._lock:
            if self._log is None:
                self._log = SessionLog(self.path, resume=resume, take_over=take_over)

    def record(self, events: Sequence[Event]) -> None:
        with self._lock:
            if self._log is not None:
                try:
                    self._log.write(events)
                except LogError as error:
                    self._log.close()
                    self._log = None
                    events = [*events, Notice(at=time.time(), text=str(error))]
            self._sink(events)

    def pass_on(self, events: Sequence[Event]) -> None:
        """Hand events to the watcher only, in order with those that are recorded."""
        with self._lock:
            self._sink(events)

    def close(self) -> None:
        with self._lock:
            if self._log is not None:
                self._log.close()
                self._log = None
