"""The whole screen at several sizes, from a replayed log: neither clock nor machine show in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from cs336_tui.tui.app import Cs336App
from tests.tui.watched import demo, in_the_middle, log_of, until

SIZES = {"80x24": (80, 24), "120x40": (120, 40), "200x60": (200, 60)}


def after(*keys: str) -> Callable[[Pilot[None]], Any]:
    """Play the log to its end, then press the keys."""

    async def prepare(pilot: Pilot[None]) -> None:
        await until(pilot, "at its end")
        await pilot.press(*keys)
        pilot.app.clear_notifications()  # they go by themselves, at a time of their own
        await pilot.pause()
        if len(pilot.app.screen_stack) == 1:
            await until(pilot, "at its end")

    return prepare


@pytest.mark.parametrize("size", SIZES)
def test_in_the_middle_of_a_run(size: str, snap_compare: Any, tmp_path: Path) -> None:
    app = Cs336App(replay=log_of(demo(in_the_middle), tmp_path), speed=0)
    assert snap_compare(app, terminal_size=SIZES[size], run_before=after())


@pytest.mark.parametrize("key", ["1", "3"])
def test_a_tab_fills_a_small_terminal(key: str, snap_compare: Any, tmp_path: Path) -> None:
    app = Cs336App(replay=log_of(demo(in_the_middle), tmp_path), speed=0)
    assert snap_compare(app, terminal_size=SIZES["80x24"], run_before=after(key))


@pytest.mark.parametrize("keys", [(), ("e",), ("3", "home", "enter"), ("question_mark",)], ids=" ".join)
def test_at_the_end_of_a_session(keys: tuple[str, ...], snap_compare: Any, tmp_path: Path) -> None:
    app = Cs336App(replay=log_of(demo(), tmp_path), speed=0)
    assert snap_compare(app, terminal_size=SIZES["120x40"], run_before=after(*keys))


def test_a_light_theme(snap_compare: Any, tmp_path: Path) -> None:
    app = Cs336App(replay=log_of(demo(in_the_middle), tmp_path), speed=0, theme="cs336-light")
    assert snap_compare(app, terminal_size=SIZES["120x40"], run_before=after())
