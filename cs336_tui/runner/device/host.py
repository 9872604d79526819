"""Measures the host through psutil."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psutil

from cs336_tui.events.events import HostSample

_SHORTEST_CPU_WINDOW_S = 0.1  # the kernel counts CPU time in ticks of 10 ms; shorter windows give noise


_T = TypeVar("_T")


class HostReader:
    """Reads the host. Use it from one thread: psutil keeps the last CPU times per thread."""

    def __init__(self) -> None:
        self._cpu_count = psutil.cpu_count()
        self._cpu: float | None = None
        self._steal: float | None = None
        self._cpu_read_at = time.monotonic()
        self._core_times = _core_times()
        self._child: psutil.Process | None = None
        self._child_cores: float | None = None
        self._child_before: tuple[float, float] | None = None
        """Begin of the child's window (monotonic seconds) and its CPU time then (seconds)."""
        psutil.cpu_percent()

    def sample(self, child: int | None = None) -> HostSample:
        """The host now; `child` is the PID of the running cell's process. Memory in use is all that is not available
        without swapping. CPU share, steal and the child's cores, with those of its own children that have ended, are
        since the last sample, None at first. In a container, all but the child's are the machine's."""
        memory = psutil.virtual_memory()
        self._follow(child)
        self._read_cores()
        return HostSample(
            cpu=self._cpu,
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            child_rss_bytes=self._of_child(lambda child: child.memory_info().rss) or None,  # one that has ended has 0
            child_cores=self._child_cores,
            steal=self._steal,
            load_1m=_load_1m(),
            cpu_count=self._cpu_count,
        )

    def _read_cores(self) -> None:
        """Close the windows of time, unless they are too short, and begin the next ones."""
        now = time.monotonic()
        if now - self._cpu_read_at < _SHORTEST_CPU_WINDOW_S:
            return
        self._cpu = psutil.cpu_percent() / 100
        before, self._core_times = self._core_times, _core_times()
        self._steal = _stolen_share(before, self._core_times)
        self._cpu_read_at = now
        self._read_child_cores(now)

    def _read_child_cores(self, now: float) -> None:
        before = self._child_before
        if before is not None and now - before[0] < _SHORTEST_CPU_WINDOW_S:
            return
        used_s = self._child_cpu_s()
        self._child_cores = (used_s - before[1]) / (now - before[0]) if before and used_s is not None else None
        self._child_before = None if used_s is None else (now, used_s)

    def _follow(self, pid: int | None) -> None:
        if pid == (self._child.pid if self._child else None):
            return
        self._child = self._child_cores = self._child_before = None
        with suppress(psutil.Error):
            self._child = psutil.Process(pid) if pid is not None else None
        if (used_s := self._child_cpu_s()) is not None:
            self._child_before = time.monotonic(), used_s

    def _child_cpu_s(self) -> float | None:
        """CPU time of the child and of its own children that have ended."""
        return self._of_child(lambda child: sum(child.cpu_times()[:4]))

    def _of_child(self, read: Callable[[psutil.Process], _T]) -> _T | None:
        with suppress(psutil.Error):
            return read(self._child) if self._child else None
        return None


def _core_times() -> tuple[float, float | None]:
    """Seconds of all cores together, and those stolen from them, None if the system does not count these."""
    times = psutil.cpu_times()
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted in user and nice, too
    return sum(times) - guests, getattr(times, "steal", None)


def _stolen_share(before: tuple[float, float | None], after: tuple[float, float | None]) -> float | None:
    (total_before, stolen_before), (total, stolen) = before, after
    if stolen_before is None or stolen is None or total <= total_before:
        return None
    return min(max(stolen - stolen_before, 0.0) / (total - total_before), 1.0)


def _load_1m() -> float | None:
    """Average number of runnable processes over the last minute; None if the system does not tell it."""
    with suppress(OSError):
        return psutil.getloadavg()[0]
    return None
