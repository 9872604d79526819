"""Cells whose ranks are spread over the nodes of an allocation: ``srun`` starts a process on each for the cell, which
starts the ranks there (`node_ranks`). It gets its part of the work in a line, and tells words in lines."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from cs336_tui.config.reading import private
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.codec import unpack
from cs336_tui.events.environment import Environment
from cs336_tui.events.events import CellFinished, DeviceSampled, Event, ReportFinished, Status
from cs336_tui.events.reports import ReportRequest
from cs336_tui.runner.child import StoreAnswer, store
from cs336_tui.runner.launcher import STOPPED_BY_USER, Child, Launcher, StartError
from cs336_tui.runner.pipes import StopSignal, end_of, last_line
from cs336_tui.runner.ranks import NODE_LOST, Note
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
BEAT_S, SILENT_S = 1.0, 20.0
"""Seconds between two words of a node at most, and those after which one that tells nothing is lost."""
ENDING_S = 5.0
"""Seconds in which a node may tell the end of ranks that were to be ended."""
ANSWER_S = 1.0
"""Seconds in which a node's answer arrives once it is given."""
LOOK_S = 0.5
"""The longest wait for a word."""
STOP, ASK = b"stop", b"ask"
"""Lines that stop the ranks of a node between two steps, as a user asks, and that ask where they are."""
_SAYS_WHY = re.compile(r"(srun|slurmstepd|cs336-tui|[\w.]*(Error|Exception)): ")
"""Begins a line of the output of a process that says why it ended."""
_LONGEST = 300
_READ = 1 << 16
_NO_EVENT = msgspec.Raw(b"null")


class Node(NamedTuple):
    """A node of an allocation: its name, and the address by which the others reach it."""

    name: str
    address: str


class Work(msgspec.Struct, frozen=True):
    """The cell of this number to run, or the report to make. On a node the ranks are those of its `place`."""

    number: int
    spec: CellSpec
    report: ReportRequest | None = None
    nvtx: bool = False
    place: Place = Place()

    @property
    def name(self) -> str:
        return f"report-{self.number}" if self.report else f"cell-{self.number}"

    @property
    def ranks(self) -> range:
        """The ranks on the node."""
        return range(self.place.first, self.place.first + self.place.here)

    def end(self, status: Status, error: str) -> CellFinished | ReportFinished:
        """The end of a rank that could tell none."""
        if self.report:
            return ReportFinished(at=time.time(), report=self.number, status=status, error=error)
        return CellFinished(at=time.time(), cell=self.number, status=status, error=error)


class Word(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the process on a node; the first one tells that ranks can be started, each that it lives."""

    event: msgspec.Raw = _NO_EVENT
    """As a line of a log has it: of a `rank`, without one a sample of the node's ranks and of their GPUs."""
    rank: int | None = None
    stuck: tuple[Stuck, ...] | None = None
    """The places of its ranks, if it was asked for them."""
    over: bool = False
    """True if all its work is done, and all that it had started is gone."""


_WORDS = msgspec.json.Decoder(Word)


class NodeLost(Exception):
    """A node's process is gone or silent; the message says why."""


class NodeProcess:
    """The process on a node, which `command` starts; the file `errors` gets whatever else it prints. Words are read on
    one thread, lines given on any. It ends, with all that it has started, once its standard input does."""

    def __init__(self, node: Node, command: Sequence[str], errors: Path) -> None:
        """Raises OSError if the command cannot be started."""
        self.node, self._errors = node, errors
        with open(errors, "ab", opener=private) as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, start_new_session=True, bufsize=0
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._lines, self._words = self._process.stdin, self._process.stdout
        self._arrived = bytearray()
        self._giving = threading.Lock()

    def give(self, line: bytes) -> None:
        """A process that is gone is found out by its reader."""
        with self._giving, contextlib.suppress(OSError, ValueError):
            self._lines.write(line + b"\n")

    def words(self, timeout_s: float, stop: StopSignal | None = None) -> list[Word]:
        """The next words, none after `timeout_s` or once `stop` is set. Raises `NodeLost` when the process is gone."""
        own = self._words.fileno()
        poll = select.poll()
        for fd in (own, *([stop.fileno()] if stop else [])):
            poll.register(fd, select.POLLIN)
        if own not in (fd for fd, _ in poll.poll(max(0.0, timeout_s) * 1e3)):
            return []
        data = os.read(own, _READ)
        if not data:
            raise NodeLost(self._why_gone())
        self._arrived += data
        if b"\n" not in data:
            return []
        *lines, rest = self._arrived.split(b"\n")
        self._arrived = rest
        try:
            return [_WORDS.decode(bytes(line)) for line in lines]
        except msgspec.MsgspecError as error:
            raise NodeLost(f"it sent an unknown message: {error}") from None

    def await_start(self, within_s: float, stop: StopSignal) -> None:
        """Wait for the first word. Raises `NodeLost`, and `StartError` once `stop` is set."""
        end_at = time.monotonic() + within_s
        while not self.words(min(end_at - time.monotonic(), LOOK_S), stop):
            if stop.is_set():
                raise StartError(STOPPED_BY_USER)
            if time.monotonic() > end_at:
                raise NodeLost(f"silent for {within_s:g} s")

    def _why_gone(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ANSWER_S)
        code = self._process.poll()
        ended = "its process ended"
        if code:
            ended += f" with exit code {code}" if code > 0 else f" by signal {-code}"
        said = [line.strip()[:_LONGEST] for line in end_of(self._errors).splitlines() if _SAYS_WHY.match(line)]
        return f"{ended}: {said[-1]}" if said else ended

    def hang_up(self) -> None:
        """Let it end by itself, with what it has started: its standard input ends."""
        with self._giving, contextlib.suppress(OSError):
            self._lines.close()

    def close(self, within_s: float = 0.0) -> None:
        """End it, after `within_s` by a signal. Safe to call twice."""
        self.hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._words.close()


class RanksThere:
    """The ranks of a cell or report on a node. `sampled` is given what the node samples, `lost` why the node is lost;
    `well` is called if it is not."""

    def __init__(
        self,
        process: NodeProcess,
        work: Work,
        sampled: Callable[[DeviceSampled], None],
        lost: Callable[[str], object],
        well: Callable[[], object],
    ) -> None:
        self._process, self._work, self._sampled, self._lost, self._well = process, work, sampled, lost, well
        self._silent_at = 0.0  # monotonic seconds at which it is lost if it tells nothing
        self._ending = False
        self._answered = threading.Event()
        self._stuck: list[Stuck] = []
        self._owed = set(work.ranks)

    def watch(self, note: Note, stop: StopSignal, pace_s: float) -> None:  # noqa: ARG002  # the node has its own
        """Block until all its ranks have told their end, or the node is lost."""
        self._silent_at = time.monotonic() + SILENT_S
        self._process.give(msgspec.json.encode(self._work))
        status: Status = "killed"
        try:
            while not self._hear(note, None if self._ending else stop):
                if stop.is_set() and not self._ending:
                    status = "cancelled"
                    self._process.give(STOP)
                    self._end_within(POLITE_S + TERM_S + ENDING_S)
            why, status = "it reported no end", "failed"
        except NodeLost as error:
            why = f"{NODE_LOST}: {error}"
            self._process.close(ANSWER_S)
            if self._owed and not self._ending:
                self._lost(str(error))
            elif self._ending:
                why = STOPPED_BY_USER if status == "cancelled" else f"ended with the others: {error}"
        else:
            self._well()
        for rank in sorted(self._owed):
            note(rank, [self._work.end(status, why)])

    def _hear(self, note: Note, stop: StopSignal | None) -> bool:
        """Hear the next words; True once all is over. Raises `NodeLost`."""
        left_s = self._silent_at - time.monotonic()
        words = self._process.words(min(max(left_s, 0.0), LOOK_S), stop)  # what has come while this thread waited
        if left_s <= 0 and not words:
            raise NodeLost("it does not answer" if self._ending else f"silent for {SILENT_S:g} s")
        if words and not self._ending:
            self._silent_at = time.monotonic() + SILENT_S
        by_rank: dict[int, list[Event]] = {}
        for word in words:
            if word.stuck is not None:
                self._stuck = [*word.stuck]
                self._answered.set()
            event = None if word.event is _NO_EVENT else unpack(bytes(word.event))
            if isinstance(event, DeviceSampled):
                self._sampled(event)
            elif event is not None and word.rank is not None:
                by_rank.setdefault(word.rank, []).append(event)
                if isinstance(event, CellFinished | ReportFinished):
                    self._owed.discard(word.rank)
        for rank, events in by_rank.items():
            note(rank, events)
        return any(word.over for word in words)

    def _end_within(self, seconds: float) -> None:
        self._ending = True
        self._silent_at = time.monotonic() + seconds

    def kill(self) -> None:
        self._end_within(ENDING_S)
        self._process.hang_up()

    def ask(self) -> None:
        self._answered.clear()
        self._process.give(ASK)

    def stuck(self, until: float) -> list[Stuck]:
        self._answered.wait(max(0.0, until + ANSWER_S - time.monotonic()))
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
        self._losses: dict[str, list[str]] = {}  # the reasons of each node's losses since it last did its work

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
        samples = _Samples(len(counts), sampled)
        parts, first = [], 0
        for node, (process, count) in enumerate(zip(processes, counts, strict=True)):
            place = Place(
                ranks=spec.ranks, address=self._nodes[0].address, port=port, first=first, here=count, node=node,
                nodes=len(counts),
            )  # fmt: skip
            first += count
            there = msgspec.structs.replace(work, place=place)
            name = process.node.name
            well = partial(self._losses.pop, name, None)
            parts.append(RanksThere(process, there, samples.of(node), partial(self._lose, name), well))
        names = tuple(process.node.name for process, count in zip(processes, counts, strict=True) for _ in range(count))
        return Spread(tuple(parts), names, served)

    def _started(self, wanted: int, errors: Path, stop: StopSignal) -> list[NodeProcess]:
        """A process on each of so many nodes, once it can start ranks; a node that is lost twice is left out."""
        while True:
            nodes = [node for node in self._nodes if len(self._losses.get(node.name, ())) < LOSSES][:wanted]
            if len(nodes) < wanted:
                why = "; ".join(f"{name}: {whys[-1]}" for name, whys in self._losses.items() if len(whys) >= LOSSES)
                raise StartError(f"its ranks need {counted(wanted, 'node')}, and {len(nodes)} are left; {why}")
            processes: list[NodeProcess] = []
            with ExitStack() as failing:
                failing.callback(_end, processes)
                errors.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                for node in nodes:
                    file = errors.with_name(f"{errors.name}-{node.name}-{len(self._losses.get(node.name, ()))}.err")
                    try:
                        processes.append(NodeProcess(node, self._command(node), file))
                    except OSError as error:
                        raise StartError(f"no process can be started on {node.name}: {error}") from None
                if all(self._has_started(process, stop) for process in processes):
                    failing.pop_all()
                    return processes

    def _has_started(self, process: NodeProcess, stop: StopSignal) -> bool:
        """Wait until the process can start ranks; False if its node is lost. Raises `StartError` once `stop` is set."""
        name = process.node.name
        try:
            process.await_start(START_AGAIN_S if name in self._losses else START_S, stop)
        except NodeLost as error:
            self._lose(name, str(error))
            return False
        return True

    def _lose(self, name: str, why: str) -> None:
        self._losses.setdefault(name, []).append(why)


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
            return child, msgspec.json.decode(payload, type=StoreAnswer).port
    why = last_line(child.output) or "torch's store does not answer"
    child.close()
    raise StartError(f"no store can be served: {why}")


def split(ranks: int, room: int, nodes: int) -> list[int]:
    """Ranks of each node that is used, as equal as can be: of as few nodes as have `room` for them; if all have not,
    of all."""
    used = min(-(-ranks // room), nodes, ranks)
    return [ranks // used + (number < ranks % used) for number in range(used)]


class _Samples:
    """Makes one sample of those of several nodes, when the first of them tells one: its host, and the processes and
    GPUs of all ranks."""

    def __init__(self, nodes: int, sampled: Callable[[DeviceSampled], None]) -> None:
        self._last: list[DeviceSampled | None] = [None] * nodes
        self._sampled = sampled

    def of(self, node: int) -> Callable[[DeviceSampled], None]:
        def take(sample: DeviceSampled) -> None:
            self._last[node] = sample
            if node == 0:
                self._sampled(_joined([each for each in self._last if each]))

        return take


def _joined(samples: Sequence[DeviceSampled]) -> DeviceSampled:
    """The first node's sample with the ranks and GPUs of all. Cores are of its own ranks, as its load is its own."""
    first = samples[0]
    hosts = [each.host for each in samples]
    sizes = [host.child_rss_bytes for host in hosts if host.child_rss_bytes is not None]
    host = msgspec.structs.replace(
        first.host,
        child_rss_bytes=max(sizes, default=None),
        ranks=tuple(rank for each in hosts for rank in each.ranks),
    )
    gpus = [gpu for each in samples for gpu in (each.gpu, *each.other_gpus) if gpu]
    why = next((each.why for each in samples if each.why), None)
    return msgspec.structs.replace(first, host=host, gpu=gpus[0] if gpus else None, other_gpus=tuple(gpus[1:]), why=why)
