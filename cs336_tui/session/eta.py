"""How long the rest of a session will take, from the steps that were timed so far."""

from __future__ import annotations

from cs336_tui.order import relative_work
from cs336_tui.session.state import CellState, SessionState


def remaining_s(state: SessionState) -> float | None:
    """Seconds until every queued cell is done, or None before the first step.

    Each remaining step is priced by the timed steps most like it: of its own cell, else of the same device and
    precision per unit of work, else of any cell per unit of work.
    """
    total = 0.0
    for cell in state.cells.values():
        left = cell.spec.total_steps - cell.steps_done
        if cell.is_over or left <= 0:
            continue
        price = _step_price(cell, state)
        if price is None:
            return None
        total += left * price
    return total


def _step_price(cell: CellState, state: SessionState) -> float | None:
    if own := _typical_step(cell):
        return own
    timed = [(other, _typical_step(other)) for other in state.cells.values()]
    rates = [
        ((other.spec.device, other.spec.precision), time_s / relative_work(other.spec))
        for other, time_s in timed
        if time_s is not None
    ]
    alike = [rate for kind, rate in rates if kind == (cell.spec.device, cell.spec.precision)]
    pool = alike or [rate for _, rate in rates]
    return pool[-1] * relative_work(cell.spec) if pool else None


def _typical_step(cell: CellState) -> float | None:
    """The cell's latest step time; the first step of all is cold and says little unless it is the only one."""
    if cell.step_times_s:
        return cell.running.mean
    return cell.warmup_times_s[-1] if cell.warmup_times_s else None
