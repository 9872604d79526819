"""The launcher of jobs by ssh, on real connections to two machines; their jobs are stand-ins that write what they are
told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from cs336_tui.events import events as ev
from cs336_tui.events.codec import to_line
from cs336_tui.runner.jobs.bench import JobsBench
from cs336_tui.runner.jobs.choice import LaunchChoice
from cs336_tui.runner.jobs.job import JobCell, JobRequest, JobStatus, LaunchError
from cs336_tui.runner.jobs.ssh import SshLauncher
from cs336_tui.runner.machine import Diagnosis
from tests.cluster.sshd import Machines, environment, until
from tests.samples import a_spec
from tests.watching import Watch

SESSION = "a session"
HELLO = ev.Notice(at=1.0, text="hello")
BYE = ev.SessionEnded(at=2.0, reason="finished")
Make = Callable[..., SshLauncher]


@pytest.fixture
def launcher(machines: Machines) -> Iterator[Make]:
    """Makes launchers that look often, with the stand-in on both machines."""
    made: list[SshLauncher] = []

    def make(*hosts: str, **choice: object) -> SshLauncher:
        commands = tuple((name, str(machine.stand_in)) for name, machine in machines.all.items())
        found = LaunchChoice(launcher="ssh", hosts=hosts or ("gpu1", "gpu2"), remote_commands=commands)
        made.append(SshLauncher(msgspec.structs.replace(found, **choice), look_every_s=0.02))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / f"{SESSION}.jobs"
    made.mkdir()
    return made


def request(job: str, machine: str = "") -> JobRequest:
    return JobRequest(session=SESSION, job=job, cells=(JobCell(0, a_spec()),), machine=machine)


def status_of(launcher: SshLauncher, id: str, when: Callable[[JobStatus], bool]) -> JobStatus:
    """The status of a job once it is so."""
    found: list[JobStatus] = []

    def holds() -> bool:
        found[:] = launcher.statuses([id]).values()
        return bool(found) and when(found[0])

    until(holds, "a status")
    return found[0]


def read(launcher: SshLauncher, id: str, folder: Path, *events: ev.Event) -> None:
    """Wait until the log of a job here is of these events."""
    log, expected = folder / f"{id[-1]}.jsonl", b"".join(map(to_line, events))
    until(lambda: launcher.read(id, log, 0) == expected, f"{len(events)} events")


def test_jobs_run_where_they_shall_and_their_logs_and_files_come_home(
    machines: Machines, launcher: Make, folder: Path
) -> None:
    here = launcher()
    assert [(place.name, place.environment.host) for place in here.prepare(request("1").cells)] == [
        ("gpu1", "gpu1"),
        ("gpu2", "gpu2"),
    ]
    ids = here.submit([request("1", "gpu2"), request("2", "gpu1")], folder)
    assert ids == [f"gpu2:{SESSION}/1", f"gpu1:{SESSION}/2"]
    assert [here.where(id) for id in ids] == ["gpu2", "gpu1"]
    assert status_of(here, ids[0], bool) == JobStatus("running", "", "gpu2")
    machines["gpu2"].say(f"{SESSION}/1", HELLO)
    read(here, ids[0], folder, HELLO)
    machines["gpu2"].say(f"{SESSION}/1", BYE)
    read(here, ids[0], folder, HELLO, BYE)
    over = status_of(here, ids[0], lambda status: status.stage == "over")
    assert over == JobStatus("over", "", "gpu2", "failed", is_whole=True)
    assert (folder / "1.files" / "a trace.json").read_bytes() == bytes(range(256)) * 5000
    assert (folder / "1.out").read_text() == f"it runs in {Path.cwd()}\n"
    until(lambda: not machines["gpu2"].jobs.joinpath(SESSION).exists(), "the folder there to go")
    assert not machines["gpu2"].of_jobs()
    assert machines["gpu1"].of_jobs()


def test_a_cut_connection_changes_nothing_but_the_status(machines: Machines, launcher: Make, folder: Path) -> None:
    here = launcher("gpu1")
    (id,) = here.submit([request("1")], folder)
    machines["gpu1"].say(f"{SESSION}/1", HELLO)
    read(here, id, folder, HELLO)
    assert machines.kill_masters()
    machines["gpu1"].say(f"{SESSION}/1", HELLO)
    read(here, id, folder, HELLO, HELLO)
    machines["gpu1"].stop()
    lost = status_of(here, id, lambda status: "unreachable" in status.reason)
    assert lost.stage == "running"
    assert lost.reason.startswith("gpu1 unreachable since ")
    assert lost.reason.endswith("Connection refused; given up after 10:00")
    machines["gpu1"].say(f"{SESSION}/1", HELLO, BYE)
    machines["gpu1"].start()
    assert status_of(here, id, lambda status: status.stage == "over").ending == "failed"
    read(here, id, folder, HELLO, HELLO, HELLO, BYE)


def test_a_host_that_stays_away_is_given_up_and_its_job_ended_when_it_is_back(
    machines: Machines, launcher: Make, folder: Path
) -> None:
    here = launcher(host_timeout_s=0.3)
    (id,) = here.submit([request("1", "gpu1")], folder)
    machines["gpu1"].stop()
    over = status_of(here, id, lambda status: status.stage == "over")
    assert (over.ending, over.elsewhere) == ("killed", True)
    assert "given up after" in over.reason
    assert [place.problem == "" for place in here.prepare(request("1").cells)] == [False, True]
    assert here.where(*here.submit([request("2", "gpu1")], folder)) == "gpu2"
    assert machines["gpu1"].of_jobs()
    machines["gpu1"].start()
    until(lambda: not machines["gpu1"].of_jobs(), "the lost job to end")
    assert machines["gpu2"].of_jobs()


def test_a_job_that_is_cancelled_before_it_listens_is_not_run_elsewhere(
    machines: Machines, launcher: Make, folder: Path
) -> None:
    deaf = machines["gpu1"].home / "deaf"
    deaf.write_text(
        f'#!/bin/sh\n[ "$1" != run-job ] || exec sh -c "sleep 1000; :" "$@"\n{machines["gpu1"].stand_in} "$@"\n'
    )
    deaf.chmod(0o755)
    here = launcher(remote_commands=(("gpu1", str(deaf)), ("gpu2", str(machines["gpu2"].stand_in))))
    (id,) = here.submit([request("1", "gpu1")], folder)
    launcher().cancel([id])
    over = status_of(here, id, lambda status: status.stage == "over")
    assert (over.ending, over.elsewhere) == ("cancelled", False)


def test_a_job_that_fails_at_once_is_run_elsewhere(machines: Machines, launcher: Make, folder: Path) -> None:
    failing = machines["gpu1"].home / "failing"
    failing.write_text(
        f'#!/bin/sh\n[ "$1" != run-job ] || {{ echo disk full; exit 1; }}\n{machines["gpu1"].stand_in} "$@"\n'
    )
    failing.chmod(0o755)
    here = launcher(remote_commands=(("gpu1", str(failing)), ("gpu2", str(machines["gpu2"].stand_in))))
    (id,) = here.submit([request("1", "gpu1")], folder)
    over = status_of(here, id, lambda status: status.stage == "over")
    assert (over.reason, over.elsewhere) == ("exit code 1 on gpu1: disk full", True)
    assert here.where(*here.submit([request("2", "gpu1")], folder)) == "gpu2"


@pytest.mark.parametrize("what", ["run-job", "shell"])
def test_a_job_killed_there_leaves_nothing_behind(machines: Machines, launcher: Make, folder: Path, what: str) -> None:
    here = launcher()
    (id,) = here.submit([request("1", "gpu1")], folder)
    machines["gpu1"].say(f"{SESSION}/1", HELLO)
    read(here, id, folder, HELLO)
    (job,) = machines["gpu1"].processes("stand-in run-job")
    if what == "shell":
        for shell in machines["gpu1"].processes("CS336_TUI_JOB="):
            shell.kill()
    job.kill()
    over = status_of(here, id, lambda status: status.stage == "over")
    assert (over.ending, over.elsewhere) == ("killed", True)
    assert over.reason == f"run-job was killed on gpu1{' by signal 9' if what == 'run-job' else ''}"
    assert not machines["gpu1"].of_jobs()
    read(here, id, folder, HELLO)


def test_a_machine_that_reboots_is_named(machines: Machines, launcher: Make, folder: Path) -> None:
    here = launcher("gpu1")
    (id,) = here.submit([request("1")], folder)
    machines["gpu1"].reboot()
    over = status_of(here, id, lambda status: status.stage == "over")
    assert (over.reason, over.ending, over.elsewhere) == ("gpu1 rebooted", "killed", False)


def test_connections_that_the_user_shares_are_used(machines: Machines, launcher: Make) -> None:
    stand_in = (("", str(machines["gpu1"].stand_in)),)
    launcher("shared", remote_commands=stand_in).prepare(request("1").cells)
    assert len(machines.shared_by_user()) == 1


def test_what_would_be_started_is_told(machines: Machines, launcher: Make, folder: Path) -> None:
    here = launcher("gpu1")
    here.prepare(request("1").cells)
    assert here.plan([request("1", "gpu1")], folder).splitlines() == [
        f"ssh gpu1 {machines['gpu1'].stand_in} run-job ~/.local/share/cs336-tui/jobs/{SESSION}/1.json",
        f"  1 cell in 1 lane, its log copied to {folder}/1.jsonl",
        f"  cell 1: {a_spec().heading}",
    ]
    assert not machines["gpu1"].jobs.exists()


def test_cancelling_ends_everything_there(machines: Machines, launcher: Make, folder: Path) -> None:
    here = launcher()
    ids = here.submit([request("1", "gpu1"), request("2", "gpu2")], folder)
    launcher().cancel(ids)
    for id in ids:
        over = status_of(here, id, lambda status: status.stage == "over")
        assert (over.ending, over.elsewhere) == ("cancelled", False)
    assert not [*machines["gpu1"].of_jobs(), *machines["gpu2"].of_jobs()]


def test_two_jobs_on_a_machine_run_one_after_the_other(machines: Machines, launcher: Make, folder: Path) -> None:
    here = launcher("gpu1")
    first, second = here.submit([request("1"), request("2")], folder)
    waiting = status_of(here, second, bool)
    assert waiting == JobStatus("pending", "waits for another job on gpu1", "gpu1")
    (third,) = here.submit([request("3")], folder)
    here.cancel([second])
    assert status_of(here, second, lambda status: status.stage == "over").ending == "cancelled"
    assert len(machines["gpu1"].processes("stand-in run-job")) == 1
    machines["gpu1"].say(f"{SESSION}/1", BYE)
    status_of(here, third, lambda status: status.stage == "running")
    assert status_of(here, first, lambda status: status.stage == "over").ending == "failed"


def test_jobs_that_a_session_does_not_know_of_are_ended(machines: Machines, launcher: Make, folder: Path) -> None:
    launcher().submit([request("1", "gpu1"), request("2", "gpu2"), request("3", "gpu1")], folder)
    here = launcher()
    here.read(f"gpu2:{SESSION}/2", folder / "2.jsonl", 0)
    here.prepare(request("4").cells)
    (folder / "1.jsonl").write_text("of the job that nobody knows\n")
    (id,) = here.submit([request("1", "gpu1")], folder)
    assert id == f"gpu1:{SESSION}/1"
    machines["gpu1"].say(f"{SESSION}/1", HELLO)
    read(here, id, folder, HELLO)
    assert len(machines["gpu1"].processes("stand-in run-job")) == 1
    assert len(machines["gpu2"].processes("stand-in run-job")) == 1
    assert [path.name for path in machines["gpu1"].jobs.glob("*/*.json")] == ["1.json"]


def test_cancelling_gives_up_a_host_that_is_away(machines: Machines, launcher: Make, folder: Path) -> None:
    here = launcher()
    (id,) = here.submit([request("1", "gpu1")], folder)
    machines["gpu1"].stop()
    with pytest.raises(LaunchError, match=r"host gpu1 cannot be reached .*: what runs there ends when it is back"):
        here.cancel([id])
    assert here.statuses([id])[id].ending == "cancelled"
    here.close()
    machines["gpu1"].start()
    again = launcher()
    again.read(id, folder / "1.jsonl", 0)
    until(lambda: not machines["gpu1"].of_jobs(), "the job to end")


def test_a_second_cancel_ends_what_the_first_could_not_reach(
    machines: Machines, launcher: Make, tmp_path: Path
) -> None:
    def begin() -> JobsBench:
        return JobsBench(Watch(), tmp_path / f"{SESSION}.jsonl", make=lambda _: launcher("gpu1"), poll_s=0.02)

    first = begin()
    first.submit([ev.CellsQueued(at=1.0, first=0, specs=(a_spec(),))], LaunchChoice(launcher="ssh"), request("1"))
    machines["gpu1"].stop()
    assert first.cancel()
    first.work()
    assert first.is_over
    first.close()
    assert machines["gpu1"].of_jobs()
    machines["gpu1"].start()
    second = begin()
    second.watch()
    assert second.jobs_given_up == 1
    assert second.cancel()
    assert second.jobs_given_up == 0
    second.close()
    assert not machines["gpu1"].of_jobs()


def test_a_new_launcher_goes_on_with_what_is_here(machines: Machines, launcher: Make, folder: Path) -> None:
    first = launcher()
    (id,) = first.submit([request("1", "gpu1")], folder)
    machines["gpu1"].say(f"{SESSION}/1", HELLO)
    read(first, id, folder, HELLO)
    first.close()
    machines["gpu1"].say(f"{SESSION}/1", BYE)
    until(lambda: not machines["gpu1"].of_jobs(), "the job to end")
    second = launcher()
    read(second, id, folder, HELLO, BYE)
    over = status_of(second, id, lambda status: status.stage == "over")
    second.close()
    third = launcher()
    read(third, id, folder, HELLO, BYE)
    assert status_of(third, id, bool) == over


def test_hosts_that_cannot_be_used_are_named_with_the_remedy(machines: Machines, launcher: Make) -> None:
    gone = msgspec.json.encode(Diagnosis(environment("gpu2"), missing_code=("the folder /home/me/own is not there",)))
    before = (machines["gpu2"].home / "doctor.json").read_bytes()
    (machines["gpu2"].home / "doctor.json").write_bytes(gone)
    own = a_spec(model="own.code:Net", model_path=("/home/me/own",))
    try:
        with pytest.raises(LaunchError) as refused:
            launcher("gpu2", "nowhere", "gpu1").prepare([JobCell(0, own)])
    finally:
        (machines["gpu2"].home / "doctor.json").write_bytes(before)
    assert "host gpu2: the folder /home/me/own is not there; copy it there" in str(refused.value)
    assert "host nowhere: connect to host 127.0.0.1 port" in str(refused.value)
    assert "`ssh nowhere true`, or leave it out of --host" in str(refused.value)
    assert "host gpu1" not in str(refused.value)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo cs336-tui 0.0.1; :", r"host gpu1: cs336-tui 0\.0\.1 is there, and \S+ here; install the same on both"),
        ("/nowhere/cs336-tui", "host gpu1: /nowhere/cs336-tui is not cs336-tui, .* --remote-command gpu1=/path"),
    ],
)
def test_another_version_or_program_is_refused(launcher: Make, command: str, said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        launcher("gpu1", remote_commands=(("", command),)).prepare(request("1").cells)


def test_names_that_are_no_hosts_are_refused(launcher: Make) -> None:
    with pytest.raises(LaunchError, match="expected a name that ssh knows"):
        launcher("-oProxyCommand=touch /tmp/x")
