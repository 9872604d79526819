"""Follows the logs of a session's jobs as they grow, and turns their events into those of the session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.events.codec import coalesce, from_line
from cs336_tui.events.environment import Environment
from cs336_tui.events.prediction import prediction_key
from cs336_tui.events.reports import Report
from cs336_tui.runner.jobs.job import MOST_BYTES, JobStatus, read_shared
from cs336_tui.session.log import DAMAGE, FILES_SUFFIX, LogError, line_prefix
from cs336_tui.session.state import SessionState

replace = msgspec.structs.replace


class Numbering:
    """Whatever all jobs of a session share: numbers of lanes and reports, the machine that was read last, and notices
    and predictions that need not be told twice."""

    def __init__(self, state: SessionState) -> None:
        self.environment = state.environment
        self.lanes_of: dict[str, list[int]] = {}
        for number, lane in state.lanes.items():
            self.lanes_of.setdefault(lane.lane.job, []).append(number)
        self.reports_of: dict[str, list[int | None]] = {}
        """The numbers of the reports of each job, None of those that are over."""
        for number, report in state.reports.items():
            if report.job:
                self.reports_of.setdefault(report.job, []).append(None if report.status else number)
        self.next_lane = max(state.lanes, default=-1) + 1
        self.next_report = max(state.reports, default=-1) + 1
        self.said = {notice.text for notice in state.notices}
        self.predicted: set[CellSpec] = set(state.predictions)


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
    """A log of a job, whose events become those of the session. Cells of `left` have no result yet and leave it with
    one; events of others are passed over, as a former watcher has folded them. With `again` a former watcher may have
    begun: then of several attempts at a cell in the first events only the last counts. Of a job whose end was told
    (`settled`) only the cells count that have a result after all."""

    def __init__(
        self, path: Path, job: str, left: set[int], numbering: Numbering, *, again: bool = False, settled: bool = False
    ) -> None:
        super().__init__(path)
        self._tag, self._files = path.stem, path.with_suffix(FILES_SUFFIX)
        self._job, self._left, self._shared = job, left, numbering
        self._again, self._settled = again, settled
        self._lines = 0
        self.damaged: int | None = None
        """The first line that could not be read."""
        self._environment: Environment | None = None
        self._lanes: dict[int, int] = {}
        self._reports: dict[int, int] = {}
        self._reports_begun = 0
        self._machine = ""
        self._over_last: tuple[int, ...] = ()
        self.running: dict[int, None] = {}
        self.cancelled: dict[int, None] = {}
        """Cells that the job stopped, as ordered keys: the end of the job says why."""
        self.ended = False
        """True once the job has closed its log."""

    @property
    def reports(self) -> tuple[int, ...]:
        """The session's numbers of the reports that are being made."""
        return tuple(self._reports.values())

    def read(self, *, to_its_end: bool = False) -> list[ev.Event]:
        """The session's events for whole lines that are new; see `_new_lines`."""
        lines, found = self._new_lines(to_its_end=to_its_end), list[ev.Event]()
        if not lines:
            return found
        events = coalesce(self._events(lines))
        if self._settled:
            ends = (event for event in events if isinstance(event, ev.CellFinished) and event.status != "cancelled")
            self._left &= {event.cell for event in ends}
        for event in _last_attempts(events) if self._again else events:
            found += self._take(event)
        self._again = False
        return found

    def _events(self, lines: Iterable[bytes]) -> Iterator[ev.Event]:
        for line in lines:
            self._lines += 1
            if line.strip() and not line.startswith(_NOT_THE_SESSIONS):
                try:
                    yield from_line(line)
                except DAMAGE:
                    self.damaged = self.damaged or self._lines

    def _take(self, event: ev.Event) -> Iterator[ev.Event]:
        match event:
            case ev.StepsTimed() | ev.StageChanged() | ev.ModelBuilt() | ev.ModelPrepared():
                if event.cell in self.running:
                    yield event
            case ev.DeviceSampled():
                cells = event.cells or (*self.running, *(() if self.running else self._over_last))
                if of_running := tuple(cell for cell in cells if cell in self.running or cell in self._over_last):
                    yield replace(event, cells=of_running)
            case ev.CellStarted():
                if event.cell in self._left:
                    self.running[event.cell] = None
                    self.cancelled.pop(event.cell, None)
                    if self._environment and self._environment != self._shared.environment:
                        self._shared.environment = self._environment
                        yield ev.EnvironmentRead(at=event.at, environment=self._environment)
                    lanes = tuple(self._lanes[lane] for lane in event.lanes if lane in self._lanes)
                    yield replace(event, job=self._job, lanes=lanes)
            case ev.CellFinished() if event.cell in self._left:
                was_running = self.running.pop(event.cell, 0) is None
                if event.status == "cancelled":
                    self.cancelled[event.cell] = None
                else:
                    self._left.discard(event.cell)
                    if was_running:
                        self._over_last = (event.cell,)
                    yield event
            case ev.CellSkipped():
                if event.cell in self._left:
                    self._left.discard(event.cell)
                    yield event
            case ev.CellRequeued():
                if event.cell in self._left and self._stop(event.cell):
                    yield event
            case ev.ChildOutput():
                if event.cell is None or event.cell in self.running:
                    yield event
            case ev.EnvironmentRead():
                self._environment, self._machine = event.environment, event.environment.host
            case ev.LanesOpened():
                yield replace(event, lanes=tuple(map(self._own_lane, event.lanes)))
            case ev.LaneSetAside():
                if event.lane in self._lanes:
                    yield replace(event, lane=self._lanes[event.lane])
            case ev.ReportStarted():
                of_log = self._shared.reports_of.setdefault(self._tag, [])
                if self._reports_begun == len(of_log):
                    of_log.append(self._shared.next_report)
                    self._shared.next_report += 1
                number = of_log[self._reports_begun]
                self._reports_begun += 1
                if number is not None:
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
                if not keys <= self._shared.predicted:
                    self._shared.predicted |= keys
                    yield event
            case ev.Notice():
                if event.text not in self._shared.said:
                    self._shared.said.add(event.text)
                    yield event
            case ev.SessionResumed():
                yield from [ev.CellRequeued(at=event.at, cell=cell) for cell in self.running]
                self.running.clear()
                self._reports.clear()
                self.ended = False
            case ev.SessionEnded():
                self.ended = True
            case _:
                pass  # the session has queued the cells, and a job has neither a name nor jobs of its own

    def requeue(self, at: float) -> list[ev.Event]:
        """The session's events for a job that its launcher will start again: what ran or was stopped waits."""
        stopped = sorted({*self.running, *self.cancelled} & self._left)
        return [ev.CellRequeued(at=at, cell=cell) for cell in stopped if self._stop(cell)]

    def _stop(self, cell: int) -> bool:
        """Forget that a cell ran or was stopped; False if it was neither."""
        return None in (self.running.pop(cell, 0), self.cancelled.pop(cell, 0))

    def _own_lane(self, lane: ev.Lane) -> ev.Lane:
        """The session's lane for one of the job's; a run of the job that goes on opens the same ones again."""
        of_log = self._shared.lanes_of.setdefault(self._tag, [])
        if lane.lane not in self._lanes:
            if len(self._lanes) == len(of_log):
                of_log.append(self._shared.next_lane)
                self._shared.next_lane += 1
            self._lanes[lane.lane] = of_log[len(self._lanes)]
        machine = lane.machine or self._machine
        return replace(lane, lane=self._lanes[lane.lane], machine=machine, job=self._tag)


def _last_attempts(events: Sequence[ev.Event]) -> Iterable[ev.Event]:
    """The events without those of cells before their last start."""
    start: dict[int, int] = {}
    for place, event in enumerate(events):
        if isinstance(event, ev.CellStarted):
            start[event.cell] = place
    dropped = (ev.CellStarted, ev.StageChanged, ev.ModelBuilt, ev.ModelPrepared, ev.StepsTimed)
    for place, event in enumerate(events):
        if isinstance(event, dropped) and place < start.get(event.cell, -1):
            continue
        yield event


_NOT_THE_SESSIONS = tuple(line_prefix(kind) for kind in (ev.SessionStarted, ev.CellsQueued, ev.QueueOrdered))
"""The lines of a job's log of which the session has its own."""


@dataclass(eq=False)
class FollowedJob:
    """A job that may still write, or whose end is not told yet."""

    submitted: ev.JobSubmitted
    left: set[int]
    logs: Sequence[JobLog]
    settled: bool
    """True of a job whose end a former watcher has told; its log may hold more than that one saw."""
    told: tuple[str, str, str] = ("", "", "")
    status: JobStatus | None = None
    grown_at: float = 0.0
    over_at: float = 0.0
    ended_at: float = 0.0
    heard_at: float = 0.0
    has_run: bool = False
    """True once the launcher has said that it runs."""

    @property
    def is_closed(self) -> bool:
        """True if all its logs are closed."""
        return all(log.ended for log in self.logs)

    @property
    def running(self) -> set[int]:
        return {cell for log in self.logs for cell in log.running}
