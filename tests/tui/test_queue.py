"""The queue on the screen, whose cells are moved and skipped, and the Sessions tab: opening, naming, comparing,
resuming and deleting sessions."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from cs336_tui.config.spec import SpecError
from cs336_tui.events.events import SessionAnnotated
from cs336_tui.export.summary import summary_markdown
from cs336_tui.session.log import LogError, Sink
from cs336_tui.session.store import info_of, load
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.ending import farewell
from cs336_tui.tui.requests import RunOptions
from cs336_tui.tui.tabs.live import LivePane
from cs336_tui.tui.tabs.queue import QueuePane
from cs336_tui.tui.tabs.sessions import SessionsPane
from tests.samples import START, mixed_session
from tests.tui.kept_sessions import DEMO, MIXED, STOPPED, keep, stopped_session
from tests.tui.watched import SMALL, WIDE, Benches, absent, demo, on_screen, press, until


@asynccontextmanager
async def opened(
    bench: Benches, *, size: tuple[int, int] = WIDE, runs: bool = False, **options: Any
) -> AsyncIterator[tuple[Cs336App, Pilot[int]]]:
    """An app that has read its machine, and if it `runs` its first cell."""
    async with on_screen(Cs336App(bench, **options), size=size, notifications=True) as (app, pilot):
        if runs:
            await press(pilot, "r", seen=lambda _: bool(app.live.state.running))
        yield app, pilot


def order(app: Cs336App) -> list[int]:
    """Numbers of the waiting cells as shown."""
    return [cell + 1 for cell in app.live.state.waiting]


async def test_before_a_run_the_queue_shows_what_run_would_add_and_options_reach_it(bench: Benches) -> None:
    async with opened(bench, options=RunOptions(repeats=2, ddof=0, timeout_s=90.0)) as (_, pilot):
        text = await press(pilot, "6", seen="Run would add 6 cells")
        assert "after OOM: skip larger" in text
        rows = [line.split() for line in text.splitlines() if line.strip().startswith("+")]
        assert [(row[0], row[4]) for row in rows] == [
            ("+1", "forward"), ("+2", "forward+backward"), ("+3", "train-step"),
            ("+4", "forward"), ("+5", "forward+backward"), ("+6", "train-step"),
        ]  # fmt: skip
        assert not bench.commands
        await press(pilot, "M", seen="after OOM: try all")
        await press(pilot, "r", seen="▶ running")
        assert (bench.skip_after_oom, bench.ddof, bench.timeout_s) == (False, 0, 90.0)
        await press(pilot, "M", seen="after OOM: skip larger")
        assert bench.made[0].skip_after_oom is True


async def test_run_while_cells_run_adds_behind_those_that_wait(bench: Benches) -> None:
    async with opened(bench) as (app, pilot):
        text = await press(pilot, "r", seen="▶ running")
        assert "r Add" in text.splitlines()[-1]
        assert "[ Add ]" in text
        await press(pilot, "r", seen="3 cells added")
        await until(pilot, lambda _: order(app) == [2, 3, 4, 5, 6])
        bench.go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)
        assert [cell.status for cell in app.state.cells.values()] == ["ok"] * 6
    assert len(bench.commands) == 2


async def test_nothing_is_added_to_a_run_that_is_being_stopped(bench: Benches) -> None:
    async with opened(bench, runs=True) as (app, pilot):
        bench.may_stop.clear()
        await press(pilot, "s", seen="stopping ...")
        await pilot.press("r")
        bench.may_stop.set()
        await until(pilot, lambda _: not app.run_in_progress)
        assert len(app.state.cells) == 3
        await press(pilot, "r", seen="▶ running")


async def test_a_sweep_that_is_refused_leaves_the_app_ready(bench: Benches) -> None:
    async with opened(bench) as (app, pilot):
        bench.made[0].refuse_sweep = SpecError("device", "cuda:3", "this machine has cpu")
        await press(pilot, "r", seen="this machine has cpu")
        assert not app.run_in_progress
        bench.made[0].refuse_sweep = None
        await press(pilot, "r", seen="▶ running")


@pytest.mark.parametrize("size", [SMALL, WIDE, (40, 12)])
async def test_cells_are_moved_skipped_and_wait_again_by_key(size: tuple[int, int], bench: Benches) -> None:
    async with opened(bench, options=RunOptions(repeats=2), size=size) as (app, pilot):
        await press(pilot, "r", seen=lambda _: order(app) == [2, 3, 4, 5, 6])
        await press(pilot, "6", seen="5 cells wait")
        await until(pilot, lambda _: app.query_one(QueuePane).has_focus)
        await press(pilot, "home", "down", "J", seen=lambda _: order(app) == [3, 2, 4, 5, 6])
        await press(pilot, "shift+down", seen=lambda _: order(app) == [3, 4, 2, 5, 6])
        await press(pilot, "K", "shift+up", "K", "Z", seen=lambda _: order(app) == [3, 4, 5, 6, 2])
        await press(pilot, "A", seen=lambda _: order(app) == [2, 3, 4, 5, 6])
        await press(pilot, "x", seen=lambda _: order(app) == [3, 4, 5, 6])
        assert app.state.cells[1].skipped_because == "skipped by hand"
        await press(pilot, "end", seen="skipped" if size != (40, 12) else "–")
        await press(pilot, "space", seen=lambda _: order(app) == [3, 4, 5, 6, 2])


async def test_the_queue_is_held_after_the_running_cell_and_goes_on(bench: Benches) -> None:
    async with opened(bench, runs=True) as (app, pilot):
        text = await press(pilot, "6", "P", seen="paused after this")
        assert "· paused" in text.splitlines()[0]
        assert "paused (P goes on)" in text
        bench.finish_one()
        await until(pilot, "the queue is paused")
        assert order(app) == [2, 3]
        assert app.run_in_progress
        await press(pilot, "P", seen=lambda _: order(app) == [3])
        bench.go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)


async def test_failed_cells_run_again_by_key(bench: Benches) -> None:
    async with opened(bench) as (app, pilot):
        bench.made[0].outcomes = {0: "failed", 2: "killed"}
        bench.go_on.set()
        await press(pilot, "r", seen=lambda _: bool(app.state.cells) and not app.run_in_progress)
        await press(pilot, "6", seen="✗ killed")
        bench.outcomes.clear()
        await press(pilot, "R", seen=lambda _: [c.status for c in app.state.cells.values()] == ["ok"] * 3)
        await until(pilot, lambda _: not app.run_in_progress)
        assert len(app.state.cells[0].earlier) == 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keep(tmp_path, STOPPED, stopped_session())
    keep(tmp_path, MIXED, mixed_session())
    keep(tmp_path, DEMO, demo())
    return tmp_path


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
        text = await press(pilot, "down", "enter", seen="opened, b goes back")
        assert "b Back" in text.splitlines()[-1]
        text = await press(pilot, "4", seen="▲ OOM")
        assert text.count("small") >= 3
        text = await press(pilot, "5", seen="SIGSEGV")
        assert f"{MIXED}.jsonl" in text
        assert "Nothing has run yet" in await press(pilot, "b", seen=lambda text: "opened" not in text)


async def test_looking_at_a_session_does_not_disturb_what_runs(bench: Benches, folder: Path) -> None:
    async with opened(bench, session_dir=folder, runs=True) as (app, pilot):
        await to_sessions(app, pilot)
        await press(pilot, "enter", seen="b goes back to what runs")
        bench.go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)
        assert app.state is not app.live.state
        assert [cell.status for cell in app.live.state.cells.values()] == ["ok"] * 3


async def test_a_session_is_named_and_annotated_and_deleting_asks_and_q_is_no(bench: Benches, folder: Path) -> None:
    async with opened(bench, session_dir=folder) as (app, pilot):
        pane = await to_sessions(app, pilot)
        await press(pilot, "N", seen="A name for session")
        await press(pilot, *"fast box", "enter", seen="fast box")
        await press(pilot, "a", seen="A note on session fast box")
        await press(pilot, *"new driver", "enter", seen="new driver")
        info = info_of(folder / f"{DEMO}.jsonl")
        assert (info.name, info.note) == ("fast box", "new driver")
        await pilot.press("down")
        for no in ("escape", "n", "q"):
            await press(pilot, "d", seen="for good?")
            await pilot.press(no)
            assert app.is_running
            assert (folder / f"{MIXED}.jsonl").exists()
        await press(pilot, "d", seen="for good?")
        await press(pilot, "y", seen=lambda _: len(pane.infos) == 2)
    assert not (folder / f"{MIXED}.jsonl").exists()


async def test_resuming_runs_what_has_no_result_into_that_session(bench: Benches, folder: Path) -> None:
    async with opened(bench, session_dir=folder) as (app, pilot):
        await to_sessions(app, pilot)
        await press(pilot, "end", "u", seen="cell 2/3")
        assert bench.made[1].log_path == folder / f"{STOPPED}.jsonl"
        assert [cell.status for cell in app.live.state.cells.values()] == ["ok", "running", "queued"]
        await until(pilot, lambda _: bench.made[0].closed)
        bench.made[1].go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)
        assert [cell.status for cell in app.live.state.cells.values()] == ["ok"] * 3
        await press(pilot, "r", seen=lambda _: len(app.live.state.cells) == 6)
        assert bench.made[1].commands, "what is run next goes into the session that goes on"
    assert bench.made[1].closed


async def test_a_session_that_cannot_go_on_leaves_the_one_before(folder: Path) -> None:
    def refusing(sink: Sink, log: Path | None) -> Any:
        """A bench of a session that there is refuses to go on."""
        made = Benches()(sink, log)
        made.refuse = LogError("session x is being written by process 1 on other") if log else None
        return made

    bench = Benches(refusing)
    async with opened(bench, session_dir=folder) as (app, pilot):
        await until(pilot, "NVIDIA")
        bench.made[0].go_on.set()
        await press(pilot, "r", seen=lambda _: bool(app.state.cells) and not app.run_in_progress)
        await to_sessions(app, pilot)
        await press(pilot, "end", "u", seen="is being written by process 1")
        assert not app.run_in_progress
        assert len(app.live.state.cells) == 3
        assert app.live.path == bench.log_path
        assert not bench.closed
        await until(pilot, lambda _: bench.made[1].closed)


async def test_nothing_is_resumed_while_cells_run_or_when_nothing_is_left(bench: Benches, folder: Path) -> None:
    async with opened(bench, session_dir=folder) as (app, pilot):
        await to_sessions(app, pilot)
        await press(pilot, "u", seen="has nothing")
        await press(pilot, "r", seen="cell 1/3")
        await press(pilot, "end", "u", seen="Cells are running")
        assert len(bench.made) == 1


async def test_an_empty_folder_and_a_damaged_log_say_so(bench: Benches, tmp_path: Path) -> None:
    async with on_screen(Cs336App(bench, session_dir=tmp_path), "") as (app, pilot):
        await press(pilot, "7", seen="No sessions yet")
        path = keep(tmp_path, MIXED, mixed_session())
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:4], b"{broken\n", *lines[4:]]))
        await press(pilot, "1", "7", seen="✗ log damaged")
        await until(pilot, lambda _: app.query_one(SessionsPane).has_focus)
        await press(pilot, "enter", seen="opened, b goes back")
        await press(pilot, "5", seen="damaged")


async def test_a_title_that_holds_markup_and_escapes_is_text(bench: Benches, tmp_path: Path) -> None:
    from cs336_tui.session.store import annotate

    annotate(keep(tmp_path, MIXED, mixed_session()), name="[bold]x[/]\x1b[31m", note="a\tb")
    async with on_screen(Cs336App(bench, session_dir=tmp_path), "") as (app, pilot):
        await press(pilot, "7", seen="[bold]x[/]")
        await until(pilot, lambda _: app.query_one(SessionsPane).has_focus)
        await press(pilot, "N", seen="A name for session")
        assert app.screen.query_one(Input).value == "[bold]x[/]\x1b[31m"


async def test_a_list_of_sessions_that_is_all_in_sight_keeps_no_room_for_where_one_is(tmp_path: Path) -> None:
    for place in range(12):
        named = SessionAnnotated(at=START + 1, name=f"{place:02} a name that is not so short")
        keep(tmp_path, f"{DEMO[:-4]}{place:04}", [*demo(), named])
    async with on_screen(Cs336App(Benches(), session_dir=tmp_path), "", size=SMALL) as (app, pilot):
        await until(pilot, lambda _: app.live.state.environment is not None)
        await pilot.press("7")
        pane = app.query_one(SessionsPane)
        await until(pilot, lambda _: len(pane.infos) == 12)
        assert pane.position_width == 0


async def test_every_time_of_a_session_is_that_of_its_name(tmp_path: Path) -> None:
    path, told = keep(tmp_path, DEMO, demo()), "2026-11-20 14:03"
    async with on_screen(Cs336App(Benches(), session_dir=tmp_path), "", size=(200, 60)) as (_, pilot):
        row = await press(pilot, "7", seen=DEMO)
        assert re.findall(rf"(\d\S+ \d\S+) .* {DEMO}", row) == [told]
        await press(pilot, "enter", seen=f"session {told} · opened")
    assert info_of(path).begun == told
    assert f"Started {told}." in summary_markdown(load(path))


async def test_the_list_says_what_was_run_and_a_filter_keeps_what_has_its_words(folder: Path) -> None:
    async with opened(Benches(), session_dir=folder) as (app, pilot):
        pane = await to_sessions(app, pilot)
        stopped = next(row for row in str(pane.text).splitlines() if "2026-11-18" in row)
        assert re.split(r"  +", stopped.strip())[1:4] == ["small", "128, 256, 512", "fwd+bwd"]
        await pilot.press("home", "m")
        marked = pane.marked
        await press(pilot, "slash", *"SMALL stopped 2026-11-18", "enter", seen="1 of 3 with SMALL stopped 2026-11-18")
        assert [info.session for info in pane.infos] == [STOPPED]
        assert pane.marked == marked, "what is filtered out stays marked"
        await press(pilot, "slash", "end", *"x", "enter", seen="No session has these words.")
        await press(pilot, "slash", *["backspace"] * 30, "enter", seen=lambda _: len(pane.infos) == 3)


async def test_an_opened_session_shows_its_results(folder: Path) -> None:
    async with opened(Benches(), session_dir=folder) as (app, pilot):
        await to_sessions(app, pilot)
        await press(pilot, "end", "enter", seen="! ok")
        assert app.main.open_tab == "results"


async def test_the_first_screen_of_a_small_terminal_offers_the_same_below_the_form(
    bench: Benches, tmp_path: Path
) -> None:
    keep(tmp_path, STOPPED, stopped_session())
    async with opened(bench, session_dir=tmp_path, size=SMALL) as (app, pilot):
        text = await until(pilot, "7 Enter open the last session")
        assert not absent(
            text, "u resume the last session · ", "D watch a made-up run · 1 Enter choose a problem of the"
        )
        await press(pilot, "r", "1", seen=lambda _: app.run_in_progress)
        await until(pilot, lambda text: "made-up run" not in text)


async def test_the_first_screen_offers_the_last_session_and_a_made_up_run(bench: Benches, tmp_path: Path) -> None:
    keep(tmp_path, STOPPED, stopped_session())
    async with opened(bench, session_dir=tmp_path) as (app, pilot):
        await until(pilot, "resume the last session, 2 cells left")
        offered = " ".join(app.main.query_one(LivePane).text.split())
        assert "open the last session: 2026-11-18 09:00 · small · ctx 128, 256, 512 · fwd+bwd" in offered
        await press(pilot, "D", seen="made-up run, replay ×4, b goes back")
        await press(pilot, "P", seen="made-up run, replay paused, b goes back")
        await press(pilot, "b", seen="resume the last session")
        assert app.shown is app.live
        await press(pilot, "u", seen="cell 2/3")
        assert bench.made[1].log_path == tmp_path / f"{STOPPED}.jsonl"


@pytest.mark.parametrize("size", [SMALL, WIDE, (200, 60)])
async def test_a_stopped_session_is_told_alike_everywhere(size: tuple[int, int], tmp_path: Path) -> None:
    path, told = keep(tmp_path, STOPPED, stopped_session()), "stopped at 6/18 steps"
    async with on_screen(Cs336App(Benches(), session_dir=tmp_path), "", size=size) as (app, pilot):
        await until(pilot, lambda _: app.live.state.environment is not None)
        await pilot.press("7")
        if size != SMALL:
            await until(pilot, "■ stopped 6/18")
        await until(pilot, lambda _: app.main.focused is not None and app.main.focused.id == "sessions")
        await press(pilot, "enter", seen="opened")
        await press(pilot, "6", seen="stopped: 2 cells left, u resumes")
        text = await press(pilot, "2", seen="6/18 steps")
        assert "100 %" not in text.replace("CPU      100 %", "")
        assert "u Resume" in text.splitlines()[-1]
    assert told in farewell([path])
    assert told in summary_markdown(load(path))
