"""Verdicts on the screen: computed on another thread, while nothing is timed, for cells in sight and those that end."""

import os
import threading
import time
from collections.abc import Callable
from io import BytesIO
from itertools import product
from pathlib import Path

import pytest
from textual.app import App

from cs336_tui.analysis.verdicts import judge, serve
from cs336_tui.events.events import CellFinished
from cs336_tui.events.peaks import PeakCache, peak_key
from cs336_tui.session.state import SessionState
from cs336_tui.tui import judging
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.judging import NOTHING, Assessment, JudgeProcess, Judging, assess
from cs336_tui.tui.tabs.cell_detail import cell_detail
from cs336_tui.tui.tabs.live import live_lines
from cs336_tui.tui.tabs.results import ResultsPane
from cs336_tui.tui.tabs.status import trust, trust_lines, verdict
from tests.loading import python
from tests.made_peaks import made_peak
from tests.samples import ENVIRONMENT, START, a_spec, cell_start, session_start, state_of, steps
from tests.session.made import Cell, events_of, session_of
from tests.tui.kept_sessions import STOPPED, keep
from tests.tui.watched import (
    SMALL,
    Benches,
    absent,
    comes,
    demo,
    in_the_middle,
    on_screen,
    press,
    replaying,
    text,
    until,
)

STEADY_S = [0.1 + 0.0001 * (step * 7 % 5) for step in range(30)]
DRIFTING_S = [0.1 * (1 + 0.004 * step) for step in range(30)]
JUDGES = """
import sys
from cs336_tui.events.peaks import PeakCache
from cs336_tui.tui.judging import assess
from tests.samples import a_spec
from tests.session.made import Cell, session_of

state = session_of(Cell(a_spec(), [0.1] * 30))
assert assess(state, state.cells[0], PeakCache()).judgement.names == ("steady",)
print(*sorted({"numpy", "hashlib", "importlib.metadata"} & sys.modules.keys()))
"""


class Watched(App[None]):
    """An app that only judges cells and counts its assessments."""

    def __init__(self, folder: Path, busy: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self.found = 0
        self.judging = Judging(self, busy, self._count, PeakCache(folder))

    def _count(self) -> None:
        self.found += 1


async def judged(folder: Path, state: SessionState, number: int = 0) -> Assessment:
    """The assessment of a cell, worked out on the thread."""
    app, cell = Watched(folder), state.cells[number]
    async with app.run_test() as pilot:
        return await comes(pilot, lambda: app.judging.of(state, cell))


async def test_a_cell_is_judged_on_a_thread_of_its_own_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = session_of(Cell(a_spec(), STEADY_S))
    threads: list[threading.Thread] = []
    real = judging.assess

    def watched(*asked: object) -> Assessment:
        threads.append(threading.current_thread())
        return real(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(judging, "assess", watched)
    app = Watched(tmp_path)
    async with app.run_test() as pilot:
        assert app.judging.of(state, state.cells[0]) is None
        found = await comes(pilot, lambda: app.judging.of(state, state.cells[0]))
        assert found.judgement.names == ("steady",)
        assert app.judging.of(state, state.cells[0]) is found
        await pilot.pause(0.05)
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def test_it_waits_while_a_cell_is_timed_but_not_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "WAIT_S", 0.5)
    state = session_of(Cell(a_spec(), STEADY_S), Cell(a_spec(batch_size=8), STEADY_S))
    busy = True
    app = Watched(tmp_path, lambda: busy)
    async with app.run_test() as pilot:
        asked_at = time.monotonic()
        app.judging.of(state, state.cells[0])
        await comes(pilot, lambda: app.found)
        assert time.monotonic() - asked_at >= 0.5
        app.judging.of(state, state.cells[1])
        busy = False
        asked_at = time.monotonic()
        app.judging.go_on()
        await comes(pilot, lambda: app.found == 2)


async def test_what_is_out_of_sight_again_is_not_judged(tmp_path: Path) -> None:
    state = session_of(*(Cell(a_spec(batch_size=size), STEADY_S) for size in (1, 2)))
    busy = True
    app = Watched(tmp_path, lambda: busy)
    async with app.run_test() as pilot:
        app.judging.next_frame()
        app.judging.of(state, state.cells[0])
        app.judging.next_frame()
        app.judging.of(state, state.cells[1])
        app.judging.next_frame()
        busy = False
        app.judging.go_on()
        await comes(pilot, lambda: app.found)
        await pilot.pause(0.05)
        assert app.judging.known(state.cells[1]) is not None
        assert app.judging.known(state.cells[0]) is None


async def test_a_cell_that_ends_out_of_sight_is_judged_once_nothing_is_timed(tmp_path: Path) -> None:
    state = session_of(*(Cell(a_spec(batch_size=size), STEADY_S) for size in (1, 2)))
    busy = True
    app = Watched(tmp_path, lambda: busy)
    async with app.run_test() as pilot:
        for cell in state.cells.values():
            app.judging.take_end(state, cell)
            app.judging.next_frame()
        await pilot.pause(0.05)
        assert app.found == 0
        busy = False
        app.judging.go_on()
        await comes(pilot, lambda: app.judging.is_settled)
        assert app.found == 2
        assert all(app.judging.known(cell) for cell in state.cells.values())


async def test_cells_that_end_out_of_sight_are_judged_one_by_one_while_another_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "WAIT_S", 0.3)
    state = session_of(*(Cell(a_spec(batch_size=size), STEADY_S) for size in (1, 2)))
    app = Watched(tmp_path, lambda: True)
    async with app.run_test() as pilot:
        began_at = time.monotonic()
        for cell in state.cells.values():
            app.judging.take_end(state, cell)
        await comes(pilot, lambda: app.found == 1)
        assert time.monotonic() - began_at >= 0.3
        await comes(pilot, lambda: app.found == 2)
        assert time.monotonic() - began_at >= 0.6


async def test_finished_rows_of_a_resumed_session_are_judged_before_their_tab_is_opened(tmp_path: Path) -> None:
    ended = [event for number in (0, 1) for event in (*cell_start(number), *steps(number, (0.4,), DRIFTING_S))]
    ends = [CellFinished(at=START + 90, cell=number, status="ok") for number in (0, 1)]
    ends.append(CellFinished(at=START + 99, cell=2, status="cancelled", error="stopped"))
    specs = [a_spec(context_length=length) for length in (128, 256, 512)]
    keep(tmp_path, STOPPED, [*session_start(specs), *ended, *ends])
    async with on_screen(Cs336App(Benches(), session_dir=tmp_path), size=SMALL) as (app, pilot):
        await press(pilot, "7", seen="2026-11-18")
        await press(pilot, "u", seen="cell 3/3")
        await comes(pilot, lambda: app.judging.is_settled)
        cells = app.live.state.cells
        assert all(app.judging.known(cells[number]) for number in (0, 1))
        await pilot.press("4")
        await pilot.pause()
        rows = app.query_one(ResultsPane).text
        assert rows.count("drifting") == 2
        assert "…" not in rows


async def test_of_a_long_session_only_rows_in_sight_are_judged(tmp_path: Path) -> None:
    cells = [Cell(a_spec(batch_size=1 + number), STEADY_S[:12]) for number in range(400)]
    async with on_screen(replaying(events_of(*cells), tmp_path), "at its end", size=SMALL) as (app, pilot):
        await pilot.press("4", "home")
        await until(pilot, lambda shown: shown.count("steady") >= 15 and "…" not in shown.split("1–")[-1])
        state = app.live.state
        found = [cell.cell for cell in state.cells.values() if app.judging.known(cell) is not None]
        assert {0, 1, 2} <= set(found)
        assert len(found) < 60
        await press(pilot, "end", seen=lambda shown: "of 400" in shown and shown.count("steady") >= 15)
        assert app.judging.known(state.cells[399]) is not None
        assert app.judging.known(state.cells[200]) is None


async def test_what_there_is_nothing_to_say_of_is_never_worked_out(tmp_path: Path) -> None:
    state = session_of(Cell(a_spec(), status="oom"), Cell(a_spec(batch_size=8), status=None))
    app = Watched(tmp_path)
    async with app.run_test():
        for cell in state.cells.values():
            assert app.judging.of(state, cell) is NOTHING
            assert verdict(cell, NOTHING).text == "–"


async def test_a_cell_that_is_run_again_is_judged_again(tmp_path: Path) -> None:
    state = session_of(Cell(a_spec(), DRIFTING_S))
    cell, app = state.cells[0], Watched(tmp_path)
    async with app.run_test() as pilot:
        await comes(pilot, lambda: app.judging.of(state, cell))
        state_of([*cell_start(0), *steps(0, (), STEADY_S), CellFinished(at=START + 99, cell=0, status="ok")], state)
        assert app.judging.known(cell) is None
        assert (await comes(pilot, lambda: app.judging.of(state, cell))).judgement.names == ("steady",)


async def test_another_peak_changes_the_share_and_keeps_the_verdict_in_sight(tmp_path: Path) -> None:
    state = session_of(Cell(a_spec(), STEADY_S))
    cell, app = state.cells[0], Watched(tmp_path)
    async with app.run_test() as pilot:
        before = await comes(pilot, lambda: app.judging.of(state, cell))
        assert not before.peak_is_measured
        app.judging.take_peak(peak_key(ENVIRONMENT, "cuda:0", "fp32", 32), made_peak(50e12))
        assert app.judging.of(state, cell) is before  # until there is better
        await comes(pilot, lambda: (now := app.judging.of(state, cell)) is not None and now.peak_is_measured)
        after = app.judging.of(state, cell)
        assert after.share_of_peak(0.1) == pytest.approx(after.flops / 0.1 / 50e12)


async def test_what_breaks_while_judging_is_told_and_never_taken_for_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Assessment:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(judging, "assess", broken)
    state = session_of(Cell(a_spec(), STEADY_S))
    found = await judged(tmp_path, state)
    assert verdict(state.cells[0], found).text == "not judged"
    assert "could not be judged: ZeroDivisionError: by nought" in text(trust(state.cells[0], found, 100))


async def test_live_tells_verdict_interval_and_limit_in_any_room_and_the_window_all_the_rest(tmp_path: Path) -> None:
    state = session_of(Cell(a_spec(), DRIFTING_S, warmup_s=[0.3, 0.1]))
    cell = state.cells[0]
    found = await judged(tmp_path, state)
    for width, height in ((50, 20), (100, 40)):
        shown = text(live_lines(state, cell, width, height, found=found))
        assert not absent(shown, "! drifting", "Enter: all")
        assert sum("█" in row for row in shown.splitlines()) >= 8  # the chart keeps its room
    assert not absent(shown, "% (95 % interval)", "TFLOP/s", "% of spec")
    assert "! drifting" in text(live_lines(state, cell, 50, 13, found=found))
    for width, height in product((1, 10, 50, 200), range(0, 40, 3)):
        assert len(live_lines(state, cell, width, height, found=found)) <= height
    detail = text(cell_detail(state, cell, 80, found))
    assert not absent(detail, "? throttled: not observable: ", "! drifting: ", "float32 matmul  highest")
    others = len(found.judgement.names) - 1
    for width in (20, 41, 51, 80, 200):
        shown = text(trust_lines(cell, found, width, 1))
        assert len(shown) <= width
        assert shown.startswith("! drifting" + f" +{others}:" * bool(others))
        assert "…" in shown or found.judgement.checks[2].evidence in shown, "it is not cut without a sign"


async def test_the_window_of_a_cell_tells_limits_energy_settings_and_machine() -> None:
    state = session_of(Cell(a_spec(steps_auto=0.02, measure_steps=50), STEADY_S))
    found = assess(state, state.cells[0], PeakCache(Path("/nowhere")))
    told = {" ".join(row.split()) for row in text(cell_detail(state, state.cells[0], 100, found)).splitlines()}
    starts = (
        "✓ steady", "FLOP/s", "% of peak not measured", "% of spec", "energy n/a: ", "warm-up ",
        "measured steps auto:50", "interval ± 1 % of the mean ends it", "driver ", "torch ", "clocks not observed",
    )  # fmt: skip
    assert [start for start in starts if not any(row.startswith(start) for row in told)] == []


async def test_a_running_cell_is_held_against_its_peak(tmp_path: Path) -> None:
    app = replaying(demo(in_the_middle), tmp_path, peaks=PeakCache(tmp_path / "peaks"))
    async with on_screen(app, "53 % of spec"):
        assert "%" not in app.query_one(ResultsPane).text.splitlines()[7]  # nothing is final yet


def test_a_number_of_steps_that_is_not_fixed_says_at_most() -> None:
    spec = a_spec(measure_steps=1000, steps_auto=0.01, warmup_auto=True, warmup_steps=100)
    state = state_of([*session_start([spec]), *cell_start(0), *steps(0, (0.2,) * 12, (0.1,) * 34)])
    shown = text(live_lines(state, state.cells[0], 80, 30))
    assert "measuring 34/≤1000" in shown
    assert "steps/column" not in shown  # 12 and 34 steps have places of their own, not 1,100


async def test_results_say_how_far_judging_is_and_which_verdicts_hold(tmp_path: Path) -> None:
    cells = (Cell(a_spec(), STEADY_S), Cell(a_spec(batch_size=8), DRIFTING_S), Cell(a_spec(batch_size=16), [0.1] * 3))
    async with on_screen(replaying(events_of(*cells), tmp_path), size=(200, 60)) as (app, pilot):
        await until(pilot, lambda shown: "too-few-steps" in shown and "…" not in app.query_one(ResultsPane).text)
        rows = app.query_one(ResultsPane).text.splitlines()
        assert "verdict" in rows[0]
        assert rows[0].index("std ms") < rows[0].index("verdict") < rows[0].index("tokens/s") < rows[0].index("FLOP/s")
        assert "steady" in rows[1]
        assert "drifting" in rows[2]
        assert "% of spec" in rows[1]
        await pilot.resize_terminal(*SMALL)
        await press(pilot, "4", seen=lambda shown: "verdict" in shown and "mean ms" in shown and "drifting" in shown)
        assert "verdict" in app.query_one(ResultsPane).text.splitlines()[1]
        await pilot.resize_terminal(60, 20)
        await until(pilot, "! too-few-steps")
        narrow = app.query_one(ResultsPane).text
        assert not absent(narrow.splitlines()[1], "batch", "mean ms", "std ms", "verdict"), narrow
        assert not absent(narrow, "✓ steady", "! drifting", "! too-few-steps")
        assert max(map(len, narrow.splitlines())) <= 58


def test_a_process_that_died_is_started_anew_and_an_error_of_judging_is_told() -> None:
    cell, process = session_of(Cell(a_spec(), DRIFTING_S)).cells[0], JudgeProcess()
    assert process.judge(cell, None) == judge(cell)
    process._process.kill()
    process._process.wait()
    assert process.judge(cell, 0.9) == judge(cell, 0.9)
    cell.spec = None  # type: ignore[assignment]
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute"):
        process.judge(cell, None)
    process._process.kill()
    process._process.wait()


def test_the_app_judges_without_numpy_and_other_large_modules() -> None:
    assert python(JUDGES).stdout.strip() == ""


def test_it_ends_when_nothing_is_asked_and_when_nobody_is_left_to_ask() -> None:
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as asked:
        serve(asked, BytesIO(), kept_s=0.01)
        os.close(theirs)
        serve(asked, BytesIO())
