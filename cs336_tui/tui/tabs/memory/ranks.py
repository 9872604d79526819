"""The memory of each rank as the Memory tab shows it: cells that share a step in other ways below each other."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.memory_report import RankMemoryReport
from cs336_tui.export.rank_memory import rank_memory_table
from cs336_tui.export.tables import Column, Table
from cs336_tui.tui.tabs.memory.views import COLUMNS
from cs336_tui.tui.widgets.columns import TableLines, table_lines
from cs336_tui.tui.widgets.lines import wrapped

_SHORT = {
    "parameters_bytes": ("params", 3),
    "gradients_bytes": ("grads", 2),
    "optimizer_state_bytes": ("state", 1),
    "activations_bytes": ("activ.", 1),
    "communication_bytes": ("comm.", 2),
    "buffers_bytes": ("buffers", 7),
    "rest_bytes": ("rest", 6),
    "live_bytes": ("alloc.", 1),
    "predicted_live_bytes": ("predicted", 5),
    "peak_bytes": ("peak", 1),
    "predicted_peak_bytes": ("predicted", 4),
}
"""Headings of a screen's columns, and their ranks."""
_ALSO_NAMED = ("parallel", "optimizer")
"""Fields in which cells that are shown together may differ."""


def beside(reports: Sequence[RankMemoryReport], spec: CellSpec) -> list[RankMemoryReport]:
    """The reports of this cell and of those that differ from it in how their ranks share a step."""
    same = {field: getattr(spec, field) for field in _ALSO_NAMED}
    return [each for each in reports if msgspec.structs.replace(each.spec, **same) == spec]


def rank_lines(reports: Sequence[RankMemoryReport], width: int, columns_page: int) -> TableLines:
    """The table, and below its rows notes on what they mean."""
    table = rank_memory_table(reports)
    notes = ("params: parameters, state: optimizer state, comm.: communication", *table.footnotes)
    drawn = table_lines(_short(table.without("size")), width, page=columns_page, binding=COLUMNS)
    return drawn._replace(rows=[*drawn.rows, (), *(row for note in notes for row in wrapped(note, width, "muted"))])


def _short(table: Table) -> Table:
    """The table with headings of a screen; those of a high rank are left out first."""
    columns = (_SHORT.get(column.key, (column.heading, 0)) for column in table.columns)
    made = tuple(
        Column(column.key, title, column.left, rank)
        for column, (title, rank) in zip(table.columns, columns, strict=True)
    )
    return msgspec.structs.replace(table, columns=made)
