"""Sizes of blocks against a simulated allocator that knows them, and against what real segments say."""

import pickle
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336_tui.session.recordings.snapshot_blocks import History, SnapshotError, history_of
from cs336_tui.worker.estimate.caching_allocator import CachingAllocator
from tests.session.recordings.recordings import recording

BASE = 2**45
MIB = 2**20


class Simulated:
    """An allocator whose every block is known, and the trace and the segments that a snapshot would have of it."""

    def __init__(self) -> None:
        self.allocator = CachingAllocator()
        self.trace: list[dict[str, Any]] = []
        self.live: list[tuple[Any, int]] = []
        self.sizes: list[int] = []
        """Of each allocation, in order."""
        self.segments: list[tuple[int, int]] = []

    def allocate(self, size: int) -> None:
        before = self.allocator.reserved
        block = self.allocator.allocate(size)
        if self.allocator.reserved > before:
            self.segments.append((before, self.allocator.reserved - before))
            self._add("segment_alloc", before, self.allocator.reserved - before)
        self.live.append((block, size))
        self.sizes.append(block.size)
        self._add("alloc", block.start, size)

    def free(self, place: int) -> None:
        block, size = self.live.pop(place % len(self.live))
        self._add("free_requested", block.start, size)
        self._add("free_completed", block.start, size)
        self.allocator.free(block)

    def _add(self, action: str, start: int, size: int) -> None:
        self.trace.append({"action": action, "addr": BASE + start, "size": size, "stream": 0, "frames": []})

    def at_end(self) -> list[dict[str, Any]]:
        found = []
        for begin, length in self.segments:
            mine = sorted((b.start, b.size, size) for b, size in self.live if begin <= b.start < begin + length)
            blocks, at = [], begin
            for start, size, requested in mine:
                if start > at:
                    blocks.append({"size": start - at, "requested_size": 0, "state": "inactive"})
                blocks.append({"size": size, "requested_size": requested, "state": "active_allocated"})
                at = start + size
            if at < begin + length:
                blocks.append({"size": begin + length - at, "requested_size": 0, "state": "inactive"})
            found.append({"device": 0, "address": BASE + begin, "total_size": length, "blocks": blocks})
        return found


def history(trace: list[dict[str, Any]], segments: list[dict[str, Any]], options: object = None) -> History:
    return history_of(0, trace, segments, options, lambda: None)


def totals(found: History) -> list[int]:
    """Live bytes at each event, counted block by block."""
    events = range(len(found.events) + 1)
    return [sum(b.bytes for b in found.blocks if b.born <= e and (b.died < 0 or e < b.died)) for e in events]


REQUESTS = st.one_of(
    st.integers(1, 3000), st.integers(MIB - 600, MIB + 600), st.integers(2 * MIB, 22 * MIB), st.integers(1, 60 * MIB)
)


@given(st.lists(st.tuples(REQUESTS, st.booleans(), st.integers(0, 10**6)), min_size=1, max_size=60))
@settings(max_examples=150, deadline=None)
def test_blocks_have_the_sizes_that_the_allocator_gave_them(steps: list[tuple[int, bool, int]]) -> None:
    simulated = Simulated()
    for size, frees, place in steps:
        simulated.allocate(size)
        if frees:
            simulated.free(place)
    found = history(simulated.trace, simulated.at_end())
    assert [block.bytes for block in found.blocks] == simulated.sizes
    assert totals(found)[0] == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_history_that_wrapped_round_ends_with_the_segments_and_begins_with_what_lived(seed: int) -> None:
    """Only the rest of a block that died without a neighbour to tell it cannot be known."""
    chance = random.Random(seed)
    simulated = Simulated()
    live_at: list[int] = []
    for _ in range(300):
        simulated.allocate(chance.choice([chance.randint(1, 5000), chance.randint(1, 30 * MIB)]))
        if len(simulated.live) > 20 or chance.random() < 0.4:
            simulated.free(chance.randrange(10**6))
        live_at += [sum(block.size for block, _ in simulated.live)] * (len(simulated.trace) - len(live_at))
    cut = live_at.index(live_at[len(live_at) // 2])
    segments = simulated.at_end()
    found = totals(history(simulated.trace[cut:], segments))
    blocks = [block for segment in segments for block in segment["blocks"] if block["state"] == "active_allocated"]
    assert found[-1] == live_at[-1] == sum(block["size"] for block in blocks)
    assert live_at[cut - 1] * 0.98 <= found[0] <= live_at[cut - 1]


def an_event(action: str, address: int, size: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": BASE + address, "size": size} | more


def a_segment(address: int, size: int, *blocks: tuple[int, str], **more: Any) -> dict[str, Any]:
    given = [{"size": each, "state": state} for each, state in blocks]
    return {"device": 0, "address": BASE + address, "total_size": size, "blocks": given} | more


A_FREE = [an_event("alloc", 0, 1000), an_event("free_requested", 0, 1000)]


@pytest.mark.parametrize(
    ("trace", "blocks", "lives", "waiting"),
    [
        (  # a free that waits for a stream frees at once
            [*A_FREE, an_event("alloc", 1024, 512), an_event("free_completed", 0, 1000)],
            [(1024, "inactive"), (512, "active_allocated")],
            [(1024, 1, 2), (512, 3, -1)],
            1024,
        ),
        (A_FREE, [(1024, "active_pending_free")], [(1024, 1, 2)], 1024),  # what waits at the end is not live
        ([an_event("free_completed", 0, 512)], [(2 * MIB, "inactive")], [], 0),  # requested before the recording
        ([an_event("alloc", 0, 512), an_event("free_completed", 0, 512)], [], [(512, 1, 2)], 0),  # without a request
    ],
)
def test_frees_that_wait_and_those_whose_request_is_not_there(
    trace: list[Any], blocks: list[Any], lives: list[Any], waiting: int
) -> None:
    found = history(trace, [a_segment(0, 2 * MIB, *blocks)])
    assert [(block.bytes, block.born, block.died) for block in found.blocks] == lives
    assert found.waiting_bytes == waiting


def test_running_out_of_memory_is_told_and_is_no_event_and_a_block_that_no_segment_has_at_the_end_is_gone() -> None:
    trace = [an_event("alloc", 0, 512), {"action": "oom", "size": 5 * MIB, "device_free": MIB}]
    found = history(trace, [a_segment(0, 2 * MIB, (512, "active_allocated"))])
    assert (len(found.events), found.no_memory, totals(found)) == (1, [(5 * MIB, MIB)], [0, 512])
    found = history([an_event("alloc", 0, 512), an_event("snapshot", 0, 0)], [])
    assert (totals(found), found.vanished) == ([0, 512, 0], 1)


@pytest.mark.parametrize("key", ["is_expandable", "settings"])
def test_expandable_segments_leave_no_rest_in_a_block(key: str) -> None:
    trace = [an_event("alloc", 0, 3 * MIB), an_event("free_requested", 0, 3 * MIB)]
    segment = a_segment(0, 3 * MIB + 512 * 1000, (4 * MIB, "inactive"), is_expandable=key == "is_expandable")
    found = history(trace, [segment], {"expandable_segments": key == "settings"})
    assert [block.bytes for block in found.blocks] == [3 * MIB]
    assert [block.bytes for block in history(trace, [segment | {"is_expandable": False}]).blocks] == [3 * MIB + 512000]


@pytest.mark.parametrize(
    ("size", "divisions", "rounded"),
    [
        (1200 * MIB, 4, 1280 * MIB),  # the example of torch's notes on the allocator
        (1024 * MIB, 4, 1024 * MIB),
        (1025 * MIB, 1, 1025 * MIB),
        (1000, 4, 1024),
    ],
)
def test_sizes_are_rounded_as_the_settings_say(size: int, divisions: int, rounded: int) -> None:
    options = {"roundup_power2_divisions": {str(2**power): divisions for power in range(16)}}
    found = history([an_event("alloc", 0, size), an_event("free_requested", 0, size)], [], options)
    assert [block.bytes for block in found.blocks] == [rounded]


def test_old_segments_without_frames_and_addresses_are_read() -> None:
    frames = [{"name": "f", "filename": "a.py", "line": 1}]
    block = {"size": 1024, "state": "active_allocated", "history": [{"addr": 1, "real_size": 800, "frames": frames}]}
    segment: Mapping[str, Any] = {"address": 512, "total_size": 2 * MIB, "blocks": [{"size": 512, "state": "x"}, block]}
    (found,) = history([], [dict(segment)]).blocks
    assert (found.address, found.bytes, found.frames) == (1024, 1024, frames)


ALLOC = {"action": "alloc", "addr": 1}


@pytest.mark.parametrize(
    "entry",
    [
        ALLOC | {"addr": "x", "size": 1},
        *(ALLOC | {"size": size} for size in (-1, 2**60, 1.5)),
        ALLOC,
        {"action": "segment_free", "addr": None, "size": 1},
        7,
    ],
)
def test_what_cannot_be_is_refused(entry: Any) -> None:
    with pytest.raises(SnapshotError):
        history([entry], [])


def test_sizes_from_addresses_alone_are_those_of_real_segments() -> None:
    """Every block of a real step that lives to its end: as found, and as its segment has it."""
    content = pickle.loads(recording("medium-256-training.memory-snapshot.pickle").read_bytes())
    (trace,), segments = content["device_traces"], content["segments"]
    known = {b["address"]: b["size"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated"}
    empty = [segment | {"blocks": [{"size": segment["total_size"], "state": "inactive"}]} for segment in segments]
    found = history(trace, empty, content["allocator_settings"])
    at_end = {block.address: block.bytes for block in found.blocks if block.died == len(found.events)}
    assert len(at_end) == found.vanished == 659
    assert at_end == {address: known[address] for address in at_end}
