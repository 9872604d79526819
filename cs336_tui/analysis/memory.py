"""A memory report in figures: the timeline, live allocations at a moment, peaks by phase, what blocks save."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from cs336_tui.events.prediction import (
    ACTIVE_PHASES,
    ALL_CATEGORIES,
    OF_ACTIVATIONS,
    UNKNOWN_USE,
    Category,
    MemoryBlock,
    PhaseSpan,
)
from cs336_tui.events.reports import BlockMemory, MemoryReport, SavedTensor

Ints: TypeAlias = npt.NDArray[np.int64]

TOP_CONTRIBUTORS = 5


class Moment(NamedTuple):
    """The live memory at one event, in bytes, the largest block first; `by_category` has every category, or
    where some use is unknown those that occur."""

    event: int
    phase: str
    total_bytes: int
    by_category: dict[Category, int]
    blocks: tuple[MemoryBlock, ...]


class Allocation(NamedTuple):
    """A block and its life: live at events ``born <= event < died``, to the end of the step when `died` is None.
    `phase` is the one in which it was made, empty for one that lived before the step."""

    block: MemoryBlock
    born: int
    died: int | None
    phase: str


class SiteBytes(NamedTuple):
    """Live bytes that one line of the model asked for within one range."""

    frame: str
    range: str
    bytes: int
    allocations: int


class Timeline:
    """A report's events as arrays. Made once; every answer after that is quick, at a million events too."""

    def __init__(self, report: MemoryReport) -> None:
        self.report = report
        self.events = report.events
        self._bytes = _ints(report.bytes)
        self._born = _ints(report.born)
        died = _ints(report.died)
        self._died = np.where(died < 0, report.events, died)
        self._category = np.array(report.categories, dtype=np.int8)
        self._phase_first = _ints([span.first for span in report.phases])

    @cached_property
    def categories(self) -> tuple[Category, ...]:
        """The categories of the report; where some use is ``unknown``, those that occur."""
        occur = np.bincount(self._category, minlength=len(ALL_CATEGORIES))
        some = tuple(name for name, count in zip(ALL_CATEGORIES, occur, strict=True) if count)
        return some if UNKNOWN_USE in some else ALL_CATEGORIES[:-1]

    @cached_property
    def by_category(self) -> Ints:
        """Live bytes, (categories, events)."""
        return np.stack([self._live_of(self._category == ALL_CATEGORIES.index(name)) for name in self.categories])

    @cached_property
    def live_total(self) -> Ints:
        """Live bytes at each event."""
        total: Ints = self.by_category.sum(axis=0)
        return total

    @cached_property
    def live_activations(self) -> Ints:
        """Live bytes of activations and temporary memory at each event, of what the step itself allocated."""
        places = [place for place, name in enumerate(ALL_CATEGORIES) if name in OF_ACTIVATIONS]
        return self._live_of(np.isin(self._category, places) & (self._born > 0))

    def _live_of(self, chosen: npt.NDArray[np.bool_]) -> Ints:
        """Live bytes of the chosen blocks at each event."""
        changes = np.zeros(self.events + 1, dtype=np.int64)
        np.add.at(changes, self._born[chosen], self._bytes[chosen])
        np.subtract.at(changes, self._died[chosen], self._bytes[chosen])
        live: Ints = changes[:-1].cumsum()
        return live

    def activations_in(self, span: PhaseSpan) -> int:
        """The most bytes of `live_activations` in a phase; what lives when it begins counts."""
        return int(self.live_activations[max(span.first - 1, 0) : span.end].max(initial=0))

    def moments(self, count: int, first: int = 0, end: int | None = None) -> Ints:
        """For each of `count` equal columns of the events from `first` to `end`, its event with most bytes live. With
        more columns than events neighbouring ones share theirs."""
        end = self.events if end is None else end
        edges = first + (end - first) * np.arange(count + 1, dtype=np.int64) // count
        starts, stops = edges[:-1], np.maximum(edges[1:], edges[:-1] + 1)
        found = [start + int(self.live_total[start:stop].argmax()) for start, stop in zip(starts, stops, strict=True)]
        return _ints(found)

    def phase_at(self, event: int) -> str:
        """The phase that an event belongs to; empty before the first."""
        place = int(np.searchsorted(self._phase_first, event, side="right")) - 1
        return self.report.phases[place].phase if place >= 0 else ""

    def at(self, event: int, n: int = 20) -> Moment:
        """The live memory at an event, with its `n` largest blocks."""
        live = self._live(event)
        by_category: dict[Category, int] = dict(zip(self.categories, self.by_category[:, event].tolist(), strict=True))
        blocks = tuple(map(self._block, self._largest(live, n).tolist()))
        return Moment(event, self.phase_at(event), sum(by_category.values()), by_category, blocks)

    def allocations(self, min_bytes: int = 0, n: int | None = None) -> tuple[Allocation, ...]:
        """The `n` largest allocations of the whole step, all when None, of at least `min_bytes`; largest first."""
        places = np.arange(len(self._bytes), dtype=np.int64)
        return tuple(map(self._allocation, self._largest(places, n, min_bytes).tolist()))

    def by_site(self, event: int) -> tuple[SiteBytes, ...]:
        """Live bytes by frame and range, largest first. What lived before the step has no frame."""
        live = self._live(event)
        sites = self.report.sites
        site_of = np.array(self.report.site_of, dtype=np.int64)[live]
        totals = np.bincount(site_of, self._bytes[live], len(sites))
        counts = np.bincount(site_of, minlength=len(sites))
        grouped: dict[tuple[str, str], tuple[int, int]] = {}
        for place in np.flatnonzero(counts):
            key = sites[place].frame, sites[place].range
            size, count = grouped.get(key, (0, 0))
            grouped[key] = size + int(totals[place]), count + int(counts[place])
        rows = [SiteBytes(frame, range_, *found) for (frame, range_), found in grouped.items()]
        return tuple(sorted(rows, key=lambda row: -row.bytes))

    def _live(self, event: int) -> Ints:
        """Places of the blocks that are live at an event."""
        born_by_then = int(np.searchsorted(self._born, event, side="right"))
        return np.flatnonzero(self._died[:born_by_then] > event)

    def _largest(self, places: Ints, n: int | None, min_bytes: int = 0) -> Ints:
        """Those of `places` with the most bytes, largest first, equals in order of birth."""
        places = places[self._bytes[places] >= min_bytes]
        if n is not None and 0 < n < len(places):
            bound = np.partition(self._bytes[places], -n)[-n]
            places = places[self._bytes[places] >= bound]
        order: Ints = places[np.argsort(-self._bytes[places], kind="stable")][:n]
        return order

    def _block(self, place: int) -> MemoryBlock:
        report = self.report
        form = report.form_of[place] if report.form_of else -1
        known = msgspec.structs.astuple(report.forms[form]) if form >= 0 else ()
        category, site = ALL_CATEGORIES[report.categories[place]], report.sites[report.site_of[place]]
        return MemoryBlock(report.bytes[place], category, site, *known)

    def _allocation(self, place: int) -> Allocation:
        born, died = self.report.born[place], self.report.died[place]
        phase = self.phase_at(born) if born else ""
        return Allocation(self._block(place), born, None if died < 0 else died, phase)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


class AlikeBlocks(NamedTuple):
    """Allocations of one size from one place of the model's code, such as one in each layer; `when` they live."""

    block: MemoryBlock
    when: str
    allocations: tuple[Allocation, ...] = ()

    @property
    def times(self) -> int:
        return len(self.allocations)

    @property
    def total_bytes(self) -> int:
        """Of all of them, whether or not they live at once."""
        return self.block.bytes * self.times


def alike(
    allocations: Iterable[Allocation], when: Callable[[Allocation], str] = attrgetter("phase")
) -> tuple[AlikeBlocks, ...]:
    """Allocations that differ only in their moments as one, in the order of the first of each."""
    found: dict[AlikeBlocks, list[Allocation]] = {}
    for allocation in allocations:
        found.setdefault(AlikeBlocks(allocation.block, when(allocation)), []).append(allocation)
    return tuple(each._replace(allocations=tuple(together)) for each, together in found.items())


def phase_peaks(report: MemoryReport) -> dict[str, int | None]:
    """Its peaks in bytes; None for a phase that its pass does not have. ``step`` is the peak of the whole recorded
    step, ``allocator`` the allocator's own count of it, ``activations`` `activation_peak`."""
    phases: dict[str, int | None] = dict.fromkeys(("forward", "backward", "optimizer"))
    for phase in phases:
        phases[phase] = max((span.peak_bytes for span in report.phases if span.phase == phase), default=None)
    return phases | {
        "step": report.peak_bytes,
        "activations": activation_peak(report),
        "allocator": report.allocator_peak_bytes,
    }


def tells_activations(report: MemoryReport) -> bool:
    """False of what others recorded without a backward: nothing tells what its forward keeps."""
    return not report.spec.recording or any(span.phase == "backward" for span in report.phases)


def activation_peak(report: MemoryReport) -> int | None:
    """The most bytes of activations and temporary memory that the step allocated and that live at once in forward, loss
    or backward: the peak apart from parameters, gradients, optimizer state and buffers. None without such a phase, and
    if `tells_activations` is False."""
    if report.activation_peak_bytes is not None:
        return report.activation_peak_bytes
    spans = [span for span in report.phases if span.phase in ACTIVE_PHASES and tells_activations(report)]
    if not spans:
        return None
    timeline = Timeline(report)
    return max(map(timeline.activations_in, spans))


class BlockRow(BlockMemory, frozen=True, kw_only=True):
    """The backward of one Transformer block, or of blocks that are recomputed together, in bytes: what its gradients
    add and what is let go, beside how live memory changed."""

    saved_bytes: int | None
    """Saved for backward; None if that is not known, as all that follows from it."""

    @property
    def expected_bytes(self) -> int | None:
        """Gradients come, saved tensors go."""
        return None if self.saved_bytes is None else self.gradient_bytes - self.saved_bytes

    @property
    def change_bytes(self) -> int:
        """Change of live memory over its backward."""
        return self.after_bytes - self.before_bytes

    @property
    def difference_bytes(self) -> int | None:
        """Change less what is expected."""
        return None if self.expected_bytes is None else self.change_bytes - self.expected_bytes

    @property
    def seen_gradient_bytes(self) -> int | None:
        """The bytes that must have come: change and saved tensors together."""
        return None if self.saved_bytes is None else self.change_bytes + self.saved_bytes


def block_rows(report: MemoryReport) -> tuple[BlockRow, ...]:
    """A row a block, in the model's order; none without a backward, or in an old record."""
    saved = {block.module: block.bytes for block in report.saved}
    asdict = msgspec.structs.asdict
    return tuple(BlockRow(**asdict(block), saved_bytes=saved.get(block.module)) for block in report.blocks)


class SavedRow(NamedTuple):
    """The tensors that one module saves for backward, or each of `alike` ones, `bytes` each."""

    modules: str
    """As ``layers.0``, or ``layers.0 to layers.11, each``."""
    alike: int
    bytes: int
    contributors: tuple[tuple[SavedTensor, float], ...]
    """Bytes that the five largest kinds of operations save, each with its share of all that the block saves, 0 to 1."""
    rest_bytes: int
    rest_count: int
    """Kinds of operations among the rest."""


def saved_summary(report: MemoryReport) -> tuple[SavedRow, ...]:
    """The tensors that each Transformer block saves for backward; neighbours that save the same are one row."""
    rows = []
    for found, blocks in groupby(report.saved, lambda block: block.contributors):
        first, *others = blocks
        modules = f"{first.module} to {others[-1].module}, each" if others else first.module
        top = tuple((each, each.bytes / first.bytes if first.bytes else 0.0) for each in found[:TOP_CONTRIBUTORS])
        rest = [each.bytes for each in found[TOP_CONTRIBUTORS:]]
        rows.append(SavedRow(modules, len(others) + 1, first.bytes, top, sum(rest), len(rest)))
    return tuple(rows)
