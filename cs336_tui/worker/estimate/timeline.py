"""Allocations of a step over its events: totals, phases, categories and largest blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from cs336_tui.events.reports import CATEGORIES, Category, MemoryBlock, PhaseSpan, Site


class TrackedAllocation(NamedTuple):
    """One storage: live at events ``born <= event < died``, to the end if `died` is None. `bytes` may be 0."""

    bytes: int
    category: Category
    site: Site
    born: int
    died: int | None
    shape: tuple[int, ...]  # Shape of the tensor that it was allocated for
    dtype: str
    address: int  # Address of the memory; 0 for a tensor without data

    def live_at(self, event: int) -> bool:
        return self.born <= event and (self.died is None or event < self.died)

    @property
    def block(self) -> MemoryBlock:
        return MemoryBlock(self.bytes, self.category, self.site, self.shape, self.dtype)


class TrackedTimeline:
    """Allocations in order of birth. Event 0 is the state before the first phase; each further event is a birth or a
    death. `phases` are in order and do not overlap."""

    def __init__(self, allocations: Sequence[TrackedAllocation], events: int, phases: Sequence[PhaseSpan]) -> None:
        self.allocations = tuple(allocations)
        self.events = events
        self.phases = tuple(phases)
        self.totals = live_totals(self.allocations, events)  # Live bytes after each event

    def resized(self, sizes: Sequence[int]) -> TrackedTimeline:
        """The same timeline with other bytes for the allocations, in their order."""
        resized = [a._replace(bytes=size) for a, size in zip(self.allocations, sizes, strict=True)]
        return with_phases(resized, self.events, self._begins)

    def preceded_by(self, op: str, sizes: Sequence[int]) -> TrackedTimeline:
        """The same timeline with temporary allocations of these bytes from event 0 to the end."""
        held = [TrackedAllocation(size, "temporary", Site(op), 0, None, (size,), "uint8", 0) for size in sizes]
        return with_phases([*held, *self.allocations], self.events, self._begins)

    @property
    def _begins(self) -> list[tuple[str, int]]:
        return [(span.phase, span.first) for span in self.phases]

    def phase(self, name: str) -> PhaseSpan | None:
        """The last run of this phase."""
        return next((span for span in reversed(self.phases) if span.phase == name), None)

    def phase_at(self, event: int) -> str:
        """The phase that an event belongs to; of event 0 the first one."""
        return next((span.phase for span in reversed(self.phases) if span.first <= event), self.phases[0].phase)

    def peak_event(self, first: int = 0, end: int | None = None) -> int:
        """The first event of ``first <= event < end`` with the most live bytes."""
        return max(range(first, self.events if end is None else end), key=self.totals.__getitem__)

    def live_at(self, event: int) -> Iterator[TrackedAllocation]:
        return (allocation for allocation in self.allocations if allocation.live_at(event))

    def by_category(self, event: int) -> dict[str, int]:
        """Live bytes of every one of `CATEGORIES`; their sum is ``totals[event]``."""
        sums = dict.fromkeys(CATEGORIES, 0)
        for allocation in self.live_at(event):
            sums[allocation.category] += allocation.bytes
        return sums

    def largest(self, event: int, count: int = 20) -> tuple[MemoryBlock, ...]:
        """The largest live allocations, largest first, then by birth."""
        return largest_blocks(self.live_at(event), count)


def with_phases(
    allocations: Sequence[TrackedAllocation], events: int, begins: Sequence[tuple[str, int]]
) -> TrackedTimeline:
    """A timeline divided into phases by their first events."""
    return TrackedTimeline(allocations, events, phase_spans(begins, live_totals(allocations, events)))


class Lifespan(Protocol):
    """Bytes that are live at events ``born <= event < died``, to the end if `died` is None."""

    @property
    def bytes(self) -> int: ...
    @property
    def born(self) -> int: ...
    @property
    def died(self) -> int | None: ...


def live_totals(lives: Iterable[Lifespan], events: int) -> tuple[int, ...]:
    """Live bytes after each event."""
    change = [0] * events
    for life in lives:
        change[life.born] += life.bytes
        if life.died is not None:
            change[life.died] -= life.bytes
    return tuple(accumulate(change))


def phase_spans(begins: Sequence[tuple[str, int]], live: Sequence[int]) -> tuple[PhaseSpan, ...]:
    """Spans of the phases that begin at these events; a phase's peak includes what lives at its begin."""
    ends = [first for _, first in begins[1:]] + [len(live)]
    return tuple(
        PhaseSpan(phase, first, end, max(live[first - 1 : end]))
        for (phase, first), end in zip(begins, ends, strict=True)
    )


def largest_blocks(allocations: Iterable[TrackedAllocation], count: int) -> tuple[MemoryBlock, ...]:
    by_size = sorted((a for a in allocations if a.bytes), key=lambda allocation: -allocation.bytes)
    return tuple(allocation.block for allocation in by_size[:count])
