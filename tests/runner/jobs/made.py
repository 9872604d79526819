"""Made jobs: a launcher that says what a test tells it, and logs as jobs write them."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from cs336_tui.events import events as ev
from cs336_tui.events.codec import to_line
from cs336_tui.runner.jobs.job import JobCell, JobRequest, JobStatus, LaunchError, folder_of, log_path, write_request
from cs336_tui.runner.jobs.watcher import Watcher
from cs336_tui.session.state import SessionState, fold
from tests.samples import ENVIRONMENT
from tests.watching import PATIENCE_S, small_spec

RUNNING, KILLED = JobStatus("running"), JobStatus("over", "killed by signal 9", ending="killed")


class MadeLauncher:
    """Jobs are named as in the session, with ``id`` before."""

    name = "local"

    def __init__(self) -> None:
        self.said: dict[str, JobStatus] = {}
        self.problem: str | None = None
        self.cancelled: list[str] = []
        self.submitted: list[JobRequest] = []

    def plan(self, requests: Sequence[JobRequest], _folder: Path) -> str:
        return "\n".join(request.job for request in requests)

    def submit(self, requests: Sequence[JobRequest], _folder: Path) -> list[str]:
        self.submitted += requests
        return [f"id{request.job}" for request in requests]

    def where(self, _id: str) -> str:
        return "made"

    def statuses(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        if self.problem:
            raise LaunchError(self.problem)
        return {id: self.said[id] for id in ids if id in self.said}

    def cancel(self, ids: Sequence[str]) -> None:
        self.cancelled += ids


class Made:
    """A session of jobs, each with the cells that it is given, and a watcher whose clock the test turns."""

    def __init__(self, directory: Path, jobs: dict[str, Sequence[int]]) -> None:
        self.folder = folder_of(directory / "s.jsonl")
        self.folder.mkdir(exist_ok=True)
        self.launcher = MadeLauncher()
        self.now = 1000.0
        cells = sorted({cell for of_job in jobs.values() for cell in of_job})
        self.specs = {cell: small_spec(batch_size=cell + 1) for cell in cells}
        self.events: list[ev.Event] = [ev.CellsQueued(at=0.0, first=0, specs=tuple(self.specs.values()))]
        for job, of_job in jobs.items():
            write_request(self.folder, self.request(job, of_job))
            submitted = ev.JobSubmitted(at=1.0, job=job, launcher="local", id=f"id{job}", cells=tuple(of_job))
            self.events.append(submitted)
            self.launcher.said[f"id{job}"] = RUNNING
        self.watcher = self.new_watcher()

    def request(self, job: str, cells: Sequence[int]) -> JobRequest:
        return JobRequest(session="s", job=job, cells=tuple(JobCell(cell, self.specs[cell]) for cell in cells))

    def new_watcher(self) -> Watcher:
        """A watcher as one that starts now."""
        record: Callable[[Sequence[ev.Event]], None] = self.events.extend
        return Watcher(record, self.launcher, self.folder, fold(self.events), ask_s=0, clock=lambda: self.now)

    @property
    def state(self) -> SessionState:
        return fold(self.events)

    @property
    def statuses(self) -> list[str]:
        return [cell.status for cell in self.state.cells.values()]

    def log(self, job: str) -> Path:
        return log_path(self.folder, job)

    def write(self, job: str, *events: ev.Event, end: bytes = b"") -> None:
        """Append events to a job's log, and bytes after them."""
        with self.log(job).open("ab") as file:
            file.write(b"".join(map(to_line, events)) + end)

    def begin(self, job: str, cells: Sequence[int]) -> None:
        queued = [ev.CellsQueued(at=2.0, first=cell, specs=(self.specs[cell],)) for cell in cells]
        started = ev.SessionStarted(at=2.0, schema=ev.SCHEMA, session="s", app="0")
        self.write(job, started, *queued, ev.EnvironmentRead(at=2.0, environment=ENVIRONMENT))

    def run(self, job: str, *cells: int) -> None:
        for cell in cells:
            self.write(job, *a_run(cell))

    def over(self, job: str, status: JobStatus = KILLED) -> None:
        self.launcher.said[f"id{job}"] = status

    def step(self, after_s: float = 0.0) -> None:
        """Have the watcher look, `after_s` later, twice around an answer of the launcher."""
        self.now += after_s
        self._await_launcher()  # whose answer to an older question tells nothing new
        self.watcher.step()
        self._await_launcher()
        self.watcher.step()

    def end(self) -> None:
        """Have the watcher look until it has no more patience with a job that is over."""
        self.step()
        self.step(after_s=6.0)

    def _await_launcher(self) -> None:
        answered = threading.Event()
        self.watcher._aside.call(answered.set)
        assert answered.wait(PATIENCE_S)


def started(cell: int, at: float = 3.0) -> ev.CellStarted:
    return ev.CellStarted(at=at, cell=cell, pid=7)


def steps(cell: int, *times_s: float, kind: ev.StepKind = "measured", first: int = 0) -> ev.StepsTimed:
    return ev.StepsTimed(at=4.0, cell=cell, kind=kind, first=first, times_s=times_s)


def ended(cell: int, status: ev.Status = "ok", at: float = 5.0) -> ev.CellFinished:
    return ev.CellFinished(at=at, cell=cell, status=status)


def a_run(cell: int) -> list[ev.Event]:
    measuring = ev.StageChanged(at=3.5, cell=cell, stage="measuring")
    return [started(cell), measuring, steps(cell, 0.1, 0.2, 0.3), ended(cell)]


END = ev.SessionEnded(at=9.0, reason="finished")
RESUMED = ev.SessionResumed(at=6.0, app="0")
