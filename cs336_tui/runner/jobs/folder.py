"""The folder beside a session's log that holds the requests, logs and output of its jobs, as all machines share it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Container
from pathlib import Path

import msgspec

from cs336_tui.config.reading import UNREADABLE
from cs336_tui.runner.jobs.choice import LaunchChoice
from cs336_tui.runner.jobs.job import JobRequest, LaunchError
from cs336_tui.session.log import JOBS_SUFFIX

_CHOICE = "launcher.json"
_REQUEST = ".json"
_LAG_S = 60.0
"""The longest time that a file of a shared folder is waited for."""


def folder_of(log: Path) -> Path:
    """The folder of the jobs of the session with this log."""
    return log.with_suffix(JOBS_SUFFIX)


def log_of(folder: Path) -> Path:
    """The log of the session whose jobs have this folder."""
    return folder.with_suffix(".jsonl")


def request_path(folder: Path, job: str) -> Path:
    return folder / f"{job}{_REQUEST}"


def log_path(folder: Path, job: str, node: int = 0) -> Path:
    """The log that the job writes, on its further nodes (from 1) another one each."""
    return folder / (f"{job}.{node}.jsonl" if node else f"{job}.jsonl")


def output_path(folder: Path, job: str) -> Path:
    """The file of the standard output and error of a job."""
    return folder / f"{job}.out"


def write_choice(folder: Path, choice: LaunchChoice) -> None:
    """Keep a choice, and make the folder. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(folder / _CHOICE, msgspec.json.encode(choice))


def read_choice(folder: Path) -> LaunchChoice | None:
    """The choice that is kept; None of a session without jobs. Raises `LaunchError` if it cannot be read."""
    path = folder / _CHOICE
    try:
        return msgspec.json.decode(path.read_bytes(), type=LaunchChoice)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise LaunchError(f"{path}: {error}; it says how the session was launched") from None


def write_request(folder: Path, request: JobRequest) -> None:
    """Raises OSError."""
    _write(request_path(folder, request.job), msgspec.json.encode(request))


def read_request(path: Path, within_s: float = _LAG_S) -> JobRequest:
    """The request of a job, once it is there: a shared folder may lag. Raises `LaunchError`."""
    give_up_at = time.monotonic() + within_s
    while True:
        try:
            return msgspec.json.decode(path.read_bytes(), type=JobRequest)
        except FileNotFoundError as error:
            if time.monotonic() > give_up_at:
                raise LaunchError(f"{path}: {error.strerror}; the folder of jobs must be shared by all nodes") from None
            time.sleep(0.2)
        except UNREADABLE as error:
            raise LaunchError(f"{path}: {error}; expected the request of a job") from None


def withdraw(folder: Path, job: str) -> None:
    """Withdraw a request: its job stops within seconds, or does nothing once it begins. Its number stays taken."""
    with contextlib.suppress(FileNotFoundError):
        request_path(folder, job).rename(folder / f"{job}.withdrawn")


def withdraw_others(folder: Path, jobs: Container[str]) -> tuple[int, list[str]]:
    """Withdraw the requests that are not of these jobs. Returns the largest number that a job here has had, 0 without
    any, and the jobs whose requests were withdrawn."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    numbers = (name.partition(".")[0] for name in names)
    last = max((int(number) for number in numbers if number.isdecimal()), default=0)
    unknown = [name[: -len(_REQUEST)] for name in names if name.endswith(_REQUEST) and name != _CHOICE]
    withdrawn = sorted(job for job in unknown if job not in jobs)
    for job in withdrawn:
        withdraw(folder, job)
    return last, withdrawn


def lost_path(folder: Path, job: str) -> Path:
    """The file that holds the launcher's name of a job which was given up, as its machine could not be reached, and may
    run there still."""
    return folder / f"{job}.lost"


def lost_jobs(folder: Path) -> dict[str, Path]:
    """The launcher's names of jobs that were given up, each with the file that says so."""
    return {path.read_text(): path for path in sorted(folder.glob("*.lost"))}


def read_shared(path: Path, offset: int) -> bytes:
    """Whatever a file of a shared folder has from `offset` on; empty if it is not there. Raises `LaunchError`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # opening also asks a network file system for news
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror}") from None
    try:
        return os.pread(fd, MOST_BYTES, offset)
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror}") from None
    finally:
        os.close(fd)


MOST_BYTES = 1 << 16
"""Maximum number of bytes that are read at once. Room for many more would cost more than most reads."""


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(f"{path.name}.draft")
    draft.write_bytes(data)
    draft.replace(path)
