"""The append-only session log: one JSONL file per session, every finished step in it."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import platformdirs

from cs336_tui.events import (
    SCHEMA,
    Event,
    SessionStarted,
    from_line,
    to_line,
)
from cs336_tui.session.lock import SessionInUse, SessionLock

FILES_SUFFIX = ".files"
"""Ends the name of the folder beside a log that holds what its reports saved: traces and memory snapshots."""
_TAIL_BYTES = 1 << 16
TORN = "the last line was cut while being written; everything before it is shown"
DAMAGE = (msgspec.MsgspecError, UnicodeDecodeError)
"""What `from_line` raises for a line that is not an event."""


class LogError(Exception):
    """A log that cannot be read or written; the message names the file, the place and the remedy."""


def default_session_dir() -> Path:
    """Where this platform keeps user data."""
    return platformdirs.user_data_path("cs336-tui", appauthor=False) / "sessions"


def new_session_id(now: float | None = None) -> str:
    """A name that sorts by time and is unique without asking the disk."""
    return time.strftime("%Y-%m-%dT%H-%M-%S", time.localtime(now)) + "-" + secrets.token_hex(2)


def line_prefix(kind: type[msgspec.Struct]) -> bytes:
    """How every line of an event of this kind begins."""
    return f'{{"type":"{kind.__name__}"'.encode()


class SessionLog:
    """Appends events to a session's file, unbuffered, so that a killed app loses no written step.

    A new log never reuses an existing file. With `resume` an existing one goes on; a last line that was cut while
    being written is removed from it. One process at a time writes a log: `take_over` says that the one that is named
    as its writer is known to be gone. Raises `LogError` when the file cannot be had or a write fails. A failed write
    leaves no half line behind.
    """

    def __init__(self, path: Path, *, resume: bool = False, take_over: bool = False) -> None:
        self.path = path
        self._lock = SessionLock(path)
        try:
            if not resume:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(take_over=take_over)
            self._file = path.open("r+b" if resume else "xb", buffering=0)
        except SessionInUse as error:
            raise LogError(
                f"session {path.stem} {error}; stop that one first, or if it is surely gone: --take-over"
            ) from None
        except OSError as error:
            self._lock.release()
            raise LogError(f"session log {path}: {error.strerror}; choose another --session-dir") from None
        if resume:
            try:
                next(iter(LogReader(path)))  # nothing is done to a file that is no session log
                self._mend()
            except (LogError, OSError) as error:
                self.close()
                raise error if isinstance(error, LogError) else LogError(f"{path}: {error.strerror}") from None

    def _mend(self) -> None:
        """Put the file's end after its last whole event."""
        size = self._file.seek(0, os.SEEK_END)
        tail = b""
        while b"\n" not in tail and len(tail) < size:
            start = max(0, size - len(tail) - _TAIL_BYTES)
            self._file.seek(start)
            tail = self._file.read(size - len(tail) - start) + tail
        cut = tail[tail.rfind(b"\n") + 1 :]
        self._file.seek(size)
        if cut:
            try:
                from_line(cut)
            except DAMAGE:
                self._file.truncate(size - len(cut))
                self._file.seek(size - len(cut))
            else:
                self._file.write(b"\n")

    def write(self, events: Iterable[Event]) -> None:
        data = b"".join(map(to_line, events))
        start, written = self._file.tell(), 0
        try:
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.seek(start + data.rfind(b"\n", 0, written) + 1)
                self._file.truncate()
            raise LogError(f"session log {self.path}: {error.strerror}; later steps are not saved") from None

    def sync(self) -> None:
        """Ask the system to put what was written on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        self._lock.release()


class Run(NamedTuple):
    """Neighbouring lines of a log that were passed over: where they are in the file, in bytes."""

    start: int
    end: int


class LogReader:
    """The events of a log, oldest first.

    A last line that was cut while being written (the app was killed) is left out and remembered in `torn`;
    anything else that is not an event raises `LogError` naming the line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = False

    def __iter__(self) -> Iterator[Event]:
        for event in self.skim(()):
            assert not isinstance(event, Run)
            yield event

    def skim(self, pass_over: tuple[bytes, ...]) -> Iterator[Event | Run]:
        """As iterating, except that lines which begin with one of `pass_over` (see `line_prefix`) are not decoded."""
        started = False
        number = end = 0
        try:
            with self.path.open("rb") as file:
                for line in file:
                    number += 1
                    start, end = end, end + len(line)
                    if started and line.startswith(pass_over):
                        for line in file:  # a million times in a long log, so nothing more than needed
                            if not line.startswith(pass_over):
                                break
                            number += 1
                            end += len(line)
                        else:
                            self.torn = not line.endswith(b"\n")
                            line = b""
                        yield Run(start, end)
                        number += 1
                        end += len(line)
                    if not line.strip():
                        continue
                    try:
                        event = from_line(line)
                    except DAMAGE as error:
                        if started and not line.endswith(b"\n"):
                            self.torn = True
                            return
                        raise self._unreadable(number, line, error, started) from None
                    if not started:
                        self._check_first(event, number)
                        started = True
                    yield event
        except OSError as error:
            raise LogError(f"{self.path}: {error.strerror}") from None
        if not started:
            raise LogError(f"{self.path}: empty; expected a session log (JSONL written by cs336-tui)")

    def _check_first(self, event: Event, number: int) -> None:
        if not isinstance(event, SessionStarted):
            raise LogError(f"{self.path}, line {number}: not the start of a session log (JSONL written by cs336-tui)")
        if event.schema > SCHEMA:
            raise LogError(
                f"{self.path}: schema {event.schema} was written by a newer cs336-tui ({event.app}); "
                f"this one reads up to {SCHEMA}: upgrade to open it"
            )

    def _unreadable(self, number: int, line: bytes, error: Exception, started: bool) -> LogError:
        if not started:
            try:
                header = msgspec.json.decode(line, type=dict)
            except msgspec.MsgspecError:
                header = {}
            schema = header.get("schema")
            if header.get("type") == "SessionStarted" and isinstance(schema, int) and schema > SCHEMA:
                return LogError(
                    f"{self.path}: schema {schema} was written by a newer cs336-tui; "
                    f"this one reads up to {SCHEMA}: upgrade to open it"
                )
            return LogError(f"{self.path}, line {number}: not a session log (JSONL written by cs336-tui)")
        return LogError(f"{self.path}, line {number}: damaged ({error}); the {number - 1} lines before it are intact")
