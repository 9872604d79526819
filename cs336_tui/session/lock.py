"""Keeps one writer a session: a small file beside the log names its host, PID and start. It is made by exclusive
creation alone, so that it holds on a network file system too. filelock's SoftFileLock (4.2) does not replace it: on NFS
it cannot take over a dead process's lock, and nowhere the empty file of one that died before writing it."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Annotated

import msgspec

from cs336_tui.config.processes import lives
from cs336_tui.config.reading import UNREADABLE, read_small


class Writer(msgspec.Struct, frozen=True, kw_only=True):
    """The writer of a session. `since` is the start of the process (Unix seconds), as PIDs are reused."""

    host: str
    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    since: float
    token: str

    @property
    def may_live(self) -> bool:
        """False if the process is known to have ended; a process of another host may always live."""
        return self.host != socket.gethostname() or lives(self.pid, self.since)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class SessionInUse(Exception):
    """Another process writes this session, or may write it."""

    def __init__(self, writer: Writer | None) -> None:
        super().__init__(f"is being written by {writer or 'another process'}")


def lock_path(log: Path) -> Path:
    """The file that names the writer of this log."""
    return log.with_suffix(".writer")


def writer_of(log: Path) -> Writer | None:
    """The present writer of this log; None without one, or if its file cannot be read."""
    writer = _read(lock_path(log))
    return writer if writer and writer.may_live else None


class SessionLock:
    """Held from `acquire` to `release` by the one process that appends to `log`."""

    def __init__(self, log: Path) -> None:
        self.path = lock_path(log)
        self._own: Writer | None = None

    def acquire(self, *, take_over: bool = False) -> None:
        """Become the writer, also after one that died; `take_over`: after any. Raises `SessionInUse` or OSError."""
        import psutil

        own = Writer(
            host=socket.gethostname(), pid=os.getpid(), since=psutil.Process().create_time(), token=os.urandom(8).hex()
        )
        # Written whole before it gets its name, so that nobody reads half a lock.
        draft = self.path.with_suffix(f".writer-{own.token}")
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(msgspec.json.encode(own))
            for _ in range(2):
                try:
                    _name(draft, self.path)
                except FileExistsError:
                    self._clear(take_over=take_over)
                else:
                    self._own = own
                    return
            raise SessionInUse(writer_of(self.path))
        finally:
            draft.unlink(missing_ok=True)

    def _clear(self, *, take_over: bool) -> None:
        """Remove a dead writer's lock; of two that try at once, only one can rename it."""
        aside = self.path.with_suffix(f".writer-{os.urandom(8).hex()}")
        before = _read(self.path)
        if before is not None and before.may_live and not take_over:
            raise SessionInUse(before)
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(aside)
            if _read(aside) != before:  # somebody else was quicker, and this lock is theirs
                with contextlib.suppress(FileExistsError):
                    _name(aside, self.path)
                aside.unlink()
                raise SessionInUse(_read(self.path))
            aside.unlink()

    def release(self) -> None:
        if self._own is not None and _read(self.path) == self._own:  # it may have been taken over
            self.path.unlink(missing_ok=True)
        self._own = None


def _read(path: Path) -> Writer | None:
    """The writer named in a lock; None if it cannot be read."""
    try:
        return msgspec.json.decode(read_small(path), type=Writer)
    except UNREADABLE:
        return None


def _name(file: Path, path: Path) -> None:
    """Give the file the name `path`. Raises FileExistsError if something has it."""
    try:
        os.link(file, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        with path.open("xb") as copy:
            copy.write(file.read_bytes())
