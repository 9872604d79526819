"""SIGTERM and a closed terminal end the app in good order, and for certain."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
from collections.abc import Callable

GRACE_S = 5.0
"""After this long the process ends even if a dead terminal blocks it."""


def end_on_signals(end: Callable[[int], None]) -> None:
    """Call ``end(exit code)`` on the running event loop at the first SIGTERM or SIGHUP.

    Does nothing outside the main thread, where Python cannot handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, _end, number, end)
    if sys.__stdin__ is not None and sys.__stdin__.isatty():
        fd = sys.__stdin__.fileno()
        threading.Thread(target=_hang_up_with, args=(fd,), name="terminal-watch", daemon=True).start()


def _hang_up_with(fd: int) -> None:
    """When the terminal goes, send what the system may not: under `make` no SIGHUP reaches the app."""
    poll = select.poll()
    poll.register(fd, 0)
    events = poll.poll()  # nothing but the end of the terminal wakes this
    if any(event & select.POLLHUP for _, event in events):
        _watchdog(128 + signal.SIGHUP)  # the main thread may be stuck writing to what is gone
        os.kill(os.getpid(), signal.SIGHUP)


def _watchdog(code: int) -> None:
    timer = threading.Timer(GRACE_S, os._exit, (code,))
    timer.daemon = True
    timer.start()


def _end(number: signal.Signals, end: Callable[[int], None]) -> None:
    code = 128 + number
    _watchdog(code)
    end(code)
