"""The Precision tab."""

from contextlib import AbstractAsyncContextManager

import pytest
from textual.pilot import Pilot

from cs336_tui.events.events import ReportFinished, ReportStarted
from cs336_tui.session.state import SessionState, fold
from cs336_tui.tui.dialogs.windows import Reader
from cs336_tui.tui.tabs import precision
from cs336_tui.tui.tabs.precision import PrecisionPane
from cs336_tui.tui.tabs.report import Subject
from tests.made_precision import a_cpu_report, a_precision_report
from tests.samples import START, a_spec, report_events
from tests.session.made import Cell, cell, events_of, session_of
from tests.tui import one_pane
from tests.tui.one_pane import OnePane, read
from tests.tui.watched import absent, comes

MIXED = a_spec(precision="bf16-mixed")
CELLS = (
    cell([0.100, 0.101, 0.099, 0.100] * 3)._replace(peak=5_000_000_000),
    cell([0.050, 0.051, 0.049, 0.050] * 3, precision="bf16-mixed")._replace(peak=3_000_000_000),
    cell([0.150, 0.151, 0.149, 0.150] * 3, precision="bf16"),
    cell(status="oom", precision="fp16-mixed"),
)


def session(*cells: Cell, report: bool = True) -> SessionState:
    made = report_events(a_precision_report(MIXED), cell=0) if report else ()
    return fold([*events_of(*(cells or CELLS)), *made])


def showing(
    state: SessionState, size: tuple[int, int] = (100, 30)
) -> AbstractAsyncContextManager[tuple[Pilot[None], PrecisionPane, OnePane[PrecisionPane]]]:
    return one_pane.showing(PrecisionPane(), Subject(state, MIXED, 1, can_ask=True), size)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60), (40, 12)])
async def test_everything_can_be_read_by_scrolling(size: tuple[int, int]) -> None:
    async with showing(session(), size) as (pilot, pane, _):
        seen = pane.text
        for _ in range(16):
            await pilot.press("pagedown")
            seen += "\n" + pane.text
    assert all(len(row) <= size[0] for row in seen.splitlines())
    words = ["fp32 against", "dtypes in this cell's model", "dtypes in the toy model", "0.01 added 1,000 times"]
    if size[0] >= 80:
        words += ["speed-up", "▼ faster", "▲ slower", "fp16-mixed: OOM", "layers.*.attention.query", "bfloat16",
                  "loss float32", "layer norm's output", "9.953125", "-0.046875", "output"]  # fmt: skip
    if size[0] == 200:
        words += ["interval", "fp32 GB", "this GB", "5.00", "3.00", "memory", "class", "count", "inputs", "gradients",
                  " 2.000 ", " 0.667 ", "0.60", "1 faster · 1 slower"]  # fmt: skip
    assert [word for word in words if word not in seen] == []
    assert ("this GB" in seen) == (size[0] > 100), "a narrow window has the telling columns"


async def test_the_experiments_are_those_of_another_cell_where_the_subject_has_no_report() -> None:
    other = report_events(a_cpu_report(a_spec(precision="fp32")), cell=0)
    async with showing(fold([*events_of(*CELLS), *other]), (80, 80)) as (_, pane, _app):
        assert pane.text.index("▼ faster") < pane.text.index("Press n to make it")
        assert "dtypes in this cell's model" not in pane.text
        heading = next(row for row in pane.text.splitlines() if "CUDA float16" in row)
        assert heading.split() == ["part", "CUDA", "float16", "CUDA", "bfloat16", "float16", "bfloat16"]
        assert "gradient of ln.bias" in pane.text
        assert "float32…" not in pane.text
        assert "autocast_mode.h of torch 2.13" in " ".join(pane.text.split())
        assert "9.953125" in pane.text


async def test_an_empty_session_says_what_to_do() -> None:
    async with one_pane.showing(PrecisionPane(), Subject(SessionState()), (80, 24)) as (_, pane, _app):
        assert not absent(pane.text, "Choose fp32 and another under", "Choose cells in Configure (1)")


async def test_a_report_that_is_being_made_or_failed_says_so() -> None:
    state = session(report=False)
    state.apply(ReportStarted(at=START, report=0, kind="precision", spec=MIXED))
    async with showing(state) as (_, pane, app):
        assert "starting ..." in pane.text
        state.apply(ReportFinished(at=START + 1, report=0, status="failed", error="ValueError: no such thing"))
        app.paint()
        assert not absent(pane.text, "failed: ValueError: no such thing", "▼ faster")


async def test_a_cell_that_ends_adds_its_speed_up_at_once() -> None:
    *before, end = events_of(*CELLS[:2])
    state = fold(before)
    async with showing(state) as (_, pane, app):
        assert "No cell of this session was measured both" in pane.text
        state.apply(end)
        app.paint()
        assert "▼ faster" in pane.text


async def test_the_note_of_a_report_is_shown() -> None:
    note = "Pass forward has no backward, so there are no gradients."
    made = report_events(a_precision_report(MIXED, note=note, toy=()), cell=0)
    async with showing(fold([*events_of(*CELLS), *made]), (100, 50)) as (_, pane, _app):
        assert not absent(pane.text, f"! {note}", "This device supports autocast neither to bf16 nor to fp16.")


async def test_enter_on_a_speed_up_tells_the_reason_of_its_verdict() -> None:
    async with showing(session()) as (pilot, pane, app):
        await pilot.press("enter")
        assert not isinstance(app.screen, Reader)
        row = next(place for place, text in enumerate(pane.text.splitlines()) if "▼ faster" in text)
        shown = " ".join((await read(pilot, *["down"] * (row - 1), "enter")).split())
        assert not absent(shown, "the whole 95 % interval is below 1", "peak allocated 3.00 GB")


async def test_many_cells_are_worked_out_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_AT_ONCE", 1)
    async with showing(session_of(*CELLS)) as (pilot, pane, _):
        await comes(pilot, lambda: "▼ faster" in pane.text)
        assert "working out" not in pane.text
