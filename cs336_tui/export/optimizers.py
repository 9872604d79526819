"""The share of a training step that each implementation of the optimizer takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cs336_tui.analysis.merge import Result, ddof_of, measured
from cs336_tui.export.layout import Row, layout_column, not_timed, setting, size_column, tables_of, time_column
from cs336_tui.export.results import TableError
from cs336_tui.export.tables import Column, Table
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
        time_column("optimizer (ms)", _of_phase, "mean_s", notation, _missing),
        time_column("std (ms)", _of_phase, "std_s", notation, lambda row: UNKNOWN if row.summary else NONE),
        time_column("step (ms)", lambda row: row.summary, "mean_s", notation, _missing),
        time_column("step std (ms)", lambda row: row.summary, "std_s", notation, lambda _: NONE),
        _share_column("share of step (%)", _PHASE),
        _share_column("zero_grad (%)", _CLEARING),
        *([_PEAK] if any(map(_peak_bytes, kept)) else []),
    )
    others = len(results) - len(kept)
    notes = (
        "optimizer: the phase that updates the parameters, mean over the measured steps; share of step: all steps' "
        "optimizer phases over all steps' times",
        *([_FOREACH] if any(result.spec.optimizer in ("adamw", "adamw-foreach") for result in kept) else []),
        *([f"left out (no optimizer): {others} of other passes"] if others else []),
        *not_timed(kept),
    )
    return tables_of(kept, columns, "The optimizer's share of a training step", notes, rows_by=("size", "optimizer"))


def _missing(row: Row) -> str:
    return UNKNOWN if row.summary else row.first.ending


_FOREACH = (
    "adamw is what torch chooses by itself: foreach on CUDA, for-loop elsewhere; foreach computes on lists of tensors "
    "and needs temporaries as large as the parameters, fused needs none"
)


def _of_phase(row: Row) -> Summary | None:
    times_s = _times_s(row.runs, _PHASE)
    return summarize(times_s, ddof_of(row.runs)) if times_s else None


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
    said = {run.cell.in_force.optimizer for run in runs if run.cell.in_force and run.cell.in_force.optimizer}
    return ", ".join(sorted(said)) or UNKNOWN


def _peak_bytes(result: Result) -> int | None:
    return result.cell.finished.peak_allocated_bytes if result.cell.finished else None


def _largest_peak(row: Row) -> int | None:
    return max((peak for run in measured(row.runs) if (peak := _peak_bytes(run))), default=None)


_PEAK = size_column("peak allocated (GB)", _largest_peak, 1e9, gigabytes, lambda _: UNKNOWN)
