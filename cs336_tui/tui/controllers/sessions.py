"""The sessions of the folder: opened, named, deleted, compared and resumed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from cs336_tui.session import store
from cs336_tui.session.lock import writer_of
from cs336_tui.session.log import JOBS_SUFFIX, LogError
from cs336_tui.session.states import CellState
from cs336_tui.session.store import SessionInfo
from cs336_tui.tui.background import in_background
from cs336_tui.tui.controllers.recordings import RecordingController
from cs336_tui.tui.controllers.running import RunController
from cs336_tui.tui.host import Host
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.requests import Wish
from cs336_tui.tui.session import Session, read_session
from cs336_tui.tui.sources import LiveSource, WatchEnded, WatchSource
from cs336_tui.tui.tabs.sessions import Compared, SessionsPane, Source, counts

if TYPE_CHECKING:
    from cs336_tui.runner.trust import Untrusted

KEEP_UP_S = 5.0
"""Interval at which the list of sessions is read again while it is in sight."""
_T = TypeVar("_T")
_Known = dict[Path, tuple[tuple[object, ...], _T]]
"""A part that was read of a log, with the log's time and size then."""


class Library:
    """Reads logs of the sessions folder on threads. Every method returns at once; what it read goes to `then`, among
    the messages of the app while it is up."""

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
        from cs336_tui.tui.dialogs.windows import problem_of

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


class SessionController:
    """Serves the Sessions tab. Reads and writes logs on threads only."""

    def __init__(self, app: Host, runs: RunController, folder: Path | None) -> None:
        self._app, self._runs = app, runs
        self._library = Library(app, folder) if folder else None
        self.recordings = RecordingController(
            app, lambda: self._library.folder if self._library else None, self._recorded
        )
        self._listed_at = 0.0
        self._before: Session | None = None
        """The app's session until the one that is to go on has been opened for writing."""
        self._retired: list[LiveSource] = []
        self._watched: dict[Path, Session] = {}
        """Sessions that others run, followed since they were opened."""
        self._loaded: dict[Path, Session] = {}
        """Marked sessions that have been read."""
        self._cells: list[tuple[Source, CellState]] = []
        """Up to two marked cells."""
        self._trust: Callable[[], object] = lambda: None
        """Does what was asked for last, once its code is trusted."""

    def use_folder(self, folder: Path) -> None:
        """Take this folder for that of the sessions, unless another was given before."""
        if self._library is None:
            self._library = Library(self._app, folder)

    @property
    def _pane(self) -> SessionsPane:
        return self._app.main.query_one(SessionsPane)

    def reload(self) -> None:
        """List the sessions anew."""
        self._listed_at, pane = time.monotonic(), self._pane
        if self._library is None:
            pane.take((), "no session folder is set")
        else:
            listed = self._library.list(pane)
            pane.coming = pane.coming or listed  # only of the first list: later there are rows meanwhile

    def keep_up(self) -> None:
        """List the sessions anew if that was long ago: other processes run some of them."""
        if time.monotonic() - self._listed_at >= KEEP_UP_S:
            self.reload()

    def do(self, wish: Wish, info: SessionInfo) -> None:
        match wish:
            case "open":
                self.open(info)
            case "resume":
                self.resume(info)
            case "delete":
                self._ask_delete(info)
            case "rename" | "annotate":
                self._ask_words(wish, info)

    def open(self, info: SessionInfo) -> None:
        """Show the session's cells in every pane, as at the end of a replay; one that others run as it goes on."""
        live = self._app.live
        if info.path in self._watched:
            self._app.look_at(self._watched[info.path])
        elif info.path == live.path and (live.source or not info.goes_on):
            self._app.look_at(None)
        elif info.goes_on:
            self._app.look_at(self._watch(Session(info.path)))
        elif self._library is not None:
            self._library.open(info.path, self._opened)

    def watch(self, session: Session) -> None:
        """Follow the app's own session, which others run."""
        self._watch(session)
        assert session.path is not None
        self.use_folder(session.path.parent)

    def _watch(self, session: Session, *, resume: bool = False, trusted: bool = False) -> Session:
        from cs336_tui.runner.jobs.bench import JobsBench

        path = session.path
        assert path is not None
        if path == self._app.live.path:
            self._app.live = session  # which goes on
        session.news_since = time.time()
        bench = JobsBench(partial(self._app.take, session), path, trusted=trusted)
        self._trust = lambda: self._app.look_at(self._watch(Session(path), resume=resume, trusted=True))
        session.watched = WatchSource(bench, self._app.post_message)
        self._watched[path] = session
        session.watched.begin(resume=resume)
        return session

    def watch_ended(self, message: WatchEnded) -> None:
        """A watched session is over; opened again it is read from its log."""
        session = self._watched.pop(message.log, None)
        if session is not None and (source := session.watched) is not None:
            session.watched = None
            session.end_run()
            in_background(self._app, source.close, lambda _: self._closed())
        if message.untrusted:
            self.ask_trust(message.untrusted)
        if message.error:
            self._app.report(message.error)

    def ask_trust(self, refused: Untrusted) -> None:
        """Ask whether what a session names is to be run, and do what was asked for."""
        from cs336_tui.tui.dialogs.windows import Confirm

        trust = self._trust

        def answered(yes: bool | None) -> None:
            if yes:
                trust()

        if not isinstance(self._app.screen, Confirm):
            question = f"This session {refused.what}. What you trust runs with your rights."
            self._app.push_screen(Confirm(question, yes="Trust it", no="Leave it"), answered)

    def _closed(self) -> None:
        if self._app.is_up and self._app.main.shows("sessions"):
            self.reload()

    def ask_cancel(self, session: Session) -> None:
        """Ask whether the jobs of a watched session are to be cancelled."""
        from cs336_tui.tui.dialogs.windows import Confirm

        source = session.watched
        if source is None or isinstance(self._app.screen, Confirm):
            return
        going_on = [job for job in session.state.jobs.values() if job.stage != "over"]
        if not going_on:
            self._app.warn(f"Another process runs this session; to stop it: cs336-tui cancel {session.id}")
            return

        def answered(yes: bool | None) -> None:
            if yes:
                source.cancel()
                self._app.notify(
                    "Cancel requested; cells end when the launcher reports it.", title="Cancelling", timeout=5
                )

        count = f"{len(going_on)} job{'s' * (len(going_on) > 1)} of this session"
        question = f"{count} pending or running. They keep running when this app is closed."
        self._app.push_screen(Confirm(question, yes="Cancel them", no="Leave them"), answered)

    def _recorded(self, path: Path) -> None:
        """Show the session of a recording, which is new in the list."""
        self.reload()
        if self._library is not None:
            self._library.open(path, self._opened)

    def _opened(self, session: Session | str) -> None:
        if isinstance(session, str):
            self._app.report(session)
        else:
            self._app.look_at(session)
            if session.problem:
                self._app.report(session.problem)

    def _ask_words(self, wish: Wish, info: SessionInfo) -> None:
        from cs336_tui.tui.dialogs.windows import AskText

        title, about, value = (
            ("Name", f"A name for session {info.session} (blank: none).", info.name)
            if wish == "rename"
            else ("Note", f"A note on session {info.title}, for its exports (blank: none).", info.note)
        )

        def entered(text: str | None) -> None:
            if text is not None and self._library is not None:
                words = {"name" if wish == "rename" else "note": text}
                own = self._app.live.source if info.path == self._app.live.path else None
                # Only who writes a session may add to it.
                annotate = own.bench.annotate if own and info.writer else partial(store.annotate, info.path)
                self._library.change(partial(annotate, **words), self._changed)

        self._app.push_screen(AskText(title, about, value), entered)

    def _ask_delete(self, info: SessionInfo) -> None:
        from cs336_tui.tui.dialogs.windows import Confirm

        if info.path == self._app.live.path:
            self._app.warn("This is the app's own session; quit the app first, then delete it.")
            return

        def answered(yes: bool | None) -> None:
            if yes and self._library is not None:
                self._library.change(partial(store.delete, info.path), partial(self._deleted, info.path))

        question = f"Delete session {info.title} ({counts(info)}) for good?"
        self._app.push_screen(Confirm(question, yes="Delete", no="Keep"), answered)

    def _deleted(self, path: Path, problem: str) -> None:
        if not problem and self._app.shown.path == path:
            self._app.look_at(None)
        self._changed(problem)

    def _changed(self, problem: str) -> None:
        if problem:
            self._app.report(problem)
        self.reload()

    def marked(self) -> None:
        """Read the marked sessions that have not been read; Compare shows each as soon as it is there."""
        paths = self._pane.marked
        self._loaded = {path: session for path, session in self._loaded.items() if path in paths}
        for path in paths:
            if path != self._app.live.path and path not in self._loaded and self._library is not None:
                self._library.open(path, partial(self._read, path))
        self._app.refresh_panes()

    def _read(self, path: Path, session: Session | str) -> None:
        if isinstance(session, str):
            self._app.report(session)
        elif path in self._pane.marked:
            self._loaded[path] = session
            self._app.refresh_panes()

    @property
    def marked_cells(self) -> tuple[CellState, ...]:
        """Up to two cells, of whatever sessions, that are to be compared."""
        return tuple(cell for _, cell in self._cells)

    def mark_cell(self, cell: CellState) -> None:
        """Mark a cell of the shown session, or no longer; a third takes the place of the first."""
        session = self._app.shown
        if cell in self.marked_cells:
            self._cells = [(source, other) for source, other in self._cells if other is not cell]
        else:
            self._cells = [*self._cells, ((session.title, session.state), cell)][-2:]
        self._app.paint()

    @property
    def compared(self) -> Compared:
        """The marked sessions that have been read, in the order of marking, else the one shown; and marked cells."""
        live = self._app.live
        found = [
            live if path == live.path else self._loaded[path]
            for path in self._pane.marked
            if path == live.path or path in self._loaded
        ]
        sessions = found or [self._app.shown]
        titled = tuple((session.title or "session", session.state) for session in sessions)
        return Compared(titled, tuple(self._cells))

    @property
    def can_resume(self) -> bool:
        """True if this app can run what the shown session has left."""
        app = self._app
        idle = not (app.replaying or app.run_in_progress) and app.shown.path is not None
        return idle and app.live.source is not None and app.shown.standing.can_resume

    def resume_shown(self) -> None:
        """Run the cells of the shown session that have no result, into its own log."""
        shown = self._app.shown
        if shown.path is None or not (shown.state.cells or shown.state.tuning):
            self._app.warn("This session has nothing left to run.")
        else:
            self.resume(store.describe(shown.state, shown.path))

    def resume(self, info: SessionInfo, *, trusted: bool = False) -> None:
        """Run the session's cells that have no result, into its own log. Unless `trusted`, asks before it imports code
        that is not the current folder's own."""
        app = self._app
        if info.path in self._watched:
            self._app.warn("That session is still running.")
        elif info.path.with_suffix(JOBS_SUFFIX).is_dir():
            self._resume_jobs(info)
        elif app.replaying:
            self._app.warn("A replay or watch cannot run cells; start cs336-tui without them to resume a session.")
        elif app.run_in_progress:
            self._app.warn(f"Cells are running. Stop them ({key_name('app.stop')}) or wait, then resume.")
        elif info.path == app.live.path:
            self._resume_own()
        elif not (info.left or info.race_left):
            self._app.warn(f"Session {info.title} has nothing left to run.")
        else:
            session = Session(info.path)
            session.news_since = time.time()
            if not self._runs.attach_bench(session, info.path):
                self._app.warn("This app cannot run cells.")
                return
            self._before, app.live = app.live, session
            self._runs.begin(races=info.race_left)
            assert session.source is not None
            self._trust = partial(self.resume, info, trusted=True)
            session.source.resume(races=info.race_left, trusted=trusted)

    def _resume_jobs(self, info: SessionInfo) -> None:
        """Submit the session's cells anew that have no result, and watch them."""
        if info.writer:
            self._app.warn(f"Session {info.title} is being written by {info.writer}.")
        elif not info.left:
            self._app.warn(f"Session {info.title} has nothing left to run.")
        else:
            self._app.look_at(self._watch(Session(info.path), resume=True))

    def _resume_own(self) -> None:
        live, source = self._app.live, self._app.live.source
        races = live.state.has_unfinished_race
        left = [cell for cell in live.state.cells.values() if cell.status == "cancelled" and not cell.queued_in_turns]
        if source is None or not (left or live.state.waiting or races):
            self._app.warn("This session has nothing left to run.")
            return
        source.bench.queue.requeue([cell.cell for cell in left])
        self._runs.begin(races=races)
        if races:
            source.go_on_racing()
        else:
            source.work()

    @property
    def sources(self) -> list[LiveSource | WatchSource]:
        """Source of the live session, of sessions that were live before, of watched ones: to be closed with the app."""
        now = [session.source for session in (self._app.live, self._before) if session]
        watched = [session.watched for session in self._watched.values()]
        return [source for source in (*now, *self._retired, *watched) if source]

    def _retire(self, session: Session) -> None:
        if (source := session.source) is not None:
            session.source = None
            self._retired.append(source)
            in_background(self._app, source.close, lambda _: None)

    def resumed(self) -> None:
        """The session goes on; the app's one before it is closed and stays in the list."""
        if self._before is not None:
            self._retire(self._before)
            self._before = None
            self.reload()

    def run_ended(self) -> None:
        """A run is over. If its session could not even be opened, the app has the one again that it had before."""
        if self._before is not None:
            self._retire(self._app.live)
            self._app.live, self._before = self._before, None
            self._app.look_at(None)
        if self._app.main.shows("sessions"):
            self.reload()
