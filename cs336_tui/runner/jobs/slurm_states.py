"""Slurm's words for the state of a job, as the status of its cells."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
from collections.abc import Iterator
from typing import NamedTuple

from cs336_tui.events.events import Status
from cs336_tui.runner.jobs.job import JobStatus

SQUEUE_FIELDS = ("JobArrayID", "State", "Reason", "NodeList", "exit_code", "RestartCnt", "TimeLimit")
SACCT_FIELDS = ("JobID", "State", "Reason", "NodeList", "ExitCode", "Timelimit")

NO_FOLDER = 66
"""Exit code of a job's script if its node cannot write to the folder of jobs (``EX_NOINPUT`` of sysexits.h)."""

NEVER = {
    "PartitionTimeLimit": "its time limit is above the partition's: --time, --partition",
    "PartitionNodeLimit": "the partition does not give so many nodes to a job: --nodes, --partition",
    "PartitionConfig": "it asks for more time, nodes, GPUs or cores than the partition has: --partition",
    "PartitionDown": "the partition is down: --partition",
    "PartitionInactive": "the partition is inactive: --partition",
    "BadConstraints": "no node has what it asks for",
    "DependencyNeverSatisfied": "a job that it depends on failed",
    "JobHeldUser": "it is held, by its user",
    "JobHeldAdmin": "it is held, by an administrator",
    "JobHoldMaxRequeue": "it was requeued too often",
    "job_requeued_in_held_state": "it was requeued and is held",
    "launch_failed_requeued_held": "its node could not start it: `scontrol show node` says why",
    "InvalidAccount": "the account may not be used: --slurm account=...",
    "AccountNotAllowed": "the account may not be used in this partition: --slurm account=...",
    "InvalidQOS": "the quality of service may not be used: --slurm qos=...",
    "QOSNotAllowed": "the quality of service may not be used in this partition: --slurm qos=...",
    "QOSTimeLimit": "the time of the quality of service is used up: --slurm qos=...",
    "AssociationTimeLimit": "the account's time is used up: --slurm account=...",
    "AssociationJobLimit": "the account may not run jobs",
    "ReservationDeleted": "its reservation is gone: --slurm reservation=...",
}
"""Reasons for which a pending job would wait forever, and what can be done. What Slurm limits for one job
(``...PerJob``, ``...PerJobLimit``) is another."""

_RUNS = ("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED")
_WAITS = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_ENDINGS: dict[str, tuple[Status, str]] = {
    "COMPLETED": ("failed", "without an error"),
    "FAILED": ("failed", ""),
    "CANCELLED": ("cancelled", ""),
    "TIMEOUT": ("killed", "over its time limit"),
    "DEADLINE": ("killed", "its deadline passed"),
    "PREEMPTED": ("killed", "for a job of higher priority"),
    "NODE_FAIL": ("failed", "its node failed"),
    "BOOT_FAIL": ("failed", "its node did not boot"),
    "LAUNCH_FAILED": ("failed", "its node could not start it"),
    "OUT_OF_MEMORY": ("oom", "it used more of its node's memory than it asked for: --slurm mem=..."),
    "REVOKED": ("cancelled", "another cluster runs it"),
}
FORGOTTEN = JobStatus("over", "Slurm no longer knows it, and there is no accounting that would", ending="failed")

UNBEGUN = JobStatus("over", "CANCELLED: before it began", ending="cancelled")
"""Of a task of an array that vanished while it waited: Slurm forgets it at once."""


class JobRecord(NamedTuple):
    """A job as ``squeue`` or ``sacct`` tells it. `exit_code` and `signal` are of its script."""

    id: str
    state: str
    reason: str
    nodes: str
    exit_code: int
    signal: int
    restarts: int
    limit: str
    by: str = ""
    """The user who cancelled it, of ``sacct`` only."""


def from_squeue(text: str) -> Iterator[JobRecord]:
    """Jobs of ``squeue --Format`` with `SQUEUE_FIELDS`, each before ``|``; its exit code is as wait() gives it."""
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) < len(SQUEUE_FIELDS):
            continue
        id, state, reason, nodes, code, restarts, limit = fields[: len(SQUEUE_FIELDS)]
        waited = _number(code)
        yield JobRecord(id, state, reason, nodes, waited >> 8, waited & 0x7F, _number(restarts), limit)


def from_sacct(text: str) -> Iterator[JobRecord]:
    """Jobs of ``sacct --parsable2`` with `SACCT_FIELDS`."""
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) < len(SACCT_FIELDS):
            continue
        id, said, reason, nodes, code, limit = fields[: len(SACCT_FIELDS)]
        state, _, by = said.partition(" by ")
        exited, _, signalled = code.partition(":")
        yield JobRecord(id, state, reason, nodes, _number(exited), _number(signalled), 0, limit, _user(by))


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def is_stuck(job: JobRecord) -> bool:
    """True of a job that waits, and would forever."""
    return job.state in _WAITS and bool(_hindrance(job))


def status_of(job: JobRecord) -> JobStatus:
    """The status of a job and of the cells that it leaves without a result."""
    state, node = job.state.rstrip("+"), job.nodes if _placed(job) else ""
    if is_stuck(job) or (state in ("CANCELLED", "FAILED") and not node and _hindrance(job)):
        return JobStatus("over", f"it never starts: {_hindrance(job)}", ending="failed")
    again = "requeued" + (f" {job.restarts} times" if job.restarts > 1 else "") if job.restarts else ""
    if state in _RUNS:
        return JobStatus("running", ", ".join(filter(None, (again, "" if state == "RUNNING" else state.lower()))), node)
    if state in _WAITS:
        return JobStatus("pending", ": ".join(filter(None, (again, "" if job.reason == "None" else job.reason))), node)
    ending, words = _ENDINGS.get(state, ("failed", ""))
    if state == "FAILED":
        ending, words = _failed(job)
    elif state == "TIMEOUT":
        words = f"over its time limit of {job.limit} (days-hours:minutes:seconds): --time"
    elif state == "CANCELLED" and job.by:
        words = f"by {job.by}"
    elif state == "NODE_FAIL" and node:
        words = f"{node} failed"
    return JobStatus("over", " ".join(filter(None, (f"{state}:", words))).rstrip(":"), node, ending)


def _hindrance(job: JobRecord) -> str | None:
    """Why a job never starts, with the remedy; None if it may."""
    reason = job.reason.partition(",")[0].strip().replace(" ", "_")
    if remedy := NEVER.get(reason):
        return f"{reason}: {remedy}"
    return f"{reason}: it asks for more than a job may have" if reason.endswith(("PerJob", "PerJobLimit")) else None


def _failed(job: JobRecord) -> tuple[Status, str]:
    if job.exit_code == NO_FOLDER:
        return "failed", "its node cannot write to the folder of jobs, which must be shared"
    if job.signal in signal.valid_signals():
        return "killed", f"killed by {signal.Signals(job.signal).name}"
    if job.signal:
        return "failed", f"its node could not start it (code {job.signal})"
    return "failed", f"exit code {job.exit_code}" if job.exit_code else job.reason


def _placed(job: JobRecord) -> bool:
    """True if the job was given a node."""
    return job.nodes not in ("", "None assigned", "(null)", "n/a")


def _user(number: str) -> str:
    with contextlib.suppress(ValueError, KeyError):
        return "you" if int(number) == os.getuid() else pwd.getpwuid(int(number)).pw_name
    return number
