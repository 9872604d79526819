"""Runs cells and reports, each in a child of its own or in the calling thread, and records their events."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from cs336_tui.config.order import rough_peak_bytes
from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.events.environment import DeviceInfo, Environment
from cs336_tui.events.events import CellFinished, CellStarted, Event, ReportFinished, ReportStarted, StageChanged
from cs336_tui.events.reports import Prediction, ReportRequest
from cs336_tui.runner.child import IMPOSSIBLE
from cs336_tui.runner.device.sampler import DeviceWatch
from cs336_tui.runner.launcher import Launcher, StartError
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.runner.predictor import PredictionError, Predictor
from cs336_tui.runner.session_predictions import SessionPredictions
from cs336_tui.runner.supervise import Supervisor
from cs336_tui.session.recorder import SessionRecorder
from cs336_tui.stats.quantities import gigabytes
from cs336_tui.worker import worker_entry

Predicted = Callable[[Sequence[Prediction]], object]
_MAY_MATTER = 1 / 4
"""From this share of the memory on, by a rough sum, a prediction is made."""


class CellRunner:
    """Runs one cell at a time. Without a `launcher` cells run in the calling thread.

    With `check_fit` a cell on the host that cannot fit by prediction is out of memory without being tried. With `nvtx`
    steps, phases and parts are marked for external profilers.
    """

    def __init__(
        self,
        launcher: Launcher | None,
        recorder: SessionRecorder,
        watch: DeviceWatch,
        predictions: SessionPredictions,
        stop: StopSignal,
        *,
        check_fit: bool,
        nvtx: bool,
    ) -> None:
        self._launcher, self._recorder, self._watch = launcher, recorder, watch
        self._predictions, self._stop = predictions, stop
        self._check_fit, self._nvtx = check_fit, nvtx
        self.out_of_memory: dict[int, CellFinished] = {}
        """How cells ended that ran out of memory, as far as they have not begun anew."""
        self.unusable: dict[int, str] = {}
        """What of the user's own could not be used, by the cell that has found out."""

    def run(self, cell: int, spec: CellSpec, environment: Environment, timeout_s: float | None) -> None:
        """Run one to its end, whatever that is; `timeout_s` bounds its child's whole life."""
        self.out_of_memory.pop(cell, None)
        try:
            environment.check(spec)
        except SpecError as error:
            self._fail(cell, str(error))
            return
        if why := self.why_not(spec, environment):
            self.record([CellFinished(at=time.time(), cell=cell, status="oom", error=why)])
            return
        if self._launcher is None:
            self._recorder.record([CellStarted(at=time.time(), cell=cell)])
            self._watch.point(environment.device(spec.device), os.getpid())
            worker_entry.run_cell(spec, cell, lambda event: self.record([event]), self._stop.is_set, nvtx=self._nvtx)
        else:
            self._run_child(self._launcher, cell, spec, environment, timeout_s)
        self._watch.await_sample(self._stop)

    def record(self, events: Sequence[Event]) -> None:
        """Record what the running cell tells."""
        self._recorder.record(events)
        for event in events:
            if isinstance(event, CellFinished) and event.status == "oom":
                self.out_of_memory[event.cell] = event
            if isinstance(event, CellFinished) and event.unusable:
                self.unusable[event.cell] = event.unusable
            if isinstance(event, StageChanged) and event.stage == "finishing":
                self._watch.measured()

    def why_not(self, spec: CellSpec, environment: Environment) -> str:
        """Why a cell is not even tried; empty when it may be."""
        device = environment.device(spec.device)
        if not self._check_fit or device is None:
            return ""
        return why_not_tried(spec, device, self._predictions.predictor, self._predictions.tell)

    def why_not_both(self, a: CellSpec, b: CellSpec, environment: Environment) -> str:
        """Why two cells are not even tried in turns; empty when they may be, and where each has memory of its own."""
        device = environment.device(a.device)
        if not self._check_fit or device is None or a.device != b.device:
            return ""
        return why_not_in_turns(a, b, device, self._predictions.predictor, self._predictions.tell)

    def _run_child(
        self, launcher: Launcher, cell: int, spec: CellSpec, environment: Environment, timeout_s: float | None
    ) -> None:
        started_at = time.time()
        try:
            child = launcher.start_cell(cell, spec, nvtx=self._nvtx)
        except StartError as error:
            self._fail(cell, str(error))
            return
        self._recorder.record([CellStarted(at=started_at, cell=cell, pid=child.process.pid)])
        self._watch.point(environment.device(spec.device), child.process.pid)
        try:
            Supervisor(child, cell, self.record, self._stop, timeout_s).run()
        finally:
            child.close()

    def _fail(self, cell: int, error: str) -> None:
        self._recorder.record([CellFinished(at=time.time(), cell=cell, status="failed", error=error)])


def why_not_tried(spec: CellSpec, device: DeviceInfo, predictor: Predictor, predicted: Predicted) -> str:
    """Why the cell has no room on the device by prediction, in one line; empty when it may be tried, as any on CUDA.

    Blocks for some seconds where a prediction is made; that is given to `predicted`, too.
    """
    return _why_not([spec], device, predictor, predicted)


def why_not_in_turns(a: CellSpec, b: CellSpec, device: DeviceInfo, predictor: Predictor, predicted: Predicted) -> str:
    """The same of two cells on the device that take turns in one process, both models in memory at once."""
    return _why_not([a, b], device, predictor, predicted)


def resident_bytes(prediction: Prediction) -> int:
    """What a cell holds between two of its steps: parameters, buffers and the optimizer's state; after a train-step
    gradients, too, as large as the parameters. Every other pass lets go of its gradients when a step is over."""
    held = prediction.by_category
    gradients = held["parameters"] if prediction.spec.pass_ == "train-step" else 0
    return held["parameters"] + gradients + held["optimizer_state"] + held["buffers"]


def in_turns_bytes(a: Prediction, b: Prediction) -> int:
    """The peak of two cells in turns: the larger of one's peak beside what the other holds, and the reverse."""
    return max(a.peak_bytes + resident_bytes(b), b.peak_bytes + resident_bytes(a))


def _why_not(specs: Sequence[CellSpec], device: DeviceInfo, predictor: Predictor, predicted: Predicted) -> str:
    """Of one cell, or of A and B in turns."""
    capacity = None if device.name.startswith("cuda") else device.memory_bytes
    if capacity is None or sum(map(rough_peak_bytes, specs)) < capacity * _MAY_MATTER:
        return ""
    try:
        found = predictor.predict(specs)
    except PredictionError as error:
        return f"not tried: {error}" if IMPOSSIBLE in str(error) else ""
    predicted(found)
    needed = in_turns_bytes(*found) if len(found) == 2 else found[0].peak_bytes
    if needed <= capacity:
        return ""
    who = "A and B together need" if len(found) == 2 else "it needs"
    have = gigabytes(capacity)
    return f"not tried: by prediction {who} {gigabytes(needed)} GB, and {device.name} has {have} GB"


def make_report(
    number: int,
    request: ReportRequest,
    launcher: Launcher | None,
    *,
    record: Callable[[Sequence[Event]], None],
    watch: Callable[[int | None], object],
    stop: StopSignal,
    timeout_s: float | None = None,
) -> None:
    """Make a report and record it from `ReportStarted` to `ReportFinished`; here, where there is no launcher.

    `watch` is told which process is at it.
    """
    started = ReportStarted(at=time.time(), report=number, kind=request.kind, spec=request.spec, cell=request.cell)
    record([started])
    if launcher is None:
        watch(os.getpid())
        worker_entry.make_report(request, number, lambda event: record([event]), stop.is_set)
        return
    try:
        child = launcher.start_report(number, request)
    except StartError as error:
        why = str(error)
        record([ReportFinished(at=time.time(), report=number, status="failed", error=why)])
        return
    watch(child.process.pid)
    try:
        Supervisor(child, None, record, stop, timeout_s, report=number).run()
    finally:
        child.close()


def refuse_report(number: int, request: ReportRequest, why: str, *, record: Callable[[Sequence[Event]], None]) -> None:
    """Record that a report was not even begun, as one of a cell that is out of memory."""
    now = time.time()
    started = ReportStarted(at=now, report=number, kind=request.kind, spec=request.spec, cell=request.cell)
    record([started, ReportFinished(at=now, report=number, status="oom", error=why)])
