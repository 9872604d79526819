"""A cell while it is built, prepared and timed, alone or in turns with another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import nn

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import WITHOUT_BACKWARD
from cs336_tui.events.events import Event, StepKind
from cs336_tui.worker.measure import stopping_rule
from cs336_tui.worker.measure.cell_memory import PeakMeter, Peaks, spilled
from cs336_tui.worker.measure.failures import is_out_of_memory
from cs336_tui.worker.measure.preparing import allocates_in_steps, prepare
from cs336_tui.worker.measure.process import RunQueueMeter
from cs336_tui.worker.measure.reporter import CellReporter
from cs336_tui.worker.measure.timing import (
    L2Flush,
    StepTime,
    StepTimer,
    clock_for,
)
from cs336_tui.worker.place import ALONE, Place
from cs336_tui.worker.ranks.group import Group
from cs336_tui.worker.workload.building import Workload, build, collect_garbage, configure_torch
from cs336_tui.worker.workload.compile_and_capture import ReadyStep
from cs336_tui.worker.workload.passes import Shared, Step

if TYPE_CHECKING:
    from cs336_tui.worker.ranks.check import Expected


class CellRun:
    """A cell while it is built, prepared and timed. Its progress is in `reporter`."""

    def __init__(self, spec: CellSpec, cell: int, emit: Callable[[Event], None], place: Place = ALONE) -> None:
        self.spec = spec
        self.reporter = CellReporter(cell, emit)
        self.device = torch.device(place.device_of(spec))
        self.group = Group(place, self.device)
        self.workload: Workload | None = None
        self.step: ReadyStep | None = None
        self.timer: StepTimer | None = None
        self.peaks: Peaks | None = None  # None if the device could not be reached
        self.flush: L2Flush | None = None
        self._meter: PeakMeter | None = None
        self._expected: Expected | None = None  # Gradients with which the compiled step of all ranks is compared
        self._taken_before: int | None = None  # Optimizer steps before the measured ones, if some may be skipped

    def check_ranks(self, spec: CellSpec) -> None:
        """Configure torch for `spec` and compare a step that ranks share with one process. Raises `WrongRanks` of
        `worker.ranks.check`."""
        if self.spec.parallel == "none" or self.spec.pass_ in WITHOUT_BACKWARD:
            return
        from cs336_tui.worker.ranks.check import check_ranks  # it imports much

        configure_torch(spec, self.device, self.group.place.here)
        expected = check_ranks(self.spec, self.device, self.group, is_out_of_memory)
        if expected.note:
            self.reporter.notice(expected.note)
        if spec.compile != "off" and not (expected.note or expected.still):
            self._expected = expected
        collect_garbage()  # the collector is off, and the cell's own model needs the room
        free_memory(self.device)

    def build(self, spec: CellSpec, built: Callable[[], object] = lambda: None) -> Step:
        """Configure torch for `spec` and build the workload; the step as it is written."""
        configure_torch(spec, self.device, self.group.place.here)
        if (spec.flush_l2 or spec.timer == "do_bench") and self.device.type == "cuda":
            self.flush = L2Flush(self.device)  # first, so that its memory is a segment of its own
        if spec.timer == "do_bench" or self.flush:
            self.reporter.flushed = self.flush.words if self.flush else f"none: {self.device.type} reports no L2 size"
        self._meter = PeakMeter(self.device, self.flush.bytes if self.flush else 0)
        self.workload = self._built(built)
        self.reporter.built(self.workload)
        self.step = step = self.workload.step(self.spec)
        return step

    def _built(self, built: Callable[[], object]) -> Workload:
        if self.spec.is_collective:
            from cs336_tui.worker.ranks.group import collective_workload

            return collective_workload(self.spec, self.device, self.group.place.rank)
        return build(self.spec, self.device, built=built, rank=self.group.place.rank, share=self._share)

    def _share(self, model: nn.Module) -> Shared:
        """The model as the ranks run it."""
        if self.spec.parallel == "none":
            return Shared(model)
        from cs336_tui.worker.ranks.parallel import share  # it imports much

        return share(model, spec=self.spec, device=self.device)

    def prepare(self, step: Step, go_on: Callable[[], object]) -> StepTimer:
        """Compile or capture the step if the spec asks for it; `go_on` may raise between two runs."""
        assert self._meter is not None
        self.step, preparation = prepare(
            step, self.spec, self.device, self.reporter.enter, go_on,
            settled=self.group.all, compiled=self._meter.reset,  # else autotuning is in the peaks of what has graphs
        )  # fmt: skip
        self.reporter.prepared(preparation, self.spec)
        self._compare_compiled(step)
        self.timer = StepTimer(self.step, clock_for(self.device), self.flush, self.group.barrier)
        return self.timer

    def _compare_compiled(self, step: Step) -> None:
        """Compare the compiled step of all ranks with one process, too."""
        if self._expected is None:
            return
        from cs336_tui.worker.ranks.check import compare_step

        assert self.workload is not None
        assert self._meter is not None
        with self._meter.aside():  # the peaks of what has graphs go on
            compare_step(step, self.workload, self._expected, self.device)
            self._expected = None
            step.end_trial()
            free_memory(self.device)

    def begin_measuring(self) -> None:
        assert self._meter is not None
        assert self.step is not None
        training = self.step.training
        # Counting may wait for the device.
        self._taken_before = training.steps_taken if training and training.scales_gradients else None
        self._meter.reset(allocated=allocates_in_steps(self.step, self.spec))
        self.report_changed_settings("after it was built")
        self.reporter.enter("measuring")

    def report_steps(self, kind: StepKind, first: int, times: Sequence[StepTime]) -> None:
        assert self.step is not None
        self.reporter.steps_ended(self.step, kind, first, times)
        if first == 0 and times and isinstance(self.step, Step):  # a captured step was checked before
            self.step.check()

    def report_changed_settings(self, since: str) -> None:
        assert self.workload is not None
        self.reporter.report_changed_settings(self.workload, since)

    def report_remarks(self) -> None:
        """Report counts that ended before their time, skipped optimizer steps and recompilations beside the cell's
        number."""
        spec, times_s = self.spec, self.reporter.times_s
        counts: dict[StepKind, tuple[int, float | None]] = {
            "warm-up": (spec.warmup_steps, spec.warmup_for),
            "measured": (spec.measure_steps, spec.steps_for),
        }
        for kind, (most, for_s) in counts.items():
            if for_s is not None and len(times_s[kind]) >= most and (sum_s := sum(times_s[kind])) < for_s:
                self.reporter.notice(stopping_rule.why_short(kind, most, sum_s, for_s))
        done = len(self.reporter.times_s["measured"])
        training = self.step.training if self.step else None
        taken = None if training is None or self._taken_before is None else training.steps_taken - self._taken_before
        if taken is not None and taken != done:
            skipped = done - taken
            self.reporter.notice(
                f"{skipped} of {done} optimizer steps were skipped, because gradients overflowed float16; these steps "
                f"took less time than real ones"
            )
        for text in self.reporter.recompilations.remarks() if self.reporter.recompilations else ():
            self.reporter.notice(text)

    def read_peaks(self) -> None:
        self.peaks = self._meter.read() if self._meter else None

    def report_spill(self) -> None:
        if text := spilled(self.peaks, self.device):
            self.reporter.notice(text)

    def release(self) -> None:
        """Drop everything that was built."""
        self.workload = self.step = self.timer = self.flush = None


@contextmanager
def measured(*runs: CellRun) -> Iterator[None]:
    """Tell each run how long the measurement inside took, and its run-queue delay."""
    meter, began = RunQueueMeter(), perf_counter()
    try:
        yield
    finally:
        took_s, delay = perf_counter() - began, meter.read()
        for run in runs:
            run.reporter.measured_for_s, run.reporter.run_queue_delay = took_s, delay


def free_memory(device: torch.device) -> None:
    """Give back the allocator's unused memory; a device that has failed for good has none."""
    with suppress(RuntimeError):
        if device.type == "cuda":
            torch.cuda.empty_cache()
        elif device.type == "mps" and torch.backends.mps.is_available():
            torch.mps.empty_cache()
