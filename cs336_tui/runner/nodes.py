"""Cells whose ranks are spread over the nodes of an allocation: ``srun`` starts a process on each for the cell, which
starts the ranks there (`serve`). It gets its part of the work in a line, and tells words in lines."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.environment import Environment, RankSample
from cs336_tui.events.events import CellFinished, DeviceSampled, Event, ReportFinished, StageChanged, Status
from cs336_tui.runner.child import Answer, store
from cs336_tui.runner.device.sampler import DeviceSampler
from cs336_tui.runner.launcher import STOPPED_BY_USER, Child, Launcher, Rank, StartError
from cs336_tui.runner.machine import probe_machine
from cs336_tui.runner.node_process import ASK, SILENT_S, STOP, Lifeline, Node, NodeLost, NodeProcess, Word, Work
from cs336_tui.runner.pipes import StopSignal, last_line
from cs336_tui.runner.processes import end_scratch, make_scratch
from cs336_tui.runner.ranks import NODE_LOST, Note, RankHere, here, pace_of, stuck_in
from cs336_tui.runner.supervise import NO_ANSWER, POLITE_S, TERM_S, Stuck
from cs336_tui.stats.quantities import counted
from cs336_tui.worker.worker_entry import Place

START_S, START_AGAIN_S = 300.0, 60.0
"""Seconds in which a node's process starts, and in which it does once the node was lost: torch from a cold network file
system takes minutes."""
STORE_S = 60.0
"""Seconds in which the store answers."""
LOSSES = 2
"""A node that was lost so often is left out."""
ENDING_S = 5.0
"""Seconds in which a node may tell the end of ranks that were to be ended."""


class RanksThere:
    """The ranks of a cell or report on a node. `sampled` is given what the node samples; `losses` are the reasons of
    the node's losses since it last did its work."""

    def __init__(
        self, process: NodeProcess, work: Work, sampled: Callable[[DeviceSampled], None], losses: list[str]
    ) -> None:
        self._process, self._work, self._sampled, self._losses = process, work, sampled, losses
        self._answered = threading.Event()
        self._stuck: list[Stuck] = []
        self._owed = set(work.ranks)

    def watch(self, note: Note, stop: StopSignal, pace_s: float) -> None:  # noqa: ARG002  # the node has its own
        """Block until all its ranks have told their end, or the node is lost."""
        self._process.expect_word(SILENT_S)
        self._process.give(msgspec.json.encode(self._work))
        status: Status = "killed"
        try:
            while not self._hear(note, None if self._process.is_ending else stop):
                if stop.is_set() and not self._process.is_ending:
                    status = "cancelled"
                    self._process.give(STOP)
                    self._process.expect_end(POLITE_S + TERM_S + ENDING_S)
            why, status = "it reported no end", "failed"
        except NodeLost as error:
            why = f"{NODE_LOST}: {error}"
            self._process.close(NodeProcess.ANSWER_S)
            if self._owed and not self._process.is_ending:
                self._losses.append(str(error))
            elif self._process.is_ending:
                why = STOPPED_BY_USER if status == "cancelled" else f"ended with the others: {error}"
        else:
            self._losses.clear()
        for rank in sorted(self._owed):
            note(rank, [self._work.end(status, why)])

    def _hear(self, note: Note, stop: StopSignal | None) -> bool:
        """Hear the next words; True once all is over. Raises `NodeLost`."""
        words = self._process.hear(stop)
        by_rank: dict[int, list[Event]] = {}
        for word in words:
            if word.stuck is not None:
                self._stuck = [*word.stuck]
                self._answered.set()
            event = word.content
            if isinstance(event, DeviceSampled):
                self._sampled(event)
            elif event is not None and word.rank is not None:
                by_rank.setdefault(word.rank, []).append(event)
                if isinstance(event, CellFinished | ReportFinished):
                    self._owed.discard(word.rank)
        for rank, events in by_rank.items():
            note(rank, events)
        return any(word.over for word in words)

    def kill(self) -> None:
        self._process.expect_end(ENDING_S)
        self._process.hang_up()

    def ask(self) -> None:
        self._answered.clear()
        self._process.give(ASK)

    def stuck(self, until: float) -> list[Stuck]:
        self._answered.wait(max(0.0, until + NodeProcess.ANSWER_S - time.monotonic()))
        answered = {each.rank for each in self._stuck}
        return self._stuck + [Stuck(rank, True, NO_ANSWER) for rank in sorted(self._owed - answered)]

    def clear(self) -> None:
        self._process.close(ENDING_S)


class Spread(NamedTuple):
    """The ranks of a cell or report on their nodes, the node of each rank by name, and the store in which they meet, to
    be closed after them."""

    parts: tuple[RanksThere, ...]
    nodes: tuple[str, ...]
    store: Child


class Nodes:
    """The nodes of an allocation, all alike, first that of this process. `command` starts the process on a node that
    starts its ranks. A node has room for as many ranks as it has GPUs, on a CPU `cores` (None: as this machine has) for
    their threads, and at most `most`."""

    def __init__(
        self,
        nodes: Sequence[Node],
        command: Callable[[Node], Sequence[str]],
        *,
        cores: int | None = None,
        most: int | None = None,
    ) -> None:
        self._nodes, self._command = tuple(nodes), command
        self._cores, self._most = cores, most
        self._losses: dict[str, list[str]] = {node.name: [] for node in nodes}  # as `RanksThere` has them

    def ranks_here(self, spec: CellSpec, environment: Environment) -> int | None:
        """The most ranks of the cell on one node; None if it runs on one node. `environment` is this machine's."""
        room = self._room(spec, environment)
        if spec.ranks <= room or len(self._nodes) == 1:
            return None
        return max(split(spec.ranks, room, len(self._nodes)))

    def _room(self, spec: CellSpec, environment: Environment) -> int:
        kind, _, index = spec.device.partition(":")
        if kind == "cuda":
            room = sum(device.name.startswith("cuda") for device in environment.devices) - int(index or 0)
        else:
            room = (self._cores or environment.cpu_count) // (spec.threads or 1)
        return max(room if self._most is None else min(room, self._most), 1)

    def start(
        self,
        work: Work,
        environment: Environment,
        launcher: Launcher,
        sampled: Callable[[DeviceSampled], None],
        stop: StopSignal,
    ) -> Spread:
        """Spread the ranks of a cell or report over as few nodes as have room; `environment` and `launcher` are this
        machine's. Raises `StartError` if they cannot be started."""
        spec = work.spec
        counts = split(spec.ranks, self._room(spec, environment), len(self._nodes))
        with ExitStack() as failing:
            processes = self._started(len(counts), launcher.output_dir / work.name, stop)
            failing.callback(_end, processes)
            served, port = _store(launcher)
            failing.pop_all()
        last: dict[int, DeviceSampled] = {}

        def take(node: int, sample: DeviceSampled) -> None:
            """When the first node tells a sample, pass on one of all nodes."""
            last[node] = sample
            if node == 0:
                sampled(_joined([last[number] for number in sorted(last)]))

        parts, first = [], 0
        for node, (process, count) in enumerate(zip(processes, counts, strict=True)):
            place = Place(
                ranks=spec.ranks, address=self._nodes[0].address, port=port, first=first, here=count, node=node,
                nodes=len(counts),
            )  # fmt: skip
            first += count
            there = msgspec.structs.replace(work, place=place)
            parts.append(RanksThere(process, there, partial(take, node), self._losses[process.node.name]))
        names = tuple(process.node.name for process, count in zip(processes, counts, strict=True) for _ in range(count))
        return Spread(tuple(parts), names, served)

    def _started(self, wanted: int, errors: Path, stop: StopSignal) -> list[NodeProcess]:
        """A process on each of so many nodes, once it can start ranks; a node that is lost twice is left out."""
        while True:
            nodes = [node for node in self._nodes if len(self._losses[node.name]) < LOSSES][:wanted]
            if len(nodes) < wanted:
                why = "; ".join(f"{name}: {whys[-1]}" for name, whys in self._losses.items() if len(whys) >= LOSSES)
                raise StartError(f"its ranks need {counted(wanted, 'node')}, and {len(nodes)} are left; {why}")
            processes: list[NodeProcess] = []
            with ExitStack() as failing:
                failing.callback(_end, processes)
                errors.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                for node in nodes:
                    file = errors.with_name(f"{errors.name}-{node.name}-{len(self._losses[node.name])}.err")
                    try:
                        processes.append(NodeProcess(node, self._command(node), file))
                    except OSError as error:
                        raise StartError(f"no process can be started on {node.name}: {error}") from None
                if all(self._has_started(process, stop) for process in processes):
                    failing.pop_all()
                    return processes

    def _has_started(self, process: NodeProcess, stop: StopSignal) -> bool:
        """Wait until the process can start ranks; False if its node is lost. Raises `StartError` once `stop` is set."""
        losses = self._losses[process.node.name]
        try:
            process.expect_word(START_AGAIN_S if losses else START_S)
            while not process.hear(stop):
                if stop.is_set():
                    raise StartError(STOPPED_BY_USER)
        except NodeLost as error:
            losses.append(str(error))
            return False
        return True


def _end(processes: Sequence[NodeProcess]) -> None:
    """End processes whose ranks were not started."""
    for process in processes:  # first all at once
        process.hang_up()
    end_at = time.monotonic() + ENDING_S
    for process in processes:
        process.close(max(0.0, end_at - time.monotonic()))


def _store(launcher: Launcher) -> tuple[Child, int]:
    """A new store of torch's on this machine, and its port. Raises `StartError`."""
    child = launcher.start_answers("store", store)
    with contextlib.suppress(TimeoutError):
        for payload in child.messages(STORE_S):
            if port := msgspec.json.decode(payload, type=Answer[int]).found:
                return child, port
    why = last_line(child.output) or "torch's store does not answer"
    child.close()
    raise StartError(f"no store can be served: {why}")


def split(ranks: int, room: int, nodes: int) -> list[int]:
    """Ranks of each node that is used, as equal as can be: of as few nodes as have `room` for them; if all have not,
    of all."""
    used = min(-(-ranks // room), nodes, ranks)
    return [ranks // used + (number < ranks % used) for number in range(used)]


def _joined(samples: Sequence[DeviceSampled]) -> DeviceSampled:
    """The first node's sample with the ranks and GPUs of all. Cores are of its own ranks, as its load is its own."""
    first = samples[0]
    hosts = [each.host for each in samples]
    sizes = [host.child_rss_bytes for host in hosts if host.child_rss_bytes is not None]
    host = msgspec.structs.replace(
        first.host, child_rss_bytes=max(sizes, default=None), ranks=tuple(rank for each in hosts for rank in each.ranks)
    )
    gpus = [gpu for each in samples for gpu in (each.gpu, *each.other_gpus) if gpu]
    why = next((each.why for each in samples if each.why), None)
    return msgspec.structs.replace(first, host=host, gpu=gpus[0] if gpus else None, other_gpus=tuple(gpus[1:]), why=why)


def serve(device_interval_s: float) -> None:
    """Start the ranks that the first line names, and tell their events until all are over."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm sends it to all of a step; who gives the lines ends them
    lifeline = Lifeline()
    with ExitStack() as ending:
        node = _Node(lifeline.tell, device_interval_s, ending)
        lifeline.tell(Word())
        if work := lifeline.line():
            with lifeline.held(node.kill, node.take):
                node.run(msgspec.json.decode(work, type=Work))
                ending.close()  # before it is told that all is over


class _Node:
    """A machine whose ranks `tell` words; what it has started ends with `ending`."""

    def __init__(self, tell: Callable[[Word], None], device_interval_s: float, ending: ExitStack) -> None:
        self._tell, self._stop, self._killed = tell, StopSignal(), False
        scratch = make_scratch("node-")
        ending.callback(end_scratch, scratch)
        self._launcher = Launcher(scratch, lambda: self._killed or self._stop.is_set())
        self._watch = DeviceSampler(self._on_sample, interval_s=device_interval_s)
        ending.callback(self._watch.stop)
        self._changing = threading.Lock()
        self._parts: Sequence[RankHere] = ()
        self._launcher.prepare()
        self._launcher.start()
        self._environment: Environment = probe_machine(self._launcher)
        self._watch.start()

    def run(self, work: Work) -> None:
        """Run the ranks of a cell or report to their ends."""
        self._launcher.trust.name(work.spec)  # whoever asks for it has asked the user
        try:
            ranks = self._started(work)
        except StartError as error:
            for number in work.ranks:
                self._note(number, [work.end("cancelled" if self._stop.is_set() else "failed", str(error))])
            return
        cells, report = ((), work.number) if work.report else ((work.number,), None)
        with self._changing:
            self._parts = parts = here(ranks, cells=cells, report=report, first=work.place.first)
        if self._killed:  # meanwhile
            self.kill()
        others = self._environment.others_of(work.spec, work.place.here)
        pids = (rank.child.process.pid for rank in ranks)
        self._watch.point(self._environment.device(work.spec.device), *pids, others=others)
        with ExitStack() as around:
            for rank in ranks:
                around.enter_context(closing(rank.child))
            pace_s = pace_of(len(ranks))
            watches = [threading.Thread(target=part.watch, args=(self._note, self._stop, pace_s)) for part in parts]
            for watch in watches:
                watch.start()
            for watch in watches:
                watch.join()
            if not self._killed:
                self._watch.await_sample(self._stop)
            with self._changing:
                self._parts = ()

    def _started(self, work: Work) -> tuple[Rank, ...]:
        if problem := self._environment.refusal(work.spec, work.place.here):
            raise StartError(str(problem))
        if work.report:
            return self._launcher.start_report(work.number, work.report, work.place)
        return self._launcher.start_cell(work.number, work.spec, nvtx=work.nvtx, like=work.place)

    def _note(self, rank: int, events: Sequence[Event]) -> None:
        for event in events:
            self._tell(Word.of(event, rank))
        if any(isinstance(event, StageChanged) and event.stage == "finishing" for event in events):
            self._watch.measured()

    def _on_sample(self, sample: DeviceSampled) -> None:
        if not self._parts:
            return
        if not sample.host.ranks:  # as one rank alone is not listed
            ranks = tuple(
                RankSample(pid=pid, rss_bytes=sample.host.child_rss_bytes, cores=sample.host.child_cores)
                for part in self._parts
                if (pid := part.rank.child.process.pid)
            )
            sample = msgspec.structs.replace(sample, host=msgspec.structs.replace(sample.host, ranks=ranks))
        self._tell(Word.of(sample))

    def take(self, line: bytes) -> None:
        """Do as a line says."""
        if line == STOP:
            self._stop.set()
        elif line == ASK:
            self._tell(Word(stuck=tuple(stuck_in(self._parts))))

    def kill(self) -> None:
        """End the ranks."""
        self._killed = True
        with self._changing:
            for part in self._parts:
                part.kill()
