"""Slurm's words and what they become."""

import os

import pytest

from cs336_tui.runner.jobs.job import JobStatus
from cs336_tui.runner.jobs.slurm import NO_FOLDER, _ranges, from_sacct, from_squeue, status_of

NOT_SHARED = "its node cannot write to the folder of jobs, which must be shared"


def queued(state: str, reason: str = "None", nodes: str = "n1", code: int = 0, restarts: int = 0) -> JobStatus:
    """The status of a job as ``squeue`` prints it."""
    (job,) = from_squeue(f"12_3|{state}|{reason}|{nodes}|{code}|{restarts}|5:00|\n")
    assert job.id == "12_3"
    return status_of(job)


@pytest.mark.parametrize(
    ("state", "changes", "stage", "words"),
    [
        ("PENDING", {"reason": "Resources"}, "pending", "Resources"),
        ("PENDING", {"reason": "ReqNodeNotAvail, n1"}, "pending", "ReqNodeNotAvail, n1"),
        ("PENDING", {}, "pending", ""),
        ("PENDING", {"reason": "BeginTime", "restarts": 2}, "pending", "requeued 2 times: BeginTime"),
        ("REQUEUED", {"restarts": 1}, "pending", "requeued"),
        ("CONFIGURING", {}, "running", "configuring"),
        ("RUNNING", {}, "running", ""),
        ("RUNNING", {"restarts": 1}, "running", "requeued"),
        ("SUSPENDED", {}, "running", "suspended"),
    ],
)
def test_jobs_that_may_still_end_well(state: str, changes: dict[str, object], stage: str, words: str):
    assert queued(state, **changes) == JobStatus(stage, words, "n1")


@pytest.mark.parametrize(
    ("state", "code", "ending", "words"),
    [
        ("COMPLETED", 0, "failed", "COMPLETED: without an error"),
        ("FAILED", 3 << 8, "failed", "FAILED: exit code 3"),
        ("FAILED", NO_FOLDER << 8, "failed", f"FAILED: {NOT_SHARED}"),
        ("FAILED", 9, "killed", "FAILED: killed by SIGKILL"),
        ("FAILED", 53 + 64, "failed", "FAILED: its node could not start it (code 117)"),
        ("CANCELLED", 15, "cancelled", "CANCELLED"),
        ("TIMEOUT", 15, "killed", "TIMEOUT: over its time limit of 5:00 (days-hours:minutes:seconds): --time"),
        ("NODE_FAIL", 15, "failed", "NODE_FAIL: n1 failed"),
        ("BOOT_FAIL", 0, "failed", "BOOT_FAIL: its node did not boot"),
        ("PREEMPTED", 15, "killed", "PREEMPTED: for a job of higher priority"),
        ("DEADLINE", 0, "killed", "DEADLINE: its deadline passed"),
        ("OUT_OF_MEMORY", 9, "oom",
         "OUT_OF_MEMORY: it used more of its node's memory than it asked for: --slurm mem=..."),
        ("NEWER_THAN_THIS", 0, "failed", "NEWER_THAN_THIS"),
    ],
)  # fmt: skip
def test_ends(state: str, code: int, ending: str, words: str):
    assert queued(state, code=code) == JobStatus("over", words, "n1", ending)


@pytest.mark.parametrize(
    "reason",
    [
        "launch failed requeued held",
        *"PartitionTimeLimit launch_failed_requeued_held JobHeldAdmin QOSMaxCpuPerJobLimit MaxMemPerJob".split(),
    ],
)
def test_a_job_that_would_wait_forever_is_over(reason: str):
    told = queued("PENDING", reason, "")
    assert (told.stage, told.ending) == ("over", "failed")
    assert told.reason.startswith(f"it never starts: {reason.replace(' ', '_')}: ")
    assert queued("CANCELLED", reason, "") == told


@pytest.mark.parametrize("reason", ["Priority", "Resources", "AssocGrpCpuLimit", "QOSMaxJobsPerUserLimit", "Licenses"])
def test_a_job_whose_time_may_come_waits(reason: str):
    assert queued("PENDING", reason, "").stage == "pending"


def test_accounting_says_who_cancelled_a_job():
    text = f"12_0|CANCELLED by {os.getuid()}|None|n1|0:15|00:05:00\n12_1|CANCELLED by 4000123|None|n1|0:0|00:05:00\n"
    mine, others = map(status_of, from_sacct(text + "12_1.batch|torn"))
    assert (mine.reason, mine.ending) == ("CANCELLED: by you", "cancelled")
    assert others.reason == "CANCELLED: by 4000123"
    (failed,) = map(status_of, from_sacct("7|FAILED|NonZeroExitCode|n2|2:0|00:05:00\n"))
    assert failed == JobStatus("over", "FAILED: exit code 2", "n2", "failed")


def test_jobs_of_an_array_are_named_in_few_words():
    assert _ranges(["12_0", "12_2", "12_1", "14", "12_7", "13_4"]) == ["12_[0-2,7]", "14", "13_[4]"]
