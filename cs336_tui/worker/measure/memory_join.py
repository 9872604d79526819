"""Joins an allocator's recording with the operations that asked for the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any, NamedTuple

import msgspec

from cs336_tui.events.reports import CATEGORIES, Category, Site, TensorForm
from cs336_tui.worker.estimate.timeline import TrackedAllocation
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


class Life:
    """One allocation: live at events ``born <= event < died``, to the end if `died` is None."""

    __slots__ = ("born", "bytes", "category", "died", "form", "known", "site")

    def __init__(self, bytes_: int, site: Site, born: int, died: int | None = None) -> None:
        self.bytes, self.site, self.born, self.died = bytes_, site, born, died
        self.category: Category = "temporary"
        self.form: TensorForm | None = None
        self.known = False  # True if an operation returned it

    def belongs_to(self, record: TrackedAllocation) -> None:
        """Copy the tracker's knowledge."""
        self.category, self.site, self.known = record.category, record.site, True
        self.form = TensorForm(record.shape, record.dtype)


def lives_of(records: Iterable[TrackedAllocation]) -> list[Life]:
    """The allocations as the tracker alone has seen them."""
    lives = [(Life(record.bytes, record.site, record.born, record.died), record) for record in records]
    for life, record in lives:
        life.belongs_to(record)
    return [life for life, _ in lives]


def join(recording: Recording, operations: Iterable[Operation], records: Sequence[TrackedAllocation]) -> list[Life]:
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
            life.belongs_to(record)
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
        self.lives: list[Life] = []
        self._events = events
        self._next = 0
        self._live: dict[int, Life] = {}

    def add(self, address: int, size: int, site: Site, born: int = 0) -> Life:
        life = self._live[address] = Life(size, site, born)
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

    def returned(self, record: TrackedAllocation) -> None:
        life = self._live.get(record.address)
        if life and not life.known:
            life.belongs_to(record)


def cut(lives: Iterable[Life], first: int) -> list[Life]:
    """The allocations that are live at event `first - 1` or born later, with event `first` counted as 1."""
    kept = [copy(life) for life in lives if life.died is None or life.died >= first]
    for life in kept:
        life.born = max(life.born - first + 1, 0)
        life.died = None if life.died is None else life.died - first + 1
    return kept


class Columns(NamedTuple):
    """Allocations as the columns of a `MemoryReport`."""

    bytes: tuple[int, ...]
    born: tuple[int, ...]
    died: tuple[int, ...]
    categories: tuple[int, ...]
    site_of: tuple[int, ...]
    sites: tuple[Site, ...]
    form_of: tuple[int, ...]
    forms: tuple[TensorForm, ...]


def columns(lives: Iterable[Life]) -> Columns:
    """The columns, in order of birth."""
    ordered = sorted(lives, key=lambda life: life.born)
    sites = {site: place for place, site in enumerate(dict.fromkeys(life.site for life in ordered))}
    forms = {form: place for place, form in enumerate(dict.fromkeys(life.form for life in ordered if life.form))}
    return Columns(
        bytes=tuple(life.bytes for life in ordered),
        born=tuple(life.born for life in ordered),
        died=tuple(-1 if life.died is None else life.died for life in ordered),
        categories=tuple(CATEGORIES.index(life.category) for life in ordered),
        site_of=tuple(sites[life.site] for life in ordered),
        sites=tuple(sites),
        form_of=tuple(forms[life.form] if life.form else -1 for life in ordered),
        forms=tuple(forms),
    )
