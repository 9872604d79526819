"""The results table of one session as markdown: a row per cell, and what its numbers mean in a few lines under it."""

from __future__ import annotations

import msgspec

from cs336_tui.analysis.merge import Result, merge, title_of
from cs336_tui.export.formats import render
from cs336_tui.export.results import TableError
from cs336_tui.export.results import results_table as table_of
from cs336_tui.export.tables import Table
from cs336_tui.session.state import SessionState

NO_RESULTS = "No cell has a result yet."


def results_markdown(state: SessionState) -> str:
    """The results table of a session and its footnotes, as GitHub-flavoured markdown."""
    table = _table(state)
    return render(table, "markdown") if table else f"{NO_RESULTS}\n"


def results_table(state: SessionState) -> str:
    """A row per cell that is over or has a timed step, in the order in which they were queued; no footnotes."""
    table = _table(state)
    return render(msgspec.structs.replace(table, footnotes=()), "markdown").rstrip() if table else NO_RESULTS


def results_of(state: SessionState) -> tuple[Result, ...]:
    """The cells of one session, for what takes those of several."""
    return merge([(title_of(state), state)])


def _table(state: SessionState) -> Table | None:
    try:
        return table_of(results_of(state))
    except TableError:
        return None
