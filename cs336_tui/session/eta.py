"""How long each cell and the rest of a session will take, from the steps that were timed so far."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from cs336_tui.order import relative_work
from cs336_tui.session.state import CellState, SessionState
from cs336_tui.spec import RunSpec

_work = lru_cache(maxsize=1 << 15)(relative_work)


class Prices(NamedTuple):
    """Seconds of a step per unit of work, by device and precision, and of whichever cell was timed last."""

    alike: dict[tuple[str, str], float]
    any: float | None

    def of(self, spec: RunSpec) -> float | None:
        """Seconds that a run of this cell will take, all its steps; None before anything was timed."""
        rate = self.alike.get((spec.device, spec.precision), self.any)
        return None if rate is None else rate * _work(spec) * spec.total_steps


def prices(state: SessionState) -> Prices:
    """Prices after what was timed last, which is most like what comes next. Looks no further back than it must."""
    wanted = {(cell.spec.device, cell.spec.precision) for number in state.waiting if (cell := state.cells.get(number))}
    alike: dict[tuple[str, str], float] = {}
    latest: float | None = None
    for cell in reversed(state.cells.values()):
        if latest is not None and wanted <= alike.keys():
            break
        if cell.started_at is not None and (step_s := _typical_step(cell)) is not None:
            rate = step_s / _work(cell.spec)
            latest = rate if latest is None else latest
            alike.setdefault((cell.spec.device, cell.spec.precision), rate)
    return Prices(alike, latest)


def left_of_running_s(state: SessionState, known: Prices) -> float | None:
    """Seconds that the running cell still needs; 0 between cells."""
    cell = state.running_cell
    if cell is None:
        return 0.0
    own = _typical_step(cell)
    if own is not None:
        return own * max(cell.spec.total_steps - cell.steps_done, 0)
    return known.of(cell.spec)


def ends_s(state: SessionState, known: Prices, added: Sequence[RunSpec] = ()) -> list[float | None]:
    """Seconds until the running cell is done, then each of the waiting ones, then what would be added; None where
    nobody can tell."""
    ends = [left_of_running_s(state, known)]
    for spec in chain((state.cells[number].spec for number in state.waiting), added):
        needs, before = known.of(spec), ends[-1]
        ends.append(None if needs is None or before is None else before + needs)
    return ends


def remaining_s(state: SessionState) -> float | None:
    """Seconds until nothing waits any more, or None before the first step. Skipped cells take no time."""
    return ends_s(state, prices(state))[-1]


def _typical_step(cell: CellState) -> float | None:
    """The mean of the measured steps, else the latest warm-up step: the first of all is cold and says little."""
    if cell.running.n:
        return cell.running.mean
    return cell.warmup_times_s[-1] if cell.warmup_times_s else None
