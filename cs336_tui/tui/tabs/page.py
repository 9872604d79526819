"""One view of the Compare tab, ready to be shown."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from cs336_tui.tui import format
from cs336_tui.tui.widgets.lines import Line, line


class Page(NamedTuple):
    """`heading` stays in sight, `rows` scroll; `details` are what Enter on a row tells, by the row's place."""

    heading: tuple[Line, ...]
    rows: tuple[Line, ...] = ()
    details: dict[int, str] = {}


def wrapped(text: str, width: int, role: str = "text", indent: str = "") -> list[Line]:
    """Text for people over as many lines as it needs."""
    rows = textwrap.wrap(format.plain(text), max(width, 12), subsequent_indent=indent, break_on_hyphens=False)
    return [line((row, role)) for row in rows]


def message(text: str, width: int, role: str = "muted") -> Page:
    """Nothing but a text."""
    return Page(((), *wrapped(text, width, role)))
