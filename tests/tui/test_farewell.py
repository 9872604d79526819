"""The last words of the app: its session, and the commands that go on with it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from cs336_tui.session.log import SessionLog, default_session_dir
from cs336_tui.session.store import annotate
from cs336_tui.tui.ending import farewell
from tests.samples import session_start
from tests.tui.kept_sessions import DEMO, STOPPED, keep, stopped_session
from tests.tui.watched import demo


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
    assert commands == [f"  cs336-tui show {DEMO}", f"  cs336-tui export {DEMO}"], (
        "a name is enough in the usual folder"
    )


def test_one_that_goes_on_elsewhere_is_watched(tmp_path: Path) -> None:
    path = keep(tmp_path, DEMO, demo()[:-40])
    with closing(SessionLog(path, resume=True)):
        assert f"  cs336-tui watch {path}" in farewell([path]).splitlines()


def test_nothing_is_said_of_a_session_without_cells(tmp_path: Path) -> None:
    empty = keep(tmp_path, STOPPED, session_start(())[:2])
    assert farewell([]) == farewell([tmp_path / "none.jsonl"]) == farewell([empty]) == ""
    done = keep(tmp_path, DEMO, demo())
    assert farewell([empty, done]).startswith(f"Session {DEMO}")
