"""Jobs: cells of a session that run elsewhere without a screen, each job with a log of its own; the cells that each
gets, and those of each node. Requests, logs and output lie in a folder beside the session's log, as all machines share
it; its owner alone can read it and what is in it."""

from __future__ import annotations

import contextlib
import errno
import hmac
import math
import os
import secrets
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import msgspec
import platformdirs

from cs336_tui.config.axis import UserError
from cs336_tui.config.order import relative_work
from cs336_tui.config.reading import UNREADABLE, private, read_small
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import JobStage, Status
from cs336_tui.session.log import JOBS_SUFFIX


class LaunchError(UserError):
    """A launcher cannot be used, or refuses; the message says why and what to do, in one line."""

    exit_code = 1


class JobCell(msgspec.Struct, frozen=True):
    """A cell of a job: its number in the session, its spec, the number of the run of its spec, from 1."""

    cell: int
    spec: CellSpec
    repeat: int = 1
    reports: tuple[str, ...] = ()
    """Made of it after all cells of its job, if it ends well."""


class Resources(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Resources that a job asks its launcher for."""

    nodes: int = 1
    gpus_per_node: int = 0
    cores_per_node: int = 1
    """0: all of each node."""
    time: str | None = None
    """Limit in Slurm's spelling, such as ``0:30`` or ``1-00:00``; None: the launcher's own."""


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job, as the file `job`.json in the folder of jobs tells it to ``cs336-tui run-job``, which writes `job`.jsonl
    beside it."""

    session: str
    job: str
    """Names the job within its session."""
    cells: tuple[JobCell, ...]
    """In the order in which they are to run."""
    resources: Resources = Resources()
    lanes: int = 1
    """Lanes on each node; 0: one for each of its devices."""
    ddof: int = 1
    timeout_s: float | None = None
    skip_after_oom: bool = True
    explain_oom: bool = True
    check_fit: bool = True
    device_interval_s: float = 2.0
    nvtx: bool = False
    predict: bool = False
    """Predict the cells first: a table holds their measured peaks against predicted ones."""


class JobStatus(NamedTuple):
    """The state of a job for its launcher. `reason` is why it waits or how it ended, in one line. `ending` is the
    status of the cells that a job left without a result: ``killed``, ``oom``, ``cancelled``, ``failed``; None while it
    may still run."""

    stage: JobStage
    reason: str = ""
    node: str = ""
    ending: Status | None = None


class JobLauncher(Protocol):
    """Starts jobs elsewhere. Its methods block and raise `LaunchError`."""

    @property
    def name(self) -> LauncherName: ...

    def plan(self, requests: Sequence[JobRequest], folder: Path) -> str:
        """Text for a person on what `submit` would do; nothing is written. ``--dry-run`` prints it."""
        ...

    def submit(self, requests: Sequence[JobRequest], folder: Path) -> Sequence[str]:
        """Start a job for each request, whose file is in `folder` (`request_path`); returns the launcher's
        names for them, in order. Its output goes to `output_path`."""
        ...

    def where(self, id: str) -> str:
        """Partition or machine of a job."""
        ...

    def statuses(self, ids: Sequence[str]) -> Mapping[str, JobStatus]:
        """The present status of each job, by its launcher's name; all in one query. One that it cannot learn now is
        left out."""
        ...

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs that wait or run."""
        ...


LauncherName = Literal["slurm", "local"]
JobForm = Literal["array", "allocation"]


class LaunchChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of ``--launcher``, kept as `launcher.json` beside the requests, so that ``watch``, ``resume`` and
    ``cancel`` need none. None: not given."""

    launcher: LauncherName
    form: JobForm | None = None
    """``--as``."""
    partition: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    lanes: int | None = None
    """On each node; 0: ``auto``."""
    time: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    """``--slurm KEY=VALUE``, in their order."""


def split(
    cells: Sequence[JobCell], choice: LaunchChoice, settings: JobRequest, first: int = 1
) -> tuple[JobRequest, ...]:
    """The jobs that run these cells, numbered from `first`, with the settings of a request. In an array each job has
    one cell and asks for what it needs; an allocation has all."""
    lanes = 0 if choice.lanes is None else choice.lanes
    jobs: list[tuple[tuple[JobCell, ...], Resources, int]]
    if is_array(choice):
        jobs = [((cell,), needs(cell.spec, choice), 1) for cell in cells]
    else:
        jobs = [(tuple(cells), _allocated(choice, cells), lanes)] if cells else []
    return tuple(
        msgspec.structs.replace(settings, job=str(number), cells=part, resources=resources, lanes=lanes)
        for number, (part, resources, lanes) in enumerate(jobs, first)
    )


def is_array(choice: LaunchChoice) -> bool:
    """True if each cell gets a job of its own, as ``--as`` says, or without it if nothing was said of nodes."""
    if choice.form is not None:
        return choice.form == "array"
    return choice.nodes is None and choice.gpus_per_node is None and choice.lanes is None


def needs(spec: CellSpec, choice: LaunchChoice) -> Resources:
    """The resources of a cell that has a job of its own: a GPU for each rank and a core besides, or its threads."""
    if not spec.device.startswith("cuda"):
        return Resources(cores_per_node=spec.ranks * (spec.threads or 1), time=choice.time)
    gpus = min(spec.ranks, choice.gpus_per_node or spec.ranks)
    return Resources(nodes=math.ceil(spec.ranks / gpus), gpus_per_node=gpus, cores_per_node=gpus + 1, time=choice.time)


def _allocated(choice: LaunchChoice, cells: Sequence[JobCell]) -> Resources:
    """The resources of all cells together. On a CPU the threads of a rank for each lane, or all of each node; each rank
    takes a lane, and those of a cell may be spread over nodes."""
    gpus, nodes, lanes = choice.gpus_per_node or 0, choice.nodes or 1, choice.lanes or 0
    most = max((cell.spec.threads or 1) * max(lanes, math.ceil(cell.spec.ranks / nodes)) for cell in cells)
    cores = gpus + 1 if gpus else most if lanes else 0
    return Resources(nodes=nodes, gpus_per_node=gpus, cores_per_node=cores, time=choice.time)


def shares(cells: Sequence[JobCell], nodes: int) -> tuple[tuple[JobCell, ...], ...]:
    """The cells in a share of equal work for each node; the longest are dealt first. Each share is in the order
    given."""
    work = [0.0] * nodes
    dealt: dict[int, int] = {}
    for cell in sorted(cells, key=_work, reverse=True):
        dealt[cell.cell] = least = work.index(min(work))
        work[least] += _work(cell)
    return tuple(tuple(cell for cell in cells if dealt[cell.cell] == node) for node in range(nodes))


def _work(cell: JobCell) -> float:
    return relative_work(cell.spec) * cell.spec.ranks * cell.spec.total_steps


_CHOICE, _MARK = "launcher.json", "launcher.mark"
_SECRET_BYTES = 32
LAG_S = 60
"""The longest time that a file of a shared folder, or the folder, is waited for."""


def folder_of(log: Path) -> Path:
    """The folder of the jobs of the session with this log."""
    return log.with_suffix(JOBS_SUFFIX)


def request_path(folder: Path, job: str) -> Path:
    return folder / f"{job}.json"


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
        with contextlib.suppress(FileExistsError), open(path, "xb", opener=private) as file:
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


def read_request(path: Path, within_s: float = LAG_S) -> JobRequest:
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


def withdraw_others(folder: Path, jobs: Container[str]) -> list[str]:
    """Withdraw the requests that are not of these jobs; returns the jobs whose requests were withdrawn."""
    withdrawn = _others(folder, jobs)
    for job in withdrawn:
        withdraw(folder, job)
    return withdrawn


def next_job(folder: Path, jobs: Iterable[str]) -> int:
    """The number after those of these jobs and of all that have had a file here."""
    names = (*jobs, *(path.name.partition(".")[0] for path in folder.glob("*")))
    return max((int(name) for name in names if name.isdecimal()), default=0) + 1


def cells_of_others(folder: Path, jobs: Container[str]) -> set[int]:
    """The cells of the requests that are not of these jobs."""
    found: set[int] = set()
    for job in _others(folder, jobs):
        with contextlib.suppress(LaunchError):  # withdrawn meanwhile, or damaged
            found |= {cell.cell for cell in read_request(request_path(folder, job), within_s=0.0).cells}
    return found


def _others(folder: Path, jobs: Container[str]) -> list[str]:
    """The jobs whose requests are there, without these."""
    return sorted(path.stem for path in folder.glob("*.json") if path.name != _CHOICE and path.stem not in jobs)


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
