"""A host of ``--launcher ssh``: what it offers, and a thread that brings home what its jobs write."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from cs336_tui import __version__
from cs336_tui.config.reading import private
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.environment import Environment
from cs336_tui.events.events import ReportFinished, SessionEnded, Status
from cs336_tui.runner.jobs.folder import lost_path, write_file
from cs336_tui.runner.jobs.job import JobStatus, LaunchError
from cs336_tui.runner.jobs.ssh_scripts import FUNCTIONS, MOST_BYTES, script_to_find, script_to_remove, there
from cs336_tui.runner.jobs.ssh_shell import HostShell, Unreachable
from cs336_tui.runner.machine import Diagnosis
from cs336_tui.session.log import FILES_SUFFIX, line_prefix
from cs336_tui.stats.quantities import duration

LOOK_EVERY_S = 1.0
"""Seconds between two looks at the jobs of a host."""
ENDS_LATER = "what runs there ends when it is back, or by cs336-tui cancel"
_AGAIN_AFTER = 2
"""Looks that are left out after one that found a host out of reach."""
_PROBE_WITHIN_S = 180.0
_STOP_WITHIN_S = 30.0
_END_WITHIN_S = 5.0
_LAST_WORDS = 4096
_FINISHED, _CLOSED = line_prefix(ReportFinished), line_prefix(SessionEnded)


class HostFacts(NamedTuple):
    """The findings on a host: the command that is cs336-tui there, and the machine."""

    command: str
    environment: Environment


class JobThere:
    """A job on a host, ``SESSION/JOB``. `log` is the copy of its log here."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.log: Path | None = None
        self.taken = 0
        """Bytes of its log that are here."""
        self.state: str | None = None
        """The last that was heard: ``waits``, ``runs``, ``ended``, ``gone``, ``rebooted``; None before."""
        self.code = 0
        self.is_closed = False
        """True once it has closed its log."""
        self.is_home = False
        """True if it is over and all that it has written is here."""
        self.given_up: JobStatus | None = None
        self.problem: str | None = None

    @staticmethod
    def end_of(log: Path) -> Path:
        """The file here that says how the job of this log ended."""
        return log.with_suffix(".end")

    def keep_at(self, log: Path) -> None:
        """Keep the copy of its log here, or go on with it."""
        if self.log is None:
            self.taken = log.stat().st_size if log.exists() else 0
            self.log = log
            with contextlib.suppress(OSError, ValueError):
                self.state, self.code = json.loads(self.end_of(log).read_text())
                self.is_home = True


class Outage(NamedTuple):
    """A host that cannot be reached: since when, by two clocks, and why."""

    since: float
    since_monotonic: float
    why: str


class Host:
    """A host, by its name for ssh. Its thread looks at the jobs once a second, in one query; `look_after` adds one."""

    def __init__(self, name: str, give_up_s: float, look_every_s: float = LOOK_EVERY_S) -> None:
        self.name, self.give_up_s, self._look_every_s = name, give_up_s, look_every_s
        self._shell = HostShell(name)
        self._shell.define(FUNCTIONS)
        self._asking = threading.Lock()
        self._jobs: dict[str, JobThere] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.outage: Outage | None = None
        self.facts: HostFacts | None = None
        self.failed: str | None = None
        """Why it gets no more cells."""

    def run(self, script: str, within_s: float = 20.0) -> bytes:
        """The output of a script there. Raises `Unreachable`."""
        with self._asking:
            return self._shell.run(script, within_s=within_s)

    def examine(self, command: str | None, specs: Sequence[CellSpec]) -> HostFacts:
        """Find out whether it can run these cells. Raises `LaunchError` that says what to do."""
        try:
            if self.facts is None:
                self.facts = self._find(command)
            self._look_for_code(self.facts.command, specs)
            return self.facts
        except Unreachable as error:
            raise self._refused(f"{error}; try `ssh {self.name} true`, or leave it out of --host") from None

    def _find(self, command: str | None) -> HostFacts:
        """The command there and the machine. Raises like `examine`, and `Unreachable`."""
        found = self.run(script_to_find(command, str(Path(sys.argv[0]).absolute()))).decode(errors="replace")
        run, version = [*found.splitlines(), "", ""][:2]
        where = f"say where it is: --remote-command {self.name}=/path/to/cs336-tui"
        if not run:
            raise self._refused(f"no cs336-tui on the PATH of `ssh {self.name}`; install it there, or {where}")
        if not version.startswith("cs336-tui "):
            raise self._refused(f"{run} is not cs336-tui, --version says: {version}; {where}")
        if version != f"cs336-tui {__version__}":
            raise self._refused(f"{version} is there, and {__version__} here; install the same on both")
        machine = self._doctor(run).environment
        if machine is None or not machine.devices:
            raise self._refused("; ".join(machine.problems if machine else ()) or "torch finds no device there")
        return HostFacts(run, machine)

    def _look_for_code(self, command: str, specs: Sequence[CellSpec]) -> None:
        """Raises like `examine` when a user's own code is not there."""
        own = {(spec.own_code, spec.model_path): None for spec in specs if spec.brings_own_code}
        for names, folders in own:
            words = [*(word for name in names for word in ("--code", name)), *_model_paths(folders)]
            if lacking := self._doctor(command, *words).missing_code:
                raise self._refused(f"{lacking[0]}; copy it there, into the same folder as here")

    def _doctor(self, command: str, *words: str) -> Diagnosis:
        """The words of `cs336-tui doctor` there. Raises like `examine`, and `Unreachable`."""
        asked = f"env {command} {shlex.join(['doctor', '--json', *words])}"
        answer = self.run(f"eval {shlex.quote(asked)} 2>&1", _PROBE_WITHIN_S)
        try:
            return msgspec.json.decode(answer[answer.find(b"{") :], type=Diagnosis)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            last = (answer.decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
            raise self._refused(f"{command} doctor says: {last}") from None

    def _refused(self, why: str) -> LaunchError:
        return LaunchError(f"host {self.name}: {why}")

    def look_after(self, path: str, log: Path | None = None) -> JobThere:
        """A job there, new or known; with `log` its log is copied from now on."""
        with self._changed:
            job = self._jobs.setdefault(path, JobThere(path))
            if log is not None:
                job.keep_at(log)
                with contextlib.suppress(OSError):
                    if not job.is_home and lost_path(log.parent, log.stem).read_text() == self._lost(job):
                        job.given_up = JobStatus("over", f"given up on {self.name}", self.name, "cancelled")
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name=f"ssh {self.name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return job

    def status(self, job: JobThere) -> JobStatus | None:
        """The status of a job; None if it is not known yet."""
        if job.given_up:
            return job.given_up
        if job.is_home:
            return self._ending(job)
        if outage := self.outage:
            lasted = time.monotonic() - outage.since_monotonic
            at = time.strftime("%H:%M:%S", time.localtime(outage.since))
            why = f"{self.name} unreachable since {at}: {outage.why}"
            if lasted >= self.give_up_s:
                self.give_up(job, f"{why}; given up after {duration(lasted)}; {ENDS_LATER}")
                return self.status(job)
            return JobStatus("running", f"{why}; given up after {duration(self.give_up_s)}", self.name)
        if job.state == "waits":
            return JobStatus("pending", f"waits for another job on {self.name}", self.name)
        return JobStatus("running", "", self.name) if job.state else None

    def _ending(self, job: JobThere) -> JobStatus:
        """The end of a job whose last words are here."""
        name, code = self.name, job.code
        over = partial(JobStatus, "over", node=name, is_whole=True)
        if job.state == "ended" and code in (0, 1) and _is_closed(job):
            return over(ending="failed")
        if job.state == "ended" and code == 130:
            return over(f"it was stopped on {name}", ending="cancelled")
        if job.state == "ended" and code <= 128:
            return over(f"exit code {code} on {name}: {_last_line(job)}", ending="failed", elsewhere=True)
        killed = f"run-job was killed on {name} by signal {code - 128}"
        why = {"ended": killed, "rebooted": f"{name} rebooted"}.get(job.state or "", f"run-job was killed on {name}")
        return over(why, ending="killed", elsewhere=True)

    @property
    def last_job(self) -> str:
        """The last of its jobs that is not over, without its session; empty if there is none."""
        going_on = (path for path, job in self._jobs.items() if not job.is_home)
        return max((path.rpartition("/")[2] for path in going_on), key=lambda name: (len(name), name), default="")

    def give_up(self, job: JobThere, why: str, ending: Status = "killed") -> None:
        """Count a job as over that cannot be reached. It is ended there as soon as that is possible; a file here keeps
        that in mind."""
        job.given_up = JobStatus("over", why, self.name, ending, elsewhere=ending == "killed", is_whole=True)
        if job.log is not None:
            with contextlib.suppress(OSError):
                write_file(lost_path(job.log.parent, job.log.stem), self._lost(job).encode())

    def _lost(self, job: JobThere) -> str:
        return f"{self.name}:{job.path}"

    def tidy(self, session: str) -> None:
        """End jobs of a session there that it does not know of, as whoever submitted them was killed before it could
        say so. Raises `Unreachable`."""
        known = [path.partition("/")[2] for path, job in self._jobs.items() if not job.given_up]
        self.run(f"tidy {there(session)} {shlex.join(known)}", _STOP_WITHIN_S)

    def stop(self, jobs: Iterable[JobThere]) -> None:
        """End jobs there and all that they started. Raises `Unreachable`."""
        stops = " & ".join(f"stop {there(job.path)}" for job in jobs)
        self.run(f"( {stops} & wait )", _STOP_WITHIN_S)

    def _is_tidy(self) -> bool:
        ending = any((job.is_closed or job.given_up) and not job.is_home for job in self._jobs.values())
        return not ending or self.outage is not None

    def _work(self) -> None:
        while not self._closed:
            again_s = self._look_every_s
            try:
                if self._look_again_if_cut():
                    continue
                self.outage = None
            except Unreachable as error:
                now = self.outage or Outage(time.time(), time.monotonic(), "")
                self.outage = now._replace(why=str(error))
                again_s *= _AGAIN_AFTER
            with self._changed:
                self._changed.notify_all()
                if not self._closed:
                    self._changed.wait(again_s)

    def _look_again_if_cut(self) -> bool:
        """As `_look`; a connection that was there and is not any more may be had anew."""
        if self.outage is None:
            with contextlib.suppress(Unreachable):
                return self._look()
        return self._look()

    def _look(self) -> bool:
        """Take what is new; True if there may be more already. Raises `Unreachable`."""
        with self._changed:
            jobs = list(self._jobs.values())
        for job in [job for job in jobs if job.given_up and not job.is_home]:
            self.stop([job])
            job.is_home = True
            if job.log is not None:
                lost_path(job.log.parent, job.log.stem).unlink(missing_ok=True)
        asked = [job for job in jobs if not job.is_home and job.log is not None]
        if not asked:
            return False
        answer = self.run("\n".join(f"look {there(job.path)} {job.taken}" for job in asked), 60.0)
        more = False
        for job in asked:
            head, _, rest = answer.partition(b"\n")
            words = head.decode(errors="replace").split()
            if len(words) != 4:
                raise Unreachable(f"an unexpected answer: {head[:80]!r}")
            length = int(words[3])
            data, answer = rest[:length], rest[length:]
            try:
                self._take(job, words[0], int(words[1]), int(words[2]), data)
                job.problem = None
            except OSError as error:
                job.problem = f"{job.log}: {error.strerror}"
                with contextlib.suppress(OSError):
                    job.taken = job.log.stat().st_size if job.log else 0
            more |= job.taken < int(words[2])
        return more

    def _take(self, job: JobThere, state: str, code: int, size: int, data: bytes) -> None:
        """Copy new bytes of a log; of a job that is over with its last ones all that it has left there."""
        assert job.log is not None
        if _FINISHED in data:
            self._fetch_files(job)
        if data:
            with open(job.log, "ab", opener=private) as copy:
                copy.write(data)
            job.taken += len(data)
            job.is_closed |= _CLOSED in data
        if state not in ("runs", "waits") and job.taken >= size:
            self._fetch_files(job)
            self._fetch(f"{job.path}.out", job.log.with_suffix(".out"))
            if state != "ended":
                self.run(f"sweep {there(job.path)}")
            write_file(job.end_of(job.log), json.dumps([state, code]).encode())
            self.run(script_to_remove(job.path))
            job.is_home = True
        job.state, job.code = state, code

    def _fetch_files(self, job: JobThere) -> None:
        """Copy the files of reports that are not here yet."""
        assert job.log is not None
        folder, here = f"{job.path}{FILES_SUFFIX}", job.log.with_suffix(FILES_SUFFIX)
        for name in self.run(f"ls -1 {there(folder)}").decode(errors="replace").splitlines():
            if "/" not in name and not name.startswith(".") and not (here / name).exists():
                here.mkdir(mode=0o700, exist_ok=True)
                self._fetch(f"{folder}/{name}", here / name)

    def _fetch(self, path: str, here: Path) -> None:
        """Copy a file, whole or not at all."""
        draft = here.with_name(f".{here.name}.draft")
        with open(draft, "wb", opener=private) as copy:
            while piece := self.run(f"piece {there(path)} {copy.tell()} {MOST_BYTES}", 60.0):
                copy.write(piece)
        draft.replace(here)

    def close(self) -> None:
        """Let go of the connection, once jobs that have closed their logs are over; others go on."""
        with self._changed:
            self._changed.wait_for(self._is_tidy, _END_WITHIN_S)
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(5)
        if self._asking.acquire(timeout=5):
            try:
                self._shell.close()
            finally:
                self._asking.release()


def _model_paths(folders: Iterable[str]) -> list[str]:
    return [word for folder in folders for word in ("--model-path", folder)]


def _is_closed(job: JobThere) -> bool:
    """True if the log of a job was closed, as its copy here says."""
    if job.log is None or not job.log.exists():
        return False
    with job.log.open("rb") as log:
        log.seek(max(job.log.stat().st_size - _LAST_WORDS, 0))
        return _CLOSED in log.read()


def _last_line(job: JobThere) -> str:
    """The last line of a job's output that is here."""
    with contextlib.suppress(OSError):
        lines = job.log.with_suffix(".out").read_text(errors="replace").strip().splitlines() if job.log else []
        return lines[-1] if lines else "no output"
    return "no output"
