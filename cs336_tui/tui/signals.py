"""SIGTERM and a closed terminal end the app in good order, and for certain."""

from __future__ import annotations

import asyncio
import os
import signal
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


def _end(number: signal.Signals, end: Callable[[int], None]) -> None:
    code = 128 + number
    watchdog = threading.Timer(GRACE_S, os._exit, (code,))
    watchdog.daemon = True
    watchdog.start()
    end(code)
