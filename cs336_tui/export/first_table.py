"""The table on the first page of a summary: six columns, one row a cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cs336_tui.analysis.findings import Timed
from cs336_tui.analysis.grouping import shared
from cs336_tui.analysis.measures import MEASURES, Runs, allocated_bytes
from cs336_tui.analysis.merge import Result
from cs336_tui.export.findings import CI, NamedCells
from cs336_tui.export.footnotes import FAILED, has_result, status_of, std_kind
from cs336_tui.export.tables import Column, Table
from cs336_tui.export.verdicts import judgement_of
from cs336_tui.stats.quantities import MILLISECONDS, NONE, UNKNOWN, half_width

MOST_ROWS = 24
"""Rows of the first table; of more cells it has the `MOST_ROWS` / 4 fastest and as many slowest."""


def _half_width(row: _Row) -> str:
    timed = row.timed
    return half_width(timed.low, timed.high, timed.mean_s) if timed else NONE


class _Row(NamedTuple):
    """A row: a timed cell, or one that ended without timings."""

    name: str
    result: Result
    timed: Timed | None


def first_table(results: Sequence[Result]) -> Table | None:
    """Cell, mean ± std, interval, throughput, peak memory, verdict; None of no cell that has a result. Repeats of a
    cell are one row. Of more than `MOST_ROWS` cells those at both ends stand here."""
    cells = NamedCells.of(results)
    by_first = {id(run): each for each in cells.timed for run in each.runs}
    rows: list[_Row] = []
    for result in results:
        found = by_first.get(id(result))
        has_failed = has_result(result.cell) and result.cell.status in FAILED
        if found.first is result if found else has_failed:
            rows.append(_Row(cells.name(result), result, found))
    if not rows:
        rows = [_Row(cells.name(result), result, None) for result in results if has_result(result.cell)]
    if not rows:
        return None
    left_out: tuple[str, ...] = ()
    if len(rows) > MOST_ROWS:
        up = sorted((row for row in rows if row.timed), key=lambda row: row.timed.mean_s if row.timed else 0.0)
        ends = MOST_ROWS // 4
        if len(up) > 2 * ends:
            left_out = (f"the {ends} fastest and the {ends} slowest of {len(up)} timed cells; all are under Cells",)
            rows = [*up[:ends], *up[-ends:]]
        else:
            left_out = (f"the first {MOST_ROWS} of {len(rows)} cells; all are under Cells",)
            rows = rows[:MOST_ROWS]
    columns = [column for column in _columns(rows) if column.key == "cell" or _is_known(column, rows)]
    notes = [f"± std: {std_kind(results[0].state.ddof)}"] if cells.timed else []
    if len(cells.timed) > 1:
        notes.append(f"[a, b]: {CI} of a ratio of mean step times, Welch's of its logarithm")
    if any(len(each.runs) > 1 for each in cells.timed):
        notes.append(f"{CI} of several runs: Student's, from the runs' means")
    return Table.of(
        rows,
        columns,
        record=lambda row: {"cell": row.name},
        caption=f"Cells, each with {same}" if len(rows) > 1 and (same := shared([row.result for row in rows])) else "",
        footnotes=(*left_out, *notes),
    )


def _is_known(column: Column[_Row], rows: Sequence[_Row]) -> bool:
    return any(column.cell(row) not in (NONE, UNKNOWN, "") for row in rows)


def _columns(rows: Sequence[_Row]) -> Sequence[Column[_Row]]:
    memory = MEASURES["memory" if any(allocated_bytes(row.result.cell) is not None for row in rows) else "rss"]
    rate = MEASURES["busbw" if all(row.result.spec.is_collective for row in rows) else "tokens"]

    def stage(row: _Row) -> str:
        return row.result.cell.stage if row.result.cell.stage and not row.result.spec.recording else NONE

    if not any(row.timed for row in rows):
        return (
            Column("cell", left=True, text=lambda row: row.name),
            Column("status", left=True, text=lambda row: status_of(row.result.cell)),
            Column("stage", left=True, text=stage),
            Column("steps", "steps done", text=lambda row: str(row.result.cell.steps_done or NONE)),
        )

    def mean(row: _Row) -> str:
        return MILLISECONDS.mean_and_std(row.timed.summary) if row.timed else row.result.ending

    def runs(row: _Row) -> Runs:
        return Runs(row.timed.runs, row.result.state.ddof) if row.timed else Runs.of(row.result)

    def throughput(row: _Row) -> str:
        return rate.quantity.text(rate.read(runs(row))) if row.timed else NONE

    def peak(row: _Row) -> str:
        size = memory.read(runs(row))
        return NONE if size is None else memory.quantity.text(size)

    def verdict(row: _Row) -> str:
        found = [judgement_of(run.cell, run.state) for run in (row.timed.runs if row.timed else ())]
        names = [name for each in found if each for name in (each.doubts or each.holding)]
        return names[0].name if names else NONE

    return (
        Column("cell", left=True, text=lambda row: row.name),
        Column("mean", "mean ± std (ms)", text=mean),
        Column("interval", f"{CI} (± %)", text=_half_width),
        Column("rate", rate.heading, text=throughput),
        Column("memory", memory.heading, text=peak),
        Column("verdict", left=True, text=verdict),
    )
