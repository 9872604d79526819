"""The time that the rest of a session will take, from the prices of its cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain
from statistics import median
from typing import NamedTuple

import msgspec

from cs336_tui.analysis.prices import Counts, Prices, kind_of, prices, sum_s, warm_steps
from cs336_tui.config.counts import duration_words
from cs336_tui.config.spec import CellSpec
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import duration


def left_of_running_s(cell: CellState, known: Prices, now: float | None) -> float | None:
    """Seconds that a running cell still needs."""
    mean_s = known.mean_of(_step_of_running(cell, known))
    steps_s = _steps_left_s(cell, known.counts, mean_s, now)
    if cell.steps_done or steps_s is None:
        return steps_s
    passed_s = (now or 0.0) - (cell.started_at or 0.0) if cell.spec.compile == "off" else 0.0
    return sum_s(steps_s, _left_of_compiling_s(cell, known, now), max(known.extra_s - passed_s, 0.0))


def _step_of_running(cell: CellState, known: Prices) -> float | None:
    """Seconds of its typical step. While it has less than three warm ones, what cells of its kind came to counts for
    two more, and twice what cells near it came to is the most."""
    own, priced = warm_steps(cell), known.step_of(cell.spec)
    if not own:
        return priced or next(iter(cell.warmup_times_s), None)
    if priced is None or len(own) > 2:
        return median(own)
    return median([*own, priced, priced]) if kind_of(cell.spec) in known.alike else min(median(own), 2 * priced)


def _left_of_compiling_s(cell: CellState, known: Prices, now: float | None) -> float | None:
    """Seconds that the running cell compiles yet, if it takes as long as the one before; 0 when it takes longer."""
    whole = known.compiling_of(cell.spec)
    if cell.prepared is not None:
        return 0.0
    if whole is None or cell.stage != "compiling" or cell.stage_began_at is None or now is None:
        return whole
    return max(whole - (now - cell.stage_began_at), 0.0)


class Ends(msgspec.Struct, frozen=True):
    """Seconds until cells are done; None is unknown."""

    running: dict[int, float | None]
    """By cell."""
    waiting: list[float | None]
    """Of the waiting cells in their order, then of what would be added."""

    @property
    def last_s(self) -> float | None:
        """Seconds until all are done; 0 where there is none."""
        ends = [*self.running.values(), *self.waiting]
        return None if None in ends else max(filter(None, ends), default=0.0)


def ends_s(state: SessionState, known: Prices, added: Sequence[CellSpec] = (), lanes: int = 1) -> Ends:
    """The end of each cell. A waiting cell starts when as many lanes are free as it has ranks: those that were opened,
    else `lanes`. Of jobs without lanes as many are taken to go on as run now."""
    left = {cell.cell: left_of_running_s(cell, known, state.last_at) for cell in state.running_cells}
    if not state.side_by_side and left:  # they take turns
        left = dict.fromkeys(left, sum_s(*left.values()))
    free_at = _free_at(state, left, lanes)
    waiting: list[float | None] = []
    began = 0.0
    for spec in chain((state.cells[number].spec for number in state.waiting), added):
        needs = known.of(spec)
        taken = [heappop(free_at) for _ in range(min(spec.ranks if state.lanes else 1, len(free_at)))]
        began = max(began, taken[-1])  # the first waits for its lanes, and those behind it with it
        end = math.inf if needs is None else began + needs
        for _ in taken:
            heappush(free_at, end)
        waiting.append(None if end == math.inf else end)
    return Ends(left, waiting)


def _free_at(state: SessionState, left: Mapping[int, float | None], lanes: int) -> list[float]:
    """When each lane is free, seconds from now, as a heap; infinity is unknown."""
    after = {cell: math.inf if left_s is None else left_s for cell, left_s in left.items()}
    if not state.side_by_side:
        return [next(iter(after.values()), 0.0)] + [0.0] * (0 if after else lanes - 1)
    free = [left_s for cell, left_s in after.items() for _ in range(max(len(state.cells[cell].lanes), 1))]
    if not state.jobs:
        free += [0.0 for lane in state.lanes.values() if lane.cell is None and lane.set_aside is None]
    heapify(free)
    return free or [0.0]


class Outlook(NamedTuple):
    """The prices of cells, and when each is done."""

    prices: Prices
    ends: Ends


def outlook_of(state: SessionState) -> Outlook:
    known = prices(state)
    return Outlook(known, ends_s(state, known))


def eta_words(left_s: float | None) -> str:
    """``ETA 1:03``: the time until nothing waits any more, wherever it is shown; empty while it is unknown."""
    return "" if left_s is None else f"ETA {duration(left_s)}"


def takes_s(known: Prices, cells: Sequence[CellSpec], lanes: int = 1) -> float | None:
    """Seconds that these cells take from the start of the first, with nothing before them; None is unknown."""
    return ends_s(SessionState(), known, cells, lanes).last_s


def takes_words(time_s: float | None) -> str:
    """``takes 1:03``: the time of cells that are not in the queue yet; empty while it is unknown."""
    return "" if time_s is None else f"takes {duration(time_s)}"


def remaining_s(state: SessionState) -> float | None:
    """Seconds until nothing waits any more, or None before the first step. Skipped cells take no time."""
    return outlook_of(state).ends.last_s


def share_done(state: SessionState) -> float | None:
    """The share of the session's time that has passed, of all cells that have run or will; None is unknown."""
    now, known = state.last_at or 0.0, prices(state)
    running = (left_of_running_s(cell, known, state.last_at) for cell in state.running_cells)
    left_s = sum_s(*running, *(known.of(state.cells[number].spec) for number in state.waiting))
    if left_s is None:
        return None
    ends = ((cell, cell.finished.at if cell.finished else now) for cell in state.cells.values())
    passed_s = sum(max(end - cell.started_at, 0.0) for cell, end in ends if cell.started_at is not None)
    return passed_s / (passed_s + left_s) if left_s else 1.0


def steps_so_far(cell: CellState, now: float | None) -> str:
    """Progress of the running cell's warm-up or measured steps: ``6/10``, ``34/≤1000``, ``51 % of 8s``."""
    spec, warms = cell.spec, cell.stage == "warm-up"
    if (for_s := spec.warmup_for if warms else spec.steps_for) is not None:
        return f"{min(_spent_s(cell, now) / for_s, 1.0) * 100:.0f} % of {duration_words(for_s)}"
    done, most = (cell.warmup_times_s, spec.warmup_steps) if warms else (cell.step_times_s, spec.measure_steps)
    is_auto = spec.warmup_auto if warms else spec.steps_auto is not None
    return f"{len(done)}/{'≤' if is_auto else ''}{most}"


def _spent_s(cell: CellState, now: float | None) -> float:
    """Seconds that the steps of its present stage, warm-up or measuring, came to. While a window of steps runs, none is
    reported: then the time since the stage began."""
    if cell.running.n:
        return cell.running.mean * cell.running.n
    if cell.stage == "warm-up" and cell.warmup_times_s:
        return sum(cell.warmup_times_s)
    is_window = cell.spec.timer == "do_bench" or (cell.spec.is_window and cell.stage == "measuring")
    began = cell.stage_began_at
    return max(now - began, 0.0) if is_window and now is not None and began is not None else 0.0


def _steps_left_s(cell: CellState, counts: Counts, mean_s: float | None, now: float | None) -> float | None:
    """Seconds of the steps that the running cell is likely to run yet."""
    warmup, measured = counts.of(cell.spec)
    if cell.running.n or (cell.spec.warmup_is_open and cell.stage == "measuring"):
        return measured.left_s(mean_s, cell.running.n, _spent_s(cell, now))
    spent = _spent_s(cell, now) if cell.stage == "warm-up" else 0.0
    return sum_s(warmup.left_s(mean_s, len(cell.warmup_times_s), spent), measured.left_s(mean_s))
