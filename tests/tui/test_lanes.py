"""The screen of a session whose cells run side by side, in lanes or in jobs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cs336_tui.config.sweep import Sweep
from cs336_tui.events.events import CellFinished, CellStarted, Event, Lane, StageChanged
from cs336_tui.runner.queue import WaitingCell
from cs336_tui.session.log import Sink
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.configure.form import Form, entries_of, read
from cs336_tui.tui.configure.preview import CellChoices, cells_of
from cs336_tui.tui.session import Session, read_session
from cs336_tui.tui.tabs.device import lines_of_several
from cs336_tui.tui.tabs.device_rows import device_rows, table
from cs336_tui.tui.tabs.queue import QueuePane
from tests.samples import START, jobs_session, lanes_session, machine_of_gpus, state_of
from tests.tui.watched import SMALL, WIDE, ScriptedBench, log_of, on_screen, press, replaying, text, until

LATER = START + 100


def followed(events: list[Event]) -> Session:
    session = Session()
    session.fold(events)
    return session


def number_of(session: Session) -> int | None:
    return session.cell.cell if session.cell else None


def test_live_stays_with_a_cell_until_it_ends_and_goes_on_with_one_that_measures() -> None:
    session = followed(lanes_session())
    first = number_of(session)
    assert first in session.state.running
    session.fold([CellStarted(at=LATER, cell=16, lanes=(0,))])
    assert number_of(session) == first, "a cell that starts does not take its place"
    session.fold([StageChanged(at=LATER, cell=15, stage="finishing")])
    session.fold([CellFinished(at=LATER, cell=first or 0, status="ok")])
    measuring = [cell.cell for cell in session.state.running_cells if cell.stage == "measuring"]
    assert number_of(session) == measuring[-1]


def test_a_cell_that_was_chosen_is_followed_until_it_ends_and_one_that_waits_is_not() -> None:
    session = followed(lanes_session())
    cells = session.state.cells
    assert session.follow(cells[10])
    session.fold([StageChanged(at=LATER, cell=10, stage="finishing")])
    assert number_of(session) == 10
    assert not session.follow(cells[19])
    assert number_of(session) == 10
    session.fold([CellFinished(at=LATER, cell=10, status="ok")])
    assert number_of(session) in session.state.running
    assert session.follow(cells[0])
    session.fold([CellFinished(at=LATER, cell=11, status="ok")])
    assert number_of(session) == 0, "one that is over stays as long as nobody goes on"
    session.follow_next(1)
    assert number_of(session) in session.state.running


def test_a_log_that_is_read_at_once_is_like_one_that_came_event_by_event(tmp_path: Path) -> None:
    events = lanes_session()
    read, came = read_session(log_of(events, tmp_path)), followed(events)
    assert read.state.samples == came.state.samples
    assert len(came.state.samples) == 8
    assert [cell.surroundings.samples for cell in read.state.cells.values()] == [
        cell.surroundings.samples for cell in came.state.cells.values()
    ]
    assert read.cell is not None
    assert read.cell.cell in read.state.running


def test_eight_gpus_have_a_row_each_with_all_figures_where_the_pane_is_25_columns_wide() -> None:
    state = state_of(lanes_session())
    shown = text(table(device_rows(state), state.cells[10], 25)).splitlines()
    assert shown[0].split() == ["GPU", "GB", "%", "W", "°C", "cell"]
    assert [row.split()[-1] for row in shown[1:]] == [str(cell + 1) for cell in range(8, 16)]
    assert shown[3].split() == ["▸2", "37.2", "88", "536", "59", "11"]
    assert all(len(row) <= 25 for row in shown)


@pytest.mark.parametrize("height", [6, 10, 21, 40])
def test_the_devices_keep_to_the_pane_and_say_how_many_more_there_are(height: int) -> None:
    state = state_of(lanes_session())
    lines = lines_of_several(state, state.cells[12], None, 26, height)
    shown = text(lines)
    assert len(lines) <= height
    assert ("more" in shown) == (height < 20)
    assert ("utilisation" in shown) == (height > 12)


def test_a_cell_of_several_ranks_has_a_row_for_each_of_its_gpus_and_a_lane_set_aside_none() -> None:
    shown = text(table(device_rows(state_of(lanes_session(ranks=2, set_aside=3, cells=24))), None, 40)).splitlines()
    assert [row.split()[-1] for row in shown[1:]] == ["9", "9", "10", "off", "11", "12", "13", "14"]


def test_gpus_of_several_nodes_are_named_by_their_node() -> None:
    shown = text(table(device_rows(state_of(jobs_session())), None, 40))
    assert "n1:0" in shown
    assert "n2:0" in shown


@pytest.mark.parametrize("size", [SMALL, WIDE])
async def test_cursor_and_key_say_which_cell_live_is_about(size: tuple[int, int], tmp_path: Path) -> None:
    async with on_screen(replaying(lanes_session(), tmp_path), "", size=size) as (app, pilot):
        shown = await until(pilot, "at its end")
        for seen in ("lane 7, cuda:7", "] shows 7 others", "8 × NVIDIA H100"):
            assert seen in shown
        await press(pilot, "right_square_bracket", seen="lane 0, cuda:0")
        await press(pilot, "left_square_bracket", "left_square_bracket", seen="lane 6, cuda:6")
        await press(pilot, "6", seen=lambda _: app.query_one(QueuePane).has_focus)
        await press(pilot, "home", "down", "down", "2", seen="lane 2, cuda:2")
        await press(pilot, "4", "home", "2", seen=lambda text: "cell 1/20 · ✓ ok" in text)


def form_of(lanes: str, gpus: int = 4, **entries: object) -> Form:
    filled = msgspec.structs.replace(entries_of(Sweep(devices=("auto",))), lanes=lanes, **entries)
    return read(filled, machine_of_gpus(gpus))


def test_the_form_takes_a_number_of_lanes_or_auto_and_says_so() -> None:
    assert form_of("1").sweep == Sweep(devices=("auto",))
    assert form_of("auto").sweep == Sweep(devices=("auto",), lanes="auto")
    assert form_of(" 3 ").sweep == Sweep(devices=("auto",), lanes=3)
    assert "in 3 lanes" in form_of("3").summary
    assert entries_of(Sweep(lanes="auto")).lanes == "auto"


@pytest.mark.parametrize(
    ("lanes", "why"),
    [
        ("5", "lanes 5: a lane needs a device of its own: cuda:0, cuda:1, cuda:2, cuda:3"),
        ("0", "at least 1, or auto"),
        ("many", "lanes many: expected a whole number, at least 1, or auto"),
        ("", "(empty)"),
    ],
)
def test_the_form_refuses_lanes_that_cannot_be(lanes: str, why: str) -> None:
    (problem,) = form_of(lanes).texts
    assert why in problem


def test_lanes_share_devices_of_one_kind() -> None:
    (problem,) = form_of("2", device=("cpu", "cuda:0")).texts
    assert "lanes share devices of one kind" in problem


def test_run_would_add_each_cell_once_and_the_longest_first() -> None:
    sweep = Sweep(sizes=("small",), contexts=(128, 256), passes=("forward",), devices=("auto",), lanes="auto")
    found = cells_of(CellChoices(sweep, 1, machine_of_gpus(4)))
    assert [spec.context_length for spec, _ in found.cells] == [256, 128]
    assert found.lanes == 4


class _BenchOfLanes(ScriptedBench):
    """A scripted bench that runs its cells in two lanes, each until `finish_one`."""

    def lanes_of(self, sweep: Sweep) -> tuple[Lane, ...]:
        return tuple(Lane(lane=n, device=f"cuda:{n}") for n in range(int(sweep.lanes)))

    def add(self, cells: Any, *more: Any, lanes: Sequence[Lane] = (), **named: Any) -> None:
        self.queue.use(lanes)
        super().add(cells, *more, **named)

    def work(self) -> None:
        if self.queue.claim():
            while (taken := self.queue.take()) is not None:
                assert isinstance(taken, WaitingCell)
                lanes = tuple(lane.lane for lane in taken.lanes)
                self.sink([CellStarted(at=START + 1, cell=taken.cell, lanes=lanes, device=taken.lanes[0].device)])
                threading.Thread(target=self._run, args=(taken,), daemon=True).start()

    def _run(self, taken: WaitingCell) -> None:
        while not (self._stop.is_set() or self._permits.acquire(timeout=0.005)):
            pass
        self.sink([CellFinished(at=START + 3, cell=taken.cell, status="cancelled" if self._stop.is_set() else "ok")])
        self.queue.over(taken)


async def test_cells_in_lanes_are_moved_skipped_held_and_stopped_by_key() -> None:
    benches: list[_BenchOfLanes] = []

    def make(sink: Sink, log: Path | None = None) -> Any:
        benches.append(_BenchOfLanes(sink, log, machine_of_gpus(2)))
        return benches[-1]

    sweep = Sweep(sizes=("small",), contexts=(64, 128, 256, 512, 1024), passes=("forward",), devices=("auto",), lanes=2)
    async with on_screen(Cs336App(make, initial=sweep), "NVIDIA", size=SMALL) as (app, pilot):
        await press(pilot, "r", seen=lambda _: list(app.state.running) == [0, 1])
        await press(pilot, "6", seen=lambda _: app.query_one(QueuePane).has_focus)
        await pilot.press("home", "x")
        assert list(app.state.running) == [0, 1], "a running cell is not skipped"
        await press(pilot, "down", "down", "J", seen=lambda _: list(app.state.waiting) == [3, 2, 4])
        await press(pilot, "x", seen=lambda _: list(app.state.waiting) == [3, 4])
        await press(pilot, "P", seen="paused (P goes on)")
        benches[0].finish_one()
        await until(pilot, "1 run · 2 wait · 1 ok")
        await press(pilot, "P", seen="2 run · 1 wait · 1 ok")
        assert {lane.cell is not None for lane in app.state.lanes.values()} == {True}
        await press(pilot, "q", seen="the 2 running")
        await press(pilot, "escape", "s", seen=lambda _: not app.run_in_progress)
        assert [cell.status for cell in app.state.cells.values()].count("cancelled") == 3
