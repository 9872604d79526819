"""The sessions of a folder, read on threads, each log no more often than it changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
from textual.message_pump import MessagePump

from cs336_tui.session import store
from cs336_tui.session.lock import writer_of
from cs336_tui.session.log import LogError
from cs336_tui.session.store import SessionInfo
from cs336_tui.tui.background import in_background
from cs336_tui.tui.session import Session, read_session

_Stamp = tuple[int, int]


class Library:
    """Every method returns at once; what it read goes to `then`, among the messages of `pump`."""

    def __init__(self, pump: MessagePump, folder: Path) -> None:
        self._pump, self.folder = pump, folder
        self._reading = threading.Lock()
        self._infos: dict[Path, tuple[_Stamp, SessionInfo]] = {}
        self._sessions: dict[Path, tuple[_Stamp, Session]] = {}

    def list(self, then: Callable[[tuple[tuple[SessionInfo, ...], str]], object]) -> None:
        """All sessions, newest first, and a line that says why not, empty when all is well."""
        in_background(self._pump, self._list, then)

    def open(self, path: Path, then: Callable[[Session | str], object]) -> None:
        """One session with all its results, or a line that says why it cannot be read."""
        in_background(self._pump, lambda: self._open(path), then)

    def change(self, act: Callable[[], None], then: Callable[[str], object]) -> None:
        """Name, annotate or delete a session by `act`; a line that says why not, empty when it was done."""

        def changed() -> str:
            try:
                act()
            except (LogError, OSError) as error:
                return str(error)
            return ""

        in_background(self._pump, changed, then)

    def _list(self) -> tuple[tuple[SessionInfo, ...], str]:
        with self._reading:
            try:
                found = tuple(self._info(path) for path in reversed(store.folder_sessions(self.folder)))
            except OSError as error:
                return (), f"{self.folder}: {error.strerror}"
            self._infos = {info.path: self._infos[info.path] for info in found}
            return found, ""

    def _info(self, path: Path) -> SessionInfo:
        stamp = _stamp(path)
        known = self._infos.get(path)
        if known is None or known[0] != stamp:
            known = self._infos[path] = (stamp, store.info_of(path))
        writer = writer_of(path)  # may have gone since, with the log as it was
        return msgspec.structs.replace(known[1], writer=str(writer) if writer else None)

    def _open(self, path: Path) -> Session | str:
        with self._reading:
            try:
                stamp = _stamp(path)
                known = self._sessions.get(path)
                if known is None or known[0] != stamp:
                    self._sessions[path] = known = (stamp, read_session(path))
            except OSError as error:
                return f"{path.name}: {error.strerror}"
            except Exception as error:  # on a thread: nobody else would hear of it
                return f"{path.name}: cannot be read: {type(error).__name__}: {error}"
            return known[1]


def _stamp(path: Path) -> _Stamp:
    """Changes whenever the log grows. Raises OSError."""
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size
