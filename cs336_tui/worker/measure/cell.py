"""One cell, start to end: build, compile or capture, warm up, measure, report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Event, Status, StepKind
from cs336_tui.worker.measure.cell_memory import PeakMeter, Peaks, before_backward_bytes, spilled
from cs336_tui.worker.measure.devices import Clock, clock_for
from cs336_tui.worker.measure.failures import Cancelled
from cs336_tui.worker.measure.preparing import ReadyStep, allocates_in_steps, fresh_compiler, prepare
from cs336_tui.worker.measure.process import RunQueueMeter
from cs336_tui.worker.measure.reporter import CellReporter, SkippedSteps
from cs336_tui.worker.measure.settings import (
    collect_step_garbage,
    freeze_existing_objects,
    no_garbage_collection,
    restored_settings,
)
from cs336_tui.worker.measure.stopping_rule import (
    AFTER_LOOK,
    enough_measured,
    step_looks,
    warmup_looks,
    why_not_warm,
    why_stopped,
)
from cs336_tui.worker.measure.timing import StepTime, StepTimer, WindowBroken, time_window
from cs336_tui.worker.workload.building import Workload, build, configure_torch
from cs336_tui.worker.workload.imported.problems import is_interrupt
from cs336_tui.worker.workload.passes import Step
from cs336_tui.worker.workload.ranges import UNAVAILABLE, available, emit_ranges, nvtx_range, under_nsys


def run_cell(
    spec: CellSpec, cell: int, emit: Callable[[Event], None], cancelled: Callable[[], bool], *, nvtx: bool = False
) -> None:
    """Run one cell here and give everything that happens to `emit`, outside every timed region.

    Events, in order: ``building``, `ModelBuilt`, ``compiling`` and ``capturing`` with a `ModelPrepared` where either is
    asked for, ``warm-up`` (where there is any) with a `StepsTimed` after each step, ``measuring`` with a `StepsTimed`
    after each step (one for all of them when pipelined), ``finishing``, and always one `CellFinished`. Warm-up steps
    are synchronised one by one in both sync modes, so that settling is seen live. Automatic counts (`measure.enough`)
    are decided between steps, and a `Notice` says why where it is not plain. Where the model itself changes what is in
    force later than when it is built, a `Notice` says so and a second `ModelBuilt` what then is.

    `cancelled` is asked after building, between what runs while compiling, and before each step. An error ends the
    cell, not the caller: running out of memory is status ``oom``, any other `Exception` is ``failed``, and so is a
    model that calls `sys.exit`. Torch's settings, the garbage collector and the memory are given back, so that cells
    can follow one another in one process.

    With `nvtx`, or under nsys, warm-up, steps, phases and parts of the model are NVTX ranges; else nothing is wrapped.
    """
    run = _Run(spec, cell, emit, cancelled, nvtx=nvtx or under_nsys())
    with restored_settings(), no_garbage_collection():
        with contextlib.ExitStack() as around:
            status, error = run.outcome(around)
            run.finish()
        _free_memory(torch.device(spec.device))
    run.reporter.finished(status, error, run.peaks)


class _Run:
    """A cell on its way; what it tells and how far it has got is in `tell`."""

    def __init__(
        self, spec: CellSpec, cell: int, emit: Callable[[Event], None], cancelled: Callable[[], bool], *, nvtx: bool
    ) -> None:
        self.spec = spec
        self.reporter = CellReporter(cell, emit)
        self._cancelled = cancelled
        self.peaks: Peaks | None = None
        """Known from `finish` on; None when the device could not even be reached."""
        self._is_finishing = False
        self._meter: PeakMeter | None = None
        self._nvtx = nvtx

    def outcome(self, around: contextlib.ExitStack) -> tuple[Status, str | None]:
        """Build and time, holding on to nothing that was built. What has to outlast that is left to `around`."""
        step: ReadyStep | None = None
        try:
            self.reporter.enter("building")
            around.enter_context(fresh_compiler(self.spec.compile))
            workload, device = self._build()
            written = step = workload.step(self.spec)
            if self._nvtx:
                self._name(written, workload)
            self._check_cancelled()
            step, preparation = prepare(written, self.spec, device, self.reporter.enter, self._check_cancelled)
            self.reporter.prepared(preparation, self.spec)
            self._time(step, workload)
            if self.spec.workload == "attention" and step is written:
                self.finish()
                self.reporter.before_backward_bytes = before_backward_bytes(written, workload, device)
        except Cancelled:
            return "cancelled", None
        except BaseException as error:
            if is_interrupt(error):
                raise
            return self.reporter.failed(error, step)
        return "ok", None

    def finish(self) -> None:
        """Once: what comes after is no part of what was measured, nor of the peaks."""
        if not self._is_finishing:
            self._is_finishing = True
            self.peaks = self._meter.read() if self._meter else None
            if text := spilled(self.peaks, torch.device(self.spec.device)):
                self.reporter.notice(text)
            self.reporter.enter("finishing")

    def _build(self) -> tuple[Workload, torch.device]:
        device = configure_torch(self.spec)
        self._meter = PeakMeter(device)
        # The allocator's memory is given back so that a first step finds it as a plain script leaves it.
        workload = build(self.spec, device, built=partial(_free_memory, device))
        self.reporter.built(workload)
        return workload, device

    def _name(self, step: Step, workload: Workload) -> None:
        """Name phases and parts; of a compiled model only phases, as names of parts would break its graphs."""
        self._nvtx = available()
        if self._nvtx:
            emit_ranges(step, workload.model if self.spec.compile == "off" else None, self.spec.annotations)
        else:
            self.reporter.notice(UNAVAILABLE)

    def _around(self, name: str) -> AbstractContextManager[object]:
        """What a step, or a window of them, runs in."""
        return nvtx_range(name) if self._nvtx else nullcontext()

    def _time(self, step: ReadyStep, workload: Workload) -> None:
        assert self._meter is not None
        spec, reporter = self.spec, self.reporter
        clock = clock_for(torch.device(spec.device))
        timer = StepTimer(step, clock)
        freeze_existing_objects()
        if spec.warmup_steps:
            reporter.enter("warm-up")
            self._warm_up(step, timer)
        skipped = SkippedSteps(step.training)
        self._meter.reset(allocated=allocates_in_steps(step, spec))
        reporter.report_changed_settings(workload, "after it was built")
        reporter.enter("measuring")
        waited, began = RunQueueMeter(), time.perf_counter()
        try:
            self._measure(step, timer, clock)
        finally:
            reporter.measured_for_s, reporter.waited = time.perf_counter() - began, waited.read()
        reporter.report_changed_settings(workload, "while it was measured")
        if spec.steps_auto is not None:
            reporter.notice(why_stopped(reporter.times_s["measured"], spec.steps_auto))
        done = len(reporter.times_s["measured"])
        reporter.remark_skipped(skipped.of(done), done)
        reporter.remark_recompilations()

    def _warm_up(self, step: ReadyStep, timer: StepTimer) -> None:
        """As many steps as asked for; automatic, until a look at them finds them steady and a few more are done."""
        most = self.spec.warmup_steps
        if not self.spec.warmup_auto:
            self._time_each(step, timer, "warm-up", most)
            return
        why_not = ""
        for count in warmup_looks(most):
            self._time_each(step, timer, "warm-up", count)
            why_not = why_not_warm(self.reporter.times_s["warm-up"])
            if not why_not:
                self._time_each(step, timer, "warm-up", min(count + AFTER_LOOK, most))
                return
        self.reporter.notice(f"{why_not} after {most} warm-up steps, the most that was allowed")

    def _measure(self, step: ReadyStep, timer: StepTimer, clock: Clock) -> None:
        spec = self.spec
        if spec.steps_auto is not None:
            self._measure_automatically(step, timer, spec.steps_auto)
        elif spec.sync == "each-step":
            self._time_each(step, timer, "measured", spec.measure_steps)
        else:
            try:
                with self._around(f"steps 1 to {spec.measure_steps}"):
                    times = time_window(step, clock, spec.measure_steps, self._go_on)
            except WindowBroken as broken:
                self._report(step, "measured", 0, broken.times)
                raise broken.error from None
            self._report(step, "measured", 0, times)
            if len(times) < spec.measure_steps:
                raise Cancelled

    def _measure_automatically(self, step: ReadyStep, timer: StepTimer, share: float) -> None:
        """Steps until a look at them finds them enough, or to the most that is allowed."""
        for count in step_looks(self.spec.measure_steps):
            self._time_each(step, timer, "measured", count)
            if count < self.spec.measure_steps and enough_measured(self.reporter.times_s["measured"], share):
                break

    def _time_each(self, step: ReadyStep, timer: StepTimer, kind: StepKind, count: int) -> None:
        """Time steps until there are `count` of this kind."""
        for number in range(len(self.reporter.times_s[kind]), count):
            if not self._go_on(number):
                raise Cancelled
            with self._around("warm-up" if kind == "warm-up" else f"step {number + 1}"):
                timed = timer.time()
            self._report(step, kind, number, [timed])
            collect_step_garbage()

    def _report(self, step: ReadyStep, kind: StepKind, first: int, times: Sequence[StepTime]) -> None:
        self.reporter.steps_ended(step, kind, first, times)
        if first == 0 and times and isinstance(step, Step):  # what was captured was checked before
            step.check()

    def _go_on(self, number: int) -> bool:
        self.reporter.reach(number)
        return not self._cancelled()

    def _check_cancelled(self) -> None:
        if self._cancelled():
            raise Cancelled


def _free_memory(device: torch.device) -> None:
    """Give back what the allocator no longer uses; a device that has failed for good has nothing to give."""
    with contextlib.suppress(RuntimeError):
        if device.type == "cuda":
            torch.cuda.empty_cache()
        elif device.type == "mps" and torch.backends.mps.is_available():
            torch.mps.empty_cache()
