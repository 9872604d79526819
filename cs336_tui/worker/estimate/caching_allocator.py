"""Simulates torch's CUDA caching allocator: bytes that it counts as allocated for given tensors.

After c10/cuda/CUDACachingAllocator.cpp with default settings, no expandable segments. Requests are rounded up to 512
bytes. At most 1 MiB comes from a segment of 2 MiB, more from one of 20 MiB, or from 10 MiB on of its own size rounded
up to 2 MiB. The smallest free block that fits is split; a rest of at most 1 MiB (in a small segment less than 512
bytes) stays and counts too.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cs336_tui.events.prediction import LT_WORKSPACE_OP, WORKSPACE_OP
from cs336_tui.worker.estimate.scratch import MULTIPLY
from cs336_tui.worker.estimate.tracker import TrackedTimeline

UNIT = 512
_SMALL = 2**20
_SMALL_SEGMENT = 2 * 2**20
_LARGE_SEGMENT = 20 * 2**20
_OWN_SEGMENT_FROM = 10 * 2**20
_SEGMENT_UNIT = 2 * 2**20


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class NoRoom(Exception):
    """A segment cannot be had. `needed` are the bytes of all segments with it, unused ones given back."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


def as_cached(timeline: TrackedTimeline) -> TrackedTimeline:
    """The allocations of a steady step with the sizes of their blocks. Blocks are those of the second step of a
    process, which finds what the first one left: model, batch, workspaces and the optimizer's state lie as they
    came."""
    process = _Process(timeline, CachingAllocator())
    process.build()
    process.step(is_first=True)
    process.end_step()
    process.step(is_first=False)
    return process.timeline()


class Reserved(NamedTuple):
    """The least bytes of segments with which the first steps run, unused ones given back in need, and the amounts above
    it (from, to below) with which they do not."""

    least: int
    unfit: tuple[tuple[int, int], ...]


_STEPS = 3
"""Steps after which the allocator's segments repeated in the cells that were looked at."""
_RUNS = 64
"""Limits that are tried above the least one."""


def reserved(timeline: TrackedTimeline) -> Reserved:
    """Memory in which the first steps of a process run, in bytes."""
    too_little, limit = 0, _round_up(max(timeline.totals), _SEGMENT_UNIT)
    while needed := run_in(timeline, limit).needed:
        too_little, limit = limit, needed
    while limit - too_little > _SEGMENT_UNIT and too_little:
        between = too_little + (limit - too_little) // 2 // _SEGMENT_UNIT * _SEGMENT_UNIT
        if run_in(timeline, between).needed:
            too_little = between
        else:
            limit = between
    unfit, above = list[tuple[int, int]](), limit
    for _ in range(_RUNS):
        run = run_in(timeline, above)
        if run.next is None:
            break
        if run.needed:
            first = unfit.pop()[0] if unfit and unfit[-1][1] == above else above
            unfit.append((first, run.next))
        above = run.next
    return Reserved(limit, tuple(unfit))


class _Run(NamedTuple):
    """Steps within a limit. `needed`: what the first request asks for that does not fit, 0 where all do; `next`: the
    least limit above with which the allocator would do something else, None if there is none."""

    needed: int
    next: int | None


def run_in(timeline: TrackedTimeline, limit: int) -> _Run:
    """Follow the first steps with segments of at most `limit` bytes."""
    allocator = CachingAllocator(limit)
    process = _Process(timeline, allocator)
    try:
        process.build()
        for number in range(_STEPS):
            process.step(is_first=number == 0)
            process.end_step()
    except NoRoom as error:
        return _Run(error.needed, allocator.next_limit)
    return _Run(0, allocator.next_limit)


class _Process:
    """The first steps of a process: builds, then steps. The tracked step is a steady one, with all that was there
    before from event 0; the first step makes the optimizer's state and the workspaces, and finds no gradients."""

    def __init__(self, timeline: TrackedTimeline, allocator: CachingAllocator) -> None:
        self._tracked = timeline
        self._allocations = timeline.allocations
        self._allocator = allocator
        self._blocks: dict[int, _Block] = {}
        self._sizes: dict[int, int] = {}
        there = [number for number, each in enumerate(self._allocations) if each.born == 0]
        self._workspaces = [n for n in there if self._allocations[n].site.op in (WORKSPACE_OP, LT_WORKSPACE_OP)]
        self._state, self._gradients = (
            [number for number in there if self._allocations[number].category == category]
            for category in ("optimizer_state", "gradients")
        )
        self._built = [n for n in there if n not in {*self._workspaces, *self._state, *self._gradients}]
        births = [(each.born, True, number) for number, each in enumerate(self._allocations) if each.born]
        deaths = [(each.died, False, number) for number, each in enumerate(self._allocations) if each.died is not None]
        self._moments = sorted(births + deaths)  # at one event deaths come first
        self._optimizer = next((first for phase, first in timeline.begins if phase == "optimizer"), timeline.events)

    def build(self) -> None:
        """Make the model, then the batch, whose two parts are cut from one tensor of random tokens (`random_batch`)."""
        batch, forms = self._built[-2:], {self._allocations[number].form for number in self._built[-2:]}
        for number in self._built[:-2]:
            self._allocate(number)
        self._allocator.release()
        form = forms.pop()
        is_cut = not forms and form is not None and form.dtype == "int64" and len(form.shape) == 2
        whole = self._allocator.allocate(8 * form.shape[0] * (form.shape[1] + 1)) if is_cut and form else None
        for number in batch:
            self._allocate(number)
        if whole:
            self._allocator.free(whole)

    def step(self, *, is_first: bool) -> None:
        workspaces = list(self._workspaces) if is_first else []
        at_optimizer = bisect_left(self._moments, self._optimizer, key=lambda moment: moment[0])
        self._run(self._moments[:at_optimizer], workspaces)
        for number in self._state if is_first else ():
            self._allocate(number)
        self._run(self._moments[at_optimizer:], workspaces)

    def _run(self, moments: Sequence[tuple[int, bool, int]], workspaces: list[int]) -> None:
        """Allocate and free; the first product of a thread takes its `workspaces`."""
        for _, is_birth, number in moments:
            if not is_birth:
                self._free(number)
                continue
            self._allocate(number)
            site = self._allocations[number].site
            if workspaces and site.op in MULTIPLY:
                for each in [n for n in workspaces if self._allocations[n].site.backward == site.backward]:
                    self._allocate(each)
                    workspaces.remove(each)

    def end_step(self) -> None:
        """Drop logits, loss and gradients. Those that the tracked step begins with are the first step's."""
        left = [number for number in self._blocks if self._allocations[number].born]
        made = [number for number in left if self._allocations[number].category == "gradients"]

        def requested(number: int) -> int:
            return self._allocations[number].bytes

        for number, alike in zip(sorted(self._gradients, key=requested), sorted(made, key=requested), strict=False):
            self._sizes[number] = self._sizes[alike]
        for number in left:
            self._free(number)

    def timeline(self) -> TrackedTimeline:
        sized = [replace(each, bytes=self._sizes.get(n, each.bytes)) for n, each in enumerate(self._allocations)]
        return TrackedTimeline(sized, self._tracked.events, self._tracked.begins)

    def _allocate(self, number: int) -> None:
        if requested := self._allocations[number].bytes:
            self._blocks[number] = block = self._allocator.allocate(requested)
            self._sizes[number] = block.size

    def _free(self, number: int) -> None:
        if number in self._blocks:
            self._allocator.free(self._blocks.pop(number))


class CachingAllocator:
    """Free blocks by size, then address; at most `limit` bytes in segments."""

    def __init__(self, limit: int | None = None) -> None:
        self.reserved = 0  # Bytes of all segments
        self.next_limit: int | None = None
        """The least that segments would have taken when `limit` did not allow it."""
        self._limit = limit
        self._end = 0  # Of the addresses
        self._free: dict[bool, list[tuple[int, int, _Block]]] = {True: [], False: []}
        """Blocks of small segments (True) and of large ones."""

    def allocate(self, requested: int) -> _Block:
        """A block of at least this many bytes, which may not be 0."""
        size = _round_up(requested, UNIT)
        small = size <= _SMALL
        free = self._free[small]
        place = bisect_left(free, size, key=lambda entry: entry[0])
        block = free.pop(place)[2] if place < len(free) else self._segment(size, small)
        left = block.size - size
        if left >= UNIT if small else left > _SMALL:
            rest = _Block(block.start + size, left, small, before=block, after=block.after)
            if block.after:
                block.after.before = rest
            block.after, block.size = rest, size
            self._put(rest)
        block.free = False
        return block

    def free(self, block: _Block) -> None:
        """Give a block back; it joins its free neighbours within the segment."""
        before, after = block.before, block.after
        if before and before.free:
            self._take(before)
            block.start, block.size, block.before = before.start, before.size + block.size, before.before
            if block.before:
                block.before.after = block
        if after and after.free:
            self._take(after)
            block.size, block.after = block.size + after.size, after.after
            if block.after:
                block.after.before = block
        self._put(block)

    def _segment(self, size: int, small: bool) -> _Block:
        large = _LARGE_SEGMENT if size < _OWN_SEGMENT_FROM else _round_up(size, _SEGMENT_UNIT)
        length = _SMALL_SEGMENT if small else large
        if self._limit is not None and self.reserved + length > self._limit:
            wanted = self.reserved + length
            self.next_limit = min(self.next_limit or wanted, wanted)
            self.release()
            if self.reserved + length > self._limit:
                raise NoRoom(self.reserved + length)
        block = _Block(self._end, length, small)
        self._end += length
        self.reserved += length
        return block

    def release(self) -> None:
        """Give back the segments of which nothing is used."""
        for small, free in self._free.items():
            self.reserved -= sum(block.size for *_, block in free if block.is_segment)
            self._free[small] = [entry for entry in free if not entry[2].is_segment]

    def _put(self, block: _Block) -> None:
        block.free = True
        insort(self._free[block.small], (block.size, block.start, block))

    def _take(self, block: _Block) -> None:
        free = self._free[block.small]
        del free[bisect_left(free, (block.size, block.start), key=lambda entry: entry[:2])]


@dataclass(slots=True, eq=False)
class _Block:
    start: int
    size: int
    small: bool
    before: _Block | None = None
    after: _Block | None = None
    free: bool = True

    @property
    def is_segment(self) -> bool:
        return self.before is None and self.after is None
