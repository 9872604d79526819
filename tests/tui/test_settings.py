"""A person's settings in the app: a theme is previewed and kept, keys are moved, what is wrong is told."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from textual.pilot import Pilot

from cs336_tui.config.settings import Found, Settings, read_settings, settings_path
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.dialogs.windows import ThemeList
from cs336_tui.tui.help import bindings_by_id
from cs336_tui.tui.preferences import checked, keymap_of
from tests.commands import COMMAND
from tests.terminal import Terminal
from tests.tui.watched import SMALL, Benches, on_screen, press, until

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
        assert "config.toml line 4, keymap.app.rn: no such action; near: app.run" in told
        assert app.settings == Settings()
        assert app.theme == "cs336-dark"


async def test_a_moved_key_works_and_the_old_one_does_no_more() -> None:
    found = Found(
        Settings(keymap={"app.run": "f5", "queue.skip": "D", "app.open_results": "f4", "app.open_live": "f2"}),
        lines={"keymap.app.run": 2},
    )
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
    "keymap", [{"app.run": "f5"}, {"app.run": "x", "queue.skip": "r"}, {"kernels.phase": "x"}, {"app.search": "/"}]
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


def test_in_a_terminal_a_theme_lasts_a_moved_key_works_and_the_form_has_the_preset(tmp_path: Path) -> None:
    path = settings_path()
    path.parent.mkdir()
    path.write_text('# mine\npreset = "2026/warmup"\n[keymap]\n"app.theme" = "f9"  # a key that sends a sequence\n')
    with closing(Terminal([COMMAND, "--session-dir", str(tmp_path)])) as terminal:
        terminal.until(lambda text: "warmup" in text and "F9 Theme" in text)
        terminal.send("\x1b")
        terminal.send("\x1b[20~")  # F9
        terminal.until("Enter keep for good")
        terminal.send("\x1b[B")
        terminal.send("\r")
        terminal.until("kept in")
        terminal.send("q")
        assert terminal.wait() == 0
    kept = read_settings(path)
    assert kept.settings.theme not in ("cs336-dark", "")
    assert kept.settings.preset == "2026/warmup"
    assert path.read_text().startswith("# mine\n")


def test_options_of_the_command_line_win_and_a_wrong_preset_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from cs336_tui.cli import launch

    started: list[Cs336App] = []
    monkeypatch.setattr(launch, "_run", lambda app: started.append(app) or 0)  # type: ignore[func-returns-value]
    path = settings_path()
    path.parent.mkdir()
    path.write_text('preset = "nowhere"\nrefresh = 4.0\nlow_bandwidth = true\ntheme = "cs336-light"\n')
    from cs336_tui.cli.main import cli

    given = {"replay": None, "speed": 1.0, "summary": None, "ddof": 1, "timeout_s": None, "device_interval_s": 0.5}
    params = {each.name: None for each in cli.params} | given | {"session_dir": path.parent}
    params = {name: value for name, value in params.items() if name not in ("help", "version")}
    for more in ({}, {"refresh": 8.0, "low_bandwidth": False, "theme": "cs336-dark"}):
        assert launch.open_app(**params | more) == 0
    plain, won = started
    assert (plain.theme, won.theme) == ("cs336-light", "cs336-dark")
    assert (plain._refresh_s, won._refresh_s) == (2.0, 1 / 8)
    assert plain._found.problems[0].startswith("config.toml line 1, preset: ")
