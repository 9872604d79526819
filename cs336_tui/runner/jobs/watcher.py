"""Folds the logs of a session's jobs into the session's as they grow, and says how jobs ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from cs336_tui.events import events as ev
from cs336_tui.runner.jobs import job as job_files
from cs336_tui.runner.jobs.job import JobLauncher, JobRequest, JobStatus, LaunchError
from cs336_tui.runner.jobs.logs import JobLog, fold_deciding
from cs336_tui.runner.pipes import Aside, last_line
from cs336_tui.session.lock import lock_path
from cs336_tui.session.state import SessionState

POLL_S = 1.0
"""Time between two looks at the logs of jobs."""
ASK_S = 2.0
"""Time between two queries of the launcher."""
GRACE_S = 5.0
"""The time that the log of a job that is over is waited for: a shared folder may lag."""
SILENT_S = 30.0
"""The time that the launcher's word is waited for once a job has closed its log."""
STALE_S = 60.0
"""The same for a launcher that goes on calling it running, as Slurm does where its daemon on a node was killed."""

Record = Callable[[Sequence[ev.Event]], object]


@dataclass(eq=False)
class FollowedJob:
    """A job that may still write, or whose end is not told yet."""

    submitted: ev.JobSubmitted
    left: set[int]
    logs: Sequence[JobLog]
    status: JobStatus | None = None
    grown_at: float = 0.0
    over_at: float = 0.0
    ended_at: float = 0.0
    heard_at: float = 0.0

    @property
    def is_closed(self) -> bool:
        """True if all its logs are closed."""
        return all(log.is_closed for log in self.logs)


class Watcher:
    """Watches the jobs of a session, whose events so far made `state`, in `step`s; whatever it finds changes the state
    and goes to `record`. A job's cells without a result get an end when it is over, with the launcher's reason."""

    def __init__(
        self,
        record: Record,
        launcher: JobLauncher,
        folder: Path,
        state: SessionState,
        *,
        ask_s: float = ASK_S,
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._record, self._launcher, self._folder, self._clock = record, launcher, folder, clock
        self._ask_s, self._grace_s = ask_s, grace_s
        self._state, self._notices = state, {notice.text for notice in state.notices}
        self._new: list[ev.Event] = []
        self._aside = Aside("launcher")
        self._asked: Future[Mapping[str, JobStatus]] | None = None
        self._asked_at = float("-inf")
        self._problem = ""
        self._jobs: dict[str, FollowedJob] = {}
        for job in job_files.withdraw_others(folder, state.jobs):
            self._notice(f"job {job} is withdrawn: its submitter ended before recording it")
        owners = {cell: job for job, known in state.jobs.items() for cell in known.submitted.cells}
        for name, known in state.jobs.items():
            cells = [cell for cell in known.submitted.cells if owners[cell] == name]
            left = {cell for cell in cells if cell in state.cells and state.cells[cell].is_left}
            if known.stage != "over":
                self._jobs[name] = self._followed(known.submitted, left)
            elif left:  # its log may hold more than the watcher saw that told its end
                late = self._followed(known.submitted, left)
                self._read(late, clock(), to_its_end=True, results_alone=True)
                self._tell_damage(late)
        self._record_new()

    def close(self) -> None:
        """Ask the launcher no more; jobs go on."""
        self._aside.close(within_s=1.0)

    def submit(self, requests: Sequence[JobRequest]) -> None:
        """Start jobs and watch them too. Raises `LaunchError`, and OSError when requests cannot be written."""
        for request in requests:
            job_files.write_request(self._folder, request)
        try:
            ids = self._aside.call(lambda: self._launcher.submit(requests, self._folder)).result()
        except BaseException:
            for request in requests:
                job_files.withdraw(self._folder, request.job)
            raise
        submitted = [
            ev.JobSubmitted(
                at=time.time(),
                job=request.job,
                launcher=self._launcher.name,
                id=id,
                cells=tuple(cell.cell for cell in request.cells),
                where=self._launcher.where(id),
                nodes=request.resources.nodes,
            )
            for request, id in zip(requests, ids, strict=True)
        ]
        self._add(*submitted)
        self._record_new()
        for event in submitted:
            self._jobs[event.job] = self._followed(event, set(event.cells))

    @property
    def cells(self) -> set[int]:
        """The cells of jobs that are not over."""
        return {cell for job in self._jobs.values() for cell in job.left}

    def settle_down(self, stop: threading.Event) -> None:
        """Learn which jobs go on, and tell the ends of those that do not. Raises `LaunchError` if the launcher says
        nothing."""
        give_up_at = self._clock() + SILENT_S
        while not stop.is_set():
            self.step()
            if self._knows and not any(job.over_at or job.ended_at for job in self._jobs.values()):
                return
            if self._clock() > give_up_at and not self._knows:
                raise LaunchError(f"{self._problem or 'the launcher does not answer'}; which jobs go on is not known")
            stop.wait(0.1)

    @property
    def _knows(self) -> bool:
        """True if the launcher has said how each job is."""
        return all(job.status for job in self._jobs.values())

    def cancel(self) -> bool:
        """Have all jobs cancelled that are not over; False if there is none. Their ends come with later steps."""
        ids = [job.submitted.id for job in self._jobs.values() if not job.over_at]
        if ids:
            self._aside.call(lambda: self._launcher.cancel(ids)).add_done_callback(self._say_problem)
        return bool(ids)

    @property
    def is_done(self) -> bool:
        """True if every job is over and told so."""
        return not self._jobs

    def step(self) -> None:
        """Read what is new, ask the launcher now and then, and tell of jobs that are over."""
        now = self._clock()
        self._ask(now)
        for name, job in list(self._jobs.items()):
            self._read(job, now)
            if self._is_settled(job, now):
                self._settle(name, job, now)
        self._record_new()

    def _add(self, *events: ev.Event) -> None:
        fold_deciding(events, self._state)
        self._new += events

    def _notice(self, text: str) -> None:
        self._add(ev.Notice(at=time.time(), text=text))

    def _record_new(self) -> None:
        new, self._new = self._new, []
        if new:
            self._record(new)

    def _followed(self, submitted: ev.JobSubmitted, left: set[int]) -> FollowedJob:
        paths = [job_files.log_path(self._folder, submitted.job, node) for node in range(submitted.nodes)]
        logs = [JobLog(path, submitted.job, left, self._state, self._notices) for path in paths]
        return FollowedJob(submitted, left, logs)

    def _read(self, job: FollowedJob, now: float, *, to_its_end: bool = False, results_alone: bool = False) -> None:
        for log in job.logs:
            before = log.offset
            try:
                for event in log.read(to_its_end=to_its_end, results_alone=results_alone):
                    self._add(event)
            except LaunchError as error:
                self._tell_problem(str(error))
            if log.offset > before:
                job.grown_at = now
        job.ended_at = (job.ended_at or now) if job.is_closed else 0.0

    def _tell_damage(self, job: FollowedJob) -> None:
        for log in job.logs:
            if log.damaged:
                self._notice(f"{log.path.name}, line {log.damaged}: damaged; passed over with other lines like it")

    def _ask(self, now: float) -> None:
        """Take the launcher's answer, if it is there, and ask again when it is time."""
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            try:
                self._take_statuses(asked.result(), now)
                self._problem = ""
            except LaunchError as error:
                self._tell_problem(str(error))
        if self._asked is None and now - self._asked_at >= self._ask_s:
            ids = [job.submitted.id for job in self._jobs.values() if not job.over_at]
            if ids:
                self._asked, self._asked_at = self._aside.call(lambda: self._launcher.statuses(ids)), now

    def _take_statuses(self, found: Mapping[str, JobStatus], now: float) -> None:
        for name, job in self._jobs.items():
            status = found.get(job.submitted.id)
            if status is None or job.over_at:
                continue
            job.status = status
            if status.stage == "over":
                job.over_at = now
                continue
            is_again = status.stage == "pending" and self._state.jobs[name].stage == "running"
            if status.stage == "pending":
                job.heard_at = now
            if is_again and job.grown_at > self._asked_at:  # its next run may have begun since
                continue
            self._tell(name, status)
            for log in job.logs if is_again else ():
                self._add(*log.requeue(time.time()))

    def _tell(self, name: str, status: JobStatus) -> None:
        known = self._state.jobs[name]
        stage, reason, node = status.stage, status.reason, status.node or known.node
        if (stage, reason, node) != (known.stage, known.reason, known.node):
            self._add(ev.JobChanged(at=time.time(), job=name, stage=stage, reason=reason, node=node))

    def _is_settled(self, job: FollowedJob, now: float) -> bool:
        """True if nothing more is to be expected of a job."""
        if job.is_closed and not job.left:
            return True
        if job.over_at:
            return job.is_closed or now >= max(job.over_at, job.grown_at) + self._grace_s
        called_running = job.status is not None and job.status.stage == "running"
        patience_s = STALE_S if called_running else SILENT_S
        return bool(job.ended_at) and now >= max(job.ended_at, job.heard_at) + patience_s

    def _settle(self, name: str, job: FollowedJob, now: float) -> None:
        """Tell that a job is over, and the end of each cell that it left without a result."""
        if not job.is_closed:
            self._read(job, now, to_its_end=True)
        del self._jobs[name]
        self._tell_damage(job)
        for log in job.logs:
            if job.over_at and not log.is_closed:  # it was killed
                lock_path(log.path).unlink(missing_ok=True)
        status = job.status if job.over_at and job.status else JobStatus("over")
        reason = status.reason
        if job.left and (not reason or status.ending == "failed"):
            said = filter(None, (reason, last_line(job_files.output_path(self._folder, name))))
            reason = "; ".join(said) or "it ended before its cells did"
        self._tell(name, status._replace(reason=reason))
        error = f"job {job.submitted.id}: {reason}"
        for log in job.logs:
            for report in log.reports:
                ending = status.ending or "failed"
                self._add(ev.ReportFinished(at=time.time(), report=report, status=ending, error=error))
        self._add(*self._endings(job, status, error))
        if job.left:  # whatever lives of it stops
            job_files.withdraw(self._folder, name)
            if not job.over_at:
                self._aside.call(lambda: self._launcher.cancel([job.submitted.id])).add_done_callback(self._say_problem)

    def _endings(self, job: FollowedJob, status: JobStatus, error: str) -> Iterator[ev.Event]:
        begun = {cell: status for log in job.logs for cell, status in log.begun.items()}
        for cell in sorted(job.left):
            ending = status.ending or ("cancelled" if begun.get(cell) == "cancelled" else "failed")
            if ending != "oom":
                yield ev.CellFinished(at=time.time(), cell=cell, status=ending, error=error, job_over=True)
            elif begun.get(cell) == "running":
                yield ev.CellFinished(at=time.time(), cell=cell, status="oom", error=error)
            else:
                why = f"not started: {error}"
                yield ev.CellFinished(at=time.time(), cell=cell, status="cancelled", error=why, job_over=True)

    def _say_problem(self, call: Future[None]) -> None:
        if isinstance(error := call.exception(), LaunchError):
            self._record([ev.Notice(at=time.time(), text=str(error))])

    def _tell_problem(self, text: str) -> None:
        if text != self._problem:
            self._problem = text
            self._notice(text)
