"""Sessions whose cells run in jobs, started as plain processes of this machine."""

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.events.codec import to_line
from cs336_tui.runner.jobs import job as job_files
from cs336_tui.runner.jobs.bench import JobsBench, make_launcher
from cs336_tui.runner.jobs.job import JobRequest, LaunchChoice, LaunchError
from cs336_tui.session.log import LogError
from cs336_tui.session.state import SessionState
from cs336_tui.session.store import delete, load
from tests.runner.jobs.made import END, Made, MadeLauncher, a_run
from tests.watching import PATIENCE_S, Watch, endless_spec, small_spec, wait_gone

SETTINGS = JobRequest(session="s", job="", cells=(), device_interval_s=0)
ALLOCATION = LaunchChoice(launcher="local", form="allocation")


def queued(*specs: CellSpec) -> list[ev.CellsQueued]:
    return [ev.CellsQueued(at=1.0, first=0, specs=specs)]


def statuses(state: SessionState) -> list[str]:
    return [cell.status for cell in state.cells.values()]


def test_nothing_is_left_where_nothing_could_be_submitted(tmp_path: Path):
    bench = JobsBench(Watch(), tmp_path / "s.jsonl", make=_refusing)
    with pytest.raises(LaunchError, match="no such partition"):
        bench.submit(queued(small_spec()), ALLOCATION, SETTINGS)
    assert list(tmp_path.iterdir()) == []


def test_a_session_that_is_closed_while_it_submits_records_its_jobs(tmp_path: Path):
    """As after Ctrl-C: watching ends, the jobs go on, so the session must know them."""
    asked, answer, recorded = threading.Event(), threading.Event(), Watch()
    launcher = MadeLauncher()
    submit = launcher.submit

    def slow(*words) -> list[str]:
        asked.set()
        assert answer.wait(PATIENCE_S)
        return submit(*words)

    launcher.submit = slow  # type: ignore[method-assign]
    bench = JobsBench(recorded, tmp_path / "s.jsonl")
    submits = threading.Thread(
        target=bench.submit, args=(queued(small_spec()), ALLOCATION, SETTINGS, launcher), daemon=True
    )
    submits.start()
    assert asked.wait(PATIENCE_S)
    closes = threading.Thread(target=bench.close, daemon=True)
    closes.start()
    closes.join(1.5)  # without an answer it has nothing to end with
    answer.set()
    for thread in (submits, closes):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert list(load(tmp_path / "s.jsonl").jobs) == ["1"]


def test_a_job_is_watched_taken_over_killed_resumed_and_cancelled(tmp_path: Path):
    log = tmp_path / "s.jsonl"
    follower = Watch()
    first, second = (JobsBench(watch, log, poll_s=0.1) for watch in (Watch(), follower))
    first.submit(queued(endless_spec()), ALLOCATION, SETTINGS)
    first_works = threading.Thread(target=first.work)
    first_works.start()
    second.watch()
    second_works = threading.Thread(target=second.work)
    second_works.start()
    follower.until(lambda state: state.cells[0].step_times_s)
    assert second._tail is not None
    first.close()
    first_works.join(PATIENCE_S)
    pid = int(follower.state.jobs["1"].submitted.id.partition("@")[0])
    follower.until(lambda _: second._tail is None)
    os.killpg(pid, signal.SIGKILL)
    follower.until(lambda state: state.ended)
    second_works.join(PATIENCE_S)
    second.close()
    assert statuses(load(log)) == ["killed"]
    assert wait_gone(follower.state.cells[0].pid)

    third = JobsBench(again := Watch(), log, poll_s=0.1)
    assert third.resume(SETTINGS) == (0,)
    works = threading.Thread(target=third.work)
    works.start()
    again.until(lambda state: state.cells[0].step_times_s and state.cells[0].status == "running")
    assert third.cancel()
    works.join(PATIENCE_S)
    third.close()
    state = load(log)
    assert statuses(state) == ["cancelled"]
    assert {number: job.stage for number, job in state.jobs.items()} == {"1": "over", "2": "over"}
    assert len(state.cells[0].earlier) >= 1
    assert state.cells[0].step_times_s == again.state.cells[0].step_times_s
    folder = log.with_suffix(".jobs")
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == dict.fromkeys(modes, 0o600)
    assert modes.keys() >= {"launcher.json", "1.withdrawn", "1.jsonl", "1.out"}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert wait_gone(again.state.cells[0].pid)


@pytest.mark.parametrize("cells", [0, 1])
@pytest.mark.parametrize("act", ["resume", "watch"])
def test_of_a_log_that_was_cut_before_its_cells_were_whole_no_job_is_withdrawn(tmp_path: Path, cells: int, act: str):
    made = Made(tmp_path, {"1": (0, 1)})
    begin = [ev.SessionStarted(at=0.0, schema=ev.SCHEMA, session="s", app="0")]
    queues = [ev.CellsQueued(at=0.0, first=n, specs=(spec,)) for n, spec in made.specs.items()]
    whole = b"".join(map(to_line, [*begin, *queues[:cells]]))
    log = tmp_path / "s.jsonl"
    log.write_bytes(whole + to_line(queues[cells])[:-20])
    job_files.write_choice(made.folder, ALLOCATION)
    before = log.read_bytes()
    bench = JobsBench(Watch(), log, make=lambda _: made.launcher)
    with pytest.raises(LaunchError, match=r"cut before its cells were whole.*cs336-tui delete .*s.jsonl"):
        bench.resume(SETTINGS) if act == "resume" else bench.watch()
    bench.close()
    assert job_files.request_path(made.folder, "1").exists()
    assert log.read_bytes() == before
    assert not made.launcher.submitted


def test_a_session_that_is_over_is_looked_at_without_writing(tmp_path: Path):
    made = Made(tmp_path, {"1": (0,)})
    log = _written(tmp_path, [*made.events, *a_run(0), END])
    before = log.read_bytes()
    bench = JobsBench(watch := Watch(), log)
    bench.watch()
    bench.work()
    assert not bench.log_path.with_suffix(".writer").exists()
    bench.close()
    assert log.read_bytes() == before
    assert statuses(watch.state) == ["ok"]


def test_jobs_that_are_submitted_anew_are_as_the_session_asked(tmp_path: Path):
    made = Made(tmp_path, {})
    queue = ev.CellsQueued(
        at=0.0, first=0, specs=(small_spec(),), ddof=0, command="bench --no-oom-skip", reports=("kernels",)
    )
    log = _written(tmp_path, [queue])
    job_files.write_choice(made.folder, ALLOCATION)
    bench = JobsBench(Watch(), log, make=lambda _: made.launcher)
    bench.resume(SETTINGS)
    bench.close()
    (request,) = made.launcher.submitted
    assert (request.ddof, request.skip_after_oom, request.cells[0].reports) == (0, False, ("kernels",))


def test_a_session_is_not_deleted_while_its_jobs_may_go_on(tmp_path: Path):
    made = Made(tmp_path, {"1": (0,)})
    log = _written(tmp_path, made.events)
    with pytest.raises(LogError, match="cs336-tui cancel s"):
        delete(log)
    _written(tmp_path, [*made.events, ev.JobChanged(at=3.0, job="1", stage="over")])
    delete(log)
    assert list(tmp_path.iterdir()) == []


def _written(folder: Path, events: Sequence[ev.Event]) -> Path:
    """A session's log with these events after its first."""
    log = folder / "s.jsonl"
    first = ev.SessionStarted(at=0.0, schema=ev.SCHEMA, session="s", app="0")
    log.write_bytes(b"".join(map(to_line, [first, *events])))
    return log


def _refusing(_choice: LaunchChoice):
    from cs336_tui.runner.jobs.local import LocalLauncher

    class Refusing(LocalLauncher):
        def submit(self, *_):
            raise LaunchError("no such partition")

    return Refusing()


@pytest.mark.parametrize("character", ["\n", "\r", "\0", "\x1b", "\x85", "\u2028"])
@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("--partition", lambda text: {"partition": text}),
        ("--time", lambda text: {"time": text}),
        ("--slurm", lambda text: {"parameters": (("qos", text),)}),
        ("--slurm", lambda text: {"parameters": ((text, "a"),)}),
    ],
)
def test_a_text_of_several_lines_reaches_no_script(option: str, given: Any, character: str) -> None:
    choice = LaunchChoice(launcher="slurm", **given(f"ci{character}#SBATCH --wrap=rm"))
    with pytest.raises(LaunchError, match=f"{option} .*expected one line without control characters") as refused:
        make_launcher(choice)
    assert str(refused.value).isprintable()
