"""Titles of cells in the room there is, and what of a cell is not as usual as columns of a table."""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len

from cs336_tui.session.fields import FIELDS, shown_of
from cs336_tui.spec import RunSpec
from cs336_tui.tui import format
from cs336_tui.tui.widgets.columns import Column

_JOIN = " · "
_ONLY_WHERE_MIXED = ("workload", "causal")
"""Fields that need no column where all cells show the same: the title or the size tells."""
_VARIANTS = ("workload", "causal", "model", "attention", "compile", "checkpoint", "optimizer", "loss", "cuda-graph")


def title_rows(title: str, width: int, most: int = 2) -> list[str]:
    """The title over at most so many rows, broken between its parts; the last may be wider than there is room."""
    rows: list[str] = []
    for part in format.plain(title).split(_JOIN):
        room = width - cell_len(_JOIN.rstrip())  # a row that goes on ends with the sign between parts
        if rows and (len(rows) == most or cell_len(rows[-1] + _JOIN + part) <= room):
            rows[-1] += _JOIN + part
        else:
            rows.append(part)
    return [*(row + _JOIN.rstrip() for row in rows[:-1]), *rows[-1:]]


def variant_columns(specs: Iterable[RunSpec]) -> dict[str, Column]:
    """A column for each variant that differs between the cells, or that all have alike and is not the usual one, by
    its field."""
    taken: dict[str, set[str]] = {}
    for spec in set(specs):
        for key in _VARIANTS:
            taken.setdefault(key, set()).add(shown_of(spec, key))
    return {
        key: Column(FIELDS[key].title, left=key != "checkpoint", rank=1)
        for key, shown in taken.items()
        if len(shown) > 1 or (key not in _ONLY_WHERE_MIXED and shown != {FIELDS[key].usual})
    }
