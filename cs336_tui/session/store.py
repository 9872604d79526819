"""Finds, lists, names and deletes the sessions of a folder, and tells the progress of one: its steps, the cells without
a result, and whether it runs, was stopped or is done."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal

import msgspec

from cs336_tui.config.reading import is_file, is_folder
from cs336_tui.config.spec import has_stand_ins
from cs336_tui.events import events as ev
from cs336_tui.events.codec import from_line
from cs336_tui.session.load import load as load
from cs336_tui.session.lock import writer_of
from cs336_tui.session.log import DAMAGE, FILES_SUFFIX, JOBS_SUFFIX, LogError, LogReader, SessionLog, line_prefix
from cs336_tui.session.state import SessionState, fold
from cs336_tui.stats.quantities import counted

Stage = Literal["empty", "running", "stopped", "killed", "done"]
"""``stopped``: cells or the rest of a race are left, by somebody's will. ``killed``: the process that ran them ended
without a word."""


class Standing(msgspec.Struct, frozen=True):
    """The progress of a session; steps and cells that were skipped do not count."""

    stage: Stage
    steps_done: int
    steps_total: int
    left: int
    """Cells without a result, which resuming runs."""
    race_left: bool = False
    """True if it has a race without an end, which resuming goes on with."""

    @property
    def can_resume(self) -> bool:
        """True if nobody runs it and something is left."""
        return self.stage in ("stopped", "killed")

    @property
    def words(self) -> str:
        """Such as ``stopped at 77/120 steps``; empty without cells."""
        if self.stage in ("empty", "done"):
            return "" if self.stage == "empty" else "done"
        if self.race_left:
            return f"{self.stage} in a race"
        return f"{self.stage} at {self.steps_done}/{counted(self.steps_total, 'step')}"

    @property
    def cells_left(self) -> str:
        """Such as ``3 cells left``."""
        if self.race_left:
            return "a race is left"
        return f"{counted(self.left, 'cell')} left"


def standing_of(state: SessionState, *, runs: bool) -> Standing:
    """The standing of a session; `runs`: a process is there that runs what waits, or jobs are."""
    left = sum(cell.is_left for cell in state.cells.values())
    race_left = state.has_unfinished_race
    return Standing(_stage(state, left, runs), state.steps_done, state.steps_total, left, race_left)


def _stage(state: SessionState, left: int, runs: bool) -> Stage:
    if state.has_unfinished_race:
        was_stopped = state.ended is not None or any(cell.status == "cancelled" for cell in state.cells.values())
        return "running" if runs else "stopped" if was_stopped else "killed"
    if not state.cells:
        return "empty"
    if not left:
        return "done"
    if not (state.running or state.waiting):
        return "stopped"
    return "running" if runs else "killed" if state.ended is None else "stopped"


def session_time(session: str, started_at: float | None = None) -> str:
    """``2026-11-20 14:03``, when a session named ``2026-11-20T14-03-22-ab12`` began, by the clock of its machine; of
    one with another name `started_at` (Unix time) by the clock of this machine; empty if neither is known."""
    if match := re.fullmatch(r"(\d{4}-\d{2}-\d{2})T(\d{2})-(\d{2})-\d{2}(-\w+)?", session):
        return f"{match[1]} {match[2]}:{match[3]}"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(started_at)) if started_at else ""


_SUFFIX = ".jsonl"
_LONG = (ev.StepsTimed, ev.DeviceSampled, ev.ChildOutput, ev.CellsPredicted, ev.ReportFinished)
"""The events that make a log long and are not needed for a `SessionInfo`."""


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session at a glance; counts are of cells."""

    session: str
    path: Path
    name: str = ""
    note: str = ""
    started_at: float | None = None
    host: str = ""
    devices: tuple[str, ...] = ()
    """Devices of the cells: torch's name and the machine's name of each."""
    torch: str | None = None
    sizes: tuple[str, ...] = ()
    """Sizes of the cells, or names of recordings."""
    contexts: tuple[int, ...] = ()
    passes: tuple[str, ...] = ()
    cells: int = 0
    ok: int = 0
    oom: int = 0
    failed: int = 0
    """Failed or killed."""
    left: int = 0
    """Without a result: resuming runs them."""
    skipped: int = 0
    stage: Stage = "empty"
    steps_done: int = 0
    steps_total: int = 0
    race_left: bool = False
    """True if it has a race without an end: resuming goes on with it."""
    reports: int = 0
    jobs: int = 0
    jobs_pending: int = 0
    jobs_running: int = 0
    """As they were known last."""
    writer: str | None = None
    """The process that writes it now."""
    problem: str | None = None
    """One line if the log cannot be read to its end."""

    @property
    def goes_on(self) -> bool:
        """True if a process writes it, or jobs run its cells."""
        return bool(self.writer or self.jobs_pending or self.jobs_running)

    @property
    def title(self) -> str:
        return self.name or self.session

    @property
    def begun(self) -> str:
        """When it began, such as ``2026-11-20 14:03``; empty if unknown."""
        return session_time(self.session, self.started_at)

    @property
    def standing(self) -> Standing:
        return Standing(self.stage, self.steps_done, self.steps_total, self.left, self.race_left)


def folder_sessions(directory: Path) -> list[Path]:
    """The logs in a folder, oldest first; none when there is no such folder."""
    return sorted(directory.glob(f"*{_SUFFIX}"))


def find(name: str, directory: Path) -> Path:
    """The log of an id, a unique prefix of one, a name, ``last``, or a path, of a folder its newest. Raises `LogError`
    naming what there is."""
    known = folder_sessions(directory)
    if name == "last":
        if not known:
            raise LogError(f"no session in {directory} yet; run one, or name another --session-dir")
        return known[-1]
    for candidate in (directory / f"{name}{_SUFFIX}", Path(name)):
        if is_file(candidate):
            if candidate.suffix != _SUFFIX:
                raise LogError(f"{candidate}: not a session log; expected a name that ends in {_SUFFIX}")
            return candidate
    if name and is_folder(Path(name)):
        return find("last", Path(name))
    fitting = [path for path in known if path.stem.startswith(name)] or [p for p in known if name_of(p) == name]
    if len(fitting) == 1 and name:
        return fitting[0]
    if fitting:
        shown = ", ".join(path.stem for path in fitting[:4]) + (" ..." if len(fitting) > 4 else "")
        raise LogError(f"session {name!r} fits {len(fitting)}: {shown}; give more of the one that is meant")
    raise LogError(f"no session {name!r} in {directory}; `cs336-tui sessions` lists them")


def is_own(path: Path) -> bool:
    """True of a session's log and of a folder, which may hold some; other files are what others recorded."""
    return path.suffix == _SUFFIX or is_folder(path)


def name_of(path: Path) -> str:
    """The name that the session was given last; empty without one, and of a log that cannot be read."""
    begin = b"\n" + line_prefix(ev.SessionAnnotated)
    try:
        log = path.read_bytes()
    except OSError:
        return ""
    at = log.rfind(begin)
    while at >= 0:
        with suppress(*DAMAGE):
            event = from_line(log[at + 1 :].partition(b"\n")[0])
            if isinstance(event, ev.SessionAnnotated) and event.name is not None:
                return event.name
        at = log.rfind(begin, 0, at)
    return ""


def list_sessions(directory: Path) -> Iterator[SessionInfo]:
    """Every session of the folder, newest first; one that cannot be read has a `problem`."""
    return map(info_of, reversed(folder_sessions(directory)))


def info_of(path: Path) -> SessionInfo:
    """The session at a glance, read without its steps."""
    state, problem = SessionState(), None
    try:
        fold(LogReader(path).without(*_LONG), state)
    except LogError as error:
        problem = str(error)
    found = describe(state, path, problem)
    return describe(load(path), path) if found.standing.can_resume and not problem else found  # with all its steps


def describe(state: SessionState, path: Path, problem: str | None = None) -> SessionInfo:
    """`info_of` for a session in memory."""
    cells = tuple(state.cells.values())
    jobs = [job.stage for job in state.jobs.values()]
    statuses = ["cancelled" if cell.is_left else cell.status for cell in cells]
    writer = writer_of(path)
    named = [(cell.spec.device, (cell.environment or state.environment)) for cell in cells]
    titles = dict.fromkeys(
        device.title if machine and (device := machine.device(name)) else name for name, machine in named
    )
    specs = [cell.spec for cell in cells]
    own = [spec for spec in specs if not has_stand_ins(spec)]
    return SessionInfo(
        session=path.stem,
        path=path,
        name=state.name,
        note=state.note,
        started_at=state.started.at if state.started else None,
        host=state.environment.host if state.environment else "",
        devices=tuple(titles),
        torch=state.environment.torch if state.environment else None,
        sizes=tuple(dict.fromkeys(spec.recording or spec.size for spec in specs)),
        contexts=tuple(dict.fromkeys(spec.context_length for spec in own)),
        passes=tuple(dict.fromkeys(spec.pass_ for spec in own)),
        cells=len(cells),
        ok=statuses.count("ok"),
        oom=statuses.count("oom"),
        failed=statuses.count("failed") + statuses.count("killed"),
        skipped=statuses.count("skipped"),
        reports=len(state.reports_on_cells),
        jobs=len(jobs),
        jobs_pending=jobs.count("pending"),
        jobs_running=jobs.count("running"),
        writer=str(writer) if writer else None,
        problem=problem,
        **msgspec.structs.asdict(standing_of(state, runs=bool(writer) or "pending" in jobs or "running" in jobs)),
    )


def annotate(path: Path, *, name: str | None = None, note: str | None = None) -> None:
    """Set the session's name or note; an empty text removes it. Raises `LogError`, also while it is written."""
    with closing(SessionLog(path, resume=True)) as log:
        log.write([ev.SessionAnnotated(at=time.time(), name=name, note=note)])


def delete(path: Path) -> None:
    """Delete the session's log, the files of its reports and the logs of its jobs. Raises `LogError`, also while a
    process writes it or jobs of it are not over."""
    if writer := writer_of(path):
        raise LogError(f"session {path.stem} is being written by {writer}; stop that first")
    jobs = path.with_suffix(JOBS_SUFFIX)
    if jobs.is_dir() and (info := info_of(path)).jobs_running + info.jobs_pending:
        raise LogError(f"session {path.stem} has jobs that may go on; first: cs336-tui cancel {path.stem}")
    try:
        path.unlink()
        shutil.rmtree(path.with_suffix(FILES_SUFFIX), ignore_errors=True)
        shutil.rmtree(jobs, ignore_errors=True)
    except OSError as error:
        raise LogError(f"{path}: {error.strerror}; it was not deleted") from None
