"""Progress of a headless run on standard error."""

from __future__ import annotations

import time
from typing import TextIO

from cs336_tui.analysis.eta import remaining_s
from cs336_tui.cli.streams import StatusLine
from cs336_tui.events.events import (
    CellFinished,
    CellSkipped,
    CellStarted,
    DeviceSampled,
    Event,
    Notice,
    ReportFinished,
    ReportStage,
    ReportStarted,
    StageChanged,
    StepsTimed,
)
from cs336_tui.export.trust import judgement_of
from cs336_tui.session.cell_state import CellState
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import duration, milliseconds

_REDRAW_S = 0.25
_STAGES = {"compiling": "compiling the model", "capturing": "capturing a CUDA graph"}
_LONG_STAGES = tuple(_STAGES)
"""Stages that may take half a minute without a word."""


class Progress:
    """One line per finished cell and, on a terminal, a status line below them redrawn in place."""

    def __init__(self, state: SessionState, stream: TextIO) -> None:
        self._state, self._stream = state, stream
        self._status_line = StatusLine(stream)
        self._live = self._status_line.is_live
        self._drawn_at = 0.0

    def show(self, event: Event) -> None:
        """Say what `event` changed; the state already holds it."""
        match event:
            case CellFinished():
                self._line(self._result(self._state.cells[event.cell]))
            case CellSkipped():
                cell = self._state.cells[event.cell]
                self._line(f"{self._place(cell)} {cell.spec.title}: skipped: {event.reason}")
            case ReportFinished():
                self._line(self._report(event))
            case ReportStarted() | ReportStage() if self._live:
                report = self._state.reports[event.report]
                self._write(f"{report.kind} of {report.spec.title} · {report.stage}")
            case Notice():
                self._line(f"note: {event.text}")
            case DeviceSampled() if self._live and (running := self._state.running_cell):
                if running.stage in _LONG_STAGES and time.monotonic() - self._drawn_at >= _REDRAW_S:
                    self._status(running)
            case CellStarted() | StageChanged() | StepsTimed() if self._live:
                if time.monotonic() - self._drawn_at >= _REDRAW_S:
                    self._status(self._state.cells[event.cell])

    def say(self, text: str) -> None:
        """Put a text into the status line."""
        if self._live:
            self._write(text)

    def clear(self) -> None:
        self._status_line.clear()

    def _line(self, text: str) -> None:
        self.clear()
        print(text, file=self._stream, flush=True)

    def _report(self, event: ReportFinished) -> str:
        report = self._state.reports[event.report]
        took = duration(event.at - report.started_at)
        head = f"{report.kind} of {report.spec.title}"
        return f"{head}: made in {took}" if event.status == "ok" else f"{head}: {event.status}: {event.error or ''}"

    def _status(self, cell: CellState) -> None:
        text = f"{self._place(cell)} {cell.spec.title} · {_STAGES.get(cell.stage or '', cell.stage)}"
        if cell.stage in _LONG_STAGES and cell.stage_began_at is not None and self._state.last_at is not None:
            text += f", {duration(max(self._state.last_at - cell.stage_began_at, 0.0))}"
        if cell.stage in ("warm-up", "measuring"):
            warmup = cell.stage == "warm-up"
            done = len(cell.warmup_times_s if warmup else cell.step_times_s)
            most = cell.spec.warmup_steps if warmup else cell.spec.measure_steps
            ceiling = cell.spec.warmup_auto if warmup else cell.spec.steps_auto is not None
            text += f" {done}/{'≤' if ceiling else ''}{most}"
        if (left := remaining_s(self._state)) is not None:
            text += f" · ETA {duration(left)}"
        self._write(text)

    def _write(self, text: str) -> None:
        self._status_line.show(text)
        self._drawn_at = time.monotonic()

    def _result(self, cell: CellState) -> str:
        again = f" · run {cell.repeat}" if cell.repeat > 1 else ""
        head = f"{self._place(cell)} {cell.spec.title}{again}: "
        finished = cell.finished
        if finished is None or finished.status != "ok" or not cell.running.n:
            status = finished.status if finished else cell.status
            return head + (f"{status}: {finished.error}" if finished and finished.error else status)
        mean, std = milliseconds(cell.running.mean, cell.running.std(self._state.ddof))
        judgement = judgement_of(cell, self._state)
        verdict = f" · {judgement.label}" if judgement else ""
        why = f"\n  {judgement.sentence}" if judgement and judgement.is_doubted else ""
        return head + f"{mean} ms ± {std} std (n={cell.running.n}){verdict}{why}"

    def _place(self, cell: CellState) -> str:
        return f"[{cell.cell + 1}/{len(self._state.cells)}]"
