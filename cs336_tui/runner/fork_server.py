"""Looks after the fork server of this process. One that does not answer is killed, which ends every wait for it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import Any

LOADS_WITHIN_S = 120.0
"""Seconds in which a server imports torch."""
ANSWERS_WITHIN_S = 10.0
"""Seconds in which a server that has done so starts a process, or tells the end of one."""
STOPPED_FOR_S = 1.0
"""Seconds for which a server that is waited for may be stopped (SIGSTOP)."""
UNWANTED_FOR_S = 0.6
"""Seconds for which a start that nobody wants any more is waited for."""
_LOOK_S = 0.2


@dataclass
class Start:
    """The start of a process that the server was asked for."""

    within_s: float | None
    """A limit in seconds beside those above."""
    is_unwanted: Callable[[], bool]
    waited_s: float = 0.0
    """Without the time for which this process itself was stopped."""
    failed_because: str = ""
    """Why the server was killed; another one may answer unless `is_final`."""
    is_final: bool = False


class ServerWatch:
    """Waits for the server beside those who wait in `multiprocessing`, where no wait has a limit: for the start of a
    process, and for the end of one in `living` that is dead. A look at them costs tens of microseconds a process."""

    def __init__(self) -> None:
        self.living: set[int] = set()
        """The processes of this one that were started and not closed."""
        self._changed = threading.Condition()
        self._start: Start | None = None
        self._unreaped: dict[int, float] = {}
        """Dead processes of the server, and for how many seconds it has not told their end."""
        self._loaded: int | None = None  # the PID of the server that has answered
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def starting(self, start: Start) -> Iterator[None]:
        """While entered a process is being started; one at a time."""
        with self._changed:
            self._start = start
            if self._thread is None:
                self._thread = threading.Thread(target=self._look_after, name="cs336-fork-server", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        try:
            yield
            self._loaded = server_pid()
        finally:
            with self._changed:
                self._start = None

    def _look_after(self) -> None:
        while True:
            with self._changed:
                if self._start is None and not self.living:
                    self._thread = None
                    return
                before = time.monotonic()
                self._changed.wait(_LOOK_S if self._start or self._unreaped else 5 * _LOOK_S)
                start = self._start
            if (server := server_pid()) is not None:
                self._look(server, start, min(time.monotonic() - before, 5 * _LOOK_S))

    def _look(self, server: int, start: Start | None, passed_s: float) -> None:
        dead = [pid for pid in tuple(self.living) if _is_unreaped(pid, server)]
        self._unreaped = {pid: self._unreaped.get(pid, -passed_s) + passed_s for pid in dead}
        if start is not None:
            start.waited_s += passed_s
        waited_s = max([*self._unreaped.values(), start.waited_s if start else 0.0])
        if waited_s >= STOPPED_FOR_S and _is_stopped(server):
            self._give_up(server, start, "was stopped (SIGSTOP)")
        elif self._unreaped and max(self._unreaped.values()) >= ANSWERS_WITHIN_S:
            self._give_up(server, start, f"did not answer within {ANSWERS_WITHIN_S:g} s")
        elif start is not None and start.is_unwanted() and start.waited_s >= UNWANTED_FOR_S:
            self._give_up(server, start, "did not answer before the stop", is_final=True)
        elif start is not None:
            limit_s = ANSWERS_WITHIN_S if self._loaded == server else LOADS_WITHIN_S
            limit_s = min(limit_s, start.within_s or limit_s)
            if start.waited_s >= limit_s:
                why = f"did not answer within {limit_s:g} s"
                self._give_up(server, start, why, is_final=self._loaded != server)

    def _give_up(self, server: int, start: Start | None, why: str, *, is_final: bool = False) -> None:
        if start is not None:
            start.failed_because, start.is_final = f"the fork server {why}", is_final
        known: Any = forkserver._forkserver
        with known._lock:  # nobody else waits for its end meanwhile, so that the PID is its own
            if known._forkserver_pid == server:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(server, signal.SIGKILL)


def server_pid() -> int | None:
    """The PID of this process's fork server; None without one."""
    known: Any = forkserver._forkserver
    pid: int | None = known._forkserver_pid
    return pid


def _is_stopped(pid: int) -> bool:
    import psutil

    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def _is_unreaped(pid: int, server: int) -> bool:
    """True if it is a zombie that the server is to wait for."""
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE and process.ppid() == server
    return False


WATCH = ServerWatch()
"""The one of this process, which has one fork server."""
