"""A table as every producer makes it and every format renders it: what is shown, and the same as data."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from cs336_tui.export.markdown import Align

Value = str | int | float | bool | None | tuple[float, ...]


class Column(NamedTuple):
    """How a column is headed, with its unit, and to which side its cells are set."""

    header: str
    align: Align = "right"


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Plain text throughout; each format escapes what it must.

    `rows` are for people, one text per column. `records` are for programs: numbers that were not rounded, in base units
    (seconds, bytes) unless a key names another, with None for what is unknown; all records have the same keys.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    records: tuple[dict[str, Value], ...]
    caption: str = ""
    footnotes: tuple[str, ...] = ()
    settings: dict[str, Value] = {}
    """What all rows are of and no column says, such as the context length: columns of every row in CSV alone. None
    where rows differ in it."""
    label: str = "results"
    """For references in LaTeX and Typst, without its prefix ``tab:``."""
