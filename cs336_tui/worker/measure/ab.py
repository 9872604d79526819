"""Runs one A/B round: build two cells, warm both up, then time a step of one and a step of the other in turns."""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import msgspec
import torch

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Status, StepKind
from cs336_tui.worker.measure import settings
from cs336_tui.worker.measure.cell import CellRun, measured
from cs336_tui.worker.measure.failures import Cancelled, IsCancelled
from cs336_tui.worker.measure.preparing import fresh_compiler
from cs336_tui.worker.measure.reporter import Emit
from cs336_tui.worker.ranks import ALONE, ENDED_THE_ROUND, Place
from cs336_tui.worker.workload.building import threads_of
from cs336_tui.worker.workload.compile_and_capture import forget_sizes
from cs336_tui.worker.workload.import_problems import raise_interrupt
from cs336_tui.worker.workload.imported_modules import UserModules, attach_user_modules, detach_user_modules


def run_round(
    specs: tuple[CellSpec, CellSpec],
    cells: tuple[int, int],
    emit: Emit,
    cancelled: IsCancelled,
    *,
    b_first: bool = False,
    place: Place = ALONE,
) -> None:
    """Run A and B here, both in memory at once, and pass their events to `emit`, outside timed regions.

    Of several ranks, each calls it with its `place`: both cells are then of one process group, each is compared with
    one process before either is built, and each step begins at a barrier.

    Each cell starts with torch's settings as they are here, and has at each turn those that its own turn before left.
    If the cells use different folders of user code, each has its own modules and path at its turns, so that they may be
    two versions of one package.

    Steps come in pairs, A B, B A and so on, or B A first with `b_first`; the cell that begins is also built, compiled
    and captured first. Code that both share is compiled once, each for its own sizes. Warm-up steps alternate likewise.
    Every step is synchronised on its own. Each cell has the events of `worker.measure.cell.run_cell`, interleaved; the
    two `CellFinished` come last. Memory peaks, which would be of both, are None; `measured_for_s` and `cpu_wait_s` are
    of both.

    A cell that runs out of memory or fails ends the round; the other is then ``failed`` and names it. Both specs must
    have the same number of measured steps, or time for them, and sync ``each-step``; no count may be automatic.
    """
    a, b = (_RoundCell(name, spec, cell, emit, place) for name, spec, cell in zip("AB", specs, cells, strict=True))
    b.group = a.group
    with settings.restored_settings(), settings.no_garbage_collection(), ExitStack() as around:
        _Round((b, a) if b_first else (a, b), cancelled).run(around)
        if place.ranks > 1:  # before the rest, which may wait for a rank that has failed
            _report_ends(a, b)
        for side in (a, b):
            side.release()
    if place.ranks == 1:
        _report_ends(a, b)
    elif a.status == b.status == "ok":
        a.group.leave()


def _report_ends(*sides: _RoundCell) -> None:
    for side in sides:
        side.finish()
    for side in sides:
        side.reporter.finished(side.status, side.error, side.peaks, with_memory=False)


class _RoundCell(CellRun):
    def __init__(self, name: str, spec: CellSpec, cell: int, emit: Emit, place: Place) -> None:
        super().__init__(spec, cell, emit, place)
        self.name = name
        self.status: Status = "ok"
        self.error: str | None = None
        self.settings: settings.Settings = {}
        self.modules: UserModules | None = None  # Between two turns; None if both cells use the same folders
        self._sums_s: dict[StepKind, float] = {"warm-up": 0.0, "measured": 0.0}
        self._is_finishing = False
        self._lost: list[str] = []  # Names of settings that could not be restored at one of its turns

    def suspend(self) -> None:
        """End its turn: keep its settings and modules."""
        self.settings = settings.read_settings()
        if self.modules is not None:
            self.modules = detach_user_modules()

    def activate(self) -> None:
        """Begin its turn: restore its settings and modules."""
        if lost := [name for name in settings.restore(self.settings) if name not in self._lost]:
            self._lost += lost
            self.reporter.notice(f"torch's settings could not be restored: {', '.join(lost)}")
        if self.modules is not None:
            attach_user_modules(self.modules)

    def finish(self) -> None:
        """End the measurement, once: later work counts neither to the times nor to the samples."""
        if not self._is_finishing:
            self._is_finishing = True
            self.reporter.enter("finishing")

    def time_step(self, kind: StepKind, number: int) -> None:
        assert self.timer is not None
        if self.reporter.recompilations:
            self.reporter.recompilations.step_begins()
        timed = self.timer.time()
        self._sums_s[kind] += timed.total_s
        self.reporter.reach(number + 1)
        self.report_steps(kind, number, [timed])

    def lacks(self, kind: StepKind) -> bool:
        """True if it has fewer steps of this kind than its spec asks for, or they did not come to its time yet, by that
        of the first rank."""
        is_warmup = kind == "warm-up"
        most = self.spec.warmup_steps if is_warmup else self.spec.measure_steps
        for_s = self.spec.warmup_for if is_warmup else self.spec.steps_for
        done = len(self.reporter.times_s[kind])
        if done >= most or for_s is None or not done:
            return done < most
        return self.group.agree(self._sums_s[kind] < for_s)

    def release(self) -> None:
        super().release()
        self.modules = None


class _Round:
    """Both cells, in the order in which they begin."""

    def __init__(self, sides: tuple[_RoundCell, _RoundCell], cancelled: IsCancelled) -> None:
        self._sides, self._cancelled = sides, cancelled
        self._turn = sides[0]  # The cell whose turn it is

    def run(self, around: ExitStack) -> None:
        """Build, warm up and time both; sets their statuses. Contexts that must outlast both go to `around`."""
        self._begin()
        try:
            around.enter_context(fresh_compiler(*(side.spec.compile for side in self._sides)))
            around.enter_context(self._turn.group.joined(self._turn.spec.backend_in_use))
            for side in self._sides:
                self._give_turn(side)
                side.reporter.enter("building")
                # Threads are set once for both cells, in `_begin`; one rank sets none by itself.
                side.check_ranks(msgspec.structs.replace(side.spec, threads=None, ranks=1))
                self._go_on()
            for side in self._sides:
                self._give_turn(side)
                written = side.build(msgspec.structs.replace(side.spec, threads=None, ranks=1))
                self._go_on()
                side.prepare(written, self._go_on)
                self._go_on()
            self._time()
        except Cancelled:
            for side in self._sides:
                side.status = "cancelled"
        except BaseException as error:
            raise_interrupt(error)
            self._end(error)

    def _begin(self) -> None:
        """Set threads once for both cells: setting them, even to the same number, changes how MKL shares its work."""
        first, second = self._sides
        if (threads := threads_of(first.spec)) is not None:
            torch.set_num_threads(threads)
        found = settings.read_settings()
        modules = detach_user_modules() if first.spec.model_path != second.spec.model_path else None
        for side in self._sides:
            side.settings, side.modules = found, modules

    def _give_turn(self, side: _RoundCell) -> None:
        if side is not self._turn:
            self._turn.suspend()
            side.activate()
            self._turn = side
            forget_sizes()  # of the other cell

    def _end(self, error: BaseException) -> None:
        """End the round with the error of one cell: the other's steps have no partner any more."""
        failed = self._turn
        failed.status, failed.error = failed.reporter.failed(error, failed.step)
        (other,) = (side for side in self._sides if side is not failed)
        how = "ran out of memory" if failed.status == "oom" else "failed"
        other.status, other.error = "failed", f"{failed.name} {how}, {ENDED_THE_ROUND}"

    def _time(self) -> None:
        settings.freeze_existing_objects()
        for side in self._sides:
            if side.spec.warmup_steps:
                side.reporter.enter("warm-up")
                side.reporter.reach(0)
        for number in itertools.count():
            if not (warming := tuple(side for side in self._sides if side.lacks("warm-up"))):
                break
            self._time_pair(number, "warm-up", warming)
        for side in self._sides:
            self._give_turn(side)
            side.begin_measuring()
            side.reporter.reach(0)
        try:
            with measured(*self._sides):
                for number in itertools.count():
                    if not any(side.lacks("measured") for side in self._sides):
                        break
                    self._time_pair(number, "measured", self._sides)
        finally:
            for side in self._sides:
                side.read_peaks()
        for side in self._sides:
            side.close_books()
        for side in self._sides:
            self._give_turn(side)
            side.report_changed_settings("while it was measured")
            side.report_remarks()
            side.report_spill()
            side.finish()
        for side in self._sides:
            self._give_turn(side)
            side.audit(with_memory=False)
        self._turn.suspend()
        a, b = (int(side.settings["threads"]) for side in sorted(self._sides, key=lambda side: side.name))
        if a != b:  # the models set them themselves
            for side in self._sides:
                side.reporter.notice(
                    f"A ran with threads {a} and B with {b}, set anew "
                    f"before each step: that changes how work is shared out, and each may be slower than alone"
                )

    def _time_pair(self, number: int, kind: StepKind, sides: tuple[_RoundCell, ...]) -> None:
        for side in sides if number % 2 == 0 else sides[::-1]:
            self._go_on()
            self._give_turn(side)
            side.time_step(kind, number)
            settings.collect_step_garbage()

    def _go_on(self) -> None:
        if self._cancelled():
            raise Cancelled
