"""`bench --launcher`, `watch`, `cancel` and `resume`, with jobs that are processes of this machine."""

import json
import shlex
import signal
from pathlib import Path

import pytest

from cs336_tui.cli.jobs import words_of
from cs336_tui.runner.jobs.job import LaunchChoice
from tests.commands import SMALL, call, call_bench, once_measuring, running
from tests.watching import PATIENCE_S

JOBS = ("--launcher", "local")
ENDLESS = [*SMALL, "--pass", "forward", "--steps", "10000000"]


def test_a_dry_run_writes_nothing(tmp_path: Path):
    done = call_bench(*SMALL, *JOBS, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.rpartition("/")[2] for line in done.stdout.splitlines()] == [f"{n}.json --trust" for n in (1, 2, 3)]
    assert list(tmp_path.iterdir()) == []
    as_one = call_bench(*SMALL, *JOBS, "--dry-run", "--as", "allocation", cwd=tmp_path)
    assert len(as_one.stdout.splitlines()) == 1


def test_cells_that_differ_in_nothing_that_counts_are_one_cell_of_a_job(tmp_path: Path):
    words = ("--pass", "forward,train-step", "--optimizer", "adamw,adamw-fused")
    done = call_bench(*SMALL, *JOBS, *words, "--dry-run", "--as", "array", cwd=tmp_path)
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr == "note: optimizer changes nothing in some cells, which run once: 3 cells, not 4\n"


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ((), {"--array=0-2%3", "--nodes=1", "--cpus-per-task=1"}),
        (("--ranks", "2", "--parallel", "ddp", "--pass", "forward"), {"--nodes=1", "--cpus-per-task=2"}),
        (("--nodes", "2"), {"--nodes=2", "--exclusive"}),
        (("--nodes", "2", "--lanes", "2", "--threads", "3"), {"--nodes=2", "--cpus-per-task=6"}),
        (
            ("--nodes", "2", "--lanes", "2", "--ranks", "4", "--parallel", "ddp", "--pass", "forward"),
            {"--nodes=2", "--cpus-per-task=2"},
        ),
        (("--nodes", "2", "--gpus-per-node", "8", "--device", "auto"), {"--nodes=2", "--gpus-per-node=8"}),
        (("--slurm", "exclusive", "--slurm", "comment=a b"), {"--exclusive", "--comment='a b'"}),
        (("--slurm", "cpus-per-task=7"), {"--cpus-per-task=7"}),
    ],
)
def test_a_dry_run_prints_what_slurm_would_be_asked_for(tmp_path: Path, words: tuple[str, ...], lines: set[str]):
    wanted = ("--launcher", "slurm", "--partition", "p", "--time", "1:00:00")
    done = call_bench(*SMALL, *wanted, *words, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    asked = {line.removeprefix("#SBATCH ") for line in done.stdout.splitlines() if line.startswith("#SBATCH")}
    assert asked >= lines | {"--partition=p", "--time=1:00:00", "--ntasks-per-node=1"}
    assert not any(line.startswith("--signal") for line in asked)
    assert list(tmp_path.iterdir()) == []


def test_the_command_of_a_session_names_its_launcher():
    choice = LaunchChoice(
        launcher="slurm", form="array", time="1:00", parameters=(("account", "a b"), ("exclusive", ""))
    )
    assert shlex.split(" ".join(words_of(choice))) == [
        "--launcher", "slurm", "--time", "1:00", "--as", "array", "--slurm", "account=a b", "--slurm", "exclusive",
    ]  # fmt: skip


def test_a_detached_session_is_watched_to_its_end(tmp_path: Path):
    detached = call_bench(*SMALL, *JOBS, "--as", "allocation", "--pass", "forward", "--detach", cwd=tmp_path)
    assert detached.returncode == 0, detached.stderr
    name = detached.stdout.strip()
    folder = ("--session-dir", str(tmp_path / "sessions"))
    done = call("watch", name, *folder, "--format", "json")
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["runs"]
    assert (result["status"], len(result["step_times_s"])) == ("ok", 3)
    assert "1: 1 over" in call("sessions", *folder).stdout
    assert "jobs     1: 1 over" in call("show", name, *folder).stdout
    again = call("resume", name, *folder, "--format", "json")
    assert (again.returncode, json.loads(again.stdout)["runs"][0]["step_times_s"]) == (0, result["step_times_s"])
    assert "nothing left to submit" in again.stderr
    assert "no job goes on" in call("cancel", name, *folder).stdout


def test_ctrl_c_leaves_the_jobs_alone_and_cancel_ends_them(tmp_path: Path):
    with running("bench", "--session-dir", str(tmp_path), *ENDLESS, *JOBS, cwd=tmp_path) as process:
        log = once_measuring(process, tmp_path)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert f"1 job goes on; `cs336-tui watch {log}` follows it, `cs336-tui cancel {log}` cancels it" in said
    done = call("cancel", str(log))
    assert done.returncode == 0
    assert "1 job cancelled" in done.stdout
    watched = call("watch", str(log), "--format", "json")
    assert watched.returncode == 130
    assert [run["status"] for run in json.loads(watched.stdout)["runs"]] == ["cancelled"]


def test_cancel_stops_a_session_that_runs_here(tmp_path: Path):
    with running("bench", "--session-dir", str(tmp_path), *ENDLESS, cwd=tmp_path) as process:
        log = once_measuring(process, tmp_path)
        assert "stopped" in call("cancel", str(log)).stdout
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "nothing runs" in call("cancel", str(log)).stdout
