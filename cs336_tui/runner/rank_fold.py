"""Folds the events of several ranks into those of one cell or report."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from cs336_tui.events.events import (
    GRADIENT_SYNC,
    CellFinished,
    Event,
    ModelBuilt,
    ModelPrepared,
    Notice,
    ReportFinished,
    ReportStage,
    StageChanged,
    StepsTimed,
)
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.events.memory_report import RankMemoryReport
from cs336_tui.events.reports import Report
from cs336_tui.stats.summaries import skews, summarize
from cs336_tui.worker.worker_entry import ENDED_THE_ROUND

_Number = TypeVar("_Number", int, float)
_End = TypeVar("_End", CellFinished, ReportFinished)
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
        if self.ended_because:
            return msgspec.structs.replace(self._ends[0], status="killed", error=self.ended_because)
        failed = [(rank, end) for rank, end in self._ends.items() if end.status != "ok"]
        if not failed:
            return self._ends[0]
        rank, end = min(failed, key=lambda each: _blame(each[1]))
        error = end.error if end.status == "cancelled" else f"{self.name_of(rank)}: {end.error or end.status}"
        return msgspec.structs.replace(end, error=error)


class RankFold(_Fold[CellFinished]):
    """Folds the events of `ranks` ranks into those of one cell.

    An event of which each rank tells one is passed on when the last rank has told it: the cell is where its slowest
    rank is. A step lasts as long as on its slowest rank, whose phases it has; each rank's time stands beside it. What
    only some ranks tell is passed on as it is, a notice that several tell once.
    """

    def __init__(self, cell: int, ranks: int, nodes: Sequence[str] = ()) -> None:
        super().__init__(cell=cell, nodes=nodes)
        self._waiting: list[deque[Event]] = [deque() for _ in range(ranks)]
        self._measured_s: list[float] = []
        self._skews_s: list[float] = []
        self._told: set[str] = set()  # notices

    def add(self, rank: int, event: Event) -> Iterator[Event]:
        """Take an event of a rank; yields the cell's events that are now complete, without its end."""
        if isinstance(event, CellFinished):
            self._ends[rank] = event
            return
        if isinstance(event, Notice) and event.text in self._told:
            return
        if isinstance(event, Notice):
            self._told.add(event.text)
        if not isinstance(event, StageChanged | ModelBuilt | ModelPrepared | StepsTimed):
            yield event
            return
        self._waiting[rank].append(event)
        while all(self._waiting) and (found := self._next()):
            yield found

    def _next(self) -> Event | None:
        """The next event of all ranks; None once one of them has failed and goes its own way."""
        heads = [waiting[0] for waiting in self._waiting]
        alike = len({_kind(head) for head in heads}) == 1
        if not alike:  # a rank that changed its settings tells of them twice
            odd = (waiting for waiting in self._waiting if isinstance(waiting[0], ModelBuilt | ModelPrepared))
            return next((waiting.popleft() for waiting in odd), None)
        steps = [head for head in heads if isinstance(head, StepsTimed)]
        if steps:
            return self._steps(steps)
        for waiting in self._waiting:
            waiting.popleft()
        return max(heads, key=_slowness)

    def _steps(self, heads: Sequence[StepsTimed]) -> StepsTimed:
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
            rank_sync_s=tuple(each.phases_s[GRADIENT_SYNC] for each in several if GRADIENT_SYNC in each.phases_s),
        )

    def end_like(self, other: RankFold) -> None:
        """Give ranks whose process ended before it told the end of this cell that of the `other` one."""
        for rank, end in other._ends.items():
            self._ends.setdefault(rank, msgspec.structs.replace(end, cell=self.cell))

    def _spread(self) -> Iterator[str]:
        """A remark on the nodes of the ranks, if they are several."""
        if self._nodes:
            counts = Counter(self._nodes)
            yield f"its ranks ran on {len(counts)} nodes: {', '.join(f'{each} ({n})' for each, n in counts.items())}"

    def end(self) -> CellFinished:
        """The cell's end, once each rank has ended: that of the rank that failed first, or of all together."""
        ends = [self._ends[rank] for rank in sorted(self._ends)]
        return msgspec.structs.replace(
            self._end(),
            at=max(each.at for each in ends),
            peak_allocated_bytes=_largest(each.peak_allocated_bytes for each in ends),
            peak_reserved_bytes=_largest(each.peak_reserved_bytes for each in ends),
            peak_rss_bytes=_largest(each.peak_rss_bytes for each in ends),
            num_alloc_retries=_largest(each.num_alloc_retries for each in ends),
            recompilations=sum(each.recompilations for each in ends),
            measured_for_s=_largest(each.measured_for_s for each in ends),
            cpu_wait_s=_largest(each.cpu_wait_s for each in ends),
            longest_cpu_wait_s=_largest(each.longest_cpu_wait_s for each in ends),
            remarks=tuple(dict.fromkeys((*self._spread(), *(remark for each in ends for remark in each.remarks)))),
            rank_nodes=tuple(self._nodes),
            summary=summarize(self._measured_s),
            skew=summarize(self._skews_s),
            rank_peak_bytes=tuple(each.peak_allocated_bytes or each.peak_rss_bytes for each in ends),
        )


class ReportFold(_Fold[ReportFinished]):
    """Folds the events of ranks into those of one report: its stages are those of the first rank, its content
    has the parts of all."""

    def __init__(self, report: int, nodes: Sequence[str] = ()) -> None:
        super().__init__(report=report, nodes=nodes)

    def add(self, rank: int, event: Event) -> Iterator[Event]:
        """Take an event of a rank; yields those of the report, without its end."""
        if isinstance(event, ReportFinished):
            self._ends[rank] = event
        elif not rank or not isinstance(event, ReportStage):
            yield event

    def end(self) -> ReportFinished:
        """The report's end, once each rank has ended."""
        ends = [self._ends[rank] for rank in sorted(self._ends)]
        whole = None if self.ended_because or self.has_failed else _whole([end.content for end in ends])
        return msgspec.structs.replace(self._end(), at=max(end.at for end in ends), content=whole)


def _whole(parts: Sequence[Report | None]) -> Report | None:
    """The report of all ranks, from the part of each."""
    match parts[0]:
        case RankMemoryReport():
            moments = (each for part in parts if isinstance(part, RankMemoryReport) for each in part.moments)
            return msgspec.structs.replace(parts[0], moments=tuple(moments))
        case KernelReport():
            ranks = (each for part in parts if isinstance(part, KernelReport) for each in part.ranks)
            return msgspec.structs.replace(parts[0], ranks=tuple(ranks))
    return parts[0]


def _kind(event: Event) -> tuple[type, str]:
    """Likeness of the events that ranks tell of the same moment."""
    match event:
        case StageChanged():
            return StageChanged, event.stage
        case StepsTimed():
            return StepsTimed, event.kind
    return type(event), ""


def _slowness(event: Event) -> tuple[float, float]:
    return (event.compile_s or 0.0, event.at) if isinstance(event, ModelPrepared) else (0.0, event.at)


def _blame(end: CellFinished | ReportFinished) -> tuple[int, float]:
    """Order of ends: the loss of a node, a failure of its own, that of the cell in turns with it, being stopped, the
    loss of a peer; each by time."""
    error = end.error or ""
    if NODE_LOST in error:  # of which the other ranks may have told before
        return -1, end.at
    if any(words in error for words in _LOST_PEER):
        return 3, end.at
    return 2 if end.status == "cancelled" else int(ENDED_THE_ROUND in error), end.at


def _part(steps: StepsTimed, which: slice) -> StepsTimed:
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


def _largest(values: Iterator[_Number | None]) -> _Number | None:
    return max((value for value in values if value is not None), default=None)
