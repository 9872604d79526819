"""The timeline of the Memory tab: cursor, zoom, and details of a moment."""

from __future__ import annotations

import pytest

from cs336_tui.events.prediction import CATEGORIES
from cs336_tui.events.reports import MemoryReport
from cs336_tui.tui.dialogs.windows import Reader
from cs336_tui.tui.widgets.rows import Rows
from tests.made_memory import a_memory_report, many_events
from tests.tui.memory_tab import COMPACT, LARGE, PANEL, Tab, pressed, recorded
from tests.tui.watched import comes


@pytest.mark.parametrize("size", [COMPACT, PANEL, LARGE])
async def test_the_timeline_begins_at_the_peak_with_what_is_live_there(size: tuple[int, int]) -> None:
    app = Tab(recorded())
    async with app.run_test(size=size) as pilot:
        text = await pressed(pilot)
        assert "peak 301 MB in optimizer" in text
        assert "allocator's own 301 MB" in text
        assert "predicted 303 MB (+0.7 %)" in text
        assert "400 MB ┤" in text
        assert "end of forward╵" in text
        assert "peak▲" in text
        assert "301 MB live" in text
        assert "event 70 of 71" in text
        for category in CATEGORIES:
            assert category.replace("_", " ") in text
        assert "passes.py:129 _optimizer" in text
        assert "60.0 " in text


async def test_the_cursor_goes_by_columns_to_the_ends_and_to_the_peak() -> None:
    app = Tab(recorded())
    async with app.run_test(size=PANEL) as pilot:
        await pressed(pilot)
        pane, record = app.pane, a_memory_report()
        assert pane.event == record.peak_event
        text = await pressed(pilot, "home")
        assert pane.event == 0
        assert "before the step" in text
        await pressed(pilot, "right")
        one = pane.event
        await pressed(pilot, "full_stop")
        assert pane.event > one + 9
        await pressed(pilot, "shift+left", "left", "left")
        assert pane.event == 0
        assert "event 71 of 71" in await pressed(pilot, "end")
        await pressed(pilot, "home", "h")
        assert pane.event == record.peak_event


async def test_a_column_stands_for_its_highest_moment() -> None:
    report = many_events(20_001)
    app = Tab(recorded(report))
    async with app.run_test(size=PANEL) as pilot:
        await pressed(pilot, "home", "right", "right")
        window = app.pane.window
        assert window is not None
        live = _live_bytes(report)
        in_column = range(window.edge(2), window.edge(3))
        assert app.pane.event in in_column
        assert live[app.pane.event] == max(live[event] for event in in_column)
        assert f"event {app.pane.event + 1:,} of 20,001" in app.pane.text


def _live_bytes(report: MemoryReport) -> list[int]:
    change = [0] * (report.events + 1)
    for size, born, died in zip(report.bytes, report.born, report.died, strict=True):
        change[born] += size
        change[died] -= size if died >= 0 else 0
    live, total = [], 0
    for value in change[:-1]:
        total += value
        live.append(total)
    return live


async def test_zooming_keeps_the_cursor_and_says_what_is_in_sight() -> None:
    app = Tab(recorded(many_events(20_001)))
    async with app.run_test(size=COMPACT) as pilot:
        await pressed(pilot, "h")
        event = app.pane.event
        text = await pressed(pilot, *["plus"] * 6)
        assert app.pane.event == event
        assert "in sight" in text
        before = app.pane.window
        assert before is not None
        assert before.end - before.first == pytest.approx(20_001 / 64, abs=8)
        await pressed(pilot, *["comma"] * 7)
        assert app.pane.event < before.first, "the window goes where the cursor goes"
        assert app.pane.window is not None
        assert app.pane.window.column_of(app.pane.event) is not None
        assert "in sight" not in await pressed(pilot, *["minus"] * 7)


async def test_up_and_down_go_to_where_phases_begin() -> None:
    app = Tab(recorded())
    async with app.run_test(size=PANEL) as pilot:
        await pressed(pilot, "home")
        seen = []
        for _ in range(5):
            await pressed(pilot, "down")
            seen.append(app.pane.event)
        assert seen == [span.first for span in a_memory_report().phases]
        assert "· loss ·" in await pressed(pilot, "up", "up")


async def test_everything_about_a_moment_is_read_in_a_window() -> None:
    app = Tab(recorded())
    async with app.run_test(size=(120, 40)) as pilot:
        await pressed(pilot, "enter")
        assert isinstance(app.screen, Reader)
        text = app.screen.query_one(Rows).text
        assert "snapshot, for pytorch.org/memory_viz: /sessions/sample/memory-1.pickle" in text
        assert "Live bytes by place" in text
        assert "60.0 MB in 3 allocations · feed-forward · transformer.py:158 forward" in text
        assert "_foreach_sqrt" in text


async def test_an_allocation_made_in_backward_is_marked_and_names_its_forward_frame() -> None:
    app = Tab(recorded())
    async with app.run_test(size=LARGE) as pilot:
        assert "∂ transformer.py:158 forward" in await pressed(pilot)


async def test_what_a_record_lacks_is_said_beside_its_timeline() -> None:
    note = "No allocator events: workspaces are not seen."
    app = Tab(recorded(a_memory_report(recorder="tensors", note=note, allocator_peak_bytes=None)))
    async with app.run_test(size=COMPACT) as pilot:
        text = await pressed(pilot)
        assert note in text
        assert "allocator's own n/a" in text


async def test_a_large_record_is_read_while_the_screen_goes_on() -> None:
    app = Tab(recorded(many_events(200_001)))
    async with app.run_test(size=LARGE) as pilot:

        def is_read() -> bool:
            done = "live, 100 % of the peak" in app.pane.text
            assert done or app.pane.text == "" or "reading the record ..." in app.pane.text
            return done

        await comes(pilot, is_read)
        text = await pressed(pilot, "left", "right")
        assert "of 200,001" in text
