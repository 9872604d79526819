"""The process on a node for a cell whose ranks are spread over several: both ends of the lines that it is given, and of
the words that it tells in lines."""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from cs336_tui.config.reading import private
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.codec import to_line, unpack
from cs336_tui.events.events import CellFinished, Event, ReportFinished, Status
from cs336_tui.events.reports import ReportRequest
from cs336_tui.runner.pipes import StopSignal, end_of
from cs336_tui.runner.supervise import Stuck
from cs336_tui.worker.worker_entry import Place

BEAT_S, SILENT_S = 1.0, 20.0
"""Seconds between two words of a node at most, and those after which one that tells nothing is lost."""
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

    @classmethod
    def of(cls, event: Event, rank: int | None = None) -> Word:
        return cls(msgspec.Raw(to_line(event).rstrip()), rank)

    @property
    def content(self) -> Event | None:
        """Its event."""
        return None if self.event is _NO_EVENT else unpack(bytes(self.event))


_WORDS = msgspec.json.Decoder(Word)


class NodeLost(Exception):
    """A node's process is gone or silent; the message says why."""


class NodeProcess:
    """The process on a node, which `command` starts; the file `errors` gets whatever else it prints. Words are read on
    one thread, lines given on any. It ends, with all that it has started, once its standard input does."""

    ANSWER_S = 1.0
    """Seconds in which an answer arrives once it is given."""

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
        self._patience_s = 0.0
        self._silent_at = math.inf  # monotonic seconds at which it is lost if it tells nothing
        self.is_ending = False

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

    def expect_word(self, within_s: float) -> None:
        """Take it for lost if it tells nothing for so long from now."""
        self._patience_s, self._silent_at = within_s, time.monotonic() + within_s

    def expect_end(self, within_s: float) -> None:
        """Take it for lost so long from now, whatever it tells."""
        self.is_ending = True
        self.expect_word(within_s)

    def hear(self, stop: StopSignal | None = None) -> list[Word]:
        """The next words, none after `LOOK_S` or once `stop` is set. Raises `NodeLost`, also when it is silent."""
        left_s = self._silent_at - time.monotonic()
        words = self.words(min(max(left_s, 0.0), LOOK_S), stop)  # what has come while this thread waited
        if left_s <= 0 and not words:
            raise NodeLost("it does not answer" if self.is_ending else f"silent for {self._patience_s:g} s")
        if words and not self.is_ending:
            self.expect_word(SILENT_S)
        return words

    def _why_gone(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self.ANSWER_S)
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
