"""Recordings of others, opened from the Sessions tab."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from cs336_tui.session.recordings import chrome
from cs336_tui.session.recordings.recording import Opening, PhaseError, open_recordings
from cs336_tui.session.store import folder_sessions
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.controllers.library import wanted_in
from cs336_tui.tui.tabs.sessions import SessionsPane
from tests.session.recordings import made_traces as made
from tests.session.recordings.made_traces import write
from tests.tui.kept_sessions import STOPPED, keep, stopped_session
from tests.tui.watched import WIDE, Benches, on_screen, press, screen_text, until


@pytest.fixture
def app(tmp_path: Path) -> Cs336App:
    (tmp_path / "sessions").mkdir()
    return Cs336App(Benches(), session_dir=tmp_path / "sessions")


@asynccontextmanager
async def in_sessions(
    app: Cs336App, *pasted: object, size: tuple[int, int] = WIDE
) -> AsyncIterator[tuple[Pilot[int], SessionsPane]]:
    """The app with the focus in its list of sessions, once these paths were pasted."""
    async with on_screen(app, size=size) as (_, pilot):
        pane = app.query_one(SessionsPane)
        await press(pilot, "7", seen=lambda _: pane.has_focus)
        for path in pasted:
            app.post_message(events.Paste(str(path)))
        yield pilot, pane


async def test_a_dropped_file_opens_and_fills_every_pane(app: Cs336App, tmp_path: Path) -> None:
    path = write(tmp_path / "my trace.json", made.TRAINING)
    async with in_sessions(app, f"'{path}'") as (pilot, _):
        await until(pilot, "my trace.json · opened, b goes back")
        text = await press(pilot, "7", seen="✓ 1 ok · 1 report")
        assert "custom 2/1/1/1" not in text
        text = await press(pilot, "4", seen="✓ recorded")
        (row,) = [line for line in text.splitlines() if line.startswith(" ") and "✓ recorded" in line]
        assert "my trace.json" in row
        assert "custom" not in row
        assert "recording" in text
        assert " size " not in next(line for line in text.splitlines() if "mean ms" in line)
        text = await press(pilot, "enter", seen="not run or timed here")
        assert "swiglu-rope" not in text
        assert "tokens a step" not in text
        text = await press(pilot, "escape", "9", seen="gemm_forward")
        assert "5 launches in 1 × step · 44.12 µs of 79.00 µs span · idle 42.9 %" in text, text
        assert len(folder_sessions(tmp_path / "sessions")) == 1


async def test_a_replayed_recording_leaves_the_choices_alone(tmp_path: Path) -> None:
    log = open_recordings([write(tmp_path / "a.json", made.TRAINING)], tmp_path, Opening())
    async with on_screen(Cs336App(replay=log, speed=0, session_dir=tmp_path)) as (_, pilot):
        text = await until(pilot, "at its end")
        assert "✓ recorded" in text
        assert "■custom" not in text


async def test_a_path_can_be_typed(app: Cs336App, tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", made.TRAINING)
    async with in_sessions(app) as (pilot, _):
        await press(pilot, "O", seen="Open a file")
        app.screen.query_one(Input).value = f"{path}x"
        await press(pilot, "enter", seen="no such file")
        app.screen.query_one(Input).value = f"{path} --phase optimizer"
        await press(pilot, "enter", seen="expected PHASE=RANGE")
        app.screen.query_one(Input).value = f"{path} --phase 'warm phase=step 3'"
        await press(pilot, "enter", seen="a.json · opened, b goes back")


async def test_the_log_of_a_session_and_a_folder_of_them_open_by_the_same_key(app: Cs336App, tmp_path: Path) -> None:
    (folder := tmp_path / "elsewhere").mkdir()
    log = keep(folder, STOPPED, stopped_session())
    async with in_sessions(app) as (pilot, pane):
        for place in (log, log.parent):
            await press(pilot, "O", seen="Open a file")
            app.screen.query_one(Input).value = str(place)
            await press(pilot, "enter", seen="2026-11-18 09:00 · opened, b goes back")
            await press(pilot, "b", "7", seen=lambda _: app.shown is app.live and pane.has_focus)
        app.post_message(events.Paste(f"{log} {log}"))
        await until(pilot, lambda _: any("a session is shown alone" in told.message for told in app._notifications))


@pytest.mark.parametrize(
    "name",
    ["n" * 300, "/".join(["n" * 200] * 30), "a\0b", "~nobody-of-this-name/x"],
    ids=["component", "path", "nul", "user"],
)
async def test_a_name_that_no_file_can_have_is_no_file(app: Cs336App, name: str) -> None:
    async with in_sessions(app, name) as (pilot, _):
        await until(pilot, lambda _: any("no such file on this machine" in told.message for told in app._notifications))
        await press(pilot, "O", seen="Open a file")
        app.screen.query_one(Input).value = name
        await press(pilot, "enter", seen="no such file: ")


async def test_a_pane_without_anything_of_a_recording_says_why(app: Cs336App, tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", made.TRAINING)
    said = {
        "0": "This recording has none. Memory is in a CUDA memory snapshot of that run",
        "p": "This recording has none. Dtypes are read by hooks",
        "i": "Recorded elsewhere: the model is unknown",
        "l": "Recorded elsewhere: no step was timed",
        "8": "Recorded elsewhere: no step was timed, so there are no step times to compare",
    }
    async with in_sessions(app) as (pilot, _):
        assert "O opens a session's log or folder, a torch profiler trace" in screen_text(app)
        app.post_message(events.Paste(str(path)))
        await until(pilot, "a.json · opened, b goes back")
        for key, words in said.items():
            await press(pilot, key, seen=words)


async def test_a_file_that_is_none_is_told_in_one_line(app: Cs336App, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")
    async with in_sessions(app, path) as (pilot, pane):
        await until(pilot, lambda _: any("no recording" in each.message for each in app._notifications))
        assert pane.opening == ""
        assert folder_sessions(tmp_path / "sessions") == []


async def test_reading_shows_how_far_it_is_and_can_be_stopped(
    app: Cs336App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is read piece by piece, and the first piece is held until the key was pressed."""
    monkeypatch.setattr(chrome, "CHUNK", 64)
    stopped = threading.Event()
    takes = chrome._Reader._take_whole

    def held(self: chrome._Reader, buffer: bytes) -> int:
        stopped.wait(20)
        return takes(self, buffer)

    monkeypatch.setattr(chrome._Reader, "_take_whole", held)
    path = write(tmp_path / "a.json", made.TRAINING)
    async with in_sessions(app, path) as (pilot, pane):
        assert "s Stop reading" in (await until(pilot, "% of 0 MB of a.json · s stops")).splitlines()[-1]
        await pilot.press("s")
        stopped.set()
        await until(pilot, lambda _: any("Reading was stopped" in each.message for each in app._notifications))
        assert pane.opening == ""
        assert folder_sessions(tmp_path / "sessions") == []
        assert "s Stop reading" not in screen_text(app).splitlines()[-1]


async def test_kernels_within_a_range(app: Cs336App, tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", made.TRAINING)
    async with in_sessions(app, path, size=(160, 50)) as (pilot, _):
        await until(pilot, "opened, b goes back")
        await press(pilot, "9", seen="whole recording · 5 kernels")
        assert "step 3" in await press(pilot, "W", seen="Kernels within a range")
        text = await press(pilot, "down", "enter", seen="in forward · 2 of 5 kernels")
        assert "gemm_forward" in text
        assert "gemm_backward" not in text
        await press(pilot, "escape", seen="whole recording · 5 kernels")
        for _ in range(5):
            await pilot.press("v")
        assert "add_backward" in await until(pilot, "in 4 gaps between kernels, copies and fills")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("{0}/a.json", ["a.json"]),
        ("{0}/a b.json", ["a b.json"]),
        ("'{0}/a b.json' ", ["a b.json"]),
        ("{0}/a\\ b.json {0}/c.json", ["a b.json", "c.json"]),
        ("{0}/a.json\n{0}/a b.json\r\n", ["a.json", "a b.json"]),
        ("file://{0}/a%20b.json", ["a b.json"]),
        ("{0}/it's.json", ["it's.json"]),
    ],
)
def test_paths_as_terminals_paste_them(tmp_path: Path, text: str, names: list[str]) -> None:
    for name in ("a.json", "a b.json"):
        (tmp_path / name).touch()
    assert wanted_in(text.format(tmp_path)).paths == tuple(tmp_path / name for name in names)


def test_ranges_that_are_phases_are_typed_as_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = wanted_in("~/a=b.json --phase forward='my fwd' --phase=optimizer=adam*")
    assert found == ((tmp_path / "a=b.json",), {"forward": ("my fwd",), "optimizer": ("adam*",)})
    with pytest.raises(PhaseError, match="expected PHASE=RANGE"):
        wanted_in("a.json --phase forward")
