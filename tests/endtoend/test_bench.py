"""`cs336-tui bench` and `resume` in a real terminal: the bar, Ctrl-C, and the table of what was measured."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

from tests.commands import COMMAND
from tests.terminal import Terminal

FIRST = "--size tiny --context 16 --batch 1 --pass forward --threads 1 --warmup 2 --steps 5".split()
ENDLESS = "--size tiny --context 16,32 --batch 1 --pass forward --threads 1 --warmup 2 --steps 1000000".split()


def test_a_run_shows_its_bar_and_ctrl_c_leaves_the_terminal_clean(tmp_path: Path) -> None:
    folder = ["--session-dir", str(tmp_path)]
    with closing(Terminal([COMMAND, "bench", *ENDLESS, *folder], columns=80, rows=24)) as terminal:
        terminal.until(lambda text: re.search(r"measured \d+/1000000 · [\d.]+ ms ± ", text) is not None)
        terminal.until(lambda text: re.search(r"━+ +\d+ % 0/2 cells · ETA \d+:\d\d", text) is not None)
        assert "[1/2] tiny · ctx 16 · forward" in terminal.text()
        terminal.send("\x03")
        assert terminal.wait() == 130
        text = terminal.text()
        assert "━━━━━ " not in text, "the bar is gone"
        assert re.search(r"tiny +16 .* cancelled", text)
        assert "session log:" in text
        assert terminal.takes_lines()
        assert b"\x1b[?25l" not in terminal.raw, "the cursor was never hidden"
        assert max(map(len, text.splitlines())) <= 80
    command = [COMMAND, "bench", *FIRST, *folder]
    with closing(Terminal(command, columns=60, rows=24, env={"NO_COLOR": "1"})) as terminal:
        assert terminal.wait(60) == 0
        assert re.search(r"\[1/1\] tiny · ctx 16 · forward · fp32 · cpu: [\d.]+ ms", terminal.text())
        assert "notes on these numbers: -v shows them" in terminal.text()
        assert not re.search(rb"\x1b\[[\d;]*3\dm", terminal.raw), "no colour"
