"""Records events: first in the log, then for the watcher."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from cs336_tui.events.events import Event, Notice
from cs336_tui.session.log import LogError, LogLost, SessionLog, default_session_dir

Sink = Callable[[Sequence[Event]], None]


class SessionRecorder:
    """Writes events to the session's log, then to `sink`, in one order, from any thread. If a write fails or the file
    is gone, the log goes on, whole, in the first of `refuges` that takes it, else nowhere; `problem` says so."""

    def __init__(
        self, directory: Path, session: str, sink: Sink, *, refuges: Callable[[Path], Iterable[Path]] | None = None
    ) -> None:
        self._directory, self.session, self._sinks = directory, session, [sink]
        self._refuges = refuges or refuges_from
        self._lock = threading.Lock()
        self._said: set[str] = set()
        self._log: SessionLog | None = None
        self.is_open = False
        """True from `open` to `close`, also if the log is lost."""
        self.problem: str | None = None
        """One line on a log that could not be written to its end."""

    def listen(self, sink: Sink) -> None:
        """Pass events to this sink too, after the others."""
        with self._lock:
            self._sinks.append(sink)

    def unlisten(self, sink: Sink) -> None:
        """Pass events to this sink no more."""
        with self._lock:
            self._sinks = [each for each in self._sinks if each != sink]

    @property
    def path(self) -> Path:
        """The log's path, also before it exists; it changes when the log goes on elsewhere."""
        return self._directory / f"{self.session}.jsonl"

    def open(self, *, resume: bool = False, take_over: bool = False) -> None:
        """Create the log, or with `resume` go on with the one that is there. Raises `LogError`."""
        with self._lock:
            if self._log is None:
                self._log = SessionLog(self.path, resume=resume, take_over=take_over)
                self.is_open = True

    def record(self, events: Sequence[Event]) -> None:
        with self._lock:
            if self._log is not None:
                try:
                    self._log.write(events)
                except LogLost as lost:
                    events = [*events, self._go_on_elsewhere(self._log, lost, events)]
            self._tell(events)

    def _tell(self, events: Sequence[Event]) -> None:
        for sink in self._sinks:
            sink(events)

    def _go_on_elsewhere(self, log: SessionLog, lost: LogLost, events: Sequence[Event]) -> Notice:
        """Continue a copy of the log with these events and the notice that is returned, if a place takes it."""
        self._log = None
        for folder in self._refuges(self._directory):
            text = f"session log {log.path}: {lost.reason}; all of it and what follows is in {folder / log.path.name}"
            notice = Notice(at=time.time(), text=text)
            with contextlib.suppress(LogError):
                self._log, self._directory = log.copied_to(folder / log.path.name, [*events, notice]), folder
                break
        else:
            notice = Notice(at=time.time(), text=str(lost))
        self.problem = notice.text
        with contextlib.suppress(OSError):  # what cannot be written is known
            log.close()
        return notice

    def say_once(self, *texts: str) -> None:
        """Pass on a notice of each new text."""
        if new := [text for text in texts if text not in self._said]:
            self._said.update(new)
            self.pass_on([Notice(at=time.time(), text=text) for text in new])

    def pass_on(self, events: Sequence[Event]) -> None:
        """Hand events to the watcher only, in order with recorded ones."""
        with self._lock:
            self._tell(events)

    def close(self) -> None:
        with self._lock:
            self.is_open = False
            if self._log is not None:
                try:
                    self._log.close()
                except OSError as error:  # a network file system may say only now that it is full
                    self.problem = f"session log {self.path}: {error.strerror}; its end may be missing"
                self._log = None


def refuges_from(folder: Path) -> Iterator[Path]:
    """Folders for a log that cannot go on in this one: the default folder, then a new temporary one."""
    usual = default_session_dir()
    if usual.absolute() != folder.absolute():
        yield usual
    with contextlib.suppress(OSError):
        temporary = Path(tempfile.mkdtemp(prefix="cs336-tui-session-"))
        try:
            yield temporary
        finally:
            with contextlib.suppress(OSError):  # it stays where there is something in it
                temporary.rmdir()
