"""The window of a cell, the time in which it measured, and what its samples tell, in words."""

from __future__ import annotations

from math import fsum

from cs336_tui.session.cell_state import CellState
from cs336_tui.stats.quantities import fixed_milliseconds, millisecond_decimals


def unseen(cell: CellState, otherwise: str) -> str:
    """Why the window's samples do not tell something of the GPU."""
    around = cell.surroundings
    if not around.samples:
        return f"no device sample fell into the {seconds(window_s(cell))} of measuring"
    return around.why or f"NVML {otherwise}"


def window_s(cell: CellState) -> float:
    """How long the cell measured; what lies between steps included where that is known."""
    assert cell.finished is not None
    known = cell.finished.measured_for_s
    return fsum(cell.step_times_s) if known is None else known


def samples(count: int) -> str:
    return f"{count} sample{'' if count == 1 else 's'}"


def percent(share: float) -> str:
    return f"{share * 100:.{0 if share >= 0.0995 else 1}f} %"


def milliseconds(time_s: float) -> str:
    return f"{fixed_milliseconds(time_s, millisecond_decimals(time_s, None))} ms"


def seconds(time_s: float) -> str:
    """Always in seconds, so that lengths of windows can be read side by side: ``3.0 s``, ``0.088 s``."""
    return f"{time_s:.1f} s" if time_s >= 1 else f"{time_s:.2g} s"


def threads(count: int) -> str:
    return f"{count} thread{'' if count == 1 else 's'}"


def cores(number: float) -> str:
    """``1 core``, ``1.5 cores``."""
    return "1 core" if f"{number:.1f}" == "1.0" else f"{number:.1f} cores"
