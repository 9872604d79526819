"""The tab bar: the open tab and its neighbours are always visible, and every tab can be reached."""

from __future__ import annotations

import pytest

from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.tab_list import TABS
from cs336_tui.tui.widgets.menu_bars import TabBar, window
from tests.tui.watched import Benches, on_screen, until


@pytest.mark.parametrize("middle", range(6))
def test_a_window_holds_its_middle_fits_its_room_and_could_not_grow(middle: int) -> None:
    widths = [9, 12, 7, 10, 8, 11]

    def needed(first: int, end: int) -> int:
        return sum(widths[first:end]) + 2 * ((first > 0) + (end < len(widths)))

    for room in range(12, 80):
        first, end = window(widths, middle, room, 2)
        assert first <= middle < end
        if end - first > 1:
            assert needed(first, end) <= room
        grown = [(first - 1, end)] * (first > 0) + [(first, end + 1)] * (end < len(widths))
        assert all(needed(*more) > room for more in grown)


def bar(app: Cs336App) -> TabBar:
    return app.main.query_one(TabBar)


@pytest.mark.parametrize("width", [40, 60, 80])
async def test_left_and_right_go_through_all_tabs_and_the_open_one_is_named(width: int) -> None:
    async with on_screen(Cs336App(Benches()), size=(width, 24)) as (app, pilot):
        bar(app).focus()
        offered = [tab for tab in TABS.values() if tab.id != "race"]  # which a session without a race does not offer
        for tab in [*offered[1:], offered[0]]:
            await pilot.press("right")
            await until(pilot, lambda _, tab=tab: f"{tab.key} {tab.label}" in bar(app).text)
            assert app.main.open_pane == tab.id
            assert len(bar(app).text) <= width
            assert bar(app).text.startswith("‹") == (tab.id != "configure" and "1 Configure" not in bar(app).text)
        await pilot.press("left")
        await until(pilot, lambda _: app.main.open_pane == "precision")


async def test_a_click_on_an_arrow_opens_the_next_tab_that_is_not_in_sight() -> None:
    async with on_screen(Cs336App(Benches()), size=(80, 24)) as (app, pilot):
        assert bar(app).text.endswith("│ 7 Sessions │›")
        await pilot.click("#tabs", offset=(len(bar(app).text) - 1, 0))
        await until(pilot, lambda _: app.main.open_pane == "compare")
        assert bar(app).text.startswith("‹│")
        await pilot.click("#tabs", offset=(0, 0))
        await until(pilot, lambda _: app.main.open_pane not in ("compare", "configure"))


async def test_every_tab_is_named_where_there_is_room() -> None:
    async with on_screen(Cs336App(Benches()), "l Roofline", size=(120, 40)) as (app, _):
        assert "‹" not in bar(app).text
        assert "›" not in bar(app).text
