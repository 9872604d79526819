"""Windows that are opened over the screen: help, all of one cell, the question before quitting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cs336_tui.tui.dialogs.questions import Confirm
from cs336_tui.tui.dialogs.reader import Reader
from cs336_tui.tui.widgets.lines import Line

if TYPE_CHECKING:
    from cs336_tui.tui.app import Cs336App


def read_help(app: Cs336App) -> None:
    """Keys, and what each number means."""
    from cs336_tui.tui.help import help_lines

    app.push_screen(Reader("Help", lambda width: help_lines(width, replaying=app.replaying)))


def read_cell(app: Cs336App, place: int) -> None:
    """All that is known of the cell at a place in the session that is shown."""
    from cs336_tui.tui.tabs.cell_detail import cell_detail

    state = app.state
    cell = list(state.cells.values())[place]

    def lines(width: int) -> list[Line]:
        return cell_detail(state, cell, width, app.judging.of(state, cell))

    app.push_screen(Reader(f"Cell {cell.cell + 1}", lines))


def ask_quit(app: Cs336App) -> None:
    """Quit, after a question while cells run."""
    if app.replaying or not app.run_in_progress:
        app.exit()
        return
    if isinstance(app.screen, Confirm):
        return

    def answered(yes: bool | None) -> None:
        if yes:
            app.exit()

    question = (
        "Cells are still running. Finished steps are in the session log; the running cell will be stopped."
        if app.state.running_cell or app.live.state.running_cell
        else "A report is being made; it will be stopped."
    )
    app.push_screen(Confirm(question, yes="Stop and quit", no="Keep running", q_means=True), answered)
