"""Ranks that hang: noticed by their silence, and named by the stacks that all write when they are asked."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple

import msgspec

import cs336_tui
from cs336_tui.events.events import Event, StepsTimed
from cs336_tui.runner.launcher import Rank
from cs336_tui.worker.worker_entry import STACK_SIGNAL

ALIVE_S = 0.5
"""Seconds for which ranks that told something do not hang."""
STACKS_S = 1.0
"""Seconds in which ranks may write their stacks."""
NO_ANSWER = "and does not answer"
_WAITS = re.compile(
    r"\b(wait|barrier|all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|backward)\w*\(|store\.get\("
)
_COMPILERS = re.compile(
    r"/torch/_dynamo/(convert_frame|symbolic_convert|output_graph)\.py$|/triton/compiler/"
    r"|/torch/_inductor/(?!runtime/|(output_code|utils|cudagraph_\w+|codecache|compile_fx)\.py$"  # which run it, too
    r"|compile_worker/)"  # whose thread waits for other processes
)
_LOOK_S, _WORKS_S = 2.0, 0.02
"""CPU time that tells a process that works from one that only answered, and the seconds in which it has to use it."""
_OURS = str(Path(cs336_tui.__file__).parent)
_WRAPPERS = ("wrapper", "inner")  # of torch's decorators


class Pulse:
    """When a rank last told something, `at` (monotonic seconds), and whether that is usual for the cell's steps."""

    def __init__(self) -> None:
        self.at = time.monotonic()
        self._step_at: float | None = None
        self._longest_s = 0.0  # between two messages of steps

    def feel(self, events: Sequence[Event]) -> None:
        self.at = time.monotonic()
        if any(isinstance(event, StepsTimed) for event in events):
            self._longest_s = max(self._longest_s, self.at - (self._step_at or self.at))
            self._step_at = self.at

    def beat(self) -> None:
        """Note that the ranks live, though they tell nothing."""
        self.at = time.monotonic()

    def beats(self) -> bool:
        """True if ranks run, by the pauses between their steps."""
        return time.monotonic() - self.at < max(ALIVE_S, 2 * self._longest_s)


class Stuck(msgspec.Struct, frozen=True):
    """One rank of which nobody knows more: it `hangs`, `compiles`, or waits for others, `at` a place."""

    rank: int
    hangs: bool
    at: str
    compiles: bool = False


def ask_for_stacks(ranks: Iterable[Rank]) -> None:
    """Ask each for its stack, in place of what it wrote before."""
    for rank in ranks:
        if pid := rank.child.process.pid:
            with contextlib.suppress(FileNotFoundError):
                os.truncate(rank.stacks, 0)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, STACK_SIGNAL)


def stuck_ranks(ranks: Mapping[int, Rank], until: float) -> list[Stuck]:
    """Which of these ranks hang, and what the others wait in, by the stacks that they were asked for and write `until`
    then (monotonic seconds). One that compiles hangs unless it works, or a process that it started. It may compile in
    another thread than it waits in: autograd has one for each GPU, which compiles what backward needs."""
    stacks: list[str] = []
    while time.monotonic() < until:
        before, stacks = stacks, [rank.stack() for rank in ranks.values()]
        if all(stacks) and stacks == before:  # else one may be half written
            break
        time.sleep(0.01)
    found = []
    for number, rank in ranks.items():
        threads = _threads(rank.stack())
        stack = threads[0]
        if any(frame.compiles for frame in chain.from_iterable(threads)):
            works = _works(rank.child.process.pid)
            found.append(Stuck(number, not works, _place(stack), compiles=works))
            continue
        waits = bool(stack) and stack[0].waits_for_ranks
        found.append(Stuck(number, not waits, _wait(stack) if waits else _place(stack)))
    return found


def _works(pid: int | None) -> bool:
    """True if the process, or one that it started, uses a core within `_LOOK_S`."""
    before, until = _cpu_s(pid), time.monotonic() + _LOOK_S
    while not (works := _cpu_s(pid) - before >= _WORKS_S) and time.monotonic() < until:
        time.sleep(0.01)
    return works


def _cpu_s(pid: int | None) -> float:
    """CPU time of a process, of those that it started, and of theirs that have ended."""
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        several = (process, *process.children(recursive=True))
        return sum(sum(each.cpu_times()[:4]) for each in several if each.is_running())
    return 0.0


def told(stuck: Iterable[Stuck], name: Callable[[int], str]) -> list[str]:
    """A phrase on each rank, by the name that it has, first on those that hang."""
    return [f"{name(each.rank)} {_does(each)}" for each in sorted(stuck, key=lambda each: (not each.hangs, each.rank))]


def _does(rank: Stuck) -> str:
    if rank.compiles:
        return "compiles"
    return f"hangs {rank.at}" if rank.hangs else f"waits in {rank.at}"


class Frame(NamedTuple):
    """A line of a stack."""

    file: str
    line: int
    function: str

    @property
    def is_torchs(self) -> bool:
        return "/torch/" in self.file

    @property
    def compiles(self) -> bool:
        """True if it is a part of torch's or Triton's compilers, not of what runs compiled code."""
        return bool(_COMPILERS.search(self.file)) or ("/torch/_inductor/" in self.file and "compile" in self.function)

    @property
    def waits_for_ranks(self) -> bool:
        """True if, as the innermost one, it waits for other ranks: torch's own waits leave no frame."""
        return self.is_torchs or bool(_WAITS.search(linecache.getline(self.file, self.line)))

    def __str__(self) -> str:
        return f"{self.function} ({Path(self.file).name}:{self.line})"


_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>\S+)', re.MULTILINE)


def frames_of(stack: str) -> list[Frame]:
    """The frames of a stack as `faulthandler` writes it, innermost first."""
    return [Frame(found["file"], int(found["line"]), found["function"]) for found in _FRAME.finditer(stack)]


_STACK = re.compile(
    r"^(?P<current>Current t|T)hread 0x.*\(most recent call first\):\n(?P<frames>(  .*\n?)+)", re.MULTILINE
)


def _threads(text: str) -> list[list[Frame]]:
    """The stacks of threads, innermost frame first; the first that of the one that was asked, or crashed."""
    found = sorted(_STACK.finditer(text), key=lambda each: each["current"] != "Current t")
    return [frames_of(each["frames"]) for each in found] or [[]]


def crashed_in(output: str) -> str:
    """The line of the user's own code in which a process crashed, by the stack at the end of its output, as `` in
    forward (model.py:12)``; empty if it tells none."""
    own = (
        each
        for each in _threads(output)[0]
        if not (each.is_torchs or "/lib/python" in each.file or _OURS in each.file or each.file.startswith("<"))
    )
    place = next(own, None)
    return f" in {place}" if place else ""


def _place(stack: Sequence[Frame]) -> str:
    """The innermost frame of code that is neither Python's nor torch's."""
    if not stack:
        return NO_ANSWER
    return f"in {next((frame for frame in stack if not (frame.is_torchs or '/lib/python' in frame.file)), stack[0])}"


def _wait(stack: Sequence[Frame]) -> str:
    """The operation of `torch.distributed` in which a rank waits, else the function of torch that was called."""
    within = list(takewhile(lambda frame: frame.is_torchs, stack))
    collective = (each for each in within if "/torch/distributed/" in each.file and each.function not in _WRAPPERS)
    if found := next(collective, None):
        return found.function
    return str(within[-1] if within else stack[0])
