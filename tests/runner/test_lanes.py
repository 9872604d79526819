"""Lanes: the ones that a machine has, and those that a cell takes."""

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cs336_tui.config.spec import SpecError
from cs336_tui.config.sweep import LaneCount
from cs336_tui.events.environment import DeviceInfo, Environment
from cs336_tui.events.events import CellFinished, CellsQueued, CellStarted, Lane
from cs336_tui.runner.lanes import fault_of, lanes_of, pool_of
from cs336_tui.runner.launcher import Launcher
from cs336_tui.runner.machine import device_fault
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.runner.queue import CellQueue, WaitingCell, WaitingReport
from tests.runner.test_queue import Held
from tests.samples import ENVIRONMENT
from tests.watching import small_spec

CORES = ((0, 4), (1, 5), (2, 6), (3, 7))


def with_gpus(*labels: str) -> Environment:
    gpus = (DeviceInfo(name=f"cuda:{n}", label=label, precisions=("fp32",)) for n, label in enumerate(labels))
    cpu = DeviceInfo(name="cpu", label="CPU", precisions=("fp32",))
    return msgspec.structs.replace(ENVIRONMENT, devices=(cpu, *gpus))


@pytest.mark.parametrize(
    ("asked", "gpus", "pool"),
    [
        (("every",), ("H100",) * 3, ("cuda:0", "cuda:1", "cuda:2")),
        (("cuda",), ("H100",) * 2, ("cuda:0", "cuda:1")),
        (("auto",), ("H100",) * 2, ("cuda:0", "cuda:1")),
        (("cuda:2", "cuda:0"), ("H100",) * 3, ("cuda:2", "cuda:0")),
        (("every",), (), ("cpu",)),
        (("cpu",), ("H100",), ("cpu",)),
    ],
)
def test_lanes_share_the_devices_that_are_named(
    asked: tuple[str, ...], gpus: tuple[str, ...], pool: tuple[str, ...]
) -> None:
    assert pool_of(asked, with_gpus(*gpus)) == pool


def test_devices_that_differ_share_no_lanes() -> None:
    with pytest.raises(SpecError, match="cuda:0 is H100; cuda:1 is L40S"):
        pool_of(("every",), with_gpus("H100", "L40S"))


@pytest.mark.parametrize(
    ("count", "threads", "cores"),
    [
        (2, 1, [(0, 4), (1, 5)]),
        (2, None, [(0, 1, 4, 5), (2, 3, 6, 7)]),
        ("auto", 1, [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ("auto", 2, [(0, 1, 4, 5), (2, 3, 6, 7)]),
        ("auto", None, []),
        ("auto", 3, []),
        (1, 1, []),
    ],
)
def test_lanes_of_a_cpu_have_whole_cores_of_their_own(
    count: LaneCount, threads: int | None, cores: list[tuple[int, ...]]
) -> None:
    found = lanes_of(count, ("cpu",), [small_spec(threads=threads)], CORES)
    assert [lane.cores for lane in found] == cores
    assert [lane.lane for lane in found] == list(range(len(cores)))


GPUS = ("cuda:1", "cuda:3")


def test_a_lane_of_a_gpu_is_its_own() -> None:
    found = lanes_of("auto", GPUS, [small_spec(device="cuda:1", threads=None)])
    assert [lane.device for lane in found] == list(GPUS)


@pytest.mark.parametrize(
    ("pool", "count", "changes", "why"),
    [
        (GPUS, 3, {"device": "cuda:1", "threads": None}, "lanes 3: a lane needs a device of its own: cuda:1, cuda:3"),
        (("cpu",), 5, {"threads": None}, "lanes 5: 4 cores here, 5 needed for lanes"),
        (("cpu",), 3, {"threads": 2}, "lanes 3: 4 cores here, 6 needed for lanes of 2 threads"),
        (("cpu",), 2, {"ranks": 3, "parallel": "ddp"}, "lanes 2: a cell of 3 ranks takes 3 lanes, there are 2"),
    ],
)
def test_more_lanes_than_there_is_room_for_are_refused(
    pool: tuple[str, ...], count: int, changes: dict[str, object], why: str
) -> None:
    with pytest.raises(SpecError) as refused:
        lanes_of(count, pool, [small_spec(**changes)], CORES)
    assert str(refused.value) == why


class InLanes(Held):
    """A queue whose cells, of so many ranks, run in lanes."""

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[int, WaitingCell] = {}

    def begin(self, count: int, *ranks: int) -> CellQueue:
        self.queue.use([Lane(lane=n, device="cpu") for n in range(count)])
        self.queue.add([(small_spec(ranks=each, parallel="ddp" if each > 1 else "none"), 1) for each in ranks])
        return self.queue

    def over(self, cell: int) -> None:
        self.queue.over(self._running[cell])

    def taken(self) -> tuple[int, list[int]]:
        found = self.queue.take()
        numbers = [lane.lane for lane in found.lanes]
        self._running[found.cell] = found
        self.watch([CellStarted(at=0.0, cell=found.cell, lanes=tuple(numbers))])
        return found.cell, numbers

    @property
    def would_wait(self) -> bool:
        """True if who takes now waits until something is over."""
        return not self.queue._may_go_on()


@pytest.fixture
def held() -> Iterator[InLanes]:
    found = InLanes()
    yield found
    found.stop.close()


def test_each_lane_takes_the_next_cell_as_it_becomes_free(held: InLanes) -> None:
    queue = held.begin(2, 1, 1, 1)
    assert [held.taken(), held.taken()] == [(0, [0]), (1, [1])]
    assert held.would_wait
    assert queue.running == (0, 1)
    held.over(1)
    assert held.taken() == (2, [1])
    assert held.would_wait
    for cell in (2, 0):
        held.over(cell)
    assert queue.take() is None


def test_a_wide_cell_waits_for_its_lanes_and_none_overtakes_it(held: InLanes) -> None:
    held.begin(4, 3, 2, 1, 1)
    assert held.taken() == (0, [0, 1, 2])
    assert held.would_wait
    held.over(0)
    assert held.taken() == (1, [0, 1])
    assert [held.taken(), held.taken()] == [(2, [2]), (3, [3])]


def test_a_cell_of_another_device_runs_alone(held: InLanes) -> None:
    queue = held.begin(2, 1)
    queue.add([(small_spec(device="mps", threads=None), 1), (small_spec(), 1)])
    held.taken()
    assert held.would_wait
    held.over(0)
    assert held.taken() == (1, [])
    assert queue.running == (1,)
    assert held.taken() == (2, [0])


def test_a_report_waits_until_no_cell_runs_and_those_of_a_run_are_asked_for_once_nothing_waits(held: InLanes) -> None:
    queue = held.begin(2, 1, 1, 1)
    held.taken(), held.taken()
    held.over(0)
    report, wanted = (WaitingReport("memory", small_spec(), cell) for cell in (0, 1))
    queue.ask(report)
    assert held.would_wait
    held.over(1)
    assert queue.take(lambda: pytest.fail("one waits")) == report
    assert held.taken() == (2, [0])
    held.over(2)
    due = [wanted]
    assert queue.take(lambda: [due.pop()] if due else []) == wanted
    assert queue.take() is None


def test_a_pause_takes_no_cell_until_all_are_over_and_it_ends(held: InLanes) -> None:
    queue = held.begin(2, 1, 1, 1)
    held.taken()
    queue.pause()
    assert held.would_wait
    held.over(0)
    assert held.would_wait
    queue.pause(False)
    assert held.taken() == (1, [0])


def test_a_stop_reaches_all_that_run_and_none_that_comes_later(held: InLanes) -> None:
    queue = held.begin(2, 1, 1, 1)
    held.taken(), held.taken()
    assert queue.cancel()
    assert [end.cell for end in held.watch.of(CellFinished)] == [2]
    queue.add([(small_spec(), 1)])
    held.over(0)
    assert held.stop.is_set()
    assert held.would_wait, "one is still ending"
    held.over(1)
    assert held.taken() == (3, [0])
    assert not held.stop.is_set()


def test_a_lane_that_is_set_aside_runs_no_more_and_its_cell_comes_next(held: InLanes) -> None:
    queue = held.begin(2, 1, 1, 1)
    held.taken(), held.taken()
    queue.set_aside(1, "the GPU is lost", 1)
    assert held.waiting == [1, 2]
    assert held.watch.state.lanes[1].set_aside == "the GPU is lost"
    assert held.would_wait
    held.over(0)
    assert held.taken() == (1, [0])


def test_the_end_of_a_former_attempt_frees_no_lane_of_the_next(held: InLanes) -> None:
    queue = held.begin(2, 1, 1)
    former = queue.take()
    queue.set_aside(0, "lost", 0)
    assert held.taken() == (0, [1])
    queue.over(former)
    assert held.would_wait
    assert queue.running == (0,)


def test_cells_for_which_no_lane_is_left_end_with_the_reason(held: InLanes) -> None:
    queue = held.begin(2, 2, 1)
    assert held.taken() == (0, [0, 1])
    queue.set_aside(1, "lost", 0)
    assert held.taken() == (1, [0])
    queue.set_aside(0, "gone", 1)
    assert queue.take() is None
    errors = [(end.cell, end.status, end.error) for end in held.watch.of(CellFinished)]
    assert errors == [
        (0, "failed", "not started: its 2 ranks need as many lanes, not the 1 left; lane 1 was set aside: lost"),
        (1, "failed", "not started: no lane is left; lane 0 was set aside: gone"),
    ]


def test_cells_have_the_numbers_that_they_are_given(held: InLanes) -> None:
    cells = [(small_spec(context_length=n), n) for n in (4, 8, 16, 32)]
    assert held.queue.add(cells, command="c", numbers=(3, 4, 9, 7)) == (3, 4, 9, 7)
    assert [(each.first, len(each.specs), each.command) for each in held.watch.of(CellsQueued)] == [
        (3, 2, "c"),
        (9, 1, None),
        (7, 1, None),
    ]
    assert {n: cell.repeat for n, cell in held.watch.state.cells.items()} == {3: 4, 4: 8, 9: 16, 7: 32}
    assert held.queue.add(cells[:1]) == (10,)


ON_GPUS = tuple(Lane(lane=n, device=f"cuda:{n}") for n in (4, 5))


@pytest.mark.parametrize(
    ("error", "broken", "lane"),
    [
        ("rank 1: AcceleratorError: CUDA error: uncorrectable ECC error encountered", (), 5),
        ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", ("cuda:4",), 4),
        ("rank 0: DistBackendError: NCCL error: unhandled cuda error", ("cuda:5",), 5),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", (), None),
        ("RuntimeError: CUDA error: invalid device ordinal", (), None),
        ("TypeError: forward() takes 1 positional argument", ("cuda:4",), None),
    ],
)
def test_a_lane_is_to_blame_only_if_its_device_is_broken(error: str, broken: tuple[str, ...], lane: int | None) -> None:
    """A sticky error that is gone in a fresh process was the cell's own."""
    end = CellFinished(at=0.0, cell=0, status="failed", error=error)
    fault = fault_of(end, ON_GPUS, lambda device: "it is gone" if device in broken else None)
    assert (fault and fault.lane) == lane
    for status in ("ok", "oom", "cancelled"):
        assert fault_of(msgspec.structs.replace(end, status=status), ON_GPUS, lambda _: "it is gone") is None


def test_a_fresh_process_tells_if_a_device_can_be_used(launcher: Launcher) -> None:
    assert device_fault(launcher, "cpu") is None
    assert device_fault(launcher, "cuda:99")
    assert device_fault(launcher, "cpu", 0.0) == "cpu does not answer within 0 s"
    stop = StopSignal()
    stop.set()
    assert device_fault(launcher, "cuda:99", stop=stop) is None
    stop.close()


class QueueMachine(RuleBasedStateMachine):
    """Any changes in any order, without lanes or with some: the events fold into the queue's content, no lane has two
    cells, and at the end each cell has exactly one end."""

    def __init__(self) -> None:
        super().__init__()
        self.held = InLanes()
        self.queue, self.watch = self.held.queue, self.held.watch
        self.running: dict[int, WaitingCell] = {}

    @initialize(count=st.integers(0, 4))
    def open(self, count: int) -> None:
        self.queue.use([Lane(lane=n, device="cpu") for n in range(count)])

    @rule(ranks=st.lists(st.integers(1, 5), min_size=1, max_size=4))
    def add(self, ranks: list[int]) -> None:
        self.queue.add([(small_spec(ranks=each, parallel="ddp" if each > 1 else "none"), 1) for each in ranks])

    @rule()
    def take(self) -> None:
        alone = [cell for cell, taken in self.running.items() if not taken.lanes]
        for cell in alone:  # over at the next take
            self.watch([CellFinished(at=0.0, cell=cell, status="ok")])
            del self.running[cell]
        if self.held.would_wait:
            return
        taken = self.queue.take()
        if isinstance(taken, WaitingCell):
            assert not any(self.watch.state.lanes[lane.lane].set_aside for lane in taken.lanes)
            self.watch([CellStarted(at=0.0, cell=taken.cell, lanes=tuple(lane.lane for lane in taken.lanes))])
            self.running[taken.cell] = taken

    @rule(data=st.data(), sets_aside=st.booleans())
    def over(self, data: st.DataObject, sets_aside: bool) -> None:
        if cells := [cell for cell, taken in self.running.items() if taken.lanes]:
            cell = data.draw(st.sampled_from(cells))
            taken = self.running.pop(cell)
            if sets_aside:
                self.queue.set_aside(taken.lanes[0].lane, "lost", cell)
            else:
                self.watch([CellFinished(at=0.0, cell=cell, status="ok")])
            self.queue.over(taken)

    @rule(change=st.sampled_from(["order", "skip", "requeue"]), cells=st.lists(st.integers(0, 8)))
    def change(self, change: str, cells: list[int]) -> None:
        getattr(self.queue, change)(cells, *(["why not"] if change == "skip" else []))

    @rule(cell=st.integers(0, 8), by=st.integers(-4, 4))
    def move(self, cell: int, by: int) -> None:
        self.queue.move(cell, by)

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.queue.pause(paused)

    @rule()
    def cancel(self) -> None:
        self.queue.cancel()

    @invariant()
    def no_lane_has_two_cells(self) -> None:
        used = [lane.lane for taken in self.running.values() for lane in taken.lanes]
        assert len(used) == len(set(used))
        assert all(len(taken.lanes) in (0, taken.spec.ranks) for taken in self.running.values())
        assert set(self.running) <= set(self.queue.running)

    @invariant()
    def told_and_held_agree(self) -> None:
        state = self.watch.state
        assert [number for number, cell in state.cells.items() if cell.status == "queued"] == sorted(state.waiting)
        assert len(self.queue) == len(state.waiting)
        assert set(state.running) == set(self.running)

    def teardown(self) -> None:
        self.queue.pause(False)
        while self.running or len(self.queue):
            self.take()
            for cell in [cell for cell, taken in self.running.items() if taken.lanes]:
                self.watch([CellFinished(at=0.0, cell=cell, status="ok")])
                self.queue.over(self.running.pop(cell))
        assert all(cell.is_over or cell.status == "skipped" for cell in self.watch.state.cells.values())
        self.held.stop.close()


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
