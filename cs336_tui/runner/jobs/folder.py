"""The folder beside a session's log that holds the requests, logs and output of its jobs, as all machines share it. Its
owner alone can read it and what is in it."""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import secrets
import time
from collections.abc import Container
from pathlib import Path

import msgspec
import platformdirs

from cs336_tui.config.reading import UNREADABLE, private, read_small
from cs336_tui.runner.jobs.job import JobRequest, LaunchChoice, LaunchError
from cs336_tui.session.log import JOBS_SUFFIX

_CHOICE, _MARK = "launcher.json", "launcher.mark"
_SECRET_BYTES = 32
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
    """Keep a choice of the user's, with a mark that says so, and make the folder. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = msgspec.json.encode(choice)
    with contextlib.suppress(OSError):  # without the mark, later commands want --trust
        write_file(folder / _MARK, _mark(folder, data))
    write_file(folder / _CHOICE, data)


def is_chosen_here(folder: Path) -> bool:
    """True if the choice that is kept is one of this user's: a folder from elsewhere may name any command."""
    try:
        mark = read_small(folder / _MARK)
        return hmac.compare_digest(mark, _mark(folder, read_small(folder / _CHOICE)))
    except OSError:
        return False


def _mark(folder: Path, data: bytes) -> bytes:
    """A digest of the data that nobody can make without the user's secret. Raises OSError."""
    path = platformdirs.user_state_path("cs336-tui", appauthor=False) / "secret"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            contextlib.suppress(FileExistsError),
            open(path, "xb", opener=private) as file,
        ):
            file.write(secrets.token_bytes(_SECRET_BYTES))
    secret = read_small(path)
    if len(secret) != _SECRET_BYTES:
        raise OSError(errno.EINVAL, "not the secret of this program", str(path))
    return hmac.digest(secret, folder.name.encode() + b"\0" + data, "sha256").hex().encode()


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
    write_file(request_path(folder, request.job), msgspec.json.encode(request))


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


def cells_of_others(folder: Path, jobs: Container[str]) -> set[int]:
    """The cells of the requests that are not of these jobs."""
    found: set[int] = set()
    for path in folder.glob(f"*{_REQUEST}"):
        if path.name != _CHOICE and path.name[: -len(_REQUEST)] not in jobs:
            with contextlib.suppress(LaunchError):  # withdrawn meanwhile, or damaged
                found |= {cell.cell for cell in read_request(path, within_s=0.0).cells}
    return found


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


def write_file(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all. Raises OSError."""
    draft = path.with_name(f"{path.name}.draft")
    with open(draft, "wb", opener=private) as file:
        file.write(data)
    draft.replace(path)
