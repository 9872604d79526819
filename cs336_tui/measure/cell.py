"""One cell, start to end: build, warm up, measure, report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import nn

from cs336_tui.events import (
    CellFinished,
    Event,
    ModelBuilt,
    ModelPrepared,
    Notice,
    Stage,
    StageChanged,
    Status,
    StepKind,
    StepsTimed,
)
from cs336_tui.measure.clock import Clock, clock_for
from cs336_tui.measure.compiling import compile_ahead
from cs336_tui.measure.enough import AFTER_LOOK, are_enough, step_looks, still_warming, warmup_looks, why_stopped
from cs336_tui.measure.failures import failed_allocation, outcome_of
from cs336_tui.measure.in_force import read_in_force
from cs336_tui.measure.memory import PeakMeter, Peaks
from cs336_tui.measure.nvtx import UNAVAILABLE, available, emit_ranges, nvtx_range, under_nsys
from cs336_tui.measure.surroundings import no_garbage_collection, restored_settings
from cs336_tui.measure.timing import StepTime, StepTimer, WindowBroken, time_window
from cs336_tui.measure.waiting import CpuWait, Waited, usable_cores
from cs336_tui.spec import RunSpec
from cs336_tui.stats import summarize
from cs336_tui.workload.building import build, settle_torch
from cs336_tui.workload.cuda_graph import captured
from cs336_tui.workload.passes import Step
from cs336_tui.workload.precision import dtype_name


def run_cell(
    spec: RunSpec, cell: int, emit: Callable[[Event], None], cancelled: Callable[[], bool], *, nvtx: bool = False
) -> None:
    """Run one cell here and give everything that happens to `emit`, outside every timed region.

    Events, in order: ``building``, `ModelBuilt`, ``warm-up`` (where there is any) with a `StepsTimed` after each step,
    ``measuring`` with a `StepsTimed` after each step (one for all of them when pipelined), ``finishing``, and always
    one `CellFinished`. Warm-up steps are synchronised one by one in both sync modes, so that settling is seen live.
    Automatic counts (`measure.enough`) are decided between steps, and a `Notice` says why where it is not plain.

    `cancelled` is asked after building and before each step. An error ends the cell, not the caller: running out of
    memory is status ``oom``, any other `Exception` is ``failed``. Torch's settings, the garbage collector and the
    memory are given back, so that cells can follow one another in one process.

    With `nvtx`, or under nsys, warm-up, steps, phases and parts of the model are NVTX ranges; else nothing is wrapped.
    """
    run = _Run(spec, cell, emit, cancelled, nvtx=nvtx or under_nsys())
    with restored_settings(), no_garbage_collection():
        status, error = run.outcome()
        reached, peaks = run.reached, run.peaks()
        run.enter("finishing")
        _free_memory(torch.device(spec.device))
    stage, step = (None, None) if status == "ok" else reached
    emit(
        CellFinished(
            at=time.time(),
            cell=cell,
            status=status,
            error=error,
            stage=stage,
            step=step,
            phase=run.failed_in,
            failed_allocation_bytes=run.failed_allocation_bytes,
            logits_dtype=run.logits_dtype,
            peak_allocated_bytes=peaks and peaks.allocated,
            peak_reserved_bytes=peaks and peaks.reserved,
            peak_rss_bytes=peaks and peaks.rss,
            num_alloc_retries=peaks and peaks.num_alloc_retries,
            warmup_steps_done=len(run.times_s["warm-up"]),
            remarks=tuple(run.remarks),
            measured_for_s=run.measured_for_s,
            cpu_wait_s=run.waited and run.waited.sum_s,
            longest_cpu_wait_s=run.waited and run.waited.longest_s,
            usable_cores=usable_cores(),
            summary=summarize(run.times_s["measured"]),
        )
    )


class _Cancelled(Exception):
    """The cell was asked to stop."""


class _Run:
    """A cell on its way: how far it has got, and what it tells."""

    def __init__(
        self, spec: RunSpec, cell: int, emit: Callable[[Event], None], cancelled: Callable[[], bool], *, nvtx: bool
    ) -> None:
        self.spec = spec
        self.cell = cell
        self.logits_dtype: str | None = None
        self.failed_in: str | None = None
        """The phase of the step that raised."""
        self.failed_allocation_bytes: int | None = None
        self.measured_for_s: float | None = None
        self.remarks: list[str] = []
        self.waited: Waited | None = None
        """For a core, while it measured."""
        self.reached: tuple[Stage, int | None] = ("building", None)
        """The stage, and the step within it that is running or comes next."""
        self.times_s: dict[StepKind, list[float]] = {"warm-up": [], "measured": []}
        """Of the finished steps."""
        self._emit = emit
        self._cancelled = cancelled
        self._meter: PeakMeter | None = None
        self._nvtx = nvtx

    def enter(self, stage: Stage) -> None:
        self.reached = (stage, None)
        self._emit(StageChanged(at=time.time(), cell=self.cell, stage=stage))

    def outcome(self) -> tuple[Status, str | None]:
        """Build and time, holding on to nothing that was built."""
        step: Step | None = None
        try:
            self.enter("building")
            step = self._build()
            self._check_cancelled()
            self._time(step)
        except _Cancelled:
            return "cancelled", None
        except Exception as error:
            self.failed_in = step.failed_in if step else None
            self.failed_allocation_bytes = failed_allocation(error)
            return outcome_of(error)
        return "ok", None

    def peaks(self) -> Peaks | None:
        """Peaks so far; None when the device could not even be reached."""
        return self._meter.read() if self._meter else None

    def _build(self) -> Step:
        spec = self.spec
        device = settle_torch(spec)
        self._meter = PeakMeter(device)
        # The allocator's memory is given back so that a first step finds it as a plain script leaves it.
        workload = build(spec, device, built=partial(_free_memory, device))
        model = workload.model
        self._emit(
            ModelBuilt(
                at=time.time(),
                cell=self.cell,
                num_params=workload.facts.num_params,
                num_params_without_head=workload.facts.num_params_without_head,
                in_force=read_in_force(workload),
            )
        )
        step = workload.step(spec)
        if self._nvtx:
            self._name(step, model)
        return self._prepare(step, device)

    def _prepare(self, step: Step, device: torch.device) -> Step:
        """What must be done once before the first warm-up step: compiling, or capturing a graph."""
        spec = self.spec
        if spec.compile == spec.cuda_graph == "off":
            return step
        compiled, capture_s = None, None
        if spec.compile != "off":
            self.enter("compiling")
            compiled = compile_ahead(step, device, self._check_cancelled)
        if spec.cuda_graph != "off":
            self.enter("capturing")
            begin = time.perf_counter()
            step = captured(step, device)
            capture_s = time.perf_counter() - begin
        self._emit(
            ModelPrepared(
                at=time.time(),
                cell=self.cell,
                compile_s=compiled.seconds if compiled else None,
                graphs=compiled.graphs if compiled else 0,
                graph_breaks=compiled.graph_breaks if compiled else (),
                capture_s=capture_s,
            )
        )
        return step

    def _name(self, step: Step, model: nn.Module) -> None:
        self._nvtx = available()
        if self._nvtx:
            emit_ranges(step, model)
        else:
            self._notice(UNAVAILABLE)

    def _around(self, name: str) -> AbstractContextManager[object]:
        """What a step, or a window of them, runs in."""
        return nvtx_range(name) if self._nvtx else nullcontext()

    def _time(self, step: Step) -> None:
        assert self._meter is not None
        spec = self.spec
        clock = clock_for(torch.device(spec.device))
        timer = StepTimer(step, clock)
        if spec.warmup_steps:
            self.enter("warm-up")
            self._warm_up(step, timer)
        scaled = step.training if step.training and step.training.scales_gradients else None
        taken_before = scaled.steps_taken if scaled else 0
        self._meter.reset()
        self.enter("measuring")
        waited, began = CpuWait(), time.perf_counter()
        try:
            self._measure(step, timer, clock)
        finally:
            self.measured_for_s, self.waited = time.perf_counter() - began, waited.read()
        if spec.steps_auto is not None:
            self._notice(why_stopped(self.times_s["measured"], spec.steps_auto))
        done = len(self.times_s["measured"])
        if scaled and (skipped := done - (scaled.steps_taken - taken_before)):
            self._notice(
                f"{skipped} of {done} optimizer steps were skipped, because gradients overflowed float16; these steps "
                f"took less time than real ones"
            )

    def _warm_up(self, step: Step, timer: StepTimer) -> None:
        """As many steps as asked for; automatic, until a look at them finds them steady and a few more are done."""
        most = self.spec.warmup_steps
        if not self.spec.warmup_auto:
            self._time_each(step, timer, "warm-up", most)
            return
        why_not = ""
        for count in warmup_looks(most):
            self._time_each(step, timer, "warm-up", count)
            why_not = still_warming(self.times_s["warm-up"])
            if not why_not:
                self._time_each(step, timer, "warm-up", min(count + AFTER_LOOK, most))
                return
        self._notice(f"{why_not} after {most} warm-up steps, the most that was allowed")

    def _measure(self, step: Step, timer: StepTimer, clock: Clock) -> None:
        spec = self.spec
        if spec.steps_auto is not None:
            self._measure_enough(step, timer, spec.steps_auto)
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
                raise _Cancelled

    def _measure_enough(self, step: Step, timer: StepTimer, share: float) -> None:
        """Steps until a look at them finds them enough, or to the most that is allowed."""
        for count in step_looks(self.spec.measure_steps):
            self._time_each(step, timer, "measured", count)
            if count < self.spec.measure_steps and are_enough(self.times_s["measured"], share):
                break

    def _time_each(self, step: Step, timer: StepTimer, kind: StepKind, count: int) -> None:
        """Time steps until there are `count` of this kind."""
        for number in range(len(self.times_s[kind]), count):
            if not self._go_on(number):
                raise _Cancelled
            with self._around("warm-up" if kind == "warm-up" else f"step {number + 1}"):
                timed = timer.time()
            self._report(step, kind, number, [timed])

    def _notice(self, text: str) -> None:
        """Say it now, and beside the cell's number."""
        self.remarks.append(text)
        self._emit(Notice(at=time.time(), text=f"cell {self.cell + 1}: {text}"))

    def _report(self, step: Step, kind: StepKind, first: int, times: Sequence[StepTime]) -> None:
        if times:
            assert step.logits_dtype is not None
            self.logits_dtype = dtype_name(step.logits_dtype)
            self.times_s[kind] += [t.total_s for t in times]
            by_phase = zip(*(t.phases_s for t in times), strict=True)
            self._emit(
                StepsTimed(
                    at=time.time(),
                    cell=self.cell,
                    kind=kind,
                    first=first,
                    times_s=tuple(t.total_s for t in times),
                    phases_s=dict(zip(step.phases, by_phase, strict=True)),
                    host_s=tuple(t.host_s for t in times),
                )
            )

    def _go_on(self, number: int) -> bool:
        self.reached = (self.reached[0], number)
        return not self._cancelled()

    def _check_cancelled(self) -> None:
        if self._cancelled():
            raise _Cancelled


def _free_memory(device: torch.device) -> None:
    """Give back what the allocator no longer uses; a device that has failed for good has nothing to give."""
    with contextlib.suppress(RuntimeError):
        if device.type == "cuda":
            torch.cuda.empty_cache()
        elif device.type == "mps" and torch.backends.mps.is_available():
            torch.mps.empty_cache()
