"""The process on a node: starts the node's ranks as it is told on standard input, and tells their events on standard
output. It ends, with all its ranks, when its standard input does."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing

import msgspec

from cs336_tui.events.codec import to_line
from cs336_tui.events.device_samples import RankSample
from cs336_tui.events.environment import Environment
from cs336_tui.events.events import DeviceSampled, Event, StageChanged
from cs336_tui.runner.child import StoreAnswer, store
from cs336_tui.runner.device.sampler import DeviceSampler
from cs336_tui.runner.hanging import ask_for_stacks, stuck_ranks
from cs336_tui.runner.launcher import Child, Launcher, Rank, StartError
from cs336_tui.runner.leftovers import end_scratch, make_scratch
from cs336_tui.runner.machine import probe_machine
from cs336_tui.runner.nodes.messages import (
    BEAT_S,
    Answered,
    Ask,
    Beat,
    CellWork,
    Kill,
    Over,
    Ready,
    Refused,
    Run,
    Sampled,
    Serve,
    Served,
    Stop,
    Told,
    Word,
    line_of,
    order_of,
    spec_of,
)
from cs336_tui.runner.pipes import StopSignal, last_line
from cs336_tui.runner.ranks import here, pace_of
from cs336_tui.worker.worker_entry import Place

STORE_S = 60.0
"""Seconds in which a store answers."""


def serve(device_interval_s: float) -> None:
    """Follow the orders on standard input until it ends."""
    told = os.dup(1)
    os.dup2(2, 1)  # whatever else is printed must not stand between the words
    # Slurm sends it to all processes of a step that is to end, ranks too; who gives the orders ends them.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    agent = _Agent(told, device_interval_s)
    try:
        agent.prepare()
        signal.signal(signal.SIGTERM, agent.leave)
        agent.follow(sys.stdin.buffer)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        agent.close()


class _Agent:
    def __init__(self, told: int, device_interval_s: float) -> None:
        self._told, self._telling = told, threading.Lock()
        self._scratch = make_scratch("node-")
        self._launcher = Launcher(self._scratch)
        self._watch = DeviceSampler(self._on_sample, interval_s=device_interval_s)
        self._stop = StopSignal()
        self._environment: Environment | None = None
        self._store: Child | None = None
        self._working: threading.Thread | None = None
        self._changing = threading.Lock()
        self._ranks: dict[int, Rank] = {}
        self._killed = self._leaving = False

    def prepare(self) -> None:
        self._launcher.prepare()
        self._launcher.start()
        self._environment = probe_machine(self._launcher)
        self._watch.start()
        self._say(Ready(self._environment))

    def leave(self, *_: object) -> None:
        """End, once no ranks run; called on the main thread."""
        self._leaving = True
        if not self._ranks:
            raise SystemExit

    def follow(self, orders: Iterable[bytes]) -> None:
        for line in orders:
            match order_of(line):
                case Serve():
                    self._serve()
                case Run() as order:
                    self._launcher.trust.name(spec_of(order.work))  # whoever orders it has asked
                    self._await_work()
                    self._stop.clear()
                    self._killed = False
                    self._working = threading.Thread(target=self._run, args=(order,), name="ranks")
                    self._working.start()
                case Stop():
                    self._stop.set()
                case Kill():
                    self._kill()
                case Ask() as order:
                    self._answer(order)

    def close(self) -> None:
        """End everything."""
        with ExitStack() as ending:  # called last to first
            ending.callback(end_scratch, self._scratch)
            ending.callback(self._stop.close)
            ending.callback(self._watch.stop)
            if self._store:
                ending.callback(self._store.close)
            ending.callback(self._await_work)
            ending.callback(self._kill)

    def _say(self, word: Word) -> None:
        line = memoryview(line_of(word))
        with self._telling, contextlib.suppress(BrokenPipeError):  # then standard input ends, too
            while line:
                line = line[os.write(self._told, line) :]

    def _serve(self) -> None:
        if self._store:
            self._store.close()
            self._store = None
        try:
            child = self._store = self._launcher.start_answers("store", store)
        except StartError as error:
            self._say(Served(0, str(error)))
            return
        port = 0
        with contextlib.suppress(TimeoutError):
            for payload in child.messages(STORE_S):
                port = msgspec.json.decode(payload, type=StoreAnswer).port
                break
        self._say(Served(port, "" if port else last_line(child.output) or "torch's store does not answer"))

    def _run(self, order: Run) -> None:
        try:
            ranks = self._started(order)
        except StartError as error:
            self._say(Refused(str(error)))
            self._say(Over())
            return
        with self._changing:
            self._ranks = dict(enumerate(ranks, order.first))
        if self._killed:  # meanwhile
            self._kill()
        self._look_at(order, ranks)
        work = order.work
        cell, report = (work.cell, None) if isinstance(work, CellWork) else (None, work.report)
        parts = here(ranks, cell=cell, report=report, first=order.first)
        with ExitStack() as around:
            for rank in ranks:
                around.enter_context(closing(rank.child))
            pace_s = pace_of(len(ranks))
            watches = [threading.Thread(target=part.watch, args=(self._note, self._stop, pace_s)) for part in parts]
            for watch in watches:
                watch.start()
            for watch in watches:
                while watch.is_alive():
                    watch.join(BEAT_S)
                    self._say(Beat())
            with self._changing:
                self._ranks = {}
        for part in parts:
            part.clear()
        self._watch.await_sample(self._stop)
        self._watch.point(None)
        self._say(Over())
        if self._leaving:
            os.kill(os.getpid(), signal.SIGTERM)

    def _started(self, order: Run) -> tuple[Rank, ...]:
        work = order.work
        like = Place(
            ranks=spec_of(work).ranks, address=order.address, port=order.port, first=order.first, here=order.here,
            node=order.node, nodes=order.nodes,
        )  # fmt: skip
        if isinstance(work, CellWork):
            return self._launcher.start_ranks(work.cell, work.spec, nvtx=work.nvtx, like=like)
        return self._launcher.start_report_of_ranks(work.report, work.request, like)

    def _look_at(self, order: Run, ranks: Sequence[Rank]) -> None:
        """Sample the processes and the GPUs of these ranks."""
        assert self._environment is not None
        spec = spec_of(order.work)
        others = self._environment.others_of(spec, order.here)
        pids = (rank.child.process.pid for rank in ranks)
        self._watch.point(self._environment.device(spec.device), *pids, others=others)

    def _note(self, rank: int, events: Sequence[Event]) -> None:
        for event in events:
            self._say(Told(rank, msgspec.Raw(to_line(event).rstrip())))
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
        self._say(Sampled(sample))

    def _answer(self, order: Ask) -> None:
        ranks = dict(self._ranks)
        ask_for_stacks(ranks.values())
        self._say(Answered(tuple(stuck_ranks(ranks, time.monotonic() + order.within_s))))

    def _kill(self) -> None:
        self._killed = True
        with self._changing:
            for rank in self._ranks.values():
                rank.child.process.kill()

    def _await_work(self) -> None:
        if self._working:
            self._working.join()
