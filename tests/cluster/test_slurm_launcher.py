"""The launcher of Slurm's jobs, with a real Slurm."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from cs336_tui.runner.jobs.job import JobCell, JobRequest, JobStatus, LaunchChoice, LaunchError, Resources
from cs336_tui.runner.jobs.slurm import UNBEGUN, SlurmLauncher
from tests.cluster.slurm import Slurm
from tests.watching import small_spec

SLEEP = "exec sleep 1000"


def launcher(partition: str | None = "ci", *parameters: tuple[str, str]) -> SlurmLauncher:
    return SlurmLauncher(LaunchChoice(launcher="slurm", partition=partition, parameters=parameters))


def request(job: str, **resources: object) -> JobRequest:
    return JobRequest(session="s", job=job, cells=(JobCell(0, small_spec()),), resources=Resources(**resources))  # type: ignore[arg-type]


Submit = Callable[..., Sequence[str]]


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Submits jobs that run these scripts in place of ``cs336-tui run-job``."""
    folder = tmp_path / "a session.jobs"
    folder.mkdir()
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n. "${4%.json}.sh"\n')  # as: python -m cs336_tui run-job FOLDER/JOB.json
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))

    def submit(by: SlurmLauncher, *scripts: str, **resources: object) -> Sequence[str]:
        first = len(list(folder.glob("?.sh")))
        requests = [request(str(number), **resources) for number in range(first, first + len(scripts))]
        for asked, script in zip(requests, scripts, strict=True):
            (folder / f"{asked.job}.sh").write_text(script)
        return by.submit(requests, folder)

    return submit


def until(slurm: Slurm, by: SlurmLauncher, ids: Sequence[str], true: Callable[..., bool]) -> list[JobStatus]:
    """The statuses of these jobs once `true` of each of them."""

    def look() -> Mapping[str, JobStatus]:
        found = by.statuses(ids)
        return found if all(id in found and true(found[id]) for id in ids) else {}

    found = slurm.until(look, f"the statuses of {ids}, now {by.statuses(ids)}")
    return [found[id] for id in ids]


def over(status: JobStatus) -> bool:
    return status.stage == "over"


def runs(status: JobStatus) -> bool:
    return (status.stage, status.reason) == ("running", "")


def test_every_end_has_a_name(slurm: Slurm, submit: Submit, tmp_path: Path):
    slurm_here = launcher()
    quick = submit(slurm_here, "echo said", "exit 3", "kill -9 $$")
    assert [id.partition("_")[2] for id in quick] == ["0", "1", "2"]
    (cancelled,) = submit(slurm_here, SLEEP)
    (lost,) = submit(launcher("ci", ("no-requeue", ""), ("nodelist", "n2")), SLEEP)
    until(slurm, slurm_here, [cancelled, lost], runs)
    slurm.call("scancel", cancelled)
    slurm.call("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    told = until(slurm, slurm_here, [*quick, cancelled, lost], over)
    assert [(status.reason, status.ending) for status in told] == [
        ("COMPLETED: without an error", "failed"),
        ("FAILED: exit code 3", "failed"),
        ("FAILED: killed by SIGKILL", "killed"),
        ("CANCELLED", "cancelled"),
        ("NODE_FAIL: n2 failed", "failed"),
    ]
    assert (tmp_path / "a session.jobs" / "0.out").read_text() == "said\n"


def test_jobs_that_would_wait_forever_end_and_leave_the_queue(slurm: Slurm, submit: Submit):
    depends = submit(launcher(), "exit 1")[0]
    submitted = [
        (launcher("short"), {"time": "5"}, "Partition(TimeLimit|Config)"),
        (launcher("closed"), {}, "PartitionDown"),
        (launcher("ci", ("hold", "")), {}, "JobHeldUser"),
        (launcher("ci", ("dependency", f"afterok:{depends}")), {}, "DependencyNeverSatisfied"),
        (launcher("ci"), {"nodes": 5}, "PartitionConfig"),
    ]
    ids = [submit(by, SLEEP, **resources)[0] for by, resources, _ in submitted]
    told = until(slurm, launcher(None), ids, over)
    for status, (_, _, reason) in zip(told, submitted, strict=True):
        assert re.match(f"it never starts: {reason}: ", status.reason)
        assert status.ending == "failed"
    slurm.emptied()
    assert launcher().statuses(ids) == dict(zip(ids, told, strict=True))  # as another watcher sees them


def test_jobs_that_others_push_aside_end_or_wait_again(slurm: Slurm, submit: Submit):
    by = launcher()
    spare = submit(launcher("spare"), SLEEP, nodes=2, cores_per_node=1)
    usual = submit(by, SLEEP, nodes=2, cores_per_node=1)
    until(slurm, by, [*spare, *usual], runs)
    submit(launcher("urgent"), SLEEP, nodes=2, cores_per_node=2)
    (ended,) = until(slurm, by, spare, over)
    assert (ended.reason, ended.ending) == ("PREEMPTED: for a job of higher priority", "killed")
    (waits,) = until(slurm, by, usual, lambda status: status.stage == "pending")
    assert waits.reason.startswith("requeued")


def test_a_job_that_its_node_cannot_start_ends(slurm: Slurm, submit: Submit):
    by = launcher()
    with slurm.broken():
        ids = submit(by, SLEEP)
        (told,) = until(slurm, by, ids, over)
    assert told.reason.startswith("it never starts: launch_failed_requeued_held: ")
    slurm.emptied()


def test_jobs_wait_with_slurms_reason_and_run_once_it_is_gone(slurm: Slurm, submit: Submit):
    slurm.call("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=test")
    slurm_here = launcher("ci", ("nodelist", "n1"))
    drained = submit(slurm_here, SLEEP, cores_per_node=2)
    (waiting,) = until(slurm, slurm_here, drained, lambda status: "ReqNodeNotAvail" in status.reason)
    assert waiting.stage == "pending"
    slurm.call("scontrol", "update", "NodeName=n1", "State=RESUME")
    (running,) = until(slurm, slurm_here, drained, runs)
    assert running.node == "n1"
    behind = submit(slurm_here, SLEEP, SLEEP)
    reasons = {status.reason for status in until(slurm, slurm_here, behind, lambda status: bool(status.reason))}
    assert reasons <= {"Resources", "Priority"}

    slurm.call("scontrol", "requeue", drained[0])
    (again,) = until(slurm, slurm_here, drained, lambda status: status.stage == "pending")
    assert again.reason.startswith("requeued")
    slurm_here.cancel([*drained, *behind])
    assert {status.ending for status in until(slurm, slurm_here, [*drained, *behind], over)} == {"cancelled"}


def test_jobs_get_what_they_ask_for(slurm: Slurm, submit: Submit, tmp_path: Path):
    tell = "echo $SLURM_JOB_PARTITION $SLURM_JOB_NUM_NODES $SLURM_CPUS_ON_NODE $SLURM_JOB_GPUS"
    ids = [
        *submit(launcher("short"), tell, cores_per_node=2, gpus_per_node=1),
        *submit(launcher(None, ("gres", "gpu:2")), tell, gpus_per_node=1, nodes=2),
        *submit(launcher(None), tell, cores_per_node=0),
    ]
    until(slurm, launcher(), ids, over)
    told = [(tmp_path / "a session.jobs" / f"{job}.out").read_text().split() for job in range(3)]
    assert told == [["short", "1", "2", "0"], ["ci", "2", "1", "0,1"], ["ci", "1", "2", "0,1"]]
    assert launcher(None).where(ids[1]) == "ci"


@pytest.mark.parametrize(
    ("by", "resources", "words"),
    [
        (launcher("nope"), {}, "invalid partition specified: nope"),
        (launcher(), {"time": "soon"}, "Invalid --time specification"),
        (launcher("ci", ("colour", "red")), {}, "unrecognized option '--colour=red'"),
        (launcher("ci", ("constraint", "fast")), {}, "Invalid feature specification"),
    ],
)
def test_a_refusal_is_one_line_and_leaves_nothing_queued(
    slurm: Slurm, submit: Submit, capfd: pytest.CaptureFixture[str], by: SlurmLauncher, resources: dict, words: str
):
    with pytest.raises(LaunchError, match=rf"\A.*{re.escape(words)}.*\Z"):
        submit(by, SLEEP, SLEEP, **resources)
    assert slurm.call("squeue", "--noheader") == ""
    assert capfd.readouterr() == ("", "")


def test_either_all_jobs_are_queued_or_none(slurm: Slurm, tmp_path: Path):
    requests = [request("1"), request("2", gpus_per_node=9)]
    with pytest.raises(LaunchError, match="node configuration is not available"):
        launcher().submit(requests, tmp_path)
    slurm.emptied()


def test_options_that_are_not_sbatchs_to_set_are_refused():
    for key, words in (("array", "sets this option"), ("time", "say --time"), ("Foo bar", "expected KEY=VALUE")):
        with pytest.raises(LaunchError, match=words):
            launcher("ci", (key, "1"))
    with pytest.raises(LaunchError, match="expected KEY=VALUE"):
        launcher("ci", ("comment", "a\n#SBATCH --hold"))


def test_slurm_takes_what_a_dry_run_prints(slurm: Slurm, tmp_path: Path):
    by = launcher("ci", ("comment", "two words"), ("exclusive", ""))
    requests = [request("1", time="0:05"), request("2", time="0:05"), request("3", time="0:05", gpus_per_node=2)]
    plan = by.plan(requests, tmp_path / "s.jobs")
    assert list(tmp_path.iterdir()) == []
    one, array = plan.split("\n\n# an array")
    for text, lines in (
        (one, ["--gpus-per-node=2", "--partition=ci", "--time=0:05", "--comment='two words'", "--exclusive"]),
        (array, ["--array=0-1%2", "--cpus-per-task=1"]),
    ):
        assert set(lines) <= {line.removeprefix("#SBATCH ") for line in text.splitlines()}
        assert 'run-job "$job.json"' in text
        script = tmp_path / "script"
        script.write_text(text.partition("\n")[2])
        slurm.call("sbatch", "--test-only", str(script))


def test_a_dry_run_needs_no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    plans = [by.plan([request("1")], tmp_path) for by in (launcher(), launcher("ci", ("signal", "B:USR1@30")))]
    assert all("#SBATCH --partition=ci" in plan for plan in plans)
    assert ["--signal=B:USR1@30" in plan for plan in plans] == ["--signal" in plan for plan in plans] == [False, True]
    with pytest.raises(LaunchError, match=r"login node"):
        launcher().submit([request("1")], tmp_path)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(LaunchError, match=r"pip install 'cs336-tui\[slurm\]'"):
        launcher().plan([request("1")], tmp_path)


@pytest.mark.usefixtures("slurm")
def test_jobs_that_slurm_forgot_end_as_its_accounting_says(tmp_path: Path):
    by = launcher()
    assert by.statuses(["999998", "999999_4"])["999999_4"].reason.startswith("Slurm no longer knows it")

    sacct = tmp_path / "sacct"
    sacct.write_text(
        "#!/bin/sh\n[ -e $0.broken ] && echo 'sacct: error: slurmdbd: Connection refused' >&2 && exit 1\n"
        "echo '999999_4|TIMEOUT|None|n2|0:0|00:05:00'\n"
        f"echo '999999_5|CANCELLED by {os.getuid()}|None|n2|0:15|00:05:00'\n"
    )
    sacct.chmod(0o755)
    os.environ["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"  # the fixture puts it back
    broken = tmp_path / "sacct.broken"
    broken.touch()
    by = launcher()
    assert by.statuses(["999999_4"]) == {}  # cannot be learnt now
    broken.unlink()
    told = by.statuses(["999999_4", "999999_5", "999999_6"])
    assert (told["999999_4"].ending, told["999999_4"].node) == ("killed", "n2")
    assert told["999999_5"].reason == "CANCELLED: by you"
    assert told["999999_6"].reason.startswith("Slurm no longer knows it")


def test_a_controller_that_does_not_answer_is_said_with_its_words(slurm: Slurm, monkeypatch: pytest.MonkeyPatch):
    text = (slurm.folder / "slurm.conf").read_text().replace("SlurmctldPort=", "SlurmctldPort=1 #")
    (slurm.folder / "deaf.conf").write_text(f"{text}MessageTimeout=1\n")
    (slurm.folder / "deaf.conf").touch()
    monkeypatch.setenv("SLURM_CONF", str(slurm.folder / "deaf.conf"))
    with pytest.raises(LaunchError, match=r"Slurm: .*(contact slurm controller|Connection refused)"):
        launcher().statuses(["1"])


def test_many_jobs_are_one_query(slurm: Slurm):
    array = slurm.submit("--array=0-999", "--begin=now+1hour")
    ids = [f"{array}_{index}" for index in range(1000)]
    by = launcher()
    assert {status.stage for status in by.statuses(ids).values()} == {"pending"}
    slurm.call("scancel", f"{array}_[1,5]")
    gone = {id: status for id, status in by.statuses(ids).items() if status.stage == "over"}
    assert gone == dict.fromkeys((f"{array}_1", f"{array}_5"), UNBEGUN)  # Slurm itself forgets them
    by.cancel(ids)
    assert set(by.statuses(ids).values()) == {UNBEGUN}


def test_the_folder_of_jobs_is_waited_for_and_missed(tmp_path: Path):
    text = launcher().plan([request("1")], tmp_path / "missing.jobs").replace("-lt 60", "-lt 0")
    ran = subprocess.run(["bash", "-c", text], capture_output=True, check=False)
    assert ran.returncode == 66
