"""The Memory tab: its views, its cursor and its levels, in the rooms that the app has for it."""

from __future__ import annotations

from typing import Any

import pytest
from textual import on
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from cs336_tui.events import CellsPredicted, Event, ReportFinished, ReportStage, ReportStarted
from cs336_tui.findings.memory import phase_peaks
from cs336_tui.reports import CATEGORIES, MemoryReport, OomReport, Report
from cs336_tui.session.state import SessionState
from cs336_tui.spec import RunSpec
from cs336_tui.tui.dialogs.reader import Reader
from cs336_tui.tui.pages.peaks import difference
from cs336_tui.tui.panes.memory import LEVELS_MB, MemoryPane
from cs336_tui.tui.panes.report import ReportPane, Subject
from cs336_tui.tui.themes import VARIABLE_DEFAULTS
from cs336_tui.tui.widgets.lines import Lines
from cs336_tui.tui.widgets.rows import Rows
from tests.made_memory import MB, a_memory_report, a_prediction, an_oom_report, many_events
from tests.samples import MEASURED_S, START, a_spec, cell_end, cell_start, session_start, state_of, steps

COMPACT, PANEL, LARGE = (80, 20), (118, 12), (198, 22)
"""Rooms of the tab in terminals of 80x24, 120x40 and 200x60."""
SPEC = a_spec(pass_="train-step")


class Tab(App[None]):
    """Nothing but the tab, repainted when it says that its room is another."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject
        self.wanted: list[tuple[str, RunSpec | None]] = []
        self.stepped: list[int] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return VARIABLE_DEFAULTS

    def compose(self) -> ComposeResult:
        yield MemoryPane()

    @property
    def pane(self) -> MemoryPane:
        return self.screen_stack[0].query_one(MemoryPane)

    @on(Lines.Resized)
    def paint(self) -> None:
        self.pane.show(self.subject)

    @on(ReportPane.Wanted)
    def _wanted(self, message: ReportPane.Wanted) -> None:
        self.wanted.append((message.kind, message.subject.spec))

    @on(ReportPane.CellStepped)
    def _stepped(self, message: ReportPane.CellStepped) -> None:
        self.stepped.append(message.by)

    async def about(self, pilot: Pilot[None], subject: Subject) -> str:
        """Turn to another subject; what is shown then."""
        self.subject = subject
        self.paint()
        await pilot.pause()
        return self.pane.text


async def pressed(pilot: Pilot[None], *keys: str) -> str:
    app = pilot.app
    assert isinstance(app, Tab)
    if not app.pane.has_focus:
        app.pane.focus()
        await pilot.pause()
    await pilot.press(*keys)
    await pilot.pause()
    return app.pane.text


def report_events(content: Report, number: int = 0, cell: int | None = 0) -> list[Event]:
    kind: Any = "oom" if isinstance(content, OomReport) else "memory"
    return [
        ReportStarted(at=START + 50, report=number, kind=kind, spec=content.spec, cell=cell),
        ReportFinished(at=START + 55, report=number, status="ok", content=content),
    ]


def timed(cell: int, **end: Any) -> list[Event]:
    return [*cell_start(cell), *steps(cell, (), MEASURED_S), cell_end(cell, **end)]


def session(*more: Event, specs: tuple[RunSpec, ...] = (SPEC,)) -> SessionState:
    return state_of([*session_start(specs), *timed(0, peak_allocated_bytes=305 * MB), *more])


def recorded(report: MemoryReport | None = None) -> Subject:
    return Subject(session(*report_events(report or a_memory_report())), SPEC, 0, can_ask=True)


def out_of_memory(*more: Event) -> Subject:
    spec = an_oom_report().spec
    ended = cell_end(
        0, "oom", error="CUDA out of memory: tried to allocate 2 GiB", stage="warm-up", step=0, phase="forward"
    )
    return Subject(state_of([*session_start([spec]), *cell_start(0), ended, *more]), spec, 0, can_ask=True)


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
        await pressed(pilot, "home", "P")
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
        await pressed(pilot, "P")
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


async def test_allocations_above_the_level_are_listed_and_the_level_is_in_sight() -> None:
    app = Tab(recorded())
    async with app.run_test(size=LARGE) as pilot:
        text = await pressed(pilot, "v", "v")
        assert "largest ≥ 1 MB" in text
        assert "135 weigh" in text
        assert "forward → backward" in text
        assert "before → zero_grad" in text
        text = await pressed(pilot, "greater_than_sign")
        assert "largest ≥ 10 MB" in text
        assert "135 weigh" not in text
        rows = [row for row in text.splitlines() if "optimizer state" in row]
        assert [row.split()[:2] for row in rows] == [["40.0", "3"]], "three alike are one row"
        text = await pressed(pilot, *["greater_than_sign"] * len(LEVELS_MB))
        assert "Nothing is that large" in text
        assert "largest ≥ 1000 MB" in text
        assert "largest ≥ 0 MB" in await pressed(pilot, *["less_than_sign"] * len(LEVELS_MB))


async def test_the_lives_of_an_allocation_are_read_in_a_window() -> None:
    app = Tab(recorded())
    async with app.run_test(size=COMPACT) as pilot:
        await pressed(pilot, "v", "v", "down", "down", "enter")
        assert isinstance(app.screen, Reader)
        text = app.screen.query_one(Rows).text
        assert "20,000,000 bytes (20.0 MB)" in text
        assert "held for: parameters" in text
        assert text.count("before the step to after the step") == 3


async def test_peaks_of_all_cells_stand_side_by_side_recorded_timed_and_predicted() -> None:
    longer = a_spec(pass_="train-step", context_length=256)
    half = a_spec(pass_="train-step", precision="bf16-mixed")
    too_long = a_spec(pass_="train-step", context_length=4096)
    state = session(
        *timed(1, peak_allocated_bytes=503 * MB),
        *cell_start(3),
        cell_end(3, "oom"),
        *report_events(a_memory_report()),
        *report_events(a_memory_report(spec=longer, prediction=None), 1, 1),
        CellsPredicted(at=START + 60, predictions=(a_prediction(half, peak_bytes=200 * MB),)),
        specs=(SPEC, longer, half, too_long),
    )
    app = Tab(Subject(state, SPEC, 0, can_ask=True))
    async with app.run_test(size=LARGE) as pilot:
        text = await pressed(pilot, "v")
        heading, *rows = [row.split() for row in text.splitlines()[-5:]]
        assert " ".join(heading) == (
            "size ctx batch pass precision device forward pred. forward backward optimizer step pred. step timed diff"
        )
        (recorded,) = phase_peaks([a_memory_report()])
        phases = [f"{(peak or 0) / MB:.0f}" for peak in (recorded.backward, recorded.optimizer)]
        assert rows[0][-8:] == ["–", "160", "–", "–", "–", "200", "–", "–"]
        assert rows[1][0] == ">"
        assert rows[1][-9:] == ["264", "242", *phases, "301", "303", "305", "-0.7", "%"]
        assert rows[2][-8:] == ["264", "–", *phases, "301", "–", "503", "–"]
        assert rows[3][-8:] == ["–", "–", "–", "–", "–", "–", "OOM", "–"]


def test_a_prediction_is_off_by_a_share_of_what_was_measured() -> None:
    assert difference(303, 301) == ("(+0.7 %)", "good")
    assert difference(290, 301) == ("(-3.7 %)", "caution")
    assert difference(999_999, 1_000_000) == ("(+0.0 %)", "good"), "nothing is less than nothing off"
    assert difference(5, 0).text == ""


async def test_bytes_saved_for_backward_are_given_per_block_with_shares() -> None:
    app = Tab(recorded())
    async with app.run_test(size=COMPACT) as pilot:
        text = await pressed(pilot, "V")
        assert "layers.0 to layers.2, each: 29.9 MB" in text
        assert "89.7 MB in 3 Transformer blocks" in text
        assert text.count("Backward0") == 5
        assert "21.1" in text
        assert "2 other kinds" in text


async def test_a_pass_without_backward_says_that_nothing_is_saved() -> None:
    forward = a_spec(pass_="forward")
    report = a_memory_report(spec=forward, saved=())
    app = Tab(Subject(session(*report_events(report), specs=(forward,)), forward, 0))
    async with app.run_test(size=COMPACT) as pilot:
        assert "Nothing is saved for backward: forward has no backward." in await pressed(pilot, "V")
        lost = a_memory_report(spec=SPEC, saved=())
        assert "does not say what is saved" in await app.about(pilot, recorded(lost))


async def test_what_a_record_lacks_is_said_beside_its_timeline() -> None:
    note = "No allocator events: workspaces are not seen."
    app = Tab(recorded(a_memory_report(recorder="tensors", note=note, allocator_peak_bytes=None)))
    async with app.run_test(size=COMPACT) as pilot:
        text = await pressed(pilot)
        assert note in text
        assert "allocator's own n/a" in text


async def test_a_cell_that_ran_out_of_memory_says_why_first() -> None:
    app = Tab(out_of_memory(*report_events(an_oom_report())))
    async with app.run_test(size=COMPACT) as pilot:
        text = await pressed(pilot)
        assert "Memory ran out in forward: 2.15 GB was asked for with 80.0 GB" in text
        assert "Observed" in text
        assert "predicted to need 96.0 GB in backward, 15.0 GB more" in text
        rows = {row.split("  ")[0]: row.split()[-3:] for row in text.splitlines()}
        assert rows["activations"] == ["47", "%", "48.0"]
        text = await pressed(pilot, *["pagedown"] * 3)
        assert "transformer.py:135 weigh" in text
        await pressed(pilot, "enter")
        assert isinstance(app.screen, Reader)


async def test_a_predicted_reason_is_not_called_observed() -> None:
    app = Tab(out_of_memory(*report_events(an_oom_report(observed=False, note="The process was killed."))))
    async with app.run_test(size=COMPACT) as pilot:
        text = " ".join((await pressed(pilot)).split())
        assert "Predicted, not observed" in text
        assert "The process was killed." in text


async def test_the_reason_can_be_asked_for_and_comes_by_itself() -> None:
    subject = out_of_memory()
    app = Tab(subject)
    async with app.run_test(size=COMPACT) as pilot:
        text = await pressed(pilot)
        assert "tried to allocate 2 GiB" in text
        assert "Press n" in text
        await pressed(pilot, "n")
        assert app.wanted == [("oom", subject.spec)]
        assert subject.spec is not None
        waits = subject._replace(asked=frozenset({("oom", subject.spec)}))
        assert "found out next" in await app.about(pilot, waits)
        started, finished = report_events(an_oom_report())
        subject.state.apply(started)
        subject.state.apply(ReportStage(at=START + 51, report=0, stage="forward"))
        assert "finding out why: forward" in await app.about(pilot, subject)
        subject.state.apply(finished)
        assert "Memory ran out in forward" in await app.about(pilot, subject)


async def test_stepping_over_a_cell_that_did_not_fit_comes_back_to_the_view_before() -> None:
    app = Tab(recorded())
    async with app.run_test(size=COMPACT) as pilot:
        assert "Allocations of at least 1 MB" in await pressed(pilot, "v", "v")
        assert "Memory ran out" in await app.about(pilot, out_of_memory(*report_events(an_oom_report())))
        text = await app.about(pilot, recorded())
        assert "OOM" not in text
        assert "Allocations of at least 1 MB" in text


async def test_only_keys_that_do_something_are_offered() -> None:
    app = Tab(Subject(session(), SPEC, 0))
    async with app.run_test(size=COMPACT) as pilot:
        await pressed(pilot)

        def offered() -> set[str]:
            return {binding.binding.description for binding in app.screen.active_bindings.values()}

        assert not {"Moment", "Zoom", "Peak", "Level"} & offered()
        assert "Profile now" not in offered()
        await app.about(pilot, recorded())
        assert {"Moment", "Zoom", "Peak", "Profile now"} <= offered()
        await pressed(pilot, "v", "v")
        assert {"Level"} == {"Moment", "Zoom", "Peak", "Level"} & offered()


async def test_without_a_record_it_says_how_to_make_one() -> None:
    app = Tab(Subject(session(), SPEC, 0, can_ask=True))
    async with app.run_test(size=COMPACT) as pilot:
        text = await pressed(pilot)
        assert "Press n to make it" in text
        assert "timeline │ peaks" in text
        await pressed(pilot, "n", "right", "plus", "P", "home", "down", "enter", "right_square_bracket")
        assert app.wanted == [("memory", SPEC)]
        assert app.stepped == [1]
        assert len(app.screen_stack) == 1
        assert "305" in await pressed(pilot, "v"), "peaks need no record"


async def test_without_any_cell_every_view_says_what_to_do() -> None:
    app = Tab(Subject(SessionState()))
    async with app.run_test(size=COMPACT) as pilot:
        assert "Choose cells in Configure" in await pressed(pilot)
        assert "No peaks yet" in await pressed(pilot, "v")
        assert "Choose cells in Configure" in await pressed(pilot, "v")


async def test_a_large_record_is_read_while_the_screen_goes_on() -> None:
    app = Tab(recorded(many_events(200_001)))
    async with app.run_test(size=LARGE) as pilot:
        for _ in range(500):
            if "live, 100 % of the peak" in app.pane.text:
                break
            assert app.pane.text == "" or "reading the record ..." in app.pane.text
            await pilot.pause(0.01)
        text = await pressed(pilot, "left", "right")
        assert "of 200,001" in text


@pytest.mark.parametrize("size", [(110, 3), (40, 8), (12, 5), (300, 80)])
async def test_no_room_is_too_small_or_too_large(size: tuple[int, int]) -> None:
    app = Tab(recorded())
    async with app.run_test(size=size) as pilot:
        await pressed(pilot, "right", "plus")
        for _ in range(4):
            text = await pressed(pilot, "v", "down")
            assert text
            assert all(len(row) <= size[0] for row in text.splitlines())


async def test_a_small_panel_keeps_the_names_of_its_columns_and_a_row() -> None:
    app = Tab(recorded())
    async with app.run_test(size=(110, 3)) as pilot:
        text = await pressed(pilot, "v")
        assert "timed" in text
        assert "> " in text
        text = await pressed(pilot, "v")
        assert "largest ≥ 1 MB" in text
        assert "held for" in text
        assert "60.0" in text
