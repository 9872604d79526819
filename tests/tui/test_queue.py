"""The queue on the screen: waiting cells, their order, and the keys that change it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from textual.pilot import Pilot

from cs336_tui.config.spec import SpecError
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.requests import RunOptions
from cs336_tui.tui.tabs.queue import QueuePane
from tests.tui.watched import SMALL, WIDE, Benches, demo, in_the_middle, log_of, screen_text, until


@pytest.fixture
def bench() -> Benches:
    return Benches()


@asynccontextmanager
async def opened(
    bench: Benches, *, size: tuple[int, int] = WIDE, runs: bool = False, **options: Any
) -> AsyncIterator[tuple[Cs336App, Pilot[int]]]:
    """An app that has read its machine, and if it `runs` its first cell."""
    app = Cs336App(bench, **options)
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, lambda _: app.live.state.environment is not None)
        if runs:
            await pilot.press("r")
            await until(pilot, lambda _: bool(app.live.state.running))
        yield app, pilot


def order(app: Cs336App) -> list[int]:
    """Numbers of the waiting cells as shown."""
    return [cell + 1 for cell in app.live.state.waiting]


async def test_before_a_run_the_queue_shows_what_run_would_add(bench: Benches) -> None:
    async with opened(bench, options=RunOptions(repeats=2)) as (_, pilot):
        await pilot.press("6")
        text = await until(pilot, "Run would add 6 cells")
        assert "after OOM: skip larger" in text
        rows = [line.split() for line in text.splitlines() if line.strip().startswith("+")]
        assert [(row[0], row[4]) for row in rows] == [
            ("+1", "forward"), ("+2", "forward+backward"), ("+3", "train-step"),
            ("+4", "forward"), ("+5", "forward+backward"), ("+6", "train-step"),
        ]  # fmt: skip
        assert not bench.commands


async def test_run_while_cells_run_adds_behind_those_that_wait(bench: Benches) -> None:
    async with opened(bench) as (app, pilot):
        await pilot.press("r")
        text = await until(pilot, "▶ running")
        assert "r Add" in text.splitlines()[-1]
        assert "[ Add ]" in text
        await pilot.press("r")
        await until(pilot, "3 cells added")
        await until(pilot, lambda _: order(app) == [2, 3, 4, 5, 6])
        bench.go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)
        assert [cell.status for cell in app.state.cells.values()] == ["ok"] * 6
    assert len(bench.commands) == 2


async def test_nothing_is_added_to_a_run_that_is_being_stopped(bench: Benches) -> None:
    async with opened(bench, runs=True) as (app, pilot):
        bench.may_stop.clear()
        await pilot.press("s")
        await until(pilot, "stopping ...")
        await pilot.press("r")
        bench.may_stop.set()
        await until(pilot, lambda _: not app.run_in_progress)
        assert len(app.state.cells) == 3
        await pilot.press("r")
        await until(pilot, "▶ running")


async def test_a_sweep_that_is_refused_leaves_the_app_ready(bench: Benches) -> None:
    async with opened(bench) as (app, pilot):
        bench.made[0].refuse_sweep = SpecError("device", "cuda:3", "this machine has cpu")
        await pilot.press("r")
        await until(pilot, "this machine has cpu")
        assert not app.run_in_progress
        bench.made[0].refuse_sweep = None
        await pilot.press("r")
        await until(pilot, "▶ running")


@pytest.mark.parametrize("size", [SMALL, WIDE, (40, 12)])
async def test_cells_are_moved_skipped_and_wait_again_by_key(size: tuple[int, int], bench: Benches) -> None:
    async with opened(bench, options=RunOptions(repeats=2), size=size) as (app, pilot):
        await pilot.press("r")
        await until(pilot, lambda _: order(app) == [2, 3, 4, 5, 6])
        await pilot.press("6")
        await until(pilot, "5 cells wait")
        pane = app.query_one(QueuePane)
        await until(pilot, lambda _: pane.has_focus)
        await pilot.press("home", "down", "J")
        await until(pilot, lambda _: order(app) == [3, 2, 4, 5, 6])
        await pilot.press("shift+down")
        await until(pilot, lambda _: order(app) == [3, 4, 2, 5, 6])
        await pilot.press("K", "shift+up", "K", "Z")
        await until(pilot, lambda _: order(app) == [3, 4, 5, 6, 2])
        await pilot.press("A")
        await until(pilot, lambda _: order(app) == [2, 3, 4, 5, 6])
        await pilot.press("x")
        await until(pilot, lambda _: order(app) == [3, 4, 5, 6])
        assert app.state.cells[1].skipped_because == "skipped by hand"
        await pilot.press("end")
        await until(pilot, "skipped" if size != (40, 12) else "–")
        await pilot.press("space")
        await until(pilot, lambda _: order(app) == [3, 4, 5, 6, 2])


async def test_the_queue_is_held_after_the_running_cell_and_goes_on(bench: Benches) -> None:
    async with opened(bench, runs=True) as (app, pilot):
        await pilot.press("6", "P")
        text = await until(pilot, "paused after this")
        assert "· paused" in text.splitlines()[0]
        assert "paused (P goes on)" in text
        bench.finish_one()
        await until(pilot, "the queue is paused")
        assert order(app) == [2, 3]
        assert app.run_in_progress
        await pilot.press("P")
        await until(pilot, lambda _: order(app) == [3])
        bench.go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)


async def test_failed_cells_run_again_by_key(bench: Benches) -> None:
    async with opened(bench) as (app, pilot):
        bench.made[0].outcomes = {0: "failed", 2: "killed"}
        bench.go_on.set()
        await pilot.press("r")
        await until(pilot, lambda _: bool(app.state.cells) and not app.run_in_progress)
        await pilot.press("6")
        await until(pilot, "✗ killed")
        bench.outcomes.clear()
        await pilot.press("R")
        await until(pilot, lambda _: [c.status for c in app.state.cells.values()] == ["ok"] * 3)
        await until(pilot, lambda _: not app.run_in_progress)
        assert len(app.state.cells[0].earlier) == 1


async def test_the_oom_rule_is_seen_and_turned(bench: Benches) -> None:
    async with opened(bench) as (_, pilot):
        await pilot.press("6")
        await until(pilot, "after OOM: skip larger")
        await pilot.press("M")
        await until(pilot, "after OOM: try all")
        await pilot.press("r")
        await until(pilot, "▶ running")
        assert bench.skip_after_oom is False
        await pilot.press("M")
        await until(pilot, "after OOM: skip larger")
        assert bench.made[0].skip_after_oom is True


async def test_a_replay_shows_its_queue_and_changes_nothing(tmp_path) -> None:  # type: ignore[no-untyped-def]
    app = Cs336App(replay=log_of(demo(in_the_middle), tmp_path), speed=0)
    async with app.run_test(size=WIDE) as pilot:
        await until(pilot, "at its end")
        await pilot.press("6")
        text = await until(pilot, "12 cells wait")
        assert "ETA " in text
        assert " x Skip" not in screen_text(app).splitlines()[-1]
        await pilot.press("x", "J", "R")
        assert len(app.state.waiting) == 12
