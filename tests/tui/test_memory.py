"""The Memory tab at each of its sizes: its views, the timeline's cursor and zoom, details, why a cell did not fit."""

import pytest
from msgspec.structs import replace

from cs336_tui.analysis.memory import Timeline, phase_peaks
from cs336_tui.config.spec import recorded_spec
from cs336_tui.events.events import CellsPredicted, Event, ReportStage
from cs336_tui.events.prediction import CATEGORIES
from cs336_tui.events.reports import MemoryReport
from cs336_tui.session.state import SessionState
from cs336_tui.tui.tabs.memory import LEVELS_MB, MemoryPane
from cs336_tui.tui.tabs.memory_tables import blocks_page, difference, oom_page, peaks_page
from cs336_tui.tui.tabs.memory_timeline import summary
from cs336_tui.tui.tabs.report import Subject
from tests.made_memory import MB, MemoryMaker, a_memory_report, a_prediction, an_oom_report, many_events
from tests.made_ranks import a_rank_memory_report
from tests.samples import START, a_spec, cell_end, cell_start, report_events, session_start, state_of
from tests.tui.one_pane import (
    COMPACT,
    LARGE,
    PANEL,
    SPEC,
    about,
    out_of_memory,
    pressed,
    read,
    recorded,
    session,
    showing,
    timed,
)
from tests.tui.watched import absent, comes, text


async def test_allocations_above_the_level_are_listed_and_the_level_is_in_sight() -> None:
    async with recorded(size=LARGE) as (pilot, _, _app):
        text = await pressed(pilot, "v", "v")
        assert not absent(text, "largest ≥ 1 MB", "135 weigh", "forward → backward", "before → zero_grad")
        text = await pressed(pilot, "minus")
        assert "largest ≥ 10 MB" in text
        assert "135 weigh" not in text
        rows = [row for row in text.splitlines() if "optimizer state" in row]
        assert [row.split()[:2] for row in rows] == [["40.0", "3"]], "three alike are one row"
        text = await pressed(pilot, *["minus"] * len(LEVELS_MB))
        assert not absent(text, "No allocation that large", "largest ≥ 1000 MB")
        assert "largest ≥ 0 MB" in await pressed(pilot, *["plus"] * len(LEVELS_MB))


def test_activation_peaks_of_groups_stay_in_a_narrow_list() -> None:
    events: list[Event] = []
    for number, activations in enumerate((200, 90, 60)):
        spec = a_spec(pass_="train-step", checkpoint=number)
        report = a_memory_report(spec=spec, activation_peak_bytes=activations * MB)
        phases = tuple(replace(span, peak_bytes=span.peak_bytes + number * MB) for span in report.phases)
        report = replace(report, peak_bytes=report.peak_bytes + number * MB, phases=phases)
        events += report_events(report, first=number, cell=0)
    page = peaks_page(session(*events), None, 56)
    names, *rows = (row.split() for row in text([page.heading[-1], *page.rows[:3]]).splitlines())
    assert names[-1] == "activ."
    assert [row[-1] for row in rows] == ["200.000", "90.000", "60.000"]


def test_peaks_of_all_cells_stand_side_by_side_recorded_timed_and_predicted() -> None:
    longer = a_spec(pass_="train-step", context_length=256)
    half = a_spec(pass_="train-step", precision="bf16-mixed")
    too_long = a_spec(pass_="train-step", context_length=4096)
    state = session(
        *timed(1, peak_allocated_bytes=503 * MB),
        *cell_start(3),
        cell_end(3, "oom", peak_allocated_bytes=790 * MB),
        *report_events(a_memory_report(), cell=0),
        *report_events(a_memory_report(spec=longer, prediction=None), first=1, cell=1),
        CellsPredicted(at=START + 60, predictions=(a_prediction(half, peak_bytes=200 * MB),)),
        specs=(SPEC, longer, half, too_long),
    )
    page = peaks_page(state, SPEC, LARGE[0])
    heading, *rows = (row.split() for row in text([page.heading[-1], *page.rows[:4]]).splitlines())
    assert " ".join(heading) == (
        "size ctx batch pass precision forward backward optimizer step activ. allocator's count pred. forward "
        "pred. step pred. activ. pred. / step timed pred. / timed"
    )
    recorded = phase_peaks(a_memory_report())
    phases = [f"{(recorded[name] or 0) / MB:.3f}" for name in ("forward", "backward", "optimizer")]
    of_report = [*phases, "301.000", "118.000", "301.000"]
    assert rows[1][0] == ">"
    assert [row[-12:] for row in rows] == [
        [*"––––––", "160.000", "200.000", "100.000", *"–––"],
        [*of_report, "242.400", "303.000", "151.500", "1.007", "305.000", "0.993"],
        [*of_report, *"––––", "503.000", "–"],
        [*"––––––––––", "OOM", "–"],
    ]
    assert "predicted step: 303,000,000 bytes" in page.details[1]
    assert "while timed (oom): allocated 0.790 GB, reserved " in page.details[3]
    assert "recorders: " in text(page.rows)


def test_a_prediction_is_off_by_a_share_of_what_was_measured() -> None:
    assert difference(303, 301) == ("(+0.7 %)", "good")
    assert difference(290, 301) == ("(-3.7 %)", "caution")
    assert difference(999_999, 1_000_000) == ("(+0.0 %)", "good"), "nothing is less than nothing off"
    assert difference(5, 0).text == ""


async def test_bytes_saved_for_backward_are_given_per_block_with_shares() -> None:
    async with recorded() as (pilot, _, _app):
        text = await pressed(pilot, "V")
        assert not absent(
            text, "layers.0 to layers.2, each: 29.9 MB", "89.7 MB in 3 Transformer blocks", "21.1", "2 other kinds"
        )
        assert text.count("Backward0") == 5


@pytest.mark.parametrize("width", [COMPACT[0], LARGE[0]])
def test_the_backward_of_each_block_is_given_with_what_is_expected_of_it(width: int) -> None:
    page = blocks_page(a_memory_report(), width, 0)
    heading, *rows = text([page.heading[-1], *page.rows]).splitlines()
    assert heading.split()[:6] == ["block", "gradients", "saved", "expected", "change", "diff"]
    assert ("in forward" in heading) == (width == LARGE[0])
    assert [row.split()[:6] for row in rows] == [
        [f"layers.{n}", "20.000", "29.884", "-9.884", "-9.884", "512"] for n in range(3)
    ]
    assert page.details[1].startswith("layers.1\n\ngradients: 20,000,000 bytes\n")
    assert "\ndiff: 512 bytes\n" in page.details[1]
    assert "change + saved: the gradients by memory alone" in page.details[1]


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (
            a_memory_report(saved=(), blocks=()),
            ["This record does not say what is saved for backward.",
             "This record does not say how blocks change memory in backward."],
        ),
        (
            a_memory_report(spec=a_spec(pass_="forward"), saved=(), blocks=()),
            ["Nothing is saved for backward: forward has no backward."] * 2,
        ),
        (
            a_memory_report(spec=recorded_spec("run.pickle", "cuda:0"), saved=(), blocks=(), allocator_peak_bytes=None),
            ["A recording does not say what is saved for", "A recording does not say how blocks change memory"],
        ),
    ],
    ids=["a record", "a pass without backward", "a recording"],
)  # fmt: skip
async def test_what_a_record_does_not_say_of_blocks_is_said(report: MemoryReport, said: list[str]) -> None:
    async with showing(MemoryPane(), about(report)) as (pilot, _, _app):
        for words in said:
            text = await pressed(pilot, "V")
            assert words in text
            assert ("allocator's own" in text) is not bool(report.spec.recording)
        assert ("recording" in (await pressed(pilot, "V", "V")).split()) == bool(report.spec.recording)


@pytest.mark.parametrize("size", [COMPACT, LARGE])
async def test_memory_of_each_rank_is_shown_in_every_view(size: tuple[int, int]) -> None:
    spec, whole, other = (
        a_spec(pass_="train-step", ranks=ranks, parallel=parallel)
        for ranks, parallel in ((2, "zero1"), (2, "ddp"), (4, "zero1"))
    )
    made = report_events(*map(a_rank_memory_report, (whole, other, spec)), cell=0)
    subject = Subject(state_of([*session_start([spec]), *cell_start(0), cell_end(0), *made]), spec, 0)
    async with showing(MemoryPane(), subject, size) as (pilot, _, _app):
        for keys in ((), ("left", "right"), ("plus",), ("h",), ("enter",), ("v", "v"), ("v",), ("v",), ("v",)):
            text = await pressed(pilot, *keys)
            assert "state  activ." in text
        rows = [line.split() for line in text.splitlines() if line.split()[:1] == ["initialised"]]
        assert [row[1:3] for row in rows] == [["0", "ddp"], ["0", "zero1"], ["1", "ddp"], ["1", "zero1"]]
        assert "of each rank, MB" in text
        assert "devices: cpu, torch 2.13.0" in await pressed(pilot, "end")


def test_the_summary_leaves_out_what_has_no_room_and_cuts_no_word() -> None:
    report = a_memory_report(activation_peak_bytes=120 * MB)
    for width in range(20, 160):
        shown = text([summary(report, a_prediction(report.spec), width)])
        assert shown.startswith("peak 301 MB in optimizer")
        assert "…" not in shown
        assert len(shown) <= max(width, len("peak 301 MB in optimizer"))
        assert ("activation peak 120 MB" in shown) == (
            width >= len("peak 301 MB in optimizer · activation peak 120 MB")
        )
    assert "recorded by" in shown


async def test_the_list_of_the_largest_begins_at_a_level_that_has_some() -> None:
    maker = MemoryMaker()
    maker.phase("forward")
    maker.allocate(1000, "activations", "aten::mm")
    async with recorded(maker.report(spec=SPEC)) as (pilot, _, _app):
        assert not absent(await pressed(pilot, "v", "v"), "largest ≥ 0 MB", "mm")


async def test_only_keys_that_do_something_are_offered() -> None:
    async with showing(MemoryPane(), Subject(session(), SPEC, 0)) as (pilot, _, app):

        def offered() -> set[str]:
            return {binding.binding.description for binding in app.screen.active_bindings.values()}

        assert not {"Moment", "Zoom", "Peak", "Level", "Make report"} & offered()
        await app.about(pilot, about(a_memory_report()))
        assert {"Moment", "Zoom", "Peak", "Make report"} <= offered()
        await pressed(pilot, "v", "v")
        assert {"Level"} == {"Moment", "Zoom", "Peak", "Level"} & offered()


async def test_without_a_record_it_says_how_to_make_one() -> None:
    async with showing(MemoryPane(), Subject(session(), SPEC, 0, can_ask=True)) as (pilot, pane, app):
        assert not absent(pane.text, "Press n to make it", "timeline │ peaks")
        await pressed(pilot, "n", "right", "plus", "h", "home", "down", "enter", "right_square_bracket")
        assert app.asked == [("make_report", ("memory", SPEC, 0)), ("step_cell", (1,))]
        assert len(app.screen_stack) == 1
        assert "305" in await pressed(pilot, "v"), "peaks need no record"


async def test_without_any_cell_every_view_says_what_to_do() -> None:
    async with showing(MemoryPane(), Subject(SessionState())) as (pilot, pane, _):
        assert "Choose cells in Configure" in pane.text
        assert "No peaks yet" in await pressed(pilot, "v")
        assert "Choose cells in Configure" in await pressed(pilot, "v")


@pytest.mark.parametrize("size", [(110, 3), (40, 8), (12, 5), (300, 80)])
async def test_no_room_is_too_small_or_too_large(size: tuple[int, int]) -> None:
    async with recorded(size=size) as (pilot, _, _app):
        await pressed(pilot, "right", "plus")
        for view in ("peaks", "largest", "blocks", "saved"):
            text = await pressed(pilot, "v")
            names = {"peaks": ["timed", "> "], "largest": ["largest ≥ 1 MB", "held for", "60.0"]}.get(view, [])
            assert size[0] < 110 or [name for name in names if name not in text] == [], "a low panel has a row"
            text = await pressed(pilot, "down")
            assert text
            assert all(len(row) <= size[0] for row in text.splitlines())


@pytest.mark.parametrize("size", [COMPACT, PANEL, LARGE])
async def test_the_timeline_begins_at_the_peak_with_what_is_live_there(size: tuple[int, int]) -> None:
    async with recorded(size=size) as (_, pane, _app):
        seen = (
            *("peak 301 MB in optimizer", "allocator's own 301 MB", "predicted 303 MB (+0.7 %)", "400 MB ┤"),
            *("end of forward╵", "peak▲", "301 MB live", "event 70 of 71", "passes.py:129 _optimizer", "60.0 "),
            *(category.replace("_", " ") for category in CATEGORIES),
        )
        assert not absent(pane.text, *seen)
        assert ("∂ transformer.py:158 forward" in pane.text) == (size == LARGE), "made in backward"


async def test_the_cursor_goes_by_columns_to_the_ends_to_the_peak_and_to_where_phases_begin() -> None:
    async with recorded(size=PANEL) as (pilot, pane, _):
        record = a_memory_report()
        assert pane.event == record.peak_event
        assert "before the step" in await pressed(pilot, "home")
        assert pane.event == 0
        await pressed(pilot, "right")
        one = pane.event
        await pressed(pilot, "full_stop")
        assert pane.event > one + 9
        await pressed(pilot, "shift+left", "left", "left")
        assert pane.event == 0
        assert "event 71 of 71" in await pressed(pilot, "end")
        await pressed(pilot, "home", "h")
        assert pane.event == record.peak_event
        await pressed(pilot, "home")
        for span in record.phases:
            await pressed(pilot, "down")
            assert pane.event == span.first
        assert "· loss ·" in await pressed(pilot, "up", "up")


async def test_a_column_stands_for_its_highest_moment_and_zooming_keeps_it_and_says_what_is_in_sight() -> None:
    report = many_events(20_001)
    async with recorded(report) as (pilot, pane, _):
        await pressed(pilot, "home", "right", "right")
        live = Timeline(report).live_total
        in_column = range(pane.window.edge(2), pane.window.edge(3))
        assert pane.event in in_column
        assert live[pane.event] == max(live[event] for event in in_column)
        assert f"event {pane.event + 1:,} of 20,001" in pane.text
        await pressed(pilot, "h")
        event = pane.event
        assert "in sight" in await pressed(pilot, *["plus"] * 6)
        assert pane.event == event
        before = pane.window
        assert before.end - before.first == pytest.approx(20_001 / 64, abs=8)
        await pressed(pilot, *["comma"] * 7)
        assert pane.event < before.first, "the window goes where the cursor goes"
        assert pane.window.column_of(pane.event) is not None
        assert "in sight" not in await pressed(pilot, *["minus"] * 7)


async def test_everything_about_a_moment_and_the_lives_of_an_allocation_are_read_in_a_window() -> None:
    async with recorded(size=(120, 40)) as (pilot, _, _app):
        text = await read(pilot, "enter")
        assert not absent(
            text,
            "snapshot, for pytorch.org/memory_viz: /sessions/sample/memory-1.pickle",
            "60.0 MB in 3 allocations · feed-forward · transformer.py:158 forward",
            *("Live bytes by place", "_foreach_sqrt"),
        )
        text = await read(pilot, "escape", "v", "v", "down", "down", "enter")
        assert not absent(text, "20,000,000 bytes (20.0 MB)", "held for: parameters", "3 alike, 60,000,000 bytes")
        assert text.count("before the step to after the step") == 3


async def test_what_a_record_lacks_is_said_beside_its_timeline() -> None:
    note = "No allocator events: workspaces are not seen."
    async with recorded(a_memory_report(recorder="tensors", note=note, allocator_peak_bytes=None)) as (_, pane, _app):
        assert note in pane.text
        assert "allocator's own n/a" in pane.text


async def test_a_large_record_is_read_while_the_screen_goes_on() -> None:
    async with recorded(many_events(200_001), LARGE) as (pilot, pane, _):

        def is_read() -> bool:
            done = "live, 100 % of the peak" in pane.text
            assert done or pane.text == "" or "reading the record ..." in pane.text
            return done

        await comes(pilot, is_read)
        assert "of 200,001" in await pressed(pilot, "left", "right")


async def test_a_cell_that_ran_out_of_memory_says_why_first() -> None:
    async with showing(MemoryPane(), out_of_memory(*report_events(an_oom_report(), cell=0))) as (pilot, pane, _app):
        assert not absent(pane.text, "Memory ran out in forward: 2.15 GB was asked for with 80.0 GB", "Observed")
        assert "predicted to need 96.0 GB in backward, 15.0 GB more" in pane.text
        rows = {row.split("  ")[0]: row.split()[-3:] for row in pane.text.splitlines()}
        assert rows["live: activations"] == ["38.000", "47", "48.000"]
        assert "transformer.py:135 weigh" in await pressed(pilot, *["pagedown"] * 3)
        assert await read(pilot, "enter")
    guessed = an_oom_report(observed=False, note="The process was killed.")
    said = " ".join(text(list(oom_page(guessed, None, COMPACT[0], 0).rows)).split())
    assert not absent(said, "Predicted, not observed", "The process was killed.")


async def test_the_reason_can_be_asked_for_and_comes_by_itself() -> None:
    subject = out_of_memory()
    async with showing(MemoryPane(), subject) as (pilot, pane, app):
        assert not absent(pane.text, "tried to allocate 2 GiB", "Press n")
        await pressed(pilot, "n")
        assert app.asked == [("make_report", ("oom", subject.spec, 0))]
        waits = replace(subject, asked=frozenset({("oom", subject.spec)}))
        assert "Next: the reason" in await app.about(pilot, waits)
        started, finished = report_events(an_oom_report(), cell=0)
        subject.state.apply(started)
        subject.state.apply(ReportStage(at=START + 51, report=0, stage="forward"))
        assert "finding out why: forward" in await app.about(pilot, subject)
        subject.state.apply(finished)
        assert "Memory ran out in forward" in await app.about(pilot, subject)


async def test_stepping_over_a_cell_that_did_not_fit_comes_back_to_the_view_before() -> None:
    async with recorded() as (pilot, _, app):
        assert "Allocations of at least 1 MB" in await pressed(pilot, "v", "v")
        assert "Memory ran out" in await app.about(pilot, out_of_memory(*report_events(an_oom_report(), cell=0)))
        text = await app.about(pilot, about(a_memory_report()))
        assert "OOM" not in text
        assert "Allocations of at least 1 MB" in text
