"""Requests for reports: their cell, waiting and end."""

from pathlib import Path

import pytest

from cs336_tui.events.events import Event, ReportFinished
from cs336_tui.tui.tabs.report import ReportPane
from tests.made_kernels import a_kernel_report
from tests.samples import START, a_spec, mixed_session, report_events
from tests.tui.test_queue import opened
from tests.tui.watched import SMALL, WIDE, Benches, demo, in_the_middle, on_screen, press, replaying, screen_text, until


def done(number: int = 0, **changes: object) -> ReportFinished:
    return ReportFinished(at=START + 2, report=number, status="ok", content=a_kernel_report(a_spec(**changes)))


@pytest.mark.parametrize(
    ("size", "key", "kind"), [(SMALL, "9", "kernels"), (WIDE, "0", "memory"), ((40, 12), "p", "precision")]
)
async def test_before_any_run_a_tab_is_about_the_first_cell_of_the_choices(
    size: tuple[int, int], key: str, kind: str, bench: Benches
) -> None:
    async with opened(bench, size=size) as (app, pilot):
        await press(pilot, "escape", key, seen="tiny · ctx 128 · forward")
        pane = app.main.query_one(f"#{kind}", ReportPane)
        await until(pilot, lambda _: pane.has_focus)
        assert pane.subject.cell is None
        assert pane.subject.can_ask
        await press(pilot, "n", seen=lambda _: bool(app.live.state.reports))
        assert app.live.state.reports[0].kind == kind
        assert app.live.state.reports[0].spec.device == "cuda:0"
        bench.go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)


async def test_a_report_runs_in_its_tab_can_be_stopped_and_then_be_made(bench: Benches) -> None:
    async with opened(bench, size=SMALL) as (app, pilot):
        text = await press(pilot, "escape", "9", "n", seen="warm-up ...")
        assert "kernels: warm-up" in text.splitlines()[0]
        assert app.main.open_pane == "kernels"
        assert app.run_in_progress
        assert app.check_action("stop_cells", ())
        assert app.check_action("run_cells", ())
        await press(pilot, "s", seen=lambda _: not app.run_in_progress)
        await until(pilot, "The report was stopped.")
        bench.made[0].report_ends = done(size="tiny", d_model=256, d_ff=1024, num_layers=4, num_heads=4)
        bench.go_on.set()
        await press(pilot, "n", seen=lambda text: "Press n" not in text and not app.run_in_progress)
        assert app.main.query_one("#kernels", ReportPane).report is not None


async def test_a_report_waits_for_the_running_cell_and_comes_before_the_next(bench: Benches) -> None:
    async with opened(bench, runs=True) as (app, pilot):
        await press(pilot, "9", seen="never while one is timed")
        await press(pilot, "n", seen="made after the running cell")
        bench.finish_one()
        await until(pilot, "warm-up ...")
        assert list(app.live.state.waiting) == [1, 2]
        bench.finish_one()
        await until(pilot, lambda _: app.live.state.current == 1)
        assert app.live.state.reports[0].cell == 0


async def test_what_is_run_while_a_report_is_made_comes_behind_it_and_is_shown(bench: Benches) -> None:
    async with opened(bench, size=SMALL) as (app, pilot):
        await press(pilot, "escape", "0", "n", seen="warm-up ...")
        await press(pilot, "r", seen=lambda _: app.main.open_pane == "live" and len(app.live.state.waiting) == 3)
        assert app.live.state.current is None
        bench.finish_one()
        await until(pilot, "▶ running" if app.main.wide else "cell 1/3")
        bench.go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)
        assert [cell.status for cell in app.live.state.cells.values()] == ["ok"] * 3


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (done(), "Kernels of tiny · ctx 128 · forward · fp32 · cuda:0: ready (9)."),
        (ReportFinished(at=START + 2, report=0, status="failed", error="no CUPTI"), "no CUPTI (9)"),
    ],
)
async def test_the_end_of_a_report_is_told_where_it_is_not_seen(
    ends: ReportFinished, said: str, bench: Benches
) -> None:
    async with opened(bench) as (_, pilot):
        bench.made[0].report_ends = ends
        await press(pilot, "escape", "9", "n", seen="warm-up ...")
        await pilot.press("5")
        bench.go_on.set()
        await until(pilot, lambda text: all(word in text for word in said.split()))


async def test_a_report_that_cannot_be_asked_for_says_why_and_the_app_is_ready(bench: Benches) -> None:
    from cs336_tui.session.log import LogError

    async with opened(bench) as (app, pilot):
        bench.made[0].refuse = LogError("no room for a log")
        await press(pilot, "escape", "p", "n", seen="no room for a log")
        await until(pilot, lambda _: not app.run_in_progress)


async def test_keys_step_through_the_cells_of_the_session_and_results_follow(tmp_path: Path) -> None:
    async with on_screen(replaying(mixed_session(), tmp_path), "at its end") as (app, pilot):
        await pilot.press("9")
        pane = app.main.query_one("#kernels", ReportPane)
        await until(pilot, lambda _: pane.subject.cell == 2)
        assert "No report for this cell in this session" in screen_text(app)
        await press(pilot, "left_square_bracket", "left_square_bracket", seen=lambda _: pane.subject.cell == 0)
        await press(pilot, "left_square_bracket", seen=lambda _: pane.subject.cell == 0)
        await press(pilot, "right_square_bracket", "4", seen=lambda _: app.main.query_one("#results").cursor == 1)
        await press(pilot, "down", "down", "9", seen=lambda _: pane.subject.cell == 3)


async def test_a_chosen_cell_stays_while_others_run(bench: Benches) -> None:
    async with opened(bench, runs=True) as (app, pilot):
        await pilot.press("9")
        pane = app.main.query_one("#kernels", ReportPane)
        await until(pilot, lambda _: pane.subject.cell == 0)
        bench.finish_one()
        await until(pilot, lambda _: pane.subject.cell == 1)
        await press(pilot, "left_square_bracket", seen=lambda _: pane.subject.cell == 0)
        bench.finish_one()
        await until(pilot, lambda _: app.live.state.current == 2)
        assert pane.subject.cell == 0


async def test_a_replayed_report_is_shown_and_none_can_be_asked_for(tmp_path: Path) -> None:
    events: list[Event] = demo(in_the_middle)
    spec = next(event for event in events if hasattr(event, "specs")).specs[5]
    events += report_events(a_kernel_report(spec), cell=5, at=events[-1].at)
    async with on_screen(replaying(events, tmp_path), "at its end") as (app, pilot):
        await pilot.press("9")
        pane = app.main.query_one("#kernels", ReportPane)
        await until(pilot, lambda _: pane.report is not None)
        assert "Make report" not in screen_text(app).splitlines()[-1]
        await pilot.press("n")


async def test_the_command_palette_makes_reports_and_names_gpus(bench: Benches) -> None:
    async with opened(bench) as (app, pilot):
        await pilot.press("escape", "colon", *"Report memory", "enter")
        await pilot.pause(0.3)
        await pilot.press("enter")
        await until(pilot, lambda _: any(report.kind == "memory" for report in app.live.state.reports.values()))
        assert app.main.open_tab == "memory"
        bench.go_on.set()
        await until(pilot, lambda _: not app.run_in_progress)


async def test_a_log_of_nothing_but_reports_shows_each_of_them(tmp_path: Path) -> None:
    (start, environment, *_) = mixed_session()
    reports = (a_kernel_report(a_spec(context_length=context)) for context in (128, 256))
    events = [start, environment, *report_events(*reports)]
    async with on_screen(replaying(events, tmp_path), size=SMALL) as (_, pilot):
        await press(pilot, "9", seen="ctx 256")
        await press(pilot, "left_square_bracket", seen="ctx 128")
        await press(pilot, "left_square_bracket", "right_square_bracket", seen="ctx 256")
