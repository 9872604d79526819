"""Follows a session that another process or jobs run, on a thread of its own; talks to the app by messages only."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from textual.message import Message

from cs336_tui.config.axis import UserError
from cs336_tui.runner.trust import Untrusted
from cs336_tui.tui.live_source import Post, Trouble, thread

if TYPE_CHECKING:
    from cs336_tui.runner.jobs.bench import JobsBench


@dataclass(eq=False, repr=False)
class WatchEnded(Message):
    """A watched session is over, or cannot be followed any more for the reason given, or not without an answer of the
    person's."""

    log: Path
    error: str | None = None
    untrusted: Untrusted | None = None


class WatchSource:
    """Follows a session until it is over or this is closed, which changes nothing for the session. A session that
    nobody writes is written from here: the logs of its jobs are folded in."""

    def __init__(self, bench: JobsBench, post: Post) -> None:
        self.bench, self._post = bench, post
        self._closing = threading.Lock()

    def begin(self, *, resume: bool = False) -> None:
        """Follow it; with `resume` the cells without a result are submitted anew before."""
        thread("watch", lambda: self._work(resume=resume))

    def cancel(self) -> None:
        """Have its jobs cancelled; their ends are told as they come."""

        def cancel() -> None:
            try:
                self.bench.cancel()
            except (UserError, OSError) as error:
                self._post(Trouble(str(error)))

        thread("cancel", cancel)

    def close(self) -> None:
        """Follow it no more; blocks up to some seconds. Safe to call twice and from any thread."""
        with self._closing:
            self.bench.close()

    def _work(self, *, resume: bool) -> None:
        error: str | None = None
        untrusted: Untrusted | None = None
        try:
            if resume:
                self._resume()
            else:
                self.bench.watch()
            self.bench.work()
        except Untrusted as refused:
            untrusted = refused
        except (UserError, OSError) as refused:
            error = str(refused)
        except Exception as broken:  # the person must hear of it, whatever it was
            error = f"the session cannot be followed: {type(broken).__name__}: {broken}"
        self._post(WatchEnded(self.bench.log_path, error, untrusted))

    def _resume(self) -> None:
        from cs336_tui.runner.jobs.job import JobRequest

        self.bench.resume(JobRequest(session=self.bench.session, job="", cells=()))
