"""Measures the host through psutil."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import TypeVar

import psutil

from cs336_tui.events.environment import HostSample, RankSample

_SHORTEST_CPU_WINDOW_S = 0.1  # the kernel counts CPU time in ticks of 10 ms; shorter windows give noise


_T = TypeVar("_T")


class HostReader:
    """Reads the host. Use it from one thread: psutil keeps the last CPU times per thread."""

    def __init__(self) -> None:
        self._cpu_count = psutil.cpu_count()
        self._cpu: float | None = None
        self._steal: float | None = None
        self._cpu_read_at = monotonic()
        self._core_times = _core_times()
        self._children: dict[int, _Child] = {}
        psutil.cpu_percent()

    def sample(self, *children: int | None) -> HostSample:
        """The host now; `children` are the PIDs of the running cell's ranks. Memory in use is all that is not available
        without swapping. CPU share, steal and the children's cores, with those of their own children that have ended,
        are since the last sample, None at first. In a container, all but the children's are the machine's."""
        return self.sample_each([tuple(pid for pid in children if pid is not None)])[0]

    def sample_each(self, cells: Sequence[Sequence[int]], later: Sequence[Sequence[int]] = ()) -> list[HostSample]:
        """As `sample`, for cells that run side by side, each with the PIDs of its ranks. Those that are sampled `later`
        are followed on."""
        memory = psutil.virtual_memory()
        self._children = {pid: self._children.get(pid) or _Child(pid) for pids in (*cells, *later) for pid in pids}
        self._read_cores()
        load_1m: float | None = None
        with suppress(OSError):  # runnable processes, on average; the system may not tell their number
            load_1m = psutil.getloadavg()[0]
        found = []
        for pids in cells:
            ranks = tuple(self._children[pid].sample() for pid in pids)
            cores = [each.cores for each in ranks if each.cores is not None]
            beside = [each.cores for pid, each in self._children.items() if pid not in pids and each.cores is not None]
            sample = HostSample(
                cpu=self._cpu,
                memory_used_bytes=memory.total - memory.available,
                memory_total_bytes=memory.total,
                child_rss_bytes=max((each.rss_bytes for each in ranks if each.rss_bytes is not None), default=None),
                child_cores=sum(cores) if cores else None,
                beside_cores=sum(beside) if beside else None,
                steal=self._steal,
                load_1m=load_1m,
                cpu_count=self._cpu_count,
                ranks=ranks if len(ranks) > 1 else (),
            )
            found.append(sample)
        return found

    def _read_cores(self) -> None:
        """Close the windows of time, unless they are too short, and begin the next ones."""
        now = monotonic()
        if now - self._cpu_read_at < _SHORTEST_CPU_WINDOW_S:
            return
        self._cpu = psutil.cpu_percent() / 100
        before, self._core_times = self._core_times, _core_times()
        (total_before, stolen_before), (total, stolen) = before, self._core_times
        self._steal = None
        if stolen_before is not None and stolen is not None and total > total_before:
            self._steal = min(max(stolen - stolen_before, 0.0) / (total - total_before), 1.0)
        self._cpu_read_at = now
        for each in self._children.values():
            each.read_cores(now)


class _Child:
    """A process of the running cell and the cores that it used in the last window."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.cores: float | None = None
        self._process: psutil.Process | None = None
        with suppress(psutil.Error):
            self._process = psutil.Process(pid)
        used_s = self._cpu_s()
        self._before = None if used_s is None else (monotonic(), used_s)
        """Begin of its window (monotonic seconds) and its CPU time then (seconds)."""

    def sample(self) -> RankSample:
        rss_bytes = self._read(lambda process: process.memory_info().rss) or None  # one that has ended has 0
        return RankSample(pid=self.pid, rss_bytes=rss_bytes, cores=self.cores)

    def read_cores(self, now: float) -> None:
        """Close its window, unless that is too short, and begin the next one."""
        before = self._before
        if before is not None and now - before[0] < _SHORTEST_CPU_WINDOW_S:
            return
        used_s = self._cpu_s()
        self.cores = (used_s - before[1]) / (now - before[0]) if before and used_s is not None else None
        self._before = None if used_s is None else (now, used_s)

    def _cpu_s(self) -> float | None:
        """CPU time of the process and of its own children that have ended."""
        return self._read(lambda process: sum(process.cpu_times()[:4]))

    def _read(self, read: Callable[[psutil.Process], _T]) -> _T | None:
        with suppress(psutil.Error):
            return read(self._process) if self._process else None
        return None


def _core_times() -> tuple[float, float | None]:
    """Seconds of all cores together, and those stolen from them, None if the system does not count these."""
    times = psutil.cpu_times()
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted in user and nice, too
    return sum(times) - guests, getattr(times, "steal", None)
