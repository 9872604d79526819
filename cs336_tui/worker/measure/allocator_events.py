"""Records an allocator's events in order, with marks between them. CUDA's caching allocator keeps a history; the CPU's
reports each allocation and free to torch's profiler."""

from __future__ import annotations

import itertools
import pickle
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch.profiler import ProfilerActivity, profile

CUDA_UNIT = 512  # Bytes that CUDA's caching allocator rounds an allocation up to
_MARK = "cs336-tui mark"


class AllocatorEvent(NamedTuple):
    """An allocation, or a free if `bytes` is negative or 0; `op` is the operator around it, if known."""

    address: int
    bytes: int
    op: str = ""


class Recording(NamedTuple):
    events: tuple[AllocatorEvent, ...]
    marks: tuple[int, ...]  # For each mark how many events came before it
    live_before: dict[int, int]  # Bytes by address of blocks that were allocated before the recording, as far as known


class CpuRecorder:
    """Records torch's CPU allocator by the profiler, which does not know the sizes of earlier allocations."""

    def __init__(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)

    def __enter__(self) -> Self:
        self._profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._profile.__exit__(*error)

    def mark(self) -> None:
        with torch._C._profiler._RecordFunctionFast(_MARK):
            pass

    def recording(self) -> Recording:
        profiler = self._profile.profiler
        assert profiler is not None
        assert profiler.kineto_results is not None
        return read_profile(profiler.kineto_results.experimental_event_tree())


def read_profile(tree: Iterable[Any]) -> Recording:
    """The recording of the CPU's allocations in an event tree of the profiler."""
    found: list[tuple[int, AllocatorEvent]] = []
    marks: list[int] = []
    waiting = [(node, "") for node in tree]
    while waiting:
        node, op = waiting.pop()
        kind = node.tag.name
        if kind == "Allocation":
            fields = node.extra_fields
            if fields.device.type == "cpu":
                found.append((node.start_time_ns, AllocatorEvent(fields.ptr, fields.alloc_size, op)))
        elif kind == "TorchOp":
            if node.name == _MARK:
                marks.append(node.start_time_ns)
            elif node.name.startswith("aten::"):
                op = node.name.removeprefix("aten::")
        waiting += [(child, op) for child in node.children]
    found.sort(key=lambda timed: timed[0])
    times = [time_ns for time_ns, _ in found]
    places = tuple(bisect_left(times, time_ns) for time_ns in sorted(marks))
    return Recording(tuple(event for _, event in found), places, {})


class CudaMark(NamedTuple):
    """CUDA's own counts since the process began."""

    events: int  # Allocations and frees
    bytes: int  # Handed out, frees not subtracted


class CudaRecorder:
    """Records CUDA's caching allocator by its history."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[CudaMark] = []
        self._before: dict[str, Any] = {}
        self._after: dict[str, Any] = {}
        self._begin = CudaMark(0, 0)

    def __enter__(self) -> Self:
        torch.cuda.synchronize(self._device)
        self._before = torch.cuda.memory._snapshot()
        self._begin = self._counts()
        torch.cuda.memory._record_memory_history(stacks="python")
        return self

    def __exit__(self, *_: object) -> None:
        self.mark()
        self._after = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)

    def mark(self) -> None:
        self._marks.append(self._counts())

    def recording(self) -> Recording:
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        return read_cuda(self._before["segments"], self._after["device_traces"][index], self._begin, self._marks, index)

    def save(self, path: Path) -> None:
        """Write the history as a pickle for pytorch.org/memory_viz."""
        with path.open("wb") as file:
            pickle.dump(self._after, file)

    def _counts(self) -> CudaMark:
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        allocation, size = stats["allocation"]["all"], stats["allocated_bytes"]["all"]
        return CudaMark(allocation["allocated"] + allocation["freed"], size["allocated"])


def read_cuda(
    segments: Iterable[Mapping[str, Any]],
    trace: Iterable[Mapping[str, Any]],
    begin: CudaMark,
    marks: Sequence[CudaMark],
    device: int = 0,
) -> Recording:
    """The recording in parts of a snapshot: `segments` from before it, `trace` of one device from after it. A trace has
    the requested bytes; the allocator counts them rounded up, and with a rest too small to be split off. This rest,
    found from its counts at two marks, goes to the largest allocation in between."""
    events = [event for entry in trace if (event := _cuda_event(entry))]
    places = [0, *(min(mark.events - begin.events, len(events)) for mark in marks)]
    handed_out = [begin.bytes, *(mark.bytes for mark in marks)]
    for (first, end), (before, after) in zip(itertools.pairwise(places), itertools.pairwise(handed_out), strict=True):
        allocated = [place for place in range(first, end) if events[place].bytes > 0]
        if allocated and (rest := after - before - sum(events[place].bytes for place in allocated)) > 0:
            largest = max(allocated, key=lambda place: events[place].bytes)
            events[largest] = events[largest]._replace(bytes=events[largest].bytes + rest)
    live = {
        block["address"]: block["size"]
        for segment in segments
        if segment.get("device", device) == device
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    return Recording(tuple(events), tuple(places[1:]), live)


def _cuda_event(entry: Mapping[str, Any]) -> AllocatorEvent | None:
    match entry["action"]:
        case "alloc":
            return AllocatorEvent(entry["addr"], max(-(-entry["size"] // CUDA_UNIT), 1) * CUDA_UNIT)
        case "free_requested":  # from here on the allocator does not count it as allocated any more
            return AllocatorEvent(entry["addr"], -entry["size"])
    return None
