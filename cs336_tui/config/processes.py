"""Looks at other processes: whether one lives."""

from __future__ import annotations


def lives(pid: int, since: float | None = None) -> bool:
    """False if the process is known to have ended. `since` is its start (Unix seconds), as PIDs are reused. A zombie
    has ended: it stays for ever where the first process of a container reaps nothing. A stopped process lives."""
    import psutil

    try:
        process = psutil.Process(pid)
        is_same = since is None or abs(process.create_time() - since) < 2.0
        return is_same and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # it may not be looked at
        return True
