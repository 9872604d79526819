"""Tables hold still: what fits follows from the width and the cells. Columns that do not fit are on further pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.geometry import Size
from textual.pilot import Pilot

from cs336_tui.analysis.eta import outlook_of
from cs336_tui.analysis.judgement import Check, Judgement
from cs336_tui.events.events import DeviceSampled, Event, StepsTimed
from cs336_tui.export.writing.tables import Column, Table
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.session.store import SessionInfo
from cs336_tui.stats.quantities import TIMES, scale
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.configure.preview import Cells
from cs336_tui.tui.judging import Assessment, Judging
from cs336_tui.tui.tabs.kernel_listing import Selection, kernels_sheet, select
from cs336_tui.tui.tabs.kernels import KernelsPane
from cs336_tui.tui.tabs.memory import MemoryPane
from cs336_tui.tui.tabs.queue import QueuePane, QueueView
from cs336_tui.tui.tabs.results import ResultsPane
from cs336_tui.tui.tabs.sessions import SessionsPane
from cs336_tui.tui.widgets.columns import Laid, Sort, lay_out, on_screen
from cs336_tui.tui.widgets.lines import Lines, width_of
from tests.made_kernels import a_kernel_report
from tests.made_memory import an_oom_report
from tests.samples import (
    DEMO_LOG,
    a_spec,
    jobs_session,
    lanes_session,
    mixed_session,
    ranks_session,
    report_events,
    state_of,
)
from tests.session.made import Cell, session_of
from tests.tui import test_precision, watched
from tests.tui.one_pane import out_of_memory, recorded, showing
from tests.tui.test_kernels import made
from tests.tui.test_roofline import app_of
from tests.tui.watched import SMALL, demo, until

P = TypeVar("P")
WIDTHS = (40, 78, 100, 118, 198)


def sized(pane: type[P], width: int, height: int = 30) -> P:
    """The pane without an app, in a window of some size."""

    class Sized(pane):  # type: ignore[valid-type,misc]
        content_size = Size(width, height)
        has_focus = False

        def refresh(self, *_: object, **__: object) -> Sized:
            return self

        def refresh_bindings(self) -> None:
            pass

    return Sized()


def results(width: int) -> ResultsPane:
    return sized(ResultsPane, width)


def heading(pane: ResultsPane) -> list[str]:
    """The lines above the rows; the rows in sight are told by what follows the blanks."""
    return [row.partition(" of ")[0] for row in pane.text.splitlines()[: pane._heading_rows]]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "session", [demo, mixed_session, ranks_session, jobs_session, lanes_session], ids=lambda each: each.__name__
)
def test_the_heading_changes_with_the_set_of_cells_alone(session: Callable[[], Iterable[Event]], width: int) -> None:
    state, pane = SessionState(), results(width)
    told: dict[tuple[int, ...], list[str]] = {}
    for event in session():
        state.apply(event)
        pane.show(state, state.running_cell)
        if state.cells:
            assert told.setdefault(tuple(state.cells), heading(pane)) == heading(pane)
    assert told


class Known(Judging):
    """Every cell that is over has two verdicts, the longest first."""

    def __init__(self) -> None:
        pass

    def of(self, state: SessionState, cell: CellState) -> Assessment | None:  # noqa: ARG002
        checks = tuple(Check(name=name, holds=True, evidence="x") for name in ("slowed-by-settings", "too-few-steps"))
        judgement = Judgement(checks=checks, notes=(), warmup_advice="", interval=None)
        return Assessment(judgement=judgement) if cell.is_over else None

    known = of


@pytest.mark.parametrize("width", WIDTHS)
def test_verdicts_are_capped_and_move_no_column(width: int) -> None:
    state, pane, told = state_of(demo()), results(width), Known()
    pane.show(state, None)
    before = pane.text.splitlines()
    pane.show(state, None, judging=told)
    after = pane.text.splitlines()
    assert [len(row) for row in before[: pane._heading_rows]] == [len(row) for row in after[: pane._heading_rows]]
    assert heading(pane) == [row.partition(" of ")[0] for row in before[: pane._heading_rows]]
    if "verdict" in pane.text:
        assert "slowed-by-se… +1" in pane.text
        assert [row.index("✓ ok") for row in before if "✓ ok" in row] == [
            row.index("! ok") for row in after if "! ok" in row
        ], "a doubted number has another mark"


def at_its_end(width: int) -> ResultsPane:
    state, pane = state_of(demo()), results(width)
    pane.show(state, None)
    return pane


@pytest.mark.parametrize("width", WIDTHS)
def test_every_column_is_on_a_page_and_is_counted(width: int) -> None:
    pane = at_its_end(width)
    first = {*pane.pages[0].kept}
    told = {column.key for column, alike in zip(pane._columns, pane._alike, strict=True) if alike}
    others = {index for page in pane.pages for index in page.kept} - first
    assert {pane._columns[index].key for index in {*range(len(pane._columns))} - first - others} <= told
    assert (f"+{len(others)} column" in pane.text) == bool(others)
    seen = {*first}
    for page in range(1, len(pane.pages)):
        pane.action_columns(1)
        assert f"columns {page + 1}/{len(pane.pages)} →" in pane.text
        seen |= {*pane.pages[page].kept}
    assert seen == first | others


def test_the_table_keeps_what_tells_cells_apart_when_narrow() -> None:
    wide, narrow = at_its_end(198), at_its_end(45)
    assert {"#", "ctx", "batch", "median", "FLOP/s"} <= {*heading(wide)[-1].split()}
    assert len(heading(narrow)[-1]) <= 45
    for kept in ("size", "pass", "mean ms"):
        assert kept in heading(narrow)[-1]
    assert "47.28" in narrow.text
    assert heading(at_its_end(58))[-1].split() == "size pass precision mean ms std ms verdict".split()


def rows_of(pane: ResultsPane, column: str) -> list[str]:
    """The texts of a column in the order of the rows."""
    at = [each.key for each in pane._columns].index(column)
    return [pane._texts(pane._cells[place], None)[at] for place in pane._order]


def test_a_person_chooses_the_columns_and_their_order() -> None:
    pane = at_its_end(78)
    pane.choose(("mean", "size", "memory", "p20", "context", "seed", "energy"))
    assert heading(pane)[-1].split() == "mean ms size peak p20 ms ctx seed energy J/step status".split()
    assert "14.945  small" in pane.text
    assert "all cells" not in pane.text
    pane.choose(("interval",))
    assert "precision" in pane.text  # Results has none of these
    state, pane = SessionState(), results(60)
    pane.choose(("mean", "size", "pass", "precision", "tokens", "verdict"))
    told: dict[tuple[int, ...], list[str]] = {}
    for event in demo():
        state.apply(event)
        pane.show(state, None)
        assert told.setdefault(tuple(state.cells), heading(pane)) == heading(pane)
    assert "mean ms" in heading(pane)[-1]
    assert "verdict" not in heading(pane)[-1]  # the last goes first
    assert "+2 columns →" in pane.text


def test_cells_are_sorted_by_a_column_and_those_without_a_value_come_last() -> None:
    pane = at_its_end(198)
    pane.cursor = 4
    on = pane.index_of(4)
    for key, descending in (("mean", False), ("mean", True), ("tokens", False)):
        pane.sort = Sort(key, descending)
        pane.resort()
        assert pane.index_of(pane.cursor) == on
        assert rows_of(pane, key)[-1] == "–"
        means = [float(text) for text in rows_of(pane, "mean") if text != "–"]
        assert sorted(means, reverse=descending) == means or key != "mean"
    pane.sort = Sort("size")
    pane.resort()
    assert list(dict.fromkeys(rows_of(pane, "size"))) == ["small", "large", "xl", "10B"]
    assert "size▴" in pane.text
    pane.sort = Sort()
    pane.resort()
    assert list(pane._order) == list(range(19))


def test_turning_the_order_of_unsorted_cells_puts_the_slowest_on_top() -> None:
    pane = at_its_end(80)
    pane.action_turn()
    assert pane.sort == Sort("mean", descending=True)
    means = [float(text) for text in rows_of(pane, "mean") if text != "–"]
    assert means == sorted(means, reverse=True)
    pane.action_turn()
    assert pane.sort == Sort("mean")


def test_a_running_cell_keeps_its_row() -> None:
    state, pane = SessionState(), results(100)
    pane.sort = Sort("mean")
    orders: dict[int, list[int]] = {}
    for event in demo():
        state.apply(event)
        pane.show(state, None)
        over = sum(cell.is_over for cell in state.cells.values())
        assert orders.setdefault(over * 100 + len(state.cells), list(pane._order)) == list(pane._order)


def test_the_sign_of_the_order_moves_no_heading() -> None:
    pane = at_its_end(198)
    plain = heading(pane)[-1]
    for column in pane._columns:
        pane.sort = Sort(column.key)
        pane.resort()
        assert heading(pane)[-1].count("▴") == 1
        assert heading(pane)[-1].replace("▴", " ").split() == plain.split()
        assert heading(pane)[-1].index(column.heading) == plain.index(column.heading)


def test_a_text_longer_than_its_room_is_cut_with_an_ellipsis_and_moves_no_other() -> None:
    columns = (Column("a", "verdict", left=True, room=8), Column("b", "mean", room=6), Column("c", "peak"))
    layout = lay_out(columns, [("", "", "4 GB")], 80)
    for texts in (("steady", "1.0", "4 GB"), ("overheated and late", "1234567", "4 GB"), ("x", "12345678.9", "4 GB")):
        row = layout.row(texts)
        assert row.index("4 GB") == layout.row(("", "", "4 GB")).index("4 GB")
        assert len(row) == len(layout.heading)
        for text in texts:
            assert text in row or "…" in row


async def test_a_click_on_a_heading_sorts_and_a_second_one_turns() -> None:
    async with watched.on_screen(Cs336App(replay=DEMO_LOG, speed=0), "at its end", (200, 60)) as (app, pilot):
        pane = app.query_one(ResultsPane)
        row = pane._heading_rows - 1
        margin = pane.content_region.x - pane.region.x, pane.content_region.y - pane.region.y
        for mark in "▴▾":
            x = pane.text.splitlines()[row].index("mean ms")
            await pilot.click(ResultsPane, offset=(x + margin[0], row + margin[1]))
            await until(pilot, f"mean ms{mark}")


MODELS, CHECKPOINTS, OPTIMIZERS = ("reference", "mine:GPT"), (0, 4), ("adamw", "adamw-fused")


def results_of(choices: Iterable[dict[str, Any]], width: int) -> str:
    """The results of cells with these choices, over."""
    cells = [Cell(a_spec(**({"pass_": "forward"} | each)), [0.1234, 0.1233, 0.1239, 0.1235]) for each in choices]
    pane = results(width)
    pane.show(session_of(*cells), None)
    return pane.text


def test_no_two_rows_look_alike() -> None:
    names = ("model", "checkpoint", "optimizer")
    choices = [dict(zip(names, each, strict=True)) for each in product(MODELS, CHECKPOINTS, OPTIMIZERS)]
    shown = results_of((each | {"pass_": "train-step"} for each in choices), 78)
    assert {*names} <= set(shown.split())
    assert "pass train-step" in shown  # of all cells, above the table
    rows = [row for row in shown.splitlines() if row.startswith("small ")]
    assert len({" ".join(row.split()) for row in rows}) == len(choices)


@pytest.mark.parametrize("width", [78, 118, 198])
def test_results_show_the_variant_that_tells_the_cells_apart(width: int) -> None:
    assert {"attention", "sdpa", "naive"} <= set(results_of(({}, {"attention": "sdpa"}), width).split())


OWN: dict[str, Any] = {"model": "course.basics.model:BasicsTransformerLM", "model_args": (("tie", "yes"),)}


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ([OWN, OWN], ["all cells: model course.basics.model:BasicsTransformerLM, model args tie=yes"]),
        ([{}, OWN], ["size", "reference", "BasicsTransformerLM"]),
        ([OWN, OWN | {"model": "other.model:BasicsTransformerLM"}], ["course.basics.model:BasicsTransformerLM"]),
    ],
)
def test_whose_model_it_is_is_seen_in_a_small_window(models: list[dict[str, Any]], told: list[str]) -> None:
    shown = results_of(({"size": "custom", "batch_size": 2 + at} | of for at, of in enumerate(models)), 78)
    assert [words for words in told if words not in shown] == []
    assert "mean ms" in shown
    assert "attention" not in shown


@pytest.mark.parametrize("width", [50, 78, 118, 198])
@pytest.mark.parametrize("session", [demo, mixed_session, jobs_session, lanes_session], ids=lambda e: e.__name__)
def test_the_columns_of_the_queue_follow_from_its_cells(session: Callable[[], Iterable[Event]], width: int) -> None:
    state, pane = SessionState(), sized(QueuePane, width, 20)
    told: dict[object, str] = {}
    for event in session():
        state.apply(event)
        if isinstance(event, DeviceSampled | StepsTimed):
            continue
        pane.show(QueueView(state, None, False, True, Cells(), lambda: outlook_of(state)))
        heading = next((row for row in pane.text.splitlines() if row.startswith("order")), None)
        if heading is not None:
            assert told.setdefault((*state.cells, bool(state.lanes), bool(state.jobs)), heading) == heading
            assert len(heading) <= width
    assert told


def test_kernels_keep_their_columns_whatever_is_selected_and_sorted() -> None:
    report = a_kernel_report()
    for width in WIDTHS:
        plain = Laid(kernels_sheet(report, Selection(), select(report, Selection())), width)
        for selection in (Selection(kind="softmax"), Selection(phase="backward"), Selection(text="gemm")):
            laid = Laid(kernels_sheet(report, selection, select(report, selection)), width)
            assert [page.kept for page in laid.pages] == [page.kept for page in plain.pages]
            assert laid.pages[0].widths == plain.pages[0].widths
        assert all(width_of(row) <= width for row in (plain.heading, *plain.lines(0, 3)))


def test_sessions_are_sorted_by_a_column_and_the_cursor_stays_on_its_session(tmp_path: Path) -> None:
    infos = [
        SessionInfo(session=name, path=tmp_path / name, name=name, started_at=at, cells=ok + 1, ok=ok)
        for name, at, ok in (("beta", 30.0, 2), ("alpha", 20.0, 5), ("gamma", 10.0, 1))
    ]
    pane = sized(SessionsPane, 118, 20)
    pane.take(infos)
    pane.cursor = 1
    before = pane.text.splitlines()[0]
    for key, descending, order in (
        ("title", False, ["alpha", "beta", "gamma"]),
        ("begun", False, ["gamma", "alpha", "beta"]),
        ("cells", True, ["alpha", "beta", "gamma"]),
        ("", False, ["beta", "alpha", "gamma"]),
    ):
        pane.sort = Sort(key, descending)
        pane.resort()
        assert [info.name for info in pane.infos] == order
        assert pane.selected.name == "alpha"
        heading = pane.text.splitlines()[0]
        assert heading.replace("▴", " ").replace("▾", " ").split() == before.split()


KEYS = [("right", "left"), ("full_stop", "comma")]
A_COLUMN = st.tuples(st.integers(1, 30), st.integers(0, 4), st.booleans())


@given(st.lists(A_COLUMN, min_size=1, max_size=12), st.integers(8, 90))
def test_a_further_page_has_a_column_whole_beside_names(columns: Sequence[tuple[int, int, bool]], width: int) -> None:
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
    columns = [(column.header, column.rank) for column in shown.columns]
    assert columns == [("A ms", 1), ("B ms", 2), ("share of step %", 0), ("name", 0)]
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
        "size,ctx,pass,forward,backward,optimizer,step,activ.,allocator's count,pred. forward,pred. step,pred. activ.,"
        "pred. / step,timed,pred. / timed"
    ),
    "memory largest": "MB,×,held for,part,tensor,lives,operation,where",
    "memory blocks": "block,gradients,saved,expected,change,diff,change + saved,live before,live after,peak,in forward",
    "memory saved": "%,saved by,part,tensor",
    "memory OOM": "held for,part,tensor,operation,where",
    "precision": "ctx,batch,device,fp32 ms,this ms,interval,fp32 GB,this GB,memory,class,count,inputs,gradients",
    "kernels kernels": "Time %,Total,Instances,Avg,Med,Min,Max,StdDev,Kind,Name",
    "kernels kinds": "kind,whole step,forward,backward,optimizer",
}
"""The columns of a tab, with a view of it, that pages show."""


def shown_tab(tab: str) -> AbstractAsyncContextManager[tuple[Pilot[None], Any, Any]]:
    match tab.split():
        case ["memory", "OOM"]:
            return showing(MemoryPane(), out_of_memory(*report_events(an_oom_report(), cell=0)), SMALL)
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
        assert [name for name in "% sheet,% peak,FLOP/B,bound,device".split(",") if name not in seen] == []
