"""What an allocator handed out, joined with what is known of the operations that asked for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from cs336_tui.events.reports import CATEGORIES, Category, PhaseSpan, Site, TensorForm
from cs336_tui.worker.estimate.timeline import TrackedAllocation
from cs336_tui.worker.estimate.tracker import MemoryTracker
from cs336_tui.worker.measure.allocator_events import AllocatorEvent, Recording

HELD_BEFORE = Site("held since warm-up")
"""Of what no tensor of the cell is in, such as the workspace of a library."""


class Operation(NamedTuple):
    """One operation that was watched: the tracker's events in it, and the marks at its begin and end.

    An operation that is made of others comes after these.
    """

    first: int
    end: int
    opened: int
    closed: int
    site: Site


class PhaseMark(NamedTuple):
    """Where a phase begins: the number of its mark, and the tracker's first event in it."""

    phase: str
    mark: int
    event: int


class MarkedTracker(MemoryTracker):
    """A tracker that has `mark` called before and after each operation, and where each phase begins."""

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
    """One allocation: live at events ``born <= event < died``, to the end when `died` is None."""

    __slots__ = ("born", "bytes", "category", "died", "form", "known", "site")

    def __init__(self, bytes_: int, site: Site, born: int, died: int | None = None) -> None:
        self.bytes, self.site, self.born, self.died = bytes_, site, born, died
        self.category: Category = "temporary"
        self.form: TensorForm | None = None
        self.known = False
        """Whether an operation returned it."""

    def belongs_to(self, record: TrackedAllocation) -> None:
        """Take over what the tracker knows."""
        self.category, self.site, self.known = record.category, record.site, True
        self.form = TensorForm(record.shape, record.dtype)


def lives_of(records: Iterable[TrackedAllocation]) -> list[Life]:
    """What the tracker alone has seen."""
    lives = []
    for record in records:
        life = Life(record.bytes, record.site, record.born, record.died)
        life.belongs_to(record)
        lives.append(life)
    return lives


def join(recording: Recording, operations: Iterable[Operation], records: Sequence[TrackedAllocation]) -> list[Life]:
    """Every allocation of a recording, in order of birth; recorded event `i` is event ``i + 1``, 0 is what was before.

    An allocation belongs to the operation in which it was made. One that the operation returned is what the tracker
    recorded at that address; what else it took is temporary. What is made between two operations goes with the one
    before.
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
    """Allocator events one after another."""

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
        """As far as event `end` of the recording; what is made there belongs to `site`."""
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
    """What is live at event `first - 1` or is born later, with event `first` counted as 1."""
    kept = []
    for life in lives:
        if life.died is None or life.died >= first:
            later = Life(life.bytes, life.site, max(life.born - first + 1, 0))
            later.died = None if life.died is None else life.died - first + 1
            later.category, later.form, later.known = life.category, life.form, life.known
            kept.append(later)
    return kept


def totals(lives: Iterable[Life], events: int) -> tuple[int, ...]:
    """Live bytes after each event."""
    change = [0] * events
    for life in lives:
        change[life.born] += life.bytes
        if life.died is not None:
            change[life.died] -= life.bytes
    return tuple(accumulate(change))


def phase_spans(begins: Sequence[tuple[str, int]], live: Sequence[int]) -> tuple[PhaseSpan, ...]:
    """Spans of phases that begin at these events; the peak of each counts what lives at its begin."""
    ends = [first for _, first in begins[1:]] + [len(live)]
    return tuple(
        PhaseSpan(phase, first, end, max(live[first - 1 : end]))
        for (phase, first), end in zip(begins, ends, strict=True)
    )


class Columns(NamedTuple):
    """Lives as a `MemoryReport` has them."""

    bytes: tuple[int, ...]
    born: tuple[int, ...]
    died: tuple[int, ...]
    categories: tuple[int, ...]
    site_of: tuple[int, ...]
    sites: tuple[Site, ...]
    form_of: tuple[int, ...]
    forms: tuple[TensorForm, ...]


def columns(lives: Iterable[Life]) -> Columns:
    """In order of birth."""
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
