"""`cs336-tui ab`."""

from __future__ import annotations

from typing import Any


def ab_command(**options: Any) -> int:
    """Carry the command out; returns the exit code."""
    raise NotImplementedError(options)
