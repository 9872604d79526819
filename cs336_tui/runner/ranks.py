"""Runs a cell of several ranks, a process each, and watches them to their end."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from textwrap import indent
from typing import NamedTuple, Protocol

import msgspec

from cs336_tui.events.events import ChildOutput, Event
from cs336_tui.runner.hanging import STACKS_S, Pulse, Stuck, ask_for_stacks, stuck_ranks, told
from cs336_tui.runner.launcher import Rank
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.runner.rank_fold import RankFold, ReportFold
from cs336_tui.runner.supervise import PACE_S, Supervisor

SILENCE_S = 600.0
"""Seconds after which ranks of which none tells anything are taken to hang, unless one compiles, or the cell's timeout
is longer."""
MOST_PACE_S = 0.2
"""Most seconds between two looks at a busy rank: so many times `PACE_S` as there are ranks, as each look costs."""
LAST_WORDS_S = 0.5
"""Seconds in which the other ranks may end by themselves once one has failed."""

Note = Callable[[int, Sequence[Event]], None]
"""Takes events of a rank."""


class Part(Protocol):
    """Ranks of a cell or report that are watched together: one here, or those on a node."""

    def watch(self, note: Note, stop: StopSignal, pace_s: float) -> None:
        """Block until its ranks are over; `note` is given their events, last exactly one end of each (of two cells in
        turns, of each cell), as soon as it is known."""
        ...

    def kill(self) -> None:
        """End its ranks; for any thread."""
        ...

    def ask(self) -> None:
        """Ask its ranks where they are."""
        ...

    def stuck(self, until: float) -> list[Stuck]:
        """Whatever its ranks have answered `until` then (monotonic seconds)."""
        ...

    def clear(self) -> None:
        """Remove what it leaves, once it is over."""
        ...


class RankHere(NamedTuple):
    """One rank whose process is a child of this one."""

    number: int
    rank: Rank
    cell: int | None
    report: int | None

    def watch(self, note: Note, stop: StopSignal, pace_s: float) -> None:
        note_own = partial(note, self.number)
        Supervisor(self.rank.child, self.cell, note_own, stop, report=self.report, pace_s=pace_s).run()

    def kill(self) -> None:
        with suppress(ValueError):  # it is over, and closed
            self.rank.child.process.kill()

    def ask(self) -> None:
        ask_for_stacks([self.rank])

    def stuck(self, until: float) -> list[Stuck]:
        return stuck_ranks({self.number: self.rank}, until)

    def clear(self) -> None:
        self.rank.clear()


def here(
    ranks: Sequence[Rank], *, cell: int | None = None, report: int | None = None, first: int = 0
) -> list[RankHere]:
    """The ranks of a cell or report on this machine, numbered from `first`."""
    return [RankHere(number, rank, cell, report) for number, rank in enumerate(ranks, first)]


def pace_of(ranks: int) -> float:
    """Seconds between two looks at a rank."""
    return min(PACE_S * ranks, MOST_PACE_S)


def run_ranks(
    parts: Sequence[Part],
    folds: Sequence[RankFold | ReportFold],
    record: Callable[[Sequence[Event]], None],
    stop: StopSignal,
    timeout_s: float | None = None,
) -> None:
    """Watch all ranks to their end; `record` receives the events of the cell or report that they run, or of two cells
    in turns, by the fold of each, last exactly the end of each. Once a rank has failed the others are ended: without
    it they would wait for ever. All are ended after `timeout_s`, and when none has told anything for `SILENCE_S`
    and none compiles."""
    first = folds[0]
    by_cell = {fold.cell: fold for fold in folds}
    folding, failed, pulse = threading.Lock(), threading.Event(), Pulse()

    def note(number: int, events: Sequence[Event]) -> None:
        with folding:
            pulse.feel(events)
            marked = [_of_rank(number, event) for event in events]
            found = [each for event in marked for each in by_cell.get(_cell_of(event), first).add(number, event)]
            if found:
                record(found)
            if any(fold.has_failed for fold in folds):
                failed.set()

    watches = [
        threading.Thread(target=part.watch, args=(note, stop, pace_of(len(parts))), name=f"{first.name}-{n}")
        for n, part in enumerate(parts)
    ]
    over = threading.Event()
    end_by = math.inf if timeout_s is None else time.monotonic() + timeout_s

    def end_rest() -> None:
        silence_s = max(SILENCE_S, timeout_s or 0.0)
        stuck: Sequence[Stuck] = ()
        while not failed.is_set():
            if (left_s := min(end_by, pulse.at + silence_s) - time.monotonic()) > 0:
                failed.wait(min(left_s, threading.TIMEOUT_MAX))
                continue
            stuck = () if pulse.beats() else _stuck(parts)
            if time.monotonic() >= end_by or not any(each.compiles for each in stuck):
                break
            pulse.beat()
        if not failed.is_set():
            limit = "" if timeout_s is None else f"no result within the per-cell timeout of {timeout_s:g} s"
            silent = f"silent for {time.monotonic() - pulse.at:.3g} s"
            known = (*told(stuck, first.name_of), silent) if stuck else ()
            for fold in () if over.is_set() else folds:
                fold.ended_because = "; ".join(filter(None, (*known, limit)))
        end_at = time.monotonic() + (LAST_WORDS_S if failed.is_set() else 0.0)
        for watched, part in zip(watches, parts, strict=True):
            watched.join(max(0.0, end_at - time.monotonic()))
            if watched.is_alive():
                part.kill()

    ending = threading.Thread(target=end_rest, name=f"{first.name}-end")
    for thread in (*watches, ending):
        thread.start()
    for thread in watches:
        thread.join()
    over.set()
    failed.set()
    ending.join()
    for part in parts:
        part.clear()
    for fold in folds:
        if isinstance(fold, RankFold) and isinstance(first, RankFold):
            fold.end_like(first)
    record([fold.end() for fold in folds])


def _stuck(parts: Sequence[Part]) -> list[Stuck]:
    """Which ranks hang or compile, and what the others wait in."""
    for part in parts:
        part.ask()
    until = time.monotonic() + STACKS_S
    return [each for part in parts for each in part.stuck(until)]


def _of_rank(number: int, event: Event) -> Event:
    """The event; the lines of a rank's output begin with its number."""
    if isinstance(event, ChildOutput):
        return msgspec.structs.replace(event, text=indent(event.text, f"[rank {number}] "))
    return event


def _cell_of(event: Event) -> int | None:
    return getattr(event, "cell", None)
