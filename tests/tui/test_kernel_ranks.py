"""The view of the Kernels tab over ranks: communication beside compute, lines of time, a rank's all-gathers."""

from __future__ import annotations

import pytest

from cs336_tui.export.subjects.kernel_use import shades
from cs336_tui.tui.dialogs.windows import Reader
from cs336_tui.tui.tabs import kernel_sheets
from cs336_tui.tui.widgets.lines import width_of
from tests.made_kernels import a_kernel_report
from tests.made_ranks import a_traffic_report
from tests.tui.test_kernels import COMPACT, made, showing, turn_to


async def test_ranks_stand_above_their_lines_of_time_and_enter_opens_one() -> None:
    async with showing(made(a_traffic_report()), COMPACT) as (pilot, pane, app):
        text = await turn_to(pilot, pane, "ranks")
        assert "25.0 to 50.0 % of a rank's communication is beside compute." in text
        assert "2 of 4 all-gathers ended before they were needed" in " ".join(text.split())
        rows = text.splitlines()
        above, below = (next(row for row in rows if f"rank 1 {what}" in row) for what in ("computes", "communicates"))
        half = len("rank 1 communicates ") + 29
        assert above.rstrip().endswith("█" * 29 + "·" * 29)
        assert below.index("█") < below.index("░") == half
        await pilot.press("down", "enter")
        assert isinstance(app.screen, Reader)
        shown = "\n".join(str(row) for row in ranks_lines(1))
        assert "/traces/rank1.json.gz" in shown
        assert "ended 250.0 µs before its backward" in shown
        assert "1 all-gather whose module" in shown


def ranks_lines(rank: int) -> list[str]:
    return ["".join(span.text for span in row) for row in kernel_sheets.rank_detail(a_traffic_report(), rank, 76)]


async def test_a_step_of_one_rank_has_no_such_view() -> None:
    async with showing(made(a_kernel_report()), COMPACT) as (pilot, pane, app):
        assert " ranks " not in pane.text
        await turn_to(pilot, pane, "gaps")
        await pilot.press("v")
        assert pane.view == "cells"
        pane.view = "ranks"
        app.subject = made(a_kernel_report(launches=7))
        pane.show(app.subject)
        assert pane.view == "kernels"


@pytest.mark.parametrize("width", [30, 78, 198])
def test_lines_of_time_fit(width: int) -> None:
    report = a_traffic_report(ranks=8)
    assert all(width_of(row) <= width for row in kernel_sheets.timelines(report, width))
    assert all(width_of(row) <= max(width, 60) for row in kernel_sheets.rank_detail(report, 7, width)[2:])


def test_a_line_of_time_of_another_length_has_the_same_shares() -> None:
    assert shades((1.0, 0.0), 6) == "███···"
    assert shades((1.0, 0.0, 1.0), 2) == "▓▓"
    assert shades((0.25,) * 7, 3) == "░░░"
    assert shades((), 0) == ""


def test_ranks_that_did_not_communicate_say_so() -> None:
    alone = a_traffic_report(communication_ns=0, overlapped_ns=0, operations={}, all_gathers=())
    assert kernel_sheets.ranks_sheet(alone).lead == "No communication between ranks in this step."
    assert "gathers in time" not in [column.header for column in kernel_sheets.ranks_sheet(alone).table.columns]
