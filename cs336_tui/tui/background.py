"""Work that would hold up the screen, on threads of its own."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from textual.message_pump import MessagePump

from cs336_tui.config.axis import UserError
from cs336_tui.config.reading import is_file
from cs336_tui.events.events import CellFinished, Event, SessionEnded
from cs336_tui.session.state import SessionState, fold

if TYPE_CHECKING:
    from cs336_tui.export.writing.files import LivingFile

_T = TypeVar("_T")


def in_background(pump: MessagePump, work: Callable[[], _T], then: Callable[[_T], object]) -> asyncio.Event:
    """Call `work`, which must not raise, on a thread, then ``then(result)`` among the messages of `pump`, a widget or
    an app, if it runs. The event is set after that."""
    over = asyncio.Event()
    context = copy_context()  # in which texts find the app, and so its keys

    def end(result: _T) -> object:
        done = then(result)
        over.set()
        return done

    def whole() -> None:
        pump.call_later(end, context.run(work))

    # A daemon, so that slow disks cannot keep the app from ending.
    threading.Thread(target=whole, name="cs336-background", daemon=True).start()
    return over


class Works(MessagePump, Generic[_T]):
    """A pane of what is worked out of something that changes: the newest, and nothing of another session."""

    coming: asyncio.Event | None = None
    worked_out: _T | None = None
    _of: tuple[object, ...] = ()

    def is_outdated(self, of: tuple[object, ...]) -> bool:
        """True, once, if what is worked out has to be `of` something else now, the session first."""
        outdated, is_other = of != self._of, of[:1] != self._of[:1]
        self._of, self.worked_out = of, None if is_other else self.worked_out
        return outdated

    def work_out(self, work: Callable[[], _T], then: Callable[[], object], *, at_once: bool = False) -> None:
        """Call `work`: `at_once`, or on a thread, and `then` when it is done, if nothing else was asked meanwhile."""
        of = self._of

        def take(result: _T) -> None:
            if of == self._of:
                self.worked_out = result
                then()

        if at_once:
            self.worked_out = work()
        else:
            self.coming = in_background(self, work, take)


def tried(
    work: Callable[[], _T], errors: type[Exception] | tuple[type[Exception], ...] = (UserError, OSError)
) -> tuple[_T | None, str]:
    """The result, and why there is none, in one line."""
    try:
        return work(), ""
    except errors as error:
        return None, str(error)


class SummaryAutosave:
    """Rewrites `path` after every finished cell, but a file that was there before only at its end: until then the
    earlier one may be all that there is. From states of its own: those on the screen belong to the event loop.
    `complain` is called from the thread with one line when the file cannot be written."""

    def __init__(self, path: Path, complain: Callable[[str], object]) -> None:
        self._path, self._complain = path, complain
        self._inbox: queue.SimpleQueue[tuple[object, Sequence[Event]] | None] = queue.SimpleQueue()
        self._states: dict[object, SessionState] = {}
        self._file: LivingFile | None = None
        self._was_there = is_file(path)
        self.problem = ""
        """Why it could not be written last; empty if it was."""
        self._thread = threading.Thread(target=self._work, name="cs336-summary", daemon=True)
        self._thread.start()

    def take(self, events: Sequence[Event], session: object = None) -> None:
        """Hand over a batch of this session's events; returns at once. The file is about the session that ran last."""
        self._inbox.put((session, events))

    def close(self, timeout_s: float = 2.0) -> None:
        """Wait until all that was taken is on disk."""
        self._inbox.put(None)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        latest = SessionState()
        while (taken := self._inbox.get()) is not None:
            session, events = taken
            state = fold(events, self._states.setdefault(session, SessionState()))
            if any(isinstance(event, CellFinished | SessionEnded) for event in events):
                latest = state
                if not self._was_there:
                    self._write(state)
        if self._was_there and latest.finished_cells:
            self._write(latest)

    def _write(self, state: SessionState) -> None:
        from cs336_tui.export.summary import summary_markdown
        from cs336_tui.export.writing.files import LivingFile

        def write() -> None:
            self._file = self._file or LivingFile(self._path, overwrite=True)
            self._file.write(summary_markdown(state))

        self.problem = tried(write)[1]
        if self.problem:
            self._complain(self.problem)
