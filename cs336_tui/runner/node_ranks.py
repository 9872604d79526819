"""The process on a node for a cell whose ranks are spread over several: starts the node's ranks and tells their
events, on the lines that `nodes` reads and gives."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

import msgspec

from cs336_tui.events.codec import to_line
from cs336_tui.events.environment import Environment, RankSample
from cs336_tui.events.events import DeviceSampled, Event, StageChanged
from cs336_tui.runner.device.sampler import DeviceSampler
from cs336_tui.runner.launcher import Launcher, Rank, StartError
from cs336_tui.runner.machine import probe_machine
from cs336_tui.runner.nodes import ASK, BEAT_S, STOP, Word, Work
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.runner.processes import end_scratch, make_scratch
from cs336_tui.runner.ranks import here, pace_of
from cs336_tui.runner.supervise import STACKS_S, ask_for_stacks, stuck_ranks


class Lifeline:
    """The other end of a `NodeProcess`: words on standard output, lines on standard input. Whatever else is printed
    goes to standard error."""

    def __init__(self) -> None:
        self._words, self._telling = os.dup(1), threading.Lock()
        os.dup2(2, 1)
        self._lines = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115  # a thread may wait in it at the end

    def tell(self, word: Word) -> None:
        line = memoryview(msgspec.json.encode(word) + b"\n")
        with self._telling, contextlib.suppress(BrokenPipeError):  # then standard input ends, too
            while line:
                line = line[os.write(self._words, line) :]

    def line(self) -> bytes:
        """The next line without its end; empty once there is none."""
        return self._lines.readline().rstrip(b"\n")

    @contextmanager
    def held(self, hang_up: Callable[[], object], take: Callable[[bytes], object] = lambda _: None) -> Iterator[None]:
        """While entered, tell that this process lives, call `take` with each line, and `hang_up` once there is none
        any more. Then tell that all is over."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT_S):
                self.tell(Word())

        def listen() -> None:
            while line := self.line():
                take(line)
            if not over.is_set():
                hang_up()

        self.tell(Word())
        beating = threading.Thread(target=beat, name="beat", daemon=True)
        beating.start()
        threading.Thread(target=listen, name="lifeline", daemon=True).start()
        try:
            yield
        finally:
            over.set()
            beating.join()
        self.tell(Word(over=True))


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
        self._ranks: dict[int, Rank] = {}
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
        with self._changing:
            self._ranks = dict(enumerate(ranks, work.place.first))
        if self._killed:  # meanwhile
            self.kill()
        self._look_at(work, ranks)
        cell, report = (None, work.number) if work.report else (work.number, None)
        parts = here(ranks, cell=cell, report=report, first=work.place.first)
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
                self._ranks = {}

    def _started(self, work: Work) -> tuple[Rank, ...]:
        if problem := self._environment.refusal(work.spec, work.place.here):
            raise StartError(str(problem))
        if work.report:
            return self._launcher.start_report(work.number, work.report, work.place)
        return self._launcher.start_cell(work.number, work.spec, nvtx=work.nvtx, like=work.place)

    def _look_at(self, work: Work, ranks: Sequence[Rank]) -> None:
        """Sample the processes and the GPUs of these ranks."""
        others = self._environment.others_of(work.spec, work.place.here)
        pids = (rank.child.process.pid for rank in ranks)
        self._watch.point(self._environment.device(work.spec.device), *pids, others=others)

    def _note(self, rank: int, events: Sequence[Event]) -> None:
        for event in events:
            self._tell(Word(msgspec.Raw(to_line(event).rstrip()), rank))
        if any(isinstance(event, StageChanged) and event.stage == "finishing" for event in events):
            self._watch.measured()

    def _on_sample(self, sample: DeviceSampled) -> None:
        if not self._ranks:
            return
        if not sample.host.ranks:  # as one rank alone is not listed
            ranks = tuple(
                RankSample(pid=pid, rss_bytes=sample.host.child_rss_bytes, cores=sample.host.child_cores)
                for rank in list(self._ranks.values())
                if (pid := rank.child.process.pid)
            )
            sample = msgspec.structs.replace(sample, host=msgspec.structs.replace(sample.host, ranks=ranks))
        self._tell(Word(msgspec.Raw(to_line(sample).rstrip())))

    def take(self, line: bytes) -> None:
        """Do as a line says."""
        if line == STOP:
            self._stop.set()
        elif line == ASK:
            ranks = dict(self._ranks)
            ask_for_stacks(ranks.values())
            self._tell(Word(stuck=tuple(stuck_ranks(ranks, time.monotonic() + STACKS_S))))

    def kill(self) -> None:
        """End the ranks."""
        self._killed = True
        with self._changing:
            for rank in self._ranks.values():
                rank.child.process.kill()
