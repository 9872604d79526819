"""Who else is on the GPU: the processes that NVML lists, less this app and its children."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import psutil

from cs336_tui.events.events import GpuProcess

_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the machine's own PID namespace (PROC_PID_INIT_INO of Linux's proc_ns.h)."""


def in_own_pid_namespace() -> bool:
    """Whether this process counts PIDs by itself, as in most containers. False where there are no namespaces."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino != _FIRST_PID_NAMESPACE
    except OSError:
        return False


class OtherProcesses:
    """Tells strangers from this app's own process tree; looks at each process once, while it stays listed."""

    def __init__(self, *, namespaced: bool | None = None) -> None:
        """`namespaced`: whether PIDs may be another namespace's; None finds out."""
        self._namespaced = in_own_pid_namespace() if namespaced is None else namespaced
        self._own: dict[int, bool] = {}
        self._names: dict[int, str | None] = {}

    def among(self, listed: Mapping[int, int | None], child: int | None) -> tuple[GpuProcess, ...] | None:
        """The strangers among processes that NVML lists (PID to bytes of GPU memory), by PID.

        `child` is own too, whoever its parent is. None when the answer would be a guess: in a container older
        drivers list the host's PIDs, where none of our own can be recognised, and newer ones hide the processes
        outside it, so that "nobody else" is never certain there.
        """
        self._own = {
            pid: pid == child or (self._own[pid] if pid in self._own else _descends_from_us(pid)) for pid in listed
        }
        strangers = sorted(pid for pid, own in self._own.items() if not own)
        recognised = any(self._own.values())
        if self._namespaced and not (recognised and strangers):
            return None
        self._names = {pid: self._names[pid] if pid in self._names else _name(pid) for pid in strangers}
        return tuple(
            # Zero is how a container says "unknown": a process with a context holds some memory.
            GpuProcess(pid=pid, name=self._names[pid], memory_bytes=listed[pid] or None)
            for pid in strangers
        )


def _descends_from_us(pid: int) -> bool:
    if pid == os.getpid():
        return True
    try:
        return any(parent.pid == os.getpid() for parent in psutil.Process(pid).parents())
    except psutil.Error:
        return False


def _name(pid: int) -> str | None:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return None
