"""Simulates torch's CUDA caching allocator: bytes that it counts as allocated for given tensors.

After c10/cuda/CUDACachingAllocator.cpp with default settings, or with expandable segments. Requests are rounded up to
512 bytes. At most 1 MiB comes from a segment of 2 MiB, more from one of 20 MiB, or from 10 MiB on of its own size
rounded up to 2 MiB. The smallest free block that fits is split; a rest of at most 1 MiB (in a small or an expandable
segment less than 512 bytes) stays and counts too.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from cs336_tui.events.prediction import LT_WORKSPACE_OP, WORKSPACE_OP, TrackedTimeline
from cs336_tui.worker.estimate.scratch import MULTIPLY

UNIT = 512
_SMALL = 2**20
_SMALL_SEGMENT = 2 * 2**20
_LARGE_SEGMENT = 20 * 2**20
_OWN_SEGMENT_FROM = 10 * 2**20
_SEGMENT_UNIT = 2 * 2**20
_ADDRESSES = 2**30 * _LARGE_SEGMENT
"""Bytes of a segment that expands: more than any device has."""


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


class NoRoom(Exception):
    """A segment cannot be had. `needed` are the bytes of all segments with it, unused ones given back."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


def as_cached(timeline: TrackedTimeline, *, expandable: bool = False) -> TrackedTimeline:
    """The allocations of a steady step with the sizes of their blocks. Blocks are those of the second step of a
    process, which finds what the first one left: model, batch, workspaces and the optimizer's state lie as they
    came."""
    process = _Process(timeline, expandable=expandable)
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


def reserved(timeline: TrackedTimeline, *, expandable: bool = False) -> Reserved:
    """Memory in which the first steps of a process run, in bytes."""
    too_little, limit = 0, _round_up(max(timeline.totals), _SEGMENT_UNIT)
    while needed := run_in(timeline, limit, expandable=expandable).needed:
        too_little, limit = limit, needed
    while limit - too_little > _SEGMENT_UNIT and too_little:
        between = too_little + (limit - too_little) // 2 // _SEGMENT_UNIT * _SEGMENT_UNIT
        if run_in(timeline, between, expandable=expandable).needed:
            too_little = between
        else:
            limit = between
    unfit, above = list[tuple[int, int]](), limit
    for _ in range(_RUNS):
        run = run_in(timeline, above, expandable=expandable)
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


def run_in(timeline: TrackedTimeline, limit: int, *, expandable: bool = False) -> _Run:
    """Follow the first steps with segments of at most `limit` bytes."""
    process = _Process(timeline, limit, expandable=expandable)
    try:
        process.build()
        for number in range(_STEPS):
            process.step(is_first=number == 0)
            process.end_step()
    except NoRoom as error:
        return _Run(error.needed, process.allocator.next_limit)
    return _Run(0, process.allocator.next_limit)


class _Process:
    """The first steps of a process: builds, then steps. The tracked step is a steady one, with all that was there
    before from event 0; the first step makes the optimizer's state and the workspaces, and finds no gradients."""

    def __init__(self, timeline: TrackedTimeline, limit: int | None = None, *, expandable: bool) -> None:
        self._tracked = timeline
        self._allocations = timeline.allocations
        self.allocator = (ExpandableAllocator if expandable else CachingAllocator)(limit)
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
        self.allocator.release()
        form = forms.pop()
        is_cut = not forms and form is not None and form.dtype == "int64" and len(form.shape) == 2
        whole = self.allocator.allocate(8 * form.shape[0] * (form.shape[1] + 1)) if is_cut and form else None
        for number in batch:
            self._allocate(number)
        if whole:
            self.allocator.free(whole)

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
            if workspaces and (site := self._allocations[number].site).op in MULTIPLY:
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
        sized = [
            msgspec.structs.replace(each, bytes=self._sizes.get(n, each.bytes))
            for n, each in enumerate(self._allocations)
        ]
        return TrackedTimeline(sized, self._tracked.events, self._tracked.begins)

    def _allocate(self, number: int) -> None:
        if requested := self._allocations[number].bytes:
            self._blocks[number] = block = self.allocator.allocate(requested)
            self._sizes[number] = block.size

    def _free(self, number: int) -> None:
        if number in self._blocks:
            self.allocator.free(self._blocks.pop(number))


class CachingAllocator:
    """Free blocks by size, then address; at most `limit` bytes in segments."""

    _splits_all = False

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
        place = self._best(free, bisect_left(free, (size,)))
        block = free.pop(place)[2] if place < len(free) else self._segment(size, small)
        left = block.size - size
        if left >= UNIT if small or self._splits_all else left > _SMALL:
            self._put(block.split(size))
        block.free = False
        return block

    def free(self, block: _Block) -> None:
        """Give a block back; it joins its free neighbours within the segment."""
        for neighbour in (block.before, block.after):
            if neighbour and neighbour.free:
                self._take(neighbour)
                block.join(neighbour)
        self._put(block)

    def _best(self, _free: Sequence[tuple[int, int, _Block]], place: int) -> int:
        """The place of the free block that a request takes; `place` is that of the smallest one that fits."""
        return place

    def _segment(self, size: int, small: bool) -> _Block:
        large = _LARGE_SEGMENT if size < _OWN_SEGMENT_FROM else _round_up(size, _SEGMENT_UNIT)
        length = _SMALL_SEGMENT if small else large
        if not self._has_room(length):
            self.release()
            if not self._has_room(length):
                raise NoRoom(self.reserved + length)
        block = _Block(self._end, length, small)
        self._end += length
        self.reserved += length
        return block

    def _has_room(self, length: int) -> bool:
        wanted = self.reserved + length
        if self._limit is None or wanted <= self._limit:
            return True
        self.next_limit = min(self.next_limit or wanted, wanted)
        return False

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
        del free[bisect_left(free, (block.size, block.start))]


class ExpandableAllocator(CachingAllocator):
    """With `expandable_segments`: one segment for small blocks, of pages of 2 MiB, and one for large ones, of 20 MiB.
    Pages are mapped where a request needs them, and unmapped where nothing of them is used."""

    _splits_all = True

    def __init__(self, limit: int | None = None) -> None:
        super().__init__(limit)
        begins = {True: 0, False: _ADDRESSES}
        self._unmapped = {
            small: [_Block(begin, _ADDRESSES, small, free=False, mapped=False)] for small, begin in begins.items()
        }
        """Stretches without pages, by address."""

    def _best(self, free: Sequence[tuple[int, int, _Block]], place: int) -> int:
        """Blocks that can grow are kept for larger requests."""
        while place + 1 < len(free) and _most(free[place + 1][2]) < _most(free[place][2]):
            place += 1
        return place

    def _segment(self, size: int, small: bool) -> _Block:
        first, pages = self._place(size, small)
        if not self._has_room(pages):
            self.release()
            first, pages = self._place(size, small)
            if not self._has_room(pages):
                raise NoRoom(self.reserved + pages)
        self.reserved += pages
        block = self._mapped(first, size)
        while block.size < size and block.after:
            block.join(self._mapped(block.after, size - block.size))
        if block.after and block.after.free:
            block.join(self._mapped(block.after, 0))
        return block

    def _place(self, size: int, small: bool) -> tuple[_Block, int]:
        """The first stretch of free blocks and unmapped pages that is large enough, and bytes of pages to map there."""
        for unmapped in self._unmapped[small]:
            before = unmapped.before
            first = before if before and before.free else unmapped
            found = pages = 0
            block: _Block | None = first
            while block and (block.free or not block.mapped) and found < size:
                taken = block.size if block.free else min(block.size, _round_up(size - found, _page(small)))
                found, pages, block = found + taken, pages + (0 if block.free else taken), block.after
            if found >= size:
                return first, pages
        raise NoRoom(self.reserved + size)

    def _mapped(self, block: _Block, length: int) -> _Block:
        """The block, out of its list; an unmapped one with pages for the length."""
        if block.free:
            self._take(block)
            return block
        unmapped = self._unmapped[block.small]
        place = bisect_left(unmapped, block.start, key=lambda each: each.start)
        pages = min(block.size, _round_up(length, _page(block.small)))
        unmapped[place : place + 1] = [block.split(pages)] if pages < block.size else []
        block.mapped = True
        return block

    def release(self) -> None:
        for small, free in self._free.items():
            page = _page(small)
            for *_, block in list(free):
                begin, end = _round_up(block.start, page), (block.start + block.size) // page * page
                if begin < end:
                    self._take(block)
                    self._unmap(block, begin, end)
                    self.reserved -= end - begin

    def _unmap(self, block: _Block, begin: int, end: int) -> None:
        if end < block.start + block.size:
            self._put(block.split(end - block.start))
        if begin > block.start:
            pages = block.split(begin - block.start)
            self._put(block)
            block = pages
        block.free = block.mapped = False
        unmapped = self._unmapped[block.small]
        for neighbour in (block.before, block.after):
            if neighbour and not neighbour.mapped:
                unmapped.remove(neighbour)
                block.join(neighbour)
        insort(unmapped, block, key=lambda each: each.start)


def _page(small: bool) -> int:
    return _SMALL_SEGMENT if small else _LARGE_SEGMENT


def _most(block: _Block) -> int:
    """Bytes that a free block can grow to."""
    after = block.after
    return block.size + (after.size if after and not after.mapped else 0)


@dataclass(slots=True, eq=False)
class _Block:
    start: int
    size: int
    small: bool
    before: _Block | None = None
    after: _Block | None = None
    free: bool = True
    mapped: bool = True

    @property
    def is_segment(self) -> bool:
        return self.before is None and self.after is None

    def split(self, size: int) -> _Block:
        """Keep so many bytes. The rest, which follows, is as this block was."""
        rest = _Block(self.start + size, self.size - size, self.small, self, self.after, self.free, self.mapped)
        if self.after:
            self.after.before = rest
        self.after, self.size = rest, size
        return rest

    def join(self, neighbour: _Block) -> None:
        """Take in the block before or after this one."""
        if neighbour is self.before:
            self.start, self.before = neighbour.start, neighbour.before
            if self.before:
                self.before.after = self
        else:
            self.after = neighbour.after
            if self.after:
                self.after.before = self
        self.size += neighbour.size
