"""Blocks of CUDA's caching allocator in a memory snapshot, with their exact sizes as far as the file tells them.

A trace has the bytes that were asked for. The allocator rounds them up to 512 bytes, or as its settings say; in a large
segment it leaves a rest of at most 1 MiB in the block (c10/cuda/CUDACachingAllocator.cpp). Addresses tell the rest: it
is the gap to the next block or to the segment's end. Blocks that live at the end have the sizes of the segments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

UNIT = 512
SMALL = 2**20
"""Requests up to here come from segments of small blocks, which are split to the unit."""
MOST_REST = 2**20
_MOST = 2**50
"""No number of bytes is larger."""
_ALLOCATED = "active_allocated"


class SnapshotError(ValueError):
    """A snapshot that contradicts its format; the message says how, in one clause."""


@dataclass(slots=True)
class SnapshotBlock:
    """A block that was allocated at event `born`, 0 if before the recording, and freed at `died`, -1 if not."""

    address: int
    bytes: int
    born: int
    frames: object = None
    died: int = -1


class MemoryEvent(NamedTuple):
    """One event: an allocation or a free."""

    allocates: bool
    frames: object = None
    time_us: int | None = None
    metadata: object = None
    """The user's metadata of the events at that time."""


class History(NamedTuple):
    """One device's blocks in order of birth; event `i` is ``events[i - 1]``, event 0 what lived before."""

    blocks: list[SnapshotBlock]
    events: list[MemoryEvent]
    waiting_bytes: int
    """Most bytes that were freed and still waited for another stream while others were allocated, or at the end."""
    vanished: int
    """Blocks that the trace leaves live and the segments do not have; they live to the last event but one."""
    no_memory: list[tuple[int, int]]
    """Bytes asked for, and free on the device, each time that memory ran out."""


class _Settings(NamedTuple):
    divisions: Mapping[int, int]
    """Of a power of two, by the interval of sizes: 0 for from 1 MiB, 1 for from 2 MiB on."""
    expandable: bool
    most_split: int

    @classmethod
    def of(cls, found: object) -> _Settings:
        given = found if isinstance(found, dict) else {}
        divisions = given.get("roundup_power2_divisions")
        divided = {
            int(key).bit_length() - 1: value
            for key, value in (divisions.items() if isinstance(divisions, dict) else ())
            if isinstance(value, int) and 1 < value < 2**20 and str(key).isdecimal() and len(str(key)) < 9
        }
        most = given.get("max_split_size")
        return cls(
            divided,
            given.get("expandable_segments") is True,
            most if isinstance(most, int) and 0 < most < _MOST else _MOST,
        )

    def rounded(self, size: int) -> int:
        """Bytes that the allocator makes of a request."""
        if self.divisions and size >= UNIT:
            interval = min(max(size.bit_length() - 21, 0), 15)
            parts = self.divisions.get(interval, 0)
            if parts > 1 and size > UNIT * parts:
                floor = 1 << (size.bit_length() - 1)
                unit = floor >> (parts.bit_length() - 1)
                return -(-size // unit) * unit if unit else floor << (floor != size)
        return max(-(-size // UNIT), 1) * UNIT


def history_of(
    device: int, trace: Sequence[Any], segments: Sequence[Any], settings: object, go_on: Callable[[], object]
) -> History:
    """One device's history. Raises `SnapshotError`."""
    # The segments at the trace's begin: those at its end, without those made since, with those given back since.
    there = _Segments()
    for segment in segments:
        there.add(whole(segment, "address"), whole(segment, "total_size"), segment.get("is_expandable") is True)
    for entry in reversed(trace):
        action = entry.get("action") if isinstance(entry, dict) else None
        if action == "segment_alloc":
            there.remove(whole(entry, "addr"))
        elif action == "segment_free":
            there.add(whole(entry, "addr"), whole(entry, "size"))
    found = _Walk(_Settings.of(settings), there)
    for number, entry in enumerate(trace):
        if not number % 50_000:
            go_on()
        if not isinstance(entry, dict):
            raise SnapshotError(f"entry {number:,} of the trace of device {device} is no dict")
        found.on(entry)
    return found.ended(segments)


def blocks_of(segment: Mapping[str, Any]) -> Iterator[tuple[int, int, str, object]]:
    """Address, bytes, state and frames of each block. Old snapshots have no address in the blocks."""
    address = whole(segment, "address")
    blocks = segment.get("blocks")
    if not isinstance(blocks, list):
        raise SnapshotError("a segment has no list of blocks")
    for block in blocks:
        if not isinstance(block, dict):
            raise SnapshotError("a block is no dict")
        size = whole(block, "size")
        at = block.get("address", address)
        frames = block.get("frames")
        history = block.get("history")
        if frames is None and isinstance(history, list) and history and isinstance(history[0], dict):
            frames = history[0].get("frames")
        yield (at if isinstance(at, int) else address), size, str(block.get("state")), frames
        address += size


def whole(found: Mapping[str, Any], key: str) -> int:
    """A number of bytes, or an address."""
    value = found.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise SnapshotError(f"“{key}” of an entry is no number")
    if value > (_MOST if key == "size" else 2**64):
        raise SnapshotError(f"“{key}” of an entry is too large")
    return value


class _Segments:
    """Segments of large blocks that are there at a moment, by their begin; expandable ones are split to the unit."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: dict[int, tuple[int, bool]] = {}

    def add(self, begin: int, size: int, expandable: bool = False) -> None:
        if begin not in self._ends:
            insort(self._begins, begin)
        self._ends[begin] = begin + size, expandable

    def remove(self, begin: int) -> None:
        if self._ends.pop(begin, None):
            del self._begins[bisect_left(self._begins, begin)]

    def at(self, address: int) -> tuple[int, bool] | None:
        """The end of the segment round an address, and whether it is expandable."""
        place = bisect_right(self._begins, address) - 1
        if place < 0:
            return None
        end, expandable = self._ends[self._begins[place]]
        return (end, expandable) if address < end else None


class _Walk:
    """Follows a trace. Blocks that it did not see born lived before; their rests are the least gap behind them."""

    def __init__(self, settings: _Settings, segments: _Segments) -> None:
        self._settings, self._segments = settings, segments
        self._events: list[MemoryEvent] = []
        self._blocks: list[SnapshotBlock] = []
        self._before: list[SnapshotBlock] = []
        self._live: dict[int, SnapshotBlock] = {}
        self._large: list[int] = []
        """Addresses of live blocks of large segments."""
        self._unsure: list[tuple[SnapshotBlock, tuple[int, bool] | None]] = []
        """Large blocks from before that died, with what is known of their segments."""
        self._seen: list[tuple[int, int]] = []
        """Event and address of each birth of a large block."""
        self._waiting: dict[int, int] = {}
        self._waiting_bytes = self._most_waiting = 0
        self._no_memory: list[tuple[int, int]] = []

    def on(self, entry: Mapping[str, Any]) -> None:
        """The next entry of the trace; kinds that move no memory are left out."""
        action = entry.get("action")
        if action == "alloc":
            self._allocate(entry)
        elif action == "free_requested":
            address = whole(entry, "addr")
            block = self._free(entry)
            self._waiting[address] = block.bytes
            self._waiting_bytes += block.bytes
        elif action == "free_completed":
            address = whole(entry, "addr")
            if address in self._waiting:
                self._waiting_bytes -= self._waiting.pop(address)
            elif address in self._live:
                self._free(entry)
        elif action == "segment_alloc":
            self._segments.add(whole(entry, "addr"), whole(entry, "size"))
        elif action == "segment_free":
            self._segments.remove(whole(entry, "addr"))
        elif action == "oom":
            free = entry.get("device_free")
            self._no_memory.append((whole(entry, "size"), free if isinstance(free, int) else 0))

    def _event(self, entry: Mapping[str, Any], *, allocates: bool) -> int:
        time = entry.get("time_us")
        time = time if isinstance(time, int) else None
        self._events.append(MemoryEvent(allocates, entry.get("frames"), time, entry.get("user_metadata")))
        return len(self._events)

    def _allocate(self, entry: Mapping[str, Any]) -> None:
        address, event = whole(entry, "addr"), self._event(entry, allocates=True)
        self._most_waiting = max(self._most_waiting, self._waiting_bytes)
        if (lost := self._live.get(address)) is not None:  # its free is missing
            self._die(lost, event)
        block = SnapshotBlock(address, self._settings.rounded(whole(entry, "size")), event, entry.get("frames"))
        self._live[address] = block
        self._blocks.append(block)
        if block.bytes > SMALL:
            block.bytes += self._rest(block)
            insort(self._large, address)
            self._seen.append((event, address))

    def _free(self, entry: Mapping[str, Any]) -> SnapshotBlock:
        event, address = self._event(entry, allocates=False), whole(entry, "addr")
        block = self._live.get(address)
        if block is None:
            block = SnapshotBlock(address, self._settings.rounded(whole(entry, "size")), 0)
            block.died = event
            self._before.append(block)
            if block.bytes > SMALL:
                self._unsure.append((block, self._segments.at(address)))
        else:
            self._die(block, event)
        return block

    def _die(self, block: SnapshotBlock, event: int) -> None:
        block.died = event
        del self._live[block.address]
        if block.bytes > SMALL:
            del self._large[bisect_left(self._large, block.address)]

    def _rest(self, block: SnapshotBlock) -> int:
        """Bytes behind a large block that the allocator would not have split off, were the neighbours those known."""
        end = block.address + block.bytes
        found = self._segments.at(block.address)
        if found is None and self._settings.expandable:
            return 0
        place = bisect_right(self._large, block.address)
        bounds = [self._large[place]] if place < len(self._large) else []
        if found:
            bounds.append(found[0])
        gap = min(bounds, default=end) - end
        return gap if 0 < gap <= self._most_rest(block, found) else 0

    def _most_rest(self, block: SnapshotBlock, segment: tuple[int, bool] | None) -> int:
        if self._settings.expandable or (segment and segment[1]):
            return UNIT - 1
        return MOST_REST if block.bytes < self._settings.most_split else _MOST

    def ended(self, segments: Sequence[Mapping[str, Any]]) -> History:
        """The history, with the blocks of the segments at its end."""
        at_end = {
            address: (size, frames)
            for segment in segments
            for address, size, state, frames in blocks_of(segment)
            if state == _ALLOCATED
        }
        vanished = [block for address, block in self._live.items() if address not in at_end]
        if vanished:
            self._events.append(MemoryEvent(allocates=False, time_us=self._events[-1].time_us))
            for block in vanished:
                block.died = len(self._events)
        for address, (size, frames) in at_end.items():
            if (known := self._live.get(address)) is not None:
                known.bytes = size
            else:
                self._before.append(SnapshotBlock(address, size, 0, frames))
        self._measure_before()
        waiting = max(self._most_waiting, self._waiting_bytes)
        blocks = [*self._before, *self._blocks]
        return History(blocks, self._events, waiting, len(vanished), self._no_memory)

    def _measure_before(self) -> None:
        """Give large blocks from before the recording that died in it their rests: the least gap behind them, to a
        block from before, to the segment's end, or to a block born while they lived."""
        before = sorted(block.address for block in self._before if block.bytes > SMALL)
        born = sorted((address, event) for event, address in self._seen)
        for block, segment in self._unsure:
            end = block.address + block.bytes
            most = self._most_rest(block, segment)
            place = bisect_right(before, block.address)
            bounds = [before[place]] if place < len(before) else []
            if segment:
                bounds.append(segment[0])
            for address, event in born[bisect_left(born, (end, 0)) :]:
                if address > end + most or (bounds and address >= min(bounds)):
                    break
                if event < block.died:
                    bounds.append(address)
                    break
            gap = min(bounds, default=end) - end
            block.bytes += gap if 0 < gap <= most else 0
