"""`cs336-tui selftest`."""

from __future__ import annotations

from typing import Any


def selftest_command(**options: Any) -> int:
    """Carry the command out; returns the exit code."""
    raise NotImplementedError(options)
