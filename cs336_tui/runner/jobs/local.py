"""Jobs as processes of this machine: the model of a launcher, and for tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from cs336_tui.config.processes import lives
from cs336_tui.config.reading import private
from cs336_tui.runner.jobs.job import JobRequest, JobStatus, LauncherName, LaunchError, output_path, request_path

_SHELL = 'trap : TERM; "$@"; code=$?; umask 077; echo $code > "$0"'  # the shell outlives its job to tell how it ended


class LocalLauncher:
    """Starts ``cs336-tui run-job`` in a process group of its own, which outlives this process. A job is named by the
    group's leader, its start and the file of its exit code: ``PID@START:FILE``."""

    name: LauncherName = "local"

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[bytes]] = []

    def plan(self, requests: Sequence[JobRequest], folder: Path) -> str:
        return "\n".join(" ".join(_command(folder, request.job)) for request in requests)

    def submit(self, requests: Sequence[JobRequest], folder: Path) -> Sequence[str]:
        return [self._start(folder, request.job) for request in requests]

    def _start(self, folder: Path, job: str) -> str:
        code = folder / f"{job}.exit"
        words = ["sh", "-c", _SHELL, str(code), *_command(folder, job)]
        try:
            with open(output_path(folder, job), "ab", opener=private) as output:
                child = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
        except OSError as error:
            raise LaunchError(f"{output_path(folder, job)}: {error.strerror}") from None
        self._children.append(child)
        return f"{child.pid}@{psutil.Process(child.pid).create_time()}:{code}"

    def where(self, id: str) -> str:  # noqa: ARG002  # as others have it
        return ""

    def statuses(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        for child in self._children:
            child.poll()
        return {id: _status(id) for id in ids}

    def cancel(self, ids: Sequence[str]) -> None:
        for id in ids:
            if pid := _alive(id):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGTERM)


def _command(folder: Path, job: str) -> list[str]:
    return [sys.executable, "-m", "cs336_tui", "run-job", str(request_path(folder, job)), "--trust"]


def _alive(id: str) -> int | None:
    """The PID of the job's group, None if its leader has ended."""
    pid, _, since = id.partition(":")[0].partition("@")
    with contextlib.suppress(ValueError):  # a log may say anything
        return int(pid) if lives(int(pid), float(since)) else None
    return None


def _status(id: str) -> JobStatus:
    if pid := _alive(id):
        return JobStatus("running", node=f"process {pid}")
    try:
        code = int(Path(id.partition(":")[2]).read_text())
    except (OSError, ValueError):
        return JobStatus("over", "it was killed", ending="killed")
    if code > 128 and code != 130:
        return JobStatus("over", f"killed by signal {code - 128}", ending="killed")
    if code in (130, -signal.SIGTERM):
        return JobStatus("over", "it was cancelled", ending="cancelled")
    return JobStatus("over", f"exit code {code}" if code else "", ending="failed")
