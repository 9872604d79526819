"""Hostile names of logs, cells and devices reach the terminal as plain text only."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from cs336_tui.events.events import EnvironmentRead, Event, Notice, SessionAnnotated, SessionStarted
from tests.commands import COMMAND
from tests.samples import ENVIRONMENT, START, mixed_session
from tests.terminal import Terminal
from tests.tui.watched import log_of

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
    terminal = Terminal([COMMAND, "--replay", str(log), "--speed", "0", "--session-dir", str(tmp_path)])
    try:
        terminal.until("at its end")
        for keys, seen in [("5", "notice"), ("7", "note AB"), ("3", "GPU"), ("4", "tokens/s"), (":", "Search")]:
            terminal.send(keys)
            terminal.until(seen)
        terminal.send("\x1b")
        terminal.until(lambda text: "Search" not in text)
        terminal.send("q")
        assert terminal.wait() == 0
    finally:
        terminal.close()
    raw = re.sub(rb"\x1b\]22;[a-z]+\x07", b"", bytes(terminal.raw))  # the mouse pointer's shape, which Textual sets
    assert b"GPU" in raw
    assert not re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\xc2[\x80-\x9f]|\x1b[\]P]|\x1b\[7m|\x1b\[3J", raw)
