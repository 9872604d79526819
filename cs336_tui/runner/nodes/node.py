"""One node, as the process that runs cells of ranks over nodes sees it: the process there, and a cell's ranks."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from cs336_tui.config.reading import private
from cs336_tui.events.codec import unpack
from cs336_tui.events.events import CellFinished, DeviceSampled, Event, ReportFinished, Status
from cs336_tui.runner.hanging import NO_ANSWER, STACKS_S, Stuck
from cs336_tui.runner.nodes.messages import (
    Answered,
    Ask,
    Kill,
    Order,
    Over,
    Refused,
    Run,
    Sampled,
    Stop,
    Told,
    Word,
    line_of,
    word_of,
)
from cs336_tui.runner.pipes import StopSignal, end_of
from cs336_tui.runner.rank_fold import NODE_LOST
from cs336_tui.runner.ranks import Note
from cs336_tui.runner.supervise import POLITE_S, TERM_S

SILENT_S = 20.0
"""Seconds after which a node that tells nothing is lost; one whose ranks run tells that it lives every second."""
ENDING_S = 5.0
"""Seconds in which a node may tell the end of ranks that were to be ended."""
ANSWER_S = 1.0
"""Seconds in which a node's answer arrives once it is given."""
LOOK_S = 0.5
"""The longest wait for a word."""
_SAYS_WHY = re.compile(r"(srun|slurmstepd|cs336-tui|[\w.]*(Error|Exception)): ")
"""Begins a line of the output of a process that says why it ended."""
_LONGEST = 300
_READ = 1 << 16


class Node(NamedTuple):
    """A node of an allocation: its name, and the address by which the others reach it."""

    name: str
    address: str


class NodeLost(Exception):
    """A node's process is gone or silent; the message says why."""


class NodeProcess:
    """The process on a node, which `command` starts; the file `errors` gets whatever else it prints. Words are read on
    one thread, orders given on any."""

    def __init__(self, node: Node, command: Sequence[str], errors: Path) -> None:
        """Raises OSError if the command cannot be started."""
        self.node, self._errors = node, errors
        with open(errors, "ab", opener=private) as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, start_new_session=True, bufsize=0
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._words = self._process.stdin, self._process.stdout
        self._arrived = bytearray()
        self._giving = threading.Lock()

    def give(self, order: Order) -> None:
        """A process that is gone is found out by its reader."""
        with self._giving, contextlib.suppress(OSError, ValueError):
            self._orders.write(line_of(order))

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
            return [word_of(bytes(line)) for line in lines]
        except msgspec.MsgspecError as error:
            raise NodeLost(f"it sent an unknown message: {error}") from None

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
            self._orders.close()

    def close(self, within_s: float = 0.0) -> None:
        """End it, after `within_s` by a signal."""
        self.hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._words.close()


class RanksThere:
    """The ranks of a cell or report on a node, from `first` on; `sampled` is given what the node samples, `lost` why
    the node is lost."""

    def __init__(
        self,
        process: NodeProcess,
        run: Run,
        *,
        cell: int | None,
        report: int | None,
        sampled: Callable[[DeviceSampled], None],
        lost: Callable[[str], None],
    ) -> None:
        self._process, self._run, self._cell, self._report = process, run, cell, report
        self._sampled, self._lost = sampled, lost
        self._silent_at = 0.0  # monotonic seconds at which it is lost if it tells nothing
        self._ending = False
        self._answered = threading.Event()
        self._stuck: list[Stuck] = []
        self._owed = set(range(run.first, run.first + run.here))

    def watch(self, note: Note, stop: StopSignal, pace_s: float) -> None:  # noqa: ARG002  # the node has its own
        """Block until all its ranks have told their end, or the node is lost."""
        self._silent_at = time.monotonic() + SILENT_S
        self._process.give(self._run)
        status: Status = "killed"
        try:
            while not self._hear(note, None if self._ending else stop):
                if stop.is_set() and not self._ending:
                    status = "cancelled"
                    self._process.give(Stop())
                    self._end_within(POLITE_S + TERM_S + ENDING_S)
            why, status = "it reported no end", "failed"
        except NodeLost as error:
            why = f"{NODE_LOST}: {error}"
            self._process.close()
            self._lost(str(error))
            if status == "cancelled":
                why = "stopped by the user"
        for rank in sorted(self._owed):
            note(rank, [self._end(status, why)])

    def _hear(self, note: Note, stop: StopSignal | None) -> bool:
        """Hear the next words; True once all is over. Raises `NodeLost`."""
        left_s = self._silent_at - time.monotonic()
        if left_s <= 0:
            raise NodeLost("it does not answer" if self._ending else f"silent for {SILENT_S:g} s")
        over = False
        told: dict[int, list[Event]] = {}
        for word in self._process.words(min(left_s, LOOK_S), stop):
            if not self._ending:
                self._silent_at = time.monotonic() + SILENT_S
            match word:
                case Told():
                    event = unpack(bytes(word.event))
                    if isinstance(event, CellFinished | ReportFinished):
                        self._owed.discard(word.rank)
                    told.setdefault(word.rank, []).append(event)
                case Sampled():
                    self._sampled(word.sample)
                case Answered():
                    self._stuck = [*word.stuck]
                    self._answered.set()
                case Refused():
                    for rank in sorted(self._owed):
                        note(rank, [self._end("failed", word.why)])
                    self._owed.clear()
                case Over():
                    over = True
        for rank, events in told.items():
            note(rank, events)
        return over

    def _end(self, status: Status, why: str) -> Event:
        if self._report is not None:
            return ReportFinished(at=time.time(), report=self._report, status=status, error=why)
        assert self._cell is not None
        return CellFinished(at=time.time(), cell=self._cell, status=status, error=why)

    def _end_within(self, seconds: float) -> None:
        self._ending = True
        self._silent_at = time.monotonic() + seconds

    def kill(self) -> None:
        self._end_within(ENDING_S)
        self._process.give(Kill())

    def ask(self) -> None:
        self._answered.clear()
        self._process.give(Ask(STACKS_S))

    def stuck(self, until: float) -> list[Stuck]:
        self._answered.wait(max(0.0, until + ANSWER_S - time.monotonic()))
        answered = {each.rank for each in self._stuck}
        return self._stuck + [Stuck(rank, True, NO_ANSWER) for rank in sorted(self._owed - answered)]

    def clear(self) -> None:
        pass
