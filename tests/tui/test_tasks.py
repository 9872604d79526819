"""Tasks by keyboard alone: a run is started, stopped and resumed, choices are saved as a preset, code of others is
trusted. And a person's settings: a theme is previewed and kept, keys are moved, what is wrong is told."""

import threading
from pathlib import Path

import pytest
from textual.pilot import Pilot

from cs336_tui.config import presets
from cs336_tui.config.settings import Found, Settings, read_settings, settings_path
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.environment import Environment
from cs336_tui.events.events import CellFinished
from cs336_tui.session.log import Sink
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.dialogs.windows import ThemeList
from cs336_tui.tui.help import bindings_by_id
from cs336_tui.tui.preferences import checked, keymap_of
from cs336_tui.tui.tabs.sessions import SessionsPane
from tests.samples import START, a_spec, session_start
from tests.tui.kept_sessions import STOPPED, keep
from tests.tui.watched import SMALL, WIDE, Benches, ScriptedBench, on_screen, press, until

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


async def test_a_run_is_stopped_and_resumed_by_a_button_while_cells_are_left(bench: Benches) -> None:
    async with on_screen(Cs336App(bench), size=SMALL) as (app, pilot):
        text = await until(pilot, "NVIDIA")
        assert "[ Run ]   Stop   [ Export ]" in text
        await press(pilot, "r", seen="cell 1/3")
        text = await press(pilot, "s", seen="3 cells left, u resumes")
        assert "stopped at " in text.splitlines()[0]
        assert "u Resume" in text.splitlines()[-1]
        await press(pilot, "1", "escape", seen="[ Run ] [ Resume ] [ Export ]")
        bench.go_on.set()
        await pilot.press("right", "enter")
        await until(pilot, lambda _: all(cell.status == "ok" for cell in app.state.cells.values()))
        assert len(app.state.cells) == 3
        await until(pilot, lambda text: "u Resume" not in text)


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
    bench = Benches(SlowBench)
    async with on_screen(Cs336App(bench), "[ Run ]", size=size) as (_, pilot):
        assert "press r" not in await press(pilot, "escape", "r", seen="Reading this machine; the run starts then.")
        bench.may_read.set()
        await until(pilot, "cell 1/")


@pytest.mark.parametrize("size", [SMALL, WIDE, (40, 12)])
async def test_w_keeps_the_choices_under_a_name(size: tuple[int, int]) -> None:
    async with on_screen(Cs336App(Benches()), size=size) as (app, pilot):
        pane = app.query_one(ConfigurePane)
        pane.load(presets.preset("2026/warmup"))
        await press(pilot, "w", seen="Save as preset")
        await press(pilot, "ctrl+u", "enter", seen="a preset needs a name")
        await press(pilot, *"mine", "enter", seen=lambda _: len(app.screen_stack) == 1)
        assert (presets.user_preset_dir() / "mine.toml").exists()
        assert presets.preset("mine").sweep == presets.preset("2026/warmup").sweep
        assert pane.preset.name == "mine"
        assert "Preset mine" in {command.title for command in app.get_system_commands(app.screen)}


async def test_a_name_that_cannot_be_is_told_and_replacing_a_preset_needs_a_second_yes() -> None:
    presets.save(presets.Preset("mine", "about", presets.QUICK.sweep))
    async with on_screen(Cs336App(Benches()), "NVIDIA", notifications=True) as (app, pilot):
        app.query_one(ConfigurePane).load(presets.preset("2026/warmup"))
        await press(pilot, "w", "ctrl+u", *"../x", "enter", seen="preset name '../x'")
        assert [path.name for path in presets.user_preset_dir().rglob("*")] == ["mine.toml"]
        await press(pilot, "w", "ctrl+u", *"mine", "enter", seen="Enter again")
        assert presets.preset("mine").sweep == presets.QUICK.sweep
        await press(pilot, "enter", seen=lambda _: len(app.screen_stack) == 1)
        kept = presets.preset("mine")
        assert (kept.about, kept.sweep) == ("about", presets.preset("2026/warmup").sweep)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A session whose stopped cell is of code in a folder `theirs`."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "evil.py").write_text("class Net: ...\n")
    spec = a_spec(model="evil:Net", model_path=(str(tmp_path / "theirs"),))
    keep(tmp_path, STOPPED, [*session_start([spec]), CellFinished(at=START + 60, cell=0, status="cancelled")])
    return tmp_path


async def resume(app: Cs336App, pilot: Pilot[None]) -> str:
    """Resume the one session of the folder; the screen that asks whether its code is trusted, or runs it."""
    pane = app.query_one(SessionsPane)
    await press(pilot, "7", seen=lambda _: len(pane.infos) == 1 and pane.has_focus)
    return await press(pilot, "u", seen="evil:Net")


async def test_it_asks_and_runs_nothing_unless_it_is_told_to(bench: Benches, folder: Path) -> None:
    async with on_screen(Cs336App(bench, session_dir=folder)) as (app, pilot):
        text = await resume(app, pilot)
        assert "would import evil:Net" in text
        assert "theirs/evil.py" in text
        await press(pilot, "escape", seen=lambda _: not app.run_in_progress)
        assert not app.live.state.cells
        assert "would import evil:Net" in await resume(app, pilot)
        await press(pilot, "y", seen=lambda _: [cell.status for cell in app.live.state.cells.values()] == ["running"])
        bench.made[-1].go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)


async def test_what_is_the_folder_s_own_is_said(bench: Benches, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "theirs")
    async with on_screen(Cs336App(bench, session_dir=folder), notifications=True) as (app, pilot):
        await resume(app, pilot)
        said = f"evil:Net from {folder}/theirs/evil.py"
        await until(pilot, lambda _: said in [note.message for note in app._notifications])
        bench.made[-1].go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)
        assert [cell.status for cell in app.live.state.cells.values()] == ["ok"]


THEMES = ("cs336-dark", "cs336-light")


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


async def listed(app: Cs336App, pilot: Pilot[None]) -> None:
    await press(pilot, "t", seen=lambda _: isinstance(app.screen, ThemeList))


async def test_a_theme_is_on_while_the_cursor_is_on_it_escape_goes_back_and_enter_keeps_it_for_good() -> None:
    async with on_screen(Cs336App(), size=SMALL) as (app, pilot):
        await listed(app, pilot)
        await press(pilot, "down", seen=lambda _: app.theme != "cs336-dark")
        await press(pilot, "escape", seen=lambda _: app.theme == "cs336-dark")
        assert not settings_path().exists()
        await listed(app, pilot)
        seen = []
        for key in ("down", "t"):
            before = app.theme
            await press(pilot, key, seen=lambda _, before=before: app.theme != before)
            seen.append(app.theme)
        assert len({"cs336-dark", *seen}) == 3
        await press(pilot, "enter", seen=lambda _: read_settings().settings.theme == seen[-1])
        assert app.theme == seen[-1]
    async with on_screen(Cs336App(settings=read_settings()), "1 Configure", size=SMALL) as (again, pilot):
        assert again.theme == seen[-1]


async def test_the_palette_previews_a_theme_too() -> None:
    async with on_screen(Cs336App()) as (app, pilot):
        for last in ("escape", "enter"):
            await press(pilot, "colon", *"Theme high", seen=lambda _: app.theme == "high-contrast")
            await pilot.press(last)
            if last == "escape":
                await until(pilot, lambda _: app.theme == "cs336-dark")
        await until(pilot, lambda _: read_settings().settings.theme == "high-contrast")
        assert app.theme == "high-contrast"


async def test_a_theme_that_cannot_be_kept_is_on_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null")
    async with on_screen(Cs336App(), notifications=True) as (app, pilot):
        await listed(app, pilot)
        await press(pilot, "down", "enter", seen="is on, but not kept")
        assert app.theme != "cs336-dark"


async def test_wrong_settings_are_told_by_line_and_the_app_starts_with_defaults() -> None:
    path = settings_path()
    path.parent.mkdir()
    path.write_text('theme = "nowhere"\nexport_format = "docx"\n[keymap]\n"app.rn" = "x"\n')
    app = Cs336App(settings=read_settings())
    async with on_screen(app, "config.toml line 1, theme: nowhere", notifications=True):
        told = "\n".join(each.message for each in app._notifications)
        assert "config.toml line 2, export_format: docx: expected one of markdown" in told
        assert "config.toml line 4, keymap.app.rn: no such action; did you mean app.run?" in told
        assert app.settings == Settings()
        assert app.theme == "cs336-dark"


async def test_a_moved_key_works_and_the_old_one_does_no_more() -> None:
    keymap = {"app.run": "f5", "queue.skip": "D", "app.open_results": "f4", "app.open_live": "f2"}
    found = Found(Settings(keymap=keymap), lines={"keymap.app.run": 2})
    async with on_screen(Cs336App(Benches(), settings=found)) as (app, pilot):
        await until(pilot, lambda text: "NVIDIA" in text and "F5 Run" in text)
        await pilot.press("escape", "r")
        await pilot.pause()
        assert not app.run_in_progress
        await press(pilot, "f5", seen=lambda _: app.run_in_progress)
        await until(pilot, "F5 Add")
        await until(pilot, lambda text: "F4 Results │ 5 Log" in text and "─ F2 Live ─" in text)
        await press(pilot, "question_mark", "home", seen="F5")
        await pilot.press("escape")


@pytest.mark.parametrize(
    ("keymap", "wrong"),
    [
        ({"app.run": "x"}, "x is taken by queue.skip (Skip"),
        ({"app.run": "s"}, "s is taken by app.stop (Stop"),
        ({"app.run": "ctrl+"}, "'ctrl+' is no key"),
        ({"app.run": "two words"}, "'two words' is no key"),
        ({"nothing.at_all": "x"}, "no such action"),
        ({"queue.skip": "r"}, "r is taken by app.run"),
        ({"app.run": "4"}, "4 is taken by app.open_results"),
    ],
)
def test_a_key_that_is_taken_and_one_that_there_is_not_are_refused(keymap: dict[str, str], wrong: str) -> None:
    found = checked(Found(Settings(keymap=keymap)), THEMES)
    assert found.settings.keymap == {}
    assert wrong in found.problems[0]


@pytest.mark.parametrize(
    "keymap", [{"app.run": "x", "queue.skip": "r"}, {"kernels.phase": "x"}, {"app.help": "f7, f7"}]
)
def test_keys_may_change_places_and_be_those_of_other_tabs(keymap: dict[str, str]) -> None:
    keymap = {id: keys for id, keys in keymap.items() if id in bindings_by_id()}
    found = checked(Found(Settings(keymap=keymap)), THEMES)
    assert found.problems == ()
    assert found.settings.keymap == keymap


def test_moving_one_of_two_actions_of_a_key_takes_the_key_from_neither_by_accident() -> None:
    moved = keymap_of({"app.run": "f5"})
    assert moved["app.run"] == moved["app.add"] == "f5"
    level = keymap_of({"memory.zoom_in": "i"})
    assert level["memory.level"] == level["memory.zoom_in"] == "i"
    other = keymap_of({"queue.first": "Z", "queue.last": "A"})
    assert (other["queue.first"], other["queue.last"]) == ("Z", "A")


def test_options_of_the_command_line_win_and_the_preset_is_taken_or_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from cs336_tui.cli import launch

    started: list[Cs336App] = []
    monkeypatch.setattr(Cs336App, "run", lambda app: started.append(app))
    path = settings_path()
    path.parent.mkdir()
    path.write_text('preset = "nowhere"\nrefresh = 4.0\nlow_bandwidth = true\ntheme = "cs336-light"\n')
    from cs336_tui.cli.main import cli

    given = {"replay": None, "speed": 1.0, "summary": None, "ddof": 1, "timeout_s": None, "device_interval_s": 0.5}
    params = {each.name: None for each in cli.params} | given | {"session_dir": path.parent}
    params = {name: value for name, value in params.items() if name not in ("help", "version")}
    for more in ({}, {"refresh": 8.0, "low_bandwidth": False, "theme": "cs336-dark"}):
        assert launch.open_app(**params | more) == 0
    path.write_text('preset = "2026/warmup"\n')
    assert launch.open_app(**params) == 0
    plain, won, preset = started
    assert (plain.theme, won.theme) == ("cs336-light", "cs336-dark")
    assert (plain._refresh_s, won._refresh_s) == (2.0, 1 / 8)
    assert plain._found.problems[0].startswith("config.toml line 1, preset: ")
    assert preset._preset.sweep == presets.preset("2026/warmup").sweep
