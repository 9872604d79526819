"""Titles of cells in the room there is, and what of a cell is not as usual as columns of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.cells import cell_len

from cs336_tui.analysis.fields import FIELDS, OWN, VARIANTS, shown_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import short
from cs336_tui.export.tables import Column
from cs336_tui.tui import format

_JOIN = " · "
_ONLY_WHERE_MIXED = ("workload", "causal")
"""Fields that need no column where all cells show the same: the title or the size tells."""


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


def unique_names(names: Iterable[str]) -> dict[str, str]:
    """Each name as short as tells it from the others: ``Class`` for ``package.module:Class``."""
    found = list(names)
    counted = Counter(map(short, found))
    return {name: short(name) if counted[short(name)] == 1 else name for name in found}


def variant_columns(specs: Iterable[CellSpec]) -> dict[str, Column]:
    """A column for each of the `told_variants`, by its field."""
    return {key: variant_column(key) for key in told_variants(specs)}


def variant_column(key: str) -> Column:
    return Column(FIELDS[key].title, left=key != "checkpoint", rank=1)


def told_variants(specs: Iterable[CellSpec]) -> dict[str, set[str]]:
    """What the cells show of each variant in which they differ, or which all have alike and is not the usual one; not
    of what only follows from their model."""
    taken: dict[str, set[str]] = {}
    for spec in set(specs):
        for key in VARIANTS:
            taken.setdefault(key, set()).add(shown_of(spec, key))
    return {
        key: shown
        for key, shown in taken.items()
        if len(shown - {OWN}) > 1 or (key not in _ONLY_WHERE_MIXED and not shown <= {FIELDS[key].usual, OWN})
    }
