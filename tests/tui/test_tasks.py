"""Tasks by keyboard alone: a run is started, stopped and resumed, choices are saved as a preset, code of others is
trusted."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cs336_tui.config import presets
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.environment import Environment
from cs336_tui.events.events import CellFinished
from cs336_tui.session.log import Sink
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.tabs.sessions import SessionsPane
from tests.samples import START, a_spec, session_start
from tests.tui.kept_sessions import STOPPED, keep
from tests.tui.watched import SMALL, WIDE, Benches, ScriptedBench, demo, on_screen, press, replaying, until

MOST = 8
"""Keys after the first screen."""


async def test_two_sizes_at_two_contexts_are_chosen_and_run() -> None:
    app = Cs336App(Benches())
    keys = ("tab", "right", "space", "tab", "right", "space", "r")
    assert len(keys) <= MOST
    async with on_screen(app, "NVIDIA", size=SMALL) as (_, pilot):
        await press(pilot, *keys, seen=lambda _: len(app.state.cells) == 12)
        found = {(cell.spec.size, cell.spec.context_length) for cell in app.state.cells.values()}
        assert found == {(size, context) for size in ("tiny", "small") for context in (128, 256)}


async def test_a_run_is_stopped_and_resumed() -> None:
    async with on_screen(Cs336App(bench := Benches()), "NVIDIA", size=SMALL) as (app, pilot):
        await press(pilot, "r", seen="cell 1/3")
        text = await press(pilot, "s", seen="3 cells left, u resumes")
        assert "stopped at " in text.splitlines()[0]
        assert "u Resume" in text.splitlines()[-1]
        await press(pilot, "u", seen=lambda _: app.run_in_progress)
        bench.go_on.set()
        await until(pilot, lambda _: all(cell.status == "ok" for cell in app.state.cells.values()))
        await until(pilot, lambda text: "u Resume" not in text)


async def test_resume_is_a_button_while_cells_are_left() -> None:
    async with on_screen(Cs336App(bench := Benches()), size=SMALL) as (app, pilot):
        text = await until(pilot, "NVIDIA")
        assert "[ Run ]   Stop   [ Export ]" in text
        await press(pilot, "r", seen="cell 1/3")
        await press(pilot, "s", seen="u resumes")
        await press(pilot, "1", "escape", seen="[ Run ] [ Resume ] [ Export ]")
        bench.go_on.set()
        await pilot.press("right", "enter")
        await until(pilot, lambda _: all(cell.status == "ok" for cell in app.state.cells.values()))
        assert len(app.state.cells) == 3


class SlowBench(ScriptedBench):
    """A bench that reads its machine when a test allows it."""

    def __init__(self, sink: Sink, log: Path | None = None) -> None:
        super().__init__(sink, log)
        self.may_read = threading.Event()

    def probe(self) -> Environment:
        self.may_read.wait()
        return super().probe()

    def resolve(self, sweep: Sweep) -> Sweep:
        self.may_read.wait()
        return super().resolve(sweep)


@pytest.mark.parametrize("size", [SMALL, WIDE])
async def test_the_live_pane_says_that_the_run_waits_for_the_machine(size: tuple[int, int]) -> None:
    made: list[SlowBench] = []

    def bench(sink: Sink, log: Path | None) -> SlowBench:
        made.append(SlowBench(sink, log))
        return made[-1]

    app = Cs336App(bench)  # type: ignore[arg-type]
    async with on_screen(app, "[ Run ]", size=size) as (_, pilot):
        shown = await press(pilot, "escape", "r", seen="Reading this machine; the run starts then.")
        assert "press r" not in shown
        made[0].may_read.set()
        await until(pilot, "cell 1/")


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "own"
    monkeypatch.setattr(presets, "user_preset_dir", lambda: folder)
    return folder


@pytest.mark.parametrize("size", [SMALL, WIDE, (40, 12)])
async def test_w_keeps_the_choices_under_a_name(size: tuple[int, int], own: Path) -> None:
    async with on_screen(Cs336App(Benches()), size=size) as (app, pilot):
        pane = app.query_one(ConfigurePane)
        pane.load(presets.preset("2026/warmup"))
        await press(pilot, "w", seen="Save as preset")
        await press(pilot, "ctrl+u", "enter", seen="a preset needs a name")
        await press(pilot, *"mine", "enter", seen=lambda _: len(app.screen_stack) == 1)
        assert (own / "mine.toml").exists()
        assert presets.preset("mine").sweep == presets.preset("2026/warmup").sweep
        assert pane.preset.name == "mine"
        assert "Preset mine" in {command.title for command in app.get_system_commands(app.screen)}


async def test_a_name_that_cannot_be_is_told_and_replacing_a_preset_needs_a_second_yes(own: Path) -> None:
    presets.save(presets.Preset("mine", "about", presets.QUICK.sweep))
    async with on_screen(Cs336App(Benches()), "NVIDIA", notifications=True) as (app, pilot):
        app.query_one(ConfigurePane).load(presets.preset("2026/warmup"))
        await press(pilot, "w", "ctrl+u", *"../x", "enter", seen="preset name '../x'")
        assert [path.name for path in own.rglob("*")] == ["mine.toml"]
        await press(pilot, "w", "ctrl+u", *"mine", "enter", seen="Enter again")
        assert presets.preset("mine").sweep == presets.QUICK.sweep
        await press(pilot, "enter", seen=lambda _: len(app.screen_stack) == 1)
        kept = presets.preset("mine")
        assert (kept.about, kept.sweep) == ("about", presets.preset("2026/warmup").sweep)


async def test_a_replay_saves_nothing(tmp_path: Path) -> None:
    async with on_screen(replaying(demo(), tmp_path), "at its end") as (app, pilot):
        await pilot.press("w")
        assert len(app.screen_stack) == 1


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
        await press(pilot, "escape", seen=lambda _: not app.run_in_progress)
        assert not app.live.state.cells
        await resume(app, pilot)
        await until(pilot, "would import evil:Net")
        await press(pilot, "y", seen=lambda _: [cell.status for cell in app.live.state.cells.values()] == ["running"])
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
