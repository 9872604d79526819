"""How long this process stood ready and had no core to run on, as Linux's scheduler counts it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")


class CpuWait:
    """Counts from when it is made; reading takes tens of microseconds a thread, so not within a timed region."""

    def __init__(self) -> None:
        self._before = _run_delays()

    def seconds(self) -> float | None:
        """How long threads of this process waited for a core since, added up; None where the system does not tell.

        A thread that has ended since is not counted.
        """
        after = _run_delays()
        if not self._before or not after:
            return None
        return sum(max(delay - self._before.get(thread, 0), 0) for thread, delay in after.items()) / 1e9


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
