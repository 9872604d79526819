"""The installed `cs336-tui` in a real terminal: choose, run, watch, export, and lose the terminal; and `bench` with its
bar, Ctrl-C, and the table of what was measured."""

import base64
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from benchmarks import reporting
from cs336_tui.events.events import CellFinished, CellStarted, SessionEnded, StepsTimed
from cs336_tui.session.log import LogReader, SessionLog
from cs336_tui.tui.ending import LIMIT_S
from tests.commands import COMMAND
from tests.samples import lanes_session
from tests.terminal import Terminal, painted
from tests.watching import wait_gone

TINY = "--size tiny --context 16 --batch 1 --warmup 2 --steps 5 --pass forward,train-step --threads 1".split()
ENDLESS = "--size tiny --context 16 --batch 1 --warmup 2 --steps 1000000 --pass forward --threads 1".split()


class App:
    """The app in a terminal whose files go to a folder of the test's."""

    def __init__(self, folder: Path, *words: str, columns: int = 120, rows: int = 40) -> None:
        self.sessions = folder / "sessions"
        env = {"XDG_CONFIG_HOME": str(folder / "config"), "XDG_DATA_HOME": str(folder / "data")}
        command = ["env", "-C", str(folder), COMMAND, "--session-dir", str(self.sessions), *words]
        self.terminal = Terminal(command, columns=columns, rows=rows, env=env)

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.terminal.pid).children(recursive=True)

    def logged(self) -> list:
        (log,) = self.sessions.glob("*.jsonl")
        return list(LogReader(log))


@pytest.fixture
def start(tmp_path: Path) -> Iterator:
    apps: list[App] = []

    def begin(*words: str, **size: int) -> App:
        apps.append(App(tmp_path, *words, **size))
        return apps[-1]

    yield begin
    for app in apps:
        app.terminal.close()


def running(app: App) -> App:
    """The app once a cell is being measured."""
    app.terminal.until("torch")
    app.terminal.send("r", seen=lambda text: re.search(r"measuring [1-9]", text) is not None)
    return app


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 60)])
def test_choose_run_watch_copy_export(start, tmp_path, monkeypatch, columns, rows):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # Export opens with what was exported last
    app = start(*TINY, columns=columns, rows=rows)
    terminal = app.terminal
    terminal.until("Run")
    terminal.send("r", seen=lambda text: re.search(r"cell [12]/2", text) is not None)
    terminal.send("4", seen=lambda text: len(re.findall(r"(?m)^ (?:\d+  )?tiny .*[✓!] ok", text)) == 2)
    terminal.send("c", seen="Copied")
    (encoded,) = re.findall(rb"\x1b\]52;c;([A-Za-z0-9+/=]+)", bytes(terminal.raw))
    assert "| tiny" in base64.b64decode(encoded).decode()
    terminal.send("e", seen="Save")
    for what in ("results", "summary"):
        if what == "summary":
            terminal.send(":", seen="Search for commands")
            terminal.send("export summary\r", seen="▸Summary")
        terminal.send("\r", seen="Written")
        terminal.send("\r", seen=lambda text: "Written" not in text)
    (table,), (summary,) = (tmp_path.glob(f"cs336-tui-{what}-*.md") for what in ("results", "summary"))
    rows_written = [line for line in table.read_text().splitlines() if line.startswith("| tiny")]
    assert ["forward" in rows_written[0], "train-step" in rows_written[1]] == [True, True]
    assert "cs336-tui bench --size tiny --context 16" in summary.read_text()
    assert summary.read_text().count("│") >= 2  # warm-up and measured told apart in each sparkline
    terminal.send("q")
    assert terminal.wait() == 0
    assert [event.status for event in app.logged() if isinstance(event, CellFinished)] == ["ok", "ok"]


def test_stop_then_resume_goes_on_in_the_same_log_and_quitting_asks_ends_everything_and_tells_how(start):
    app = running(start(*ENDLESS))
    app.terminal.send("s", seen="1 cell left, u resumes")
    app.terminal.send("u")
    app.terminal.until(lambda text: "u resumes" not in text and re.search(r"measuring [1-9]", text) is not None)
    events = app.logged()  # there is but one log
    assert [event.cell for event in events if isinstance(event, CellStarted)] == [0, 0]
    family = app.family()
    app.terminal.send("q", seen="Stop and quit")
    app.terminal.send("\x1b", seen=lambda text: "Stop and quit" not in text)
    app.terminal.send("q", seen="Stop and quit")
    app.terminal.send("y")
    assert app.terminal.wait() == 0
    assert family
    assert all(wait_gone(process.pid) for process in family)
    assert isinstance(app.logged()[-1], SessionEnded)
    assert b"\x1b[?1049l" in app.terminal.raw[-4000:]  # the terminal was given back
    (log,) = app.sessions.glob("*.jsonl")
    words = app.terminal.raw.rpartition(b"\x1b[?1049l")[2].decode().replace("\r", "")
    assert re.search(rf"Session {log.stem}: stopped at \d+/1000002 steps, 1 cell left\.", words)
    assert f"\n  cs336-tui resume {log}\n  cs336-tui show {log}\n  cs336-tui export {log}\n" in words


def test_closing_the_terminal_ends_everything_and_keeps_every_step(start):
    app = running(start(*ENDLESS))
    pid, family = app.terminal.pid, app.family()
    began = time.monotonic()
    app.terminal.hang_up()
    assert wait_gone(pid)
    assert time.monotonic() - began < LIMIT_S  # in good order
    assert family
    assert all(wait_gone(process.pid) for process in family)
    events = app.logged()
    assert isinstance(events[-1], SessionEnded)
    assert any(isinstance(event, StepsTimed) and event.kind == "measured" for event in events)
    (finished,) = (event for event in events if isinstance(event, CellFinished))
    assert finished.status == "cancelled", finished.error  # it has not failed: `resume` runs it


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_closing_the_terminal_ends_the_app_under_make(tmp_path):
    """Under make the terminal's session is make's, and no signal reaches the app."""
    command = shlex.join([COMMAND, "--session-dir", str(tmp_path / "sessions")])
    (tmp_path / "Makefile").write_text(f"run:\n\t@exec {command}\n")
    env = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    with closing(Terminal(["make", "-C", str(tmp_path), "run"], env=env)) as terminal:
        terminal.until("torch")
        family = psutil.Process(terminal.pid).children(recursive=True)
        assert len(family) > 1
        terminal.hang_up()
        assert all(wait_gone(process.pid) for process in family)


def test_a_signal_ends_everything_in_good_order(start):
    app = running(start(*ENDLESS))
    family = app.family()
    os.kill(app.terminal.pid, signal.SIGTERM)
    assert app.terminal.wait() == 128 + signal.SIGTERM
    assert all(wait_gone(process.pid) for process in family)
    assert isinstance(app.logged()[-1], SessionEnded)
    assert b"cs336-tui resume " in app.terminal.raw.rpartition(b"\x1b[?1049l")[2]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_everything_though_the_terminal_takes_nothing(start, number):
    app = running(start(*ENDLESS))
    family = app.family()
    app.terminal.stall("34?\x1b")
    began = time.monotonic()
    os.kill(app.terminal.pid, number)
    assert all(wait_gone(process.pid) for process in family)
    assert app.terminal.process.wait() is not None
    assert time.monotonic() - began < 10.0
    assert app.terminal.process.exitstatus == 128 + number
    assert isinstance(app.logged()[-1], SessionEnded)
    assert app.terminal.takes_lines()
    app.terminal.read_on()
    app.terminal.until_bytes(b"\x1b[?1049l\x1b[?25h")
    app.terminal.until_bytes(b"cs336-tui resume ")


def test_flags_that_cannot_be_are_one_line_and_exit_code_2(start):
    app = start("--size", "huge")
    assert app.terminal.wait() == 2
    assert "tiny, small" in app.terminal.text()
    assert b"\x1b[?1049h" not in app.terminal.raw  # the screen was never taken


def test_watch_opens_the_app_on_a_terminal_and_leaves_the_session_as_it_is(tmp_path: Path) -> None:
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    with closing(SessionLog(sessions / "s.jsonl")) as log:
        log.write(lanes_session())
        words = ["watch", "s", "--session-dir", str(sessions)]
        with closing(Terminal([COMMAND, *words], env={"XDG_CONFIG_HOME": str(tmp_path / "config")})) as terminal:
            terminal.until("8 run · 4 wait")
            terminal.send("q")
            assert terminal.wait() == 0
    assert list(LogReader(sessions / "s.jsonl")) == lanes_session()


COLUMNS, ROWS = 120, 40
MOST_BYTES = 20_000


@pytest.mark.timeout(120)
def test_the_first_screen_is_painted_once_in_at_most_20_kb(tmp_path: Path) -> None:
    env = {"XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    command = [*reporting.app(), "--session-dir", str(tmp_path)]
    with closing(Terminal(command, columns=COLUMNS, rows=ROWS, env=env)) as terminal:
        terminal.until("Commands")  # the last row
        first = bytes(terminal.raw)
        terminal.until(lambda text: "torch" in text and "predicting" not in text)
        assert terminal.bytes_written <= MOST_BYTES
        cells = COLUMNS * ROWS
        assert "Choose on the left" in first.decode(), "the panes are filled before they are painted"
        assert cells <= painted(bytes(terminal.raw)) <= 1.3 * cells, "what came later is what has changed"


FIRST = "--size tiny --context 16 --batch 1 --pass forward --threads 1 --warmup 2 --steps 5".split()
TWO_ENDLESS = "--size tiny --context 16,32 --batch 1 --pass forward --threads 1 --warmup 2 --steps 1000000".split()


def test_a_run_shows_its_bar_and_ctrl_c_leaves_the_terminal_clean(tmp_path: Path) -> None:
    folder = ["--session-dir", str(tmp_path)]
    with closing(Terminal([COMMAND, "bench", *TWO_ENDLESS, *folder], columns=80, rows=24)) as terminal:
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
