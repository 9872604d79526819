"""Titles of cells, and the columns of a table that name a cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.cells import cell_len

from cs336_tui.analysis.fields import FIELDS, OWN, VARIANTS, shown_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import short
from cs336_tui.export.subjects.results_columns import COLUMNS
from cs336_tui.export.writing.tables import Column
from cs336_tui.tui import format

CELL_KEYS = ("size", "context", "batch", "pass", "precision", "device")
_JOIN = " · "
_ONLY_WHERE_MIXED = ("workload", "causal")
"""Fields that need no column if all cells have the same value: the title or the size shows it."""


def title_rows(title: str, width: int, most: int = 2) -> list[str]:
    """The title over at most `most` rows, broken between its parts; the last row may be wider than `width`."""
    rows: list[str] = []
    for part in format.plain(title).split(_JOIN):
        room = width - cell_len(_JOIN.rstrip())  # a row that goes on ends with the sign between parts
        if rows and (len(rows) == most or cell_len(rows[-1] + _JOIN + part) <= room):
            rows[-1] += _JOIN + part
        else:
            rows.append(part)
    return [*(row + _JOIN.rstrip() for row in rows[:-1]), *rows[-1:]]


def unique_names(names: Iterable[str]) -> dict[str, str]:
    """Each name, shortened if it stays unique: ``Class`` for ``package.module:Class``."""
    found = list(names)
    counted = Counter(map(short, found))
    return {name: short(name) if counted[short(name)] == 1 else name for name in found}


def cell_columns(
    of: Callable[[Any], CellSpec],
    ranks: Mapping[str, int],
    variants: Mapping[str, Mapping[str, str]] | None = None,
    keys: Iterable[str] = CELL_KEYS,
    size: Callable[[CellSpec], str] = lambda spec: spec.size,
    *,
    recorded: bool = False,
) -> list[Column]:
    """The columns that name a cell; the size of a recording is its name. `of`: an item's cell. `variants`, before the
    device: names of values, by field. `recorded`: all are recordings, which have a name and a device alone."""

    def column(key: str, names: Mapping[str, str] | None = None) -> Column:
        def text(item: Any) -> str:
            spec = of(item)
            shown = shown_of(spec, key) if key != "size" else spec.recording or size(spec)
            return names.get(shown, shown) if names else shown

        exported = COLUMNS[key]
        rank = ranks.get(key, 1 if names else 0)
        return Column(key, exported.short or exported.title, exported.left, rank, text=text)

    if recorded:
        return [column("size")._replace(title="recording"), column("device")]
    columns: list[Column] = []
    for key in keys:
        if key == "device":
            columns += [column(variant, names) for variant, names in (variants or {}).items()]
        columns.append(column(key))
    return columns


def as_shown(variants: Mapping[str, Iterable[str]]) -> dict[str, dict[str, str]]:
    """Names for `cell_columns`: the values as they are."""
    return {key: {value: value for value in values} for key, values in variants.items()}


def told_variants(specs: Iterable[CellSpec]) -> dict[str, set[str]]:
    """The values of each variant in which cells differ or all are unusual, but for what follows from the model."""
    taken: dict[str, set[str]] = {}
    for spec in set(specs):
        for key in VARIANTS:
            if shown := shown_of(spec, key):
                taken.setdefault(key, set()).add(shown)
    return {
        key: shown
        for key, shown in taken.items()
        if len(shown - {OWN}) > 1 or (key not in _ONLY_WHERE_MIXED and not shown <= {FIELDS[key].usual, OWN})
    }
