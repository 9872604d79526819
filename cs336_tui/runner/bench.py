"""Runs a session of benchmarks for the app and the commands."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cs336_tui import __version__
from cs336_tui.config.choices import check_code
from cs336_tui.config.order import brings_as, check_sides, needs_at_least, rounds_of
from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.config.sweep import NO_OOM_SKIP, REPORTS_OF_RANKS, LaneCount, Sweep
from cs336_tui.config.values import NO_MODEL
from cs336_tui.events import events as ev
from cs336_tui.events.environment import Environment, capability_pair, without_impossible
from cs336_tui.events.peaks import DevicePeak, PeakError, WantedPeak
from cs336_tui.events.reports import ReportKind
from cs336_tui.runner.cells import CellRunner, run_rounds
from cs336_tui.runner.device.sampler import DeviceSampler
from cs336_tui.runner.lanes import lanes_again, lanes_of, pool_of
from cs336_tui.runner.launcher import Launcher, StartError
from cs336_tui.runner.machine import measure_peak, probe_machine
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.runner.predictor import SessionPredictions
from cs336_tui.runner.processes import end_scratch, make_scratch
from cs336_tui.runner.queue import CellQueue, Taken, Tell, WaitingCell, WaitingPeak, WaitingReport, why_unusable
from cs336_tui.runner.resume import WantedReports, check_imports, go_on, left_of
from cs336_tui.runner.trust import Import, Trust, Untrusted, check_log
from cs336_tui.session.log import LogError, LogReader, Recording, SessionRecorder, Sink, new_session_id

if TYPE_CHECKING:
    from cs336_tui.runner.nodes import Nodes


class Bench(Recording):
    """Owns the child processes, the device sampler and the session log; every event goes to `sink`, on worker threads,
    in order. `queue` holds what waits to run. Call `prepare` before a user interface takes over the terminal, `start`
    (or `probe`) when it has painted. `probe`, `add`, `resume` and `work` block; the others are for any thread.

    `session` names a log, new or to `resume`. `timeout_s` limits the life of a cell's process. After a cell that ran
    out of memory, `skip_after_oom` skips the waiting ones that need as much (None: unless the commands of the session
    to `resume` say otherwise), and `explain_oom` tries it again as a report. `check_fit` and `nvtx`: see `CellRunner`.
    `device_interval_s` 0 switches device sampling off. Ranks for which one of the `nodes` has no room are spread over
    these. With `in_process` cells run in the thread that calls `work`, for external profilers.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        session_dir: Path,
        session: str | None = None,
        ddof: int = 1,
        timeout_s: float | None = None,
        skip_after_oom: bool | None = None,
        explain_oom: bool = True,
        check_fit: bool = True,
        device_interval_s: float = 0.5,
        in_process: bool = False,
        nvtx: bool = False,
        nodes: Nodes | None = None,
    ) -> None:
        self.ddof = ddof
        self.timeout_s, limit_s = timeout_s, lambda: self.timeout_s
        self.skip_after_oom = skip_after_oom is not False
        self._skips_as_session = skip_after_oom is None
        self._explain_oom = explain_oom
        self._in_process = in_process
        self._recorder = SessionRecorder(session_dir, session or new_session_id(), sink)
        self._scratch = make_scratch()
        self.trust = Trust()
        """The code of users that may be imported: of the cells that are added or resumed, and what else is named."""
        self._stop = StopSignal()
        self._launcher = Launcher(
            self._scratch, lambda: self._closed or self._stop.is_set(), timeout_s=limit_s, trust=self.trust
        )
        self._predictions = SessionPredictions(self._launcher, self._recorder, self._capability_of, limit_s)
        self.predictor = self._predictions.predictor
        """For predictions that somebody waits for."""
        self._watch = DeviceSampler(self._on_sample, interval_s=device_interval_s)
        self.queue = CellQueue(self._recorder.record, self._stop)
        self._wanted = WantedReports()
        self._cells = CellRunner(
            None if in_process else self._launcher,
            self._recorder,
            self._watch,
            self._predictions,
            self._stop,
            self.trust,
            check_fit=check_fit,
            nvtx=nvtx,
            nodes=nodes,
            timeout_s=limit_s,
        )
        self._starting = threading.Lock()
        self._started = False
        self._probing = threading.Lock()
        self._running = threading.Lock()
        self._opening = threading.Lock()
        self._environment: Environment | None = None
        self.was_cancelled = False
        """True once `cancel` stopped something."""
        self._in_parts: threading.Event | None = None
        self._closed = False

    def prepare(self) -> None:
        """Do what needs the terminal's own standard streams; takes milliseconds."""
        if not self._in_process:
            self._launcher.prepare()

    def start(self) -> None:
        """Start the fork server and the device sampler; returns at once."""
        with self._starting:
            if self._started or self._closed:
                return
            self._started = True
            if not self._in_process:
                self._launcher.start()
            self._watch.start()

    def probe(self) -> Environment:
        """This machine's devices and versions; read once. Blocks about a second while torch loads."""
        self.start()
        with self._probing:
            if self._environment is None:
                environment = probe_machine(None if self._in_process else self._launcher)
                self._recorder.record([ev.EnvironmentRead(at=time.time(), environment=environment)])
                if not environment.devices:
                    return environment  # whatever went wrong may have passed when we are asked again
                self._recorder.say_once(*environment.faults)
                self._environment = environment
            return self._environment

    def _probe_for_cells(self) -> Environment:
        environment = self.probe()
        if not environment.devices:
            raise StartError("; ".join(environment.problems) or "torch finds no device here")
        return environment

    def resolve(self, sweep: Sweep, may_leave_out: Collection[str] = ()) -> Sweep:
        """The sweep with ``auto`` replaced by this machine's best device; with lanes, its devices are those that lanes
        share. Blocks like `probe`. Leaves out values of the fields in `may_leave_out` that no cell can have here, with
        a notice each; another one says that cells are alike. Raises the first `SpecError` of a cell that is wrong or
        impossible here, and `StartError` when no child process could be asked."""
        check_code(sweep, here=True)
        self.trust.name(sweep)
        environment = self._probe_for_cells()
        shared = sweep.lanes != 1
        devices = pool_of(sweep.devices, environment) if shared else environment.resolve(sweep.devices)
        resolved = sweep.with_devices(devices)
        if may_leave_out:
            resolved, said = without_impossible(resolved, environment, may_leave_out)
            self._recorder.pass_on([ev.Notice(at=time.time(), text=text) for text in said])
        if words := resolved.once_words:
            self._recorder.say_once(words)
        lanes = self.lanes_of(resolved)
        for spec in resolved.cells():
            environment.check(spec, 1 if lanes and spec.device != "cpu" else None)  # each rank is in a lane of its own
        return resolved

    def listen(self, sink: Sink) -> Callable[[], None]:
        """Pass the session's events to this sink, too, until the answer is called."""
        return self._recorder.listen(sink)

    def record(self, event: ev.Event) -> None:
        """Add an event to the session, whose log is opened for it. Raises `LogError`."""
        self._open_log(self.probe())
        self._recorder.record([event])

    def run(self, specs: Sequence[CellSpec], command: str) -> None:
        """Run the cells in order, and whatever waits; returns when all are over. Raises `LogError` if none can run."""
        self.add([(spec, 1) for spec in specs], command)
        self.work()

    def run_ab(self, a: CellSpec, b: CellSpec, rounds: int, command: str | None = None, *, first: int = 1) -> None:
        """Run two cells in turns, a fresh process a round, with rounds numbered from `first`. Raises like `run`, and
        `SpecError` if they cannot."""
        check_sides(a, b)
        self.add(rounds_of(a, b, rounds, first), command, in_turns=True)
        self._work(partial(run_rounds, self.queue, self._cells, first))

    def run_apart(self, a: CellSpec, b: CellSpec, command: str, left_s: Callable[[], float]) -> None:
        """As `run_ab`, with a process for each cell: one round, and others while more seconds are `left_s` than the
        longest took. Cells are stopped when they are over, or after half a minute."""
        check_sides(a, b)
        stopped, longest_s, limit_s = threading.Event(), 0.0, self.timeout_s
        with self.in_parts(stopped):
            for number in itertools.count(1):
                began = time.monotonic()
                if stopped.is_set() or ((rest_s := left_s()) <= longest_s and number > 1):
                    return
                self.timeout_s = min(filter(None, (limit_s, max(rest_s, 30.0))))
                self.add([(a, number), (b, number)], None if longest_s else command, in_turns=True)
                self._work(partial(run_rounds, self.queue, self._cells, number, apart=True))
                longest_s = max(longest_s, time.monotonic() - began)

    def lanes_of(self, sweep: Sweep) -> tuple[ev.Lane, ...]:
        """The lanes in which a resolved sweep asks to be run; none for one after the other. Raises `SpecError`."""
        return lanes_of(sweep.lanes, sweep.devices, sweep.cells())

    def add(
        self,
        cells: Sequence[tuple[CellSpec, int]],
        command: str | None = None,
        reports: tuple[str, ...] = (),
        *,
        lanes: Sequence[ev.Lane] = (),
        numbers: Sequence[int] | None = None,
        in_turns: bool = False,
    ) -> None:
        """Queue cells, each with the number of the run of its spec, from 1, under these `numbers` if given; `reports`
        are made of those that end well, when none waits or runs any more. They run in `lanes`, unless others run
        already. `in_turns` is for `run_ab` and `run_apart`. Raises like `run`."""
        if self._closed:
            return
        self.trust.name(*(spec for spec, _ in cells))
        self._open_log(self.probe())
        self.queue.use(lanes)
        numbers = self.queue.add(
            cells, command=command, ddof=self.ddof, reports=reports, numbers=numbers, in_turns=in_turns
        )
        self._wanted.want(numbers, reports)
        self._predictions.add(spec for spec, _ in cells)

    def ask_report(self, kind: ReportKind, spec: CellSpec, cell: int | None = None) -> None:
        """Queue a report, made before the next cell, perhaps about `cell`. Raises like `add` and `resolve`."""
        if self._closed:
            return
        environment = self._probe_for_cells()
        environment.check(spec)
        if spec.is_collective:
            raise SpecError("workload", spec.workload, f"{NO_MODEL}, so there is no report of {kind}")
        if spec.ranks > 1 and kind not in REPORTS_OF_RANKS:
            raise SpecError("ranks", spec.ranks, f"a report of {kind} is of one rank; choose --ranks 1")
        if spec.accumulate > 1:
            raise SpecError("accumulate", spec.accumulate, f"a report of {kind} is of one batch; choose 1")
        self._open_log(environment)
        if kind != "agreement":  # which needs less than the cell that it is of
            self._predictions.add([spec])
        self.queue.ask(WaitingReport(kind, spec, cell))

    def ask_peak(self, wanted: WantedPeak, tell: Tell) -> None:
        """Queue a device's peak, which `work` measures before the next cell; `tell` is called on another thread."""
        self.queue.ask(WaitingPeak(wanted, tell))
        if self._closed:
            self.queue.cancel()

    def predict(
        self, specs: Sequence[CellSpec], elsewhere: Sequence[CellSpec] = (), capability: tuple[int, int] | None = None
    ) -> None:
        """Predict these instead of what was asked before, while no cell or report runs; sends `CellsPredicted`. First
        those for a GPU `elsewhere`, of this compute capability."""
        self.start()
        self.predictor.ask(specs, elsewhere, capability)

    def predict_now(self, specs: Iterable[CellSpec], say: Callable[[str], object] = lambda _: None) -> None:
        """Predict waiting cells; returns when all is known that can be, or none waits any more."""
        self._predictions.work_out(specs, lambda: len(self.queue) > 0, say)

    def predict_afterwards(self, specs: Iterable[CellSpec]) -> None:
        """Predict cells that have run, in seconds each at most, for the FLOPs beside their times; not `in_process`."""
        if not self._in_process:
            self._predictions.work_out_afterwards(specs)

    def work(self, refuse: Callable[[CellSpec], str] = lambda _: "") -> None:
        """Run what waits until nothing does; returns at once when another thread is at it. `refuse` is asked before
        each cell: a text is the reason to skip it."""
        self._work(partial(self._run_all, refuse))

    def _work(self, run: Callable[[], None]) -> None:
        if self._closed or not self.queue.claim():
            return
        try:
            with self._running:
                self._cells.environment = self.probe()
                self.predictor.hold()
                try:
                    run()
                    self._watch.point(None, None)
                finally:
                    self.predictor.go_on()
        except BaseException:
            self.queue.leave()
            raise

    def _run_all(self, refuse: Callable[[CellSpec], str]) -> None:
        taken: Taken | None = None
        beside: list[threading.Thread] = []
        broken: list[BaseException] = []
        try:
            while (taken := self.queue.take(self._wanted.take)) is not None and not broken:
                if isinstance(taken, WaitingReport):
                    self._cells.make_report(taken)
                elif isinstance(taken, WaitingPeak):
                    taken.tell(self._peak(taken.wanted))
                elif why := refuse(taken.spec):
                    self._recorder.record([ev.CellSkipped(at=time.time(), cell=taken.cell, reason=why)])
                    self.queue.over(taken)
                elif not taken.lanes:
                    self._run_cell(taken)
                else:
                    beside = [thread for thread in beside if thread.is_alive()]
                    name = f"lane-{taken.lanes[0].lane}"
                    beside.append(threading.Thread(target=self._run_in_lanes, args=(taken, broken), name=name))
                    beside[-1].start()
        except BaseException:
            self._stop.set()
            raise
        finally:
            for thread in beside:
                thread.join()
            if isinstance(taken, WaitingCell):
                self.queue.over(taken)  # if it was not begun
        if broken:
            raise broken[0]

    def _peak(self, wanted: WantedPeak) -> DevicePeak | PeakError:
        try:
            return measure_peak(self._launcher, *wanted, stop=self._stop)
        except PeakError as error:
            return error

    def _run_in_lanes(self, taken: WaitingCell, broken: list[BaseException]) -> None:
        """Run a cell beside others; its lanes are free then. An error goes to `broken`, and stops all."""
        try:
            self._run_cell(taken)
        except BaseException as error:
            broken.append(error)
            self._stop.set()
        finally:
            self.queue.over(taken)

    def _run_cell(self, taken: WaitingCell) -> None:
        fault = self._cells.run(taken.cell, taken.spec, taken.lanes)
        if fault is not None:
            self.queue.set_aside(fault.lane, fault.reason, taken.cell)
            return
        end = self._cells.ends[taken.cell]
        if end.status == "ok":
            self._wanted.ended_well(taken.cell, taken.spec)
        ran_out = end.status == "oom"
        explains = self._explain_oom and not (self._in_process or self._in_parts)
        if ran_out and explains and taken.spec.ranks == taken.spec.accumulate == 1:
            explanation = WaitingReport("oom", taken.spec, taken.cell)
            if taken.lanes:  # which would stand still for it
                self._wanted.later(explanation)
            else:
                self.queue.ask(explanation)
        if end.unusable:
            alike = partial(brings_as, code=end.unusable, other=taken.spec)
            self.queue.skip_if(alike, why_unusable(end.unusable, taken.cell))
        # Without what other processes held it might have had room.
        if ran_out and self.skip_after_oom and (end.others_bytes or 0) < (end.failed_allocation_bytes or 1):
            reason = f"cell {taken.cell + 1} ran out of memory, and this one needs at least as much"
            self.queue.skip_if(lambda spec: needs_at_least(spec, taken.spec), reason)

    def resume(
        self,
        sink: Sink | None = None,
        *,
        failed: bool = False,
        take_over: bool = False,
        checked: bool = True,
        lanes: LaneCount | None = None,
        trusted: bool = False,
        show: Callable[[Sequence[Import]], object] = lambda _: None,
    ) -> tuple[int, ...]:
        """Go on with the session's log, whose events go to `sink`, if given; returns the cells that now wait: those
        without a result, and with `failed` those that failed or were killed. Raises `LogError` when the log cannot be
        read or another process writes it, and like `resolve`; then the log is unchanged. Unless `checked`, a cell that
        this machine cannot run fails when its turn comes. They run in so many `lanes`; None: as the session did.
        `show` is given all that they will import. Raises `Untrusted` if some of it is not the current folder's own,
        unless it is `trusted`."""
        if not trusted:
            check_imports(self.session, self.log_path, failed=failed)
        environment = self._probe_for_cells()
        with self._opening:
            if self._closed:
                return ()
            self._recorder.open(resume=True, take_over=take_over)
            try:
                history = list(LogReader(self.log_path))
                state, went_on = go_on(
                    history, self.log_path, environment, failed=failed, now=time.time(), checked=checked
                )
                opened = lanes_again(state, environment, lanes)
                to_run = [*left_of(state), *self._wanted.restore(state)]
                show(check_log(self.session, to_run, trusted=trusted))
            except (LogError, SpecError, Untrusted):
                self._recorder.close()
                raise
            everything = [*(cell.asked_spec for cell in state.cells.values()), *to_run]
            self.trust.name_log(everything, trusted=trusted)
            self.ddof = state.ddof
            if self._skips_as_session:
                self.skip_after_oom = not any(NO_OOM_SKIP in command.split() for command in state.commands)
            self._cells.reports = max(state.reports, default=-1) + 1
            self._predictions.restore(state)
            endings = (cell.finished for cell in state.cells.values() if cell.finished and cell.status == "oom")
            self._cells.ends |= {ending.cell: ending for ending in endings}
            (sink or self._recorder.pass_on)(history)
            self._recorder.record(went_on)
            self.queue.restore(state)
            self.queue.use(opened)
            return tuple(state.waiting)

    def annotate(self, *, name: str | None = None, note: str | None = None) -> None:
        """Give the session a name or a note; None leaves what was, an empty text takes it away."""
        self._recorder.record([ev.SessionAnnotated(at=time.time(), name=name, note=note)])

    @contextmanager
    def in_parts(self, stopped: threading.Event) -> Iterator[None]:
        """While entered the bench is at work, also between the parts that the caller queues, and explains no cell that
        runs out of memory; `cancel` and `close` set `stopped`."""
        self._in_parts = stopped
        if self._closed:
            stopped.set()
        try:
            yield
        finally:
            self._in_parts = None

    @property
    def is_at_work(self) -> bool:
        """True if there is something that `cancel` would stop."""
        return self._in_parts is not None or self.queue.busy or len(self.queue) > 0

    def stop_running(self) -> None:
        """Stop the cell or report that runs; what waits goes on."""
        self.queue.stop_running()
        self.predictor.stop()

    def cancel(self) -> bool:
        """Stop the running cell within 2 s, and run none that waits; False when there was neither."""
        self._wanted.forget()
        if parts := self._in_parts:
            parts.set()
        stopped = self.queue.cancel() or parts is not None
        self.predictor.stop()
        self.was_cancelled |= stopped
        return stopped

    def close(self, *, interrupted: bool = False) -> None:
        """End everything: the running cell, the sampler, the log. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._in_parts:
            self._in_parts.set()
        with ExitStack() as ending:
            # Called last to first, all of them even if a watcher that is gone raises.
            ending.callback(end_scratch, self._scratch)
            ending.callback(self._stop.close)
            ending.callback(self._close_log, interrupted=interrupted)
            ending.callback(self._watch.stop)
            ending.callback(self._await_running)
            ending.callback(self.predictor.close)
            ending.callback(self._close_queue)

    def _close_queue(self) -> None:
        self.was_cancelled |= self.queue.close()

    def _await_running(self) -> None:
        with self._running:
            pass

    def _close_log(self, *, interrupted: bool) -> None:
        with self._opening:  # nobody opens the log after that
            try:
                if self._recorder.is_open:
                    over: Literal["cancelled", "finished"] = "cancelled" if self.was_cancelled else "finished"
                    reason = "interrupted" if interrupted else over
                    self._recorder.record([ev.SessionEnded(at=time.time(), reason=reason)])
            finally:
                self._recorder.close()

    def _open_log(self, environment: Environment) -> None:
        with self._opening:
            if not (self._recorder.is_open or self._closed):
                self._recorder.open()
                now = time.time()
                started = ev.SessionStarted(at=now, schema=ev.SCHEMA, session=self.session, app=__version__)
                self._recorder.record([started, ev.EnvironmentRead(at=now, environment=environment)])

    def _capability_of(self, spec: CellSpec) -> tuple[int, int] | None:
        device = self._environment.device(spec.device) if self._environment else None
        return capability_pair(device.capability) if device and device.capability else None

    def _on_sample(self, sample: ev.DeviceSampled) -> None:
        # The log keeps samples of runs only.
        (self._recorder.record if self.queue.running else self._recorder.pass_on)([sample])
        if sample.why and sample.gpu is not None:  # of a GPU that was there
            self._recorder.say_once(sample.why)
