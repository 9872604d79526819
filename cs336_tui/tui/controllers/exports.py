"""Exporting and copying the session that is shown."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cs336_tui.tui.background import in_background

if TYPE_CHECKING:
    from cs336_tui.tui.app import Cs336App


def export(app: Cs336App) -> None:
    """Ask where the results and the summary go."""
    from cs336_tui.tui.dialogs.export import ExportDialog

    def exported(what: str | None) -> None:
        if what:
            app.notify(what, title="Exported", markup=False)

    found = any(report.content for report in app.state.reports.values())
    if found or _has_results(app):
        app.push_screen(ExportDialog(app.state, app.copy_to_clipboard), exported)


def copy_table(app: Cs336App) -> None:
    """The results table to the clipboard of the terminal, also over SSH."""
    from cs336_tui.export.table import results_markdown

    def copied(text: str) -> None:
        app.copy_to_clipboard(text)
        app.notify("The results table was sent to the terminal's clipboard.", title="Copied")

    if _has_results(app):  # on a thread, as cells that nobody has looked at are judged first
        in_background(app, partial(results_markdown, app.state), copied)


def _has_results(app: Cs336App) -> bool:
    if not app.state.finished_cells:
        app.notify("There are no results yet: no cell is over.", severity="warning")
    return bool(app.state.finished_cells)
