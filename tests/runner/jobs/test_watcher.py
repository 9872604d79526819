"""The watcher of jobs: whatever a shared folder and a launcher may do, each cell ends once and with a name."""

from pathlib import Path

import pytest

from cs336_tui.events import events as ev
from cs336_tui.events.codec import to_line
from cs336_tui.events.environment import HostSample
from cs336_tui.runner.jobs.job import JobStatus, next_job, output_path, request_path, write_request
from cs336_tui.session.lock import lock_path
from tests.runner.jobs.made import END, RESUMED, RUNNING, Made, a_run, ended, started, steps
from tests.samples import ENVIRONMENT


@pytest.fixture
def unbegun(tmp_path: Path) -> Made:
    """One job of two cells."""
    return Made(tmp_path, {"1": (0, 1)})


@pytest.fixture
def one(unbegun: Made) -> Made:
    """The same job, which has begun its log."""
    unbegun.begin("1", (0, 1))
    return unbegun


def test_whole_lines_are_folded_as_they_come(one: Made):
    line = to_line(started(0))
    one.write("1", end=line[:20])
    one.step()
    assert one.statuses == ["queued", "queued"]
    one.write("1", end=line[20:])
    one.step()
    assert one.statuses == ["running", "queued"]
    assert one.state.cells[0].job == "1"
    assert one.state.environment == ENVIRONMENT


def test_bytes_that_a_network_file_system_has_not_delivered_are_waited_for(one: Made):
    whole = to_line(started(0)) + to_line(ended(0))
    before = one.log("1").read_bytes()
    one.log("1").write_bytes(before + bytes(len(whole)) + to_line(started(1)))
    one.step()
    assert one.statuses == ["queued", "queued"]
    one.log("1").write_bytes(before + whole + to_line(started(1)))
    one.step()
    assert one.statuses == ["ok", "running"]


def test_a_job_that_closed_its_log_is_over_before_the_launcher_says_so(one: Made):
    one.run("1", 0, 1)
    one.write("1", END)
    one.step()
    assert one.statuses == ["ok", "ok"]
    assert one.state.jobs["1"].stage == "over"
    assert one.watcher.is_done


@pytest.mark.parametrize("comes", [True, False])
def test_the_log_of_a_job_that_is_over_may_come_later_or_never(one: Made, comes: bool):
    one.run("1", 0, 1)
    one.write("1", END)
    hidden = one.log("1").rename(one.folder / "hidden")
    one.over("1", JobStatus("over", "node n1 failed to start it", ending="killed"))
    one.step()
    one.step(after_s=4.0)
    assert one.statuses == ["queued", "queued"]
    if comes:
        hidden.rename(one.log("1"))
    one.step(after_s=2.0)
    assert one.statuses == (["ok", "ok"] if comes else ["killed", "killed"])
    ends = [(cell.finished.error, cell.finished.job_over) for cell in one.state.cells.values()]
    assert ends == [(None, False) if comes else ("job id1: node n1 failed to start it", True)] * 2
    assert one.watcher.is_done


@pytest.mark.parametrize("reason", ["", "FAILED: exit code 1"])
def test_a_job_that_failed_is_named_by_the_launcher_if_it_says_anything_and_its_last_words(unbegun: Made, reason: str):
    output_path(unbegun.folder, "1").write_text("Traceback ...\nImportError: no torch here\n\n")
    unbegun.over("1", JobStatus("over", reason, ending="failed"))
    unbegun.end()
    assert unbegun.statuses == ["failed", "failed"]
    said = "; ".join(filter(None, (reason, "ImportError: no torch here")))
    assert [cell.finished.error for cell in unbegun.state.cells.values()] == [f"job id1: {said}"] * 2


@pytest.mark.parametrize("answers", [True, False])
def test_cells_that_a_job_stopped_are_called_as_the_launcher_says_else_cancelled_in_the_end(one: Made, answers: bool):
    """A job past its limit gets SIGTERM, on which it calls its cells cancelled; Slurm knows better."""
    one.write("1", started(0), ended(0, "cancelled"), ended(1, "cancelled"), END)
    if not answers:
        one.launcher.said.clear()
    one.step()
    one.step(after_s=29.0)
    assert one.statuses == ["running", "queued"]
    if answers:
        one.over("1", JobStatus("over", "time limit of 0:05 reached", ending="killed"))
    one.step(after_s=2.0)
    assert one.statuses == ["killed" if answers else "cancelled"] * 2
    assert one.state.running == {}


def test_memory_that_ran_out_is_a_result_of_the_cell_that_ran(one: Made):
    one.write("1", started(0))
    one.over("1", JobStatus("over", "out of memory", ending="oom"))
    one.end()
    assert one.statuses == ["oom", "cancelled"]
    assert [cell.finished.job_over for cell in one.state.cells.values()] == [False, True]


def test_a_job_that_ran_twice_has_one_result_a_cell(one: Made):
    """Requeued after a preemption: it goes on with its own log."""
    one.run("1", 0)
    one.write("1", started(1), steps(1, 9.0), ended(1, "cancelled"), ev.SessionEnded(at=6.0, reason="cancelled"))
    one.step()
    one.over("1", JobStatus("pending", "BeginTime"))
    one.step()
    assert one.statuses == ["ok", "queued"]
    one.step(after_s=120.0)
    assert one.state.jobs["1"].stage == "pending"
    one.write("1", RESUMED, ev.CellRequeued(at=7.0, cell=1))
    one.over("1", RUNNING)
    one.step()
    assert one.statuses == ["ok", "queued"]
    one.run("1", 1)
    one.write("1", END)
    one.step()
    assert one.statuses == ["ok", "ok"]
    assert one.state.cells[1].step_times_s == [0.1, 0.2, 0.3]
    assert [len(cell.earlier) for cell in one.state.cells.values()] == [0, 1]


@pytest.mark.parametrize("is_its_end", [False, True])
def test_a_damaged_line_is_passed_over_and_told_and_a_cell_whose_end_it_is_has_no_result(one: Made, is_its_end: bool):
    one.run("1", 0)
    one.write("1", *([started(1)] if is_its_end else []), end=b'{"type":"CellFinished","cell":\xff\n')
    one.write("1", *([] if is_its_end else a_run(1)), END)
    one.over("1", JobStatus("over", ending="failed"))
    one.step()
    assert one.statuses == ["ok", "failed" if is_its_end else "ok"]
    assert one.state.cells[1].finished.job_over == is_its_end
    (notice,) = one.state.notices
    assert notice.text.startswith(f"1.jsonl, line {10 if is_its_end else 9}: damaged")


def test_a_new_watcher_counts_nothing_twice(one: Made):
    one.run("1", 0)
    one.write("1", started(1), steps(1, 0.5))
    one.step()
    before = len([event for event in one.events if isinstance(event, ev.CellFinished)])
    one.watcher = one.new_watcher()
    one.step()
    assert one.statuses == ["ok", "running"]
    assert one.state.cells[1].step_times_s == [0.5]
    assert len([event for event in one.events if isinstance(event, ev.CellFinished)]) == before
    one.write("1", ended(1), END)
    one.step()
    assert one.statuses == ["ok", "ok"]
    assert one.state.cells[0].earlier == []


@pytest.mark.parametrize("seen", [True, False])
def test_a_killed_run_of_a_requeued_job_waits_again_and_a_new_watcher_tells_each_attempt_once(one: Made, seen: bool):
    one.write("1", started(0), steps(0, 9.0))
    if seen:
        one.step()
    one.write("1", RESUMED)
    if seen:
        one.step()
    assert one.statuses == ["queued", "queued"]
    one.write("1", started(0, at=8.0), steps(0, 0.5))
    one.watcher = one.new_watcher()
    one.step()
    assert one.state.cells[0].step_times_s == [0.5]
    assert [attempt.step_times_s for attempt in one.state.cells[0].earlier] == [[9.0]]


def test_a_result_that_came_after_the_jobs_end_counts_for_the_next_watcher(one: Made):
    one.write("1", started(0))
    one.over("1")
    one.end()
    assert one.statuses == ["killed", "killed"]
    one.write("1", steps(0, 0.5), ended(0), started(1), steps(1, 0.1))
    one.watcher = one.new_watcher()
    one.step()
    assert one.statuses == ["ok", "killed"]
    assert one.state.cells[0].step_times_s == [0.5]
    assert one.state.running == {}
    assert one.watcher.is_done


def test_a_job_whose_submission_was_not_recorded_is_withdrawn_and_its_number_not_used_again(unbegun: Made):
    """The former watcher was killed while it submitted: the launcher's name for that job is not known."""
    write_request(unbegun.folder, unbegun.request("2", (1,)))
    unbegun.log("3").touch()
    unbegun.watcher = unbegun.new_watcher()
    assert [path.name for path in unbegun.folder.glob("*.json")] == ["1.json"]
    assert unbegun.state.notices[-1].text.startswith("job 2 is withdrawn")
    assert next_job(unbegun.folder, unbegun.state.jobs) == 4


def test_a_job_that_stopped_is_over_though_its_launcher_goes_on_calling_it_running(one: Made):
    """As Slurm does where its daemon on the node was killed."""
    one.run("1", 0)
    one.write("1", ended(1, "cancelled"), END)
    one.step()
    for _ in range(8):
        one.step(after_s=10.0)
    assert one.statuses == ["ok", "cancelled"]
    assert one.launcher.cancelled == ["id1"]
    assert one.watcher.is_done


def test_a_job_that_was_killed_is_withdrawn_and_its_lock_goes(one: Made):
    """Whatever lives of it stops, as on a node whose daemon was killed: its cells may run again elsewhere."""
    lock = lock_path(one.log("1"))
    lock.write_bytes(b"{}")
    one.step()
    assert lock.exists()
    assert request_path(one.folder, "1").exists()
    one.over("1")
    one.end()
    assert not lock.exists()
    assert not request_path(one.folder, "1").exists()


def test_a_launcher_that_does_not_answer_is_told_once_and_holds_nothing_up(one: Made):
    one.launcher.problem = "squeue: Unable to contact slurm controller"
    one.step()
    one.run("1", 0)
    one.step()
    assert one.statuses == ["ok", "queued"]
    assert [notice.text for notice in one.state.notices] == ["squeue: Unable to contact slurm controller"]
    one.launcher.problem = None
    one.over("1")
    one.end()
    assert one.statuses == ["ok", "killed"]


def test_lanes_and_reports_of_several_jobs_get_numbers_of_their_own(tmp_path: Path):
    made = Made(tmp_path, {"1": (0,), "2": (1,)})
    lanes = ev.LanesOpened(at=2.5, lanes=(ev.Lane(lane=0, device="cuda:0"), ev.Lane(lane=1, device="cuda:1")))
    for job, cell in (("1", 0), ("2", 1)):
        made.begin(job, (cell,))
        spec = made.specs[cell]
        made.write(job, lanes, ev.CellStarted(at=3.0, cell=cell, lanes=(1,), device="cuda:1"), ended(cell))
        made.write(job, ev.ReportStarted(at=6.0, report=0, kind="kernels", spec=spec, cell=cell))
    made.step()
    state = made.state
    assert [(lane.lane.job, lane.lane.machine, lane.lane.device) for lane in state.lanes.values()] == [
        *(("1", "gpu-box", device) for device in ("cuda:0", "cuda:1")),
        *(("2", "gpu-box", device) for device in ("cuda:0", "cuda:1")),
    ]
    assert [cell.lanes for cell in state.cells.values()] == [(1,), (3,)]
    assert [report.cell for report in state.reports.values()] == [0, 1]
    made.watcher = made.new_watcher()
    for job in ("1", "2"):
        made.write(job, ev.ReportFinished(at=7.0, report=0, status="failed", error=f"of {job}"), END)
    made.step()
    assert [report.error for report in made.state.reports.values()] == ["of 1", "of 2"]
    assert len(made.state.lanes) == 4


def test_a_job_that_ran_twice_has_its_lanes_once(one: Made):
    lanes = ev.LanesOpened(at=2.5, lanes=tuple(ev.Lane(lane=n, device=f"cuda:{n}") for n in range(2)))
    one.write("1", lanes, ev.CellStarted(at=3.0, cell=0, lanes=(0,)))
    one.step()
    one.write("1", RESUMED, lanes, ev.CellStarted(at=7.0, cell=0, lanes=(1,)))
    one.step()
    one.watcher = one.new_watcher()
    one.step()
    assert list(one.state.lanes) == [0, 1]
    assert one.state.cells[0].lanes == (1,)


def test_a_report_that_a_job_left_unmade_ends_with_it(one: Made):
    one.run("1", 0, 1)
    one.write("1", ev.ReportStarted(at=6.0, report=0, kind="kernels", spec=one.specs[0], cell=0))
    one.over("1")
    one.end()
    (report,) = one.state.reports.values()
    assert (report.status, report.error) == ("killed", "job id1: killed by signal 9")


def test_samples_are_of_the_cells_of_their_job(tmp_path: Path):
    made = Made(tmp_path, {"1": (0,), "2": (1,)})
    host = HostSample(cpu=0.5, load_1m=1.0)
    for job, cell in (("1", 0), ("2", 1)):
        made.begin(job, (cell,))
        made.write(job, started(cell), ev.StageChanged(at=3.5, cell=cell, stage="measuring"))
    made.write("2", ev.DeviceSampled(at=4.0, host=host))
    made.step()
    assert [cell.surroundings.samples for cell in made.state.cells.values()] == [0, 1]


def test_jobs_that_wait_say_why(unbegun: Made):
    unbegun.over("1", JobStatus("pending", "Resources"))
    unbegun.step()
    unbegun.step()
    assert [event.reason for event in unbegun.events if isinstance(event, ev.JobChanged)] == ["Resources"]
    assert unbegun.watcher.cancel()
    unbegun.step()
    assert unbegun.launcher.cancelled == ["id1"]
