"""The session as it stands: a fold over events, the same for a live run and a replayed log."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable
from typing import Literal, Protocol, TypeVar

import msgspec

from cs336_tui.environment import Environment
from cs336_tui.events import (
    CellFinished,
    CellRequeued,
    CellSkipped,
    CellsPredicted,
    CellsQueued,
    CellStarted,
    ChildOutput,
    DeviceSampled,
    EnvironmentRead,
    Event,
    InForce,
    ModelBuilt,
    Notice,
    QueueOrdered,
    ReportFinished,
    ReportStage,
    ReportStarted,
    SessionAnnotated,
    SessionEnded,
    SessionResumed,
    SessionStarted,
    Stage,
    StageChanged,
    Status,
    StepsTimed,
)
from cs336_tui.reports import Prediction, Report, ReportKind, prediction_key, report_key
from cs336_tui.session.surroundings import Surroundings
from cs336_tui.spec import RunSpec
from cs336_tui.stats import RunningStats, Summary, summarize

DEVICE_HISTORY = 1200
"""Device samples kept for the graphs."""
CellEvent = CellSkipped | CellRequeued | CellStarted | StageChanged | ModelBuilt | StepsTimed | CellFinished
_R = TypeVar("_R", bound=Report)
OUTPUT_LIMIT = 64 * 1024
"""Characters of a cell's output kept in memory; the log has all of it."""


class StepTimes:
    """The times of one cell's steps, seconds, oldest first; those of a phase or of the host as long as the steps'."""

    def __init__(self) -> None:
        self.warmup_s: list[float] = []
        self.measured_s: list[float] = []
        self.warmup_phases_s: dict[str, list[float]] = {}
        self.measured_phases_s: dict[str, list[float]] = {}
        self.warmup_host_s: list[float] = []
        self.measured_host_s: list[float] = []
        self.running = RunningStats()
        """Over the measured steps."""

    def add(self, steps: StepsTimed) -> None:
        measured = steps.kind == "measured"
        times, phases, host = (
            (self.measured_s, self.measured_phases_s, self.measured_host_s)
            if measured
            else (self.warmup_s, self.warmup_phases_s, self.warmup_host_s)
        )
        times.extend(steps.times_s)
        host.extend(steps.host_s)
        for name, values in steps.phases_s.items():
            phases.setdefault(name, []).extend(values)
        if measured:
            for time_s in steps.times_s:
                self.running.add(time_s)


class Unread(Protocol):
    """What a log tells of one attempt at a cell, not read yet. May be read several times, by several threads."""

    def steps(self) -> Iterable[StepsTimed]: ...
    def samples(self) -> Iterable[tuple[DeviceSampled, Stage | None]]:
        """Of the device while the cell ran and after, each with the cell's stage, None when it was over."""


class CellState:
    """One cell: what was asked and what is known so far. Times in seconds, oldest first.

    The steps and the surroundings of a cell may be read when somebody asks for them (`read_later`); the summary of a
    finished one is known before.
    """

    def __init__(self, cell: int, spec: RunSpec, repeat: int = 1) -> None:
        self.cell = cell
        self.spec = spec
        self.repeat = repeat
        """Which run of its spec it is, from 1."""
        self.status: Status | Literal["queued", "running", "skipped"] = "queued"
        self.skipped_because: str | None = None
        self.earlier: list[CellState] = []
        """What it was when it was started again, oldest first."""
        self._forget()

    def _forget(self) -> None:
        self.stage: Stage | None = None
        self.pid: int | None = None
        self.started_at: float | None = None
        self.finished: CellFinished | None = None
        self.environment: Environment | None = None
        """The machine that it runs or ran on."""
        self.num_params: int | None = None
        self.num_params_without_head: int | None = None
        self.in_force: InForce | None = None
        self.unread: Unread | None = None
        """Where the steps and the surroundings are until they are asked for."""
        self._times: StepTimes | None = StepTimes()
        self._surroundings: Surroundings | None = Surroundings()
        self._window_ended_at: float | None = None
        self.output = ""

    def start_again(self) -> None:
        """Wait again; what was known so far goes to `earlier`."""
        if self.started_at is not None:
            before = copy.copy(self)
            before.earlier = []
            self.earlier.append(before)
        self._forget()
        self.status, self.skipped_because = "queued", None

    @property
    def times(self) -> StepTimes:
        if self._times is None:
            times = StepTimes()  # another thread that asks meanwhile must not see half of it
            for steps in self.unread.steps() if self.unread else ():
                times.add(steps)
            self._times = times
        return self._times

    @property
    def surroundings(self) -> Surroundings:
        """What was seen of the device and the host."""
        if self._surroundings is None:
            surroundings = Surroundings()
            for sample, stage in self.unread.samples() if self.unread else ():
                surroundings.take(sample, stage)
            surroundings.end_window(self._window_ended_at)
            self._surroundings = surroundings
        return self._surroundings

    def end_window(self, at: float) -> None:
        """It stopped measuring at this time (Unix seconds)."""
        self._window_ended_at = at
        if self._surroundings is not None:
            self._surroundings.end_window(at)

    @property
    def warmup_times_s(self) -> list[float]:
        return self.times.warmup_s

    @property
    def step_times_s(self) -> list[float]:
        """Of the measured steps."""
        return self.times.measured_s

    @property
    def warmup_phase_times_s(self) -> dict[str, list[float]]:
        return self.times.warmup_phases_s

    @property
    def phase_times_s(self) -> dict[str, list[float]]:
        return self.times.measured_phases_s

    @property
    def warmup_host_times_s(self) -> list[float]:
        return self.times.warmup_host_s

    @property
    def host_times_s(self) -> list[float]:
        return self.times.measured_host_s

    @property
    def running(self) -> RunningStats:
        """Over the measured steps."""
        if self._times is None and (known := self._known_summary):
            return RunningStats.of(known)
        return self.times.running

    @property
    def _known_summary(self) -> Summary | None:
        return self.finished.summary if self.finished else None

    def read_later(self, unread: Unread) -> None:
        """Have steps and surroundings read when they are first asked for, instead of what was added."""
        self.unread, self._times, self._surroundings = unread, None, None

    @property
    def steps_done(self) -> int:
        if self._times is None and self.finished and (known := self.finished.summary):
            return self.finished.warmup_steps_done + known.n
        return len(self.warmup_times_s) + len(self.step_times_s)

    @property
    def is_over(self) -> bool:
        return self.finished is not None

    @property
    def is_skipped(self) -> bool:
        return self.status == "skipped"

    def summary(self, ddof: int) -> Summary | None:
        """Summary of the measured steps, None before the first."""
        if self._times is None and (known := self._known_summary):
            return known.with_ddof(ddof) if known.n else None
        return summarize(self.step_times_s, ddof) if self.step_times_s else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of one step over the mean measured step time."""
        running = self.running
        return self.spec.tokens_per_step / running.mean if running.n and running.mean else None

    def add_steps(self, steps: StepsTimed) -> None:
        self.times.add(steps)


class ReportState:
    """One report: what was asked and what came of it. `status` is None while it is being made."""

    def __init__(self, asked: ReportStarted) -> None:
        self.report = asked.report
        self.kind: ReportKind = asked.kind
        self.spec = asked.spec
        self.cell = asked.cell
        self.started_at = asked.at
        self.stage = "starting"
        self.finished_at: float | None = None
        self.status: Status | None = None
        self.error: str | None = None
        self.content: Report | None = None

    def finish(self, event: ReportFinished) -> None:
        self.status, self.error, self.content, self.finished_at = event.status, event.error, event.content, event.at


class SessionState:
    """Everything known of a session; `apply` is the only way to change it."""

    def __init__(self) -> None:
        self.started: SessionStarted | None = None
        self.name = ""
        self.note = ""
        self.environment: Environment | None = None
        """The machine as it was read last."""
        self.ddof = 1
        """Of every std that is shown, as the latest run asked."""
        self.commands: list[str] = []
        """Command lines that repeat the session's runs headless, in order."""
        self.cells: dict[int, CellState] = {}
        self.queued: CellsQueued | None = None
        """The cells that were added last."""
        self.waiting: dict[int, None] = {}
        """Cells that will run, as ordered keys."""
        self.running: dict[int, None] = {}
        """The cells that run, as keys in the order of their starts: one, or several that take turns."""
        self._together: dict[int, None] = {}
        """The cells that were started since none ran, as ordered keys."""
        self.predictions: dict[RunSpec, Prediction] = {}
        """What cells will need, by `prediction_key`."""
        self.unpredictable: set[RunSpec] = set()
        """For what it could not be worked out, by `prediction_key`."""
        self.reports: dict[int, ReportState] = {}
        """In the order in which they were begun."""
        self.devices: deque[tuple[DeviceSampled, int | None]] = deque(maxlen=DEVICE_HISTORY)
        """Device samples, each with the cell that was running when it was taken."""
        self.notices: list[Notice] = []
        self.output: deque[ChildOutput] = deque(maxlen=2000)
        self.ended: SessionEnded | None = None
        self.last_at: float | None = None

    @property
    def current(self) -> int | None:
        """The cell that was started last of those that run, None between cells."""
        return next(reversed(self.running), None)

    @property
    def running_cell(self) -> CellState | None:
        return self.cells[self.current] if self.current is not None else None

    @property
    def running_cells(self) -> tuple[CellState, ...]:
        return tuple(self.cells[number] for number in self.running)

    @property
    def surrounded(self) -> tuple[tuple[CellState, Stage | None], ...]:
        """The cells that a device sample taken now tells of, each with its stage: those that run, and those that
        are over (None) and ran last or beside one that still runs."""
        cells = [self.cells[number] for number in self._together if number in self.cells]
        running = [(cell, cell.stage) for cell in cells if cell.cell in self.running]
        return (*running, *((cell, None) for cell in cells if cell.is_over))

    @property
    def finished_cells(self) -> tuple[CellState, ...]:
        return tuple(cell for cell in self.cells.values() if cell.is_over)

    @property
    def steps_done(self) -> int:
        """Steps finished, counting a finished cell as all of its steps, so that progress reaches its total."""
        return sum(c.spec.total_steps if c.is_over else c.steps_done for c in self.cells.values() if not c.is_skipped)

    @property
    def steps_total(self) -> int:
        """Of all cells that have run or will."""
        return sum(cell.spec.total_steps for cell in self.cells.values() if not cell.is_skipped)

    def prediction_of(self, spec: RunSpec) -> Prediction | None:
        """What a cell of this spec will need, where that was worked out."""
        found = self.predictions.get(prediction_key(spec))
        return msgspec.structs.replace(found, spec=spec) if found else None

    def report_of(self, kind: ReportKind, spec: RunSpec) -> ReportState | None:
        """The latest report of a kind on a spec (on one that it tells the same of); one that is being made first, then
        one that succeeded."""
        key = report_key(spec)
        found = [r for r in self.reports.values() if r.kind == kind and report_key(r.spec) == key]
        running = [r for r in found if r.status is None]
        succeeded = [r for r in found if r.status == "ok"]
        best = running or succeeded or found
        return best[-1] if best else None

    def contents(self, kind: type[_R]) -> tuple[_R, ...]:
        """What the latest successful report of a kind found, for each spec, oldest first."""
        latest: dict[RunSpec, _R] = {}
        for report in self.reports.values():
            if isinstance(report.content, kind):
                latest[report_key(report.spec)] = report.content
        return tuple(latest.values())

    def break_off(self) -> None:
        """Nothing more will come: reports that were being made never will be."""
        for report in self.reports.values():
            if report.status is None:
                report.status, report.error = "cancelled", "broken off: the session ended before it was made"

    def apply(self, event: Event) -> None:
        """Fold one event in. Events of unknown cells are ignored: their log line said too little to place them."""
        self.last_at = event.at
        match event:
            case SessionStarted():
                self.started = event
            case EnvironmentRead():
                self.environment = event.environment
            case CellsQueued():
                self.ended, self.ddof, self.queued = None, event.ddof, event
                if event.command:
                    self.commands.append(event.command)
                repeats = event.repeats or (1,) * len(event.specs)
                for number, (spec, repeat) in enumerate(zip(event.specs, repeats, strict=False), event.first):
                    self.cells[number] = CellState(number, spec, repeat)
                    self.running.pop(number, None)
                    self.waiting[number] = None
            case QueueOrdered():
                first = {cell: None for cell in event.cells if cell in self.waiting}
                self.waiting = first | self.waiting
            case SessionResumed():
                self.ended = None
                for interrupted in self.running_cells:
                    interrupted.start_again()
                self.waiting = self.running | self.waiting
                self.running = {}
                self.reports = {number: report for number, report in self.reports.items() if report.status}
            case SessionAnnotated():
                self.name = self.name if event.name is None else event.name
                self.note = self.note if event.note is None else event.note
            case CellsPredicted():
                self.predictions |= {prediction_key(found.spec): found for found in event.predictions}
                self.unpredictable |= {prediction_key(spec) for spec in event.failed}
            case ReportStarted():
                self.reports[event.report] = ReportState(event)
            case ReportStage():
                if report := self.reports.get(event.report):
                    report.stage = event.stage
            case ReportFinished():
                if report := self.reports.get(event.report):
                    report.finish(event)
            case DeviceSampled():
                self.devices.append((event, self.current))
                for cell, stage in self.surrounded:
                    cell.surroundings.take(event, stage)
            case Notice():
                self.notices.append(event)
            case SessionEnded():
                self.ended, self.running = event, {}
                self.break_off()
            case ChildOutput():
                self.output.append(event)
                if event.cell is not None and (heard := self.cells.get(event.cell)):
                    heard.output = (heard.output + event.text)[-OUTPUT_LIMIT:]
            case _:
                if known := self.cells.get(event.cell):
                    self._apply_to_cell(known, event)

    def _wait_again(self, cell: CellState) -> None:
        cell.start_again()
        self.running.pop(cell.cell, None)
        self.waiting[cell.cell] = None

    def _apply_to_cell(self, cell: CellState, event: CellEvent) -> None:
        match event:
            case CellSkipped():
                cell.status, cell.skipped_because = "skipped", event.reason
                self.running.pop(cell.cell, None)
                self.waiting.pop(cell.cell, None)
            case CellRequeued():
                self._wait_again(cell)
            case CellStarted():
                cell.start_again()
                cell.status, cell.stage = "running", "starting"
                cell.started_at, cell.pid, cell.environment = event.at, event.pid, self.environment
                self.waiting.pop(cell.cell, None)
                self.running.pop(cell.cell, None)
                self._together = {**(self._together if self.running else {}), cell.cell: None}
                self.running[cell.cell] = None
            case StageChanged():
                if cell.stage == "measuring":
                    cell.end_window(event.at)
                cell.stage = event.stage
            case ModelBuilt():
                cell.num_params = event.num_params
                cell.num_params_without_head = event.num_params_without_head
                cell.in_force = event.in_force
            case StepsTimed():
                cell.add_steps(event)
            case CellFinished():
                cell.status, cell.finished = event.status, event
                self.waiting.pop(cell.cell, None)
                cell.stage = event.stage or cell.stage
                if cell.in_force and event.logits_dtype:
                    cell.in_force = msgspec.structs.replace(cell.in_force, logits_dtype=event.logits_dtype)
                self.running.pop(cell.cell, None)


def fold(events: Iterable[Event]) -> SessionState:
    """The state after all of these."""
    state = SessionState()
    for event in events:
        state.apply(event)
    return state
