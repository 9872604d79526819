"""The states of a session's parts, which events fold into: cells, lanes, jobs, reports, races."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.events.environment import Environment
from cs336_tui.events.reports import Report, ReportKind
from cs336_tui.session.surroundings import Surroundings, Window
from cs336_tui.stats.summaries import RunningStats, Summary, skews, summarize


class StepTimes:
    """The times of one cell's steps, seconds, oldest first; those of a phase or of the host as long as the steps'."""

    def __init__(self) -> None:
        self.warmup_s: list[float] = []
        self.measured_s: list[float] = []
        self.warmup_phases_s: dict[str, list[float]] = {}
        self.measured_phases_s: dict[str, list[float]] = {}
        self.host_s: list[float] = []
        self.host_phases_s: dict[str, list[float]] = {}
        """Of measured steps, as `host_s`; empty where host and device have one clock, for one phase, in old logs."""
        self.rank_s: list[list[float]] = []
        """Of measured steps of several ranks, a list for each; the other times are those of each step's slowest."""
        self.warmup_rank_s: list[list[float]] = []
        self.rank_sync_s: list[list[float]] = []
        """Of measured steps of several ranks, the phase gradient sync of each; empty without it."""
        self.running = RunningStats()
        """Over the measured steps."""
        self.skew = RunningStats()
        """Over the measured steps of several ranks."""

    def add(self, steps: ev.StepsTimed) -> None:
        if steps.kind == "measured":
            times, phases, ranks = self.measured_s, self.measured_phases_s, self.rank_s
            self.host_s.extend(steps.host_s)
            _extend(self.host_phases_s, steps.host_phases_s)
            _extend_ranks(self.rank_sync_s, steps.rank_sync_s)
            for skew_s in skews(steps.rank_times_s):
                self.skew.add(skew_s)
            for time_s in steps.times_s:
                self.running.add(time_s)
        else:
            times, phases, ranks = self.warmup_s, self.warmup_phases_s, self.warmup_rank_s
        times.extend(steps.times_s)
        _extend_ranks(ranks, steps.rank_times_s)
        _extend(phases, steps.phases_s)


class Unread(Protocol):
    """The part of a log on one attempt at a cell; may be read several times, by several threads."""

    def steps(self) -> Iterable[ev.StepsTimed]: ...
    def samples(self) -> Iterable[tuple[ev.DeviceSampled, ev.Stage | None]]:
        """Device samples while the cell ran and after, each with the cell's stage, None if it was over."""


class CellState:
    """A cell, its times in seconds, oldest first. Steps and surroundings may be read at first use (`read_later`)."""

    def __init__(self, cell: int, spec: CellSpec, repeat: int = 1, *, queued_in_turns: bool = False) -> None:
        self.cell = cell
        self.spec = spec
        """With the device that it runs on, once it runs."""
        self.asked_spec = spec
        """As it was queued."""
        self.repeat = repeat
        """The number of the run of its spec, from 1."""
        self.queued_in_turns = queued_in_turns
        """True if it was queued to run in turns; old logs do not tell."""
        self.status: ev.Status | Literal["queued", "running", "skipped"] = "queued"
        self.skipped_because: str | None = None
        self.earlier: list[CellState] = []
        """Its former attempts, oldest first."""
        self._forget()

    def _forget(self) -> None:
        self.stage: ev.Stage | None = None
        self.stage_began_at: float | None = None
        """Unix seconds."""
        self.pid: int | None = None
        self.in_turns = self.queued_in_turns
        """True if another cell runs in turns with it, in one process or in one each."""
        self.lanes: tuple[int, ...] = ()
        """The lanes that it takes; empty without lanes."""
        self.job: str | None = None
        """The job that runs it."""
        self.neighbours: set[int] = set()
        """Cells that ran at the same time on the same machine, in other lanes."""
        self.neighbour_lanes: set[int] = set()
        """The lanes that these took."""
        self.started_at: float | None = None
        self.steps_began_at: float | None = None
        """Unix seconds of the begin of its first step."""
        self.finished: ev.CellFinished | None = None
        self.environment: Environment | None = None
        """The machine that it runs on."""
        self.num_params: int | None = None
        self.num_params_without_head: int | None = None
        self.in_force: ev.EffectiveSettings | None = None
        self.prepared: ev.ModelPrepared | None = None
        """The cost of compiling or capturing."""
        self.unread: Unread | None = None
        """The source of steps and surroundings until their first use."""
        self._times: StepTimes | None = StepTimes()
        self.window = Window()
        self._surroundings: Surroundings | None = Surroundings(self.window)
        self.output = ""
        self.tuned: dict[int, ev.CellFinished] = {}
        """The ends of all repeats of its spec in which autotuners chose, its own among them, by their numbers."""

    def start_again(self) -> None:
        """Wait again; the attempt so far goes to `earlier`."""
        if self.started_at is not None:
            before = copy.copy(self)
            before.earlier = []
            self.earlier.append(before)
        self._forget()
        self.spec = self.asked_spec
        self.status, self.skipped_because = "queued", None

    def start(self, event: ev.CellStarted, environment: Environment | None) -> None:
        """Begin another attempt, on this machine."""
        self.start_again()
        self.status, self.stage = "running", "starting"
        self.started_at, self.pid, self.environment = event.at, event.pid, environment
        self.lanes, self.job = event.lanes, event.job
        if event.device:
            self.spec = msgspec.structs.replace(self.spec, device=event.device)

    def apply(self, event: ev.CellEvent) -> None:
        """Fold in an event of the attempt that began last."""
        match event:
            case ev.StepsTimed():
                self.times.add(event)
            case ev.StageChanged():
                if self.stage == "measuring":
                    self.window.ended_at = event.at
                if event.stage == "measuring" and self.window.began_at is None:
                    self.window.began_at = event.at
                if event.stage in ("warm-up", "measuring") and self.steps_began_at is None:
                    self.steps_began_at = event.at
                self.stage, self.stage_began_at = event.stage, event.at
            case ev.ModelBuilt():
                self.num_params = event.num_params
                self.num_params_without_head = event.num_params_without_head
                self.in_force = event.in_force
            case ev.ModelPrepared():
                self.prepared = event
            case ev.CellSkipped():
                self.status, self.skipped_because = "skipped", event.reason
            case ev.CellFinished():
                self.status, self.finished = event.status, event
                self.stage = event.stage or self.stage
                if self.in_force and event.logits_dtype:
                    self.in_force = msgspec.structs.replace(self.in_force, logits_dtype=event.logits_dtype)

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
        """The device and the host while it measured."""
        if self._surroundings is None:
            surroundings = Surroundings(self.window)
            for sample, stage in self.unread.samples() if self.unread else ():
                surroundings.take(self.own_part(sample), stage)
            self._surroundings = surroundings
        return self._surroundings

    def own_part(self, sample: ev.DeviceSampled) -> ev.DeviceSampled:
        """The sample, without a GPU that is not the cell's or may not be, unless it is the only one; `why` says so."""
        gpu, device = sample.gpu, self.spec.device
        if gpu is None:
            return sample
        none = msgspec.structs.replace(sample, gpu=None, other_gpus=())
        if not device.startswith("cuda"):
            return none
        others = sample.other_gpus[: self.spec.ranks - 1]
        if len(others) < self.spec.ranks - 1:
            return msgspec.structs.replace(none, why="not every rank's GPU was sampled")
        sample = msgspec.structs.replace(sample, other_gpus=others)
        own = self.environment.device(device) if self.environment else None
        if own is None or own.uuid is None or gpu.uuid is None:
            devices = self.environment.devices if self.environment else ()
            if [each.name for each in devices if each.name.startswith("cuda")] == [device]:
                return sample
            return msgspec.structs.replace(none, why=f"whether {device} was sampled is not known")
        if _bare(gpu.uuid) == _bare(own.uuid):
            return sample
        return msgspec.structs.replace(none, why=f"another GPU than {device} was sampled, {gpu.uuid}")

    @property
    def warmup_times_s(self) -> list[float]:
        return self.times.warmup_s

    @property
    def step_times_s(self) -> list[float]:
        """Times of the measured steps."""
        return self.times.measured_s

    @property
    def phase_times_s(self) -> dict[str, list[float]]:
        return self.times.measured_phases_s

    @property
    def running(self) -> RunningStats:
        """Mean and std of the measured steps."""
        return RunningStats.of(self._known_summary) if self._known_summary else self.times.running

    @property
    def skew(self) -> RunningStats:
        """Mean and std of the skew of the measured steps of several ranks; of none for one rank."""
        if self.spec.ranks == 1:
            return RunningStats()
        known = self.finished.skew if self.finished else None
        return RunningStats.of(known) if known else self.times.skew

    @property
    def _known_summary(self) -> Summary | None:
        """Of a finished cell whose steps were not read."""
        return self.finished.summary if self.finished and self._times is None else None

    def read_later(self, unread: Unread) -> None:
        """Read steps and surroundings from `unread` at first use, in place of those added."""
        self.unread, self._times, self._surroundings = unread, None, None

    @property
    def steps_done(self) -> int:
        over, read = self.finished, self._times
        told = over.warmup_steps_done + (over.summary.n if over.summary else 0) if over else 0
        if told and (read is None or not (read.warmup_s or read.measured_s)):
            return told
        return len(self.warmup_times_s) + len(self.step_times_s)

    @property
    def steps_meant(self) -> int:
        """Warm-up and measured steps of its spec; those done if it ended early by itself or is over with an automatic
        count. A cancelled one can run again, and has all to do. A recording has none."""
        if self.spec.recording:
            return 0
        automatic = self.spec.warmup_is_open or self.spec.steps_are_open
        ended = self.is_over and self.status != "cancelled"
        return self.steps_done if ended and (automatic or self.status != "ok") else self.spec.total_steps

    @property
    def until_first_step_s(self) -> float | None:
        """From the start of its process until its first step began: building, compiling, capturing."""
        if self.started_at is None or self.steps_began_at is None:
            return None
        return self.steps_began_at - self.started_at

    @property
    def whole_run_s(self) -> float | None:
        """From the start of its process to its end."""
        return self.finished.at - self.started_at if self.finished and self.started_at is not None else None

    @property
    def is_over(self) -> bool:
        return self.finished is not None

    @property
    def is_left(self) -> bool:
        """True if it has no result, so that resuming runs it."""
        return self.status in ("queued", "running", "cancelled") or bool(self.finished and self.finished.job_over)

    def summary(self, ddof: int) -> Summary | None:
        """Summary of the measured steps, None before the first."""
        if known := self._known_summary:
            return known.with_ddof(ddof) if known.n else None
        return summarize(self.step_times_s, ddof) if self.step_times_s else None

    def full_summary(self, ddof: int) -> Summary | None:
        """As `summary`, with the quantiles that old logs lack: their steps are read for it."""
        found = self.summary(ddof)
        return summarize(self.step_times_s, ddof) if found and found.p20_s is None else found


def _extend(lists: dict[str, list[float]], more: Mapping[str, Sequence[float]]) -> None:
    for name, values in more.items():
        lists.setdefault(name, []).extend(values)


def _extend_ranks(ranks: list[list[float]], more: Sequence[Sequence[float]]) -> None:
    if not more:
        return
    ranks += ([] for _ in more[len(ranks) :])
    for of_rank, times_s in zip(ranks, more, strict=False):
        of_rank.extend(times_s)


def _bare(uuid: str) -> str:
    """A GPU's UUID as CUDA spells it, which does not tell a whole GPU from a MIG instance."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


class LaneState(msgspec.Struct):
    """A lane, the cell that runs in it, and why it runs no more."""

    lane: ev.Lane
    cell: int | None = None
    set_aside: str | None = None


class JobState(msgspec.Struct):
    """A job that runs cells of the session elsewhere, as its launcher told last."""

    submitted: ev.JobSubmitted
    stage: ev.JobStage = "pending"
    reason: str = ""
    node: str = ""


class ReportState(msgspec.Struct):
    """One report; `status` is None while it is being made."""

    report: int
    kind: ReportKind
    spec: CellSpec
    cell: int | None
    started_at: float
    stage: str = "starting"
    status: ev.Status | None = None
    error: str | None = None
    content: Report | None = None
    job: str | None = None
    """The job that makes it."""
    finished_at: float | None = None


class RaceState:
    """A race among the `candidates` of `begun`; `ended` is None while it has no end."""

    def __init__(self, begun: ev.TuningStarted) -> None:
        self.begun = begun
        self.ended: ev.TuningEnded | None = None
        self.visits: dict[int, list[CellState]] = {}
        """The cells of each candidate that has any, by its number, in the order in which they were queued; turns among
        them."""
        self.cells: set[int] = set()
        """The numbers of all these cells."""
        self._number_of = {spec: number for number, spec in enumerate(begun.candidates)}
        self._checks: set[int] = set()  # the reports of logits and gradients
        # Unix seconds; the first moves on by the breaks between two runs.
        self._began_at, self._ran_until = begun.at - begun.spent_s, begun.at

    @property
    def spent_s(self) -> float:
        """Seconds of its budget that it has used until its last event, without breaks between two runs."""
        return max(self._ran_until - self._began_at, 0.0)

    def take(self, cell: CellState, at: float) -> None:
        """Add a cell that was queued, if it is one of a candidate."""
        number = self._number_of.get(cell.asked_spec)
        if number is not None:
            self.visits.setdefault(number, []).append(cell)
            self.cells.add(cell.cell)
            self._ran_until = at

    def end(self, event: ev.TuningEnded) -> None:
        self.ended, self._ran_until = event, event.at

    def count_time(self, event: ev.Event, running: Collection[int]) -> None:
        """Count the time until an event of this race. The others are of a break: after a stop, other cells and reports
        may be made."""
        is_own = False
        match event:
            case ev.SessionResumed():
                self._began_at += event.at - self._ran_until
                is_own = True
            case ev.CellRequeued():  # as a race that was stopped is to go on
                pass
            case ev.CellEvent():
                is_own = event.cell in self.cells
            case ev.DeviceSampled():
                is_own = not self.cells.isdisjoint(running)
            case ev.ReportStarted() if event.kind == "agreement":
                self._checks.add(event.report)
                is_own = True
            case ev.ReportStage() | ev.ReportFinished():
                is_own = event.report in self._checks
        if is_own:
            self._ran_until = event.at
