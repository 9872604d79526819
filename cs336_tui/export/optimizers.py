"""The share of a training step that each implementation of the optimizer takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cs336_tui.analysis.merge import Result, ddof_of, measured
from cs336_tui.export.layout import Row, layout_column, not_timed, setting, tables_of
from cs336_tui.export.results import TableError
from cs336_tui.export.tables import Column, Table, Value
from cs336_tui.stats.quantities import NONE, UNKNOWN, Notation, gigabytes, percent
from cs336_tui.stats.summaries import Summary, summarize

_PHASE = "optimizer"
_CLEARING = "zero_grad"


def optimizers_tables(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    """As `cs336_tui.export.layout.Layout.make`: a row for each size and optimizer, a table for all else that differs.
    Raises `TableError` where nothing is to be shown."""
    kept = [result for result in results if result.spec.pass_ == "train-step"]
    if not kept:
        raise TableError("layout optimizers: no cell with pass train-step, the one that has an optimizer")
    notation = Notation("ms", decimals)
    columns = (
        setting("size", "size", left=True),
        setting("optimizer", "optimizer", left=True),
        layout_column("in force", lambda row: _in_force(row.runs), left=True),
        _of_phase("optimizer (ms)", "mean_s", notation),
        _of_phase("std (ms)", "std_s", notation),
        _milliseconds("step (ms)", "mean_s", notation),
        _milliseconds("step std (ms)", "std_s", notation),
        _share_column("share of step (%)", _PHASE),
        _share_column("zero_grad (%)", _CLEARING),
        *([_PEAK] if any(map(_peak_bytes, kept)) else []),
    )
    others = len(results) - len(kept)
    notes = (
        "optimizer: the phase that updates the parameters, mean over the measured steps; share of step: all steps' "
        "optimizer phases over all steps' times",
        *([_FOREACH] if any(result.spec.optimizer in ("adamw", "adamw-foreach") for result in kept) else []),
        *([f"left out, as they have no optimizer: {others} of other passes"] if others else []),
        *not_timed(kept),
    )
    return tables_of(kept, columns, "The optimizer's share of a training step", notes, rows_by=("size", "optimizer"))


_FOREACH = (
    "adamw is what torch chooses by itself: foreach on CUDA, for-loop elsewhere; foreach computes on lists of tensors "
    "and needs temporaries as large as the parameters, fused needs none"
)


def _of_phase(header: str, field: str, notation: Notation) -> Column[Row]:
    """A statistic of the optimizer phase."""

    def found(row: Row) -> Summary | None:
        times_s = _times_s(row.runs, _PHASE)
        return summarize(times_s, ddof_of(row.runs)) if times_s else None

    return _statistic(header, field, notation, found)


def _milliseconds(header: str, field: str, notation: Notation) -> Column[Row]:
    """The same of the whole step. Where there is none, the mean's column says why."""
    return _statistic(header, field, notation, lambda row: row.summary)


def _statistic(header: str, field: str, notation: Notation, found: Callable[[Row], Summary | None]) -> Column[Row]:
    def read(row: Row) -> Value:
        summary = found(row)
        value = summary[field] if summary else None
        return None if value is None else value * 1e3

    def show(row: Row) -> str:
        if row.summary is None:
            return row.first.ending if field == "mean_s" else NONE
        return notation.of(found(row), field)

    return layout_column(header, read, show)


def _times_s(runs: Iterable[Result], phase: str) -> list[float]:
    return [time_s for run in measured(runs) for time_s in run.cell.phase_times_s.get(phase, ())]


def _share(row: Row, phase: str) -> float | None:
    times_s, steps_s = _times_s(row.runs, phase), row.times_s
    # A step timed without its phases would make the share too small.
    return sum(times_s) / sum(steps_s) if times_s and len(times_s) == len(steps_s) else None


def _share_column(header: str, phase: str) -> Column[Row]:
    def read(row: Row) -> float | None:
        share = _share(row, phase)
        return None if share is None else share * 100

    return layout_column(header, read, lambda row: percent(_share(row, phase)) if row.summary else NONE)


def _in_force(runs: Sequence[Result]) -> str:
    """The settings that the cells read back."""
    said = {run.cell.in_force.optimizer for run in runs if run.cell.in_force and run.cell.in_force.optimizer}
    return ", ".join(sorted(said)) or UNKNOWN


def _peak_bytes(result: Result) -> int | None:
    return result.cell.finished.peak_allocated_bytes if result.cell.finished else None


def _largest_peak(row: Row) -> int | None:
    return max((peak for run in measured(row.runs) if (peak := _peak_bytes(run))), default=None)


def _gigabytes(row: Row) -> float | None:
    peak = _largest_peak(row)
    return None if peak is None else peak / 1e9


_PEAK = layout_column("peak allocated (GB)", _gigabytes, lambda row: gigabytes(_largest_peak(row)))
