"""The effect of warm-up: raw step times of cells that differ in their warm-up steps alone, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from cs336_tui.analysis.fields import FIELDS, machine, warmup_done
from cs336_tui.analysis.merge import Result
from cs336_tui.config.spec import CellSpec
from cs336_tui.stats.quantities import fixed_milliseconds, millisecond_decimals
from cs336_tui.stats.summaries import Summary

_MAD_TO_STD = 1.4826
"""Of normal samples, the std over the median absolute deviation: 1 / Φ⁻¹(3/4)."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """All steps of one cell, seconds, oldest first. `cell` is its number in `session`, from 0.

    `first_step_cost` is the cell's first step, warm-up or not, over the median of its measured steps: what being cold
    costs. `steady_after` is how many steps went by before it was steady (see `steps_until_steady`). `warmup` is the
    setting as shown, ``auto (12)`` where it was automatic; `warmup_steps` is how many there were.
    """

    session: str
    cell: int
    repeat: int
    warmup: str
    warmup_steps: int
    warmup_times_s: tuple[float, ...]
    step_times_s: tuple[float, ...]
    summary: Summary
    first_step_cost: float | None
    steady_after: int | None

    @property
    def decimals(self) -> int:
        """Decimal places, in ms, that show the median in 4 significant digits."""
        return millisecond_decimals(self.summary.median_s, None)

    @property
    def warmup_text(self) -> str:
        """The warm-up steps as an array in ms: ``[812.3, 41.2]``."""
        return array(self.warmup_times_s, self.decimals)

    @property
    def measured_text(self) -> str:
        """The measured steps as an array in ms."""
        return array(self.step_times_s, self.decimals)

    @property
    def all_text(self) -> str:
        """Every step as an array in ms."""
        return array((*self.warmup_times_s, *self.step_times_s), self.decimals)


class WarmupGroup(NamedTuple):
    """Measured cells that differ in warm-up steps alone, fewest first; `title` says what they share."""

    title: str
    machine: str
    results: tuple[Result, ...]

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
    Automatic warm-up is one more setting, after the fixed ones.

    A group may hold one setting only; `warmups` says.
    """
    groups: dict[tuple[CellSpec, str, str], list[Result]] = {}
    for result in results:
        if result.is_measured:
            spec = msgspec.structs.replace(result.spec, warmup_steps=0, warmup_auto=False)
            groups.setdefault((spec, machine(result), FIELDS["torch"].show(result)), []).append(result)
    order = [FIELDS[name].order for name in ("size", "context", "batch", "pass", "precision", "device")]
    return tuple(
        _group(sorted(cells, key=lambda result: (FIELDS["warmup"].order(result), result.source, result.cell.cell)))
        for cells in sorted(groups.values(), key=lambda cells: tuple(rank(cells[0]) for rank in order))
    )


def steps_until_steady(times_s: Sequence[float], measured_s: Sequence[float]) -> int | None:
    """The number of steps of `times_s` before all later ones are steady; None when the last one is not.

    Steady is a step within m ± max(3 · 1.4826 · MAD, 0.02 m), where m is the median of `measured_s` and MAD the median
    absolute deviation from it: three standard deviations of what is normal among the measured steps, and never less
    than 2 %, which is noise anywhere. Medians, so that a cold step among the measured ones does not hide itself.
    """
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


def _group(cells: Sequence[Result]) -> WarmupGroup:
    spec = cells[0].spec
    return WarmupGroup(f"{spec.title} · batch {spec.batch_size}", machine(cells[0]), tuple(cells))


def trace(result: Result) -> Trace:
    """All steps of one measured result."""
    cell = result.cell
    summary = cell.summary(result.state.ddof)
    assert summary is not None, "only measured cells are grouped"
    every = (*cell.warmup_times_s, *cell.step_times_s)
    return Trace(
        session=result.session,
        cell=cell.cell,
        repeat=cell.repeat,
        warmup=warmup_done(cell),
        warmup_steps=len(cell.warmup_times_s) if cell.spec.warmup_auto else cell.spec.warmup_steps,
        warmup_times_s=tuple(cell.warmup_times_s),
        step_times_s=tuple(cell.step_times_s),
        summary=summary,
        first_step_cost=every[0] / summary.median_s if summary.median_s else None,
        steady_after=steps_until_steady(every, cell.step_times_s),
    )
