"""The room that panes have: one key gives a pane the screen, reports open with it, Live stays in sight in two lines."""

from pathlib import Path

import pytest
from textual.pilot import Pilot

from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.tab_list import TABS
from cs336_tui.tui.tabs.live import LivePane
from tests.tui.watched import SMALL, WIDE, Benches, demo, in_the_middle, on_screen, press, replaying, until

LARGE = (200, 60)
SIZES = [(60, 20), SMALL, WIDE, LARGE]
LEAST_SHARE = 0.6
KEY = "* Full screen"


def share(app: Cs336App, pane: str) -> float:
    """The share of the screen that a pane has."""
    return app.main.query_one(f"#{pane}").region.area / app.main.size.area


async def opened(app: Cs336App, pilot: Pilot[None], pane: str) -> str:
    """Open a pane; the last row of the screen."""
    await app.action_open(pane)
    await pilot.pause()
    return (await until(pilot, lambda _: app.main.shows(pane))).splitlines()[-1]


@pytest.mark.parametrize("size", SIZES)
async def test_every_pane_gets_the_screen_by_one_key_and_gives_it_back_by_it(
    size: tuple[int, int], tmp_path: Path
) -> None:
    async with on_screen(replaying(demo(in_the_middle), tmp_path), size=size) as (app, pilot):
        for pane, tab in TABS.items():
            keys, before = await opened(app, pilot, pane), share(app, pane)
            is_full = before >= LEAST_SHARE
            assert is_full or KEY in keys, pane
            assert is_full or not tab.tall, f"{pane} opens with the height of the screen"
            if KEY in keys:
                await pilot.press("asterisk")
                await pilot.pause()
                assert (share(app, pane) >= LEAST_SHARE) is not (is_full and tab.tall), pane
                await pilot.press("asterisk")
                await pilot.pause()
                assert share(app, pane) == before, pane


async def test_the_focus_stays_where_it_is(tmp_path: Path) -> None:
    async with on_screen(replaying(demo(in_the_middle), tmp_path), size=WIDE) as (app, pilot):
        await press(pilot, "4", seen="mean ms")
        await press(pilot, "asterisk", seen=lambda _: not app.main.wide)
        assert app.main.focused is app.main.query_one("#results")
        await press(pilot, "asterisk", seen=lambda _: app.main.wide)
        assert app.main.focused is app.main.query_one("#results")


async def test_live_shrinks_to_two_lines_beside_a_report_while_something_runs(bench: Benches) -> None:
    async with on_screen(Cs336App(bench), size=WIDE) as (app, pilot):
        live = app.main.query_one(LivePane)
        await press(pilot, "0", seen=lambda _: share(app, "memory") > LEAST_SHARE)
        assert not app.main.shows("live")
        await press(pilot, "1", "r", seen="cell 1/")
        await press(pilot, "0", seen=lambda _: live.size.height == 2 and "cell 1/" in live.text)
        assert share(app, "memory") > LEAST_SHARE
        bench.go_on.set()
        await until(pilot, lambda _: not app.run_in_progress and not app.main.shows("live"))


@pytest.mark.parametrize("size", [(160, 50), LARGE])
async def test_from_160_columns_the_form_has_two_columns_and_nothing_of_it_is_out_of_sight(
    size: tuple[int, int], bench: Benches
) -> None:
    async with on_screen(Cs336App(bench), size=size) as (app, pilot):
        await pilot.pause()
        assert app.main.query_one("#configure").has_class("-two-columns")
        assert app.main.query_one("#form").max_scroll_y == 0
