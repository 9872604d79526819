"""What can be done with the sessions in the folder: looking at one, naming, deleting, comparing, going on with one."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cs336_tui.session import store
from cs336_tui.session.store import SessionInfo
from cs336_tui.tui.background import in_background
from cs336_tui.tui.library import Library
from cs336_tui.tui.session import Session
from cs336_tui.tui.tabs.sessions import SessionsPane, Wish, counts

if TYPE_CHECKING:
    from cs336_tui.tui.app import Cs336App
    from cs336_tui.tui.live_source import LiveSource


class SessionDesk:
    """Serves the Sessions tab of `app`. Reads and writes logs on threads only."""

    def __init__(self, app: Cs336App, folder: Path | None) -> None:
        self._app = app
        self._library = Library(app, folder) if folder else None
        self._before: Session | None = None
        """The app's session until the one that is to go on has been opened for writing."""
        self._retired: list[LiveSource] = []
        self._loaded: dict[Path, Session] = {}
        """Marked sessions that have been read."""

    def use_folder(self, folder: Path) -> None:
        """Where sessions are kept, if nobody has said so before."""
        if self._library is None:
            self._library = Library(self._app, folder)

    # The list.

    @property
    def _pane(self) -> SessionsPane:
        return self._app.main.query_one(SessionsPane)

    def reload(self) -> None:
        """Read the list anew."""
        if self._library is None:
            self._pane.take((), "no folder of sessions is known here")
        else:
            self._library.list(self._listed)

    def _listed(self, found: tuple[tuple[SessionInfo, ...], str]) -> None:
        if self._app.screen_stack:
            self._pane.take(*found)

    def do(self, wish: Wish, info: SessionInfo) -> None:
        """What a key of the tab asks for."""
        match wish:
            case "open":
                self.open(info)
            case "resume":
                self.resume(info)
            case "delete":
                self._ask_delete(info)
            case "rename" | "annotate":
                self._ask_words(wish, info)

    # Looking at one.

    def open(self, info: SessionInfo) -> None:
        """Show the session's cells in every pane, as at the end of a replay."""
        if info.path == self._app.live.path:
            self._app.look_at(None)
        elif self._library is not None:
            self._library.open(info.path, self._opened)

    def _opened(self, session: Session | str) -> None:
        if not self._app.screen_stack:
            return
        if isinstance(session, str):
            self._app.report(session)
        else:
            self._app.look_at(session)
            if session.problem:
                self._app.report(session.problem)

    # Words and deletion.

    def _ask_words(self, wish: Wish, info: SessionInfo) -> None:
        from cs336_tui.tui.dialogs.questions import AskText

        title, about, value = (
            ("Name", f"A name for session {info.session}; empty: none.", info.name)
            if wish == "rename"
            else ("Note", f"A note on session {info.title}, for its exports; empty: none.", info.note)
        )

        def entered(text: str | None) -> None:
            if text is not None and self._library is not None:
                words = {"name" if wish == "rename" else "note": text}
                own = self._app.live.source if info.path == self._app.live.path else None
                # Only who writes a session may add to it.
                annotate = own.annotate if own and info.writer else partial(store.annotate, info.path)
                self._library.change(partial(annotate, **words), self._changed)

        self._app.push_screen(AskText(title, about, value), entered)

    def _ask_delete(self, info: SessionInfo) -> None:
        from cs336_tui.tui.dialogs.questions import Confirm

        if info.path == self._app.live.path:
            self._tell("That is the session of this app; it cannot be deleted from within.")
            return

        def answered(yes: bool | None) -> None:
            if yes and self._library is not None:
                self._library.change(partial(store.delete, info.path), partial(self._deleted, info.path))

        question = f"Delete session {info.title} ({counts(info)}) for good?"
        self._app.push_screen(Confirm(question, yes="Delete", no="Keep"), answered)

    def _deleted(self, path: Path, problem: str) -> None:
        if self._app.screen_stack and not problem and self._app.shown.path == path:
            self._app.look_at(None)
        self._changed(problem)

    def _changed(self, problem: str) -> None:
        if self._app.screen_stack:
            if problem:
                self._app.report(problem)
            self.reload()

    # Comparing.

    def marked(self) -> None:
        """Read the marked sessions that have not been read; Compare shows each as soon as it is there."""
        paths = self._pane.marked
        self._loaded = {path: session for path, session in self._loaded.items() if path in paths}
        for path in paths:
            if path != self._app.live.path and path not in self._loaded and self._library is not None:
                self._library.open(path, partial(self._read, path))
        self._app.refresh_panes()

    def _read(self, path: Path, session: Session | str) -> None:
        if not self._app.screen_stack:
            return
        if isinstance(session, str):
            self._app.report(session)
        elif path in self._pane.marked:
            self._loaded[path] = session
            self._app.refresh_panes()

    @property
    def compared(self) -> tuple[Session, ...]:
        """The marked sessions as far as they are read, in the order in which they were marked; else the one shown."""
        live = self._app.live
        found = tuple(
            live if path == live.path else self._loaded[path]
            for path in self._pane.marked
            if path == live.path or path in self._loaded
        )
        return found or (self._app.shown,)

    # Going on with one.

    def resume(self, info: SessionInfo) -> None:
        """Run the session's cells that have no result, into its own log."""
        app = self._app
        if app.replaying:
            self._tell("A replay runs nothing; start cs336-tui without --replay to resume a session.")
        elif app.run_in_progress:
            self._tell("Cells are running; resume the session when they are over, or stop them (s).")
        elif info.path == app.live.path:
            self._resume_own()
        elif not info.left:
            self._tell(f"Session {info.title} has nothing left to run.")
        else:
            session = Session(info.path)
            session.news_since = time.time()
            if not app.attach_bench(session, info.path):
                self._tell("This app runs no cells.")
                return
            self._before, app.live = app.live, session
            app.begin_run()
            assert session.source is not None
            session.source.resume()

    def _resume_own(self) -> None:
        live = self._app.live
        again = [cell.cell for cell in live.state.cells.values() if cell.status == "cancelled"]
        if live.source is None or not (again or live.state.waiting):
            self._tell("This session has nothing left to run.")
            return
        live.source.queue.requeue(again)
        self._app.begin_run()
        live.source.work()

    @property
    def other_sources(self) -> tuple[LiveSource, ...]:
        """Those of sessions that the app had before, to be closed with it."""
        before = self._before.source if self._before else None
        return (*([before] if before else []), *self._retired)

    def _retire(self, session: Session) -> None:
        """End a session's bench without waiting for it."""
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

    def _tell(self, text: str) -> None:
        self._app.notify(text, severity="warning", markup=False, timeout=5)
