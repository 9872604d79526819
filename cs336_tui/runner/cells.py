"""Runs cells and reports, each in a child of its own or in the calling thread, and records their events. Two cells in
turns run round after round; each round is one child process that times both."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from cs336_tui.config.order import rough_peak_bytes
from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.events.environment import DeviceInfo, Environment
from cs336_tui.events.prediction import COMMUNICATION, Prediction
from cs336_tui.events.reports import RankMemoryReport, ReportRequest
from cs336_tui.runner.child import IMPOSSIBLE
from cs336_tui.runner.device.sampler import DeviceSampler
from cs336_tui.runner.lanes import LaneFault, fault_of, in_lane
from cs336_tui.runner.launcher import Launcher, Rank, StartError
from cs336_tui.runner.machine import device_fault
from cs336_tui.runner.node_process import Work
from cs336_tui.runner.pipes import StopSignal, beside
from cs336_tui.runner.predictor import PredictionError, Predictor, SessionPredictions
from cs336_tui.runner.queue import CellQueue, WaitingCell, WaitingReport, unstarted
from cs336_tui.runner.ranks import RankFold, ReportFold, pace_of, run_here, run_ranks
from cs336_tui.runner.trust import Trust
from cs336_tui.session.log import FILES_SUFFIX, SessionRecorder
from cs336_tui.stats.quantities import gigabytes
from cs336_tui.worker import worker_entry

if TYPE_CHECKING:
    from cs336_tui.runner.nodes import Nodes

Predicted = Callable[[Sequence[Prediction]], object]
Record = Callable[[Sequence[ev.Event]], None]
_MAY_MATTER = 1 / 4  # the share of the memory, by a rough sum, from which on a prediction is made
_PREDICTED_WITHIN_S = 600.0
"""Limit of the prediction of a report, s, which a stop ends at once. One of fully sharded ranks takes 9 s of a core for
`tiny` and 28 s for `medium`, on a busy machine many times that. A user's own code has the predictor's limit."""


class CellRunner:
    """Runs cells and reports, a thread each; without a `launcher` in the calling thread. With `check_fit` a cell on the
    host that cannot fit by prediction is not tried. With `nvtx` steps, phases and parts are marked for profilers. Ranks
    for which one of the `nodes` has no room are spread over them. `timeout_s` limits the life of a process, as it is
    when the process starts."""

    def __init__(
        self,
        launcher: Launcher | None,
        recorder: SessionRecorder,
        watch: DeviceSampler,
        predictions: SessionPredictions,
        stop: StopSignal,
        trust: Trust,
        *,
        check_fit: bool,
        nvtx: bool,
        nodes: Nodes | None = None,
        timeout_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.launcher, self._recorder, self.watch = launcher, recorder, watch
        self._predictions, self.stop, self._trust = predictions, stop, trust
        self._check_fit, self._nvtx, self._nodes, self.timeout_s = check_fit, nvtx, nodes, timeout_s
        self.environment: Environment
        """This machine; set before anything runs."""
        self.ends: dict[int, ev.CellFinished] = {}
        """The last end of each cell that has not begun anew."""
        self._beside: set[int] = set()
        """Cells that run in lanes."""
        self.reports = 0
        """The number of the next report."""

    def run(self, cell: int, asked: CellSpec, lanes: Sequence[ev.Lane] = ()) -> LaneFault | None:
        """Run a cell to its end, in these `lanes`, one for each rank, if there are any. If it could not end because of
        a lane, returns that one: nothing is recorded as its end then."""
        spec, environment = in_lane(asked, lanes[0]) if lanes else asked, self.environment
        self.ends.pop(cell, None)
        on_a_node = self._nodes.ranks_here(spec, environment) if self._nodes and not lanes else None
        ranks_here = 1 if lanes else on_a_node  # its other ranks are in lanes of their own, or on other nodes
        work = Work(cell, spec, nvtx=self._nvtx)
        why = str(self._trust.refusal(spec) or environment.refusal(spec, ranks_here) or "")
        if self.launcher is None and spec.ranks > 1:
            why = why or f"{spec.ranks} ranks need processes of their own; leave out --in-process"
        if why:
            self.record([work.end("failed", why)])
            return None
        if why := self.why_not(spec):
            self.record([work.end("oom", why)])
            return None
        if on_a_node and self.launcher:
            self.record([ev.CellStarted(at=time.time(), cell=cell)])
            self._run_over(work)
            return None
        if self.launcher is None:
            self.record([ev.CellStarted(at=time.time(), cell=cell)])
            self.watch.point(environment.device(spec.device), os.getpid())
            worker_entry.run_cell(spec, cell, lambda event: self.record([event]), self.stop.is_set, nvtx=self._nvtx)
            self.watch.await_sample(self.stop)
            return None
        try:
            fault = self._run_in_children(self.launcher, work, asked, lanes)
            self.watch.await_sample(self.stop, cell if lanes else None)
            return fault
        finally:
            self.watch.leave(cell)
            self._beside.discard(cell)

    def _run_in_children(
        self, launcher: Launcher, work: Work, asked: CellSpec, lanes: Sequence[ev.Lane]
    ) -> LaneFault | None:
        """Run the cell in a process, or in one for each of its ranks."""
        cell, spec, started_at = work.number, work.spec, time.time()
        try:
            ranks = launcher.start_cell(cell, spec, nvtx=self._nvtx, lanes=lanes)
        except StartError as error:
            if lanes and not self.stop.is_set():
                return LaneFault(lanes[0].lane, str(error))
            self.record([work.end(self.status_unstarted(), str(error))])
            return None
        moved_to = spec.device if spec.device != asked.device else None
        pids = [rank.child.process.pid for rank in ranks]
        numbers = tuple(lane.lane for lane in lanes)
        self.record([ev.CellStarted(at=started_at, cell=cell, pid=pids[0], device=moved_to, lanes=numbers)])
        environment, others = self.environment, self.environment.others_of(spec)
        if lanes:
            others = tuple(found for lane in lanes[1:] if (found := environment.device(lane.device)))
            self._beside.add(cell)
        self.watch.point(environment.device(spec.device), *pids, others=others, cell=cell if lanes else None)
        ends: dict[int, ev.CellFinished] = {}  # until it is known if the end is the cell's
        record = _keeping(ends, self.record)
        pace_s = pace_of(max(1, len(self._beside)))  # each look costs
        run_here(ranks, [RankFold(cell, len(ranks))], record, self.stop, self.timeout_s(), pace_s=pace_s)
        device_why = partial(device_fault, launcher, stop=self.stop)
        if self.stop.is_set() or not (fault := fault_of(ends[cell], lanes, device_why)):
            self.record([ends[cell]])
            return None
        return fault

    def _run_over(self, work: Work) -> None:
        """Run a cell or make a report with its ranks spread over nodes, which sample their devices."""
        assert self._nodes is not None
        assert self.launcher is not None
        record = self._with_prediction if work.report else self.record
        with self.watch.elsewhere():
            try:
                spread = self._nodes.start(work, self.environment, self.launcher, self._sampled, self.stop)
            except StartError as error:
                record([work.end(self.status_unstarted(), str(error))])
                return
            with closing(spread.store):
                of_cell = RankFold(work.number, work.spec.ranks, spread.nodes)
                fold = ReportFold(work.number, spread.nodes) if work.report else of_cell
                run_ranks(spread.parts, [fold], record, self.stop, self.timeout_s())

    def _sampled(self, sample: ev.DeviceSampled) -> None:
        self._recorder.record([sample])

    def record(self, events: Sequence[ev.Event]) -> None:
        self._recorder.record([event for event in events if not isinstance(event, ev.CellMeasured)])
        for event in events:
            if isinstance(event, ev.CellFinished):
                self.ends[event.cell] = event
            if isinstance(event, ev.StageChanged) and event.stage == "finishing":
                self.watch.measured(event.cell if event.cell in self._beside else None)

    def why_not(self, *specs: CellSpec) -> str:
        """The reason not to try a cell, or two that take turns in one process; empty if there is none."""
        device = self.environment.device(specs[0].device)
        if not self._check_fit or device is None or len({spec.device for spec in specs}) > 1:
            return ""
        here = self._nodes.ranks_here(specs[0], self.environment) if self._nodes else None
        return why_not_tried(specs, device, self._predictions.predictor, self._predictions.tell, here)

    def make_report(self, asked: WaitingReport) -> None:
        """Make a report and record it; one of a cell that cannot fit is refused."""
        environment = self.environment
        device = environment.device(asked.spec.device)
        ending = None if asked.cell is None else self.ends.get(asked.cell)
        if ending and ending.status != "oom":
            ending = None
        request = ReportRequest(
            kind="rank-memory" if asked.spec.ranks > 1 and asked.kind == "memory" else asked.kind,
            spec=asked.spec,
            cell=asked.cell,
            folder=str(self._recorder.path.with_suffix(FILES_SUFFIX)),
            capacity_bytes=device.memory_bytes if device else None,
            failed_phase=ending.phase if ending else None,
            failed_request_bytes=ending.failed_allocation_bytes if ending else None,
        )
        number, self.reports = self.reports, self.reports + 1
        record, work = self._recorder.record, Work(number, asked.spec, request)
        started = ev.ReportStarted(at=time.time(), report=number, kind=asked.kind, spec=asked.spec, cell=asked.cell)
        if asked.kind in ("kernels", "memory") and (why := self.why_not(asked.spec)):
            record([started, work.end("oom", why)])
            return
        record([started])
        if why := self._trust.refusal(asked.spec):
            record([work.end("failed", why)])
            return
        if self._nodes and self.launcher and self._nodes.ranks_here(asked.spec, environment):
            self._run_over(work)
            return
        if self.launcher is None:
            self.watch.point(device, os.getpid())
            worker_entry.make_report(request, number, lambda event: record([event]), self.stop.is_set)
            return
        try:
            ranks = self.launcher.start_report(number, request)
        except StartError as error:
            record([work.end(self.status_unstarted(), str(error))])
            return
        pids = [rank.child.process.pid for rank in ranks]
        self.watch.point(device, *pids, others=environment.others_of(asked.spec))
        run_here(ranks, [ReportFold(number)], self._with_prediction, self.stop, self.timeout_s())

    def _with_prediction(self, events: Sequence[ev.Event]) -> None:
        """Record the events of a report; one of the memory of ranks gets its prediction, if there can be one."""
        for event in events:
            if isinstance(event, ev.ReportFinished) and isinstance(event.content, RankMemoryReport):
                event = msgspec.structs.replace(event, content=self._predicted(event.report, event.content))
            self._recorder.record([event])

    def _predicted(self, number: int, report: RankMemoryReport) -> RankMemoryReport:
        self._recorder.record([ev.ReportStage(at=time.time(), report=number, stage="predicting")])
        try:
            within_s = None if report.spec.brings_own_code else _PREDICTED_WITHIN_S
            (found,) = self._predictions.predictor.predict([report.spec], within_s=within_s)
            return msgspec.structs.replace(report, prediction=found)
        except PredictionError as error:
            note = " ".join(filter(None, (report.note, f"There is no prediction: {error.why}.")))
            return msgspec.structs.replace(report, note=note)

    def status_unstarted(self) -> ev.Status:
        """The status of what could not be started."""
        return "cancelled" if self.stop.is_set() else "failed"


def why_not_tried(
    specs: Sequence[CellSpec],
    device: DeviceInfo,
    predictor: Predictor,
    predicted: Predicted,
    ranks_here: int | None = None,
) -> str:
    """The reason why a cell, or two in turns, has no room on the device by prediction; empty if there is room, and on
    CUDA, where running out of memory does no harm. May take seconds for a prediction, also given to `predicted`. Of
    ranks over nodes `ranks_here` share the memory of one."""
    capacity = None if device.name.startswith("cuda") else device.memory_bytes
    ranks = 1 if specs[0].is_collective else ranks_here or max(spec.ranks for spec in specs)
    if capacity is None or ranks * sum(map(rough_peak_bytes, specs)) < capacity * _MAY_MATTER:
        return ""
    if specs[0].is_collective:
        needed, who = rough_peak_bytes(specs[0]), "its ranks need"
    else:
        try:
            found = predictor.predict(specs)
        except PredictionError as error:
            return f"not tried: {error}" if IMPOSSIBLE in str(error) else ""
        predicted(found)
        needed = ranks * (in_turns_bytes(*found) if len(found) == 2 else found[0].peak_bytes)
        who = "A and B together need" if len(found) == 2 else "it needs" if ranks == 1 else "its ranks need"
        who = f"by prediction {who}"
    if needed <= capacity:
        return ""
    return f"not tried: {who} {gigabytes(needed)} GB, and {device.name} has {gigabytes(capacity)} GB"


def kept_bytes(prediction: Prediction) -> int:
    """Bytes held between two steps: parameters, buffers, optimizer state; after a train-step gradients, too."""
    held = prediction.by_category
    gradients = held["parameters"] if prediction.spec.pass_ == "train-step" else 0
    return held["parameters"] + gradients + held["optimizer_state"] + held["buffers"] + held.get(COMMUNICATION, 0)


def in_turns_bytes(a: Prediction, b: Prediction) -> int:
    """The peak of two cells in turns: the larger of one's peak beside what the other holds, and the reverse."""
    return max(a.peak_bytes + kept_bytes(b), b.peak_bytes + kept_bytes(a))


BOTH_IN_MEMORY = "both models are in memory at once; `bench --repeats` and `compare` need one at a time"


def run_rounds(queue: CellQueue, cells: CellRunner, first: int = 1, *, apart: bool = False) -> None:
    """Run the waiting cells two by two, the first of them A, each two as a round, until none waits: in one process, or
    `apart` in one each. A begins in odd rounds, counted from `first`, B in even ones. When one ran out of memory, or a
    user's own code could not be built, the waiting rounds are skipped."""
    for number in itertools.count(first):
        a = queue.take()
        if not isinstance(a, WaitingCell):
            return
        b = queue.take()
        if not isinstance(b, WaitingCell):  # stopped between the two
            cells.record([unstarted(a.cell)])
            return
        endings = [*_run_round(a, b, cells, number % 2 == 0, apart)]
        for place, ending in enumerate(endings):
            if ending.status == "oom":
                error = f"{ending.error or 'out of memory'} ({BOTH_IN_MEMORY})"
                endings[place] = msgspec.structs.replace(ending, error=error)
        cells.record(endings)
        cells.watch.await_sample(cells.stop)
        reason = ""
        if names := [name for name, ending in zip("AB", endings, strict=True) if ending.status == "oom"]:
            reason = f"{' and '.join(names)} ran out of memory in round {number}"
        elif any(
            side.spec.brings_own_code and (ending.status, ending.stage) == ("failed", "building")
            for side, ending in zip((a, b), endings, strict=True)
        ):
            reason = f"what failed while it was built in round {number} would fail again"
        if reason:
            queue.skip(range(b.cell + 1, b.cell + 1 + len(queue)), reason)


def _run_round(
    a: WaitingCell, b: WaitingCell, cells: CellRunner, b_first: bool, apart: bool
) -> tuple[ev.CellFinished, ...]:
    """The ends of A and B."""
    if why := cells.why_not(a.spec):
        return _ended(a, "oom", why), _ended(b, "failed", "A was not tried")
    if why := cells.why_not(b.spec):
        return _ended(a, "failed", "B was not tried"), _ended(b, "oom", why)
    if why := cells.why_not(a.spec, b.spec):
        return _ended(a, "oom", why), _ended(b, "oom", why)
    started_at = time.time()
    assert cells.launcher is not None, "two cells in turns have a process"
    try:
        numbers = (a.cell, b.cell)
        start = cells.launcher.start_apart if apart else cells.launcher.start_round
        ranks = start(numbers, (a.spec, b.spec), b_first=b_first)
    except StartError as error:
        status = cells.status_unstarted()
        return _ended(a, status, str(error)), _ended(b, status, str(error))
    pids = [rank.child.process.pid for rank in ranks]
    pid_of = {cell: pids[side if apart else 0] for side, cell in enumerate(numbers)}
    cells.record([ev.CellStarted(at=started_at, cell=cell, pid=pid) for cell, pid in pid_of.items()])
    watched = (a if b.spec.device == "cpu" else b).spec
    environment = cells.environment
    cells.watch.point(environment.device(watched.device), *pids, others=environment.others_of(watched))
    ends: dict[int, ev.CellFinished] = {}
    record = _keeping(ends, cells.record)
    parts = list(zip(zip(ranks), zip(numbers), strict=True)) if apart else [(ranks, numbers)]

    def watch(ranks: Sequence[Rank], cells_there: Sequence[int]) -> None:
        folds = [RankFold(cell, len(ranks)) for cell in cells_there]
        run_here(ranks, folds, record, cells.stop, cells.timeout_s())

    with beside("side B", lambda _: watch(*parts[1])) if apart else nullcontext():
        watch(*parts[0])
    return ends[a.cell], ends[b.cell]


def _keeping(ends: dict[int, ev.CellFinished], record: Record) -> Record:
    """Records events but those of `ends`, of each cell, which are kept back there."""

    def keep(events: Sequence[ev.Event]) -> None:
        ends.update((event.cell, event) for event in events if isinstance(event, ev.CellFinished))
        if rest := [event for event in events if not isinstance(event, ev.CellFinished)]:
            record(rest)

    return keep


def _ended(side: WaitingCell, status: ev.Status, why: str) -> ev.CellFinished:
    return ev.CellFinished(at=time.time(), cell=side.cell, status=status, error=why)
