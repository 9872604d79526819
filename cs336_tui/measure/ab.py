"""One round of two cells in turns: build both, warm both up, time a step of the one, then one of the other."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import torch

from cs336_tui.events import CellFinished, Event, ModelBuilt, Notice, Stage, StageChanged, Status, StepKind, StepsTimed
from cs336_tui.measure.clock import clock_for
from cs336_tui.measure.failures import failed_allocation, outcome_of
from cs336_tui.measure.in_force import read_in_force
from cs336_tui.measure.memory import PeakMeter
from cs336_tui.measure.surroundings import no_garbage_collection, restored_settings
from cs336_tui.measure.timing import StepTimer
from cs336_tui.measure.waiting import CpuWait, Waited, usable_cores
from cs336_tui.spec import RunSpec
from cs336_tui.stats import summarize
from cs336_tui.workload.building import build, settle_torch
from cs336_tui.workload.passes import Step
from cs336_tui.workload.precision import RECIPES, dtype_name, set_matmul


def run_round(
    specs: tuple[RunSpec, RunSpec],
    cells: tuple[int, int],
    emit: Callable[[Event], None],
    cancelled: Callable[[], bool],
    *,
    b_first: bool = False,
) -> None:
    """Run A and B here, both in memory at once, and give everything that happens to `emit`, outside timed regions.

    Steps come in pairs, A B, B A, A B and so on, or B A first with `b_first`; the side that begins is also built first.
    Warm-up steps alternate likewise. Every step is synchronised on its own. Each side has the events of
    `cs336_tui.measure.cell.run_cell`, which interleave; the two `CellFinished` come last. Peaks of memory would be of
    both together and are left unknown; `measured_for_s` and `cpu_wait_s` are of the time in which both were measured.

    A side that runs out of memory or fails ends the round; the other one is then ``failed`` and names it. Both specs
    must have as many measured steps, ``each-step``, and no count that is not fixed.
    """
    a, b = (_Side(name, spec, cell, emit) for name, spec, cell in zip("AB", specs, cells, strict=True))
    with restored_settings(), no_garbage_collection():
        _Round((b, a) if b_first else (a, b), cancelled).run()
        for side in (a, b):
            side.enter("finishing")
            side.let_go()
    for side in (a, b):
        side.tell_end()


class _Cancelled(Exception):
    """The round was asked to stop."""


class _Side:
    """A or B on its way: what is built of it, how far it has got, and what it tells."""

    def __init__(self, name: str, spec: RunSpec, cell: int, emit: Callable[[Event], None]) -> None:
        self.name, self.spec, self.cell, self._emit = name, spec, cell, emit
        self.status: Status = "ok"
        self.error: str | None = None
        self.measured_for_s: float | None = None
        self.waited: Waited | None = None
        self._device = torch.device(spec.device)
        self._stage: Stage = "building"
        self._next = 0
        """The step of the stage that is running or comes next."""
        self._failed_in: str | None = None
        self._failed_allocation_bytes: int | None = None
        self._logits_dtype: str | None = None
        self._times_s: dict[StepKind, list[float]] = {"warm-up": [], "measured": []}
        self._step: Step | None = None
        self._timer: StepTimer | None = None
        self._meter: PeakMeter | None = None
        self._num_alloc_retries: int | None = None
        self._taken_before = 0
        self._remarks: list[str] = []
        """What is to be known beside its number."""

    def enter(self, stage: Stage) -> None:
        if stage != "finishing":
            self._stage, self._next = stage, 0
        self._emit(StageChanged(at=time.time(), cell=self.cell, stage=stage))

    def build(self, *, set_threads: bool) -> None:
        """Build it under its own settings. Threads are set once for both sides: setting them, even to what they are,
        changes how MKL shares out its work."""
        self.enter("building")
        settle_torch(self.spec if set_threads else msgspec.structs.replace(self.spec, threads=None))
        self._meter = PeakMeter(self._device)
        workload = build(self.spec, self._device)
        self._emit(
            ModelBuilt(
                at=time.time(),
                cell=self.cell,
                num_params=workload.facts.num_params,
                num_params_without_head=workload.facts.num_params_without_head,
                in_force=read_in_force(workload),
            )
        )
        self._step = workload.step(self.spec)
        self._timer = StepTimer(self._step, clock_for(self._device))

    def settle(self) -> None:
        """Put the settings of all torch that are this side's in force again."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        set_matmul(RECIPES[self.spec.precision].matmul)

    def begin_measuring(self) -> None:
        assert self._meter is not None
        self._meter.reset()
        self._taken_before = self._steps_taken()
        self.enter("measuring")

    def end_measuring(self, measured_for_s: float, waited: Waited | None) -> None:
        assert self._meter is not None
        self.measured_for_s, self.waited = measured_for_s, waited
        self._num_alloc_retries = self._meter.read().num_alloc_retries

    def time_step(self, kind: StepKind) -> None:
        """Time one step and tell of it."""
        assert self._step is not None
        assert self._timer is not None
        timed = self._timer.time()
        assert self._step.logits_dtype is not None
        self._logits_dtype = dtype_name(self._step.logits_dtype)
        self._times_s[kind].append(timed.total_s)
        self._emit(
            StepsTimed(
                at=time.time(),
                cell=self.cell,
                kind=kind,
                first=self._next,
                times_s=(timed.total_s,),
                phases_s={name: (value,) for name, value in zip(self._step.phases, timed.phases_s, strict=True)},
                host_s=(timed.host_s,),
            )
        )
        self._next += 1

    def fail(self, error: Exception) -> None:
        self.status, self.error = outcome_of(error)
        self._failed_in = self._step.failed_in if self._step else None
        self._failed_allocation_bytes = failed_allocation(error)

    def tell_skipped(self) -> None:
        """Say how many optimizer steps the gradient scaler left out."""
        if self._scales_gradients() and (skipped := self._next - (self._steps_taken() - self._taken_before)):
            text = (
                f"{skipped} of {self._next} optimizer steps were skipped, because gradients overflowed float16; these "
                f"steps took less time than real ones"
            )
            self._remarks.append(text)
            self._emit(Notice(at=time.time(), text=f"cell {self.cell + 1}: {text}"))

    def let_go(self) -> None:
        """Hold on to nothing that was built."""
        self._step = self._timer = None

    def tell_end(self) -> None:
        is_ok = self.status == "ok"
        self._emit(
            CellFinished(
                at=time.time(),
                cell=self.cell,
                status=self.status,
                error=self.error,
                stage=None if is_ok else self._stage,
                step=None if is_ok or self._stage == "building" else self._next,
                phase=self._failed_in,
                failed_allocation_bytes=self._failed_allocation_bytes,
                logits_dtype=self._logits_dtype,
                num_alloc_retries=self._num_alloc_retries,
                warmup_steps_done=len(self._times_s["warm-up"]),
                measured_for_s=self.measured_for_s,
                cpu_wait_s=self.waited and self.waited.sum_s,
                longest_cpu_wait_s=self.waited and self.waited.longest_s,
                usable_cores=usable_cores(),
                remarks=tuple(self._remarks),
                summary=summarize(self._times_s["measured"]),
            )
        )

    def _scales_gradients(self) -> bool:
        return bool(self._step and self._step.training and self._step.training.scales_gradients)

    def _steps_taken(self) -> int:
        """Optimizer steps so far; counted only where the scaler may skip some, as it waits for the device."""
        if self._step is None or self._step.training is None or not self._scales_gradients():
            return 0
        return self._step.training.steps_taken


class _Round:
    """Both sides in the order in which they begin."""

    def __init__(self, sides: tuple[_Side, _Side], cancelled: Callable[[], bool]) -> None:
        self._sides, self._cancelled = sides, cancelled
        self._turn = sides[0]
        """Whose turn it is."""
        recipes = [(RECIPES[side.spec.precision].matmul, side.spec.device) for side in sides]
        self._settings_differ = recipes[0] != recipes[1]

    def run(self) -> None:
        """Build, warm up and time both; their statuses say how it went."""
        try:
            for side in self._sides:
                self._turn = side
                side.build(set_threads=side is self._sides[0])
                if self._cancelled():
                    raise _Cancelled
            self._time()
        except _Cancelled:
            for side in self._sides:
                side.status = "cancelled"
        except Exception as error:
            self._turn.fail(error)
            self._end_other()

    def _end_other(self) -> None:
        """The other side's steps have no partner any more."""
        failed = self._turn
        (other,) = (side for side in self._sides if side is not failed)
        how = "ran out of memory" if failed.status == "oom" else "failed"
        other.status, other.error = "failed", f"{failed.name} {how}, which ended the round"

    def _time(self) -> None:
        counts = tuple(side.spec.warmup_steps for side in self._sides)
        for side, count in zip(self._sides, counts, strict=True):
            if count:
                side.enter("warm-up")
        for number in range(max(counts)):
            self._time_pair(number, "warm-up", tuple(side for side in self._sides if number < side.spec.warmup_steps))
        for side in self._sides:
            side.begin_measuring()
        waiting, began = CpuWait(), time.perf_counter()
        try:
            for number in range(self._sides[0].spec.measure_steps):
                self._time_pair(number, "measured", self._sides)
        finally:
            measured_for_s, waited = time.perf_counter() - began, waiting.read()
            for side in self._sides:
                side.end_measuring(measured_for_s, waited)
        for side in self._sides:
            side.tell_skipped()

    def _time_pair(self, number: int, kind: StepKind, sides: tuple[_Side, ...]) -> None:
        for side in sides if number % 2 == 0 else sides[::-1]:
            if self._cancelled():
                raise _Cancelled
            self._turn = side
            if self._settings_differ:
                side.settle()
            side.time_step(kind)
