"""The app as a process, mostly in a real pty: its start, its end and last words, hostile names, and state that it does
not touch."""

import re
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from cs336_tui.events.events import EnvironmentRead, Event, Notice, SessionAnnotated, SessionStarted
from cs336_tui.session.log import SessionLog, default_session_dir
from cs336_tui.session.store import annotate
from cs336_tui.tui.ending import farewell
from tests.commands import COMMAND
from tests.loading import loaded_with, python
from tests.samples import ENVIRONMENT, START, mixed_session, session_start
from tests.terminal import Terminal
from tests.tui.kept_sessions import DEMO, STOPPED, keep, stopped_session
from tests.tui.watched import demo, log_of


def test_the_app_s_process_never_loads_what_measures() -> None:
    parts = "app controllers.commands controllers.estimates help background ending dialogs.export tabs.cell_detail"
    modules = ["cs336_tui.cli.launch", *(f"cs336_tui.tui.{name}" for name in parts.split())]
    assert loaded_with(modules, "torch", "numpy", "psutil", "pynvml", "multiprocessing") == set()


EVIL = "\x1b]0;owned\x07\x9b31m\x1b[7m\x1b[3J\x1bP$q\x1b\\A\x08\x05B\r\nC"


def evil_session() -> list[Event]:
    """A session in which every text from outside has terminal control sequences."""
    devices = tuple(msgspec.structs.replace(device, label=f"GPU {EVIL}") for device in ENVIRONMENT.devices)
    environment = msgspec.structs.replace(ENVIRONMENT, host=f"host {EVIL}", driver=f"driver {EVIL}", devices=devices)
    events: list[Event] = []
    for event in mixed_session():
        match event:
            case SessionStarted():
                events.append(msgspec.structs.replace(event, session=f"session {EVIL}", app=EVIL))
                events.append(SessionAnnotated(at=START, name=f"name {EVIL}", note=f"note {EVIL}"))
            case EnvironmentRead():
                events.append(msgspec.structs.replace(event, environment=environment))
            case _:
                events.append(event)
    return [*events, Notice(at=START + 50, text=f"notice {EVIL}")]


def test_a_replayed_log_drives_no_terminal(tmp_path: Path) -> None:
    log = log_of(evil_session(), tmp_path)
    with closing(Terminal([COMMAND, "--replay", str(log), "--speed", "0", "--session-dir", str(tmp_path)])) as terminal:
        terminal.until("at its end")
        for keys, seen in [("5", "notice"), ("7", "note AB"), ("3", "GPU"), ("4", "tokens/s"), (":", "Search")]:
            terminal.send(keys, seen=seen)
        terminal.send("\x1b", seen=lambda text: "Search" not in text)
        terminal.send("q")
        assert terminal.wait() == 0
    raw = re.sub(rb"\x1b\]22;[a-z]+\x07", b"", bytes(terminal.raw))  # the mouse pointer's shape, which Textual sets
    assert b"GPU" in raw
    assert not re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\xc2[\x80-\x9f]|\x1b[\]P]|\x1b\[7m|\x1b\[3J", raw)


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
    python(SCRIPT)


def test_a_session_with_cells_left_is_resumed_shown_and_exported(tmp_path: Path) -> None:
    path = keep(tmp_path, STOPPED, stopped_session())
    annotate(path, name="fast\x1b[31m box")
    first, *commands = farewell([path]).splitlines()
    assert first.startswith(f"Session {STOPPED} (fast box): stopped at ")
    assert first.endswith("2 cells left. To resume, show or export it:")
    assert commands == [f"  cs336-tui {verb} {path}" for verb in ("resume", "show", "export")]


def test_of_one_that_is_done_there_is_nothing_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = default_session_dir()
    folder.mkdir(parents=True)
    first, *commands = farewell([keep(folder, DEMO, demo())]).splitlines()
    assert first == f"Session {DEMO}: done. To show or export it:"
    assert commands == [f"  cs336-tui show {DEMO}", f"  cs336-tui export {DEMO}"], "its name is enough"


def test_one_that_goes_on_elsewhere_is_watched(tmp_path: Path) -> None:
    path = keep(tmp_path, DEMO, demo()[:-40])
    with closing(SessionLog(path, resume=True)):
        assert f"  cs336-tui watch {path}" in farewell([path]).splitlines()


def test_nothing_is_said_of_a_session_without_cells(tmp_path: Path) -> None:
    empty = keep(tmp_path, STOPPED, session_start(())[:2])
    assert farewell([]) == farewell([tmp_path / "none.jsonl"]) == farewell([empty]) == ""
    assert farewell([empty, keep(tmp_path, DEMO, demo())]).startswith(f"Session {DEMO}")
