"""Saving choices as a preset."""

from __future__ import annotations

from pathlib import Path

import pytest

from cs336_tui.config import presets
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.configure.pane import ConfigurePane
from tests.tui.watched import SMALL, WIDE, Benches, demo, on_screen, replaying, until


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
        await pilot.press("w")
        await until(pilot, "Save as preset")
        await pilot.press("ctrl+u", "enter")
        await until(pilot, "a preset needs a name")
        await pilot.press(*"mine", "enter")
        await until(pilot, lambda _: len(app.screen_stack) == 1)
        assert (own / "mine.toml").exists()
        assert presets.preset("mine").sweep == presets.preset("2026/warmup").sweep
        assert pane.preset.name == "mine"
        assert "Preset mine" in {command.title for command in app.get_system_commands(app.screen)}


async def test_replacing_one_needs_a_second_yes() -> None:
    presets.save(presets.Preset("mine", "about", presets.QUICK.sweep))
    async with on_screen(Cs336App(Benches()), "NVIDIA") as (app, pilot):
        app.query_one(ConfigurePane).load(presets.preset("2026/warmup"))
        await pilot.press("w", "ctrl+u", *"mine", "enter")
        await until(pilot, "Enter again")
        assert presets.preset("mine").sweep == presets.QUICK.sweep
        await pilot.press("enter")
        await until(pilot, lambda _: len(app.screen_stack) == 1)
        kept = presets.preset("mine")
        assert (kept.about, kept.sweep) == ("about", presets.preset("2026/warmup").sweep)


async def test_a_name_that_cannot_be_is_told_and_wrong_choices_are_not_saved(own: Path) -> None:
    async with on_screen(Cs336App(Benches()), "NVIDIA", notifications=True) as (_, pilot):
        await pilot.press("w", "ctrl+u", *"../x", "enter")
        await until(pilot, "preset name '../x'")
        assert not list(own.rglob("*"))


async def test_a_replay_saves_nothing(tmp_path: Path) -> None:
    async with on_screen(replaying(demo(), tmp_path), "at its end") as (app, pilot):
        await pilot.press("w")
        assert len(app.screen_stack) == 1
