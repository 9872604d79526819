"""Runs one cell: build, compile or capture, warm up, measure, report; alone, or in turns with another one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import nn

from cs336_tui.config import processes
from cs336_tui.config.counts import duration_words
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import WITHOUT_BACKWARD
from cs336_tui.events.audit import Audit, Books, Inputs
from cs336_tui.events.events import Status, StepKind
from cs336_tui.stats.quantities import counted
from cs336_tui.worker.measure import settings, timing
from cs336_tui.worker.measure.autotuned import autotuned
from cs336_tui.worker.measure.cell_memory import PeakMeter, Peaks, before_backward_bytes, spilled
from cs336_tui.worker.measure.failures import Cancelled, IsCancelled, is_out_of_memory
from cs336_tui.worker.measure.preparing import allocates_in_steps, fresh_compiler, prepare
from cs336_tui.worker.measure.process import RunQueueMeter
from cs336_tui.worker.measure.referee.audit import CellCheck, why_fixed
from cs336_tui.worker.measure.referee.books import Bookkeeper
from cs336_tui.worker.measure.reporter import CellReporter, Emit
from cs336_tui.worker.measure.timing import L2Flush, StepTime, StepTimer, WindowTiming, clock_for
from cs336_tui.worker.ranks import ALONE, Place
from cs336_tui.worker.ranks.group import Group
from cs336_tui.worker.workload.building import Workload, build, collect_garbage, configure_torch
from cs336_tui.worker.workload.compile_and_capture import ReadyStep
from cs336_tui.worker.workload.import_problems import raise_interrupt
from cs336_tui.worker.workload.model_parts import digest
from cs336_tui.worker.workload.passes import Shared, Step
from cs336_tui.worker.workload.ranges import UNAVAILABLE, available, emit_ranges, nvtx_range, under_nsys
from cs336_tui.worker.workload.transformer import FreshTokens

if TYPE_CHECKING:
    from cs336_tui.worker.ranks.check import Expected


class CellRun:
    """A cell while it is built, prepared and timed. Its progress is in `reporter`."""

    def __init__(self, spec: CellSpec, cell: int, emit: Emit, place: Place = ALONE) -> None:
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
        self._threads = frozenset((*threading.enumerate(), threading.current_thread()))  # Before a user's code runs
        self._tokens: FreshTokens | None = None  # None if they stay the same
        self._bookkeeper: Bookkeeper | None = None  # While steps are measured
        self._books: Books | None = None

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
        rank = self.group.place.rank
        if self.spec.is_collective:
            from cs336_tui.worker.ranks.group import collective_workload

            self.workload = collective_workload(self.spec, self.device, rank)
        else:
            self.workload = build(self.spec, self.device, built=built, rank=rank, share=self._share)
        self.reporter.built(self.workload)
        if not self.spec.is_collective:
            with suppress(RuntimeError, TypeError):  # of a user's own tensors that have no bytes
                self.reporter.end["tokens_digest"] = digest(self.workload.batch)
                self.reporter.end["weights_digest"] = digest(self.workload.model.parameters())
        if not why_fixed(self.spec, self.workload):
            self._tokens = FreshTokens(self.workload.batch, self.spec.vocab_size, self.spec.seed + 1 + rank)
        self.step = step = self.workload.step(self.spec)
        return step

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
            settled=self.group.all, tried_s=self.workload.tried_s if self.workload else 0.0,
            compiled=self._meter.reset,  # else autotuning is in the peaks of what has graphs
        )  # fmt: skip
        self.reporter.prepared(preparation, self.spec)
        self._compare_compiled(step)
        self.timer = StepTimer(self.step, clock_for(self.device), self.flush, self.group.barrier, self._tokens)
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
        if self._tokens:
            self._tokens.repeat()
        if self.timer:
            self.timer.between_s.clear()
            self.timer.losses.clear()
        if self.spec.check != "off":
            self._bookkeeper = Bookkeeper(self._threads)
            if self.timer:
                self.timer.keeps_logits = self._tokens is not None and self.spec.ranks == 1

    def report_steps(self, kind: StepKind, first: int, times: Sequence[StepTime]) -> None:
        assert self.step is not None
        self.reporter.steps_ended(self.step, kind, first, times)
        if first == 0 and times and isinstance(self.step, Step):  # a captured step was checked before
            self.step.check()

    def report_changed_settings(self, since: str) -> None:
        assert self.workload is not None
        self.reporter.built(self.workload, since)

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
                self.reporter.notice(timing.why_short(kind, most, sum_s, for_s))
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

    def close_books(self) -> None:
        """End the measured window's accounts."""
        self.reporter.end["losses"] = tuple(self.timer.losses) if self.timer else ()
        if self._bookkeeper is None:
            return
        assert self.timer is not None
        assert self.step is not None
        times_s, prepares = self.reporter.times_s["measured"], self.step.prepares
        self._books = self._bookkeeper.close(times_s, self.timer.between_s, prepares=prepares)

    def audit(self, *, with_memory: bool = True) -> None:
        """Check the cell's work and results, after its measurement and outside of all figures. The peaks are told
        before, with `with_memory` as its own."""
        if self.spec.check == "off" or self.spec.is_collective:
            return
        assert self.workload is not None
        assert self.step is not None
        assert self.timer is not None
        times_s = self.reporter.times_s["measured"]
        repeated = FreshTokens.repeated(len(times_s)) if self._tokens else ()
        why = why_fixed(self.spec, self.workload)
        inputs = Inputs(fresh=self._tokens is not None, repeated=repeated, why_fixed=why)
        self.reporter.end["audit"] = Audit(books=self._books, inputs=inputs)
        self.reporter.measured(self.peaks, with_memory=with_memory)
        place, step_s = self.group.place, median(times_s)
        check = CellCheck(self.spec, self.workload, self.step, self.timer, place, step_s, self._books, inputs)
        self.reporter.end["audit"] = check.audit()
        collect_garbage()

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
            run.reporter.end["measured_for_s"] = took_s
            if delay is not None:
                run.reporter.end |= {"cpu_wait_s": delay.sum_s, "longest_cpu_wait_s": delay.longest_s}


def free_memory(device: torch.device) -> None:
    """Give back the allocator's unused memory; a device that has failed for good has none."""
    with suppress(RuntimeError):
        if device.type == "cuda":
            torch.cuda.empty_cache()
        elif device.type == "mps" and torch.backends.mps.is_available():
            torch.mps.empty_cache()


def run_cell(
    spec: CellSpec, cell: int, emit: Emit, cancelled: IsCancelled, *, nvtx: bool = False, place: Place = ALONE
) -> None:
    """Run one cell, or one of its ranks, here and pass its events to `emit`, outside every timed region.

    Events, in order: ``building``; `ModelBuilt`; ``compiling`` and ``capturing`` with a `ModelPrepared` if the spec
    asks for either; ``warm-up`` (if any) and ``measuring`` with a `StepsTimed` after each step (one for all measured
    when pipelined, one for each stage by timer ``do_bench``); ``finishing``; always one `CellFinished`. Warm-up steps
    are else synchronised one by one. Automatic counts (`timing`) are decided between steps, with a `Notice` that
    says why; those that come from time where steps are not looked at, by an estimate before. If the model changes a
    setting after construction, a `Notice` and a second `ModelBuilt` report it.

    `cancelled` is asked after building, between the runs of compiling, and before each step. An error ends the cell,
    not the caller: status ``oom`` if memory ran out, ``failed`` for any other `Exception` or a model's `sys.exit`.
    Torch's settings, the garbage collector and the memory are given back before that; a rank of several reports first,
    as the rest may wait for others. With `nvtx`, or under nsys, warm-up, steps, phases and parts of the model are NVTX
    ranges; else nothing is wrapped.
    """
    run = _SingleRun(spec, cell, emit, cancelled, nvtx=nvtx or under_nsys(), place=place)
    with settings.restored_settings(), settings.no_garbage_collection():
        with ExitStack() as around:
            status, error = run.outcome(around)
            run.finish()
            end = partial(run.reporter.finished, status, error, run.peaks)
            if place.ranks > 1:  # before the rest, which may wait for a rank that has failed
                end()
            run.release()
        free_memory(run.device)
    if place.ranks == 1:
        end()
    elif status == "ok":
        run.group.leave()


class _SingleRun(CellRun):
    def __init__(
        self, spec: CellSpec, cell: int, emit: Emit, cancelled: IsCancelled, *, nvtx: bool, place: Place
    ) -> None:
        super().__init__(spec, cell, emit, place)
        self._cancelled = cancelled
        self._nvtx = nvtx
        self._is_finishing = False
        self._steps = (spec.warmup_steps, spec.measure_steps)  # Warm-up and measured; known after `_estimate` by time

    def outcome(self, around: ExitStack) -> tuple[Status, str | None]:
        """Build and time the cell: status and error. Contexts that must outlast this call go to `around`."""
        try:
            self.reporter.enter("building")
            around.enter_context(fresh_compiler(self.spec.compile, always=self.spec.within is not None))
            if self.spec.within is not None:
                self.reporter.cache_folder = processes.USERS_CACHE_FOLDER
            around.enter_context(self.group.joined(self.spec.backend_in_use))
            self.check_ranks(self.spec)
            # The allocator's memory is given back so that a first step finds it as a plain script leaves it.
            written = self.build(self.spec, partial(free_memory, self.device))
            if self._nvtx:
                self._name(written)
            self._check_cancelled()
            self._time(self.prepare(written, self._check_cancelled))
            self.finish()
            if self.spec.is_alone and not self.spec.is_collective and self.step is written:
                self.finish()
                assert self.workload is not None
                held = before_backward_bytes(written, self.workload, self.device)
                if held is not None and self.flush:
                    held -= self.flush.bytes
                self.reporter.end["before_backward_bytes"] = held
            self.audit()
        except Cancelled:
            return "cancelled", None
        except BaseException as error:
            raise_interrupt(error)
            return self.reporter.failed(error, self.step)
        return "ok", None

    def finish(self) -> None:
        """End the measurement, once: later work counts neither to the times nor to the peaks."""
        if not self._is_finishing:
            self._is_finishing = True
            self.read_peaks()
            self.report_spill()
            self.reporter.enter("finishing")

    def _name(self, step: Step) -> None:
        """Name phases and parts; of a compiled model only phases, because names of parts would break its graphs."""
        assert self.workload is not None
        self._nvtx = available()
        if self._nvtx:
            emit_ranges(step, self.workload.model if self.spec.compile == "off" else None, self.spec.annotations)
        else:
            self.reporter.notice(UNAVAILABLE)

    def _around(self, name: str) -> AbstractContextManager[object]:
        """The context of a step, or of a window of steps."""
        return nvtx_range(name) if self._nvtx else nullcontext()

    def _time(self, timer: StepTimer) -> None:
        spec, reporter = self.spec, self.reporter
        settings.freeze_existing_objects()
        by_time = spec.warmup_for is not None or spec.steps_for is not None
        if spec.warmup_steps or (spec.timer == "do_bench" and by_time):
            reporter.enter("warm-up")
        if spec.timer == "do_bench" and by_time:
            self._estimate()
        if spec.warmup_steps:
            self._warm_up(timer)
        if spec.sync == "pipelined" and spec.steps_for is not None:
            self._estimate()
        self.begin_measuring()
        with measured(self):
            self._measure(timer)
        self.close_books()
        self.report_changed_settings("while it was measured")
        if choices := autotuned():
            reporter.end["autotuned"] = (choices,)
        if spec.steps_auto is not None and self.group.place.rank == 0:
            reporter.notice(timing.why_stopped(reporter.times_s["measured"], spec.steps_auto))
        self.report_remarks()

    def _estimate(self) -> None:
        """Work out how many steps come to the time asked for, where that has to be known before they run."""
        spec = self.spec
        assert self.step is not None
        step_s, first_s = timing.estimate_step(self.step, clock_for(self.device), self.flush)
        self._steps = (
            self.group.agree(spec.warmup_steps_of(step_s)), self.group.agree(spec.measure_steps_of(step_s)),
        )  # fmt: skip
        ahead = f"{1 + timing.ESTIMATING_RUNS} steps ran ahead, untimed: the first took {first_s:.3g} s"
        flushed = " with its flush" if self.flush else ""
        took = f"{ahead}, a step{flushed} takes about {step_s * 1e3:.4g} ms"
        asked = []
        if spec.warmup_for is not None and spec.timer == "do_bench":
            asked.append(f"{counted(self._steps[0], 'warm-up step')} for {duration_words(spec.warmup_for)}")
        if spec.steps_for is not None:
            asked.append(f"{counted(self._steps[1], 'measured step')} for {duration_words(spec.steps_for)}")
        if self.group.place.rank == 0:
            self.reporter.notice(f"{took}, so {' and '.join(asked)}")
        if self.reporter.recompilations:
            self.reporter.recompilations.step_begins()

    def _warm_up(self, timer: StepTimer) -> None:
        """Run the warm-up steps of the spec; if automatic, run until they are steady and `AFTER_LOOK` more."""
        most = self.spec.warmup_steps
        if self.spec.timer == "do_bench":  # which does not flush before these
            self._time_window("warm-up", self._steps[0], WindowTiming(whole=True, barrier=self.group.barrier))
            return
        if self.spec.warmup_for is not None:
            self._time_for(timer, "warm-up", most, self.spec.warmup_for)
            return
        if not self.spec.warmup_auto:
            self._time_each(timer, "warm-up", most)
            return
        why_not = ""
        for count in timing.warmup_looks(most):
            self._time_each(timer, "warm-up", count)
            why_not = timing.why_not_warm(self.reporter.times_s["warm-up"])
            if self.group.agree(not why_not):
                self._time_each(timer, "warm-up", min(count + timing.AFTER_LOOK, most))
                return
        if self.group.place.rank == 0:
            self.reporter.notice(f"{why_not} after {counted(most, 'warm-up step')}, the limit")

    def _measure(self, timer: StepTimer) -> None:
        spec = self.spec
        if spec.timer == "do_bench":
            self._time_window(
                "measured", self._steps[1], WindowTiming(self.flush, whole=True, barrier=self.group.barrier)
            )
        elif spec.steps_auto is not None:
            for count in timing.step_looks(spec.measure_steps):
                self._time_each(timer, "measured", count)
                times_s = self.reporter.times_s["measured"]
                enough = timing.enough_measured(times_s, spec.steps_auto)
                if count < spec.measure_steps and self.group.agree(enough):
                    break
        elif spec.sync == "each-step" and spec.steps_for is not None:
            self._time_for(timer, "measured", spec.measure_steps, spec.steps_for)
        elif spec.sync == "each-step":
            self._time_each(timer, "measured", spec.measure_steps)
        else:
            self._time_window("measured", self._steps[1], WindowTiming(self.flush))

    def _time_window(self, kind: StepKind, count: int, how: WindowTiming) -> None:
        """Time so many steps back to back."""
        assert self.step is not None
        try:
            with self._around("warm-up" if kind == "warm-up" else f"steps 1 to {count}"):
                times = timing.time_window(self.step, clock_for(self.device), count, self._go_on, how)
        except timing.WindowBroken as broken:
            self.report_steps(kind, 0, broken.times)
            raise broken.error from None
        self.report_steps(kind, 0, times)
        if len(times) < count:
            raise Cancelled

    def _time_each(self, timer: StepTimer, kind: StepKind, count: int) -> None:
        """Time steps until there are `count` of this kind."""
        for number in range(len(self.reporter.times_s[kind]), count):
            if not self._go_on(number):
                raise Cancelled
            with self._around("warm-up" if kind == "warm-up" else f"step {number + 1}"):
                timed = timer.time()
            self.report_steps(kind, number, [timed])
            settings.collect_step_garbage()

    def _time_for(self, timer: StepTimer, kind: StepKind, most: int, for_s: float) -> None:
        """Time steps until they come to so many seconds, or there are `most` of them."""
        times_s = self.reporter.times_s[kind]
        at_once = self.group.place.ranks > 1  # agreeing may take longer than a step
        while count := self.group.agree(timing.steps_left(times_s, most, for_s, at_once=at_once)):
            self._time_each(timer, kind, len(times_s) + count)

    def _go_on(self, number: int) -> bool:
        self.reporter.reach(number)
        return not self._cancelled()

    def _check_cancelled(self) -> None:
        if self._cancelled():
            raise Cancelled
