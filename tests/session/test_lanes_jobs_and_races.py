"""A session whose cells run side by side, in lanes or in jobs, or are visits of a race: whose steps, samples and time
they are."""

from collections.abc import Sequence
from pathlib import Path

from cs336_tui.events import events as ev
from cs336_tui.events.environment import HostSample
from cs336_tui.session.load import load
from cs336_tui.session.state import SessionState, fold, visit_cells, visits_of
from tests.made_race import race_events
from tests.samples import START, a_spec, write_log


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


def test_a_job_tells_why_its_cells_wait():
    submitted = ev.JobSubmitted(at=1, job="1", launcher="slurm", id="7_0", cells=(1,), where="ci")
    state = in_lanes(submitted, ev.JobChanged(at=2, job="1", stage="pending", reason="Resources"))
    job = state.job_of(state.cells[1])
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
    loaded, folded = load(write_log(tmp_path / "s.jsonl", events)), fold(events)
    for n in numbers:
        assert loaded.cells[n].step_times_s == folded.cells[n].step_times_s == [n + step / 8 for step in range(4)]
        ours, theirs = loaded.cells[n].surroundings, folded.cells[n].surroundings
        assert (ours.samples, ours.load_1m, ours.busy_cores) == (theirs.samples, theirs.load_1m, theirs.busy_cores)
        assert ours.load_1m == n + 2 + n % 2
    assert loaded.samples.keys() == folded.samples.keys()


NOW = START + 1000


def queued_after(events: Sequence[ev.Event], candidate: int = 0) -> tuple[SessionState, int]:
    """The session in which this candidate of the last race is queued once more, and the number of its cell."""
    state = fold(events)
    number = len(state.cells)
    state.apply(ev.CellsQueued(at=NOW, first=number, specs=(state.tuning.candidates[candidate],)))
    return state, number


def test_a_candidate_that_is_queued_is_visited_while_the_race_goes_on_and_not_after_its_end() -> None:
    state, number = queued_after(race_events())
    assert visits_of(state)[0][-1].cell == number
    assert number in visit_cells(state)
    ended = race_events(ended="decided")
    state, number = queued_after(ended)
    assert visits_of(state).keys() == visits_of(fold(ended)).keys()
    assert visit_cells(state) == visit_cells(fold(ended))
    assert number not in visit_cells(state)


def test_visits_of_an_earlier_race_stay_visits() -> None:
    first = race_events(ended="decided")
    (begun,) = (event for event in first if isinstance(event, ev.TuningStarted))
    state, number = queued_after([*first, begun])
    assert {each: [cell.cell for cell in cells] for each, cells in visits_of(state).items()} == {0: [number]}
    assert visit_cells(state) == visit_cells(fold(first)) | {number}
    assert state.races[-1].ended is None
    assert len(state.races) == 2


def test_the_time_of_a_race_is_that_in_which_it_runs() -> None:
    events = race_events()
    spent_s, at = fold(events).races[-1].spent_s, events[-1].at
    assert spent_s == at - START
    idle = ev.DeviceSampled(at=at + 50, host=HostSample())
    assert fold([*events, idle, ev.Notice(at=at + 60, text="idle")]).races[-1].spent_s == spent_s
    went_on: list[ev.Event] = [ev.SessionResumed(at=at + 100, app="0"), ev.CellStarted(at=at + 103, cell=0, pid=1)]
    assert fold([*events, idle, *went_on]).races[-1].spent_s == spent_s + 3


def test_samples_of_a_visit_and_checks_are_time_of_the_race() -> None:
    running, spec = race_events(running=4), a_spec()
    at = running[-1].at
    checked: list[ev.Event] = [
        ev.ReportStarted(at=at + 2, report=0, kind="agreement", spec=spec),
        ev.ReportFinished(at=at + 5, report=0, status="ok"),
    ]
    assert fold([*running, ev.DeviceSampled(at=at + 1, host=HostSample())]).races[-1].spent_s == at + 1 - START
    assert fold([*running, *checked]).races[-1].spent_s == at + 5 - START


def test_what_else_runs_after_a_stop_takes_no_time_of_the_race() -> None:
    running = race_events(running=4)
    at, visit = running[-1].at, len(fold(running).cells) - 1
    stopped = [*running, ev.CellFinished(at=at + 1, cell=visit, status="cancelled")]
    others: list[ev.Event] = [
        ev.ReportStarted(at=at + 100, report=0, kind="kernels", spec=a_spec()),
        ev.ReportFinished(at=at + 110, report=0, status="ok"),
        ev.CellsQueued(at=at + 200, first=visit + 1, specs=(a_spec(context_length=64),)),
        ev.CellStarted(at=at + 201, cell=visit + 1, pid=1),
        ev.DeviceSampled(at=at + 202, host=HostSample()),
        ev.CellFinished(at=at + 203, cell=visit + 1, status="ok"),
    ]
    assert fold([*stopped, *others]).races[-1].spent_s == at + 1 - START
    goes_on: list[ev.Event] = [
        ev.CellRequeued(at=at + 300, cell=visit),
        ev.SessionResumed(at=at + 301, app="0"),
        ev.CellStarted(at=at + 303, cell=visit, pid=1),
    ]
    assert fold([*stopped, *others, *goes_on]).races[-1].spent_s == at + 3 - START
