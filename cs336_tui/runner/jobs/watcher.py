"""Folds the logs of a session's jobs into the session's as they grow, and says how jobs ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from cs336_tui.events import events as ev
from cs336_tui.runner.jobs import job as job_files
from cs336_tui.runner.jobs.fold import FollowedJob, JobLog, Numbering
from cs336_tui.runner.jobs.job import JobLauncher, JobRequest, JobStatus, LaunchError
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


class Watcher:
    """Watches the jobs of a session, whose events so far made `state`, in `step`s; whatever it finds goes to `record`.
    A job's cells without a result get an end when it is over, with the launcher's reason."""

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
        self._numbering = Numbering(state)
        self._aside = Aside("launcher")
        self._asked: Future[Mapping[str, JobStatus]] | None = None
        self._asked_at = float("-inf")
        self._problem = ""
        self._jobs: dict[str, FollowedJob] = {}
        last, withdrawn = job_files.withdraw_others(folder, state.jobs)
        self.next_job = last + 1
        """The number of the next job."""
        for job in withdrawn:
            text = f"job {job} is withdrawn: its submitter ended before recording it"
            record([ev.Notice(at=time.time(), text=text)])
        owners = {cell: job for job, known in state.jobs.items() for cell in known.submitted.cells}
        for name, known in state.jobs.items():
            cells = [cell for cell in known.submitted.cells if owners[cell] == name]
            left = {cell for cell in cells if not has_result(state, cell)}
            if left or known.stage != "over":
                begun = any(state.cells[n].started_at is not None or state.cells[n].earlier for n in left)
                self._follow(known.submitted, left, settled=known.stage == "over", again=begun)
                self._jobs[name].has_run = known.stage == "running"

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
        self._record(submitted)
        for event in submitted:
            self._follow(event, set(event.cells))

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
        return all(job.status or job.settled for job in self._jobs.values())

    def cancel(self) -> bool:
        """Have all jobs cancelled that are not over; False if there is none. Their ends come with later steps."""
        ids = [job.submitted.id for job in self._jobs.values() if not job.settled and not job.over_at]
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
        events: list[ev.Event] = []
        self._ask(now, events)
        for name, job in list(self._jobs.items()):
            self._read(job, now, events)
            if self._is_settled(job, now):
                self._settle(name, job, events)
        if events:
            self._record(events)

    def _follow(
        self, submitted: ev.JobSubmitted, left: set[int], *, settled: bool = False, again: bool = False
    ) -> None:
        name = submitted.job
        self.next_job = max(self.next_job, int(name) + 1 if name.isdecimal() else 1)
        logs = []
        for node in range(submitted.nodes):
            of_log = set(left) if settled else left
            path = job_files.log_path(self._folder, name, node)
            logs.append(JobLog(path, name, of_log, self._numbering, again=again, settled=settled))
        self._jobs[name] = FollowedJob(submitted, left, logs, settled)

    def _read(self, job: FollowedJob, now: float, events: list[ev.Event], *, to_its_end: bool = False) -> None:
        for log in job.logs:
            before = log.offset
            try:
                events += log.read(to_its_end=to_its_end)
            except LaunchError as error:
                self._tell_problem(str(error), events)
            if log.offset > before:
                job.grown_at = now
        job.ended_at = (job.ended_at or now) if job.is_closed else 0.0

    def _ask(self, now: float, events: list[ev.Event]) -> None:
        """Take the launcher's answer, if it is there, and ask again when it is time."""
        if self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            try:
                self._take_statuses(asked.result(), now, events)
                self._problem = ""
            except LaunchError as error:
                self._tell_problem(str(error), events)
        if self._asked is None and now - self._asked_at >= self._ask_s:
            ids = [job.submitted.id for job in self._jobs.values() if not job.settled and not job.over_at]
            if ids:
                self._asked, self._asked_at = self._aside.call(lambda: self._launcher.statuses(ids)), now

    def _take_statuses(self, found: Mapping[str, JobStatus], now: float, events: list[ev.Event]) -> None:
        for name, job in self._jobs.items():
            status = found.get(job.submitted.id)
            if status is None or job.over_at or job.settled:
                continue
            job.status = status
            if status.stage == "pending":
                job.heard_at = now
            if status.stage == "over":
                job.over_at = now
                continue
            self._tell(name, job, status, events)
            if status.stage == "running":
                job.has_run = True
            elif job.has_run and job.grown_at <= self._asked_at:  # else its next run may have begun since
                job.has_run = False
                for log in job.logs:
                    events += log.requeue(time.time())

    def _tell(self, name: str, job: FollowedJob, status: JobStatus, events: list[ev.Event]) -> None:
        told = (status.stage, status.reason, status.node)
        if told != job.told:
            job.told = told
            change = ev.JobChanged(at=time.time(), job=name, stage=status.stage, reason=status.reason, node=status.node)
            events.append(change)

    def _is_settled(self, job: FollowedJob, now: float) -> bool:
        """True if nothing more is to be expected of a job."""
        if job.settled or (job.is_closed and not job.left):
            return True
        if job.over_at:
            return job.is_closed or now >= max(job.over_at, job.grown_at) + self._grace_s
        called_running = job.status is not None and job.status.stage == "running"
        patience_s = STALE_S if called_running else SILENT_S
        return bool(job.ended_at) and now >= max(job.ended_at, job.heard_at) + patience_s

    def _settle(self, name: str, job: FollowedJob, events: list[ev.Event]) -> None:
        """Tell that a job is over, and the end of each cell that it left without a result."""
        if job.settled or not job.is_closed:
            self._read(job, self._clock(), events, to_its_end=True)
        del self._jobs[name]
        for log in job.logs:
            if log.damaged:
                text = f"{log.path.name}, line {log.damaged}: damaged; passed over with other lines like it"
                events.append(ev.Notice(at=time.time(), text=text))
            if job.over_at and not log.ended:  # it was killed
                lock_path(log.path).unlink(missing_ok=True)
        if job.settled:
            return
        status = job.status if job.over_at and job.status else JobStatus("over")
        reason = status.reason
        if job.left and (not reason or status.ending == "failed"):
            said = filter(None, (reason, last_line(job_files.output_path(self._folder, name))))
            reason = "; ".join(said) or "it ended before its cells did"
        self._tell(name, job, status._replace(reason=reason, node=status.node or job.told[2]), events)
        error = f"job {job.submitted.id}: {reason}"
        for log in job.logs:
            for report in log.reports:
                ending = status.ending or "failed"
                events.append(ev.ReportFinished(at=time.time(), report=report, status=ending, error=error))
        events += self._endings(job, status, error)
        if job.left:  # whatever lives of it stops
            job_files.withdraw(self._folder, name)
            if not job.over_at:
                self._aside.call(lambda: self._launcher.cancel([job.submitted.id])).add_done_callback(self._say_problem)

    def _endings(self, job: FollowedJob, status: JobStatus, error: str) -> Iterator[ev.Event]:
        running = job.running
        cancelled = {cell for log in job.logs for cell in log.cancelled}
        for cell in sorted(job.left):
            ending = status.ending or ("cancelled" if cell in cancelled else "failed")
            if ending != "oom":
                yield ev.CellFinished(at=time.time(), cell=cell, status=ending, error=error, job_over=True)
            elif cell in running:
                yield ev.CellFinished(at=time.time(), cell=cell, status="oom", error=error)
            else:
                why = f"not started: {error}"
                yield ev.CellFinished(at=time.time(), cell=cell, status="cancelled", error=why, job_over=True)

    def _say_problem(self, call: Future[None]) -> None:
        if isinstance(error := call.exception(), LaunchError):
            self._record([ev.Notice(at=time.time(), text=str(error))])

    def _tell_problem(self, text: str, events: list[ev.Event]) -> None:
        if text != self._problem:
            self._problem = text
            events.append(ev.Notice(at=time.time(), text=text))


def has_result(state: SessionState, cell: int) -> bool:
    """True if the cell has an end that no end of a job gave it, or was skipped."""
    known = state.cells.get(cell)
    return known is None or known.status == "skipped" or bool(known.finished and not known.finished.job_over)
