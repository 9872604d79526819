"""The times of cells by those of the cells timed so far, and the time that the rest of a session will take. Prices
are medians, of a cell's steps and of the cells most like it, so that a single stall does not count. What a cell takes
beside its steps (start, cold step, stalls) is a mean in which no cell counts for more than three times the median."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import accumulate, chain
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from cs336_tui.config.counts import duration_words
from cs336_tui.config.order import pace, relative_work, time_kind
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import WITHOUT_BACKWARD
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import duration, whole_percent

_work = lru_cache(maxsize=1 << 15)(relative_work)
kind_of = lru_cache(maxsize=1 << 15)(time_kind)
_pace = lru_cache(maxsize=1 << 15)(pace)
RECENT = 9
"""So many of the latest cells of a kind tell the price of one."""
_RECENT_STEPS = 31
_BEND = 0.85
"""Power of the work with which steps grow beyond the largest timed, if launches bound small ones."""
_FADES = 0.8
"""By which a cell's weight is multiplied for each later one of its kind."""
_MOST_EXTRA = 3.0
"""The time of cells beside typical steps counts up to so many times its median."""


def _launches(spec: CellSpec) -> float:
    """The amount of launching in a step, in arbitrary units: it bounds the steps of small models on a fast GPU."""
    return spec.num_layers * (1.0 if spec.pass_ in WITHOUT_BACKWARD else 3.0)


class Count(msgspec.Struct, frozen=True):
    """A cell's warm-up or measured steps: the likely number, the most, and the seconds that decide it, if they do."""

    likely: int
    most: int
    for_s: float | None

    def left_s(self, mean_s: float | None, done: int = 0, spent_s: float = 0.0) -> float | None:
        """Seconds of the steps after `done`, which took `spent_s`, if the mean is `mean_s`; None is unknown. Where an
        automatic count has gone beyond what is likely, it is taken to go on for a quarter more, which is about when it
        is looked at next."""
        if self.for_s is not None:
            left_s = max(self.for_s - spent_s, 0.0 if done else mean_s or 0.0)
            return left_s if mean_s is None else min(left_s, mean_s * (self.most - done))
        left = self.likely - done if done < self.likely else min(done // 4, self.most - done)
        return None if mean_s is None else mean_s * left


class Counts(NamedTuple):
    """Steps that automatic counts came to in the cells that ended last; None where there is none."""

    warmup: int | None = None
    measured: int | None = None

    def of(self, spec: CellSpec) -> tuple[Count, Count]:
        """Warm-up and measured steps; an automatic count without one to go by is likely to come to the most."""
        warmup = self.warmup if spec.warmup_auto and self.warmup is not None else spec.warmup_steps
        measured = self.measured if spec.steps_auto is not None and self.measured is not None else spec.measure_steps
        return (
            Count(min(warmup, spec.warmup_steps), spec.warmup_steps, spec.warmup_for),
            Count(min(measured, spec.measure_steps), spec.measure_steps, spec.steps_for),
        )

    def with_those_of(self, cell: CellState) -> Counts:
        """These, and where one is not known yet, that of this cell if it ended well."""
        found = self
        if cell.status == "ok" and found.warmup is None and cell.spec.warmup_auto:
            found = found._replace(warmup=cell.steps_done - cell.running.n)
        if cell.status == "ok" and found.measured is None and cell.spec.steps_auto is not None:
            found = found._replace(measured=cell.running.n)
        return found


Kind = tuple[object, ...]
"""The settings that decide, beside the work, how long a step takes."""


class TimedStep(msgspec.Struct, frozen=True):
    """One measured step of a cell: seconds, its work, and its launches in arbitrary units."""

    s: float
    work: float
    launches: float


class Cost(NamedTuple):
    """The larger of seconds by work and by launches; no step of more work than `most_work` was timed."""

    per_work_s: float
    per_launch_s: float
    most_work: float

    def of(self, work: float, launches: float) -> float:
        if self.per_launch_s and work > self.most_work:
            work = self.most_work * (work / self.most_work) ** _BEND
        return max(self.per_work_s * work, self.per_launch_s * launches)

    @classmethod
    def least(cls, timed: Sequence[TimedStep]) -> Cost:
        """By the quickest of several. Launches count when a cell shows that they bound it, and not its work."""
        per_work_s = min(each.s / each.work for each in timed)
        per_launch_s = min(each.s / each.launches for each in timed)
        is_bound = any(
            each.s > 1.25 * per_work_s * each.work and each.s < 2 * per_launch_s * each.launches for each in timed
        )
        return cls(per_work_s, per_launch_s if is_bound else 0.0, max(each.work for each in timed))

    def fitted_to(self, timed: Sequence[TimedStep]) -> Cost:
        """As many times as much as these took: the weighted median, in which earlier ones in the list weigh more."""
        weighed = sorted((each.s / self.of(each.work, each.launches), _FADES**age) for age, each in enumerate(timed))
        half = sum(weight for _, weight in weighed) / 2
        passed = list(accumulate(weight for _, weight in weighed))
        factor = weighed[min(bisect_left(passed, half), len(passed) - 1)][0]
        return self._replace(per_work_s=self.per_work_s * factor, per_launch_s=self.per_launch_s * factor)


class Prices(msgspec.Struct, frozen=True):
    """The times of the latest cells: a step of a kind of cell, of a near kind, of any; compiling; the rest."""

    alike: dict[Kind, Cost]
    near: dict[Kind, Cost]
    any: Cost | None
    compiling: dict[str, list[float]]
    """Seconds that compiling took, the latest first, by torch.compile's mode."""
    extra_s: float = 0.0
    """Seconds that a cell takes beside compiling and its steps."""
    stalling: float = 1.0
    """The mean of steps as a share of a typical one."""
    counts: Counts = Counts()

    def of(self, spec: CellSpec) -> float | None:
        """Seconds that a run of this cell will take, starting, compiling and all its steps; None before anything like
        it was timed or compiled. Automatic counts are taken to come to what they came to last."""
        mean_s, compile_s = self.mean_of(self.step_of(spec)), self.compiling_of(spec)
        steps_s = sum_s(*(count.left_s(mean_s) for count in self.counts.of(spec)))
        return sum_s(self.extra_s, compile_s, steps_s)

    def mean_of(self, step_s: float | None) -> float | None:
        """The mean of a cell's steps whose typical one takes so many seconds."""
        return None if step_s is None else self.stalling * step_s

    def step_of(self, spec: CellSpec) -> float | None:
        """Seconds of one of its steps."""
        cost = self.alike.get(kind_of(spec)) or self.near.get(_pace(spec)) or self.any
        return cost.of(_work(spec), _launches(spec)) if cost else None

    def compiling_of(self, spec: CellSpec) -> float | None:
        """Seconds before its first step; None while no cell has been compiled in its mode."""
        if spec.compile == "off":
            return 0.0
        taken_s = self.compiling.get(spec.compile, [])
        return median(taken_s) if len(taken_s) > 2 else next(iter(taken_s), None)


def prices(state: SessionState) -> Prices:
    """Prices after what was timed last, which is most like what comes next. Looks no further back than it must."""
    running = state.running_cells
    ahead = [cell.spec for number in state.waiting if (cell := state.cells.get(number))]
    ahead += [cell.spec for cell in running]
    wanted = set(map(kind_of, ahead))
    modes = {spec.compile for spec in ahead} - {"off"}
    asked = any(spec.warmup_auto for spec in ahead), any(spec.steps_auto is not None for spec in ahead)
    found = _Found()
    counts = Counts()
    for cell in reversed(state.cells.values()):
        counted = all(count is not None or not is_asked for count, is_asked in zip(counts, asked, strict=True))
        kinds = {kind for _, kind in found.alike}
        if counted and len(found.any) >= RECENT and wanted <= kinds and modes <= found.compiling.keys():
            break
        counts = counts.with_those_of(cell)
        found.learn(cell)
    if not found.any:
        for cell in running:
            if few := warm_steps(cell) or cell.warmup_times_s:
                found.add_step(cell.spec, median(few))  # even a cold one is better than none
    return found.prices(counts)


class _Found:
    """Times of cells, the latest first: they are to be added in this order. `alike` is by pace and kind."""

    def __init__(self) -> None:
        self.alike: dict[tuple[Kind, Kind], list[TimedStep]] = {}
        self.near: dict[Kind, list[TimedStep]] = {}
        self.any: list[TimedStep] = []
        self.compiling: dict[str, list[float]] = {}
        self.extras: list[float] = []
        self.stalling: list[float] = []

    def learn(self, cell: CellState) -> None:
        if cell.started_at is None:
            return
        compile_s = (cell.prepared.compile_s if cell.prepared else None) or 0.0
        if compile_s:
            self.compiling.setdefault(cell.spec.compile, []).append(compile_s)
        step_s = _typical_step(cell)
        if step_s is None:
            return
        self.add_step(cell.spec, step_s)
        if cell.finished is not None and cell.status == "ok" and not cell.in_turns:
            measured, warmup_for = cell.running, cell.spec.warmup_for
            warmup_s = step_s * (cell.steps_done - measured.n) if warmup_for is None else warmup_for
            steps_s = warmup_s + measured.mean * measured.n
            self.stalling.append(cell.running.mean / step_s if cell.running.n else 1.0)
            self.extras.append(max(cell.finished.at - cell.started_at - compile_s - steps_s, 0.0))

    def add_step(self, spec: CellSpec, step_s: float) -> None:
        timed = TimedStep(step_s, _work(spec), _launches(spec))
        self.any.append(timed)
        self.alike.setdefault((_pace(spec), kind_of(spec)), []).append(timed)
        self.near.setdefault(_pace(spec), []).append(timed)

    def prices(self, counts: Counts) -> Prices:
        latest, by_pace = self.any[:RECENT], {near: timed[: 2 * RECENT] for near, timed in self.near.items()}
        least = {near: Cost.least(timed) for near, timed in by_pace.items()}
        return Prices(
            alike={kind: least[near].fitted_to(timed[:RECENT]) for (near, kind), timed in self.alike.items()},
            near={near: least[near].fitted_to(timed) for near, timed in by_pace.items()},
            any=Cost.least(latest).fitted_to(latest) if latest else None,
            compiling={mode: taken_s[:RECENT] for mode, taken_s in self.compiling.items()},
            extra_s=_usual_mean(self.extras[:RECENT]),
            stalling=_usual_mean(self.stalling[:RECENT]) or 1.0,
            counts=counts,
        )


def _usual_mean(values: list[float]) -> float:
    """The mean, but that none counts for more than `_MOST_EXTRA` times the median; 0 of none."""
    most = _MOST_EXTRA * median(values) if values else 0.0
    return fmean(min(value, most) for value in values) if values else 0.0


def sum_s(*values: float | None) -> float | None:
    """The sum, None if one is."""
    return None if None in values else sum(filter(None, values))


def warm_steps(cell: CellState) -> list[float]:
    """Its latest measured steps, with warm-up steps where those are few; not the first of all, which is cold."""
    measured = cell.step_times_s[-_RECENT_STEPS:]
    return measured if len(measured) >= RECENT else [*cell.warmup_times_s[1:], *measured][-_RECENT_STEPS:]


def _typical_step(cell: CellState) -> float | None:
    """The median of the measured steps, else of the warm-up steps but the first, which is cold and says little, unless
    a cell that is over has no other. None as long as a single stall may be what is typical of a running one."""
    if cell.finished is not None and (summary := cell.finished.summary) is not None and summary.median_s is not None:
        return summary.median_s
    steps = warm_steps(cell)
    if cell.is_over:
        steps = steps or cell.warmup_times_s
    elif len(steps) < 3:
        return None
    return median(steps) if steps else None


def left_of_running_s(cell: CellState, known: Prices, now: float | None) -> float | None:
    """Seconds that a running cell still needs."""
    mean_s = known.mean_of(_step_of_running(cell, known))
    warmup, measured = known.counts.of(cell.spec)
    if cell.running.n or (cell.spec.warmup_is_open and cell.stage == "measuring"):
        steps_s = measured.left_s(mean_s, cell.running.n, _spent_s(cell, now))
    else:
        spent_s = _spent_s(cell, now) if cell.stage == "warm-up" else 0.0
        steps_s = sum_s(warmup.left_s(mean_s, len(cell.warmup_times_s), spent_s), measured.left_s(mean_s))
    if cell.steps_done or steps_s is None:
        return steps_s
    passed_s = (now or 0.0) - (cell.started_at or 0.0) if cell.spec.compile == "off" else 0.0
    compile_s = 0.0 if cell.prepared is not None else known.compiling_of(cell.spec)
    if compile_s and cell.stage == "compiling" and cell.stage_began_at is not None and now is not None:
        compile_s = max(compile_s - (now - cell.stage_began_at), 0.0)  # as long as the one before, or a moment yet
    return sum_s(steps_s, compile_s, max(known.extra_s - passed_s, 0.0))


def _step_of_running(cell: CellState, known: Prices) -> float | None:
    """Seconds of its typical step. While it has less than three warm ones, what cells of its kind came to counts for
    two more, and twice what cells near it came to is the most."""
    own, priced = warm_steps(cell), known.step_of(cell.spec)
    if not own:
        return priced or next(iter(cell.warmup_times_s), None)
    if priced is None or len(own) > 2:
        return median(own)
    return median([*own, priced, priced]) if kind_of(cell.spec) in known.alike else min(median(own), 2 * priced)


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
    waiting = chain((state.cells[number].spec for number in state.waiting), added)
    needs = ((known.of(spec), spec.ranks if state.lanes else 1) for spec in waiting)
    return Ends(left, in_lanes_s(needs, free_at))


def in_lanes_s(cells: Iterable[tuple[float | None, int]], free_at: list[float]) -> list[float | None]:
    """The end of each of these cells, of so many seconds and ranks, that start in this order; None is unknown. A cell
    waits for as many lanes as it has ranks, and those behind it with it. `free_at` is a heap as `_free_at` makes it."""
    ends: list[float | None] = []
    for needs_s, ranks in cells:
        taken = [heappop(free_at) for _ in range(min(ranks, len(free_at)))]
        end = math.inf if needs_s is None else taken[-1] + needs_s
        for _ in taken:
            heappush(free_at, end)
        ends.append(None if end == math.inf else end)
    return ends


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
    """The prices of cells, when each is done, and the share of the time of all that has passed; None is unknown."""

    prices: Prices
    ends: Ends
    share: float | None = None


def outlook_of(state: SessionState) -> Outlook:
    known = prices(state)
    ends = ends_s(state, known)
    return Outlook(known, ends, _share_done(state, known, ends))


def eta_words(left_s: float | None) -> str:
    """``ETA 1:03``: the time until nothing waits any more, wherever it is shown; empty while it is unknown."""
    return "" if left_s is None else f"ETA {duration(left_s)}"


def takes_s(known: Prices, cells: Sequence[CellSpec], lanes: int = 1) -> float | None:
    """Seconds that these cells take from the start of the first, with nothing before them; None is unknown."""
    return ends_s(SessionState(), known, cells, lanes).last_s


def takes_words(time_s: float | None) -> str:
    """``takes 1:03``: the time of cells that are not in the queue yet; empty while it is unknown."""
    return "" if time_s is None else f"takes {duration(time_s)}"


def _share_done(state: SessionState, known: Prices, ends_: Ends) -> float | None:
    """The share of the session's time that has passed, of all cells that have run or will; None is unknown."""
    now, left_s = state.last_at or 0.0, ends_.last_s
    if state.side_by_side:
        left_s = sum_s(*ends_.running.values(), *(known.of(state.cells[number].spec) for number in state.waiting))
    if left_s is None:
        return None
    ends = ((cell, cell.finished.at if cell.finished else now) for cell in state.cells.values())
    passed_s = sum(max(end - cell.started_at, 0.0) for cell, end in ends if cell.started_at is not None)
    return passed_s / (passed_s + left_s) if left_s else 1.0


def steps_so_far(cell: CellState, now: float | None) -> str:
    """Progress of the running cell's warm-up or measured steps: ``6/10``, ``34/≤1000``, ``51 % of 8s``."""
    spec, warms = cell.spec, cell.stage == "warm-up"
    if (for_s := spec.warmup_for if warms else spec.steps_for) is not None:
        return f"{whole_percent(min(_spent_s(cell, now) / for_s, 1.0))} of {duration_words(for_s)}"
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
