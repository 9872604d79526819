"""A session of collectives on the screen: its columns, its curve of busbw, and what Live and details leave out."""

from __future__ import annotations

from pathlib import Path

import pytest

from cs336_tui.analysis.collectives import Curve, Point
from cs336_tui.analysis.published import published
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.spec import CellSpec
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.charts.roofline import bandwidth_lines
from cs336_tui.tui.tabs.cell_detail import cell_detail
from cs336_tui.tui.tabs.kernels import KernelsPane
from cs336_tui.tui.tabs.live import live_lines
from cs336_tui.tui.tabs.memory import MemoryPane
from cs336_tui.tui.tabs.precision import PrecisionPane
from cs336_tui.tui.tabs.report import ReportPane, Subject
from tests.session.made import Cell, events_of, results_of, session_of
from tests.tui.one_pane import showing
from tests.tui.watched import SMALL, WIDE, log_of, text, until

TIMES_S = {"1MB": 0.001, "10MB": 0.004, "100MB": 0.02}
OTHERS = ("pass", "tokens/s", "FLOP/s", "ctx", "batch")


def specs(**choices: object) -> tuple[CellSpec, ...]:
    several = {"sizes": tuple(TIMES_S), "ranks": (2, 4), "devices": ("cpu",)}
    return sweep_from(**{"workload": "collective"} | several | choices).cells()


def cells(**choices: object) -> tuple[Cell, ...]:
    return tuple(Cell(spec, [TIMES_S[spec.size] * spec.ranks / 2] * 12) for spec in specs(**choices))


async def curve_after(key: str, folder: Path, size: tuple[int, int]) -> str:
    """The screen once it shows the curve of busbw, after a key in a replayed session of collectives."""
    app = Cs336App(replay=log_of(events_of(*cells()), folder), speed=0)
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda _: not app.run_in_progress)
        await pilot.press(key)
        return await until(pilot, lambda shown: "busbw of all-reduce" in shown)


async def test_results_have_the_columns_of_collectives_and_the_curve_below(tmp_path: Path) -> None:
    shown = await curve_after("4", tmp_path, SMALL)
    heading = next(row for row in shown.splitlines() if " operation " in row)
    for title in ("size", "ranks", "mean ms", "busbw", "verdict"):
        assert title in heading
    assert not any(title in heading for title in OTHERS)
    # 100 MB in 20 ms over 2 ranks are 5 GB/s; over 4 in 40 ms 2.5 GB/s x 6/4
    rows = [row.split() for row in shown.splitlines() if " 100MB " in row and "all-reduce" in row]
    assert [("5" in row, "3.75" in row) for row in rows] == [(True, False), (False, True)]
    assert "●4" in shown
    assert "GB/s" in shown


async def test_the_roofline_of_collectives_is_their_curve(tmp_path: Path) -> None:
    assert "100MB" in await curve_after("l", tmp_path, WIDE)


def test_curves_are_of_the_chosen_operation_and_higher_where_faster() -> None:
    results = results_of(*cells(collectives=("all-reduce", "broadcast")))
    chosen = next(spec for spec in specs() if spec.ranks == 4)
    heading, *rows = text(bandwidth_lines(results, chosen, (), 70, 14)).splitlines()
    assert "busbw of all-reduce" in heading
    marked = [row.index("●") for row in rows if "●" in row]
    assert len(marked) >= 3
    assert marked == sorted(marked, reverse=True)  # the smaller the size, the lower it is
    assert "1MB" in rows[-1]


def test_published_curves_stand_beside_ones_own() -> None:
    (chosen, *_) = specs()
    shown = text(bandwidth_lines(results_of(*cells()), chosen, published(), 100, 16))
    assert "○ published on CPU of a machine with H100s" in shown
    assert "PCIe" not in shown
    assert "published" not in text(bandwidth_lines(results_of(*cells()), chosen, (), 100, 16))


def test_curves_that_differ_in_more_than_ranks_are_named() -> None:
    several = (*cells(), *cells(precisions=("bf16",)))
    shown = text(bandwidth_lines(results_of(*several), several[0].spec, (), 100, 16))
    assert "bf16" in shown.splitlines()[0] + shown.splitlines()[1]


@pytest.mark.parametrize("size", [(10, 3), (70, 4), (23, 20)])
def test_without_room_or_two_sizes_there_is_no_curve(size: tuple[int, int]) -> None:
    chosen = specs()[0]
    assert bandwidth_lines(results_of(*cells()), chosen, (), *size) == []
    assert bandwidth_lines(results_of(*cells(sizes=("1MB",))), chosen, (), 70, 14) == []
    assert bandwidth_lines((), chosen, (), 70, 14) == []


def test_live_and_details_speak_of_messages_alone() -> None:
    state = session_of(Cell(specs()[0], [0.001] * 12))
    (cell,) = state.cells.values()
    shown = text(live_lines(state, cell, 60, 30)) + text(cell_detail(state, cell, 80))
    assert "algbw 1, busbw 1 GB/s" in shown
    for word in ("forward", "tokens", "parameters", "context", "Mean of each phase"):
        assert word not in shown


@pytest.mark.parametrize("pane", [KernelsPane, MemoryPane, PrecisionPane])
async def test_reports_of_a_collective_are_not_offered(pane: type[ReportPane]) -> None:
    state = session_of(*cells())
    async with showing(pane(), Subject(state, state.cells[0].spec, 0, can_ask=True)) as (_, shown, _app):
        assert "A collective has no model" in shown.text
        assert "Press n" not in shown.text


async def test_a_message_without_room_is_told_and_not_tried_again() -> None:
    spec = specs()[0]
    async with showing(MemoryPane(), Subject(session_of(Cell(spec, status="oom")), spec, 0)) as (_, pane, _app):
        assert "Cells of several ranks are not run again" in " ".join(pane.text.split())


def test_points_between_two_sizes_lie_on_a_line() -> None:
    from cs336_tui.tui.charts.roofline import _between

    curve = Curve("", specs()[0], (Point("1MB", 10**6, 1e9), Point("100MB", 10**8, 4e9)))
    assert _between(curve.points, 1e7) == pytest.approx(2e9)
    assert _between(curve.points, 9e5) == _between(curve.points, 2e8) == 0
