"""The sessions of the folder: opened, named, deleted, compared and resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cs336_tui.events.events import Event
from cs336_tui.session import store
from cs336_tui.session.log import JOBS_SUFFIX
from cs336_tui.session.store import SessionInfo
from cs336_tui.tui.background import in_background
from cs336_tui.tui.controllers.library import Library, RecordingController
from cs336_tui.tui.controllers.running import RunController
from cs336_tui.tui.format import plural
from cs336_tui.tui.host import Host
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.preferences import shipped
from cs336_tui.tui.requests import Wish
from cs336_tui.tui.session import ReplaySource, Session
from cs336_tui.tui.sources import LiveSource, WatchSource
from cs336_tui.tui.tabs.results import ResultsPane
from cs336_tui.tui.tabs.sessions import Compared, SessionsPane, counts

if TYPE_CHECKING:
    from cs336_tui.runner.trust import Untrusted

DEMO_SPEED = 4.0
"""Of the made-up run that comes with the app, which takes one and a half minutes."""
KEEP_UP_S = 5.0
"""Interval at which the list of sessions is read again while it is in sight."""


class SessionController:
    """Serves the Sessions tab. Reads and writes logs on threads only."""

    def __init__(self, app: Host, runs: RunController, folder: Path | None) -> None:
        self._app, self._runs = app, runs
        self._library = Library(app, folder)
        self.recordings = RecordingController(app, self._library, self._recorded, self.open_log)
        self._listed_at = 0.0
        self._before: Session | None = None
        """The app's session until the one that is to go on has been opened for writing."""
        self._retired: list[LiveSource] = []
        self._watched: dict[Path, Session] = {}
        """Sessions that others run, followed since they were opened."""
        self._loaded: dict[Path | None, Session] = {}
        """Marked sessions that have been read."""
        self.last: SessionInfo | None = None
        """The newest session, as it was when the app began."""
        self.demo: ReplaySource | None = None
        """The made-up run that is watched."""
        self._trust: Callable[[], object] = lambda: None
        """Does what was asked for last, once its code is trusted."""

    def open_log(self, log: Path) -> None:
        """Open the session of a log, wherever it is."""
        self._library.about(log, self.open)

    def find_last(self, folder: Path | None = None) -> None:
        """Read the newest session, which the first screen offers. Take this folder for that of the sessions, unless
        another was given before."""
        self._library.folder = self._library.folder or folder

        def found(info: SessionInfo) -> None:
            self.last = info
            self._app.refresh_bindings()
            self._app.show_soon()

        self._library.last(found)

    @property
    def last_stopped(self) -> SessionInfo | None:
        """The newest session, if it can go on and this app has none of its own yet."""
        live, last = self._app.live, self.last
        can = self._app.shown is live and live.source is not None and not live.state.cells
        return last if can and last is not None and last.standing.can_resume and not last.goes_on else None

    def watch_demo(self) -> None:
        """Play the made-up run that comes with the app, as a session that is looked at."""
        log = shipped("data/demo-session.jsonl", "tests/data/demo-session.jsonl")
        session = Session(log)
        session.playing = True

        def take(events: Sequence[Event]) -> None:
            if self._app.shown is session:
                self._app.take(session, events)
            else:
                played.close()  # nobody looks at it any more

        played = self.demo = ReplaySource(log, take, lambda _: None, self._demo_ended, DEMO_SPEED)
        self._app.look_at(session)
        self._app.open_soon("live")
        played.begin()

    def _demo_ended(self, _: object) -> None:
        self._app.show_soon()
        self._app.call_later(self._app.refresh_bindings)

    @property
    def played(self) -> ReplaySource | None:
        """The made-up run, while it is on the screen."""
        return self.demo if self.demo and self.demo.path == self._app.shown.path else None

    @property
    def _pane(self) -> SessionsPane:
        return self._app.main.query_one(SessionsPane)

    def reload(self) -> None:
        """List the sessions anew."""
        self._listed_at, pane = time.monotonic(), self._pane
        listed = self._library.list(pane)
        pane.coming = pane.coming or listed  # only of the first list: later there are rows meanwhile

    def keep_up(self) -> None:
        """List the sessions anew if that was long ago: other processes run some of them."""
        if time.monotonic() - self._listed_at >= KEEP_UP_S:
            self.reload()

    def do(self, wish: Wish, info: SessionInfo) -> None:
        acts = {"open": self.open, "resume": self.resume, "delete": self._ask_delete}
        acts.get(wish, partial(self._ask_words, wish))(info)

    def open(self, info: SessionInfo) -> None:
        """Show the session's cells in every pane, as at the end of a replay; one that others run as it goes on."""
        live = self._app.live
        if info.path in self._watched:
            self._app.look_at(self._watched[info.path])
        elif info.path == live.path and (live.source or not info.goes_on):
            self._app.look_at(None)
        elif info.goes_on:
            self._app.look_at(self.watch(Session(info.path)))
        else:
            self._library.open(info.path, self._opened)

    def watch(self, session: Session, *, resume: bool = False, trusted: bool = False) -> Session:
        """Follow a session that others run; with `resume` its cells without a result are submitted anew before."""
        from cs336_tui.runner.jobs.bench import JobsBench

        path = session.path
        assert path is not None
        if path == self._app.live.path:
            self._app.live = session  # which goes on
        session.news_since = time.time()
        bench = JobsBench(partial(self._app.take, session), path, trusted=trusted)
        self._trust = lambda: self._app.look_at(self.watch(Session(path), resume=resume, trusted=True))
        session.watched = WatchSource(bench, self._app.post_message)
        self._watched[path] = session
        session.watched.begin(resume=resume)
        return session

    def watch_ended(self, log: Path) -> None:
        """A watched session is over; opened again it is read from its log."""
        session = self._watched.pop(log, None)
        if session is not None and (source := session.watched) is not None:
            session.watched = None
            session.end_run()
            in_background(self._app, source.close, lambda _: self._reload_in_sight())

    def ask_trust(self, refused: Untrusted) -> None:
        """Ask whether what a session names is to be run, and do what was asked for."""
        question = f"This session {refused.what}. What you trust runs with your rights."
        self._app.confirm(question, "Trust it", "Leave it", self._trust)

    def _reload_in_sight(self) -> None:
        if self._app.is_up and self._app.main.shows("sessions"):
            self.reload()

    def ask_cancel(self, session: Session) -> None:
        """Ask whether the jobs of a watched session are to be cancelled."""
        if (source := session.watched) is None:
            return
        going_on = [job for job in session.state.jobs.values() if job.stage != "over"]
        if not going_on:
            self._app.warn(f"Another process runs this session; to stop it: cs336-tui cancel {session.id}")
            return

        def cancel() -> None:
            source.cancel()
            self._app.notify("Cancel requested; cells end when the launcher reports it.", title="Cancelling", timeout=5)

        count = plural(len(going_on), "job")
        question = f"{count} of this session pending or running. They keep running when this app is closed."
        self._app.confirm(question, "Cancel them", "Leave them", cancel)

    def _recorded(self, path: Path) -> None:
        """Show the session of a recording, which is new in the list."""
        self.reload()
        self._library.open(path, self._opened)

    def _opened(self, session: Session) -> None:
        self._app.look_at(session)
        if session.problem:
            self._app.report(session.problem)

    def _ask_words(self, wish: Wish, info: SessionInfo) -> None:
        title, about, value = (
            ("Name", f"A name for session {info.session} (blank: none).", info.name)
            if wish == "rename"
            else ("Note", f"A note on session {info.title}, for its exports (blank: none).", info.note)
        )

        def entered(text: str) -> None:
            own = self._app.live.source if info.path == self._app.live.path else None
            # Only who writes a session may add to it.
            annotate = own.bench.annotate if own and info.writer else partial(store.annotate, info.path)
            self._library.change(partial(annotate, **{title.lower(): text}), self._changed)

        self._app.ask_text(entered, title, about, value)

    def _ask_delete(self, info: SessionInfo) -> None:
        if info.path == self._app.live.path:
            self._app.warn("This is the app's own session; quit the app first, then delete it.")
            return

        def deleted(problem: str) -> None:
            if not problem and self._app.shown.path == info.path:
                self._app.look_at(None)
            if self.last and self.last.path == info.path:
                self.last = None
                self.find_last()
            self._changed(problem)

        delete = partial(self._library.change, partial(store.delete, info.path), deleted)
        self._app.confirm(f"Delete session {info.title} ({counts(info)}) for good?", "Delete", "Keep", delete)

    def _changed(self, problem: str) -> None:
        if problem:
            self._app.report(problem)
        self.reload()

    def marked(self) -> None:
        """Read the marked sessions that have not been read; Compare shows each as soon as it is there."""
        paths = self._pane.marked
        self._loaded = {path: session for path, session in self._loaded.items() if path in paths}
        for path in paths:
            if path != self._app.live.path and path not in self._loaded:
                self._library.open(path, partial(self._read, path))
        self._app.refresh_panes()

    def _read(self, path: Path, session: Session) -> None:
        if path in self._pane.marked:
            self._loaded[path] = session
            self._app.refresh_panes()

    @property
    def compared(self) -> Compared:
        """The marked sessions that have been read, in the order of marking, else the one shown; and marked cells."""
        live = self._app.live
        read = {**self._loaded, live.path: live}
        sessions = [read[path] for path in self._pane.marked if path in read] or [self._app.shown]
        titled = tuple((session.title or "session", session.state) for session in sessions)
        return Compared(titled, self._app.main.query_one(ResultsPane).marked)

    @property
    def can_resume(self) -> bool:
        """True if this app can run what the shown session has left."""
        app = self._app
        idle = not (app.replaying or app.run_in_progress) and app.shown.path is not None
        return idle and app.live.source is not None and app.shown.standing.can_resume

    def resume_shown(self) -> None:
        """Run the cells of the shown session that have no result, into its own log."""
        shown = self._app.shown
        if (last := self.last_stopped) is not None:
            self.resume(last)
        elif shown.path is None or not (shown.state.cells or shown.state.tuning):
            self._app.warn("This session has nothing left to run.")
        else:
            self.resume(store.describe(shown.state, shown.path))

    def resume(self, info: SessionInfo, *, trusted: bool = False) -> None:
        """Run the session's cells that have no result, into its own log. Unless `trusted`, asks before it imports code
        that is not the current folder's own."""
        app, nothing_left = self._app, f"Session {info.title} has nothing left to run."
        if info.path in self._watched:
            self._app.warn("That session is still running.")
        elif info.path.with_suffix(JOBS_SUFFIX).is_dir():
            if info.writer:
                app.warn(f"Session {info.title} is being written by {info.writer}.")
            elif not info.left:
                app.warn(nothing_left)
            else:  # they are submitted anew, and watched
                app.look_at(self.watch(Session(info.path), resume=True))
        elif app.replaying:
            self._app.warn("A replay or watch cannot run cells; start cs336-tui without them to resume a session.")
        elif app.run_in_progress:
            self._app.warn(f"Cells are running. Stop them ({key_name('app.stop')}) or wait, then resume.")
        elif info.path == app.live.path:
            self._resume_own()
        elif not (info.left or info.race_left):
            app.warn(nothing_left)
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
        self._reload_in_sight()
