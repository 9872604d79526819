"""Running cells: each in a child of its own, or in the thread that asks; what they tell is recorded."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.events.environment import Environment
from cs336_tui.events.events import CellFinished, CellStarted, Event, StageChanged
from cs336_tui.runner.device_watch import DeviceWatch
from cs336_tui.runner.fit_check import why_not_in_turns, why_not_tried
from cs336_tui.runner.launcher import Launcher, StartError
from cs336_tui.runner.session_predictions import SessionPredictions
from cs336_tui.runner.stop import StopSignal
from cs336_tui.runner.supervise import Supervisor
from cs336_tui.session.recorder import Recorder
from cs336_tui.worker import worker_entry


class Cells:
    """Runs one cell at a time. Without a `launcher` cells run in the calling thread.

    With `check_fit` a cell on the host that cannot fit by prediction is out of memory without being tried. With `nvtx`
    steps, phases and parts are marked for external profilers.
    """

    def __init__(
        self,
        launcher: Launcher | None,
        recorder: Recorder,
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
