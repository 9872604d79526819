"""The Kernels tab's view over all cells."""

from __future__ import annotations

import re

import msgspec
import pytest

from cs336_tui.session.state import SessionState
from cs336_tui.tui.configure import pane as kernels_pane
from cs336_tui.tui.dialogs.windows import Reader
from cs336_tui.tui.tabs.report import Subject
from tests.analysis.test_kernel_cells import TRAIN, a_session, report, timed, train_state
from tests.made_kernels import GEMM, STEP, a_kernel_report
from tests.samples import a_spec
from tests.session.made import Cell, cell
from tests.tui.test_kernels import COMPACT, LOWER_PANEL, WIDE, showing, turn_to

FORWARD = a_spec(pass_="forward", context_length=512)
"""A cell without a profile."""


def two_cells() -> SessionState:
    cells = [Cell(TRAIN, status=None), Cell(FORWARD, status=None)]
    phases = {
        "zero_grad": (0.0001,),
        "forward": (0.0004,),
        "loss": (0.0,),
        "backward": (0.0006,),
        "optimizer": (0.0003,),
    }
    events = [*timed(0, phases), *timed(1, {"forward": (0.25,)}), *report(a_kernel_report(TRAIN))]
    return a_session(*events, cells=cells)


@pytest.mark.parametrize("size", [COMPACT, LOWER_PANEL, WIDE, (40, 10), (12, 3)])
async def test_every_cell_has_its_rows_in_every_room(size: tuple[int, int]) -> None:
    async with showing(Subject(two_cells(), TRAIN), size) as (pilot, pane, _):
        text = await turn_to(pilot, pane, "cells")
        assert all(len(row) <= size[0] for row in text.splitlines())
        if size[0] >= COMPACT[0]:
            rows = [row.split() for row in text.splitlines() if row.split()[:1] in (["128"], ["512"])]
            assert [row[:3] for row in rows] == [["128", "train", p] for p in ("fwd", "fwd+bwd", "step")] + [
                ["512", "fwd", "fwd"]
            ]


async def test_profiled_stands_beside_timed_with_top_kernel_and_shares() -> None:
    async with showing(Subject(two_cells(), TRAIN), WIDE) as (pilot, pane, _):
        rows = (await turn_to(pilot, pane, "cells")).splitlines()
        assert "Every row: size small, precision fp32, batch 4, device cuda:0" in rows[1]
        heading = next(row for row in rows if "top kernel" in row)
        assert heading.split("  ")[-1].strip() == "top kernel"
        forward = next(row for row in rows if "train" in row)
        assert forward.split()[3:7] == ["0.4000", "374", "-6.5", "416"], "ms timed; µs of kernels, less timed, the span"
        assert "sm90_xmma_gemm" in forward
        without = next(row for row in rows if row.split()[:1] == ["512"])
        assert "250.0" in without
        assert without.split()[-3:] == ["–", "–", "–"]


async def test_timed_profiled_and_their_difference_fit_80_columns() -> None:
    async with showing(Subject(two_cells(), TRAIN), COMPACT) as (pilot, pane, _):
        rows = (await turn_to(pilot, pane, "cells")).splitlines()
        forward = next(row for row in rows if "train" in row).split()
        assert forward[:6] == ["128", "train", "fwd", "0.4000", "374", "-6.5"]
        assert "sm90" in forward[-1]


async def test_a_cell_without_a_report_has_this_view_too() -> None:
    async with showing(Subject(two_cells(), FORWARD, can_ask=True), COMPACT) as (pilot, pane, _):
        assert "Press n to make it" in pane.text
        assert "cells  v" in pane.text
        await pilot.press("v")
        assert pane.view == "cells"
        assert "train" in pane.text
        await pilot.press("v")
        assert "Press n to make it" in pane.text


async def test_without_any_profile_there_is_no_such_view() -> None:
    async with showing(Subject(a_session(cells=[cell([0.1])]), a_spec()), COMPACT) as (pilot, pane, _):
        assert "cells  v" not in pane.text
        await pilot.press("v")
        assert "No report for this cell in this session" in pane.text


async def test_enter_opens_all_figures_with_the_kernel_in_full() -> None:
    async with showing(Subject(train_state(), TRAIN), WIDE) as (pilot, pane, app):
        await turn_to(pilot, pane, "cells")
        await pilot.press("down", "down", "enter")
        await pilot.pause()
        assert isinstance(app.screen, Reader)
        text = app.screen.query_one("Rows").text  # type: ignore[attr-defined]
        assert GEMM in text.replace("\n", "").replace("  ", "")
        rows = dict(re.split(r"  +", row.strip())[:2] for row in text.splitlines() if "  " in row.strip())
        assert rows["same as forward"] == "yes"
        assert rows["kernels µs"] == "836"
        assert rows["matmul %"] == "71.9"
        assert rows["launches or calls"] == "39"


async def test_the_table_is_copied_whole() -> None:
    async with showing(Subject(two_cells(), FORWARD), COMPACT) as (pilot, _pane, app):
        await pilot.press("v", "c")
        assert "Kernels over cells" in app.clipboard
        assert "Every row: size small" in app.clipboard
        assert sum(row.startswith(("| 128", "| 512")) for row in app.clipboard.splitlines()) == 4


async def test_a_new_profile_is_taken_up() -> None:
    async with showing(Subject(two_cells(), TRAIN), WIDE) as (pilot, pane, app):
        await turn_to(pilot, pane, "cells")
        groups = tuple(group for group in STEP if group.phase == "forward")
        for event in report(a_kernel_report(FORWARD, groups=groups)):
            app.subject.state.apply(event)
        pane.show(app.subject)
        await pilot.pause()
        assert "–  –" not in next(row for row in pane.text.splitlines() if "512" in row).replace("fp32", "")


async def test_of_many_cells_it_is_made_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_pane, "_AT_ONCE", 1)
    async with showing(Subject(two_cells(), TRAIN), WIDE) as (pilot, pane, _):
        pane.view = "cells"
        pane.show(pane.subject)
        assert "working out" in pane.text or "sm90_xmma" in pane.text
        while "sm90_xmma" not in pane.text:
            await pilot.pause()


async def test_another_session_is_another_table() -> None:
    async with showing(Subject(two_cells(), TRAIN), WIDE) as (pilot, pane, _):
        await turn_to(pilot, pane, "cells")
        other = msgspec.structs.replace(TRAIN, context_length=1024)
        pane.show(Subject(a_session(*report(a_kernel_report(other))), other))
        assert "1024" in pane.text
        assert "512" not in pane.text
