"""How long the rest of a session will take, from the steps that were timed so far."""

from __future__ import annotations

from cs336_tui.session.state import CellState, SessionState
from cs336_tui.spec import RunSpec

_PASS_WORK = {"inference": 1.0, "forward": 1.0, "backward": 3.0, "forward+backward": 3.0, "train-step": 3.0}


def relative_work(spec: RunSpec) -> float:
    """Work of one step in arbitrary units, about proportional to its FLOPs.

    2 FLOPs per matmul weight and token plus the attention scores, times 3 with a backward (Kaplan et al. 2020,
    section 2.1). The `backward` pass counts its untimed forward, since that takes time too.
    """
    matrices = 3 if spec.arch == "swiglu-rope" else 2
    weights = spec.num_layers * (4 * spec.d_model**2 + matrices * spec.d_model * spec.d_ff)
    weights += spec.d_model * spec.vocab_size
    scores = 2 * spec.num_layers * spec.context_length * spec.d_model
    return spec.tokens_per_step * (weights + scores) * _PASS_WORK[spec.pass_]


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
