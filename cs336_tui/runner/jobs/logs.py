"""Follows the logs of a session's jobs as they grow, and turns their events into those of the session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from cs336_tui.events import events as ev
from cs336_tui.events.codec import coalesce, from_line
from cs336_tui.events.environment import Environment
from cs336_tui.events.prediction import prediction_key
from cs336_tui.events.reports import Report
from cs336_tui.runner.jobs.job import MOST_BYTES, read_shared
from cs336_tui.session.log import DAMAGE, FILES_SUFFIX, LogError, line_prefix
from cs336_tui.session.state import SessionState

replace = msgspec.structs.replace


PASSED_OVER = (
    ev.StepsTimed, ev.DeviceSampled, ev.ChildOutput, ev.StageChanged, ev.ModelBuilt, ev.ModelPrepared
)  # fmt: skip
"""Events that decide nothing here."""


def fold_deciding(events: Iterable[ev.Event], state: SessionState) -> None:
    """Fold the events that decide something into the state."""
    for event in events:
        if type(event) not in PASSED_OVER:
            state.apply(event)


class _Growing:
    """A log as it grows, and how far it has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def _new_lines(self, *, to_its_end: bool = False) -> list[bytes]:
        """Whole lines that are new. Bytes that a network file system has not delivered yet are zeros: unless the log is
        read `to_its_end`, they and what follows are waited for. Raises `LaunchError`."""
        data = read_shared(self.path, self.offset)
        while len(data) >= MOST_BYTES and (more := read_shared(self.path, self.offset + len(data))):
            data += more
        if not to_its_end and (hole := data.find(b"\0")) >= 0:
            data = data[:hole]
        whole = data.rfind(b"\n") + 1
        self.offset += whole
        return data[:whole].splitlines()


class Tail(_Growing):
    """The events of a session's log."""

    def read(self) -> list[ev.Event]:
        """New events. A log that goes on after a line that cannot be read is damaged: `LogError`."""
        try:
            return [from_line(line) for line in self._new_lines() if line.strip()]
        except DAMAGE as error:
            raise LogError(f"{self.path}: damaged ({error})") from None


def with_files_in(folder: Path, report: Report) -> Report:
    """The report with the paths of what it saved in this folder, where it lies there: its job may have run on a machine
    that calls the folder otherwise."""
    changes: dict[str, Any] = {}
    for field in ("trace", "snapshot"):
        name = Path(getattr(report, field, None) or "").name
        if name and (folder / name).is_file():
            changes[field] = str(folder / name)
    if ranks := getattr(report, "ranks", None):
        changes["ranks"] = tuple(with_files_in(folder, rank) for rank in ranks)
    return replace(report, **changes) if changes else report


class JobLog(_Growing):
    """A log of a job: a session of its own, whose events become those of `session`. Cells of `left` have no result yet
    and leave it with one; events of others are passed over, as a former watcher has folded them. The logs of a session
    share the texts of its `notices`, each of which is told once."""

    def __init__(self, path: Path, job: str, left: set[int], session: SessionState, notices: set[str]) -> None:
        super().__init__(path)
        self._tag, self._files = path.stem, path.with_suffix(FILES_SUFFIX)
        self._job, self._left, self._session, self._notices = job, left, session, notices
        cells = (session.cells[number] for number in left)
        self._known = {(cell.cell, attempt.started_at) for cell in cells for attempt in (cell, *cell.earlier)}
        self._lines = 0
        self.damaged: int | None = None
        """The first line that could not be read."""
        self.is_closed = False
        """True once the job has closed it."""
        self.begun: dict[int, Literal["running", "cancelled"]] = {}
        """The cells without a result that run or that the job stopped: the end of the job says why."""
        self._over_last: tuple[int, ...] = ()
        self._environment: Environment | None = None
        self._lanes = [number for number, lane in session.lanes.items() if lane.lane.job == self._tag]
        """The session's numbers of the job's lanes, which it numbers from 0; a run that goes on opens the same ones."""
        own = ((number, report) for number, report in session.reports.items() if report.job == self._tag)
        self._known_reports = {report.started_at: number for number, report in own}
        """The numbers of reports that a former watcher has told, by their starts."""
        self._reports: dict[int, int] = {}

    @property
    def reports(self) -> tuple[int, ...]:
        """The session's numbers of the reports that are being made."""
        return tuple(self._reports.values())

    def read(self, *, to_its_end: bool = False, results_alone: bool = False) -> Iterator[ev.Event]:
        """The session's events for whole lines that are new (`_new_lines`), or for those of cells that have a result;
        each is to be folded into the session before the next one is asked for."""
        events = coalesce(self._events(self._new_lines(to_its_end=to_its_end)))
        if results_alone:
            ends = (event for event in events if isinstance(event, ev.CellFinished) and event.status != "cancelled")
            self._left = self._left & {event.cell for event in ends}
        # Of the attempts that the session knows the last one is read anew: it may have ended since.
        self._known -= {event.cell: event.at for event in events if isinstance(event, ev.CellStarted)}.items()
        for event in events:
            yield from self._take(event)

    def _events(self, lines: Iterable[bytes]) -> Iterator[ev.Event]:
        for line in lines:
            self._lines += 1
            if line.strip() and not line.startswith(_NOT_THE_SESSIONS):
                try:
                    yield from_line(line)
                except DAMAGE:
                    self.damaged = self.damaged or self._lines

    def _take(self, event: ev.Event) -> Iterator[ev.Event]:
        session, begun = self._session, self.begun
        if isinstance(event, ev.CellEvent) and event.cell not in self._left:
            return
        match event:
            case ev.StepsTimed() | ev.StageChanged() | ev.ModelBuilt() | ev.ModelPrepared():
                if begun.get(event.cell) == "running":
                    yield event
            case ev.DeviceSampled():
                cells = self._running or self._over_last
                if event.cells:
                    cells = tuple(cell for cell in event.cells if cell in (*self._running, *self._over_last))
                if cells:
                    yield replace(event, cells=cells)
            case ev.CellStarted():
                if (event.cell, event.at) in self._known:
                    return
                begun[event.cell] = "running"
                if self._environment and self._environment != session.environment:
                    yield ev.EnvironmentRead(at=event.at, environment=self._environment)
                lanes = self._lanes
                yield replace(event, job=self._job, lanes=tuple(lanes[n] for n in event.lanes if n < len(lanes)))
            case ev.CellFinished(status="cancelled"):
                begun[event.cell] = "cancelled"
            case ev.CellFinished() | ev.CellSkipped():
                if begun.pop(event.cell, "") == "running":
                    self._over_last = (event.cell,)
                self._left.discard(event.cell)
                yield event
            case ev.CellRequeued():
                if begun.pop(event.cell, ""):
                    yield event
            case ev.ChildOutput():
                if event.cell is None or begun.get(event.cell) == "running":
                    yield event
            case ev.EnvironmentRead():
                self._environment = event.environment
            case ev.LanesOpened():
                first = _next_number(session.lanes)
                self._lanes += range(first, first + len(event.lanes) - len(self._lanes))
                host = self._environment.host if self._environment else ""
                lanes_of_session = (
                    replace(lane, lane=number, machine=lane.machine or host, job=self._tag)
                    for lane, number in zip(event.lanes, self._lanes, strict=False)
                )
                yield replace(event, lanes=tuple(lanes_of_session))
            case ev.LaneSetAside():
                if event.lane < len(self._lanes):
                    yield replace(event, lane=self._lanes[event.lane])
            case ev.ReportStarted():
                number = self._known_reports.get(event.at, _next_number(session.reports))
                if number not in session.reports or session.reports[number].status is None:
                    self._reports[event.report] = number
                    yield replace(event, report=number, job=self._tag)
            case ev.ReportStage():
                if event.report in self._reports:
                    yield replace(event, report=self._reports[event.report])
            case ev.ReportFinished():
                if (ended := self._reports.pop(event.report, None)) is not None:
                    content = event.content and with_files_in(self._files, event.content)
                    yield replace(event, report=ended, content=content)
            case ev.CellsPredicted():
                keys = set(map(prediction_key, (*(each.spec for each in event.predictions), *event.failed)))
                if not keys <= session.predictions.keys() | session.unpredictable.keys():
                    yield event
            case ev.Notice():
                if event.text not in self._notices:
                    self._notices.add(event.text)
                    yield event
            case ev.SessionResumed():
                for cell in self._running:
                    del begun[cell]
                    yield ev.CellRequeued(at=event.at, cell=cell)
                self._reports.clear()
                self.is_closed = False
            case ev.SessionEnded():
                self.is_closed = True
            case _:
                pass  # the session has queued the cells, and a job has neither a name nor jobs of its own

    def requeue(self, at: float) -> list[ev.Event]:
        """The session's events for a job that its launcher will start again: what ran or was stopped waits."""
        cells, self.begun = sorted(self.begun), {}
        return [ev.CellRequeued(at=at, cell=cell) for cell in cells]

    @property
    def _running(self) -> tuple[int, ...]:
        return tuple(cell for cell, status in self.begun.items() if status == "running")


def _next_number(given: dict[int, Any]) -> int:
    """The number after those that are given, which were given in order."""
    return next(reversed(given), -1) + 1


_NOT_THE_SESSIONS = tuple(line_prefix(kind) for kind in (ev.SessionStarted, ev.CellsQueued, ev.QueueOrdered))
"""The lines of a job's log of which the session has its own."""
