"""The effect of warm-up: raw step times of cells that differ in their warm-up steps alone, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from cs336_tui.analysis.fields import FIELDS, machine, warmup_done
from cs336_tui.analysis.merge import Result, grouped, measured
from cs336_tui.config.spec import CellSpec
from cs336_tui.stats.quantities import fixed_milliseconds, millisecond_decimals
from cs336_tui.stats.summaries import Summary

_MAD_TO_STD = 1.4826
"""Of normal samples, the std over the median absolute deviation: 1 / Φ⁻¹(3/4)."""


class Trace(NamedTuple):
    """All steps of one result. `first_step_cost` is the cell's first step, warm-up or not, over the median of its
    measured steps; `steady_after` is its `steps_until_steady`."""

    result: Result
    summary: Summary
    first_step_cost: float | None
    steady_after: int | None

    @property
    def warmup(self) -> str:
        """The setting as shown, ``auto (12)`` where it was automatic."""
        return warmup_done(self.result.cell)

    def text(self, times_s: Sequence[float]) -> str:
        """Some of its times as an array in ms, with the decimals of the median in 4 significant digits."""
        return array(times_s, millisecond_decimals(self.summary.median_s, None))


class WarmupGroup(NamedTuple):
    """Measured cells that differ in warm-up steps alone, fewest first; `title` says what they share."""

    title: str
    machine: str
    results: Sequence[Result]

    @property
    def warmups(self) -> tuple[str, ...]:
        """The warm-up settings that there are, as shown."""
        return tuple(dict.fromkeys(map(FIELDS["warmup"].show, self.results)))

    @property
    def traces(self) -> tuple[Trace, ...]:
        """The steps of each cell; they may be read from a file for this."""
        return tuple(map(trace, self.results))


def warmup_groups(results: Iterable[Result]) -> tuple[WarmupGroup, ...]:
    """The measured cells, grouped by all but their warm-up steps, on one machine with one torch; smallest size first.
    Automatic warm-up is one more setting, after the fixed ones. A group may hold one setting only; `warmups` says."""

    def alike(result: Result) -> tuple[CellSpec, str, str]:
        spec = msgspec.structs.replace(result.spec, warmup_steps=0, warmup_auto=False, warmup_for=None)
        return spec, machine(result), FIELDS["torch"].show(result)

    def group(cells: Sequence[Result]) -> WarmupGroup:
        ordered = sorted(cells, key=lambda result: (FIELDS["warmup"].order(result), result.source, result.cell.cell))
        return WarmupGroup(f"{cells[0].spec.title} · batch {cells[0].spec.batch_size}", machine(cells[0]), ordered)

    order = [FIELDS[name].order for name in ("size", "context", "batch", "pass", "precision", "device")]
    by_size = sorted(measured(results), key=lambda result: tuple(rank(result) for rank in order))
    return tuple(map(group, grouped(by_size, alike).values()))


def steps_until_steady(times_s: Sequence[float], measured_s: Sequence[float]) -> int | None:
    """The number of steps of `times_s` before all later ones are steady; None when the last one is not. Steady is a
    step within m ± max(3 · 1.4826 · MAD, 0.02 m), where m is the median of `measured_s` and MAD the median absolute
    deviation from it. Medians, so that a cold step among the measured ones does not hide itself."""
    if not times_s or not measured_s:
        return None
    centre = median(measured_s)
    spread = _MAD_TO_STD * median(abs(time_s - centre) for time_s in measured_s)
    reach = max(3 * spread, 0.02 * centre)
    unsteady = [step for step, time_s in enumerate(times_s) if abs(time_s - centre) > reach]
    after = unsteady[-1] + 1 if unsteady else 0
    return after if after < len(times_s) else None


def array(times_s: Sequence[float], decimals: int) -> str:
    """Times as a text array in ms: ``[812.3, 41.2, 40.9]``."""
    return f"[{', '.join(fixed_milliseconds(time_s, decimals) for time_s in times_s)}]"


def trace(result: Result) -> Trace:
    """All steps of one measured result."""
    cell = result.cell
    summary = cell.summary(result.state.ddof)
    assert summary is not None, "only measured cells are grouped"
    every = (*cell.warmup_times_s, *cell.step_times_s)
    cost = every[0] / summary.median_s if summary.median_s else None
    return Trace(result, summary, cost, steps_until_steady(every, cell.step_times_s))
