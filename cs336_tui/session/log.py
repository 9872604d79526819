"""The append-only session log: one JSONL file per session, every finished step in it."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import platformdirs

from cs336_tui.events import SCHEMA, Event, SessionStarted, from_line, to_line


class LogError(Exception):
    """A log that cannot be read or written; the message names the file, the place and the remedy."""


def default_session_dir() -> Path:
    """Where this platform keeps user data."""
    return platformdirs.user_data_path("cs336-tui", appauthor=False) / "sessions"


def new_session_id(now: float | None = None) -> str:
    """A name that sorts by time and is unique without asking the disk."""
    return time.strftime("%Y-%m-%dT%H-%M-%S", time.localtime(now)) + "-" + secrets.token_hex(2)


class SessionLog:
    """Appends events to ``DIRECTORY/SESSION.jsonl``, unbuffered, so that a killed app loses no written step.

    Raises `LogError` when the directory or file cannot be created or a write fails. An existing file is never
    reused. A failed write leaves no half line behind.
    """

    def __init__(self, directory: Path, session: str) -> None:
        self.path = directory / f"{session}.jsonl"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("xb", buffering=0)
        except OSError as error:
            raise LogError(f"session log {self.path}: {error.strerror}; choose another --session-dir") from None

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


class LogReader:
    """The events of a log, oldest first.

    A last line that was cut while being written (the app was killed) is left out and remembered in `torn`;
    anything else that is not an event raises `LogError` naming the line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = False

    def __iter__(self) -> Iterator[Event]:
        started = False
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if not line.strip():
                        continue
                    try:
                        event = from_line(line)
                    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
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
