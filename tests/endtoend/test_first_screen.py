"""The first screen in a real pty: it is painted once, and in few bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.reporting import app
from tests.terminal import Terminal, painted

COLUMNS, ROWS = 120, 40
MOST_BYTES = 20_000


@pytest.mark.timeout(120)
def test_the_first_screen_is_painted_once_in_at_most_20_kb(tmp_path: Path) -> None:
    env = {"XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    terminal = Terminal([*app(), "--session-dir", str(tmp_path)], columns=COLUMNS, rows=ROWS, env=env)
    try:
        terminal.until("Commands")  # the last row
        first = bytes(terminal.raw)
        terminal.until(lambda text: "torch" in text and "predicting" not in text)
        assert terminal.bytes_written <= MOST_BYTES
        cells = COLUMNS * ROWS
        assert "Choose on the left" in first.decode(), "the panes are filled before they are painted"
        assert cells <= painted(bytes(terminal.raw)) <= 1.3 * cells, "what came later is what has changed"
    finally:
        terminal.close()
