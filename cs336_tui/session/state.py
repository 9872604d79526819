"""The state of a session: a fold over events, the same for a live run and a replayed log; and of its races the visits,
and how long another one takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple, TypeVar

from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.events.environment import Environment, GpuSample
from cs336_tui.events.prediction import Prediction, predicted_for, prediction_key, report_key
from cs336_tui.events.reports import MemoryReport, Report, ReportKind
from cs336_tui.session.states import CellState, JobState, LaneState, RaceState, ReportState

DEVICE_HISTORY = 1200
"""Device samples kept for the graphs; where cells run side by side, `SIDE_BY_SIDE` times as many."""
SIDE_BY_SIDE = 8
_SURROUNDS_S = 10.0
"""Seconds after its end within which a cell that ran beside others takes samples."""
_R = TypeVar("_R", bound=Report)
OUTPUT_LIMIT = 64 * 1024
"""Characters of a cell's output kept in memory; the log has all of it."""


class ActivationPeak(NamedTuple):
    """A peak apart from parameters, gradients and optimizer state, and how it is known: ``recorded`` by a memory
    report, else ``predicted``."""

    bytes: int
    basis: str


class SessionState:
    """Everything known of a session; `apply` is the only way to change it."""

    def __init__(self) -> None:
        self.started: ev.SessionStarted | None = None
        self.name = ""
        self.note = ""
        self.environment: Environment | None = None
        """The machine as it was read last."""
        self.ddof = 1
        """Of every std that is shown, as the latest run asked."""
        self.commands: list[str] = []
        """Command lines that repeat the session's runs headless, in order."""
        self.cells: dict[int, CellState] = {}
        self._tuned: dict[CellSpec, dict[int, ev.CellFinished]] = {}  # Ends with choices of autotuners
        self.queued: ev.CellsQueued | None = None
        """The cells that were added last."""
        self.waiting: dict[int, None] = {}
        """Cells that will run, as ordered keys."""
        self.running: dict[int, None] = {}
        """The cells that run, as keys in the order of their starts; several if they take turns."""
        self.lanes: dict[int, LaneState] = {}
        """The lanes that cells start in; empty if one runs after the other."""
        self.jobs: dict[str, JobState] = {}
        """The jobs of the session, in the order of their submission."""
        self.samples: dict[int, ev.DeviceSampled] = {}
        """The newest device sample of each running cell."""
        self._together: dict[int, None] = {}  # the cells started since none ran, as ordered keys
        self._on: dict[str, dict[int, None]] = {}  # those that run in lanes and jobs, by machine
        self._job_of: dict[int, str] = {}  # the last job that was submitted with a cell
        self.default_threads: dict[tuple[str, str], int] = {}
        """torch's default intra-op threads as last read back, by device and model."""
        self.predictions: dict[CellSpec, Prediction] = {}
        """By `prediction_key`."""
        self.predictions_elsewhere: dict[tuple[int, int], dict[CellSpec, Prediction]] = {}
        """Those for a GPU that need not be here, by its compute capability."""
        self.unpredictable: dict[CellSpec, str] = {}
        """Reasons of failed predictions, by `prediction_key`."""
        self.wanted: dict[int, tuple[str, ...]] = {}
        """Kinds of reports that were asked for with a cell."""
        self.reports: dict[int, ReportState] = {}
        """In the order in which they were begun."""
        self._alike: dict[CellSpec, list[ReportState]] | None = None  # by `report_key`, made when it is asked for
        self.devices: deque[tuple[ev.DeviceSampled, int | None]] = deque(maxlen=DEVICE_HISTORY)
        """Device samples, each with the cell that ran."""
        self.machine_gpus: tuple[GpuSample, ...] = ()
        """All GPUs of the machine as they were read last; empty if there is only one."""
        self.races: list[RaceState] = []
        """In the order in which they were begun; the last one may go on."""
        self.notices: list[ev.Notice] = []
        self.output: deque[ev.ChildOutput] = deque(maxlen=2000)
        self.ended: ev.SessionEnded | None = None
        self.last_at: float | None = None

    @property
    def current(self) -> int | None:
        """The running cell that was started last, None between cells."""
        return next(reversed(self.running), None)

    @property
    def running_cell(self) -> CellState | None:
        return self.cells[self.current] if self.current is not None else None

    @property
    def running_cells(self) -> tuple[CellState, ...]:
        return tuple(self.cells[number] for number in self.running)

    def surrounded(self, cells: Iterable[int] = ()) -> tuple[tuple[CellState, ev.Stage | None], ...]:
        """The cells that a sample names, with their stages, None of those that are over; if it names none, the cells
        that run and those over that ran last or beside one that runs."""
        found = [self.cells[number] for number in cells or self._together if number in self.cells]
        pairs = ((cell, cell.stage if cell.cell in self.running else None) for cell in found)
        return tuple((cell, stage) for cell, stage in pairs if stage or cell.is_over)

    @property
    def side_by_side(self) -> bool:
        """True if cells run beside each other: in lanes or in jobs."""
        return bool(self.lanes or self.jobs)

    def job_of(self, cell: CellState) -> JobState | None:
        """The job that runs the cell or is to run it: the last one submitted with it."""
        if cell.job in self.jobs:
            return self.jobs[cell.job]
        return self.jobs.get(self._job_of.get(cell.cell, ""))

    def machine_of(self, cell: CellState) -> str | None:
        """The name of the machine that the cell ran on: that of its lane, the node of its job, else the host."""
        lanes = [self.lanes[lane].lane.machine for lane in cell.lanes if lane in self.lanes]
        node = self.jobs[cell.job].node if cell.job in self.jobs else ""
        host = cell.environment.host if cell.environment else None
        return next((name for name in (*lanes, node) if name), None) or host

    @property
    def finished_cells(self) -> tuple[CellState, ...]:
        return tuple(cell for cell in self.cells.values() if cell.is_over)

    @property
    def steps_done(self) -> int:
        """Finished steps; a cell that ended by itself counts in full, so that progress reaches its total."""
        counted = self._counted
        ended = {cell.cell for cell in counted if cell.is_over and cell.status != "cancelled"}
        return sum(cell.steps_meant if cell.cell in ended else cell.steps_done for cell in counted)

    @property
    def steps_total(self) -> int:
        """Steps of all cells that have run or will; an upper bound for automatic counts. Where a run was stopped, its
        cells count in full, as they can be resumed; while a later run goes on without them, they do not count."""
        return sum(cell.steps_meant for cell in self._counted)

    @property
    def _counted(self) -> list[CellState]:
        since = self.queued.at if self.queued and (self.running or self.waiting) else 0.0
        return [
            cell
            for cell in self.cells.values()
            if cell.status != "skipped"
            and not (cell.status == "cancelled" and cell.finished and cell.finished.at < since)
        ]

    def prediction_of(self, spec: CellSpec) -> Prediction | None:
        """The prediction of this spec, if there is one."""
        found = self.predictions.get(prediction_key(spec))
        return predicted_for(spec, found) if found else None

    @property
    def tuning(self) -> ev.TuningStarted | None:
        """The beginning of the last race; None without one."""
        return self.races[-1].begun if self.races else None

    @property
    def has_unfinished_race(self) -> bool:
        """True if a race was begun and has no end."""
        return bool(self.races) and self.races[-1].ended is None

    @property
    def is_recorded(self) -> bool:
        """True if it has cells, and all of them were recorded elsewhere."""
        return bool(self.cells) and all(cell.spec.recording for cell in self.cells.values())

    @property
    def reports_on_cells(self) -> tuple[ReportState, ...]:
        """The reports without the checks of a race, which tell nothing but whether candidates agree."""
        return tuple(report for report in self.reports.values() if report.kind != "agreement")

    def report_of(self, kind: ReportKind, spec: CellSpec) -> ReportState | None:
        """The latest report of a kind on a spec or its like: one in the making, else a successful one, else any."""
        found = [r for r in self._reports_like(spec) if r.kind == kind]
        running = [r for r in found if r.status is None]
        succeeded = [r for r in found if r.status == "ok"]
        best = running or succeeded or found
        return best[-1] if best else None

    def contents(self, kind: type[_R]) -> tuple[_R, ...]:
        """The content of the latest successful report of a kind for each spec, oldest first."""
        found = ((each.spec, each.content) for each in self.reports.values())
        return tuple({report_key(spec): content for spec, content in found if isinstance(content, kind)}.values())

    def content_of(self, kind: type[_R], spec: CellSpec) -> _R | None:
        """The content of the latest successful report of a kind on a spec or its like."""
        found = (each.content for each in reversed(self._reports_like(spec)))
        return next((content for content in found if isinstance(content, kind)), None)

    def _reports_like(self, spec: CellSpec) -> list[ReportState]:
        """The reports on a spec or its like, oldest first."""
        alike = self._alike
        if alike is None:
            alike = self._alike = {}
            for report in self.reports.values():
                alike.setdefault(report_key(report.spec), []).append(report)
        return alike.get(report_key(spec), [])

    def activation_peak_of(self, spec: CellSpec) -> ActivationPeak | None:
        """The activation peak of a step of this spec, which is not known of timed steps; None if neither is known."""
        known = {"recorded": self.content_of(MemoryReport, spec), "predicted": self.prediction_of(spec)}
        found = ((basis, each.activation_peak_bytes) for basis, each in known.items() if each)
        return next((ActivationPeak(size, basis) for basis, size in found if size is not None), None)

    def break_off(self) -> None:
        """End the reports that are being made, as no more events come."""
        for report in self.reports.values():
            if report.status is None:
                report.status, report.error = "cancelled", "broken off: the session ended before it was made"

    def apply(self, event: ev.Event) -> None:
        """Fold one event in; events of unknown cells are ignored."""
        self.last_at = event.at
        race = self.races[-1] if self.has_unfinished_race else None
        if race:
            race.count_time(event, self.running)
        if isinstance(event, ev.CellEvent):  # most are; what follows is asked in order
            if known := self.cells.get(event.cell):
                self._apply_to_cell(known, event)
            return
        match event:
            case ev.SessionStarted():
                self.started = event
            case ev.EnvironmentRead():
                self.environment = event.environment
            case ev.CellsQueued():
                self.ended, self.ddof, self.queued = None, event.ddof, event
                if event.command:
                    self.commands.append(event.command)
                repeats = event.repeats or (1,) * len(event.specs)
                if event.reports:
                    self.wanted |= dict.fromkeys(range(event.first, event.first + len(event.specs)), event.reports)
                for number, (spec, repeat) in enumerate(zip(event.specs, repeats, strict=False), event.first):
                    cell = self.cells[number] = CellState(number, spec, repeat, queued_in_turns=event.in_turns)
                    self.running.pop(number, None)
                    self.waiting[number] = None
                    if race:
                        race.take(cell, event.at)
            case ev.TuningStarted():
                self.races.append(RaceState(event))
            case ev.TuningEnded() if race:
                race.end(event)
            case ev.QueueOrdered():
                first = {cell: None for cell in event.cells if cell in self.waiting}
                self.waiting = first | self.waiting
            case ev.SessionResumed():
                self.ended = None
                going_on = {name for name, job in self.jobs.items() if job.stage != "over"}
                interrupted = [cell for cell in self.running_cells if cell.job not in going_on]
                for cell in interrupted:
                    self._take_out(cell)
                    cell.start_again()
                self.waiting = {cell.cell: None for cell in interrupted} | self.waiting
                self.reports = {n: report for n, report in self.reports.items() if report.status or report.job}
                self._alike = None
            case ev.SessionAnnotated():
                self.name = self.name if event.name is None else " ".join(event.name.splitlines())
                self.note = self.note if event.note is None else event.note
            case ev.CellsPredicted():
                there = event.elsewhere
                told = self.predictions_elsewhere.setdefault(there, {}) if there else self.predictions
                for found in event.predictions:
                    told[prediction_key(found.spec)] = found
                    self.unpredictable.pop(prediction_key(found.spec), None)
                self.unpredictable |= dict.fromkeys(map(prediction_key, event.failed), event.why)
            case ev.ReportStarted():
                begun = ReportState(event.report, event.kind, event.spec, event.cell, event.at, job=event.job)
                self.reports[event.report] = begun
                self._alike = None
            case ev.ReportStage():
                if report := self.reports.get(event.report):
                    report.stage = event.stage
            case ev.ReportFinished():
                if report := self.reports.get(event.report):
                    report.status, report.error, report.content = event.status, event.error, event.content
                    report.finished_at = event.at
            case ev.LanesOpened():
                self.lanes |= {lane.lane: LaneState(lane) for lane in event.lanes}
                self._keep_more_samples()
            case ev.LaneSetAside():
                if lane := self.lanes.get(event.lane):
                    lane.set_aside = event.reason
            case ev.JobSubmitted():
                self.jobs[event.job] = JobState(event)
                self._job_of |= dict.fromkeys(event.cells, event.job)
                self._keep_more_samples()
            case ev.JobChanged():
                if job := self.jobs.get(event.job):
                    job.stage, job.reason, job.node = event.stage, event.reason, event.node or job.node
            case ev.DeviceSampled():
                self.devices.append((event, event.cells[0] if event.cells else self.current))
                self.machine_gpus = event.machine_gpus or self.machine_gpus
                self.samples |= dict.fromkeys(self.running.keys() & (event.cells or self.running.keys()), event)
                for cell, stage in self.surrounded(event.cells):
                    cell.surroundings.take(cell.own_part(event), stage)
            case ev.Notice():
                self.notices.append(event)
            case ev.SessionEnded():
                self.ended, self.running, self.samples, self._on = event, {}, {}, {}
                self.break_off()
            case ev.ChildOutput():
                self.output.append(event)
                if event.cell is not None and (heard := self.cells.get(event.cell)):
                    heard.output = (heard.output + event.text)[-OUTPUT_LIMIT:]

    def _take_out(self, cell: CellState) -> None:
        """Take a cell out of those that run or wait."""
        self.running.pop(cell.cell, None)
        self.waiting.pop(cell.cell, None)
        self.samples.pop(cell.cell, None)
        for machine in self._machines(cell):
            self._on.get(machine, {}).pop(cell.cell, None)
        for lane in cell.lanes:
            if (of_lane := self.lanes.get(lane)) and of_lane.cell == cell.cell:
                of_lane.cell = None

    def _start_together(self, cell: int, at: float) -> None:
        """Add a cell to those started since none ran. Of cells in lanes and jobs, the ones that were over long before
        are let go once they are as many as those that run."""
        if not self.running:
            self._together = {}
        elif self.side_by_side and len(self._together) > 2 * len(self.running) + SIDE_BY_SIDE:
            ends = ((number, self.cells[number].finished) for number in self._together)
            self._together = {number: None for number, end in ends if end is None or at - end.at < _SURROUNDS_S}
        self._together.pop(cell, None)
        self._together[cell] = None

    def _keep_more_samples(self) -> None:
        if self.devices.maxlen == DEVICE_HISTORY:
            self.devices = deque(self.devices, maxlen=SIDE_BY_SIDE * DEVICE_HISTORY)

    def _beside(self, cell: CellState) -> None:
        """Note the cells that run beside this one: in other lanes of its machine, or in turns with it."""
        for lane in cell.lanes:
            if of_lane := self.lanes.get(lane):
                of_lane.cell = cell.cell
        if not cell.lanes and not cell.job:
            for each in self.running_cells if len(self.running) > 1 else ():
                each.in_turns = True
            return
        for machine in self._machines(cell):
            there = self._on.setdefault(machine, {})
            for number in there:
                for one, other in ((cell, self.cells[number]), (self.cells[number], cell)):
                    one.neighbours.add(other.cell)
                    one.neighbour_lanes.update(other.lanes)
            there[cell.cell] = None

    def _machines(self, cell: CellState) -> set[str]:
        """The machines of the cell's lanes; of a cell in a job without lanes its job."""
        lanes = [self.lanes[lane].lane.machine for lane in cell.lanes if lane in self.lanes]
        return set(lanes) if lanes else {cell.job or ""}

    def _apply_to_cell(self, cell: CellState, event: ev.CellEvent) -> None:
        match event:
            case ev.CellRequeued():
                self._take_out(cell)
                cell.start_again()
                self.waiting[cell.cell] = None
            case ev.CellStarted():
                self._take_out(cell)
                cell.start(event, self.environment)
                self._start_together(cell.cell, event.at)
                self.running[cell.cell] = None
                self._beside(cell)
            case ev.CellSkipped() | ev.CellFinished():
                self._take_out(cell)
                if isinstance(event, ev.CellFinished) and event.autotuned:
                    cell.tuned = self._tuned.setdefault(cell.asked_spec, {})
                    cell.tuned[cell.cell] = event
            case ev.ModelBuilt() if event.in_force and event.in_force.threads and not cell.spec.threads:
                self.default_threads[cell.spec.device, cell.spec.model] = event.in_force.threads
        cell.apply(event)


def fold(events: Iterable[ev.Event], state: SessionState | None = None) -> SessionState:
    """The state, a new one unless given, after these events."""
    state = state or SessionState()
    for event in events:
        state.apply(event)
    return state


Visited = Mapping[int, Sequence[CellState]]
"""The cells of each candidate that has any, in the order in which they were queued; turns among them."""


def visits_of(state: SessionState) -> Visited:
    """The visits of the session's last race; none without one."""
    return dict(state.races[-1].visits) if state.races else {}


def visit_cells(state: SessionState) -> frozenset[int]:
    """The numbers of the cells that are visits of any of the session's races."""
    return frozenset[int]().union(*(race.cells for race in state.races))


def is_race_alone(state: SessionState) -> bool:
    """True of a session that has a race, and no other cells."""
    return bool(state.races) and visit_cells(state) == state.cells.keys()


def visit_s(visited: Visited, candidates: Sequence[CellSpec], number: int) -> float | None:
    """Seconds that another visit of a candidate takes: as its own ones did, else as those of candidates with the same
    ``compile``, else as all. None before the first."""
    took = {each: seconds for each, cells in visited.items() if (seconds := _took_s(cells))}
    if number in took:
        return fmean(took[number])
    alike = [fmean(took[each]) for each in took if candidates[each].compile == candidates[number].compile]
    return median(alike or [fmean(each) for each in took.values()]) if took else None


def turns_s(visited: Visited, candidates: Sequence[CellSpec], a: int, b: int) -> float:
    """Seconds that another round of two candidates in turns takes: as their own did, else as a visit of each."""
    own = [cell.whole_run_s or 0.0 for cell in visited.get(a, ()) if cell.in_turns and cell.status == "ok"]
    return fmean(own) if own else sum(visit_s(visited, candidates, each) or 0.0 for each in (a, b))


def check_s(state: SessionState) -> float:
    """Seconds that another comparison of logits and gradients takes: as those that were made did, else as a visit."""
    made = [report for report in state.reports.values() if report.kind == "agreement"]
    took = [each.finished_at - each.started_at for each in made if each.finished_at is not None]
    if took:
        return fmean(took)
    runs = [seconds for cells in visits_of(state).values() for seconds in _took_s(cells)]
    return median(runs) if runs else 0.0


def _took_s(cells: Sequence[CellState]) -> list[float]:
    """Of visits that were not broken off."""
    return [
        cell.whole_run_s
        for cell in cells
        if cell.whole_run_s is not None and not cell.in_turns and cell.status in ("ok", "oom", "failed", "killed")
    ]
