"""What it means when a child ends without a word: from its exit code to a status and a sentence."""

from __future__ import annotations

import signal
from pathlib import Path

from cs336_tui.events.events import Status

_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}


def kernel_oom_kills() -> int | None:
    """How many processes the kernel has killed for lack of memory since boot; None where it does not say."""
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None


def explain_exit(exitcode: int | None, oom_kills: int | None) -> tuple[Status, str]:
    """Status and one-line error of a child that ended with `exitcode` before it reported a result.

    A negative exit code is the signal that ended it. `oom_kills` counts the kernel's out-of-memory kills while the
    child ran, None when unknown.
    """
    if exitcode is None or exitcode >= 0:
        return "failed", f"the process ended with exit code {exitcode} before reporting a result; see its output"
    try:
        number = signal.Signals(-exitcode)
        name = f"{number.name} ({signal.strsignal(number)})"
    except ValueError:
        return "killed", f"the process was ended by signal {-exitcode}"
    if number in _CRASHES:
        return "failed", f"the process crashed with {name}; see its output"
    if number is signal.SIGKILL:
        if oom_kills:
            return "oom", f"the kernel killed the process for lack of memory: {name}"
        return "killed", f"the process was ended by {name}; the kernel does this when the machine runs out of memory"
    return "killed", f"the process was ended by {name}"
