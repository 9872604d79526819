"""Jobs of Slurm, submitted by submitit, and its words for their states."""

from __future__ import annotations

import contextlib
import io
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cs336_tui.events.events import Status
from cs336_tui.runner.jobs.job import LAG_S, JobRequest, JobStatus, LaunchChoice, LaunchError, Resources
from cs336_tui.stats.quantities import spans

if TYPE_CHECKING:
    import submitit

INSTALL = "pip install 'cs336-tui[slurm]'"
_PATIENCE_S = 60

_OURS = ("array", "output", "error", "input", "open-mode", "job-name", "wrap", "parsable", "test-only", "wait", "chdir")
_OPTIONS = {"partition": "--partition", "time": "--time", "nodes": "--nodes", "gpus-per-node": "--gpus-per-node"}
_GPUS = ("gpus", "gres", "gpus-per-task", "gpus-per-socket", "gpus-per-node")
_DOUBT_S = 1.5
"""A job is cancelled if Slurm has said for so long that it cannot start: its first word on a job may be wrong."""


class SlurmLauncher:
    """Jobs of equal resources become one array, a single job a job of its own. Slurm names a job ``12`` or ``12_3``."""

    name: Final = "slurm"

    def __init__(self, choice: LaunchChoice) -> None:
        self._choice = choice
        self._options = dict(_checked(choice.parameters))
        self._partition = choice.partition
        self._accounting = True
        self._ended: dict[str, JobStatus] = {}
        """Ends that Slurm does not tell again: of cancelled jobs, and of those that it forgot."""
        self._stuck_since: dict[str, float] = {}
        self._waiting: set[str] = set()
        """Jobs that had not begun when Slurm was last asked, and those that were cancelled since."""

    def plan(self, requests: Sequence[JobRequest], folder: Path) -> str:
        texts = []
        for group in _groups(requests, most=len(requests)):
            executor, command = self._submission(group, folder)
            jobs = f"an array of {len(group)} jobs" if len(group) > 1 else "one job"
            texts.append(f"# {jobs} of Slurm\n{executor._make_submission_file_text(command, '')}")
        return "\n".join(texts).rstrip("\n")

    def submit(self, requests: Sequence[JobRequest], folder: Path) -> Sequence[str]:
        ids: dict[str, str] = {}
        most = re.search(r"MaxArraySize\s*=\s*(\d+)", run_command("scontrol", "show", "config").stdout)
        try:
            for group in _groups(requests, max(1, int(most[1])) if most else 1000):
                executor, command = self._submission(group, folder)
                try:
                    with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it raises
                        base = executor._submit_command(command).job_id
                    for script in folder.glob("*_submission.sh"):
                        script.chmod(0o600)
                except OSError as error:
                    raise LaunchError(f"{folder}: {error.strerror}") from None
                except Exception as error:  # submitit's own, with the words of sbatch
                    raise LaunchError(_said(str(error))) from None
                several = len(group) > 1
                ids |= {request.job: f"{base}_{index}" if several else base for index, request in enumerate(group)}
        except LaunchError:
            self.cancel(list(ids.values()))
            raise
        return [ids[request.job] for request in requests]

    def where(self, id: str) -> str:  # noqa: ARG002
        if self._partition is None:
            shown = run_command("sinfo", "--noheader", "--format=%P").stdout.split()
            self._partition = next((name.rstrip("*") for name in shown if name.endswith("*")), "")
        return self._partition

    def statuses(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        asked = set(ids) - self._ended.keys()
        found = {job.id: job for job in self._queued(_bases(asked)) if job.id in asked}
        unsure = [id for id in ids if id in asked and (id not in found or found[id].state == "CANCELLED")]
        told = self._accounted(unsure) if unsure else {}
        found |= {id: job for id, job in (told or {}).items() if id not in found or job.by}
        if told is not None:
            gone = (id for id in unsure if id not in found)
            self._ended |= {id: UNBEGUN if id in self._waiting else FORGOTTEN for id in gone}
        ends = {id: status_of(job) for id, job in found.items()}
        now = time.monotonic()
        stuck = {id for id, job in found.items() if is_stuck(job)}
        self._stuck_since = {id: self._stuck_since.get(id, now) for id in stuck}
        doomed = {id for id, since in self._stuck_since.items() if now - since >= _DOUBT_S}
        self.cancel(sorted(doomed))
        self._ended |= {id: ends[id] for id, job in found.items() if id in doomed or job.state == "CANCELLED"}
        doubted = {id: JobStatus("pending", found[id].reason) for id in stuck - doomed}
        self._waiting = {id for id, end in ends.items() if end.stage == "pending"} | doubted.keys()
        return ends | doubted | {id: self._ended[id] for id in ids if id in self._ended}

    def cancel(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        self._waiting |= set(ids)
        ran = run_command("scancel", *_ranges(ids))
        if ran.returncode and not re.search("Invalid job id|already compl", ran.stderr):
            raise LaunchError(_said(ran.stderr))

    def _submission(self, group: Sequence[JobRequest], folder: Path) -> tuple[submitit.SlurmExecutor, str]:
        """submitit's executor for an array of these jobs, or for the only one, and the command that it submits."""
        asked = {"partition": self._choice.partition, **_asked(group[0].resources), **self._options}
        if any(key in self._options for key in _GPUS):
            asked["gpus-per-node"] = None
        executor = _executor(folder, drops_signal="signal" not in self._options)
        if not group[0].session.isprintable():  # the name of a log, which may be anything
            raise LaunchError(f"session {group[0].session!r}: Slurm takes no such name for its jobs; rename the log")
        executor.update_parameters(
            job_name=group[0].session,
            time=None,
            wckey=None,
            array_parallelism=len(group),
            stderr_to_stdout=True,
            use_srun=False,
            setup=[
                f"jobs=({' '.join(shlex.quote(request.job) for request in group)})",
                f"folder={shlex.quote(str(folder.absolute()))}",
                f'until [ -w "$folder" ]; do [ $SECONDS -lt {LAG_S} ] || exit {NO_FOLDER}; sleep 1; done',
                "job=$folder/${jobs[${SLURM_ARRAY_TASK_ID:-0}]}",
                '(umask 077; true >>"$job.out")',
                'exec >>"$job.out" 2>&1',
            ],
            additional_parameters={key: value for key, value in asked.items() if value is not None}
            | {"output": "/dev/null"},
        )
        if len(group) > 1:
            executor.parameters["map_count"] = len(group)
        return executor, f'exec {shlex.quote(sys.executable)} -m cs336_tui run-job "$job.json" --trust'

    def _queued(self, bases: Sequence[str]) -> Iterable[JobRecord]:
        """Jobs and arrays that Slurm's controller knows: those that wait, run, or ended in the last minutes."""
        if not bases:
            return ()
        asked = run_command(
            "squeue", "--noheader", "--array", "--states=all", f"--jobs={','.join(bases)}",
            f"--Format={','.join(f'{field}:|' for field in SQUEUE_FIELDS)}",
        )  # fmt: skip
        if asked.returncode and "Invalid job id" not in asked.stderr:
            raise LaunchError(_said(asked.stderr))
        return from_squeue(asked.stdout)

    def _accounted(self, ids: Sequence[str]) -> Mapping[str, JobRecord] | None:
        """Jobs that Slurm's accounting knows; none if there is no accounting; None if it does not answer now."""
        if not self._accounting or shutil.which("sacct") is None:
            return {}
        asked = run_command(
            "sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={','.join(_bases(ids))}",
            f"--format={','.join(SACCT_FIELDS)}",
        )  # fmt: skip
        self._accounting = "accounting storage is disabled" not in asked.stderr
        if asked.returncode and self._accounting:
            return None
        return {job.id: job for job in from_sacct(asked.stdout) if job.id in ids}


def _checked(parameters: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str | bool]]:
    """Options of ``sbatch`` by their long names; one without a value is True."""
    for given, value in parameters:
        key = given.lstrip("-").replace("_", "-")
        if key in _OURS:
            raise LaunchError(f"--slurm {given}: cs336-tui sets this option of sbatch itself")
        if key in _OPTIONS:
            raise LaunchError(f"--slurm {given}: say {_OPTIONS[key]} instead")
        if not re.fullmatch("[a-z][a-z0-9-]*", key) or not value.isprintable():
            raise LaunchError(f"--slurm {given}={value!r}: expected KEY=VALUE, a long option of sbatch and its value")
        yield key, value or True


def _asked(resources: Resources) -> dict[str, str | int | None]:
    """Options of ``sbatch`` for what a job asks; None: the cluster's default. Without a number of cores it gets all of
    its nodes."""
    return {
        "nodes": resources.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": resources.cores_per_node or None,
        "exclusive": None if resources.cores_per_node else True,
        "no-kill": True if resources.nodes > 1 else None,  # a node that dies takes its own cells alone
        "gpus-per-node": resources.gpus_per_node or None,
        "time": resources.time,
    }


def _groups(requests: Iterable[JobRequest], most: int) -> list[Sequence[JobRequest]]:
    """Requests that one array can be, at most `most`; those that ask for most are first, as Slurm may refuse them."""
    by_resources: dict[tuple[object, ...], list[JobRequest]] = {}
    for request in requests:
        by_resources.setdefault((request.resources, request.session), []).append(request)
    greedy = sorted(
        by_resources.values(), key=lambda group: -group[0].resources.nodes * (1 + group[0].resources.gpus_per_node)
    )
    return [group[start : start + most] for group in greedy for start in range(0, len(group), most)]


def _bases(ids: Iterable[str]) -> list[str]:
    """The jobs and arrays of these jobs."""
    return list(dict.fromkeys(id.partition("_")[0] for id in ids))


def _ranges(ids: Iterable[str]) -> list[str]:
    """The same jobs in fewer words: those of an array as ``12_[0-4,7]``."""
    tasks: dict[str, list[int]] = {}
    for id in ids:
        base, _, task = id.partition("_")
        tasks.setdefault(base, []).extend([int(task)] if task else [])
    return [f"{base}_[{spans(numbers, '-', ',')}]" if numbers else base for base, numbers in tasks.items()]


def run_command(*words: str) -> subprocess.CompletedProcess[str]:
    """One of Slurm's commands; raises `LaunchError` if it cannot be run."""
    try:
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except FileNotFoundError:
        raise LaunchError(f"{words[0]}: not found; run this where Slurm's commands are, as on a login node") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{words[0]}: {error}") from None


def _said(stderr: str) -> str:
    """One line with Slurm's words."""
    lines = [re.sub(r"^(\w+): (error: )?", "", line.strip()) for line in stderr.splitlines()]
    kept = [line for line in lines if line and not line.startswith("Try ")]
    return f"Slurm: {'; '.join(dict.fromkeys(kept)) or 'refused without a reason'}"


def _executor(folder: Path, drops_signal: bool) -> submitit.SlurmExecutor:
    """submitit's executor whose files go to this folder; it makes texts where there is no Slurm too. submitit asks for
    a signal before the end, which would kill the ranks of cells."""
    try:
        from submitit import SlurmExecutor
    except ImportError:
        raise LaunchError(f"--launcher slurm needs submitit: {INSTALL}") from None

    class Executor(SlurmExecutor):
        def _make_submission_file_text(self, command: str, uid: str) -> str:
            lines = super()._make_submission_file_text(command, uid).split("\n")
            return "\n".join(line for line in lines if not (drops_signal and line.startswith("#SBATCH --signal=")))

        @classmethod
        def affinity(cls) -> int:
            return 2

    return Executor(folder)


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
    for id, state, reason, nodes, code, restarts, limit in _rows(text, len(SQUEUE_FIELDS)):
        waited = _number(code)
        yield JobRecord(id, state, reason, nodes, waited >> 8, waited & 0x7F, _number(restarts), limit)


def from_sacct(text: str) -> Iterator[JobRecord]:
    """Jobs of ``sacct --parsable2`` with `SACCT_FIELDS`."""
    for id, said, reason, nodes, code, limit in _rows(text, len(SACCT_FIELDS)):
        state, _, by = said.partition(" by ")
        exited, _, signalled = code.partition(":")
        yield JobRecord(id, state, reason, nodes, _number(exited), _number(signalled), 0, limit, _user(by))


def _rows(text: str, columns: int) -> list[list[str]]:
    """The fields of whole lines."""
    lines = (line.split("|") for line in text.splitlines())
    return [fields[:columns] for fields in lines if len(fields) >= columns]


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def is_stuck(job: JobRecord) -> bool:
    """True of a job that waits, and would forever."""
    return job.state in _WAITS and bool(_hindrance(job))


def status_of(job: JobRecord) -> JobStatus:
    """The status of a job and of the cells that it leaves without a result."""
    state = job.state.rstrip("+")
    node = "" if job.nodes in ("None assigned", "(null)", "n/a") else job.nodes
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


def _user(number: str) -> str:
    with contextlib.suppress(ValueError, KeyError):
        return "you" if int(number) == os.getuid() else pwd.getpwuid(int(number)).pw_name
    return number
