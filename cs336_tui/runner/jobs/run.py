"""Runs the cells of a job, and begins its log. On several nodes first cells whose ranks need several, then on each node
its share of the others."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from cs336_tui import __version__
from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.events.codec import to_line
from cs336_tui.events.environment import Environment
from cs336_tui.runner.jobs.job import LAG_S, JobCell, JobRequest, LaunchError, log_path, shares, write_file
from cs336_tui.runner.jobs.logs import PASSED_OVER
from cs336_tui.runner.jobs.slurm import run_command
from cs336_tui.runner.lanes import lanes_of, pool_of
from cs336_tui.runner.node_process import LOOK_S, SILENT_S, Node, NodeLost, NodeProcess
from cs336_tui.runner.nodes import ENDING_S, START_S, Nodes
from cs336_tui.runner.pipes import beside
from cs336_tui.runner.queue import queued
from cs336_tui.session.lock import writer_of
from cs336_tui.session.log import LogError, LogReader, SessionLog
from cs336_tui.session.state import fold

if TYPE_CHECKING:
    from cs336_tui.runner.bench import Bench
    from cs336_tui.session.log import Sink

_LOOK_S = 5.0
_LOOKS = 3
"""A request that is not there so many times is withdrawn."""


def begin_log(log: Path, request: JobRequest) -> bool:
    """Begin the log of a job, unless a former run of it has; its cells wait in it under the session's numbers. True if
    the log is that of a run on another machine, whose lock may be taken over. Raises `LogError`."""
    if log.exists():
        writer = writer_of(log)
        return writer is not None and writer.host != socket.gethostname()
    started = ev.SessionStarted(at=time.time(), schema=ev.SCHEMA, session=request.session, app=__version__)
    events: list[ev.Event] = [started]
    for reports, numbers, cells in _by_reports(request.cells):
        events += queued(numbers, cells, ddof=request.ddof, reports=reports)
    try:
        write_file(log, b"".join(map(to_line, events)))  # a job that is killed here leaves no half log
    except OSError as error:
        raise LogError(f"{log}: {error.strerror}") from None
    return False


def work_here(request: JobRequest, bench: Bench, recall: Sink, *, trusted: bool = False) -> None:
    """Run the cells of a job, or those that its log has on a further node, on this machine; events so far go to
    `recall`. Raises `LogError`, `SpecError` and, unless their code is `trusted`, `Untrusted`."""
    take_over = begin_log(bench.log_path, request)
    waiting = bench.resume(recall, take_over=take_over, checked=False, trusted=trusted)
    cells = fold(LogReader(bench.log_path)).cells
    specs = [cells[cell].asked_spec for cell in waiting]
    bench.queue.use(lanes_here(request.lanes, specs, bench.probe()))
    if request.predict:
        bench.predict_now(specs)
    bench.work()


def _by_reports(cells: Iterable[JobCell]) -> Iterator[tuple[tuple[str, ...], list[int], list[tuple[CellSpec, int]]]]:
    """The numbers and the specs of neighbours who want the same reports, in order."""
    for reports, group in itertools.groupby(cells, lambda cell: cell.reports):
        alike = list(group)
        yield reports, [cell.cell for cell in alike], [(cell.spec, cell.repeat) for cell in alike]


def lanes_here(lanes: int, specs: Sequence[CellSpec], environment: Environment) -> tuple[ev.Lane, ...]:
    """So many lanes of this machine for these cells, 0 for one on each device; none if they run one after the other.
    Raises `SpecError`."""
    on_gpus = any(spec.device.startswith("cuda") for spec in specs)
    return lanes_of(lanes or "auto", pool_of(("cuda" if on_gpus else "cpu",), environment), specs)


def while_wanted(path: Path, stop: Callable[[], object]) -> AbstractContextManager[None]:
    """While entered, call `stop` once the request is withdrawn: its file is gone."""

    def look(over: threading.Event) -> None:
        missing = 0
        while missing < _LOOKS and not over.wait(_LOOK_S):
            missing = 0 if path.exists() else missing + 1
        if not over.is_set():
            stop()

    return beside("request", look)


def nodes_of(request: JobRequest, allocation: Allocation) -> Nodes:
    """The nodes of the allocation, for cells whose ranks need several."""
    words = "run-ranks", "--device-interval", f"{request.device_interval_s:g}"
    most = request.lanes if request.lanes > 1 else None
    return Nodes(allocation.nodes, lambda node: allocation.command(node, *words), cores=allocation.cores, most=most)


def work_over_nodes(
    path: Path,
    request: JobRequest,
    bench: Bench,
    nodes: Nodes,
    allocation: Allocation,
    recall: Sink,
    *,
    trusted: bool = False,
) -> None:
    """Run the cells of the request at this path; those of this node on the bench, whose log so far goes to `recall`.
    A job that was started again goes on with the logs that are there. Raises like `work_here`."""
    folder, job = path.parent, request.job
    environment = bench.probe()
    logs = [log_path(folder, job, number) for number in range(len(allocation.nodes))]
    wide = tuple(cell for cell in request.cells if nodes.ranks_here(cell.spec, environment))
    take_over = begin_log(logs[0], msgspec.structs.replace(request, cells=wide))
    known = _cells_in(logs[0])
    waiting = bench.resume(recall, take_over=take_over, checked=False, trusted=trusted)
    if {cell.cell for cell in wide} & set(waiting):
        bench.work()
    if bench.was_cancelled:
        return
    own, *others = _parts(request, wide, logs)
    bench.queue.use(lanes_here(request.lanes, [cell.spec for cell in own], environment))
    elsewhere: list[_Elsewhere] = []
    try:
        for number, (part, log) in enumerate(zip(others, logs[1:], strict=True), 1):
            if _begin(log, part, request):
                elsewhere.append(_Elsewhere(allocation, number, path, log, trusted=trusted))
        for reports, numbers, cells in _by_reports(cell for cell in own if cell.cell not in known):
            bench.add(cells, reports=reports, numbers=numbers)
        bench.work()
        for each in elsewhere:
            each.join(bench)
    finally:
        for each in elsewhere:
            each.stop()
        for each in elsewhere:
            each.join()


def _cells_in(log: Path) -> set[int]:
    """The cells that a log has; none of one that cannot be read."""
    with contextlib.suppress(LogError):
        return set(fold(LogReader(log).without(*PASSED_OVER)).cells)
    return set()


def _parts(request: JobRequest, wide: Sequence[JobCell], logs: Sequence[Path]) -> list[Sequence[JobCell]]:
    """Each node's share of the cells whose ranks have room on one: as its log has it, if they were shared out."""
    apart = {cell.cell for cell in wide}
    if not any(log.exists() for log in logs[1:]):
        rest = [cell for cell in request.cells if cell.cell not in apart]
        return [*shares(rest, len(logs))]
    there = [_cells_in(log) for log in logs[1:]]
    here = {cell.cell for cell in request.cells} - apart.union(*there)
    return [[cell for cell in request.cells if cell.cell in own] for own in (here, *there)]


def _begin(log: Path, cells: Sequence[JobCell], request: JobRequest) -> bool:
    """Begin a node's log, unless it is there; True if its cells are to be run. That of a node without cells is closed,
    so that nobody waits for it."""
    begin_log(log, msgspec.structs.replace(request, cells=tuple(cells)))
    state = fold(LogReader(log))
    if all(cell.is_over and cell.status != "cancelled" for cell in state.cells.values()):
        if state.ended is None:
            with closing(SessionLog(log, resume=True, take_over=True)) as writer:
                writer.write([ev.SessionEnded(at=time.time(), reason="finished")])
        return False
    return True


class _Elsewhere:
    """The share of another node: a process there runs it, and tells that it lives. A node that is lost leaves its cells
    with an end that names it."""

    def __init__(self, allocation: Allocation, number: int, path: Path, log: Path, *, trusted: bool) -> None:
        self._node, self._log = allocation.nodes[number], log
        words = ["run-job", str(path), "--node", str(number), *(["--trust"] if trusted else [])]
        command = allocation.command(self._node, *words)
        self._process = NodeProcess(self._node, command, log.with_suffix(".out"))
        self._process.expect_word(START_S)
        self._thread = threading.Thread(target=self._follow, name=f"node-{number}")
        self._thread.start()

    def stop(self) -> None:
        """Have it stop what runs."""
        self._process.expect_end(ENDING_S)
        self._process.hang_up()

    def join(self, bench: Bench | None = None) -> None:
        """Wait for its end; `bench` may be cancelled meanwhile."""
        while self._thread.is_alive() and not (bench and bench.was_cancelled):
            self._thread.join(LOOK_S)

    def _follow(self) -> None:
        try:
            words = self._process.hear()
            while not any(word.over for word in words):
                if words and self._process.is_ending:  # it lives, and ends its cells
                    self._process.expect_end(SILENT_S)
                words = self._process.hear()
            self._process.close(ENDING_S)
        except NodeLost as error:
            self._process.close()
            if not self._process.is_ending:
                _tell_lost(self._log, f"node {self._node.name} was lost: {error}")


def _tell_lost(log: Path, why: str) -> None:
    """Give an end to the cells of a node's log that have no result."""
    state = fold(LogReader(log))
    now = time.time()
    ends: list[ev.Event] = [
        ev.CellFinished(at=now, cell=cell.cell, status="killed", error=why, job_over=True)
        for cell in state.cells.values()
        if cell.status in ("queued", "running")
    ]
    with closing(SessionLog(log, resume=True, take_over=True)) as writer:
        writer.write([*ends, ev.SessionEnded(at=now, reason="interrupted")])


def await_log(log: Path) -> None:
    """Wait for a node's log, which the first node has begun: a shared folder may lag. Raises `LaunchError`."""
    give_up_at = time.monotonic() + LAG_S
    while not (log.exists() and log.stat().st_size):
        if time.monotonic() > give_up_at:
            raise LaunchError(f"{log}: not there; the folder of jobs must be shared by all nodes")
        time.sleep(0.2)


_SRUN = "srun", "--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--kill-on-bad-exit=0", "--quiet"
"""Starts one process that may use all that the job has on a node."""
_UNBOUND = "--cpu-bind=none"


class Allocation(NamedTuple):
    """The nodes of a job, the one that runs this process first; `cores` of each, None for those of the machine; the
    words that start a process on a node, before those that name the node."""

    nodes: tuple[Node, ...]
    cores: int | None = None
    srun: tuple[str, ...] = ()

    def command(self, node: Node, *words: str) -> list[str]:
        """The command that runs one of cs336-tui on a node."""
        there = [*self.srun, f"--nodelist={node.name}"] if self.srun else []
        return [*there, sys.executable, "-m", "cs336_tui", *words]


def allocation_of(number: int) -> Allocation:
    """The allocation of so many nodes in which this process runs. Raises `LaunchError`."""
    listed = os.environ.get("SLURM_JOB_NODELIST")
    if listed is None:
        return Allocation(tuple(Node(f"process {n}", "127.0.0.1") for n in range(number)))
    names = _told("scontrol", "show", "hostnames", listed).split()
    addresses = addresses_in(_told("scontrol", "show", "node", "--oneliner", listed))
    here = os.environ.get("SLURMD_NODENAME")
    nodes = sorted((Node(name, addresses.get(name, name)) for name in names), key=lambda node: node.name != here)
    cores = os.environ.get("SLURM_CPUS_ON_NODE", "")
    binds = not re.search(
        r"^TaskPlugin\s*=\s*(task/none|\(null\))\s*$", _told("scontrol", "show", "config"), re.MULTILINE
    )
    return Allocation(
        tuple(nodes), int(cores) if cores.isdecimal() else None, (*_SRUN, *((_UNBOUND,) if binds else ()))
    )


def addresses_in(told: str) -> dict[str, str]:
    """The address of each node, as ``scontrol show node --oneliner`` tells them: a node's name may not resolve."""
    found = (dict(re.findall(r"(\w+)=(\S*)", line)) for line in told.splitlines())
    return {node["NodeName"]: node.get("NodeAddr") or node["NodeName"] for node in found if "NodeName" in node}


def _told(*words: str) -> str:
    ran = run_command(*words)
    if ran.returncode:
        raise LaunchError(f"{' '.join(words)}: {ran.stderr.strip() or f'exit code {ran.returncode}'}")
    return ran.stdout
