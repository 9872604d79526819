"""A session whose cells run side by side, in lanes or in jobs."""

from __future__ import annotations

from pathlib import Path

from cs336_tui.events import events as ev
from cs336_tui.events.codec import to_line
from cs336_tui.events.environment import HostSample
from cs336_tui.session.load import load
from cs336_tui.session.state import SessionState, fold
from tests.samples import a_spec


def in_lanes(*more: ev.Event) -> SessionState:
    lanes = (
        ev.Lane(lane=0, device="cuda:0"),
        ev.Lane(lane=1, device="cuda:1"),
        ev.Lane(lane=2, device="cuda:0", machine="b"),
    )
    specs = tuple(a_spec(device="cuda:0", context_length=16 * n) for n in (1, 2, 3))
    return fold([ev.CellsQueued(at=0, first=0, specs=specs), ev.LanesOpened(at=1, lanes=lanes), *more])


def started(cell: int, *lanes: int, device: str = "cuda:0") -> ev.CellStarted:
    return ev.CellStarted(at=2, cell=cell, device=device, lanes=lanes)


def test_cells_in_lanes_of_one_machine_are_neighbours_and_not_in_turns():
    state = in_lanes(started(0, 0), started(1, 1, device="cuda:1"), started(2, 2))
    cells = state.cells
    assert [cell.neighbours for cell in cells.values()] == [{1}, {0}, set()]
    assert not any(cell.in_turns for cell in cells.values())
    assert [cell.spec.device for cell in cells.values()] == ["cuda:0", "cuda:1", "cuda:0"]
    assert {number: lane.cell for number, lane in state.lanes.items()} == {0: 0, 1: 1, 2: 2}


def test_a_lane_set_aside_runs_nothing_and_its_cell_waits_as_it_was_queued():
    state = in_lanes(
        started(0, 1, device="cuda:1"), ev.LaneSetAside(at=3, lane=1, reason="lost"), ev.CellRequeued(at=3, cell=0)
    )
    assert (state.lanes[1].cell, state.lanes[1].set_aside) == (None, "lost")
    assert (state.cells[0].spec.device, list(state.waiting)) == ("cuda:0", [1, 2, 0])


def test_a_sample_of_some_cells_is_theirs_alone():
    of_first = ev.DeviceSampled(at=3, host=HostSample(cpu=0.5, load_1m=1.0), cells=(0,))
    stages = [ev.StageChanged(at=2, cell=cell, stage="measuring") for cell in (0, 1)]
    state = in_lanes(started(0, 0), started(1, 1), *stages, of_first)
    assert [state.cells[cell].surroundings.samples for cell in (0, 1)] == [1, 0]


def test_a_job_tells_why_its_cells_wait():
    submitted = ev.JobSubmitted(at=1, job="1", launcher="slurm", id="7_0", cells=(1,), where="ci")
    state = in_lanes(submitted, ev.JobChanged(at=2, job="1", stage="pending", reason="Resources"))
    job = state.job_of(state.cells[1])
    assert job is not None
    assert (job.stage, job.reason, state.job_of(state.cells[0])) == ("pending", "Resources", None)


def test_a_session_that_goes_on_keeps_what_its_living_jobs_run():
    jobs = [ev.JobSubmitted(at=1, job=job, launcher="slurm", id=job, cells=(n,)) for n, job in enumerate(("a", "b"))]
    begun = [ev.CellStarted(at=2, cell=n, job=job) for n, job in enumerate(("a", "b"))]
    over = ev.JobChanged(at=3, job="b", stage="over")
    state = in_lanes(*jobs, *begun, over, ev.SessionResumed(at=4, app="0"))
    assert [cell.status for cell in state.cells.values()] == ["running", "queued", "queued"]
    assert (list(state.running), list(state.waiting)) == ([0], [1, 2])


def test_a_loaded_log_gives_each_cell_its_own_steps_and_samples(tmp_path: Path):
    numbers = range(3)
    queued = ev.CellsQueued(at=0, first=0, specs=tuple(a_spec(device="cpu", batch_size=n + 1) for n in numbers))
    events: list[ev.Event] = [ev.SessionStarted(at=0, schema=ev.SCHEMA, session="s", app="0"), queued]
    events += [ev.JobSubmitted(at=1, job=f"j{n}", launcher="slurm", id=f"{n}", cells=(n,)) for n in numbers]
    events += [ev.CellStarted(at=2, cell=n, job=f"j{n}") for n in numbers]
    events += [ev.StageChanged(at=2, cell=n, stage="measuring") for n in numbers]
    for step in range(4):
        for n in numbers:
            events.append(ev.StepsTimed(at=3, cell=n, kind="measured", first=step, times_s=(n + step / 8,)))
            if step % 2 == n % 2:
                host = HostSample(cpu=n / 4, load_1m=float(n + step), cpu_count=4, child_cores=0.0)
                events.append(ev.DeviceSampled(at=3, host=host, cells=(n,)))
        events.append(ev.DeviceSampled(at=3, host=HostSample(load_1m=0.5)))
    events.append(ev.CellFinished(at=4, cell=1, status="ok"))
    events.append(ev.DeviceSampled(at=5, host=HostSample(load_1m=99.0), cells=(1,)))
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"".join(map(to_line, events)))
    loaded, folded = load(path), fold(events)
    for n in numbers:
        assert loaded.cells[n].step_times_s == folded.cells[n].step_times_s == [n + step / 8 for step in range(4)]
        ours, theirs = loaded.cells[n].surroundings, folded.cells[n].surroundings
        assert (ours.samples, ours.load_1m, ours.busy_cores) == (theirs.samples, theirs.load_1m, theirs.busy_cores)
        assert ours.load_1m == n + 2 + n % 2
    assert loaded.samples.keys() == folded.samples.keys()
