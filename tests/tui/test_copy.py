"""`c` copies the table of each tab as markdown, and says so."""

from __future__ import annotations

from pathlib import Path

from markdown_it import MarkdownIt

from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.tab_list import TABS
from tests.export.html_reader import Reader
from tests.samples import mixed_session
from tests.tui.kept_sessions import MIXED, STOPPED, keep, stopped_session
from tests.tui.watched import SMALL, demo, on_screen, replaying, until

COPIED = {
    "configure": ("The results", "size"),
    "live": ("The results", "size"),
    "device": ("The results", "size"),
    "results": ("The results", "size"),
    "log": ("The results", "size"),
    "compare": ("Compare, view pivot", "size"),
    "estimate": ("The estimate", "size"),
    "roofline": ("The table", "cell"),
}
"""Of the demo session: the name of what each tab copies, and the first heading."""


def table_in(text: str) -> list[list[str]]:
    """The rows of the first table as a reader of markdown finds them, its head first."""
    return Reader(MarkdownIt("commonmark").enable("table").render(text)).rows


async def test_each_tab_copies_its_table_as_markdown_and_says_so(tmp_path: Path) -> None:
    async with on_screen(replaying(demo(), tmp_path), size=SMALL, notifications=True) as (app, pilot):
        for tab in TABS.values():
            if tab.id not in COPIED:
                continue
            name, heading = COPIED[tab.id]
            app._clipboard = ""
            await pilot.press(tab.key)
            await until(pilot, lambda _, tab=tab: app.main.open_pane == tab.id)
            await pilot.press("c")
            await until(pilot, lambda _: bool(app.clipboard))
            await until(
                pilot,
                lambda _, name=name: any(
                    name in each.message and "markdown" in each.message for each in app._notifications
                ),
            )
            app.clear_notifications()
            rows = table_in(app.clipboard)
            assert rows[0][0] == heading, tab.id
            assert len(rows) > 1


async def test_a_tab_without_a_table_says_so(tmp_path: Path) -> None:
    async with on_screen(replaying(demo(), tmp_path), size=SMALL, notifications=True) as (app, pilot):
        for tab in ("queue", "kernels", "memory", "precision"):
            await pilot.press(TABS[tab].key)
            await until(pilot, lambda _, tab=tab: app.main.open_pane == tab)
            app.action_copy_table()
            await until(pilot, f"no table in {TABS[tab].label} yet")
            assert app.clipboard == ""


async def test_sessions_copies_its_list(tmp_path: Path) -> None:
    keep(tmp_path, MIXED, mixed_session())
    keep(tmp_path, STOPPED, stopped_session())
    async with on_screen(Cs336App(session_dir=tmp_path), size=SMALL) as (app, pilot):
        await pilot.press(TABS["sessions"].key)
        await until(pilot, "11-19")
        await pilot.press("c")
        await until(pilot, lambda _: bool(app.clipboard))
    head, *rows = table_in(app.clipboard)
    assert head[0] == "session"
    assert len(rows) == 2
