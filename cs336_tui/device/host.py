"""The host's own measurements through psutil: what a machine without a GPU can still show."""

from __future__ import annotations

import os
import time

import psutil

from cs336_tui.events import HostSample

_SHORTEST_CPU_WINDOW_S = 0.1
"""The kernel counts CPU time in ticks of 10 ms, so that a shorter window gives noise."""


class HostReader:
    """Reads the host. Use it from one thread: psutil keeps the last CPU times per thread."""

    def __init__(self) -> None:
        self._cpu_count = psutil.cpu_count()
        self._cpu: float | None = None
        self._cpu_read_at = time.monotonic()
        self._child: psutil.Process | None = None
        psutil.cpu_percent()

    def sample(self, child: int | None = None) -> HostSample:
        """The host now; `child` is the PID of the running cell's process.

        Memory in use is all that could not be had without swapping. CPU share is over the time since the last
        sample, None at first; inside a container, CPU, memory and load are the whole machine's.
        """
        memory = psutil.virtual_memory()
        return HostSample(
            cpu=self._cpu_share(),
            memory_used_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            child_rss_bytes=self._rss(child),
            load_1m=_load(),
            cpu_count=self._cpu_count,
        )

    def _cpu_share(self) -> float | None:
        now = time.monotonic()
        if now - self._cpu_read_at >= _SHORTEST_CPU_WINDOW_S:
            self._cpu = psutil.cpu_percent() / 100
            self._cpu_read_at = now
        return self._cpu

    def _rss(self, pid: int | None) -> int | None:
        if pid is None:
            self._child = None
            return None
        try:
            if self._child is None or self._child.pid != pid:
                self._child = psutil.Process(pid)
            return self._child.memory_info().rss or None  # a process that has ended and awaits its parent has none
        except psutil.Error:
            return None


def _load() -> float | None:
    """Average number of runnable processes over the last minute."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None
