"""The times of cells by those of the cells timed so far. Prices are medians, of a cell's steps and of the cells most
like it, so that a single stall does not count. What a cell takes beside its steps (start, cold step, stalls) is a mean
in which no cell counts for more than three times the median."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from cs336_tui.config.order import pace, relative_work, time_kind
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import WITHOUT_BACKWARD
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState

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
        counts = _with_counts_of(cell, counts)
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


def _with_counts_of(cell: CellState, counts: Counts) -> Counts:
    """The counts, and where one is not known yet, that of this cell if it ended well."""
    if cell.status != "ok":
        return counts
    if counts.warmup is None and cell.spec.warmup_auto:
        counts = counts._replace(warmup=cell.steps_done - cell.running.n)
    if counts.measured is None and cell.spec.steps_auto is not None:
        counts = counts._replace(measured=cell.running.n)
    return counts


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
