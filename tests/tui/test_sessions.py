"""The Sessions tab: opening, naming, comparing, resuming and deleting sessions."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from cs336_tui.events.events import SessionAnnotated
from cs336_tui.session.log import LogError
from cs336_tui.session.store import info_of
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.tabs.sessions import SessionsPane
from tests.samples import START, mixed_session
from tests.tui.kept_sessions import DEMO, MIXED, STOPPED, keep, stopped_session
from tests.tui.test_queue import opened
from tests.tui.watched import SMALL, WIDE, Benches, demo, screen_text, until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keep(tmp_path, STOPPED, stopped_session())
    keep(tmp_path, MIXED, mixed_session())
    keep(tmp_path, DEMO, demo())
    return tmp_path


@pytest.fixture
def bench() -> Benches:
    return Benches()


async def to_sessions(app: Cs336App, pilot: Pilot[int]) -> SessionsPane:
    """Open the tab and wait for its list."""
    await pilot.press("7")
    pane = app.query_one(SessionsPane)
    await until(pilot, lambda _: len(pane.infos) == 3 and pane.has_focus)
    await pilot.press("home")
    return pane


async def test_an_opened_session_fills_every_pane_and_b_goes_back(bench: Benches, folder: Path) -> None:
    async with opened(bench, session_dir=folder) as (app, pilot):
        await to_sessions(app, pilot)
        await pilot.press("down", "enter")
        text = await until(pilot, "opened, b goes back")
        assert "b Back" in text.splitlines()[-1]
        await pilot.press("4")
        text = await until(pilot, "▲ OOM")
        assert text.count("small") >= 3
        await pilot.press("5")
        await until(pilot, "SIGSEGV")
        assert f"{MIXED}.jsonl" in screen_text(app)
        await pilot.press("b")
        text = await until(pilot, lambda text: "opened" not in text)
        assert "Nothing has run yet" in text


async def test_looking_at_a_session_does_not_disturb_what_runs(bench: Benches, folder: Path) -> None:
    async with opened(bench, session_dir=folder, runs=True) as (app, pilot):
        await to_sessions(app, pilot)
        await pilot.press("enter")
        await until(pilot, "b goes back to what runs")
        bench.go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)
        assert app.state is not app.live.state
        assert [cell.status for cell in app.live.state.cells.values()] == ["ok"] * 3


async def test_a_session_is_named_and_annotated(bench: Benches, folder: Path) -> None:
    async with opened(bench, session_dir=folder) as (app, pilot):
        await to_sessions(app, pilot)
        await pilot.press("N")
        await until(pilot, "A name for session")
        await pilot.press(*"fast box", "enter")
        await until(pilot, "fast box")
        await pilot.press("a")
        await until(pilot, "A note on session fast box")
        await pilot.press(*"new driver", "enter")
        await until(pilot, "new driver")
    info = info_of(folder / f"{DEMO}.jsonl")
    assert (info.name, info.note) == ("fast box", "new driver")


async def test_deleting_asks_and_q_is_no(bench: Benches, folder: Path) -> None:
    async with opened(bench, session_dir=folder) as (app, pilot):
        pane = await to_sessions(app, pilot)
        await pilot.press("down")
        for no in ("escape", "n", "q"):
            await pilot.press("d")
            await until(pilot, "for good?")
            await pilot.press(no)
            assert app.is_running
            assert (folder / f"{MIXED}.jsonl").exists()
        await pilot.press("d")
        await until(pilot, "for good?")
        await pilot.press("y")
        await until(pilot, lambda _: len(pane.infos) == 2)
    assert not (folder / f"{MIXED}.jsonl").exists()


async def test_resuming_runs_what_has_no_result_into_that_session(bench: Benches, folder: Path) -> None:
    async with opened(bench, session_dir=folder) as (app, pilot):
        await to_sessions(app, pilot)
        await pilot.press("end", "u")
        await until(pilot, "cell 2/3")
        assert bench.made[1].log_path == folder / f"{STOPPED}.jsonl"
        assert [cell.status for cell in app.live.state.cells.values()] == ["ok", "running", "queued"]
        await until(pilot, lambda _: bench.made[0].closed)
        bench.made[1].go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)
        assert [cell.status for cell in app.live.state.cells.values()] == ["ok"] * 3
        await pilot.press("r")
        await until(pilot, lambda _: len(app.live.state.cells) == 6)
        assert bench.made[1].commands, "what is run next goes into the session that goes on"
    assert bench.made[1].closed


async def test_a_session_that_cannot_go_on_leaves_the_one_before(bench: Benches, folder: Path) -> None:
    async with opened(bench, session_dir=folder) as (app, pilot):
        await until(pilot, "NVIDIA")
        bench.made[0].go_on.set()
        await pilot.press("r")
        await until(pilot, lambda _: bool(app.state.cells) and not app.run_in_progress)
        await to_sessions(app, pilot)
        refusal = LogError("session x is being written by process 1 on other")
        made = bench.made

        class Refusing(Benches):
            def __call__(self, sink, log=None):  # type: ignore[no-untyped-def]
                refusing = Benches.__call__(bench, sink, log)
                refusing.refuse = refusal
                return refusing

        app._runs._bench_factory = Refusing()
        await pilot.press("end", "u")
        await until(pilot, "is being written by process 1")
        assert not app.run_in_progress
        assert len(app.live.state.cells) == 3
        assert app.live.path == made[0].log_path
        assert not made[0].closed
        await until(pilot, lambda _: made[1].closed)


async def test_nothing_is_resumed_while_cells_run_or_when_nothing_is_left(bench: Benches, folder: Path) -> None:
    async with opened(bench, session_dir=folder) as (app, pilot):
        await to_sessions(app, pilot)
        await pilot.press("u")
        await until(pilot, "has nothing")
        await pilot.press("r")
        await until(pilot, "cell 1/3")
        await pilot.press("end", "u")
        await until(pilot, "Cells are running")
        assert len(bench.made) == 1


async def test_an_empty_folder_and_a_damaged_log_say_so(bench: Benches, tmp_path: Path) -> None:
    app = Cs336App(bench, session_dir=tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("7")
        await until(pilot, "No sessions yet")
        path = keep(tmp_path, MIXED, mixed_session())
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:4], b"{broken\n", *lines[4:]]))
        await pilot.press("1", "7")
        await until(pilot, "✗ log damaged")
        await until(pilot, lambda _: app.query_one(SessionsPane).has_focus)
        await pilot.press("enter")
        await until(pilot, "opened, b goes back")
        await pilot.press("5")
        await until(pilot, "damaged")


async def test_a_title_that_holds_markup_and_escapes_is_text(bench: Benches, tmp_path: Path) -> None:
    from cs336_tui.session.store import annotate

    path = keep(tmp_path, MIXED, mixed_session())
    annotate(path, name="[bold]x[/]\x1b[31m", note="a\tb")
    app = Cs336App(bench, session_dir=tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await pilot.press("7")
        await until(pilot, "[bold]x[/]")
        await until(pilot, lambda _: app.query_one(SessionsPane).has_focus)
        await pilot.press("N")
        await until(pilot, "A name for session")
        assert app.screen.query_one(Input).value == "[bold]x[/]\x1b[31m"


async def test_a_list_of_sessions_that_is_all_in_sight_keeps_no_room_for_where_one_is(tmp_path: Path) -> None:
    for place in range(12):
        named = SessionAnnotated(at=START + 1, name=f"{place:02} a name that is not so short")
        keep(tmp_path, f"{DEMO[:-4]}{place:04}", [*demo(), named])
    app = Cs336App(Benches(), session_dir=tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda _: app.live.state.environment is not None)
        await pilot.press("7")
        pane = app.query_one(SessionsPane)
        await until(pilot, lambda _: len(pane.infos) == 12)
        assert pane.position_width == 0
