"""The app asks before it runs what a session's log names, and says what and from where."""

from __future__ import annotations

from pathlib import Path

import pytest

from cs336_tui.events.events import CellFinished
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.tabs.sessions import SessionsPane
from tests.samples import START, a_spec, session_start
from tests.tui.kept_sessions import STOPPED, keep
from tests.tui.watched import Benches, on_screen, until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A session whose stopped cell is of code in a folder `theirs`."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "evil.py").write_text("class Net: ...\n")
    spec = a_spec(model="evil:Net", model_path=(str(tmp_path / "theirs"),))
    keep(tmp_path, STOPPED, [*session_start([spec]), CellFinished(at=START + 60, cell=0, status="cancelled")])
    return tmp_path


async def resume(app: Cs336App, pilot) -> None:  # type: ignore[no-untyped-def]
    await until(pilot, lambda _: app.live.state.environment is not None)
    await pilot.press("7")
    pane = app.query_one(SessionsPane)
    await until(pilot, lambda _: len(pane.infos) == 1 and pane.has_focus)
    await pilot.press("u")


async def test_it_asks_and_runs_nothing_unless_it_is_told_to(folder: Path) -> None:
    bench = Benches()
    async with on_screen(Cs336App(bench, session_dir=folder)) as (app, pilot):
        await resume(app, pilot)
        text = await until(pilot, "would import evil:Net")
        assert "theirs/evil.py" in text
        await pilot.press("escape")
        await until(pilot, lambda _: not app.run_in_progress)
        assert not app.live.state.cells
        await resume(app, pilot)
        await until(pilot, "would import evil:Net")
        await pilot.press("y")
        await until(pilot, lambda _: [cell.status for cell in app.live.state.cells.values()] == ["running"])
        bench.made[-1].go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)


async def test_what_is_the_current_folder_s_own_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "theirs")
    bench = Benches()
    async with on_screen(Cs336App(bench, session_dir=folder), notifications=True) as (app, pilot):
        await resume(app, pilot)
        said = f"evil:Net from {folder}/theirs/evil.py"
        await until(pilot, lambda _: said in [note.message for note in app._notifications])
        bench.made[-1].go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)
        assert [cell.status for cell in app.live.state.cells.values()] == ["ok"]
