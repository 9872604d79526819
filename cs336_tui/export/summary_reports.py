"""What reports found, as sections of a session's summary."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cs336_tui.export.formats import render
from cs336_tui.export.reports import report_tables
from cs336_tui.export.table import results_of
from cs336_tui.export.tables import Table
from cs336_tui.session.state import SessionState

LIMIT = "How close to the limit"
_TITLES = {
    "ab": "Two cells in turns",
    "predictions": "Predictions",
    "kernels": "Kernels",
    "memory": "Memory",
    "precision": "Precision",
    "mixed-precision": "Mixed precision",
    "roofline": LIMIT,
    "oom": "Out of memory",
}
MOST_ROWS = 20
"""Rows of a table that the summary shows; the folder and the commands have them all."""


def report_sections(state: SessionState) -> Iterator[tuple[str, str]]:
    """Title and markdown of each kind of report that the session has, of its cells in turns, and of how close its cells
    came to the limit."""
    for name, tables in report_tables([state], results_of(state)).items():
        yield _TITLES[name], "\n".join(render(_head(table), "markdown") for table in tables).rstrip()


def _head(table: Table) -> Table:
    if len(table.rows) <= MOST_ROWS:
        return table
    last = table.rows[-1:] if table.label == "ab" else ()  # what all rounds come to
    more = f"the first {MOST_ROWS} of {len(table.rows)} rows" + (" and the last" if last else "")
    return msgspec.structs.replace(table, rows=(*table.rows[:MOST_ROWS], *last), footnotes=(*table.footnotes, more))
