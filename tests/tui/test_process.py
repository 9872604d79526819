"""The app as a process in a real pty: its end, and state that it does not touch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import ptyprocess
import pytest

from tests.terminal import Terminal

RUNNING = """
import sys
from pathlib import Path
from cs336_tui.tui.app import Cs336App
from tests.tui.watched import ScriptedBench

class Bench(ScriptedBench):
    def close(self):
        super().close()
        Path(sys.argv[1]).touch()

app = Cs336App(Bench)
app.run()
app.close()
sys.exit(app.return_code)
"""


@pytest.fixture
def opened() -> Iterator[Callable[..., Terminal]]:
    terminals: list[Terminal] = []

    def open_terminal(*arguments: str, **how: int) -> Terminal:
        terminals.append(Terminal([sys.executable, "-c", RUNNING, *arguments], **how))  # type: ignore[arg-type]
        return terminals[-1]

    yield open_terminal
    for terminal in terminals:
        terminal.close()


def running(opened: Callable[..., Terminal], closed: Path) -> Terminal:
    """An app in the middle of a run."""
    terminal = opened(str(closed))
    terminal.until("NVIDIA")
    terminal.send("r")
    terminal.until("cell 1/3")
    return terminal


def test_sigterm_ends_it_in_good_order(opened: Callable[..., Terminal], tmp_path: Path) -> None:
    terminal = running(opened, tmp_path / "closed")
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.wait() == 128 + signal.SIGTERM
    assert (tmp_path / "closed").exists()
    assert b"\x1b[?1049l" in terminal.raw, "the terminal is left as it was found"


def test_a_lost_connection_ends_it(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    process = ptyprocess.PtyProcess.spawn([sys.executable, "-c", RUNNING, str(closed)], dimensions=(40, 120))
    written = b""
    while b"NVIDIA" not in written:
        written += process.read(65536)
    process.fileobj.close()  # the last descriptor of the terminal's other side
    psutil.Process(process.pid).wait(20)
    assert closed.exists()


def test_ctrl_q_ends_it_with_success(opened: Callable[..., Terminal], tmp_path: Path) -> None:
    terminal = running(opened, tmp_path / "closed")
    terminal.send("\x11")
    assert terminal.wait() == 0
    assert (tmp_path / "closed").exists()
    assert b"\x1b[?1049l" in terminal.raw


def test_the_screen_of_a_real_terminal_is_whole_after_many_partial_updates(
    opened: Callable[..., Terminal], tmp_path: Path
) -> None:
    terminal = running(opened, tmp_path / "closed")
    for keys in ("5", "4", "5", "4"):
        terminal.send(keys)
        terminal.until("session log is" if keys == "5" else "mean ms")
    terminal.resize(80, 24)
    terminal.until("1 Configure")
    terminal.resize(120, 40)
    terminal.until(lambda text: "Configure" in text and "Device" in text and "mean ms" in text)
    terminal.send("s")
    terminal.until(lambda text: text.count("■ cancelled") == 4)
    terminal.send("q")
    assert terminal.wait() == 0


def test_the_app_s_process_never_loads_what_measures() -> None:
    code = """
import sys
import cs336_tui.tui.app, cs336_tui.tui.controllers.commands, cs336_tui.tui.controllers.estimates
import cs336_tui.tui.help, cs336_tui.tui.background, cs336_tui.tui.ending
import cs336_tui.tui.dialogs.export, cs336_tui.tui.dialogs.windows, cs336_tui.tui.tabs.cell_detail
import cs336_tui.cli.launch
heavy = {"torch", "numpy", "psutil", "pynvml", "multiprocessing"} & sys.modules.keys()
sys.exit(f"loaded: {heavy}" if heavy else 0)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
