"""The end of the app, in good order and for certain, at SIGTERM, SIGHUP, SIGINT and a closed terminal; and its last
words: its session, and the commands that go on with it."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cs336_tui.export.writing.texts import one_line
from cs336_tui.session.log import default_session_dir
from cs336_tui.session.store import SessionInfo, info_of

REST_S = 1.5
"""If the app is still there this long after the run has ended, it is stuck in its terminal."""
LIMIT_S = 8.0
"""After this long the process ends, whatever blocks it."""
_NUMBERS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_LEFT = b"\0"
_PLAIN = (
    b"\x18"  # ends a sequence that was cut
    b"\x1b[<u\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l\x1b[?1004l\x1b[?2004l\x1b[?2048l"
    b"\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[0m"
)
"""No keyboard protocol, mouse, or reports of focus, paste and size; wrapping, the main screen, a cursor, no colour."""
_TRIES, _BETWEEN_TRIES_S = 100, 0.005


class EndOnSignals:
    """While entered, the first SIGTERM, SIGHUP or SIGINT, or the end of the terminal, ends the app.

    That works whatever the event loop is doing, as a thread hears of signals: a terminal that takes nothing, as that of
    a dropped connection, blocks whoever writes to it. The thread calls ``ask(exit code)``, which must not block, and
    ``close()``, which ends what runs. An app that is still there then leaves its terminal, as far as that can be, and
    ends with ``words()``. Does nothing outside the main thread, where Python cannot handle signals.
    """

    def __init__(
        self, ask: Callable[[int], object], close: Callable[[], object], words: Callable[[], str] = lambda: ""
    ) -> None:
        self._ask, self._close, self._words = ask, close, words
        self._left = threading.Event()
        self._before: dict[int, Any] = {}
        self._fd_before = -1

    def __enter__(self) -> EndOnSignals:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._terminal = _Terminal()
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._fd_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in _NUMBERS:  # a handler that does nothing: that there is one has the interpreter tell the thread
            self._before[number] = signal.signal(number, lambda _number, _frame: None)
        self._thread = threading.Thread(target=self._listen, name="cs336-signals", daemon=True)
        self._thread.start()
        if self._terminal.attributes is not None:
            threading.Thread(target=self._watch_terminal, name="terminal-watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._before:
            return
        self._left.set()
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        with contextlib.suppress(OSError):
            os.write(self._write, _LEFT)
        self._thread.join()

    def _listen(self) -> None:
        while (byte := os.read(self._read, 1)) != _LEFT:
            if byte[0] in _NUMBERS:
                self._end(128 + byte[0])
                return

    def _end(self, code: int) -> None:
        limit = threading.Timer(LIMIT_S, self._end_now, (code,))
        limit.daemon = True
        limit.start()
        self._ask(code)
        try:
            self._close()
        finally:
            if not self._left.wait(REST_S):
                self._end_now(code)

    def _end_now(self, code: int) -> None:
        if not self._left.is_set():
            words = b""
            with contextlib.suppress(Exception):  # whatever is wrong with the session, the process ends
                words = self._words().encode()
            self._terminal.give_back(words)
        os._exit(code)

    def _watch_terminal(self) -> None:
        """When the terminal goes, say what the system may not: under `make` no SIGHUP reaches the app."""
        poll = select.poll()
        poll.register(0, 0)
        events = poll.poll()  # nothing but the end of the terminal wakes this
        if any(event & select.POLLHUP for _, event in events):
            with contextlib.suppress(OSError):
                os.write(self._write, bytes([signal.SIGHUP]))


class _Terminal:
    """The terminal as it was before the app."""

    def __init__(self) -> None:
        self.attributes: list[Any] | None = None
        """None if there is no terminal."""
        if sys.__stdin__ is not None and sys.__stdin__.isatty():
            with contextlib.suppress(termios.error):
                self.attributes = termios.tcgetattr(0)

    def give_back(self, words: bytes) -> None:
        """Put it as it was, and write these words, without waiting for it: what it has not taken yet is dropped."""
        if self.attributes is None:
            return
        # Else a process in the background would be stopped here.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        with contextlib.suppress(OSError, termios.error):
            out = os.open(os.ttyname(0), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where the app still writes to
            termios.tcsetattr(0, termios.TCSANOW, self.attributes)
            for _ in range(_TRIES):
                _interrupt_writes()
                termios.tcflush(out, termios.TCOFLUSH)
                with contextlib.suppress(BlockingIOError):
                    if os.write(out, _PLAIN + words) >= len(_PLAIN):
                        return
                time.sleep(_BETWEEN_TRIES_S)


def _interrupt_writes() -> None:
    """Have system calls of other threads begun anew: a write holds the terminal until all of its text is taken."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.ident is not None:
            with contextlib.suppress(OSError):
                signal.pthread_kill(thread.ident, signal.SIGHUP)


_TAKES_WITHIN_S = 1.0
_GOES_ON = {"running": ("watch",), "stopped": ("resume",), "killed": ("resume",)}


def farewell(logs: Iterable[Path]) -> str:
    """The first of these sessions that has cells, then the commands that resume it, if cells are left, show and export
    it, each in a line of its own. Empty where none has cells."""
    infos = (info_of(log) for log in logs if log.is_file())
    return next((_words(info) for info in infos if info.cells), "")


def _words(info: SessionInfo) -> str:
    standing, own_name = info.standing, f" ({one_line(info.name)})" if info.name else ""
    how = f"{standing.words}, {standing.cells_left}" if standing.can_resume else info.stage
    name = info.session if info.path.parent == default_session_dir() else shlex.quote(str(info.path.absolute()))
    verbs = (*_GOES_ON.get(info.stage, ()), "show", "export")
    about = f"Session {info.session}{own_name}: {how}. To {', '.join(verbs[:-1])} or {verbs[-1]} it:"
    return "\n".join([about, *(f"  cs336-tui {verb} {name}" for verb in verbs), ""])


def say(text: str) -> None:
    """Write to the terminal, if there is one and it takes something: Ctrl+S holds what is written to it."""
    with contextlib.suppress(OSError):
        if text and os.isatty(1) and select.select([], [1], [], _TAKES_WITHIN_S)[1]:
            os.write(1, text.encode())
