"""Runs cells and makes reports on a bench, or follows a session that others run, on threads of their own; talks to the
app by messages only."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from textual.message import Message

from cs336_tui.config.axis import UserError
from cs336_tui.config.choices import command_of
from cs336_tui.config.order import in_order, in_rounds, usual_order
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.environment import Environment
from cs336_tui.events.events import Event
from cs336_tui.events.peaks import DevicePeak, PeakError, PeakKey, WantedPeak
from cs336_tui.events.reports import ReportKind
from cs336_tui.runner.trust import Untrusted
from cs336_tui.tui.background import tried
from cs336_tui.tui.requests import RunOptions

if TYPE_CHECKING:
    from cs336_tui.config.tuned_sweep import Search
    from cs336_tui.runner.bench import Bench
    from cs336_tui.runner.jobs.bench import JobsBench
    from cs336_tui.runner.tuning import Tuner

    BenchFactory = Callable[["Sink", Path | None], Bench]
    """Makes the bench of a new session, or of the one with this log. It is given the sink for the bench's events."""

Sink = Callable[[Sequence[Event]], None]
Post = Callable[[Message], object]
_ROUNDS = 5
"""Of two cells in turns, as `cs336-tui ab` has it."""


@dataclass(eq=False, repr=False)
class Ended(Message):
    """A run is over, or the session of the log `watched` is not followed any more: for this problem, if there is one,
    or for code that the person has to be asked for."""

    problem: str | Untrusted = ""
    watched: Path | None = None


@dataclass(eq=False, repr=False)
class News(Message):
    """One line for the person, with a title; without one something outside any cell went wrong."""

    text: str
    title: str = ""


class PeakView(msgspec.Struct, frozen=True):
    """The peaks that the Roofline tab shows."""

    find: Callable[[PeakKey], DevicePeak | None]
    version: int
    """Changes when another peak is known."""
    here: Environment | None
    """The machine that peaks can be measured on now; None where this app measures none."""
    progress: str = ""
    """Progress of measuring, in words."""
    problem: str = ""
    """Why a peak could not be measured."""


class _Race(msgspec.Struct, frozen=True):
    """A race and how it goes on; None: there is none."""

    tuner: Tuner | None
    go: Callable[[], object]


_T = TypeVar("_T")
TellPeak = Callable[[WantedPeak, DevicePeak | PeakError], object]
"""Is told what came of a peak, on whichever thread measured it."""


class LiveSource:
    """Runs sweeps on a bench and never blocks its caller. What of `bench` returns at once may be called directly."""

    def __init__(self, bench: Bench, post: Post) -> None:
        self.bench, self._post = bench, post
        self._closing = threading.Lock()
        self._asking = threading.Lock()
        self._asked = 0
        """Runs asked for since the last stop that are not in the queue yet."""
        self._tuner: Tuner | None = None
        """The last race."""
        self._races = False
        """True while it goes on; it leaves the queue empty between its steps."""
        # The bench starts processes that inherit standard error; Textual's stand-in for it has no file descriptor.
        with contextlib.redirect_stderr(sys.__stderr__):
            bench.prepare()

    @property
    def busy(self) -> bool:
        """True if cells run or are about to."""
        return bool(self._asked) or self._races or self.bench.queue.busy or len(self.bench.queue) > 0

    def begin(self) -> None:
        """Read the machine."""

        def probe() -> None:
            try:
                environment = self.bench.probe()
                if not environment.devices and environment.problems:
                    self._post(News("; ".join(environment.problems)))
            except Exception as error:  # the person must hear of it, whatever it was
                self._post(News(f"this machine could not be examined: {error or type(error).__name__}"))

        thread("probe", probe)

    def run(self, sweep: Sweep, options: RunOptions) -> None:
        """Let the sweep's cells wait behind those that do, and run them; `Ended` is posted when all are over."""
        bench = self.bench
        self._use(sweep, options)

        def resolve() -> Callable[[], None]:
            resolved = bench.resolve(sweep)
            cells = in_rounds(in_order(resolved.cells(), usual_order(resolved.lanes)), options.repeats)
            command, lanes = command_of(resolved, bench.ddof), bench.lanes_of(resolved)
            return partial(bench.add, cells, command, resolved.reports, lanes=lanes)

        self._begin("run", resolve, lambda add: add())

    def race(self, search: Search, options: RunOptions) -> None:
        """Race the candidates of a search; `Ended` is posted when the race is over."""
        self._use(search.start, options)

        def resolve() -> _Race:
            from cs336_tui.analysis.shortlist import started_of
            from cs336_tui.config.tuned_sweep import command_of_search
            from cs336_tui.runner.predictor import predictions_of

            began, bench = time.monotonic(), self.bench
            tuning = search.tuning(bench.resolve(search.start).cells()[0])
            bench.trust.name(tuning)
            started = started_of(tuning, bench.probe(), partial(predictions_of, bench.predictor), began)
            tuner = self._new_tuner(began)
            return _Race(tuner, lambda: tuner.run(started, command_of_search(tuning)))

        self._begin("race", resolve, self._hold, then=self._drive)

    def turn(self, spec: CellSpec) -> None:
        """Time a cell of ranks in turns with the same without communication; `Ended` is posted when both are over."""
        from cs336_tui.analysis.effects import NO_COMMUNICATION
        from cs336_tui.export.subjects.data_parallel import in_turns_command

        silent, command = msgspec.structs.replace(spec, parallel=NO_COMMUNICATION), in_turns_command(spec)
        turns = partial(self.bench.run_ab, spec, silent, _ROUNDS, command)
        self._begin("turns", self.bench.probe, lambda _: None, then=lambda _: turns())

    def go_on_racing(self) -> None:
        """Go on with the race that was stopped, with the rest of its budget."""
        if (tuner := self._tuner) is not None:
            self._begin("race", lambda: _Race(tuner, tuner.go_on), self._hold, then=self._drive)

    def resume(self, *, races: bool = False, trusted: bool = False) -> None:
        """Run what the session that the bench was made for has no result of, and, if it `races`, the rest of its
        race. Unless `trusted`, no code that is not the current folder's own."""

        def show(imports: Sequence[object]) -> None:
            if imports:
                self._post(News(", ".join(map(str, imports)), "Imports"))

        def resume() -> _Race:
            tuner = self._new_tuner() if races else None
            self.bench.resume(trusted=trusted, show=show)
            return _Race(tuner, tuner.go_on if tuner else lambda: None)

        self._begin("run", resume, self._hold, self.bench.cancel, then=self._drive)

    def _use(self, sweep: Sweep, options: RunOptions) -> None:
        """Run with these options from now on."""
        bench = self.bench
        bench.ddof, bench.timeout_s, bench.skip_after_oom = options.ddof, options.timeout_s, sweep.oom_skip

    def _new_tuner(self, began: float | None = None) -> Tuner:
        from cs336_tui.analysis.next_step import next_step
        from cs336_tui.runner.tuning import Tuner

        return Tuner(self.bench, next_step, began=began)

    def _hold(self, race: _Race) -> None:
        """A stop from here on ends this race, which takes the place of the one before."""
        if self._tuner not in (None, race.tuner):
            self._tuner.close()
        self._tuner, self._races = race.tuner, race.tuner is not None

    def _drive(self, race: _Race) -> None:
        try:
            race.go()
        finally:
            self._races = False

    def ask(self, kind: ReportKind, spec: CellSpec, cell: int | None) -> None:
        """Have a report made before the next cell is run; `Ended` is posted when nothing waits any more."""
        self._begin("report", self.bench.probe, lambda _: self.bench.ask_report(kind, spec, cell))

    def measure_peaks(self, wanted: Sequence[WantedPeak], tell: TellPeak) -> None:
        """Have peaks measured before the next cell; `tell` is given each, on another thread. At the end: `Ended`."""

        def ask(_: object) -> None:
            for each in wanted:
                self.bench.ask_peak(each, partial(tell, each))

        def stopped() -> None:
            for each in wanted:
                tell(each, PeakError("it was stopped"))

        self._begin("peak", self.bench.probe, ask, stopped)

    def work(self) -> None:
        """Run what waits in the queue, if nobody does."""
        thread("run", lambda: self._work(lambda: None))

    def cancel(self) -> None:
        """Stop what runs and what waits, also what still waits for the machine to be read."""
        with self._asking:
            self._asked = 0
            if (tuner := self._tuner) is not None:
                tuner.stop()
            self.bench.cancel()

    def close(self) -> None:
        """End the run, its processes and the log; blocks up to 2 s. Safe to call twice and from any thread."""
        with self._closing:
            if (tuner := self._tuner) is not None:
                tuner.stop()
            self.bench.close()

    def _begin(
        self,
        name: str,
        prepare: Callable[[], _T],
        add: Callable[[_T], object],
        stopped: Callable[[], object] = lambda: None,
        then: Callable[[_T], object] = lambda _: None,
    ) -> None:
        """On a thread: call `prepare`, which may take long, `add` its result to the queue, `then` with it, which may
        take long too, and run what waits. A stop comes before `add`, and `stopped` is called instead, or after it and
        finds the cells in the queue."""

        def begin() -> None:
            try:
                prepared = prepare()
            except Exception:
                with self._asking:
                    was_stopped = not self._asked  # which may be why it failed
                    self._asked = max(self._asked - 1, 0)  # else it would be taken for a run that is about to begin
                if not was_stopped:
                    raise
                stopped()
                return
            with self._asking:
                if goes_on := bool(self._asked):
                    self._asked -= 1
                    add(prepared)
                else:
                    stopped()
            if goes_on:
                then(prepared)

        with self._asking:
            self._asked += 1
        thread(name, lambda: self._work(begin))

    def _work(self, begin: Callable[[], None]) -> None:
        def work() -> None:
            begin()
            self.bench.work()

        # After what nobody foresaw nobody is left to take what waits.
        self._post(Ended(_problem_of(work, "the run broke off", self.bench.cancel)))


def _problem_of(work: Callable[[], None], breaks: str, broken: Callable[[], object] = lambda: None) -> str | Untrusted:
    """Call `work`; what keeps it from its end, as the person must hear of it, whatever it was."""
    try:
        work()
    except Untrusted as refused:
        return refused
    except (UserError, OSError) as refused:
        return str(refused)
    except Exception as error:
        broken()
        return f"{breaks}: {type(error).__name__}: {error}"
    return ""


def thread(name: str, target: Callable[[], None]) -> None:
    """Start `target` as a daemon: a stuck one cannot keep the app from ending. What matters is ended by `close`."""
    threading.Thread(target=target, name=f"cs336-{name}", daemon=True).start()


class WatchSource:
    """Follows a session until it is over or this is closed, which changes nothing for the session. A session that
    nobody writes is written from here: the logs of its jobs are folded in."""

    def __init__(self, bench: JobsBench, post: Post) -> None:
        self.bench, self._post = bench, post
        self._closing = threading.Lock()

    def begin(self, *, resume: bool = False) -> None:
        """Follow it; with `resume` the cells without a result are submitted anew before."""
        thread("watch", lambda: self._work(resume=resume))

    def cancel(self) -> None:
        """Have its jobs cancelled; their ends are told as they come."""

        def cancel() -> None:
            if problem := tried(self.bench.cancel)[1]:
                self._post(News(problem))

        thread("cancel", cancel)

    def close(self) -> None:
        """Follow it no more; blocks up to some seconds. Safe to call twice and from any thread."""
        with self._closing:
            self.bench.close()

    def _work(self, *, resume: bool) -> None:
        def work() -> None:
            if resume:
                from cs336_tui.runner.jobs.job import JobRequest

                self.bench.resume(JobRequest(session=self.bench.session, job="", cells=()))
            else:
                self.bench.watch()
            self.bench.work()

        self._post(Ended(_problem_of(work, "the session cannot be followed"), self.bench.log_path))
