"""Runs a session of benchmarks in jobs, or follows one, for the app and the commands."""

from __future__ import annotations

import shlex
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from cs336_tui import __version__
from cs336_tui.config.sweep import NO_OOM_SKIP
from cs336_tui.events import events as ev
from cs336_tui.runner.jobs import job as job_files
from cs336_tui.runner.jobs.job import JobCell, JobLauncher, JobRequest, LaunchChoice, LaunchError
from cs336_tui.runner.jobs.logs import PASSED_OVER, Tail, fold_deciding
from cs336_tui.runner.jobs.watcher import POLL_S, Watcher
from cs336_tui.runner.trust import Import, Untrusted, check_log
from cs336_tui.session.load import uncollected
from cs336_tui.session.lock import writer_of
from cs336_tui.session.log import LogError, LogReader, Recording, SessionRecorder, Sink, default_session_dir
from cs336_tui.session.state import SessionState, fold
from cs336_tui.session.states import CellState

_MANY = 200
"""Jobs are looked at half as often where more go on."""


def make_launcher(choice: LaunchChoice) -> JobLauncher:
    """The launcher of a choice. Raises `LaunchError` if it cannot be used here."""
    given = [("--partition", choice.partition or ""), ("--time", choice.time or "")]
    for option, text in (*given, *(("--slurm", "=".join(pair)) for pair in choice.parameters)):
        if not text.isprintable():  # a line of its own would be run by the batch script
            raise LaunchError(f"{option} {text!r}: expected one line without control characters")
    if choice.launcher == "local":
        from cs336_tui.runner.jobs.local import LocalLauncher

        return LocalLauncher()
    from cs336_tui.runner.jobs.slurm import SlurmLauncher

    return SlurmLauncher(choice)


def job_cells(state: SessionState, numbers: Iterable[int] | None = None) -> list[JobCell]:
    """Cells of a session as jobs have them; all, or those of these numbers."""
    cells = (state.cells[number] for number in (state.cells if numbers is None else numbers))
    return [JobCell(cell.cell, cell.asked_spec, cell.repeat, state.wanted.get(cell.cell, ())) for cell in cells]


class JobsBench(Recording):
    """A session whose cells run in jobs. `submit` begins one, `resume` goes on with one, `watch` looks at one; then
    `work` follows it until all is over or it is closed, which changes nothing for the jobs. One process writes the
    session; beside it others follow its log, and one of them takes over when it is gone. `cancel` and `close` are for
    any thread; the others block, and `close` waits until whatever they submit is recorded. Every event goes to `sink`,
    in order. Unless it is `trusted`, a launcher that the user did not choose is not used, nor code submitted anew that
    is not the current folder's own."""

    def __init__(
        self,
        sink: Sink,
        log: Path,
        *,
        make: Callable[[LaunchChoice], JobLauncher] = make_launcher,
        poll_s: float = POLL_S,
        trusted: bool = False,
    ) -> None:
        self._trusted = trusted
        self._sink, self._log, self._make, self._poll_s = sink, log, make, poll_s
        self._recorder = SessionRecorder(log.parent, log.stem, sink)
        self._folder = job_files.folder_of(log.absolute())
        self._state = SessionState()
        self._choice: LaunchChoice | None = None
        self._watcher: Watcher | None = None
        self._tail: Tail | None = None
        self._closing = threading.Event()
        self._working = threading.RLock()

    @property
    def is_over(self) -> bool:
        """True if no job goes on and nobody watches for one."""
        return self._state.ended is not None

    @property
    def jobs_going_on(self) -> int:
        """The number of jobs that are not over."""
        return sum(job.stage != "over" for job in self._state.jobs.values())

    def submit(
        self,
        queued: Sequence[ev.CellsQueued],
        choice: LaunchChoice,
        settings: JobRequest,
        launcher: JobLauncher | None = None,
    ) -> None:
        """Begin the session with these cells and submit them, by this launcher of the choice if given. Raises
        `LogError` and `LaunchError`; if nothing could be submitted, nothing is left of it."""
        with self._working:
            if self._closing.is_set():
                return
            self._choice, launcher = choice, launcher or self._make(choice)
            self._recorder.open()
            try:
                job_files.write_choice(self._folder, choice)
                started = ev.SessionStarted(at=time.time(), schema=ev.SCHEMA, session=self.session, app=__version__)
                self._record([started, *queued])
                self._watcher = Watcher(self._recorder.record, launcher, self._folder, self._state)
                self._submit(job_cells(self._state), settings)
            except BaseException as error:  # jobs that were submitted find no request then, and end
                self.close()
                self._log.unlink(missing_ok=True)
                shutil.rmtree(self._folder, ignore_errors=True)
                raise _launch_error(error, self._folder) from None

    def resume(
        self,
        settings: JobRequest,
        sink: Sink | None = None,
        *,
        failed: bool = False,
        take_over: bool = False,
        show: Callable[[Sequence[Import]], object] = lambda _: None,
    ) -> tuple[int, ...]:
        """Submit anew the cells that have no result and whose job is over, and with `failed` those that failed or were
        killed; the settings of the jobs are those of a request, but for ddof and skips, which are the session's.
        Events so far go to `sink`, if given; `show` is given all that the cells will import. Returns the cells. Raises
        `LogError`, also if another process writes the session, `LaunchError` and `Untrusted`."""
        with self._working:
            if self._closing.is_set():
                return ()
            self._check_whole()
            self._recorder.open(resume=True, take_over=take_over)
            try:
                with uncollected():
                    history = list(LogReader(self._log))
            except LogError:
                self._recorder.close()
                raise
            (sink or self._recorder.pass_on)(history)
            fold_deciding(history, self._state)
            specs = [cell.asked_spec for cell in self._left(failed=failed)]
            try:
                show(check_log(self.session, specs, trusted=self._trusted))
                launcher = self._launcher()
            except Untrusted:
                self.close()
                raise
            self._record([ev.SessionResumed(at=time.time(), app=__version__)])
            self._watcher = watcher = Watcher(self._recorder.record, launcher, self._folder, self._state)
            watcher.settle_down(self._closing)
            if self._closing.is_set():
                return ()
            again = [cell.cell for cell in self._left(failed=failed) if cell.cell not in watcher.cells]
            over = [number for number in again if number not in self._state.waiting]
            if over:
                self._record([ev.CellRequeued(at=time.time(), cell=number) for number in over])
            as_session = not any(NO_OOM_SKIP in command.split() for command in self._state.commands)
            skips = settings.skip_after_oom and as_session
            settings = msgspec.structs.replace(settings, ddof=self._state.ddof, skip_after_oom=skips)
            try:
                self._submit(job_cells(self._state, again), settings)
            except OSError as error:
                raise _launch_error(error, self._folder) from None
            return tuple(again)

    def _left(self, *, failed: bool) -> list[CellState]:
        """The cells that resuming runs, if no job of them goes on."""
        again = ("failed", "killed") if failed else ()
        cells = self._state.cells.values()
        return [cell for cell in cells if cell.is_left or cell.status in again]

    def watch(self, sink: Sink | None = None, *, take_over: bool = False) -> None:
        """Look at the session; events so far go to `sink`, if given. Raises like `resume`."""
        with self._working:
            if self._closing.is_set():
                return
            next(iter(LogReader(self._log)))  # nothing else is followed
            self._tail = Tail(self._log)
            with uncollected():
                self._follow(self._tail, sink or self._recorder.pass_on)
            if not self.is_over and (take_over or writer_of(self._log) is None):
                self._take_over(self._tail, whoever=take_over)

    def work(self) -> None:
        """Follow the jobs until all are over, or this is closed. Raises `LogError` and `LaunchError`."""
        with self._working:
            while not self._closing.is_set():
                began = time.monotonic()
                if self._step():
                    return
                poll_s = self._poll_s * (2 if self.jobs_going_on > _MANY else 1)
                self._closing.wait(max(began + poll_s - time.monotonic(), 0.0))

    def cancel(self) -> bool:
        """Have all jobs cancelled that are not over; False if there is none. `work` tells how they end. Raises
        `LaunchError`."""
        if self._watcher is not None:
            return self._watcher.cancel()
        ids = [job.submitted.id for job in self._state.jobs.values() if job.stage != "over"]
        if ids:
            self._launcher().cancel(ids)
        return bool(ids)

    def close(self) -> None:
        """Watch no more; jobs go on. Safe to call twice."""
        self._closing.set()
        with self._working:
            if self._watcher is not None:
                self._watcher.close()
                self._watcher = None
            self._recorder.close()

    def _step(self) -> bool:
        """Do what is to be done now; True if all is over."""
        if self._tail is not None:
            self._follow(self._tail, self._recorder.pass_on)
            if not self.is_over and writer_of(self._log) is None:
                self._take_over(self._tail)
        if self._watcher is not None:
            with uncollected():
                self._watcher.step()
            if self._watcher.is_done:
                self._end()
        return self.is_over

    def _end(self) -> None:
        if not self.is_over:
            cancelled = any(cell.status == "cancelled" for cell in self._state.cells.values())
            over: Literal["cancelled", "finished"] = "cancelled" if cancelled else "finished"
            reason = "interrupted" if self._state.waiting else over
            self._record([ev.SessionEnded(at=time.time(), reason=reason)])

    def _follow(self, tail: Tail, sink: Sink) -> None:
        if events := tail.read():
            sink(events)
            fold_deciding(events, self._state)

    def _take_over(self, tail: Tail, *, whoever: bool = False) -> None:
        """Go on as the writer, whose former one is gone, or `whoever` that is; another follower may be quicker."""
        self._check_whole()
        launcher = self._launcher()
        try:
            self._recorder.open(resume=True, take_over=whoever)
        except LogError:
            if writer_of(self._log) is None:
                raise
            return
        self._follow(tail, self._recorder.pass_on)
        self._tail = None
        if self.is_over:
            self._recorder.close()
        else:
            self._watcher = Watcher(self._recorder.record, launcher, self._folder, self._state)

    def _check_whole(self) -> None:
        """Raises `LaunchError` for a log that was cut before its cells were whole: whoever writes it would withdraw
        jobs that run them."""
        state = fold(LogReader(self._log).without(*PASSED_OVER))
        if not state.cells or job_files.cells_of_others(self._folder, state.jobs) - state.cells.keys():
            name = self.session if self._log.parent == default_session_dir() else shlex.quote(str(self._log))
            raise LaunchError(
                f"session {self.session}: its log was cut before its cells were whole, so nothing was submitted or "
                "withdrawn; put a whole copy of the log in its place, or give the session up, which ends its jobs: "
                f"cs336-tui delete {name}"
            )

    def _launcher(self) -> JobLauncher:
        """Raises `LaunchError`, also for a session without jobs, and `Untrusted`."""
        self._choice = self._choice or job_files.read_choice(self._folder)
        if self._choice is None:
            raise LaunchError(
                f"session {self.session} has no jobs, and no process runs it; cs336-tui resume runs it here"
            )
        if not (self._trusted or job_files.is_chosen_here(self._folder)):
            choice = msgspec.json.encode(self._choice).decode()
            raise Untrusted(self.session, f"has jobs that no command of yours launched here: {choice}")
        return self._make(self._choice)

    def _submit(self, cells: Sequence[JobCell], settings: JobRequest) -> None:
        assert self._watcher is not None
        assert self._choice is not None
        if cells:
            checkpoints = {cell.asked_spec.checkpoint for cell in self._state.cells.values()}
            settings = msgspec.structs.replace(settings, predict=len(checkpoints) > 1)
            first = job_files.next_job(self._folder, self._state.jobs)
            self._watcher.submit(job_files.split(cells, self._choice, settings, first))

    def _record(self, events: Sequence[ev.Event]) -> None:
        self._recorder.record(events)
        fold_deciding(events, self._state)


def _launch_error(error: BaseException, folder: Path) -> BaseException:
    """The error, of a file as one that people are told."""
    return LaunchError(f"{folder}: {error.strerror}") if isinstance(error, OSError) else error
