"""Ranks that hang: noticed by their silence, and named by the stacks that all write when they are asked."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
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

    def beats(self) -> bool:
        """True if ranks run, by the pauses between their steps."""
        return time.monotonic() - self.at < max(ALIVE_S, 2 * self._longest_s)


class Stuck(msgspec.Struct, frozen=True):
    """One rank of which nobody knows more: it `hangs`, or waits for others, `at` a place."""

    rank: int
    hangs: bool
    at: str


def ask_for_stacks(ranks: Iterable[Rank]) -> None:
    """Ask each for its stack."""
    for rank in ranks:
        if pid := rank.child.process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, STACK_SIGNAL)


def stuck_ranks(ranks: Mapping[int, Rank], until: float) -> list[Stuck]:
    """Which of these ranks hang, and what the others wait in, by the stacks that they were asked for and write `until`
    then (monotonic seconds)."""
    while time.monotonic() < until and not all(rank.stack() for rank in ranks.values()):
        time.sleep(0.01)
    found = []
    for number, rank in ranks.items():
        stack = frames_of(rank.stack())
        waits = bool(stack) and stack[0].waits_for_ranks
        found.append(Stuck(number, not waits, _wait(stack) if waits else _place(stack)))
    return found


def told(stuck: Iterable[Stuck], name: Callable[[int], str]) -> list[str]:
    """A phrase on each rank, by the name that it has, first on those that hang."""
    return [
        f"{name(each.rank)} {f'hangs {each.at}' if each.hangs else f'waits in {each.at}'}"
        for each in sorted(stuck, key=lambda each: (not each.hangs, each.rank))
    ]


class Frame(NamedTuple):
    """A line of a stack."""

    file: str
    line: int
    function: str

    @property
    def is_torchs(self) -> bool:
        return "/torch/" in self.file

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


def crashed_in(output: str) -> str:
    """The line of the user's own code in which a process crashed, by the stack at the end of its output, as `` in
    forward (model.py:12)``; empty if it tells none."""
    found = list(_STACK.finditer(output))
    crashed = next((each for each in found if each["current"] == "Current t"), found[0] if found else None)
    frames = frames_of(crashed["frames"]) if crashed else []
    own = (each for each in frames if not (each.is_torchs or "/lib/python" in each.file or _OURS in each.file))
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
