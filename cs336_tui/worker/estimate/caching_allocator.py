"""Simulates torch's CUDA caching allocator: bytes that it counts as allocated for given tensors.

After c10/cuda/CUDACachingAllocator.cpp with default settings, no expandable segments. Requests are rounded up to 512
bytes. At most 1 MiB comes from a segment of 2 MiB, more from one of 20 MiB, or from 10 MiB on of its own size rounded
up to 2 MiB. The smallest free block that fits is split; a rest of at most 1 MiB (in a small segment less than 512
bytes) stays and counts too.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, replace

from cs336_tui.worker.estimate.tracker import TrackedTimeline

UNIT = 512
_SMALL = 2**20
_SMALL_SEGMENT = 2 * 2**20
_LARGE_SEGMENT = 20 * 2**20
_OWN_SEGMENT_FROM = 10 * 2**20
_SEGMENT_UNIT = 2 * 2**20


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def as_cached(timeline: TrackedTimeline) -> TrackedTimeline:
    """The same allocations with the sizes of their blocks."""
    allocations = list(timeline.allocations)
    births = [(each.born, True, number) for number, each in enumerate(allocations)]
    deaths = [(each.died, False, number) for number, each in enumerate(allocations) if each.died is not None]
    allocator = CachingAllocator()
    blocks: dict[int, _Block] = {}
    for _, is_birth, number in sorted(births + deaths):  # at one event deaths come first
        requested = allocations[number].bytes
        if is_birth and requested:
            blocks[number] = block = allocator.allocate(requested)
            allocations[number] = replace(allocations[number], bytes=block.size)
        elif not is_birth and number in blocks:
            allocator.free(blocks.pop(number))
    return TrackedTimeline(allocations, timeline.events, timeline.begins)


class CachingAllocator:
    """Free blocks by size, then address; unlimited memory."""

    def __init__(self) -> None:
        self.reserved = 0  # Bytes of all segments, which are also their addresses' end
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
        block = _Block(self.reserved, length, small)
        self.reserved += length
        return block

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
