"""How long this process stood ready and had no core to run on, as Linux's scheduler counts it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TASKS = Path("/proc/self/task")


class Waited(NamedTuple):
    """How long threads of this process waited for a core, in seconds: all added up, and the one that waited longest."""

    sum_s: float
    longest_s: float


class CpuWait:
    """Counts from when it is made; reading takes tens of microseconds a thread, so not within a timed region."""

    def __init__(self) -> None:
        self._before = _run_delays()

    def read(self) -> Waited | None:
        """How long threads waited since; None where the system does not tell. One that has ended since is not counted,
        one that was begun since is."""
        after = _run_delays()
        if not self._before or not after:
            return None
        waits_s = [max(delay - self._before.get(thread, 0), 0) / 1e9 for thread, delay in after.items()]
        return Waited(sum(waits_s), max(waits_s))


def usable_cores() -> int | None:
    """Cores that threads of this process may run on, all threads together, as a threading library may tie each to its
    own; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    cores: set[int] = set()
    with suppress(OSError):
        for task in _TASKS.iterdir():
            with suppress(OSError, ValueError):
                cores |= os.sched_getaffinity(int(task.name))
    return len(cores) or None


def _run_delays() -> dict[str, int]:
    """Nanoseconds on a run queue by thread id: the second field of ``schedstat`` (Linux, sched-stats.rst)."""
    found: dict[str, int] = {}
    with suppress(OSError):
        for task in _TASKS.iterdir():
            # A thread may end before we come to it.
            with suppress(OSError, ValueError):
                ran, waited, _ = map(int, (task / "schedstat").read_text().split())
                if ran:  # a kernel that does not count gives zeros
                    found[task.name] = waited
    return found
