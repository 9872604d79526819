"""Sessions whose cells run on two machines by ssh: real connections, real jobs, real cells."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cs336_tui.session.log import LogError
from cs336_tui.session.state import SessionState
from cs336_tui.session.store import load
from tests.cluster.sshd import Machines, until
from tests.commands import SMALL

CELLS = " ".join([*SMALL, "--pass forward --warmup 0 --launcher ssh"])
SWEEP = f"{CELLS} --host gpu1,gpu2"
Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(machines: Machines, tmp_path: Path) -> Iterator[Start]:
    """Starts a command of cs336-tui with the sessions of this test; all are ended with it. With ``--quick`` the
    machines are believed to be as they are."""
    started: list[subprocess.Popen[str]] = []

    def begin(words: str) -> subprocess.Popen[str]:
        command, *more = words.split()
        asked = [machine for machine in machines.all.values() if machine.name in words and "--quick" in more]
        more += [f"--remote-command={machine.name}={machine.quick}" for machine in asked]
        given = [word for word in more if word != "--quick"]
        full = [sys.executable, "-m", "cs336_tui", command, *given, "--session-dir", str(tmp_path)]
        with (tmp_path / f"{len(started)}.err").open("w") as said:
            started.append(subprocess.Popen(full, stdout=subprocess.PIPE, stderr=said, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def state_of(folder: Path) -> SessionState:
    (log,) = folder.glob("*.jsonl")
    return load(log)


def wait_for(folder: Path, what: str, holds: Callable[[SessionState], object]) -> None:
    """Wait until the session's log says so."""

    def look() -> object:
        with contextlib.suppress(LogError):  # it has just been made
            return any(folder.glob("*.jsonl")) and holds(state_of(folder))
        return False

    until(look, what)


def test_a_sweep_runs_on_both_machines_and_is_one_session(machines: Machines, start: Start, tmp_path: Path) -> None:
    run = start(f"bench {SWEEP} --batch 1,2,3,4 --steps 12 --format json")
    document = json.loads(run.communicate()[0])
    assert run.returncode == 0
    assert [cell["status"] for cell in document["runs"]] == ["ok"] * 4
    state = state_of(tmp_path)
    hosts = {cell.cell: cell.environment.host for cell in state.cells.values() if cell.environment}
    assert set(hosts.values()) == {"gpu1", "gpu2"}
    assert {job.submitted.where: set(job.submitted.cells) for job in state.jobs.values()} == {
        host: {cell for cell, where in hosts.items() if where == host} for host in ("gpu1", "gpu2")
    }
    assert {lane.lane.machine for lane in state.lanes.values()} == {"gpu1", "gpu2"}
    for machine in machines.all.values():
        assert list(machine.jobs.iterdir()) == []
        assert machine.of_jobs() == []


def test_a_watcher_that_is_killed_is_followed_by_another_and_a_machine_that_dies_by_the_other(
    machines: Machines, start: Start, tmp_path: Path
) -> None:
    first = start(f"bench {SWEEP} --batch 1,2 --steps 1000000 --host-timeout 1 --quick")
    wait_for(tmp_path, "both to measure", lambda state: sum(c.steps_done > 0 for c in state.cells.values()) == 2)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = {name: len(machine.of_jobs()) for name, machine in machines.all.items()}
    assert all(before.values())
    watching = start("watch last")
    wait_for(tmp_path, "the watcher to fold", lambda state: sum(c.steps_done > 0 for c in state.cells.values()) == 2)
    machines["gpu2"].stop()
    wait_for(tmp_path, "its cell to move", lambda state: "3" in state.jobs and state.jobs["3"].reason)
    state = state_of(tmp_path)
    assert state.jobs["3"].submitted.where == "gpu1"
    assert (state.jobs["3"].stage, state.jobs["3"].reason) == ("pending", "waits for another job on gpu1")
    assert [cell.status for cell in state.cells.values()] == ["running", "queued"]
    assert any("job 2 is lost, its cells run again: 1 cell in job 3" in notice.text for notice in state.notices)
    machines["gpu2"].start()
    until(lambda: not machines["gpu2"].of_jobs(), "the lost job to end")
    assert start("cancel last").wait() == 0
    assert watching.wait() == 130
    assert [cell.status for cell in state_of(tmp_path).cells.values()] == ["cancelled"] * 2
    assert machines["gpu1"].of_jobs() == []


def test_run_job_killed_leaves_no_process_and_resuming_runs_what_is_left(
    machines: Machines, start: Start, tmp_path: Path
) -> None:
    run = start(f"bench {CELLS} --batch 1,2 --steps 1000 --host gpu1 --lanes 1 --quick")
    job: list[psutil.Process] = []

    def begun() -> bool:
        job[:] = machines["gpu1"].processes("run-job", "cs336-tui", "python")
        return bool(job) and any(b"StepsTimed" in log.read_bytes() for log in machines["gpu1"].jobs.glob("*/*.jsonl"))

    until(begun, "a cell to run")
    job[0].kill()
    assert run.wait() == 1
    until(lambda: not machines["gpu1"].of_jobs(), "all processes to end")
    state = state_of(tmp_path)
    killed = [cell for cell in state.cells.values() if cell.status == "killed"]
    assert killed
    assert all(
        "run-job was killed on gpu1 by signal 9" in (cell.finished.error or "") for cell in killed if cell.finished
    )
    again = start("resume last")
    assert again.wait() == 0
    assert [cell.status for cell in state_of(tmp_path).cells.values()] == ["ok", "ok"]
