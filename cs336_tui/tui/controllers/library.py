"""The folder of sessions: reads its logs on threads, and opens into it what others recorded: asks for a file or takes a
pasted path, reads it on a thread, then shows its session."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from cs336_tui.config.axis import UserError
from cs336_tui.config.reading import exists
from cs336_tui.session import store
from cs336_tui.session.lock import writer_of
from cs336_tui.session.store import SessionInfo
from cs336_tui.tui.background import in_background, tried
from cs336_tui.tui.host import Host
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.session import Session, read_session
from cs336_tui.tui.tabs.sessions import SessionsPane

REFRESH_S = 0.25
_ABOUT = (
    "A session's log or a folder of them; or a torch profiler trace, CUDA memory snapshot or nsys report, several with "
    "spaces. Ranges with names of your own that are a phase: --phase forward=model_fwd"
)


_T = TypeVar("_T")
_Known = dict[Path, tuple[tuple[object, ...], _T]]
"""A part that was read of a log, with the log's time and size then."""


class Library:
    """Reads logs of the sessions folder on threads. Every method returns at once; what it read goes to `then`, among
    the messages of the app while it is up."""

    def __init__(self, app: Host, folder: Path | None) -> None:
        self._app, self.folder = app, folder
        self._reading = threading.Lock()
        self._infos: _Known[SessionInfo] = {}
        self._sessions: _Known[Session] = {}

    def list(self, pane: SessionsPane) -> asyncio.Event:
        """Show all sessions in the pane, newest first, or why they cannot be listed; the event is set then. Not
        among the messages of the app, which may wait for that."""
        return in_background(pane, self._list, lambda found: pane.take(*found))

    def last(self, then: Callable[[SessionInfo], object]) -> None:
        """The newest session at a glance, if there is one."""
        self._work(self._last, lambda found: found and then(found))

    def about(self, log: Path, then: Callable[[SessionInfo], object]) -> None:
        """The summary of one log; a line says why it cannot be read."""
        found = partial(tried, partial(store.info_of, log))
        self._work(found, lambda read: then(read[0]) if read[0] else self._app.report(read[1]))

    def _last(self) -> SessionInfo | None:
        found = store.folder_sessions(self.folder) if self.folder else []
        return tried(partial(store.info_of, found[-1]))[0] if found else None

    def open(self, path: Path, then: Callable[[Session], object]) -> None:
        """One session with all its results; tells why it cannot be read."""
        self._work(
            lambda: self._open(path), lambda read: self._app.report(read) if isinstance(read, str) else then(read)
        )

    def change(self, act: Callable[[], None], then: Callable[[str], object]) -> None:
        """Name, annotate or delete a session by `act`; a line that says why not, empty when it was done."""
        self._work(lambda: tried(act)[1], then)

    def _work(self, work: Callable[[], _T], then: Callable[[_T], object]) -> None:
        in_background(self._app, work, lambda found: then(found) if self._app.is_up else None)

    def _list(self) -> tuple[tuple[SessionInfo, ...], str]:
        if self.folder is None:
            return (), "no session folder is set"
        with self._reading:
            try:
                found = tuple(
                    _newest(path, self._infos, store.info_of, writer_of(path))  # who may go and leave the log as it was
                    for path in reversed(store.folder_sessions(self.folder))
                )
            except OSError as error:
                return (), f"{self.folder}: {error.strerror}"
            self._infos = {info.path: self._infos[info.path] for info in found}
            return tuple(sorted(found, key=lambda info: info.started_at or 0.0, reverse=True)), ""

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


class RecordingController:
    """Opens files one after another, never while cells are timed: reading takes a core. `opened` shows a session that
    was made of them, `open_log` one whose log they are."""

    def __init__(
        self, app: Host, library: Library, opened: Callable[[Path], object], open_log: Callable[[Path], object]
    ) -> None:
        self._app, self._library, self._opened, self._open_log = app, library, opened, open_log
        self._stop: threading.Event | None = None
        """Stops the reading that is in progress."""

    def take(self, text: str) -> None:
        """Open what a terminal pasted when files were dropped on it; ask for a path if that is empty."""
        if not text:
            self._ask()
            return
        wanted = Wanted(tuple(map(_path, _words_in(text))))
        if lost := [path for path in wanted.paths if not exists(path)]:
            self._app.warn(f"{lost[0]}: no such file on this machine; a dropped file opens if the terminal runs here.")
        else:
            self.open(wanted)

    def _ask(self) -> None:
        from cs336_tui.session.recordings.recording import PhaseError

        def why(text: str) -> str:
            try:
                wanted = wanted_in(text)
            except PhaseError as error:
                return str(error)
            missing = [str(path) for path in wanted.paths if not exists(path)]
            if wanted.phases and not wanted.paths:
                return "no file"
            return f"no such file: {missing[0]}" if missing else ""

        self._app.ask_text(lambda text: self.open(wanted_in(text)), "Open a file", _ABOUT, check=why, longest=8000)

    def open(self, wanted: Wanted) -> None:
        """Open the session of a log or the newest of a folder, or read the files, if there are any, into a new one."""
        paths, folder = wanted.paths, self._library.folder
        if not paths:
            return
        if logs := list(filter(store.is_own, paths)):
            log, problem = tried(partial(store.find, str(logs[0]), logs[0].parent))
            if log is not None and len(paths) == 1 and not wanted.phases:
                self._open_log(log)
            else:
                alone = f"{logs[0]}: a session is shown alone; name it without other files and without --phase."
                self._app.warn(problem or alone)
        elif folder is None:
            self._app.warn("No folder of sessions is known here.")
        elif self._stop is not None:
            self._app.warn(f"A recording is being read; {key_name('sessions.stop_opening')} stops that.")
        elif self._app.run_in_progress and not self._app.replaying:
            self._app.warn("Cells are running, and reading would disturb their times; open it when they are over.")
        else:
            self._stop = threading.Event()
            self._show(f"reading {paths[0].name} ...")
            in_background(self._app, partial(self._read, wanted, folder, self._stop), self._ended)

    def stop(self) -> None:
        """Stop reading; nothing is kept."""
        if self._stop is not None:
            self._stop.set()

    def _read(self, wanted: Wanted, folder: Path, stop: threading.Event) -> Path | str:
        """The log of the new session, or why there is none; empty if it was stopped."""
        from cs336_tui.session.recordings.recording import Opening, OpeningCancelled, open_recordings

        paths, shown_at = wanted.paths, 0.0

        def watch(done: int, total: int) -> None:
            nonlocal shown_at
            if stop.is_set() or not self._app.is_up:
                raise OpeningCancelled
            if time.monotonic() - shown_at >= REFRESH_S:
                shown_at = time.monotonic()
                share = f"{done / total:.0%} of {total / 1e6:,.0f} MB" if total else f"{done / 1e6:,.0f} MB"
                self._app.call_later(self._show, f"reading {share} of {paths[0].name}" if len(paths) == 1 else share)

        try:
            return open_recordings(paths, folder, Opening(watch, wanted.phases))
        except OpeningCancelled:
            return ""
        except (UserError, OSError) as error:
            return str(error)
        except Exception as error:  # on a thread: nobody else would hear of it
            return f"{paths[0].name}: cannot be read: {type(error).__name__}: {error}"

    def _ended(self, found: Path | str) -> None:
        self._stop = None
        if not self._app.is_up:
            return
        self._show("")
        if isinstance(found, Path):
            self._opened(found)
        elif found:
            self._app.report(found)
        else:
            self._app.warn("Reading was stopped; nothing of it is kept.")

    def _show(self, text: str) -> None:
        if self._app.is_up:
            self._app.main.query_one(SessionsPane).show_opening(text if self._stop else "")
            self._app.refresh_bindings()


class Wanted(NamedTuple):
    """Files to open, and names of ranges that are a phase, by the phase."""

    paths: tuple[Path, ...]
    phases: Mapping[str, tuple[str, ...]] = {}


def wanted_in(text: str) -> Wanted:
    """The files and phases that a text names, as on the command line. Raises `PhaseError`."""
    from cs336_tui.session.recordings.recording import phases_of

    words = iter(_words_in(text))
    paths, phases = [], []
    for word in words:
        if word == "--phase":
            phases.append(next(words, ""))
        elif word.startswith("--phase="):
            phases.append(word.removeprefix("--phase="))
        else:
            paths.append(_path(word))
    return Wanted(tuple(paths), phases_of(phases))


def _words_in(text: str) -> list[str]:
    """The words of a text: one to a line or several with spaces, quoted or escaped as terminals do."""
    import shlex

    found: list[str] = []
    for raw in text.splitlines():
        line = raw.strip().strip("\0")
        if not line:
            continue
        if exists(_path(line)):
            found.append(line)
            continue
        try:
            found += shlex.split(line)
        except ValueError:  # a quote without its end
            found.append(line)
    return found


def _path(text: str) -> Path:
    """A file by its path or URL."""
    if text.startswith("file://"):
        from urllib.parse import unquote, urlsplit

        text = unquote(urlsplit(text).path)
    return Path(os.path.expanduser(text))  # noqa: PTH111  # never raises
