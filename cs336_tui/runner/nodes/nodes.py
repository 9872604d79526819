"""The nodes of an allocation, and cells whose ranks are spread over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.environment import Environment
from cs336_tui.events.events import DeviceSampled
from cs336_tui.runner.launcher import StartError
from cs336_tui.runner.leftovers import end_scratch, make_scratch
from cs336_tui.runner.nodes.messages import CellWork, Ready, Run, Sampled, Serve, Served, Word, Work, spec_of
from cs336_tui.runner.nodes.node import LOOK_S, Node, NodeLost, NodeProcess, RanksThere
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.runner.queue import STOPPED
from cs336_tui.runner.rank_fold import NODE_LOST
from cs336_tui.stats.quantities import counted

START_S, START_AGAIN_S = 300.0, 60.0
"""Seconds in which a node's process starts, and in which it does once the node was lost: torch from a cold network file
system takes minutes."""
STORE_S = 60.0
CLOSE_S = 5.0
LOSSES = 2
"""A node that was lost so often is left out."""


class Spread(NamedTuple):
    """The ranks of a cell or report on their nodes, and the node of each rank by name."""

    parts: tuple[RanksThere, ...]
    nodes: tuple[str, ...]


class Nodes:
    """The nodes of an allocation, all alike. `command` starts the process on a node that starts its ranks, once the
    first cell needs it; `close` ends it. A node has room for as many ranks as it has GPUs, on a CPU `cores` (None: as
    this machine has) for their threads, and at most `most`."""

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
        self._scratch: Path | None = None
        self._processes: dict[str, NodeProcess] = {}
        self._environments: dict[str, Environment] = {}
        self._losses: dict[str, list[str]] = {}  # the reason of each, by node

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
        self, work: Work, environment: Environment, sampled: Callable[[DeviceSampled], None], stop: StopSignal
    ) -> Spread:
        """Spread the ranks of a cell or report over as few nodes as have room; `environment` is this machine's. Raises
        `StartError` if they cannot be started."""
        spec = spec_of(work)
        counts = split(spec.ranks, self._room(spec, environment), len(self._nodes))
        used = self._ready(len(counts), stop)
        for process, count in zip(used, counts, strict=True):
            if problem := self._environments[process.node.name].refusal(spec, count):
                raise StartError(f"on {process.node.name}: {problem}")
        port = self._port(used[0], stop)
        samples = _Samples(len(used), sampled)
        cell, report = (work.cell, None) if isinstance(work, CellWork) else (None, work.report)
        parts, first = [], 0
        for number, (process, count) in enumerate(zip(used, counts, strict=True)):
            run = Run(work, first, count, number, len(used), used[0].node.address, port)
            first += count
            parts.append(
                RanksThere(
                    process,
                    run,
                    cell=cell,
                    report=report,
                    sampled=samples.of(number),
                    lost=partial(self._lose, process.node.name),
                )
            )
        names = tuple(process.node.name for process, count in zip(used, counts, strict=True) for _ in range(count))
        return Spread(tuple(parts), names)

    def _ready(self, wanted: int, stop: StopSignal) -> list[NodeProcess]:
        """The processes of so many nodes, started if they are not there; a node that is lost twice is left out."""
        while True:
            nodes = [node for node in self._nodes if len(self._losses.get(node.name, ())) < LOSSES][:wanted]
            if len(nodes) < wanted:
                why = "; ".join(f"{name}: {whys[-1]}" for name, whys in self._losses.items())
                raise StartError(f"its ranks need {counted(wanted, 'node')}, and {len(nodes)} are left; {why}")
            for node in nodes:
                if node.name not in self._processes:
                    self._scratch = self._scratch or make_scratch("nodes-")
                    errors = self._scratch / f"{node.name}-{len(self._losses.get(node.name, ()))}.err"
                    try:
                        self._processes[node.name] = NodeProcess(node, self._command(node), errors)
                    except OSError as error:
                        raise StartError(f"no process can be started on {node.name}: {error}") from None
            if all(self._is_ready(self._processes[node.name], stop) for node in nodes):
                return [self._processes[node.name] for node in nodes]

    def _is_ready(self, process: NodeProcess, stop: StopSignal) -> bool:
        """Wait until the process on a node is ready; False if it is lost."""
        name = process.node.name
        if name not in self._environments:
            try:
                word = self._word(process, START_AGAIN_S if name in self._losses else START_S, stop)
            except NodeLost as error:
                process.close()
                self._lose(name, str(error))
                return False
            assert isinstance(word, Ready)
            self._environments[name] = word.environment
        return True

    def _word(self, process: NodeProcess, within_s: float, stop: StopSignal) -> Word:
        """The next word of a node whose ranks do not run. Raises `NodeLost`, and `StartError` once `stop` is set."""
        end_at = time.monotonic() + within_s
        while (left_s := end_at - time.monotonic()) > 0:
            for word in process.words(min(left_s, LOOK_S), stop):
                if not isinstance(word, Sampled):
                    return word
            if stop.is_set():
                raise StartError(STOPPED)
        raise NodeLost(f"silent for {within_s:g} s")

    def _port(self, process: NodeProcess, stop: StopSignal) -> int:
        """The port of a new store on a node."""
        process.give(Serve())
        name = process.node.name
        try:
            word = self._word(process, STORE_S, stop)
        except NodeLost as error:
            process.close()
            self._lose(name, str(error))
            raise StartError(f"on {name}: {NODE_LOST}: {error}") from None
        assert isinstance(word, Served)
        if not word.port:
            raise StartError(f"on {name}: no store can be served: {word.why}")
        return word.port

    def _lose(self, name: str, why: str) -> None:
        self._losses.setdefault(name, []).append(why)
        self._processes.pop(name, None)
        self._environments.pop(name, None)

    def rest(self) -> None:
        """End the processes on all nodes, until they are needed again."""
        processes = list(self._processes.values())
        self._processes.clear()
        self._environments.clear()
        for process in processes:  # first all at once
            process.hang_up()
        for process in processes:
            process.close(CLOSE_S)

    def close(self) -> None:
        """End the processes on all nodes for good."""
        try:
            self.rest()
        finally:
            if self._scratch:
                end_scratch(self._scratch)


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
