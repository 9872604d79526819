"""Writes and reads the session log: one append-only JSONL file a session, with every finished step.

The recorder puts events first in the log, then tells the watcher.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import platformdirs

from cs336_tui.config.axis import UserError
from cs336_tui.config.reading import open_regular
from cs336_tui.events.codec import from_line, to_line
from cs336_tui.events.events import SCHEMA, Event, Notice, SessionStarted
from cs336_tui.session.lock import SessionInUse, SessionLock
from cs336_tui.stats.quantities import counted

FILES_SUFFIX = ".files"
"""Ends the name of the folder beside a log that holds what its reports saved: traces and memory snapshots."""
JOBS_SUFFIX = ".jobs"
"""Ends the name of the folder beside a log that holds the requests, logs and output of its jobs."""
_LOG = "a session log (JSONL written by cs336-tui)"
_TAIL_BYTES = 1 << 16
TORN = "the last line was cut while being written; everything before it is shown"
DAMAGE = (msgspec.MsgspecError, UnicodeDecodeError)
"""Errors of `from_line` for a line that is not an event."""


class LogError(UserError):
    """A log cannot be read or written; the message names the file, the place and the remedy."""


class NoRoomForLog(LogError):
    """A log cannot be opened because the disk or the quota is full."""

    exit_code = 1


class LogLost(LogError):
    """A log cannot be written any more; `reason` says why, without the path."""

    exit_code = 1

    def __init__(self, path: Path, reason: str) -> None:
        self.reason = reason
        super().__init__(f"session log {path}: {reason}; later steps are not saved")


def default_session_dir() -> Path:
    """The folder of sessions in this platform's user data."""
    return platformdirs.user_data_path("cs336-tui", appauthor=False) / "sessions"


def new_session_id(now: float | None = None) -> str:
    """A name that sorts by time, to 1/4096 s, and is unique without asking the disk."""
    now = time.time() if now is None else now
    return f"{time.strftime('%Y-%m-%dT%H-%M-%S', time.localtime(now))}-{int(now % 1 * 4096):03x}{os.urandom(2).hex()}"


def line_prefix(kind: type[msgspec.Struct]) -> bytes:
    """The beginning of every line with an event of this kind."""
    return f'{{"type":"{kind.__name__}"'.encode()


class SessionLog:
    """Appends events to a session's file, unbuffered, so that a killed app loses no written step. A new log never
    reuses a file; only its owner can read it and its new folder. `resume` goes on with one, less a cut last line. One
    process at a time writes it; `take_over` replaces one that is gone. Raises `LogError`."""

    def __init__(self, path: Path, *, resume: bool = False, take_over: bool = False) -> None:
        self.path = path
        self._absolute = path.absolute()  # its path also after a model in this process has changed the working folder
        self._lock = SessionLock(self._absolute)
        try:
            if not resume:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire(take_over=take_over)
            flags = os.O_RDWR if resume else os.O_RDWR | os.O_CREAT | os.O_EXCL
            self._file = os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0)
        except SessionInUse as error:
            remedy = "stop that one first, or if it is surely gone: --take-over"
            raise LogError(f"session {path.stem} {error}; {remedy}") from None
        except OSError as error:
            self._lock.release()
            elsewhere = "" if resume else "choose another --session-dir"
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                remedy = f"free some space{elsewhere and ' or '}{elsewhere}"
                raise NoRoomForLog(f"session log {path}: {error.strerror}; {remedy}") from None
            raise LogError(f"session log {path}: {error.strerror}{elsewhere and '; '}{elsewhere}") from None
        if resume:
            try:
                next(iter(LogReader(path)))  # nothing is done to a file that is no session log
                self._mend()
            except (LogError, OSError) as error:
                self.close()
                raise error if isinstance(error, LogError) else LogError(f"{path}: {error.strerror}") from None
        self._end = self._file.tell()  # end of the last whole write, in bytes

    def _mend(self) -> None:
        """Cut the file after its last whole event."""
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
        """Append the events. Raises `LogLost` when they are not all in the file, which then ends with a whole line."""
        data = b"".join(map(to_line, events))
        start, written = self._end, 0
        self._check_there()
        try:
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.seek(start + data.rfind(b"\n", 0, written) + 1)
                self._file.truncate()
            raise LogLost(self.path, error.strerror or str(error)) from None
        self._end = start + written

    def _check_there(self) -> None:
        opened = os.fstat(self._file.fileno())
        try:
            is_there = os.path.samestat(opened, os.stat(self._absolute))  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            is_there = False
        except OSError:  # an unreadable folder says nothing of the file
            is_there = True
        if not is_there:
            raise LogLost(self.path, "it was removed while it was written")
        if opened.st_size < self._end:
            raise LogLost(self.path, "another program has shortened it")

    def copied_to(self, path: Path, more: Iterable[Event]) -> SessionLog:
        """A new log with the whole writes of this one, and more events. Raises `LogError`."""
        copy = SessionLog(path)
        try:
            while copy._end < self._end:
                data = os.pread(self._file.fileno(), min(1 << 20, self._end - copy._end), copy._end)
                if not data:
                    raise LogLost(self.path, "its beginning is gone")
                copy._end += os.write(copy._file.fileno(), data)
            copy.write(more)
        except BaseException as error:
            copy.close()
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise LogLost(path, error.strerror or str(error)) from None
            raise
        return copy

    def close(self) -> None:
        self._file.close()
        self._lock.release()


class SkippedLines(NamedTuple):
    """Neighbouring lines of a log that were not decoded: their place in the file, in bytes."""

    start: int
    end: int


class LogReader:
    """The events of a log, oldest first. A last line that was cut sets `torn`; any other damage raises `LogError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = False

    def __iter__(self) -> Iterator[Event]:
        return self.without()

    def without(self, *kinds: type[Event]) -> Iterator[Event]:
        """As iterating, but for events of these kinds, which are not decoded."""
        events = self.skim(tuple(map(line_prefix, kinds)))
        return (event for event in events if not isinstance(event, SkippedLines))

    def skim(self, pass_over: tuple[bytes, ...]) -> Iterator[Event | SkippedLines]:
        """As iterating, but lines that begin with one of `pass_over` (`line_prefix`) are not decoded."""
        started = False
        number = end = 0
        try:
            with open_regular(self.path) as file:
                for line in file:
                    number += 1
                    start, end = end, end + len(line)
                    if started and line.startswith(pass_over):
                        for line in file:  # a million times in a long log
                            if not line.startswith(pass_over):
                                break
                            number += 1
                            end += len(line)
                        else:
                            self.torn = not line.endswith(b"\n")
                            line = b""
                        yield SkippedLines(start, end)
                        number += 1
                        end += len(line)
                    if not line.strip():
                        continue
                    if not started:
                        self._check_schema(line)
                    try:
                        event = from_line(line)
                    except DAMAGE as error:
                        if not started:
                            raise LogError(f"{self.path}, line {number}: not {_LOG}") from None
                        if not line.endswith(b"\n"):
                            self.torn = True
                            return
                        intact = f"{counted(number - 1, 'line')} before it intact"
                        raise LogError(f"{self.path}, line {number}: damaged ({error}); {intact}") from None
                    if not (started or isinstance(event, SessionStarted)):
                        raise LogError(f"{self.path}, line {number}: not the start of {_LOG}")
                    started = True
                    yield event
        except OSError as error:
            raise LogError(f"{self.path}: {error.strerror}") from None
        if not started:
            raise LogError(f"{self.path}: empty; expected {_LOG}")

    def _check_schema(self, first: bytes) -> None:
        """Raises `LogError` for the first line of a log that is too new to be read here."""
        try:
            header = msgspec.json.decode(first, type=dict)
        except (*DAMAGE, RecursionError):
            return
        schema = header.get("schema")
        if header.get("type") == "SessionStarted" and isinstance(schema, int) and schema > SCHEMA:
            written = f"{self.path}: schema {schema} was written by a newer cs336-tui ({header.get('app')})"
            raise LogError(f"{written}; this one reads up to {SCHEMA}: upgrade to open it")


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

    def listen(self, sink: Sink) -> Callable[[], None]:
        """Pass events to this sink too, after the others, until the answer is called."""

        def unlisten() -> None:
            with self._lock:
                self._sinks = [each for each in self._sinks if each != sink]

        with self._lock:
            self._sinks.append(sink)
        return unlisten

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


class Recording:
    """Whoever has a recorder, by which others know its session."""

    _recorder: SessionRecorder

    @property
    def session(self) -> str:
        return self._recorder.session

    @property
    def log_path(self) -> Path:
        """The session's log, which exists once something has run."""
        return self._recorder.path

    @property
    def log_problem(self) -> str | None:
        """One line on a log that could not be written to its end, else None."""
        return self._recorder.problem


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
