"""The time that a session takes whose cells run side by side."""

from __future__ import annotations

from typing import Any

import pytest

from cs336_tui.analysis.eta import Ends, ends_s, prices, remaining_s, share_done
from cs336_tui.events.events import (
    CellFinished,
    CellStarted,
    Event,
    JobSubmitted,
    Lane,
    LaneSetAside,
    LanesOpened,
    StageChanged,
    StepsTimed,
)
from tests.samples import START, a_spec, session_start, state_of, without_gaps

STEP_S, STEPS = 1.0, 6


def begun(cell: int, *lanes: int, done: int = 0, job: str | None = None) -> list[Event]:
    """A cell that starts in its lanes and has done so many of its 6 steps of a second, a warm-up step first."""
    timed = [
        StepsTimed(at=START, cell=cell, kind="measured" if n else "warm-up", first=max(n - 1, 0), times_s=(STEP_S,))
        for n in range(done)
    ]
    start = [CellStarted(at=START, cell=cell, lanes=lanes, job=job), StageChanged(at=START, cell=cell, stage="warm-up")]
    return [*start, *timed]


def opened(lanes: int) -> Event:
    return LanesOpened(at=START, lanes=tuple(Lane(lane=n, device=f"cuda:{n}") for n in range(lanes)))


def ended(cell: int) -> Event:
    return CellFinished(at=START, cell=cell, status="ok", warmup_steps_done=1)


def cells(number: int, **changes: Any) -> list[Event]:
    return session_start([a_spec(warmup_steps=1, measure_steps=STEPS - 1)] * (number - 1) + [
        a_spec(warmup_steps=1, measure_steps=STEPS - 1, **changes)
    ])  # fmt: skip


def ends_of(events: list[Event]) -> Ends:
    state = state_of(without_gaps(events))
    return ends_s(state, prices(state))


def test_waiting_cells_take_the_lane_that_is_free_first() -> None:
    ends = ends_of(
        [*cells(7), opened(2), *begun(0, 0, done=STEPS), ended(0), *begun(1, 0, done=2), *begun(2, 1, done=5)]
    )
    assert ends.running == pytest.approx({1: 4.0, 2: 1.0})
    assert ends.waiting == pytest.approx([7.0, 10.0, 13.0, 16.0])
    assert ends.last_s == pytest.approx(16.0)


def test_a_lane_set_aside_takes_none_and_a_free_one_takes_the_first_at_once() -> None:
    events = [*cells(4), opened(3), *begun(0, 0, done=STEPS), ended(0), *begun(1, 0, done=2)]
    assert ends_of(events).waiting == pytest.approx([6.0, 6.0])
    assert ends_of([*events, LaneSetAside(at=START, lane=1, reason="lost")]).waiting == pytest.approx([6.0, 10.0])


def test_a_cell_of_several_ranks_waits_for_as_many_lanes_and_those_behind_it_too() -> None:
    events = [*cells(4, ranks=2, parallel="ddp", pass_="train-step"), opened(2)]
    run = [*begun(0, 0, done=STEPS), ended(0), *begun(1, 0, done=2), *begun(2, 1, done=5)]
    state = state_of(without_gaps([*events, *run]))
    takes_s = prices(state).of(state.cells[3].spec)
    assert takes_s is not None
    assert ends_of([*events, *run]).waiting == pytest.approx([4.0 + takes_s])


def test_the_rest_of_a_session_is_shared_and_its_share_counts_the_work_of_all() -> None:
    state = state_of(without_gaps([*cells(3), opened(2), *begun(0, 0, done=STEPS), ended(0), *begun(1, 1, done=3)]))
    assert remaining_s(state) == pytest.approx(6.0)
    assert share_done(state) == pytest.approx(9.0 / (9.0 + 3.0 + 6.0))


def test_of_jobs_as_many_go_on_as_run_now() -> None:
    jobs = [JobSubmitted(at=START, job=str(n), launcher="slurm", id=f"7_{n}", cells=(n,)) for n in range(5)]
    run = [*begun(0, done=STEPS, job="0"), ended(0), *begun(1, done=2, job="1"), *begun(2, done=4, job="2")]
    assert ends_of([*cells(5), *jobs, *run]).waiting == pytest.approx([8.0, 10.0])


def test_lanes_that_are_not_open_yet_share_what_would_be_added() -> None:
    state = state_of(without_gaps([*cells(1), *begun(0, done=STEPS), ended(0)]))
    added = [state.cells[0].spec] * 3
    assert ends_s(state, prices(state), added, lanes=2).waiting == pytest.approx([6.0, 6.0, 12.0])
    assert ends_s(state, prices(state), added).waiting == pytest.approx([6.0, 12.0, 18.0])
