"""One round of two cells in turns: make both ready, warm both up, time a step of the one, then one of the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import msgspec
import torch

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Event, Stage, Status, StepKind
from cs336_tui.worker.measure.cell_memory import PeakMeter, Peaks, spilled
from cs336_tui.worker.measure.devices import clock_for
from cs336_tui.worker.measure.failures import Cancelled
from cs336_tui.worker.measure.preparing import ReadyStep, allocates_in_steps, fresh_compiler, prepare
from cs336_tui.worker.measure.process import RunQueueDelay, RunQueueMeter
from cs336_tui.worker.measure.reporter import CellReporter, SkippedSteps
from cs336_tui.worker.measure.settings import (
    Settings,
    collect_step_garbage,
    freeze_existing_objects,
    no_garbage_collection,
    read_settings,
    restore,
    restored_settings,
)
from cs336_tui.worker.measure.timing import StepTimer
from cs336_tui.worker.workload.building import Workload, build, configure_torch
from cs336_tui.worker.workload.compiling import forget_sizes
from cs336_tui.worker.workload.imported.finding import UserModules, attach_user_modules, detach_user_modules
from cs336_tui.worker.workload.imported.problems import is_interrupt
from cs336_tui.worker.workload.passes import Step


def run_round(
    specs: tuple[CellSpec, CellSpec],
    cells: tuple[int, int],
    emit: Callable[[Event], None],
    cancelled: Callable[[], bool],
    *,
    b_first: bool = False,
) -> None:
    """Run A and B here, both in memory at once, and give everything that happens to `emit`, outside timed regions.

    Each side begins with torch's settings as they are here, and at its turns has those in force that its turn before
    left (`worker.measure.settings`), whatever the other side's model sets. Where the sides look for a user's code in
    different folders, each has its own modules and path at its turns, so that they may be two versions of one package.

    Steps come in pairs, A B, B A, A B and so on, or B A first with `b_first`; the side that begins is also built first,
    and compiled or captured where that is asked for. What two compiled sides have in common is compiled once, and each
    is compiled for its own sizes. Warm-up steps alternate likewise. Every step is synchronised on its own. Each side
    has the events of `worker.measure.cell.run_cell`, which interleave; the two `CellFinished` come last. Peaks of
    memory would be of both together and are left unknown; `measured_for_s` and `cpu_wait_s` are of the time in which
    both were measured.

    A side that runs out of memory or fails ends the round; the other one is then ``failed`` and names it. Both specs
    must have as many measured steps, ``each-step``, and no count that is not fixed.
    """
    a, b = (_RoundCell(name, spec, cell, emit) for name, spec, cell in zip("AB", specs, cells, strict=True))
    with restored_settings(), no_garbage_collection(), ExitStack() as around:
        _Round((b, a) if b_first else (a, b), cancelled).run(around)
        for side in (a, b):
            side.release()
        for side in (a, b):
            side.reporter.enter("finishing")
    for side in (a, b):
        side.report_end()


class _RoundCell:
    """A or B on its way: what is built of it, how far it has got, and what it tells."""

    def __init__(self, name: str, spec: CellSpec, cell: int, emit: Callable[[Event], None]) -> None:
        self.name, self.spec = name, spec
        self.status: Status = "ok"
        self.error: str | None = None
        self.reporter = CellReporter(cell, emit)
        self._device = torch.device(spec.device)
        self._settings: Settings = {}
        self._lost: list[str] = []
        """Names of settings that could not be put back at one of its turns."""
        self._code: UserModules | None = None
        """Its modules between two turns; None where both sides have theirs in the same folders."""
        self._workload: Workload | None = None
        self._step: ReadyStep | None = None
        self._timer: StepTimer | None = None
        self._meter: PeakMeter | None = None
        self._peaks: Peaks | None = None
        self._skipped = SkippedSteps(None)

    def enter(self, stage: Stage) -> None:
        self.reporter.enter(stage)
        self.reporter.reach(0)

    def begin(self, settings: Settings, code: UserModules | None) -> None:
        """What it finds at its first turn."""
        self._settings, self._code = settings, code

    def suspend(self) -> None:
        """Its turn is over: keep what is in force for it."""
        self._settings = read_settings()
        if self._code is not None:
            self._code = detach_user_modules()

    def activate(self) -> None:
        """Its turn comes: put in force again what is not."""
        if lost := [name for name in restore(self._settings) if name not in self._lost]:
            self._lost += lost
            self.reporter.notice(f"torch could not be given back what was in force for it: {', '.join(lost)}")
        if self._code is not None:
            attach_user_modules(self._code)

    @property
    def threads(self) -> int:
        """That its steps run in, known when its turn is over."""
        return int(self._settings["threads"])

    def build(self, go_on: Callable[[], object]) -> None:
        """Build it under its own settings, and compile or capture it where that is asked for. Threads are set before,
        once for both sides."""
        self.reporter.enter("building")
        configure_torch(msgspec.structs.replace(self.spec, threads=None))
        self._meter = PeakMeter(self._device)
        self._workload = build(self.spec, self._device)
        self.reporter.built(self._workload)
        written = self._step = self._workload.step(self.spec)
        go_on()
        self._step, preparation = prepare(written, self.spec, self._device, self.reporter.enter, go_on)
        self.reporter.prepared(preparation, self.spec)
        self._timer = StepTimer(self._step, clock_for(self._device))

    def begin_measuring(self) -> None:
        assert self._meter is not None
        assert self._step is not None
        assert self._workload is not None
        self._meter.reset(allocated=allocates_in_steps(self._step, self.spec))
        self._skipped = SkippedSteps(self._step.training)
        self.reporter.report_changed_settings(self._workload, "after it was built")
        self.enter("measuring")

    def end_measuring(self, measured_for_s: float, waited: RunQueueDelay | None) -> None:
        assert self._meter is not None
        self.reporter.measured_for_s, self.reporter.waited = measured_for_s, waited
        self._peaks = self._meter.read()

    def time_step(self, kind: StepKind, number: int) -> None:
        """Time one step and tell of it."""
        assert self._step is not None
        assert self._timer is not None
        self.reporter.steps_begin()
        timed = self._timer.time()
        self.reporter.steps_ended(self._step, kind, number, [timed])
        self.reporter.reach(number + 1)
        if number == 0 and isinstance(self._step, Step):  # what was captured was checked before
            self._step.check()

    def fail(self, error: BaseException) -> None:
        self.status, self.error = self.reporter.failed(error, self._step)

    def report_remarks(self) -> None:
        """Say what is to be known beside its number."""
        assert self._workload is not None
        self.reporter.report_changed_settings(self._workload, "while it was measured")
        done = len(self.reporter.times_s["measured"])
        self.reporter.remark_skipped(self._skipped.of(done), done)
        if text := spilled(self._peaks, self._device):
            self.reporter.notice(text)
        self.reporter.remark_recompilations()

    def release(self) -> None:
        """Hold on to nothing that was built."""
        self._workload = self._step = self._timer = self._code = None
        self._skipped = SkippedSteps(None)

    def report_end(self) -> None:
        """The end. Peaks would be of both sides together; how often memory had to be asked for again is told."""
        self.reporter.finished(self.status, self.error, self._peaks, with_memory=False)


class _Round:
    """Both sides in the order in which they begin."""

    def __init__(self, sides: tuple[_RoundCell, _RoundCell], cancelled: Callable[[], bool]) -> None:
        self._sides, self._cancelled = sides, cancelled
        self._turn = sides[0]
        """Whose turn it is."""

    def run(self, around: ExitStack) -> None:
        """Build, warm up and time both; their statuses say how it went. What must outlast both is left to `around`."""
        self._begin()
        try:
            around.enter_context(fresh_compiler(*(side.spec.compile for side in self._sides)))
            for side in self._sides:
                self._give(side)
                side.build(self._go_on)
                self._go_on()
            self._time()
        except Cancelled:
            for side in self._sides:
                side.status = "cancelled"
        except BaseException as error:
            if is_interrupt(error):
                raise
            self._turn.fail(error)
            self._end_other()

    def _begin(self) -> None:
        """Set threads once for both sides: setting them, even to what they are, changes how MKL shares out its work."""
        first, second = self._sides
        if first.spec.threads is not None:
            torch.set_num_threads(first.spec.threads)
        settings = read_settings()
        code = detach_user_modules() if first.spec.model_path != second.spec.model_path else None
        for side in self._sides:
            side.begin(settings, code)

    def _give(self, side: _RoundCell) -> None:
        """It is this side's turn, if it was not."""
        if side is not self._turn:
            self._turn.suspend()
            side.activate()
            self._turn = side
            forget_sizes()  # of the other side

    def _end_other(self) -> None:
        """The other side's steps have no partner any more."""
        failed = self._turn
        (other,) = (side for side in self._sides if side is not failed)
        how = "ran out of memory" if failed.status == "oom" else "failed"
        other.status, other.error = "failed", f"{failed.name} {how}, which ended the round"

    def _time(self) -> None:
        counts = tuple(side.spec.warmup_steps for side in self._sides)
        freeze_existing_objects()
        for side, count in zip(self._sides, counts, strict=True):
            if count:
                side.enter("warm-up")
        for number in range(max(counts)):
            self._time_pair(number, "warm-up", tuple(side for side in self._sides if number < side.spec.warmup_steps))
        for side in self._sides:
            self._give(side)
            side.begin_measuring()
        waiting, began = RunQueueMeter(), time.perf_counter()
        try:
            for number in range(self._sides[0].spec.measure_steps):
                self._time_pair(number, "measured", self._sides)
        finally:
            measured_for_s, waited = time.perf_counter() - began, waiting.read()
            for side in self._sides:
                side.end_measuring(measured_for_s, waited)
        for side in self._sides:
            self._give(side)
            side.report_remarks()
        self._turn.suspend()
        self._remark_threads()

    def _remark_threads(self) -> None:
        """Of models that set different numbers of threads themselves."""
        first, second = sorted(self._sides, key=lambda side: side.name)
        if first.threads != second.threads:
            for side in self._sides:
                side.reporter.notice(
                    f"{first.name} ran with threads {first.threads} and {second.name} with {second.threads}, set anew "
                    f"before each step: that changes how work is shared out, and each may be slower than alone"
                )

    def _time_pair(self, number: int, kind: StepKind, sides: tuple[_RoundCell, ...]) -> None:
        for side in sides if number % 2 == 0 else sides[::-1]:
            self._go_on()
            self._give(side)
            side.time_step(kind, number)
            collect_step_garbage()

    def _go_on(self) -> None:
        if self._cancelled():
            raise Cancelled
