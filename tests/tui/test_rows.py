"""A list of rows with a cursor."""

from __future__ import annotations

from textual.app import App, ComposeResult

from cs336_tui.tui.widgets.lines import line
from cs336_tui.tui.widgets.rows import Rows


class Listed(App[None]):
    """An app with one list."""

    def compose(self) -> ComposeResult:
        yield Rows(cursor=True)


async def test_a_cursor_on_a_row_that_is_still_to_come_stays_there() -> None:
    async with Listed().run_test(size=(20, 5)) as pilot:
        rows = pilot.app.query_one(Rows)
        rows.fill([line(("first", "text"))])
        rows.cursor = 3
        rows.focus()
        await pilot.resize_terminal(30, 8)
        await pilot.pause()
        rows.fill([line((str(number), "text")) for number in range(5)])
        assert rows.cursor == 3
        rows.fill([line(("only", "text"))])
        assert rows.cursor == 0
