"""The Memory tab at each of its sizes: views, levels, and its text without a record."""

from __future__ import annotations

import pytest
from msgspec import structs

from cs336_tui.analysis.memory import phase_peaks
from cs336_tui.config.spec import recorded_spec
from cs336_tui.events.events import CellsPredicted, Event
from cs336_tui.session.state import SessionState
from cs336_tui.tui.dialogs.windows import Reader
from cs336_tui.tui.tabs.memory import LEVELS_MB
from cs336_tui.tui.tabs.memory_tables import blocks_page, difference, peaks_page
from cs336_tui.tui.tabs.memory_timeline import summary
from cs336_tui.tui.tabs.report import Subject
from cs336_tui.tui.widgets.rows import Rows
from tests.made_memory import MB, MemoryMaker, a_memory_report, a_prediction
from tests.made_ranks import a_rank_memory_report
from tests.samples import START, a_spec, cell_end, cell_start, session_start, state_of
from tests.tui.memory_tab import COMPACT, LARGE, SPEC, Tab, pressed, recorded, report_events, session, timed


async def test_allocations_above_the_level_are_listed_and_the_level_is_in_sight() -> None:
    app = Tab(recorded())
    async with app.run_test(size=LARGE) as pilot:
        text = await pressed(pilot, "v", "v")
        assert "largest ≥ 1 MB" in text
        assert "135 weigh" in text
        assert "forward → backward" in text
        assert "before → zero_grad" in text
        text = await pressed(pilot, "minus")
        assert "largest ≥ 10 MB" in text
        assert "135 weigh" not in text
        rows = [row for row in text.splitlines() if "optimizer state" in row]
        assert [row.split()[:2] for row in rows] == [["40.0", "3"]], "three alike are one row"
        text = await pressed(pilot, *["minus"] * len(LEVELS_MB))
        assert "No allocation that large" in text
        assert "largest ≥ 1000 MB" in text
        assert "largest ≥ 0 MB" in await pressed(pilot, *["plus"] * len(LEVELS_MB))


async def test_the_lives_of_an_allocation_are_read_in_a_window() -> None:
    app = Tab(recorded())
    async with app.run_test(size=COMPACT) as pilot:
        await pressed(pilot, "v", "v", "down", "down", "enter")
        assert isinstance(app.screen, Reader)
        text = app.screen.query_one(Rows).text
        assert "20,000,000 bytes (20.0 MB)" in text
        assert "held for: parameters" in text
        assert text.count("before the step to after the step") == 3


def test_activation_peaks_of_groups_stay_in_a_narrow_list() -> None:
    events: list[Event] = []
    for number, activations in enumerate((200, 90, 60)):
        spec = a_spec(pass_="train-step", checkpoint=number)
        report = a_memory_report(spec=spec, activation_peak_bytes=activations * MB)
        phases = tuple(structs.replace(span, peak_bytes=span.peak_bytes + number * MB) for span in report.phases)
        report = structs.replace(report, peak_bytes=report.peak_bytes + number * MB, phases=phases)
        events += report_events(report, number)
    page = peaks_page(session(*events), None, 48)
    names, *rows = ("".join(span.text for span in row).split() for row in (page.heading[-1], *page.rows))
    assert names[-1] == "activ."
    assert [row[-1] for row in rows] == ["200", "90.0", "60.0"]


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
            "size ctx batch pass precision device forward pred. forward backward optimizer step pred. step timed diff "
            "activ. pred. activ."
        )
        recorded = phase_peaks(a_memory_report())
        phases = [f"{(peak or 0) / MB:.0f}" for peak in (recorded.backward, recorded.optimizer)]
        assert [tuple(row[-2:]) for row in rows] == [("–", "100"), ("118", "152"), ("118", "–"), ("–", "–")]
        rows = [row[:-2] for row in rows]
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


async def test_the_backward_of_each_block_is_given_with_what_is_expected_of_it() -> None:
    for size in (COMPACT, LARGE):
        app = Tab(recorded())
        async with app.run_test(size=size) as pilot:
            await pressed(pilot, "V")
            text = await pressed(pilot, "V")
            heading, *rows = text.splitlines()[-4:]
            assert heading.split()[:6] == ["block", "gradients", "saved", "expected", "change", "diff"]
            assert ("in forward" in heading) == (size == LARGE)
            assert [row.split()[:6] for row in rows] == [
                [f"layers.{n}", "20.000", "29.884", "-9.884", "-9.884", "512"] for n in range(3)
            ]
    details = blocks_page(a_memory_report(), 80, 0).details[1]
    assert details.startswith("layers.1\n\ngradients: 20,000,000 bytes\n")
    assert "\ndiff: 512 bytes\n" in details
    assert "change + saved: the gradients by memory alone" in details
    app = Tab(Subject(session(*report_events(a_memory_report(blocks=()))), SPEC, 0))
    async with app.run_test(size=COMPACT) as pilot:
        await pressed(pilot, "V")
        assert "This record does not say how blocks change memory in backward." in await pressed(pilot, "V")


async def test_a_pass_without_backward_says_that_nothing_is_saved() -> None:
    forward = a_spec(pass_="forward")
    report = a_memory_report(spec=forward, saved=())
    app = Tab(Subject(session(*report_events(report), specs=(forward,)), forward, 0))
    async with app.run_test(size=COMPACT) as pilot:
        assert "Nothing is saved for backward: forward has no backward." in await pressed(pilot, "V")
        lost = a_memory_report(spec=SPEC, saved=())
        assert "does not say what is saved" in await app.about(pilot, recorded(lost))


@pytest.mark.parametrize("size", [COMPACT, LARGE])
async def test_memory_of_each_rank_is_shown_in_every_view(size: tuple[int, int]) -> None:
    spec, whole, other = (
        a_spec(pass_="train-step", ranks=ranks, parallel=parallel)
        for ranks, parallel in ((2, "zero1"), (2, "ddp"), (4, "zero1"))
    )
    made = [*report_events(a_rank_memory_report(whole)), *report_events(a_rank_memory_report(other), 1)]
    made += report_events(a_rank_memory_report(spec), 2)
    app = Tab(Subject(state_of([*session_start([spec]), *cell_start(0), cell_end(0), *made]), spec, 0))
    async with app.run_test(size=size) as pilot:
        for keys in ((), ("left", "right"), ("plus",), ("h",), ("enter",), ("v", "v"), ("v",), ("v",), ("v",)):
            text = await pressed(pilot, *keys)
            assert "state  activ." in text
        rows = [line.split() for line in text.splitlines() if line.split()[:1] == ["initialised"]]
        assert [row[1:3] for row in rows] == [["0", "ddp"], ["0", "zero1"], ["1", "ddp"], ["1", "zero1"]]
        assert "of each rank, MB" in text
        await pressed(pilot, "end")
        assert "devices: cpu, torch 2.13.0" in app.pane.text


async def test_a_recording_does_not_claim_that_its_step_has_no_backward() -> None:
    spec = recorded_spec("run.pickle", "cuda:0")
    report = a_memory_report(spec=spec, saved=(), blocks=(), allocator_peak_bytes=None)
    app = Tab(Subject(state_of([*session_start((spec,)), *report_events(report)]), spec, 0))
    async with app.run_test(size=COMPACT) as pilot:
        for keys, what in ((("V",), "what is saved for backward"), (("V",), "how blocks change memory")):
            text = await pressed(pilot, *keys)
            assert f"A recording does not say {what}" in text
            assert "has no backward" not in text
            assert "allocator's own" not in text
        peaks = (await pressed(pilot, "V", "V")).splitlines()
        assert "recording" in [row.split()[0] for row in peaks if row.strip()]


def test_the_summary_leaves_out_what_has_no_room_and_cuts_no_word() -> None:
    report = a_memory_report(activation_peak_bytes=120 * MB)
    for width in range(20, 160):
        text = "".join(span.text for span in summary(report, a_prediction(report.spec), width))
        assert text.startswith("peak 301 MB in optimizer")
        assert "…" not in text
        assert len(text) <= max(width, len("peak 301 MB in optimizer"))
        assert ("activation peak 120 MB" in text) == (width >= len("peak 301 MB in optimizer · activation peak 120 MB"))
    assert "recorded by" in text


async def test_the_list_of_the_largest_begins_at_a_level_that_has_some() -> None:
    maker = MemoryMaker()
    maker.phase("forward")
    maker.allocate(1000, "activations", "aten::mm")
    app = Tab(recorded(maker.report(spec=SPEC)))
    async with app.run_test(size=COMPACT) as pilot:
        text = await pressed(pilot, "v", "v")
        assert "largest ≥ 0 MB" in text
        assert "mm" in text


async def test_only_keys_that_do_something_are_offered() -> None:
    app = Tab(Subject(session(), SPEC, 0))
    async with app.run_test(size=COMPACT) as pilot:
        await pressed(pilot)

        def offered() -> set[str]:
            return {binding.binding.description for binding in app.screen.active_bindings.values()}

        assert not {"Moment", "Zoom", "Peak", "Level"} & offered()
        assert "Make report" not in offered()
        await app.about(pilot, recorded())
        assert {"Moment", "Zoom", "Peak", "Make report"} <= offered()
        await pressed(pilot, "v", "v")
        assert {"Level"} == {"Moment", "Zoom", "Peak", "Level"} & offered()


async def test_without_a_record_it_says_how_to_make_one() -> None:
    app = Tab(Subject(session(), SPEC, 0, can_ask=True))
    async with app.run_test(size=COMPACT) as pilot:
        text = await pressed(pilot)
        assert "Press n to make it" in text
        assert "timeline │ peaks" in text
        await pressed(pilot, "n", "right", "plus", "h", "home", "down", "enter", "right_square_bracket")
        assert app.asked == [("make_report", ("memory", SPEC, 0)), ("step_cell", (1,))]
        assert len(app.screen_stack) == 1
        assert "305" in await pressed(pilot, "v"), "peaks need no record"


async def test_without_any_cell_every_view_says_what_to_do() -> None:
    app = Tab(Subject(SessionState()))
    async with app.run_test(size=COMPACT) as pilot:
        assert "Choose cells in Configure" in await pressed(pilot)
        assert "No peaks yet" in await pressed(pilot, "v")
        assert "Choose cells in Configure" in await pressed(pilot, "v")


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
