"""Allocations of a step over its events: totals, phases, categories and largest blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from cs336_tui.events.reports import CATEGORIES, Category, MemoryBlock, PhaseSpan, Site, TensorForm


@dataclass(slots=True)
class Allocation:
    """Memory that is live at events ``born <= event < died``, to the end if `died` is None. `bytes` may be 0."""

    bytes: int
    site: Site
    born: int = 0
    died: int | None = None
    category: Category = "temporary"
    form: TensorForm | None = None  # Of the tensor that it was allocated for, if an operation returned one
    address: int = 0  # Of the memory; 0 for a tensor without data

    @property
    def block(self) -> MemoryBlock:
        form = msgspec.structs.astuple(self.form) if self.form else ()
        return MemoryBlock(self.bytes, self.category, self.site, *form)


class TrackedTimeline:
    """Allocations in order of birth. Event 0 is the state before the first phase; each further event is a birth or a
    death. `begins` are the phases, in order, by their first events; a phase's peak includes what lives at its begin."""

    def __init__(self, allocations: Iterable[Allocation], events: int, begins: Sequence[tuple[str, int]]) -> None:
        self.allocations = tuple(allocations)
        self.events, self.begins = events, tuple(begins)
        change = [0] * events
        for allocation in self.allocations:
            change[allocation.born] += allocation.bytes
            if allocation.died is not None:
                change[allocation.died] -= allocation.bytes
        self.totals = tuple(accumulate(change))  # Live bytes after each event
        ends = (*(first for _, first in begins[1:]), events)
        self.phases = tuple(
            PhaseSpan(phase, first, end, max(self.totals[first - 1 : end]))
            for (phase, first), end in zip(begins, ends, strict=True)
        )

    def phase(self, name: str) -> PhaseSpan | None:
        """The last run of this phase."""
        return next((span for span in reversed(self.phases) if span.phase == name), None)

    def phase_at(self, event: int) -> str:
        """The phase that an event belongs to; of event 0 the first one."""
        return next((span.phase for span in reversed(self.phases) if span.first <= event), self.phases[0].phase)

    def peak_event(self) -> int:
        """The first event with the most live bytes."""
        return self.totals.index(max(self.totals))

    def live_at(self, event: int) -> Iterator[Allocation]:
        return (a for a in self.allocations if a.born <= event and (a.died is None or event < a.died))

    def by_category(self, event: int) -> dict[str, int]:
        """Live bytes of every one of `CATEGORIES`; their sum is ``totals[event]``."""
        sums = dict.fromkeys(CATEGORIES, 0)
        for allocation in self.live_at(event):
            sums[allocation.category] += allocation.bytes
        return sums

    def largest(self, event: int, count: int = 20) -> tuple[MemoryBlock, ...]:
        """The largest live allocations, largest first, then by birth."""
        by_size = sorted(self.live_at(event), key=lambda allocation: -allocation.bytes)
        return tuple(allocation.block for allocation in by_size[:count] if allocation.bytes)
