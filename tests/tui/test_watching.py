"""The app on a session that others run: another process, or jobs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from cs336_tui.events import events as ev
from cs336_tui.runner.jobs.bench import JobsBench
from cs336_tui.runner.jobs.job import JobRequest, LaunchChoice
from cs336_tui.session.log import SessionLog
from cs336_tui.session.store import load
from cs336_tui.tui.app import Cs336App
from tests.samples import START, lanes_session
from tests.tui.watched import SMALL, Benches, comes, on_screen, until
from tests.watching import Watch, small_spec


async def test_a_session_that_another_process_writes_is_shown_as_it_goes_on_and_closing_changes_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.jsonl"
    with closing(SessionLog(path)) as log:
        log.write(lanes_session())
        app = Cs336App(watch=path, session_dir=tmp_path)
        async with app.run_test(size=SMALL, notifications=True) as pilot:
            await until(pilot, "8 run · 4 wait")
            assert "watching" in await until(pilot, "s Stop")
            log.write([ev.CellFinished(at=START + 60, cell=8, status="ok")])
            await until(pilot, "7 run · 4 wait · 8 ok")
            await pilot.press("s")
            await until(pilot, "cs336-tui cancel sample")
            before = path.read_bytes()
            await pilot.press("q")
        assert path.read_bytes() == before
        log.write([ev.SessionEnded(at=START + 90, reason="cancelled")])


async def test_it_is_watched_from_the_list_of_sessions_too_until_it_is_over(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with closing(SessionLog(path)) as log:
        log.write(lanes_session())
        async with on_screen(Cs336App(Benches(), session_dir=tmp_path), size=SMALL) as (_, pilot):
            await pilot.press("7")
            await until(pilot, "▶ running")
            await pilot.press("enter")
            await until(pilot, "watching, b goes back")
            await until(pilot, "8 run · 4 wait")
            log.write([ev.SessionEnded(at=START + 90, reason="cancelled")])
            await until(pilot, "opened, b goes back")
            await pilot.press("b")
            await until(pilot, lambda text: "goes back" not in text)


async def test_a_session_of_jobs_is_watched_left_and_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    bench = JobsBench(Watch(), path)
    queued = ev.CellsQueued(at=START, first=0, specs=(small_spec(measure_steps=1_000_000),))
    settings = JobRequest(session="s", job="", cells=(), device_interval_s=0)
    bench.submit([queued], LaunchChoice(launcher="local", form="array"), settings)
    try:
        bench.close()
        async with on_screen(Cs336App(watch=path, session_dir=tmp_path), "▶ measuring", size=SMALL) as (_, pilot):
            await pilot.press("s")
            await until(pilot, "Leave them")
            await pilot.press("escape")
            await until(pilot, "1 run")
        async with on_screen(Cs336App(Benches(), session_dir=tmp_path), size=SMALL) as (again, pilot):
            await pilot.press("7")
            await until(pilot, "s  ")
            await pilot.press("enter")
            await until(pilot, "▶ measuring")
            await pilot.press("s")
            await until(pilot, "Leave them")
            await pilot.press("tab", "enter")
            await comes(pilot, lambda: again.shown.state.ended is not None)
            assert {cell.status for cell in again.shown.state.cells.values()} == {"cancelled"}
        assert {cell.status for cell in load(path).cells.values()} == {"cancelled"}
    finally:
        ender = JobsBench(Watch(), path)
        ender.watch()
        ender.cancel()
        ender.work()
        ender.close()
