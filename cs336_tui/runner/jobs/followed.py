"""A job that is followed, and its logs as they grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cs336_tui.events import events as ev
from cs336_tui.events.codec import coalesce, from_line
from cs336_tui.events.events import Event
from cs336_tui.runner.jobs import folder as files
from cs336_tui.runner.jobs.fold import JobFold
from cs336_tui.runner.jobs.folder import MOST_BYTES, read_shared
from cs336_tui.runner.jobs.job import JobStatus
from cs336_tui.session.log import DAMAGE, LogError, line_prefix

_NOT_THE_SESSIONS = tuple(line_prefix(kind) for kind in (ev.SessionStarted, ev.CellsQueued, ev.QueueOrdered))
"""The lines of a job's log of which the session has its own."""


class JobLog:
    """A log of a job: its place, how far it has been read, and its fold."""

    def __init__(self, path: Path, fold: JobFold) -> None:
        self.path, self.fold = path, fold
        self.offset = self.lines = 0
        self.damaged: int | None = None
        """The first line that could not be read."""

    def read(self, read: Callable[[Path, int], bytes], *, to_its_end: bool = False) -> list[ev.Event]:
        """The session's events for whole lines that are new. Bytes that a file system has not delivered yet are zeros:
        unless the log is read `to_its_end`, they and what follows are waited for."""
        data = read(self.path, self.offset)
        while len(data) >= files.MOST_BYTES and (more := read(self.path, self.offset + len(data))):
            data += more
        if not to_its_end and (hole := data.find(b"\0")) >= 0:
            data = data[:hole]
        whole = data.rfind(b"\n") + 1
        if not whole:
            return []
        self.offset += whole
        return self.fold.take(coalesce(self._events(data[:whole])))

    def _events(self, lines: bytes) -> Iterator[ev.Event]:
        for line in lines.splitlines():
            self.lines += 1
            if line.strip() and not line.startswith(_NOT_THE_SESSIONS):
                try:
                    yield from_line(line)
                except DAMAGE:
                    self.damaged = self.damaged or self.lines


class FollowedJob:
    """A job that may still write, or whose end is not told yet."""

    def __init__(
        self,
        submitted: ev.JobSubmitted,
        left: set[int],
        logs: Sequence[JobLog],
        settled: bool,
    ) -> None:
        self.submitted, self.left, self.logs = submitted, left, logs
        self.told: tuple[str, str, str] = ("", "", "")
        self.status: JobStatus | None = None
        self.settled = settled
        """True of a job whose end a former watcher has told; its log may hold more than that one saw."""
        self.grown_at = self.over_at = self.ended_at = self.heard_at = 0.0
        self.has_run = False
        """True once the launcher has said that it runs."""

    @property
    def is_closed(self) -> bool:
        """True if all its logs are closed."""
        return all(log.fold.ended for log in self.logs)

    @property
    def running(self) -> set[int]:
        return {cell for log in self.logs for cell in log.fold.running}


class Tail:
    """The events of a log, those of whole lines that are new since the last `read`. A log that goes on after a line
    that cannot be read is damaged: `LogError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Event]:
        data = read_shared(self._path, self._offset)
        while len(data) >= MOST_BYTES and (more := read_shared(self._path, self._offset + len(data))):
            data += more
        if (hole := data.find(b"\0")) >= 0:  # not delivered yet by a network file system
            data = data[:hole]
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        try:
            return [from_line(line) for line in data[:whole].splitlines() if line.strip()]
        except DAMAGE as error:
            raise LogError(f"{self._path}: damaged ({error})") from None
