"""Tasks by keyboard alone at 80x24, with the number of keys that they take after the first screen."""

from __future__ import annotations

from cs336_tui.tui.app import Cs336App
from tests.tui.watched import SMALL, Benches, on_screen, until

MOST = 8
"""Keys after the first screen."""


async def test_two_sizes_at_two_contexts_are_chosen_and_run() -> None:
    app = Cs336App(Benches())
    keys = ("tab", "right", "space", "tab", "right", "space", "r")
    assert len(keys) <= MOST
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, "NVIDIA")
        await pilot.press(*keys)
        await until(pilot, lambda _: len(app.state.cells) == 12)
        found = {(cell.spec.size, cell.spec.context_length) for cell in app.state.cells.values()}
        assert found == {(size, context) for size in ("tiny", "small") for context in (128, 256)}


async def test_a_run_is_stopped_and_resumed() -> None:
    async with on_screen(Cs336App(bench := Benches()), "NVIDIA", size=SMALL) as (app, pilot):
        await pilot.press("r")
        await until(pilot, "cell 1/3")
        await pilot.press("s")
        text = await until(pilot, "3 cells left, u resumes")
        assert "stopped at " in text.splitlines()[0]
        assert "u Resume" in text.splitlines()[-1]
        await pilot.press("u")
        await until(pilot, lambda _: app.run_in_progress)
        bench.go_on.set()
        await until(pilot, lambda _: all(cell.status == "ok" for cell in app.state.cells.values()))
        await until(pilot, lambda text: "u Resume" not in text)


async def test_resume_is_a_button_while_cells_are_left() -> None:
    async with on_screen(Cs336App(bench := Benches()), size=SMALL) as (app, pilot):
        text = await until(pilot, "NVIDIA")
        assert "[ Run ]   Stop   [ Export ]" in text
        await pilot.press("r")
        await until(pilot, "cell 1/3")
        await pilot.press("s")
        await until(pilot, "u resumes")
        await pilot.press("1", "escape")
        await until(pilot, "[ Run ] [ Resume ] [ Export ]")
        bench.go_on.set()
        await pilot.press("right", "enter")
        await until(pilot, lambda _: all(cell.status == "ok" for cell in app.state.cells.values()))
        assert len(app.state.cells) == 3
