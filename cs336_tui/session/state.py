"""The session as it stands: a fold over events, the same for a live run and a replayed log."""

from __future__ import annotations

from collections import deque
from typing import Literal

import msgspec

from cs336_tui.environment import Environment
from cs336_tui.events import (
    CellFinished,
    CellsQueued,
    CellStarted,
    ChildOutput,
    DeviceSampled,
    EnvironmentRead,
    Event,
    InForce,
    ModelBuilt,
    Notice,
    SessionEnded,
    SessionStarted,
    Stage,
    StageChanged,
    Status,
    StepsTimed,
)
from cs336_tui.spec import RunSpec
from cs336_tui.stats import RunningStats, Summary, summarize

DEVICE_HISTORY = 1200
"""Device samples kept for the graphs."""
OUTPUT_LIMIT = 64 * 1024
"""Characters of a cell's output kept in memory; the log has all of it."""


class CellState:
    """One cell: what was asked and what is known so far. Times in seconds, oldest first."""

    def __init__(self, cell: int, spec: RunSpec) -> None:
        self.cell = cell
        self.spec = spec
        self.status: Status | Literal["queued", "running"] = "queued"
        self.stage: Stage | None = None
        self.pid: int | None = None
        self.started_at: float | None = None
        self.finished: CellFinished | None = None
        self.num_params: int | None = None
        self.num_params_without_head: int | None = None
        self.in_force: InForce | None = None
        self.warmup_times_s: list[float] = []
        self.step_times_s: list[float] = []
        self.warmup_phase_times_s: dict[str, list[float]] = {}
        self.phase_times_s: dict[str, list[float]] = {}
        self.warmup_host_times_s: list[float] = []
        self.host_times_s: list[float] = []
        self.running = RunningStats()
        """Over the measured steps."""
        self.output = ""

    @property
    def steps_done(self) -> int:
        return len(self.warmup_times_s) + len(self.step_times_s)

    @property
    def is_over(self) -> bool:
        return self.finished is not None

    def summary(self, ddof: int) -> Summary | None:
        """Summary of the measured steps, None before the first."""
        return summarize(self.step_times_s, ddof) if self.step_times_s else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of one step over the mean measured step time."""
        return self.spec.tokens_per_step / self.running.mean if self.running.n and self.running.mean else None

    def add_steps(self, steps: StepsTimed) -> None:
        measured = steps.kind == "measured"
        times, phases, host = (
            (self.step_times_s, self.phase_times_s, self.host_times_s)
            if measured
            else (self.warmup_times_s, self.warmup_phase_times_s, self.warmup_host_times_s)
        )
        times.extend(steps.times_s)
        host.extend(steps.host_s)
        for name, values in steps.phases_s.items():
            phases.setdefault(name, []).extend(values)
        if measured:
            for time_s in steps.times_s:
                self.running.add(time_s)


class SessionState:
    """Everything known of a session; `apply` is the only way to change it."""

    def __init__(self) -> None:
        self.started: SessionStarted | None = None
        self.environment: Environment | None = None
        self.ddof = 1
        """Of every std that is shown, as the latest run asked."""
        self.commands: list[str] = []
        """Command lines that repeat the session's runs headless, in order."""
        self.cells: dict[int, CellState] = {}
        self.current: int | None = None
        """The cell that is running, None between cells."""
        self.devices: deque[tuple[DeviceSampled, int | None]] = deque(maxlen=DEVICE_HISTORY)
        """Device samples, each with the cell that was running when it was taken."""
        self.notices: list[Notice] = []
        self.output: deque[ChildOutput] = deque(maxlen=2000)
        self.ended: SessionEnded | None = None
        self.last_at: float | None = None

    @property
    def running_cell(self) -> CellState | None:
        return self.cells.get(self.current) if self.current is not None else None

    @property
    def finished_cells(self) -> tuple[CellState, ...]:
        return tuple(cell for cell in self.cells.values() if cell.is_over)

    @property
    def steps_done(self) -> int:
        """Steps finished, counting a finished cell as all of its steps, so that progress reaches its total."""
        return sum(c.spec.total_steps if c.is_over else c.steps_done for c in self.cells.values())

    @property
    def steps_total(self) -> int:
        return sum(cell.spec.total_steps for cell in self.cells.values())

    def apply(self, event: Event) -> None:
        """Fold one event in. Events of unknown cells are ignored: their log line said too little to place them."""
        self.last_at = event.at
        match event:
            case SessionStarted():
                self.started = event
            case EnvironmentRead():
                self.environment = event.environment
            case CellsQueued():
                self.ended, self.ddof = None, event.ddof
                if event.command:
                    self.commands.append(event.command)
                for offset, spec in enumerate(event.specs):
                    self.cells[event.first + offset] = CellState(event.first + offset, spec)
            case DeviceSampled():
                self.devices.append((event, self.current))
            case Notice():
                self.notices.append(event)
            case SessionEnded():
                self.ended, self.current = event, None
            case ChildOutput():
                self.output.append(event)
                if event.cell is not None and (cell := self.cells.get(event.cell)):
                    cell.output = (cell.output + event.text)[-OUTPUT_LIMIT:]
            case CellStarted() | StageChanged() | ModelBuilt() | StepsTimed() | CellFinished():
                if cell := self.cells.get(event.cell):
                    self._apply_to_cell(cell, event)

    def _apply_to_cell(
        self, cell: CellState, event: CellStarted | StageChanged | ModelBuilt | StepsTimed | CellFinished
    ) -> None:
        match event:
            case CellStarted():
                cell.status, cell.stage = "running", "starting"
                cell.started_at, cell.pid = event.at, event.pid
                self.current = cell.cell
            case StageChanged():
                cell.stage = event.stage
            case ModelBuilt():
                cell.num_params = event.num_params
                cell.num_params_without_head = event.num_params_without_head
                cell.in_force = event.in_force
            case StepsTimed():
                cell.add_steps(event)
            case CellFinished():
                cell.status, cell.finished = event.status, event
                cell.stage = event.stage or cell.stage
                if cell.in_force and event.logits_dtype:
                    cell.in_force = msgspec.structs.replace(cell.in_force, logits_dtype=event.logits_dtype)
                if self.current == cell.cell:
                    self.current = None
