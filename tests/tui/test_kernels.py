"""The Kernels tab: views of a report, of ranks and of all cells; sorting, filters, search; text without a report."""

import re
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from cs336_tui.analysis.kernels import by_range
from cs336_tui.config.spec import recorded_spec
from cs336_tui.events.events import ReportStage, ReportStarted
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.export.subjects.kernel_use import shades
from cs336_tui.session.state import SessionState, fold
from cs336_tui.stats.quantities import scale, time_text
from cs336_tui.tui.dialogs.windows import Reader
from cs336_tui.tui.tabs import kernel_sheets
from cs336_tui.tui.tabs import kernels as kernels_pane
from cs336_tui.tui.tabs.kernel_listing import Selection, kernels_sheet, kind_role, phases, select, still_valid
from cs336_tui.tui.tabs.kernels import VIEWS, KernelsPane
from cs336_tui.tui.tabs.report import Subject
from cs336_tui.tui.widgets.columns import Laid, middle
from cs336_tui.tui.widgets.lines import width_of
from tests.analysis.test_kernel_cells import TRAIN, a_session, parts_of, report, timed, train_state
from tests.made_kernels import ADD, GEMM, SOFTMAX, STEP, a_group, a_kernel_report, a_prediction_for, an_operator_report
from tests.made_ranks import a_traffic_report
from tests.samples import a_spec, report_events, state_of
from tests.session.made import Cell, cell
from tests.tui import one_pane
from tests.tui.one_pane import OnePane, pressed, read
from tests.tui.watched import absent, text

COMPACT, WIDE, LOWER_PANEL = (78, 21), (198, 20), (118, 8)
"""Sizes of the pane: at 80x24, at 200x60, and below the panes of 120x40."""


def made(report: KernelReport, **more: Any) -> Subject:
    return Subject(state_of(report_events(report)), report.spec, **more)


def showing(
    subject: Subject, size: tuple[int, int] = COMPACT
) -> AbstractAsyncContextManager[tuple[Pilot[None], KernelsPane, OnePane[KernelsPane]]]:
    return one_pane.showing(KernelsPane(), subject, size)


def table(pane: KernelsPane) -> list[str]:
    """The rows under the heading of the kernels view."""
    lines = pane.text.splitlines()
    heading = next(place for place, text in enumerate(lines) if text.lstrip().startswith("Time %"))
    return lines[heading + 1 :]


async def turn_to(pilot: Pilot[None], pane: KernelsPane, view: str) -> str:
    while pane.view != view:
        await pilot.press("v")
    return pane.text


def with_flops(report: KernelReport) -> KernelReport:
    return msgspec.structs.replace(report, prediction=a_prediction_for(report.spec))


@pytest.mark.parametrize("size", [COMPACT, LOWER_PANEL, WIDE, (40, 10), (12, 3)])
async def test_every_view_is_drawn_in_every_room(size: tuple[int, int]) -> None:
    report = msgspec.structs.replace(a_traffic_report(), note="a note", trace="/tmp/trace.json.gz")
    async with showing(made(with_flops(report)), size) as (pilot, pane, _):
        for view in VIEWS:
            assert pane.view == view
            assert all(len(text) <= size[0] for text in pane.text.splitlines())
            await pilot.press("v")
        await pilot.press("V")
        assert pane.view == VIEWS[-1]


@pytest.mark.parametrize("size", [COMPACT, LOWER_PANEL, WIDE])
async def test_kernels_come_with_the_largest_total_first(size: tuple[int, int]) -> None:
    async with showing(made(a_kernel_report()), size) as (_, pane, _app):
        assert not absent(pane.text, "39 launches", "835.5 µs of 928.3 µs span", "idle 10.0 %", "named 98.9 %")
        assert not absent(pane.text, "whole step · 9 kernels", "Total µs▾")
        assert table(pane)[0].split()[:4] == ["62.9", "525.5", "13", "40.42"]
        assert "sm90_xmma_gemm_f32f" in table(pane)[0]
        if size == WIDE:
            heading = next(text for text in pane.text.splitlines() if "Time %" in text)
            words = "Time % Total µs▾ Instances Avg µs Med µs Min µs Max µs StdDev µs Kind Name"
            assert heading.split() == words.split()
            assert "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32" in pane.text


async def test_each_kernel_has_a_bar_of_its_share_in_the_colour_of_its_kind() -> None:
    report = a_kernel_report()
    found = select(report, Selection())
    for row, line in zip(found, Laid(kernels_sheet(report, Selection(), found), 118).lines(0, len(found)), strict=True):
        drawn = line[1]
        assert drawn.role == kind_role(row.kind)
        assert abs(drawn.text.count("█") - 8 * row.total_ns / found[0].total_ns) <= 1
        assert width_of(line) <= 118


async def test_a_column_that_is_sorted_by_is_marked_and_in_sight_and_can_be_turned_round() -> None:
    async with showing(made(a_kernel_report())) as (pilot, pane, _):
        assert "Instances▾" in await pressed(pilot, "greater_than_sign")
        assert [int(text.split()[2]) for text in table(pane)] == [13, 6, 5, 4, 4, 3, 2, 1, 1]
        assert "Instances▴" in await pressed(pilot, "o")
        assert [int(text.split()[2]) for text in table(pane)] == [1, 1, 2, 3, 4, 4, 5, 6, 13]
        assert "StdDev µs▾" in await pressed(pilot, *["greater_than_sign"] * 5)
        assert "Name▴" in await pressed(pilot, *["less_than_sign"] * 8)
        names = [row.short for row in select(a_kernel_report(), pane.selection)]
        assert names == sorted(names, key=str.casefold)


async def test_filters_go_together_are_always_in_sight_and_escape_drops_them() -> None:
    async with showing(made(a_kernel_report()), LOWER_PANEL) as (pilot, pane, _):
        assert "forward · 7 of 9 kernels · 374.1 µs, 44.8 % of the step" in await pressed(pilot, "f")
        while pane.selection.range != "final matmul":
            await pilot.press("y")
        assert "forward · final matmul · 1 of 9 kernels · 13.00 µs, 1.6 % of the step" in pane.text
        assert table(pane)[0].split()[0] == "100.0", "shares are of what is selected"
        assert "forward · softmax · softmax · 1 of 9 kernels · 11.00 µs" in await pressed(pilot, "Y", "T")
        assert "whole step · 9 kernels" in await pressed(pilot, "escape")


def test_phases_can_be_asked_for_alone_and_forward_to_backward_together() -> None:
    report = a_kernel_report()
    assert phases(report) == (
        None, "forward", "loss", "backward", ("forward", "loss", "backward"), "optimizer"
    )  # fmt: skip
    together = select(report, Selection(phase=("forward", "loss", "backward")))
    assert sum(row.total_ns for row in together) == sum(sum(g.durations_ns) for g in STEP if g.phase != "optimizer")
    assert phases(an_operator_report()) == (None, "forward", "loss", "backward")


async def test_a_search_looks_at_full_names_too_and_nothing_found_says_what_to_do() -> None:
    async with showing(made(a_kernel_report())) as (pilot, _pane, app):
        assert not absent(await pressed(pilot, "slash", *"AT::Native", "enter"), "/AT::Native", "4 of 9 kernels")
        await pressed(pilot, "slash")
        assert app.screen.query_one(Input).value == "AT::Native"
        text = await pressed(pilot, "ctrl+u", *"nonsense", "enter")
        assert "None of the 9 kernels is selected. Esc shows all" in text
        assert "whole step · 9 kernels" in await pressed(pilot, "enter", "down", "escape")


async def test_enter_tells_the_full_name_every_figure_and_where_it_runs() -> None:
    async with showing(made(a_kernel_report(device_name="Some GPU")), (100, 40)) as (pilot, pane, _app):
        text = await read(pilot, "f", "enter")
        assert GEMM in "".join(text.split())
        for seen in ("In forward", "In the whole step", "13", "backward · feed-forward", "4× 166.0 µs, 31.6 %",
                     "Some GPU", "40.4 µs ± 8.4 µs (sample std)"):  # fmt: skip
            assert seen in text
        await pressed(pilot, "escape")
        assert pane.has_focus


async def test_kinds_say_the_matmul_shares_in_words_and_lead_to_their_kernels() -> None:
    async with showing(made(a_kernel_report()), (118, 21)) as (pilot, pane, _):
        text = await turn_to(pilot, pane, "kinds")
        assert (
            "Matrix multiplication takes 75.0 % of forward, 82.8 % of forward + backward, 71.9 % of a full step."
            in text
        )
        row = next(text for text in text.splitlines() if text.startswith("matrix multiply"))
        assert row.split()[2:] == (
            ["280.50", "75.0", "%", "–", "320.20", "93.3", "%", "–", "600.70", "82.8", "%", "600.70", "71.9", "%"]
        )
        assert not absent(text, "Top kernel of forward: sm90_xmma_gemm", "68.3 %, 255.5 µs, 7 times")
        assert "13 times, 7 of them in forward" in " ".join(text.split())
        await pilot.press("down", "enter")
        assert pane.view == "kernels"
        assert "whole step · softmax · 2 of 9 kernels" in pane.text


def test_kinds_of_one_phase_alone_are_shown_once() -> None:
    groups = tuple(group for group in STEP if group.phase == "backward")
    sheet = kernel_sheets.kinds_sheet(a_kernel_report(a_spec(pass_="backward"), groups=groups))
    assert sheet.lead == "Matrix multiplication takes 93.3 % of backward."
    assert [column.header for column in sheet.table.columns] == ["kind", "step µs"]


async def test_parts_hold_their_backward_and_lead_to_their_kernels() -> None:
    async with showing(made(a_kernel_report()), (118, 21)) as (pilot, pane, _):
        text = await turn_to(pilot, pane, "parts")
        rows = {text[:18].strip(): text[18:].split() for text in text.splitlines()}
        assert rows["feed-forward"][:5] == ["29.8", "83.00", "166.00", "249.00", "6"]
        assert "█" in rows["feed-forward"][5]
        assert rows["optimizer"][1:4] == ["110.20", "0.00", "110.20"]
        assert "forward: everything but backward, loss and optimizer included" in pane.text
        assert rows["no named part"][3] == "9.00"
        await pilot.press(*["down"] * (len(by_range(a_kernel_report())) - 1), "enter")
        assert "whole step · no named part · 1 of 9 kernels" in pane.text


async def test_an_icicle_has_frames_as_wide_as_their_time_by_operator_and_by_stack() -> None:
    async with showing(made(a_kernel_report()), (118, 40)) as (pilot, pane, _):
        text = await turn_to(pilot, pane, "icicle")
        assert "▏step 100.0 %" in text
        assert "by operator: phase, part of the model, operator, kernel" in text
        assert "by stack: phase" in text
        assert max(map(len, text.splitlines())) <= 118


def test_attention_sets_softmax_against_matmul_in_time_and_flops() -> None:
    sheet = kernel_sheets.attention_sheet(with_flops(a_kernel_report()))
    assert sheet.lead == "Forward: softmax takes 0.44× the time of attention's matmuls with 0.025× their FLOPs."
    forward, backward, both = sheet.table.rows
    assert forward == ("forward", "25.0", "11.0", "0.44", "2.000", "0.050", "0.025", "80.00", "4.55")
    assert backward[:4] == ("backward", "50.2", "14.0", "0.279")
    assert both == ("both", "75.2", "25.0", "0.332", "6.000", "0.090", "0.015", "79.79", "3.60")


def test_attention_without_a_prediction_or_without_parts_says_so() -> None:
    unpredicted = kernel_sheets.attention_sheet(an_operator_report())
    assert "0.4× the time of attention's matmuls." in unpredicted.lead
    assert "FLOPs: unknown, the step could not be predicted" in unpredicted.table.footnotes
    assert not any("FLOP ×" in column.header for column in unpredicted.table.columns)
    for kernel, kind, part, words in (
        ("flash_fwd_kernel", "other", "attention core", "one fused kernel: no separate"),
        ("aten::bmm", "matrix multiply", "attention rest", "annotate attention core=package.module:function"),
    ):
        groups = (a_group(kernel, kind, "forward", part, (20.0,)),)
        sheet = kernel_sheets.attention_sheet(a_kernel_report(a_spec(pass_="forward"), groups=groups))
        (why,) = sheet.table.footnotes
        assert words in why
        assert ("fused" in why) == (kernel == "flash_fwd_kernel")


async def test_operators_of_a_cpu_are_called_so_and_notes_and_trace_are_on_top() -> None:
    report = an_operator_report(note="something that should be known", trace="/tmp/x/kernels.json.gz")
    async with showing(made(report)) as (_, pane, _app):
        for seen in ("16 operators by self time (CPU)", "! something that should be known", "whole step · 7 operators",
                     "trace, for ui.perfetto.dev: /tmp/x/kernels.json.gz"):  # fmt: skip
            assert seen in pane.text
        assert "idle" not in pane.text


async def test_the_table_is_copied_as_it_stands_with_all_rows_and_columns() -> None:
    async with showing(made(a_kernel_report()), LOWER_PANEL) as (pilot, pane, _app):
        await pilot.press("f")
        copied = pane.copied().make()
        assert copied.startswith("**small · ctx 128 · train-step · fp32 · cuda:0 · forward · 7 of 9 kernels")
        assert "| StdDev µs | Kind " in copied
        assert sum(text.startswith("| ") for text in copied.splitlines()) == 2 + 7
        await pilot.press("v")
        assert "Matrix multiplication takes" in pane.copied().make()
    async with showing(Subject(two_cells(), FORWARD)) as (pilot, pane, _app):
        await pilot.press("v")
        copied = pane.copied().make()
        assert not absent(copied, "Kernels over cells", "Every row: size small")
        assert sum(row.startswith(("| 128", "| 512")) for row in copied.splitlines()) == 4


async def test_without_a_report_it_says_how_to_get_one_and_its_keys_do_nothing() -> None:
    spec = a_spec()
    async with showing(Subject(fold([]), spec, can_ask=True)) as (pilot, pane, app):
        assert not absent(pane.text, "Profiles one step", "Press n to make it")
        await pilot.press("f", "y", "T", "o", "greater_than_sign", "v", "c", "enter", "slash", "escape")
        assert len(app.screen_stack) == 1
        assert pane.view == "kernels"
        asked = ReportStarted(at=1.0, report=0, kind="kernels", spec=spec)
        running = fold([asked, ReportStage(at=4.0, report=0, stage="profiling")])
        assert "profiling ... 3 s" in await app.about(pilot, Subject(running, spec))
        report = made(a_kernel_report(spec))
        assert "9 kernels" in await app.about(pilot, report)
        text = await app.about(pilot, Subject(report.state, a_spec(context_length=4096)))
        assert "9 kernels" not in text
        assert "4096" in text


async def test_another_cell_keeps_the_order_and_those_filters_that_it_can_have() -> None:
    async with showing(made(a_kernel_report()), LOWER_PANEL) as (pilot, pane, app):
        assert "optimizer · 1 of 9 kernels" in await pressed(pilot, "greater_than_sign", *["f"] * 5)
        assert "whole step · 7 operators" in await app.about(pilot, made(an_operator_report()))
        assert "Instances▾" in pane.text
    kept = Selection(phase="forward", range="head", kind="softmax", text="mm", sort="avg_ns")
    assert still_valid(an_operator_report(), kept) == msgspec.structs.replace(kept, range=None)


def test_a_sheet_makes_only_the_lines_that_are_asked_for() -> None:
    report = a_kernel_report()
    laid = Laid(kernels_sheet(report, Selection(), select(report, Selection())), 100)
    assert len(laid) == 9
    assert len(laid.lines(2, 5)) == 3
    assert laid.lines(2, 3) == laid.lines(0, 9)[2:3]


def test_a_column_has_one_unit_and_as_many_decimals_as_its_smallest_value_needs() -> None:
    assert [scale([120e6, 2e3]).text(value) for value in (120e6, 2e3)] == ["120.000", "0.002"]
    assert scale([120e6, 5e6])[:2] == ("ms", 1e6)
    assert scale([120e6, 5e6]).text(5e6) == "5.00"
    assert scale([5e6], at_least=10).unit == "µs"
    assert scale([15_779_555, 420]).text(15_779_555) == "15.780"
    assert scale([15_779_555, 420], at_least=100).text(15_779_555) == "15779.6"
    assert scale([]).text(None) == "–"
    assert [time_text(value) for value in (800, 8_000, 835_500, 153_200_000, 12_345_600_000, 0)] == [
        "0.800 µs", "8.000 µs", "835.5 µs", "153.2 ms", "12346 ms", "0.000 µs"
    ]  # fmt: skip


def test_a_long_name_is_cut_in_its_middle() -> None:
    assert middle(SOFTMAX, 20) == "void (anon…st*, int)"
    assert [len(middle(SOFTMAX, width)) for width in (0, 1, 2, 3, 10)] == [0, 1, 2, 3, 10]
    assert middle("short", 5) == "short"


async def test_a_recording_without_phases_is_told_of_as_a_whole_and_no_word_is_cut() -> None:
    spec = recorded_spec("run.json", "cuda:0")
    groups = (a_group(GEMM, "matrix multiply", "", "", (3.0,)), a_group(ADD, "elementwise", "", "", (1.0,)))
    report = a_kernel_report(spec, groups=groups, phase_spans_ns={"": 9_000})
    async with showing(made(report)) as (pilot, pane, _):
        text = await turn_to(pilot, pane, "kinds")
        assert "Matrix multiplication takes 75.0 % of the whole recording." in text
        assert not absent(text, "Top kernel of the whole recording:", "recording µs")
        assert "no phase" not in text
        await turn_to(pilot, pane, "kernels")
        pane._select(text="gemm", kind="matrix multiply")
        assert "…" not in next(row for row in pane.text.splitlines() if "whole recording" in row)


FORWARD = a_spec(pass_="forward", context_length=512)
"""A cell without a profile."""


def two_cells() -> SessionState:
    cells = [Cell(TRAIN, status=None), Cell(FORWARD, status=None)]
    times_s = {"zero_grad": 0.0001, "forward": 0.0004, "loss": 0.0, "backward": 0.0006, "optimizer": 0.0003}
    phases = {phase: (time_s,) for phase, time_s in times_s.items()}
    events = [*timed(0, phases), *timed(1, {"forward": (0.25,)}), *report(a_kernel_report(TRAIN))]
    return a_session(*events, cells=cells)


@pytest.mark.parametrize("size", [COMPACT, LOWER_PANEL, WIDE, (40, 10), (12, 3)])
async def test_every_cell_has_its_rows_in_every_room(size: tuple[int, int]) -> None:
    async with showing(Subject(two_cells(), TRAIN), size) as (pilot, pane, _):
        lines = (await turn_to(pilot, pane, "cells")).splitlines()
        assert all(len(row) <= size[0] for row in lines)
        if size[0] >= COMPACT[0]:
            rows = [row.split() for row in lines if row.split()[:1] in (["128"], ["512"])]
            named = [["128", "train", part] for part in ("fwd", "fwd+bwd", "step")]
            assert [row[:3] for row in rows] == [*named, ["512", "fwd", "fwd"]]
            assert rows[0][3:6] == ["0.4000", "374", "-6.5"], "ms timed, µs of kernels, less timed"
            assert "sm90" in rows[0][-1]
        if size == WIDE:
            assert "Every row: size small, precision fp32, batch 4, device cuda:0" in lines[1]
            heading = next(row for row in lines if "top kernel" in row)
            assert heading.split("  ")[-1].strip() == "top kernel"
            assert rows[0][6] == "416", "the span, µs"
            assert "sm90_xmma_gemm" in rows[0][-1]
            assert "250.0" in rows[-1]
            assert rows[-1][-3:] == ["–", "–", "–"]


async def test_a_cell_without_a_report_has_this_view_too() -> None:
    async with showing(Subject(two_cells(), FORWARD, can_ask=True)) as (pilot, pane, app):
        assert not absent(pane.text, "Press n to make it", "cells  v")
        await pilot.press("v")
        assert pane.view == "cells"
        assert "train" in pane.text
        assert "Press n to make it" in await pressed(pilot, "v")
        without = Subject(a_session(cells=[cell([0.1])]), a_spec())
        assert "cells  v" not in await app.about(pilot, without), "there is no profile at all"
        assert "No report for this cell in this session" in await pressed(pilot, "v")


async def test_enter_opens_all_figures_with_the_kernel_in_full() -> None:
    async with showing(Subject(train_state(), TRAIN), WIDE) as (pilot, pane, _app):
        await turn_to(pilot, pane, "cells")
        text = await read(pilot, "down", "down", "enter")
        assert GEMM in text.replace("\n", "").replace("  ", "")
        rows = dict(re.split(r"  +", row.strip())[:2] for row in text.splitlines() if "  " in row.strip())
        assert rows["same as forward"] == "yes"
        assert rows["kernels µs"] == "836"
        assert rows["matmul %"] == "71.9"
        assert rows["launches or calls"] == "39"


def test_a_top_kernel_that_ran_once_ran_one_time() -> None:
    once = a_kernel_report(groups=(a_group(GEMM, "matrix multiply", "forward", "head", (6.0,)),))
    (part, *_) = parts_of(a_session(*report(once)))
    assert text(kernel_sheets.cell_detail(part, 99)).endswith("100.0 %, 1 time")


async def test_a_new_profile_is_taken_up_and_another_session_is_another_table() -> None:
    async with showing(Subject(two_cells(), TRAIN), WIDE) as (pilot, pane, app):
        await turn_to(pilot, pane, "cells")
        groups = tuple(group for group in STEP if group.phase == "forward")
        fold(report(a_kernel_report(FORWARD, groups=groups)), app.subject.state)
        pane.show(app.subject)
        await pilot.pause()
        assert "–  –" not in next(row for row in pane.text.splitlines() if "512" in row).replace("fp32", "")
        other = msgspec.structs.replace(TRAIN, context_length=1024)
        text = await app.about(pilot, Subject(a_session(*report(a_kernel_report(other))), other))
        assert "1024" in text
        assert "512" not in text


async def test_of_many_cells_it_is_made_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_pane, "_AT_ONCE", 1)
    async with showing(Subject(two_cells(), TRAIN), WIDE) as (pilot, pane, _):
        pane.view = "cells"
        pane.show(pane.subject)
        assert "working out" in pane.text or "sm90_xmma" in pane.text
        while "sm90_xmma" not in pane.text:
            await pilot.pause()


async def test_ranks_stand_above_their_lines_of_time_and_enter_opens_one() -> None:
    async with showing(made(a_traffic_report())) as (pilot, pane, app):
        seen = await turn_to(pilot, pane, "ranks")
        assert "25.0 to 50.0 % of a rank's communication is beside compute." in seen
        assert "2 of 4 all-gathers ended before they were needed" in " ".join(seen.split())
        rows = seen.splitlines()
        above, below = (next(row for row in rows if f"rank 1 {what}" in row) for what in ("computes", "communicates"))
        half = len("rank 1 communicates ") + 29
        assert above.rstrip().endswith("█" * 29 + "·" * 29)
        assert below.index("█") < below.index("░") == half
        await pilot.press("down", "enter")
        assert isinstance(app.screen, Reader)
        shown = text(kernel_sheets.rank_detail(a_traffic_report(), 1, 76))
        assert not absent(
            shown, "/traces/rank1.json.gz", "ended 250.0 µs before its backward", "1 all-gather whose module"
        )


async def test_a_step_of_one_rank_has_no_such_view() -> None:
    async with showing(made(a_kernel_report())) as (pilot, pane, app):
        assert " ranks " not in pane.text
        await turn_to(pilot, pane, "gaps")
        await pilot.press("v")
        assert pane.view == "cells"
        pane.view = "ranks"
        await app.about(pilot, made(a_kernel_report(launches=7)))
        assert pane.view == "kernels"


def test_lines_of_time_fit_and_have_the_same_shares_in_any_length() -> None:
    report = a_traffic_report(ranks=8)
    for width in (30, 78, 198):
        assert all(width_of(row) <= width for row in kernel_sheets.timelines(report, width))
        assert all(width_of(row) <= max(width, 60) for row in kernel_sheets.rank_detail(report, 7, width)[2:])
    assert shades((1.0, 0.0), 6) == "███···"
    assert shades((1.0, 0.0, 1.0), 2) == "▓▓"
    assert shades((0.25,) * 7, 3) == "░░░"
    assert shades((), 0) == ""


def test_ranks_that_did_not_communicate_say_so() -> None:
    alone = a_traffic_report(communication_ns=0, overlapped_ns=0, operations={}, all_gathers=())
    assert kernel_sheets.ranks_sheet(alone).lead == "No communication between ranks in this step."
    assert "gathers in time" not in [column.header for column in kernel_sheets.ranks_sheet(alone).table.columns]
