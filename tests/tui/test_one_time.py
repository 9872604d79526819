"""One ETA, one session time and one state of a run, wherever they stand on the screen and in text."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from cs336_tui.analysis.eta import eta_words, remaining_s
from cs336_tui.cli.progress import RunProgress
from cs336_tui.export.summary import summary_markdown
from cs336_tui.session.store import info_of, load
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.ending import farewell
from tests.samples import state_of
from tests.tui.kept_sessions import DEMO, STOPPED, keep, stopped_session
from tests.tui.watched import SMALL, Benches, demo, in_the_middle, log_of, screen_text, until

SIZES = [SMALL, (120, 40), (200, 60)]
_ETA = re.compile(r"ETA \d+:\d\d(?::\d\d)?")


def last_of(text: str) -> list[str]:
    """The row of the queue's last cell, word by word."""
    rows = (line.split() for line in text.splitlines())
    return next((row for row in rows if row[:1] == ["12"] and "xl" in row), [])


@pytest.mark.parametrize("size", SIZES)
async def test_every_eta_of_a_screen_is_the_same(size: tuple[int, int], tmp_path: Path) -> None:
    events = demo(in_the_middle)
    state = state_of(events)
    expected = eta_words(remaining_s(state))
    app = Cs336App(replay=log_of(events, tmp_path), speed=0)
    found: list[str] = []
    async with app.run_test(size=size) as pilot:
        await until(pilot, "at its end")
        for key in ("2", "6"):
            await pilot.press(key)
            found += _ETA.findall(await until(pilot, "ETA "))
        await pilot.press("end")
        text = await until(pilot, lambda text: last_of(text) != [])
    assert len(found) >= 2
    assert set(found) == {expected}
    assert expected.removeprefix("ETA ") in last_of(text), "the last cell of the queue is done then"


def test_the_eta_without_a_screen_is_that_of_the_screen() -> None:
    state = state_of(demo(in_the_middle))

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Screen()
    progress = RunProgress(state, shown)
    progress.show(demo(in_the_middle)[-1])
    found = set(_ETA.findall(shown.getvalue()))
    assert found <= {eta_words(remaining_s(state))}


async def test_every_time_of_a_session_is_that_of_its_name(tmp_path: Path) -> None:
    path = keep(tmp_path, DEMO, demo())
    told = "2026-11-20 14:03"
    app = Cs336App(Benches(), session_dir=tmp_path)
    async with app.run_test(size=(200, 60)) as pilot:
        await pilot.press("7")
        row = await until(pilot, DEMO)
        assert re.findall(rf"{DEMO} +(\d\S+ \d\S+)", row) == [told]
        await pilot.press("enter")
        await until(pilot, f"session {told} · opened")
    assert info_of(path).begun == told
    assert f"Started {told}." in summary_markdown(load(path))


@pytest.mark.parametrize("size", SIZES)
async def test_a_stopped_session_is_told_alike_everywhere(size: tuple[int, int], tmp_path: Path) -> None:
    path = keep(tmp_path, STOPPED, stopped_session())
    told = "stopped at 6/18 steps"
    app = Cs336App(Benches(), session_dir=tmp_path)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda _: app.live.state.environment is not None)
        await pilot.press("7")
        if size != SMALL:
            await until(pilot, "■ stopped 6/18")
        await until(pilot, lambda _: app.main.focused is not None and app.main.focused.id == "sessions")
        await pilot.press("enter")
        await until(pilot, "opened")
        await pilot.press("6")
        await until(pilot, "stopped: 2 cells left, u resumes")
        await pilot.press("2")
        await until(pilot, "6/18 steps")
        assert "100 %" not in screen_text(app).replace("CPU      100 %", "")
        assert "u Resume" in screen_text(app).splitlines()[-1]
    assert told in farewell([path])
    assert told in summary_markdown(load(path))
