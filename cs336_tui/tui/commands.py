"""What the command palette offers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand

from cs336_tui.config.presets import all_presets
from cs336_tui.tui.screen import REPORTS, TABS
from cs336_tui.tui.tabs.report import ReportPane

if TYPE_CHECKING:
    from cs336_tui.events.reports import ReportKind
    from cs336_tui.tui.app import Cs336App


def commands(app: Cs336App) -> Iterator[SystemCommand]:
    """Every action by name, every tab, every preset, every theme."""
    yield SystemCommand("Run", "Run the chosen cells, or add them to those that run (r)", app.action_run_cells)
    yield SystemCommand("Stop", "Stop the running cell, what waits and reports (s)", app.action_stop_cells)
    yield SystemCommand("Export", "Write the results table and the session summary (e)", app.action_export)
    yield SystemCommand("Copy", "Copy the results table to the clipboard (c)", app.action_copy_table)
    for tab in TABS.values():
        yield SystemCommand(f"Tab {tab.label}", f"Bring it into sight ({tab.key})", partial(app.action_open, tab.id))
    for kind in REPORTS:
        about = f"{TABS[kind].label} of the cell under the cursor, made between two cells (n in its tab)"
        yield SystemCommand(f"Report {kind}", about, partial(_make_report, app, kind))
    yield SystemCommand(
        "Estimate for another GPU", "Whether the cells fit a GPU that is not here", partial(_name_gpu, app)
    )
    if not app.replaying:
        yield SystemCommand("Save as preset", "Keep the choices under a name (w)", app.action_save_preset)
        for preset in all_presets().presets:
            yield SystemCommand(f"Preset {preset.name}", preset.about, partial(app.load_preset, preset))
    for theme in app.theme_names:
        yield SystemCommand(f"Theme {theme}", "Change the colours", partial(setattr, app, "theme", theme))
    yield SystemCommand("All themes", "Choose among Textual's themes too", app.search_themes)
    yield SystemCommand("Help", "Keys, and what each number means (?)", app.action_help)
    yield SystemCommand("Quit", "Leave; asks while something runs (q)", app.action_ask_quit)


async def _make_report(app: Cs336App, kind: ReportKind) -> None:
    app.action_open(kind)
    await app.main.focus_pane(kind)
    app.paint()  # so that the pane knows what it is about
    app.main.query_one(f"#{kind}", ReportPane).action_make()


async def _name_gpu(app: Cs336App) -> None:
    from cs336_tui.tui.tabs.estimate import EstimatePane

    app.action_open("estimate")
    await app.main.focus_pane("estimate")
    app.main.query_one(EstimatePane).ask_gpu()
