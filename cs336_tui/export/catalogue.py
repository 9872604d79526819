"""Everything that a session can be exported as."""

from __future__ import annotations

from cs336_tui.analysis.merge import title_of
from cs336_tui.export.formats import answer
from cs336_tui.export.record import to_csv, to_json
from cs336_tui.export.results import NO_RESULTS, TableError, results_markdown, results_of, results_table
from cs336_tui.export.tables import Column, Table
from cs336_tui.session.state import SessionState


def results_document(state: SessionState, format_: str) -> str:
    """The results of a session as a document in one of `FILE_FORMATS`: its records as CSV and JSON, its table in the
    others."""
    match format_:
        case "csv":
            return to_csv(state)
        case "json":
            return to_json(state)
        case "markdown":
            return results_markdown(state)
    try:
        table = results_table(results_of(state))
    except TableError:
        table = Table(columns=(Column("results", left=True),), rows=(), footnotes=(NO_RESULTS,), caption="Results")
    return answer([table], format_, f"cs336-tui: {title_of(state)}")
