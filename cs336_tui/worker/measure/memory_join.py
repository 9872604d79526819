"""Joins an allocator's recording with the operations that asked for the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from cs336_tui.events.reports import CATEGORIES, Site
from cs336_tui.worker.estimate.timeline import Allocation, TrackedTimeline
from cs336_tui.worker.estimate.tracker import MemoryTracker
from cs336_tui.worker.measure.allocator_events import AllocatorEvent, Recording

HELD_BEFORE = Site("held since warm-up")  # Memory without a tensor of the cell, as a workspace


class Operation(NamedTuple):
    """One operation: the tracker's events in it, and the marks at its begin and end. Comes after operations in it."""

    first: int
    end: int
    opened: int
    closed: int
    site: Site


class PhaseMark(NamedTuple):
    """The begin of a phase: the number of its mark, and the tracker's first event in it."""

    phase: str
    mark: int
    event: int


class MarkedTracker(MemoryTracker):
    """A tracker that calls `mark` before and after each operation and at each phase's begin."""

    def __init__(self, mark: Callable[[], object], *, device_type: str | None = None) -> None:
        super().__init__(device_type=device_type)
        self.operations: list[Operation] = []
        self.phases: list[PhaseMark] = []
        self._mark = mark
        self._marks = 0
        self._operation_site = Site("")

    def phase(self, name: str) -> None:
        super().phase(name)
        self.phases.append(PhaseMark(name, self._put_mark(), self.events))

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        first, opened = self.events, self._put_mark()
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self.operations.append(Operation(first, self.events, opened, self._put_mark(), self._operation_site))

    def _site(self, op: str) -> Site:
        self._operation_site = super()._site(op)
        return self._operation_site

    def _put_mark(self) -> int:
        self._mark()
        self._marks += 1
        return self._marks - 1


def join(recording: Recording, operations: Iterable[Operation], records: Sequence[Allocation]) -> list[Allocation]:
    """Every allocation of a recording, in order of birth; recorded event `i` becomes ``i + 1``, event 0 is the begin.

    An allocation belongs to the operation in which it was made, or to the one before if made between two. One at the
    address of a returned tensor has the tracker's category; any other is temporary.
    """
    walk = _Walk(recording.events)
    by_birth = {record.born: record for record in records if record.born}
    claimed = {record.address: record for record in records if not record.born and record.bytes}
    before = recording.live_before or {address: record.bytes for address, record in claimed.items()}
    for address, size in before.items():
        life = walk.add(address, size, HELD_BEFORE)
        if record := claimed.get(address):
            _recognise(life, record)
    site = Site("")
    for operation in operations:
        walk.on(recording.marks[operation.opened], site)
        site = operation.site
        walk.on(recording.marks[operation.closed], site)
        for event in range(operation.first, operation.end):
            if (record := by_birth.pop(event, None)) and record.bytes:
                walk.returned(record)
    walk.on(len(recording.events), site)
    return walk.lives


class _Walk:
    """Goes through allocator events in order."""

    def __init__(self, events: Sequence[AllocatorEvent]) -> None:
        self.lives: list[Allocation] = []
        self._events = events
        self._next = 0
        self._live: dict[int, Allocation] = {}

    def add(self, address: int, size: int, site: Site, born: int = 0) -> Allocation:
        life = self._live[address] = Allocation(size, site, born)
        self.lives.append(life)
        return life

    def on(self, end: int, site: Site) -> None:
        """Go on to event `end` of the recording; allocations on the way belong to `site`."""
        for place in range(self._next, end):
            event = self._events[place]
            if gone := self._live.pop(event.address, None):
                gone.died = place + 1
            if event.bytes > 0:
                self.add(event.address, event.bytes, msgspec.structs.replace(site, op=event.op or site.op), place + 1)
        self._next = max(self._next, end)

    def returned(self, record: Allocation) -> None:
        found = self._live.get(record.address)
        if found and not found.form:
            _recognise(found, record)


def _recognise(allocation: Allocation, record: Allocation) -> None:
    """Copy the tracker's knowledge of an allocation that an operation returned."""
    allocation.category, allocation.site, allocation.form = record.category, record.site, record.form


def cut(allocations: Iterable[Allocation], events: int, begins: Sequence[tuple[str, int]]) -> TrackedTimeline:
    """The events from the first phase on, with everything before it as event 0."""
    before = begins[0][1] - 1
    kept = [
        replace(each, born=max(each.born - before, 0), died=None if each.died is None else each.died - before)
        for each in allocations
        if each.died is None or each.died > before
    ]
    kept.sort(key=lambda each: each.born)
    return TrackedTimeline(kept, events - before, [(phase, first - before) for phase, first in begins])


def columns(allocations: Sequence[Allocation]) -> dict[str, Any]:
    """Allocations, in order of birth, as the columns of a `MemoryReport`."""
    sites = {site: place for place, site in enumerate(dict.fromkeys(each.site for each in allocations))}
    forms = {form: place for place, form in enumerate(dict.fromkeys(each.form for each in allocations if each.form))}
    return {
        "bytes": tuple(each.bytes for each in allocations),
        "born": tuple(each.born for each in allocations),
        "died": tuple(-1 if each.died is None else each.died for each in allocations),
        "categories": tuple(CATEGORIES.index(each.category) for each in allocations),
        "site_of": tuple(sites[each.site] for each in allocations),
        "sites": tuple(sites),
        "form_of": tuple(forms[each.form] if each.form else -1 for each in allocations),
        "forms": tuple(forms),
    }
