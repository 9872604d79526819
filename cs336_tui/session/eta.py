"""How long each cell and the rest of a session will take, from the steps that were timed so far."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from cs336_tui.order import relative_work, variant_kind
from cs336_tui.session.cell_state import CellState
from cs336_tui.session.state import SessionState
from cs336_tui.spec import RunSpec

_work = lru_cache(maxsize=1 << 15)(relative_work)


class Counts(NamedTuple):
    """Steps that automatic counts came to in the cells that ended last; None where there is none."""

    warmup: int | None = None
    measured: int | None = None

    def warmup_of(self, spec: RunSpec) -> int:
        """Warm-up steps that a cell is likely to run; without one to go by, the most that it may."""
        likely = self.warmup if spec.warmup_auto else None
        return spec.warmup_steps if likely is None else min(likely, spec.warmup_steps)

    def measured_of(self, spec: RunSpec) -> int:
        """The same for measured steps."""
        likely = self.measured if spec.steps_auto is not None else None
        return spec.measure_steps if likely is None else min(likely, spec.measure_steps)


Kind = tuple[object, ...]
"""What decides, beside the work, how long a step takes."""


def _kind(spec: RunSpec) -> Kind:
    """Cells of one kind price each other."""
    return spec.device, spec.threads, spec.precision, spec.pass_, spec.arch, *variant_kind(spec)


def _near_kind(spec: RunSpec) -> Kind:
    """Cells that price each other as long as none of a kind was timed."""
    return spec.device, spec.precision, spec.workload, spec.model, spec.attention, spec.compile, spec.cuda_graph


class Prices(NamedTuple):
    """Seconds of a step per unit of work, by the kind of cell, by what is near it, and of whichever was timed last."""

    alike: dict[Kind, float]
    near: dict[Kind, float]
    any: float | None
    compiling: dict[str, float]
    """Seconds that compiling took last, by torch.compile's mode."""
    counts: Counts = Counts()

    def of(self, spec: RunSpec) -> float | None:
        """Seconds that a run of this cell will take, compiling and all its steps; None before anything like it was
        timed or compiled. Automatic counts are taken to come to what they came to last."""
        steps_s, compile_s = self.steps_of(spec), self.compiling_of(spec)
        return None if steps_s is None or compile_s is None else steps_s + compile_s

    def steps_of(self, spec: RunSpec) -> float | None:
        """Seconds of all its steps."""
        rate = self.alike.get(_kind(spec), self.near.get(_near_kind(spec), self.any))
        steps = self.counts.warmup_of(spec) + self.counts.measured_of(spec)
        return None if rate is None else rate * _work(spec) * steps

    def compiling_of(self, spec: RunSpec) -> float | None:
        """Seconds before its first step; None while no cell has been compiled in its mode."""
        return 0.0 if spec.compile == "off" else self.compiling.get(spec.compile)


def prices(state: SessionState) -> Prices:
    """Prices after what was timed last, which is most like what comes next. Looks no further back than it must."""
    ahead = [cell.spec for number in state.waiting if (cell := state.cells.get(number))]
    if running := state.running_cell:
        ahead.append(running.spec)
    wanted = set(map(_kind, ahead))
    modes = {spec.compile for spec in ahead} - {"off"}
    warmup_wanted = any(spec.warmup_auto for spec in ahead)
    measured_wanted = any(spec.steps_auto is not None for spec in ahead)
    alike: dict[Kind, float] = {}
    near: dict[Kind, float] = {}
    compiling: dict[str, float] = {}
    latest: float | None = None
    counts = Counts()
    for cell in reversed(state.cells.values()):
        counted = (counts.warmup is not None or not warmup_wanted) and (
            counts.measured is not None or not measured_wanted
        )
        if latest is not None and wanted <= alike.keys() and modes <= compiling.keys() and counted:
            break
        counts = _with_counts_of(cell, counts)
        if cell.prepared is not None and cell.prepared.compile_s is not None:
            compiling.setdefault(cell.spec.compile, cell.prepared.compile_s)
        if cell.started_at is not None and (step_s := _typical_step(cell)) is not None:
            rate = step_s / _work(cell.spec)
            latest = rate if latest is None else latest
            alike.setdefault(_kind(cell.spec), rate)
            near.setdefault(_near_kind(cell.spec), rate)
    return Prices(alike, near, latest, compiling, counts)


def left_of_running_s(state: SessionState, known: Prices) -> float | None:
    """Seconds that the running cell still needs; 0 between cells."""
    cell = state.running_cell
    if cell is None:
        return 0.0
    own = _typical_step(cell)
    if own is not None:
        return own * _steps_left(cell, known.counts)
    steps_s, compile_s = known.steps_of(cell.spec), _left_of_compiling_s(cell, known, state.last_at)
    return None if steps_s is None or compile_s is None else steps_s + compile_s


def _left_of_compiling_s(cell: CellState, known: Prices, now: float | None) -> float | None:
    """Seconds that the running cell compiles yet, if it takes as long as the one before; 0 when it takes longer."""
    whole = known.compiling_of(cell.spec)
    if cell.prepared is not None:
        return 0.0
    if whole is None or cell.stage != "compiling" or cell.stage_began_at is None or now is None:
        return whole
    return max(whole - (now - cell.stage_began_at), 0.0)


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


def _steps_left(cell: CellState, counts: Counts) -> int:
    """Steps that the running cell is likely to run yet. Where an automatic count has gone beyond what is likely, it is
    taken to go on for a quarter more, which is about when it is looked at next."""
    spec, warmed, measured = cell.spec, len(cell.warmup_times_s), cell.running.n
    is_warm = measured or (spec.warmup_auto and cell.stage == "measuring")
    warmup_left = 0 if is_warm else _left(counts.warmup_of(spec), warmed, spec.warmup_steps)
    return warmup_left + _left(counts.measured_of(spec), measured, spec.measure_steps)


def _left(likely: int, done: int, most: int) -> int:
    return likely - done if done < likely else min(done // 4, most - done)


def _with_counts_of(cell: CellState, counts: Counts) -> Counts:
    """The counts, and where one is not known yet, that of this cell if it ended well."""
    if cell.status != "ok":
        return counts
    if counts.warmup is None and cell.spec.warmup_auto:
        counts = counts._replace(warmup=cell.steps_done - cell.running.n)
    if counts.measured is None and cell.spec.steps_auto is not None:
        counts = counts._replace(measured=cell.running.n)
    return counts


def _typical_step(cell: CellState) -> float | None:
    """The mean of the measured steps, else the latest warm-up step: the first of all is cold and says little."""
    if cell.running.n:
        return cell.running.mean
    return cell.warmup_times_s[-1] if cell.warmup_times_s else None
