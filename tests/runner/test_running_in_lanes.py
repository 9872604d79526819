"""Cells that run in lanes, in real processes: cores, devices, ends, stops, lost lanes, resuming."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.runner.lanes import cores_here
from cs336_tui.session.state import SessionState
from tests.runner.running import Running
from tests.watching import ample_timeout_s, endless_spec, is_gone, small_spec

USABLE = sorted(n for core in cores_here() for n in core)


class InLanes(Running):
    """A bench whose cells run in lanes, on a thread of its own."""

    def begin_in(self, lanes: Sequence[ev.Lane], *specs: CellSpec) -> None:
        self.bench.add([(spec, 1) for spec in specs], "cs336-tui bench --lanes 2", lanes=lanes)
        self.work()

    def work(self) -> None:
        self.on_a_thread(self.bench.work)

    def end(self) -> dict[int, str]:
        """The status of each cell, once nothing runs or waits."""
        return {number: cell.status for number, cell in self.finish(120).cells.items()}

    def pids(self, count: int) -> list[int]:
        """The processes of so many cells, by their numbers, once they all measure."""

        def measuring(state: SessionState) -> bool:
            running = state.running_cells
            return len(running) == count and all(cell.stage == "measuring" for cell in running)

        self.watch.until(measuring)
        running = sorted(self.watch.state.running_cells, key=lambda cell: cell.cell)
        return [pid for cell in running if (pid := cell.pid) is not None]


Begin = Callable[..., InLanes]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Begin]:
    several: list[InLanes] = []

    def make(session: str | None = None) -> InLanes:
        several.append(InLanes(tmp_path, session, device_interval_s=0.2))
        return several[-1]

    yield make
    for each in several:
        each.bench.close()


def lanes(*cores: tuple[int, ...]) -> list[ev.Lane]:
    return [ev.Lane(lane=n, device="cpu", cores=own) for n, own in enumerate(cores)]


TWO = lanes((USABLE[0],), (USABLE[-1],))


EIGHT = lanes(*[()] * 8)
"""Lanes of simulated devices, pinned to no core."""


def waiting_spec(seconds: float, **changes: Any) -> CellSpec:
    """A cell of a simulated device: its forward waits, and uses no CPU."""
    given = {"model": "waiting:Waits", "model_path": (str(Path(__file__).parent),)}
    return small_spec(**given | changes, model_args=(("seconds", str(seconds)),))


def test_cells_run_side_by_side_on_cores_of_their_own_until_they_are_stopped(made: Begin) -> None:
    run = made()
    run.begin_in(TWO, *[endless_spec(threads=None)] * 3)
    pids = run.pids(2)
    assert [tuple(psutil.Process(pid).cpu_affinity()) for pid in pids] == [lane.cores for lane in TWO]
    cells = run.watch.state.cells
    assert [cells[n].in_force.threads for n in (0, 1) if cells[n].in_force] == [1, 1]
    assert (cells[0].neighbours, cells[1].neighbours, cells[2].status) == ({1}, {0}, "queued")
    run.watch.until(lambda _: {each.cells for each in run.watch.of(ev.DeviceSampled)} >= {(0,), (1,)})
    began = time.monotonic()
    run.bench.cancel()
    assert set(run.end().values()) == {"cancelled"}
    assert time.monotonic() - began < 10  # 2 s on an idle machine
    assert all(map(is_gone, pids))


def test_a_lane_without_its_cores_is_set_aside_and_its_cell_runs_in_another(made: Begin) -> None:
    run = made()
    run.begin_in(lanes((4095,), (USABLE[0],)), *[small_spec()] * 3)
    assert run.end() == {0: "ok", 1: "ok", 2: "ok"}
    (aside,) = run.watch.of(ev.LaneSetAside)
    assert aside.lane == 0
    assert aside.reason == "the cores of its lane cannot be had: Invalid argument"
    assert {event.lanes for event in run.watch.of(ev.CellStarted)} == {(0,), (1,)}
    assert run.watch.state.cells[0].lanes == (1,)
    assert len(run.watch.state.cells[0].earlier) == 1


def test_ranks_take_a_lane_each_and_a_failing_cell_ends_no_other(made: Begin) -> None:
    run = made()
    bad = small_spec(model="nowhere:Model", model_path=("/",), arch="swiglu-rope")
    run.begin_in(TWO, small_spec(ranks=2, parallel="ddp", pass_="train-step", batch_size=2), bad, small_spec())
    assert run.end() == {0: "ok", 1: "failed", 2: "ok"}
    assert run.watch.of(ev.CellStarted)[0].lanes == (0, 1)
    assert not run.watch.of(ev.LaneSetAside)


def test_a_timeout_ends_the_cell_that_takes_too_long_and_no_other(made: Begin) -> None:
    run = made()
    run.begin_in(TWO, small_spec())
    run.end()
    run.bench.timeout_s = ample_timeout_s(run.watch.state.cells[0], 3.0)
    run.begin_in(TWO, endless_spec(), *[small_spec()] * 2)
    assert run.end() == {0: "ok", 1: "killed", 2: "ok", 3: "ok"}


def test_a_cell_that_is_killed_leaves_the_others_alone(made: Begin) -> None:
    run = made()
    run.begin_in(TWO, endless_spec(), endless_spec(), small_spec())
    first, second = run.pids(2)
    psutil.Process(first).kill()
    run.watch.until(lambda state: state.cells[2].is_over)
    assert not is_gone(second)
    run.bench.cancel()
    assert run.end() == {0: "killed", 1: "cancelled", 2: "ok"}


def test_what_needs_more_than_ran_out_of_memory_is_skipped_and_explained_after_all(made: Begin) -> None:
    run = made()
    huge = [small_spec(context_length=size) for size in (1 << 20, 1 << 21)]
    run.begin_in(lanes((USABLE[0],)), huge[0], small_spec(), huge[1], small_spec(pass_="train-step"))
    assert run.end() == {0: "oom", 1: "ok", 2: "skipped", 3: "ok"}
    kinds = [type(event) for event in run.watch.events]
    assert kinds.index(ev.ReportStarted) > len(kinds) - 1 - kinds[::-1].index(ev.CellFinished)


def test_a_pause_lets_what_runs_end(made: Begin) -> None:
    run = made()
    run.begin_in(TWO, waiting_spec(0.05, measure_steps=1_000_000), small_spec(), small_spec())
    run.watch.until(lambda state: state.cells[2].is_over)
    run.bench.queue.pause()
    run.bench.add([(small_spec(), 1)] * 2)
    run.bench.queue.order([4])
    run.bench.queue.skip([3], "by hand")
    assert [cell.cell for cell in run.watch.state.running_cells] == [0]
    run.bench.queue.pause(False)
    run.watch.until(lambda state: state.cells[4].is_over)
    assert run.watch.state.cells[4].lanes == (1,)
    run.bench.cancel()
    assert run.end() == {0: "cancelled", 1: "ok", 2: "ok", 3: "skipped", 4: "ok"}


def test_where_no_process_can_be_started_the_lanes_are_set_aside_with_the_reason(made: Begin) -> None:
    run = made()
    run.bench.probe()
    shutil.rmtree(run.bench._scratch)
    run.bench._scratch.write_text("in the way of its files")
    run.begin_in(EIGHT[:2], *[small_spec()] * 3)
    assert set(run.end().values()) == {"failed"}
    assert {event.lane for event in run.watch.of(ev.LaneSetAside)} == {0, 1}
    (error,) = {cell.finished.error for cell in run.watch.state.cells.values()}
    assert error.startswith("not started: no lane is left; lane ")
    assert "was set aside: no child process can be started: " in error
    run.bench._scratch.unlink()


def test_a_watcher_that_is_gone_stops_all_lanes_and_breaks_off_the_run(made: Begin) -> None:
    run = made()
    run.bench.add([(waiting_spec(0.05, measure_steps=1_000_000), 1)] * 3, lanes=EIGHT[:2])

    def gone(event: ev.Event) -> None:
        if isinstance(event, ev.StepsTimed):
            raise RuntimeError("nobody listens")

    run.watch.on_event = gone
    with pytest.raises(RuntimeError, match="nobody listens"):
        run.bench.work()
    assert run.bench.queue.running == ()
    run.watch.on_event = lambda _: None


def test_a_session_goes_on_in_the_lanes_that_it_had(made: Begin) -> None:
    run = made()
    run.begin_in(TWO, *[endless_spec()] * 2, small_spec())
    run.pids(2)
    run.bench.close()
    again = made(run.bench.session)
    assert again.bench.resume() == (0, 1, 2)
    assert tuple(lane.cores for lane in again.watch.of(ev.LanesOpened)[-1].lanes) == cores_here()[:2]
    again.work()
    assert len(again.pids(2)) == 2
    again.bench.cancel()
    again.end()
    alone = made(run.bench.session)
    again.bench.close()
    alone.bench.resume(lanes=1)
    alone.work()
    alone.pids(1)
    assert not alone.watch.state.cells[0].lanes


def test_eight_devices_do_eight_times_the_work(made: Begin) -> None:
    """Far less is asked for than `benchmarks.lanes` does on a quiet machine."""
    run = made()
    began = time.monotonic()
    run.begin_in(EIGHT, *[waiting_spec(0.2, measure_steps=5)] * 16)
    assert set(run.end().values()) == {"ok"}
    took = time.monotonic() - began
    assert sum(cell.whole_run_s or 0.0 for cell in run.watch.state.cells.values()) > 3 * took
    lanes_used = [event.lanes for event in run.watch.of(ev.CellStarted)]
    assert set(lanes_used) == {(n,) for n in range(8)}
