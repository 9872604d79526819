"""Columns that do not fit are on further pages, the same keys in every tab: at 80x24 each is seen whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot

from cs336_tui.export.writing.tables import Column, Table
from cs336_tui.stats.quantities import TIMES, scale
from cs336_tui.tui.tabs.kernels import KernelsPane
from cs336_tui.tui.tabs.memory import MemoryPane
from cs336_tui.tui.widgets.columns import lay_out, on_screen
from cs336_tui.tui.widgets.lines import Lines
from tests.made_kernels import a_kernel_report
from tests.made_memory import an_oom_report
from tests.tui import test_precision
from tests.tui.one_pane import out_of_memory, recorded, report_events, showing
from tests.tui.test_kernels import made
from tests.tui.test_roofline import app_of
from tests.tui.watched import SMALL, until

KEYS = [("right", "left"), ("full_stop", "comma")]
A_COLUMN = st.tuples(st.integers(1, 30), st.integers(0, 4), st.booleans())


@given(st.lists(A_COLUMN, min_size=1, max_size=12), st.integers(8, 90))
def test_a_further_page_has_a_column_whole_beside_what_a_row_is_of(
    columns: Sequence[tuple[int, int, bool]], width: int
) -> None:
    named = tuple(
        Column(str(at), "x" * wide, rank=rank, room=wide * room) for at, (wide, rank, room) in enumerate(columns)
    )
    layout = lay_out(named, [], width)
    pages = layout.pages(width)
    assert {index for page in pages for index in page.kept} == {*range(len(named))}
    for page in pages[1:]:
        again = [index for index in page.kept if index in layout.kept]
        assert not any(named[index].room for index in again)
        assert len(page.heading) <= width or (len(again) <= 1 and len(page.kept) - len(again) == 1)


def test_an_exported_table_has_short_headings_and_one_unit_for_columns_that_are_compared() -> None:
    columns = (
        Column("name", left=True),
        Column("a_ns", "A (ms)", text=lambda row: row["a_ms"], short="A", units=TIMES),
        Column("b_ns", "B (ms)", rank=2, text=lambda row: row["b_ms"], short="B", units=TIMES),
        Column("share", "share of step"),
    )
    rows = (
        {"name": "x\x1b[2J", "a_ns": 1_500, "a_ms": "0.002", "b_ns": 25_000_000, "b_ms": "25.000", "share": "9.0 %"},
        {"name": "y", "a_ns": None, "a_ms": "fused", "b_ns": 0, "b_ms": "0.000", "share": "–"},
    )
    table = Table.of(rows, (column._replace(read=itemgetter(column.key)) for column in columns), record=dict)
    shown = on_screen(table, {"a_ns": 1}, last="name")
    assert [(c.header, c.rank) for c in shown.columns] == [
        ("A ms", 1),
        ("B ms", 2),
        ("share of step %", 0),
        ("name", 0),
    ]
    assert shown.rows == (("0.002", "25.000", "9.0", "x"), ("fused", "0.000", "–", "y"))
    given = on_screen(table, titles={"share": "part"}, scales={"b_ns": scale([25_000_000])}, shows={"name": str.upper})
    assert [column.header for column in given.columns] == ["name", "A µs", "B ms", "part"]
    assert given.rows == (("X", "1.50", "25.0", "9.0"), ("Y", "fused", "0.0", "–"))
    assert table.rows[0][1:] == ("0.002", "25.000", "9.0 %"), "the files' table stays as it is"


async def seen_by_turning(pilot: Pilot[None], pane: Lines, further: str, back: str) -> str:
    """The texts of all pages of columns."""
    first = pane.text
    assert re.search(r"\+\d+ columns? →", first), first
    pages = [first]
    while len(pages) == 1 or pages[-1] != first:
        await pilot.press(further)
        await pilot.pause()
        pages.append(pane.text)
        assert len(pages) < 12, pages[-1]
    for place, page in enumerate(pages[1:-1], 2):
        assert f"columns {place}/{len(pages) - 1} →" in page
    await pilot.press(back)
    await pilot.pause()
    assert pane.text == pages[-2]
    assert all(len(row) <= SMALL[0] for page in pages for row in page.splitlines())
    return "\n".join(pages)


TURNED = {
    "memory peaks": (
        "size,ctx,pass,forward,pred. forward,backward,optimizer,step,pred. step,timed,diff,activ.,pred. activ."
    ),
    "memory largest": "MB,×,held for,part,tensor,lives,operation,where",
    "memory blocks": "block,gradients,saved,expected,change,diff,change + saved,live before,live after,peak,in forward",
    "memory saved": "%,saved by,part,tensor",
    "memory OOM": "held for,part,tensor,operation,where",
    "precision": "ctx,batch,device,fp32 → this, ms,interval,memory,class,count,inputs,gradients",
    "kernels kernels": "Time %,Total,Instances,Avg,Med,Min,Max,StdDev,Kind,Name",
    "kernels kinds": "kind,whole step,forward,backward,optimizer",
}
"""The columns of a tab, with a view of it, that pages show."""


def shown_tab(tab: str) -> AbstractAsyncContextManager[tuple[Pilot[None], Any, Any]]:
    match tab.split():
        case ["memory", "OOM"]:
            return showing(MemoryPane(), out_of_memory(*report_events(an_oom_report())), SMALL)
        case ["memory", _]:
            return recorded(size=SMALL)
        case ["kernels", _]:
            return showing(KernelsPane(), made(a_kernel_report()), SMALL)
        case _:
            return test_precision.showing(test_precision.session(), SMALL)


@pytest.mark.parametrize("tab", TURNED)
async def test_each_column_is_on_a_page(tab: str) -> None:
    async with shown_tab(tab) as (pilot, pane, _):
        while (view := tab.partition(" ")[2]) and pane.view != view:
            await pilot.press("v")
        await pilot.pause()
        for further, back in KEYS:
            pane.columns_page = 0
            pane.resort()
            await pilot.pause()
            seen = await seen_by_turning(pilot, pane, further, back)
            assert [name for name in TURNED[tab].split(",") if name not in seen] == []
        if view:
            await pilot.press("v")
            assert not re.search(r"columns \d/", pane.text), "another view begins with its first page"


async def test_enter_opens_the_row_under_the_cursor_on_every_page() -> None:
    async with test_precision.showing(test_precision.session(), SMALL) as (pilot, pane, _):
        for _ in range(3):
            place = next(at for at, row in enumerate(pane.text.splitlines()) if "▼ faster" in row)
            pane.cursor = place - 1  # below the title
            assert "bf16-mixed" in pane._page.details[pane.cursor]
            await pilot.press("right")
            await pilot.pause()


async def test_the_modules_of_a_precision_report_stay_when_it_is_painted_again() -> None:
    async with test_precision.showing(test_precision.session(), (200, 60)) as (_, pane, app):
        before = pane.text
        app.paint()
        assert "dtypes in this cell's model" in before
        assert pane.text == before


async def test_roofline(tmp_path: Path) -> None:
    app = app_of(tmp_path)
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, "at its end")
        await pilot.press("l", "home")
        rows = app.query_one("#roofline-rows", Lines)
        await until(pilot, lambda _: "→" in rows.text)
        seen = await seen_by_turning(pilot, rows, *KEYS[0])
        columns = "% sheet,% peak,FLOP/B,bound,device"
        assert [name for name in columns.split(",") if name not in seen] == []
