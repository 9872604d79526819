"""Queue of cells: changes take effect and are told, from any thread. `test_lanes` makes any changes in any order."""

import threading
from collections.abc import Iterator

import pytest

from cs336_tui.config.order import needs_at_least
from cs336_tui.events.events import CellFinished
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.runner.queue import NOT_STARTED, CellQueue, WaitingCell
from tests.watching import PATIENCE_S, Watch, small_spec


class Held:
    """A queue, its events and its stop signal."""

    def __init__(self) -> None:
        self.watch, self.stop = Watch(), StopSignal()
        self.queue = CellQueue(self.watch, self.stop)

    def add(self, count: int, **changes: object) -> tuple[int, ...]:
        return self.queue.add([(small_spec(**changes), 1)] * count)

    def take(self) -> int | None:
        taken = self.queue.take()
        return taken.cell if isinstance(taken, WaitingCell) else None

    @property
    def waiting(self) -> list[int]:
        return list(self.watch.state.waiting)


@pytest.fixture
def held() -> Iterator[Held]:
    found = Held()
    yield found
    found.stop.close()


def test_cells_are_taken_in_the_order_in_which_they_wait(held: Held) -> None:
    assert held.add(3) == (0, 1, 2)
    assert held.add(1) == (3,)
    held.queue.order([2, 0])
    assert held.waiting == [2, 0, 1, 3]
    held.queue.move(3, -2)
    assert held.waiting == [2, 3, 0, 1]
    held.queue.move(2, 99)
    assert held.waiting == [3, 0, 1, 2]
    assert [held.take() for _ in range(5)] == [3, 0, 1, 2, None]


def test_a_skipped_cell_does_not_run_until_it_is_wanted_again(held: Held) -> None:
    held.add(3)
    held.queue.skip([1], "by hand")
    assert held.watch.state.cells[1].status == "skipped"
    assert held.watch.state.cells[1].skipped_because == "by hand"
    held.queue.requeue([1, 1])
    assert held.waiting == [0, 2, 1]
    assert held.watch.state.cells[1].status == "queued"


def test_after_one_ran_out_of_memory_only_cells_that_need_as_much_are_skipped(held: Held) -> None:
    held.queue.add(
        [(small_spec(batch_size=size, pass_=pass_), 1) for pass_ in ("forward", "backward") for size in (2, 4, 8)]
    )
    failed = small_spec(batch_size=4, pass_="forward")
    held.queue.skip_if(lambda spec: needs_at_least(spec, failed), "too large")
    assert held.waiting == [0, 3, 4, 5]


@pytest.mark.parametrize("end", ["pause", "cancel", "close"])
def test_the_queue_waits_while_it_is_paused_and_cancelling_reaches_what_waits(held: Held, end: str) -> None:
    held.add(2)
    held.queue.pause()
    taken: list[int | None] = []
    thread = threading.Thread(target=lambda: taken.append(held.take()))
    thread.start()
    assert held.queue.paused
    assert not taken
    if end == "pause":
        held.queue.pause(False)
    else:
        assert getattr(held.queue, end)()
    thread.join(PATIENCE_S)
    assert taken == [0 if end == "pause" else None]
    ends = [(event.cell, event.status, event.error) for event in held.watch.of(CellFinished)]
    assert ends == ([] if end == "pause" else [(cell, "cancelled", NOT_STARTED) for cell in (0, 1)])
    assert not held.stop.is_set()


def test_cancelling_stops_the_cell_that_runs_and_no_later_one(held: Held) -> None:
    held.add(1)
    assert held.take() == 0
    assert held.queue.cancel()
    assert held.stop.is_set()
    held.add(1)
    assert held.take() == 1
    assert not held.stop.is_set()
    assert held.take() is None
    assert not held.queue.cancel()
    assert not held.stop.is_set()


def test_one_takes_at_a_time_and_the_next_may_when_nothing_waits(held: Held) -> None:
    assert held.queue.claim()
    assert not held.queue.claim()
    assert held.queue.busy
    assert held.take() is None
    assert not held.queue.busy
    assert held.queue.claim()
