"""Runs a cell of several ranks, a process each, watches them to their end, and folds their events into those of one."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from textwrap import indent
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from cs336_tui.events import events as ev
from cs336_tui.events.audit import Audit
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.events.reports import RankMemoryReport, Report
from cs336_tui.runner.launcher import Rank
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.runner.supervise import PACE_S, STACKS_S, Pulse, Stuck, Supervisor, ask_for_stacks, stuck_ranks, told
from cs336_tui.stats.summaries import skews, summarize
from cs336_tui.worker.worker_entry import ENDED_THE_ROUND

SILENCE_S = 600.0
"""Seconds after which ranks of which none tells anything are taken to hang, unless one compiles, or the cell's timeout
is longer."""
MOST_PACE_S = 0.2
"""Most seconds between two looks at a busy rank: so many times `PACE_S` as there are ranks, as each look costs."""
LAST_WORDS_S = 0.5
"""Seconds in which the other ranks may end by themselves once one has failed."""

Note = Callable[[int, Sequence[ev.Event]], None]
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
    cells: Sequence[int]
    report: int | None

    def watch(self, note: Note, stop: StopSignal, pace_s: float) -> None:
        note_own = partial(note, self.number)
        Supervisor(self.rank.child, self.cells, note_own, stop, report=self.report, pace_s=pace_s).run()

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
    ranks: Sequence[Rank], *, cells: Sequence[int] = (), report: int | None = None, first: int = 0
) -> list[RankHere]:
    """The ranks of cells or of a report on this machine, numbered from `first`."""
    return [RankHere(number, rank, cells, report) for number, rank in enumerate(ranks, first)]


def pace_of(ranks: int) -> float:
    """Seconds between two looks at a rank."""
    return min(PACE_S * ranks, MOST_PACE_S)


def run_here(
    ranks: Sequence[Rank],
    folds: Sequence[RankFold | ReportFold],
    record: Callable[[Sequence[ev.Event]], None],
    stop: StopSignal,
    timeout_s: float | None = None,
    *,
    pace_s: float = PACE_S,
) -> None:
    """As `run_ranks`, with the processes of all ranks, which are closed at the end; one alone is looked at each
    `pace_s`, and has its own words for its end."""
    cells, report = [fold.cell for fold in folds if fold.cell is not None], folds[0].report
    with ExitStack() as around:
        for rank in ranks:
            around.enter_context(closing(rank.child))
        if len(ranks) > 1:
            run_ranks(here(ranks, cells=cells, report=report), folds, record, stop, timeout_s)
        else:
            Supervisor(ranks[0].child, cells, record, stop, timeout_s, report=report, pace_s=pace_s).run()


def run_ranks(
    parts: Sequence[Part],
    folds: Sequence[RankFold | ReportFold],
    record: Callable[[Sequence[ev.Event]], None],
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

    def note(number: int, events: Sequence[ev.Event]) -> None:
        with folding:
            pulse.feel(events)
            found: list[ev.Event] = []
            for event in events:
                if isinstance(event, ev.ChildOutput):
                    event = msgspec.structs.replace(event, text=indent(event.text, f"[rank {number}] "))
                found += by_cell.get(getattr(event, "cell", None), first).add(number, event)
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
            stuck = () if pulse.beats() else stuck_in(parts)
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
    record([fold.end() for fold in folds])


def stuck_in(parts: Sequence[Part]) -> list[Stuck]:
    """Which ranks hang or compile, and what the others wait in."""
    for part in parts:
        part.ask()
    until = time.monotonic() + STACKS_S
    return [each for part in parts for each in part.stuck(until)]


_End = TypeVar("_End", ev.CellFinished, ev.ReportFinished)
NODE_LOST = "its node was lost"
"""Begins the error of ranks whose node answers no more."""
_LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection refused",
    "ncclRemoteError",
)
"""In the errors of ranks whose peer has ended: the consequence of a failure, not its cause."""


_LARGEST = (
    "peak_allocated_bytes", "peak_reserved_bytes", "peak_rss_bytes", "num_alloc_retries", "measured_for_s",
    "cpu_wait_s", "longest_cpu_wait_s",
)  # fmt: skip
"""Fields of a cell's end that are the largest of its ranks."""


class _Fold(Generic[_End]):
    """Ends of the ranks of a cell or of a report, each as its rank told it."""

    def __init__(self, *, cell: int | None = None, report: int | None = None, nodes: Sequence[str] = ()) -> None:
        self._nodes = nodes  # of each rank, if they are on several
        self.ended_because = ""
        """Why the runner ended ranks that hung or took too long, if it did."""
        self.cell, self.report = cell, report
        self.name = f"cell-{cell}" if report is None else f"report-{report}"
        self._ends: dict[int, _End] = {}

    def name_of(self, rank: int) -> str:
        """The rank for people; one of several nodes with its node."""
        return f"rank {rank} on {self._nodes[rank]}" if self._nodes else f"rank {rank}"

    @property
    def has_failed(self) -> bool:
        return any(end.status != "ok" for end in self._ends.values())

    def _end(self) -> _End:
        """Why all were ended, or the end of the rank that failed first, which it names; of the first, if all ended
        well."""
        if self.ended_because and self.has_failed:  # all may have ended well but for their checks
            return msgspec.structs.replace(self._ends[0], status="killed", error=self.ended_because)
        failed = [(rank, end) for rank, end in self._ends.items() if end.status != "ok"]
        if not failed:
            return self._ends[0]
        rank, end = min(failed, key=lambda each: _blame(each[1]))
        error = end.error if end.status == "cancelled" else f"{self.name_of(rank)}: {end.error or end.status}"
        return msgspec.structs.replace(end, error=error)


class RankFold(_Fold[ev.CellFinished]):
    """Folds the events of `ranks` ranks into those of one cell.

    An event of which each rank tells one is passed on when the last rank has told it: the cell is where its slowest
    rank is. A step lasts as long as on its slowest rank, whose phases it has; each rank's time stands beside it. What
    only some ranks tell is passed on as it is, a notice that several tell once.
    """

    def __init__(self, cell: int, ranks: int, nodes: Sequence[str] = ()) -> None:
        super().__init__(cell=cell, nodes=nodes)
        self._waiting: list[deque[ev.Event]] = [deque() for _ in range(ranks)]
        self._measured_s: list[float] = []
        self._skews_s: list[float] = []
        self._told: set[str] = set()  # notices

    def add(self, rank: int, event: ev.Event) -> Iterator[ev.Event]:
        """Take an event of a rank; yields the cell's events that are now complete, without its end."""
        if isinstance(event, ev.CellFinished):
            self._ends[rank] = event
            return
        if isinstance(event, ev.Notice) and event.text in self._told:
            return
        if isinstance(event, ev.Notice):
            self._told.add(event.text)
        if not isinstance(event, ev.StageChanged | ev.ModelBuilt | ev.ModelPrepared | ev.StepsTimed):
            yield event
            return
        self._waiting[rank].append(event)
        while all(self._waiting) and (found := self._next()):
            yield found

    def _next(self) -> ev.Event | None:
        """The next event of all ranks; None once one of them has failed and goes its own way."""
        heads = [waiting[0] for waiting in self._waiting]
        alike = len({_kind(head) for head in heads}) == 1
        if not alike:  # a rank that changed its settings tells of them twice
            odd = (waiting for waiting in self._waiting if isinstance(waiting[0], ev.ModelBuilt | ev.ModelPrepared))
            return next((waiting.popleft() for waiting in odd), None)
        steps = [head for head in heads if isinstance(head, ev.StepsTimed)]
        if steps:
            return self._steps(steps)
        for waiting in self._waiting:
            waiting.popleft()
        # The slowest.
        return max(heads, key=lambda head: (getattr(head, "compile_s", None) or 0.0, head.at))

    def _steps(self, heads: Sequence[ev.StepsTimed]) -> ev.StepsTimed:
        """The steps that all ranks have told; the rest of a rank that is ahead waits on."""
        count = min(len(head.times_s) for head in heads)
        for waiting, head in zip(self._waiting, heads, strict=True):
            waiting.popleft()
            if len(head.times_s) > count:
                waiting.appendleft(_part(head, slice(count, None)))
        several = [_part(head, slice(count)) for head in heads]
        slowest = [max(range(len(several)), key=lambda rank: several[rank].times_s[n]) for n in range(count)]
        times_s = tuple(several[rank].times_s[n] for n, rank in enumerate(slowest))
        if several[0].kind == "measured":
            self._measured_s += times_s
            self._skews_s += skews(each.times_s for each in several)
        return msgspec.structs.replace(
            several[0],
            at=max(each.at for each in several),
            times_s=times_s,
            phases_s=_of_slowest([each.phases_s for each in several], slowest),
            host_s=tuple(several[rank].host_s[n] for n, rank in enumerate(slowest)) if several[0].host_s else (),
            host_phases_s=_of_slowest([each.host_phases_s for each in several], slowest),
            rank_times_s=tuple(each.times_s for each in several),
            rank_sync_s=tuple(each.phases_s[ev.GRADIENT_SYNC] for each in several if ev.GRADIENT_SYNC in each.phases_s),
        )

    def end(self) -> ev.CellFinished:
        """The cell's end, once each rank has ended: that of the rank that failed first, or of all together."""
        ends = [self._ends[rank] for rank in sorted(self._ends)]
        remarks = [remark for end in ends for remark in end.remarks]
        if nodes := Counter(self._nodes):
            counts = ", ".join(f"{node} ({n})" for node, n in nodes.items())
            remarks.insert(0, f"its ranks ran on {len(nodes)} nodes: {counts}")
        choices = tuple(next(iter(end.autotuned), ()) for end in ends)
        known = {name: [found for each in ends if (found := getattr(each, name)) is not None] for name in _LARGEST}
        return msgspec.structs.replace(
            self._end(),
            at=max(each.at for each in ends),
            **{name: max(values, default=None) for name, values in known.items()},
            recompilations=sum(each.recompilations for each in ends),
            audit=self._audit(ends),
            autotuned=choices if any(choices) else (),
            remarks=tuple(dict.fromkeys(remarks)),
            rank_nodes=tuple(self._nodes),
            summary=summarize(self._measured_s),
            skew=summarize(self._skews_s),
            rank_peak_bytes=tuple(
                each.peak_rss_bytes if each.peak_allocated_bytes is None else each.peak_allocated_bytes for each in ends
            ),
        )

    def _audit(self, ends: Sequence[ev.CellFinished]) -> Audit | None:
        """The checks of the first rank, with the results of all."""
        audits = [end.audit for end in ends if end.audit]
        if not audits:
            return None
        results = [each.results for each in audits if each.results]
        first = max(audits, key=lambda each: each.books is not None)
        if not results:
            return first
        whole = msgspec.structs.replace(
            results[0],
            differences=tuple(difference for each in results for difference in each.differences),
            unmoved=tuple(dict.fromkeys(name for each in results for name in each.unmoved)),
            unequal=tuple(dict.fromkeys(name for each in results for name in each.unequal)),
            unchecked=next((each.unchecked for each in results if each.unchecked), ""),
        )
        return msgspec.structs.replace(first, results=whole)


class ReportFold(_Fold[ev.ReportFinished]):
    """Folds the events of ranks into those of one report: its stages are those of the first rank, its content
    has the parts of all."""

    def __init__(self, report: int, nodes: Sequence[str] = ()) -> None:
        super().__init__(report=report, nodes=nodes)

    def add(self, rank: int, event: ev.Event) -> Iterator[ev.Event]:
        """Take an event of a rank; yields those of the report, without its end."""
        if isinstance(event, ev.ReportFinished):
            self._ends[rank] = event
        elif not rank or not isinstance(event, ev.ReportStage):
            yield event

    def end(self) -> ev.ReportFinished:
        """The report's end, once each rank has ended."""
        ends = [self._ends[rank] for rank in sorted(self._ends)]
        whole = None if self.ended_because or self.has_failed else _whole([end.content for end in ends])
        return msgspec.structs.replace(self._end(), at=max(end.at for end in ends), content=whole)


def _whole(parts: Sequence[Report | None]) -> Report | None:
    """The report of all ranks, from the part of each."""
    for kind, field in ((RankMemoryReport, "moments"), (KernelReport, "ranks")):
        if isinstance(parts[0], kind):
            of_all = (each for part in parts if isinstance(part, kind) for each in getattr(part, field))
            return msgspec.structs.replace(parts[0], **{field: tuple(of_all)})
    return parts[0]


def _kind(event: ev.Event) -> tuple[type, str]:
    """Likeness of the events that ranks tell of the same moment."""
    match event:
        case ev.StageChanged():
            return ev.StageChanged, event.stage
        case ev.StepsTimed():
            return ev.StepsTimed, event.kind
    return type(event), ""


def _blame(end: ev.CellFinished | ev.ReportFinished) -> tuple[int, float]:
    """Order of ends: the loss of a node, a failure of its own, that of the cell in turns with it, being stopped, the
    loss of a peer; each by time."""
    error = end.error or ""
    if NODE_LOST in error:  # of which the other ranks may have told before
        return -1, end.at
    if any(words in error for words in _LOST_PEER):
        return 3, end.at
    return 2 if end.status == "cancelled" else int(ENDED_THE_ROUND in error), end.at


def _part(steps: ev.StepsTimed, which: slice) -> ev.StepsTimed:
    """Some of these steps."""
    return msgspec.structs.replace(
        steps,
        first=steps.first + (which.start or 0),
        times_s=steps.times_s[which],
        phases_s={name: times_s[which] for name, times_s in steps.phases_s.items()},
        host_s=steps.host_s[which],
        host_phases_s={name: times_s[which] for name, times_s in steps.host_phases_s.items()},
    )


def _of_slowest(
    by_rank: Sequence[dict[str, tuple[float, ...]]], slowest: Sequence[int]
) -> dict[str, tuple[float, ...]]:
    return {name: tuple(by_rank[rank][name][n] for n, rank in enumerate(slowest)) for name in by_rank[0]}
