"""The logs of the sessions folder, read on threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cs336_tui.session import store
from cs336_tui.session.lock import writer_of
from cs336_tui.session.log import LogError
from cs336_tui.session.store import SessionInfo
from cs336_tui.tui.background import in_background
from cs336_tui.tui.controllers.protocol import Host
from cs336_tui.tui.session import Session, read_session
from cs336_tui.tui.tabs.sessions import SessionsPane

_T = TypeVar("_T")
_Known = dict[Path, tuple[tuple[object, ...], _T]]
"""A part that was read of a log, with the log's time and size then."""


class Library:
    """Every method returns at once; what it read goes to `then`, among the messages of the app while it is up."""

    def __init__(self, app: Host, folder: Path) -> None:
        self._app, self.folder = app, folder
        self._reading = threading.Lock()
        self._infos: _Known[SessionInfo] = {}
        self._sessions: _Known[Session] = {}

    def list(self, pane: SessionsPane) -> asyncio.Event:
        """Show all sessions in the pane, newest first, or why they cannot be listed; the event is set then. Not
        among the messages of the app, which may wait for that."""
        return in_background(pane, self._list, lambda found: pane.take(*found))

    def open(self, path: Path, then: Callable[[Session | str], object]) -> None:
        """One session with all its results, or a line that says why it cannot be read."""
        self._work(lambda: self._open(path), then)

    def change(self, act: Callable[[], None], then: Callable[[str], object]) -> None:
        """Name, annotate or delete a session by `act`; a line that says why not, empty when it was done."""
        from cs336_tui.tui.dialogs.questions import problem_of

        self._work(lambda: problem_of(act, (LogError, OSError)), then)

    def _work(self, work: Callable[[], _T], then: Callable[[_T], object]) -> None:
        in_background(self._app, work, lambda found: then(found) if self._app.is_up else None)

    def _list(self) -> tuple[tuple[SessionInfo, ...], str]:
        with self._reading:
            try:
                found = tuple(self._info(path) for path in reversed(store.folder_sessions(self.folder)))
            except OSError as error:
                return (), f"{self.folder}: {error.strerror}"
            self._infos = {info.path: self._infos[info.path] for info in found}
            return found, ""

    def _info(self, path: Path) -> SessionInfo:
        return _newest(path, self._infos, store.info_of, writer_of(path))  # who may go and leave the log as it was

    def _open(self, path: Path) -> Session | str:
        with self._reading:
            try:
                return _newest(path, self._sessions, read_session)
            except OSError as error:
                return f"{path.name}: {error.strerror}"
            except Exception as error:  # on a thread: nobody else would hear of it
                return f"{path.name}: cannot be read: {type(error).__name__}: {error}"


def _newest(path: Path, known: _Known[_T], read: Callable[[Path], _T], *decides: object) -> _T:
    """The answer of `read` to a log, read anew only when the log has grown, or what else `decides` is another. Raises
    OSError."""
    stat = path.stat()
    stamp = stat.st_mtime_ns, stat.st_size, *decides
    if path not in known or known[path][0] != stamp:
        known[path] = stamp, read(path)
    return known[path][1]
