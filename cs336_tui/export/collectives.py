"""Collectives as write-ups show them: a row for each size, numbers of ranks side by side."""

from __future__ import annotations

from collections.abc import Sequence

from cs336_tui.analysis.collectives import busbw
from cs336_tui.analysis.grouping import telling
from cs336_tui.analysis.measures import MEASURES
from cs336_tui.analysis.merge import Result, ddof_of, pooled
from cs336_tui.export.layout import Row, layout_column, setting, tables_of, time_column
from cs336_tui.export.results import TableError
from cs336_tui.export.tables import Column, Table
from cs336_tui.stats.quantities import NONE, Notation, bandwidth, counted
from cs336_tui.stats.summaries import Summary

_UNUSED = ("edition", "arch", "vocab", "workload")
"""Fields that a collective does not have, or that tell none apart from others."""


def collective_tables(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    """As `cs336_tui.export.layout.WriteUp.make`: a table for each operation, backend, device and precision. Raises
    `TableError` where nothing is to be shown."""
    kept = [result for result in results if result.spec.is_collective]
    if not kept:
        raise TableError("layout collectives: no cell of a collective; run some with cs336-tui comm")
    ranks = sorted({result.spec.ranks for result in kept})
    notation = Notation("ms", decimals)
    columns = (
        setting("size", "size", left=True),
        *(_time(number, notation) for number in ranks),
        *(_bus(number) for number in ranks),
    )
    others = len(results) - len(kept)
    notes = (
        "times: mean ms a step of the slowest rank",
        MEASURES["busbw"].note,
        *([f"left out (not collectives): {counted(others, 'cell')}"] if others else []),
    )
    apart = telling(kept, but=("size", "ranks", *_UNUSED))
    return tables_of(kept, columns, "Collectives", notes, rows_by=("size",), apart=apart, places=("ranks", *_UNUSED))


def _of(row: Row, ranks: int) -> list[Result]:
    return [run for run in row.runs if run.spec.ranks == ranks]


def _summary(row: Row, ranks: int) -> Summary | None:
    return pooled(_of(row, ranks), ddof_of(row.runs))


def _time(ranks: int, notation: Notation) -> Column[Row]:
    def ending(row: Row) -> str:
        return next((run.ending for run in _of(row, ranks) if run.ending), NONE)

    return time_column(f"{counted(ranks, 'rank')} (ms)", lambda row: _summary(row, ranks), "mean_s", notation, ending)


def _bus(ranks: int) -> Column[Row]:
    def read(row: Row) -> float | None:
        found = _summary(row, ranks)
        return busbw(_of(row, ranks)[0].spec, found.mean_s) if found and found.mean_s else None

    return layout_column(
        f"{counted(ranks, 'rank')} busbw (GB/s)",
        lambda row: None if (found := read(row)) is None else found / 1e9,
        lambda row: bandwidth(read(row), NONE),
    )
