"""Verdicts, distance from the limit and energy of cells, worked out on a thread and in a process of its own: numpy,
which verdicts take, is a fifth of an app's memory.

The work takes milliseconds, so it waits while a cell is timed: what is in sight `WAIT_S` at most, of what is out of
sight one cell every `WAIT_S`.
"""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import msgspec
from textual.message_pump import MessagePump
from textual.timer import Timer

from cs336_tui.analysis.merge import Result
from cs336_tui.events.peaks import DevicePeak, PeakCache, PeakKey
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.tui.background import in_background

if TYPE_CHECKING:
    from cs336_tui.analysis.judgement import Judgement
    from cs336_tui.analysis.measures import Energy
    from cs336_tui.analysis.roofline import RooflinePoint

WAIT_S = 2.0
"""The longest that anybody waits for a judgement because a cell is timed."""
LEAST_PRIORITY = 19
"""Nice value of the thread that judges."""
TIMED = ("warm-up", "measuring")
"""Stages of a cell whose numbers would show a disturbance."""


class JudgeProcess:
    """Judges cells in a process of its own, which is started when it is needed and ends by itself when nothing was
    asked for a while, or when this process ends. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, unless it runs; returns at once."""
        with self._lock:
            self._running()

    def judge(self, cell: CellState, idle: float | None) -> Judgement | None:
        """As `verdicts.judge`, with its errors; OSError if there can be no such process, EOFError if it dies."""
        whole = copy.copy(cell)  # with its steps and samples read, without its former attempts
        _ = whole.times, whole.surroundings
        whole.earlier, whole.unread = [], None
        asked = pickle.dumps((whole, idle))
        with self._lock:
            try:
                answer = self._ask(asked)
            except (EOFError, BrokenPipeError):  # it had just ended
                answer = self._ask(asked)
        found, error = answer
        if error is not None:
            raise error
        return found

    def _ask(self, asked: bytes) -> tuple[Judgement | None, Exception | None]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(asked)
            process.stdin.flush()
            answer: tuple[Judgement | None, Exception | None] = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError):
            self._process = None
            raise
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "cs336_tui.analysis.verdicts"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
        return self._process


JUDGE = JudgeProcess()
"""The one of this process."""


class Assessment(NamedTuple):
    """Findings about one cell; of one that runs, the peak that its rate is compared with."""

    judgement: Judgement | None = None
    limit: RooflinePoint | None = None
    """None of a cell that is not measured, or whose work is not known."""
    energy: Energy | None = None
    flops: int | None = None
    """Of the timed phases of a step."""
    peak_flops_per_s: float | None = None
    """Measured on this device, else its data sheet's, for the precision in force."""
    peak_is_measured: bool = False
    problem: str = ""
    """Why nothing could be found out."""

    def share_of_peak(self, mean_s: float) -> float | None:
        if not (self.flops and self.peak_flops_per_s and mean_s > 0):
            return None
        return self.flops / mean_s / self.peak_flops_per_s


NOTHING = Assessment()
"""Of a cell of which there is nothing to find out: it has not begun, or did not end well."""


class _Known(msgspec.Struct, frozen=True):
    of: tuple[object, ...]
    """The state of the cell that it was worked out from."""
    version: int
    found: Assessment


class _Wish(msgspec.Struct, frozen=True):
    state: SessionState
    since: float
    frame: int


class Judging:
    """Assesses cells on a thread, one at a time: those in sight, the last asked for first, then those that ended out of
    sight; keeps what was found. `busy`: whether a cell is being timed; `changed` is called on the screen's thread when
    something was found."""

    def __init__(
        self, pump: MessagePump, busy: Callable[[], bool], changed: Callable[[], object], peaks: PeakCache | None = None
    ) -> None:
        self._pump, self._busy, self._changed = pump, busy, changed
        self.peaks = peaks or PeakCache()
        self.version = 0
        """Goes up when another peak is known."""
        self._known: WeakKeyDictionary[CellState, _Known] = WeakKeyDictionary()
        self._wishes: dict[CellState, _Wish] = {}
        self._ended: dict[CellState, SessionState] = {}
        self._ended_since = 0.0
        self._frame = 0
        self._working = self._scheduled = False
        self._timer: Timer | None = None

    def of(self, state: SessionState, cell: CellState) -> Assessment | None:
        """The assessment of a cell that is in sight; None while it is worked out."""
        of = _made_of(cell)
        if of is not None and not self._is_known(cell, of):
            earlier = self._wishes.pop(cell, None)
            self._wishes[cell] = _Wish(state, earlier.since if earlier else time.monotonic(), self._frame)
            self._go_on_soon()
        return self.known(cell)

    def known(self, cell: CellState) -> Assessment | None:
        """The same of a cell that is out of sight: nothing is worked out for it."""
        of = _made_of(cell)
        found = self._known.get(cell)
        return NOTHING if of is None else found.found if found and found.of == of else None

    @property
    def is_settled(self) -> bool:
        """True if all that was asked for is known."""
        return not (self._wishes or self._ended or self._working)

    def take_end(self, state: SessionState, cell: CellState) -> None:
        """Assess a cell that has ended, so that its row is judged when it comes into sight: as soon as nothing is
        timed, else one every `WAIT_S`."""
        if not self._ended:
            self._ended_since = time.monotonic()
        self._ended[cell] = state
        self.go_on()

    def next_frame(self) -> None:
        """The screen is painted anew: what it does not ask for again is wanted no more."""
        self._wishes = {cell: wish for cell, wish in self._wishes.items() if wish.frame == self._frame}
        self._frame += 1

    def take_peak(self, key: PeakKey, peak: DevicePeak) -> None:
        """Another peak was measured; what was found is held against it from now on."""
        self.peaks.put(key, peak)
        self.version += 1

    def get_ready(self) -> None:
        """Start the process that judges, if nothing is being timed, so that this need not be done between two cells."""

        def load() -> None:
            with suppress(OSError):  # the first judgement will say so
                JUDGE.start()
            import cs336_tui.analysis.judgement
            import cs336_tui.analysis.measures
            import cs336_tui.analysis.roofline  # noqa: F401

        if not self._busy():
            in_background(self._pump, load, lambda _: None)

    def go_on(self) -> None:
        """Work out the next one, if nothing stands against it."""
        self._scheduled = False
        while not self._working and (self._wishes or self._ended):
            since = min((wish.since for wish in self._wishes.values()), default=self._ended_since)
            if self._busy() and (left := since + WAIT_S - time.monotonic()) > 0:
                if self._timer is None:
                    self._timer = self._pump.set_timer(left, self._waited)
                return
            if self._wishes:
                cell = next(reversed(self._wishes))
                state = self._wishes.pop(cell).state
            else:
                cell, state = next(iter(self._ended.items()))
                self._ended_since = time.monotonic()
            self._ended.pop(cell, None)
            if (of := _made_of(cell)) is not None and not self._is_known(cell, of):
                self._working = True
                # A copy, so that the steps of a cell that was loaded are read on the thread, and let go there.
                work = partial(_assess_safely, state, copy.copy(cell), self.peaks)
                in_background(self._pump, work, partial(self._take, cell, of, self.version))

    def _is_known(self, cell: CellState, of: tuple[object, ...]) -> bool:
        known = self._known.get(cell)
        return known is not None and (known.of, known.version) == (of, self.version)

    def _go_on_soon(self) -> None:
        if not (self._scheduled or self._working):
            self._scheduled = True
            self._pump.call_later(self.go_on)

    def _waited(self) -> None:
        self._timer = None
        self.go_on()

    def _take(self, cell: CellState, of: tuple[object, ...], version: int, found: Assessment) -> None:
        self._working = False
        self._known[cell] = _Known(of, version, found)
        self._changed()
        self._go_on_soon()


def _made_of(cell: CellState) -> tuple[object, ...] | None:
    """The state that an assessment of the cell depends on; None where there is nothing to assess."""
    if cell.status == "ok" and cell.running.n:
        return "ended", id(cell.finished)
    if cell.status == "running" and cell.in_force is not None:
        return "runs", cell.started_at
    return None


def give_way() -> None:
    """Have this thread, which is not the screen's, run only when nobody else wants to: a cell may be measured."""
    if sys.platform == "linux":  # elsewhere it would be the whole process
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_PRIORITY)


def _assess_safely(state: SessionState, cell: CellState, peaks: PeakCache) -> Assessment:
    give_way()
    try:
        return assess(state, cell, peaks)
    except Exception as error:  # a number without a judgement must say so, whatever the reason
        return Assessment(problem=f"{type(error).__name__}: {error}")


def assess(state: SessionState, cell: CellState, peaks: PeakCache) -> Assessment:
    """Assess a cell that has ended, or that runs and whose model is built."""
    from cs336_tui.analysis.roofline import measured_ceiling, point_of, precision_in_force, sheet_ceiling, work_of
    from cs336_tui.events.peaks import peak_key

    result = Result(0, "", state, cell)
    work = work_of(result)
    found = Assessment(limit=point_of(result, peaks.get), flops=work.flops if work else None)
    environment, precision = cell.environment or state.environment, precision_in_force(cell)
    if environment and precision:
        threads = cell.in_force.threads if cell.in_force else cell.spec.threads
        peak = peaks.get(peak_key(environment, cell.spec.device, precision, threads))
        info = environment.device(cell.spec.device)
        ceiling = measured_ceiling(peak) if peak else sheet_ceiling(info, precision) if info else None
        rate = ceiling.flops_per_s if ceiling else None
        found = found._replace(peak_flops_per_s=rate, peak_is_measured=peak is not None)
    if cell.finished is None:
        return found
    from cs336_tui.analysis.kernels import profiled_idle
    from cs336_tui.analysis.measures import energy_of

    return found._replace(judgement=JUDGE.judge(cell, profiled_idle(state, cell.spec)), energy=energy_of(cell))
