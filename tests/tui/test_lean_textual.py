"""The app starts without Textual's palette and what that imports; both are whole when they are first used."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import cs336_tui.tui.app
left_out = {"textual.command", "textual.widgets._tree", "textual.widgets._directory_tree", "rich.table", "ssl"}
assert not left_out & sys.modules.keys(), left_out & sys.modules.keys()

import asyncio, ssl
from rich.table import Table
assert Table(title="t").title == "t"
assert ssl.create_default_context()

from cs336_tui.tui import complete
complete()
import textual.app, textual.command, textual.theme
assert textual.app.CommandPalette is textual.command.CommandPalette
assert textual.app.SimpleProvider is textual.command.SimpleProvider
assert textual.theme.Hit is textual.command.Hit
assert textual.app.ThemeProvider is textual.theme.ThemeProvider
assert issubclass(textual.theme.ThemeProvider, textual.command.Provider)
assert [name for name in ("commands", "search", "discover") if not hasattr(textual.theme.ThemeProvider, name)] == []
complete()
"""


def test_what_is_left_out_at_the_start_is_there_when_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
