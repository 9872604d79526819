"""Memory of a cell as the allocators count it: their events in order with marks between them, peaks, the bytes before
backward, and the tensors that are saved for it. CUDA's caching allocator keeps a history; the CPU's reports each
allocation and free to torch's profiler."""

from __future__ import annotations

import itertools
import pickle
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, kineto_available, profile

from cs336_tui.events.prediction import NO_RANGE
from cs336_tui.events.reports import SavedBlock, SavedTensor
from cs336_tui.stats.quantities import gigabytes
from cs336_tui.worker.measure.failures import is_out_of_memory
from cs336_tui.worker.workload.building import Workload
from cs336_tui.worker.workload.model_parts import StandIn, block_groups
from cs336_tui.worker.workload.passes import Step, logits_of
from cs336_tui.worker.workload.precision import dtype_name
from cs336_tui.worker.workload.ranges import Annotation, name_parts

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

    def live_bytes(self, begin: int = 0) -> list[int]:
        """Bytes that are allocated at the begin and after each event. Frees of what was there before do not count: the
        profiler also reports those of memory that it saw allocated in another recording."""
        live, sizes = [begin], dict[int, int]()
        for event in self.events:
            change = max(event.bytes, 0) - sizes.pop(event.address, 0)
            if event.bytes > 0:
                sizes[event.address] = event.bytes
            live.append(live[-1] + change)
        return live


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
        timed: list[tuple[int, AllocatorEvent]] = []
        marks: list[int] = []
        waiting: list[tuple[Any, str]] = [(node, "") for node in profiler.kineto_results.experimental_event_tree()]
        while waiting:
            node, op = waiting.pop()
            kind = node.tag.name
            if kind == "Allocation":
                fields = node.extra_fields
                if fields.device.type == "cpu":
                    timed.append((node.start_time_ns, AllocatorEvent(fields.ptr, fields.alloc_size, op)))
            elif kind == "TorchOp":
                if node.name == _MARK:
                    marks.append(node.start_time_ns)
                elif node.name.startswith("aten::"):
                    op = node.name.removeprefix("aten::")
            waiting += [(child, op) for child in node.children]
        timed.sort(key=lambda event: event[0])
        times = [time_ns for time_ns, _ in timed]
        places = tuple(bisect_left(times, time_ns) for time_ns in sorted(marks))
        return Recording(tuple(event for _, event in timed), places, {})


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
    events: list[AllocatorEvent] = []
    for entry in trace:
        if entry["action"] == "alloc":
            events.append(AllocatorEvent(entry["addr"], max(-(-entry["size"] // CUDA_UNIT), 1) * CUDA_UNIT))
        elif entry["action"] == "free_requested":  # from here on the allocator does not count it as allocated any more
            events.append(AllocatorEvent(entry["addr"], -entry["size"]))
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


_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class Peaks(NamedTuple):
    """Peak bytes of tensors, of the allocator's reserved memory, and of the process's resident memory; None: unknown.
    `num_alloc_retries` counts how often CUDA's allocator freed its cache and asked again, which costs time."""

    allocated: int | None
    reserved: int | None
    rss: int
    num_alloc_retries: int | None


class PeakMeter:
    """Measures peaks since its creation or last reset. For a CUDA device it initialises CUDA. Resident memory's peak is
    Linux's high-water mark, reset by writing 5 to ``/proc/self/clear_refs``; elsewhere that of the process's whole
    life. `apart_bytes` of the device are the meter's own, and in no peak."""

    def __init__(self, device: torch.device, apart_bytes: int = 0) -> None:
        self._device = device
        self._apart_bytes = apart_bytes
        self.reset()

    def reset(self, *, allocated: bool = True) -> None:
        """Start again; without `allocated` the allocator's peaks continue."""
        with suppress(OSError):
            _CLEAR_REFS.write_text("5")
        if allocated:
            self._least = (0, 0)
            if self._device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self._device)
        self._retries_before = self._retries()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Leave what runs inside, and takes memory for itself only, out of the allocator's peaks."""
        before = self.read()
        yield
        self.reset()
        self._least = (before.allocated or 0, before.reserved or 0)

    def read(self) -> Peaks:
        if self._device.type != "cuda":
            return Peaks(None, None, _peak_rss(), None)
        least_allocated, least_reserved = self._least
        return Peaks(
            max(torch.cuda.max_memory_allocated(self._device) - self._apart_bytes, least_allocated),
            max(torch.cuda.max_memory_reserved(self._device) - self._apart_bytes, least_reserved),
            _peak_rss(),
            self._retries() - self._retries_before,
        )

    def _retries(self) -> int:
        if self._device.type != "cuda":
            return 0
        return int(torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0))


def spilled(peaks: Peaks | None, device: torch.device) -> str | None:
    """A remark that torch reserved more memory than the CUDA device has; None if it did not, or if unknown. A driver
    that moves memory to the host instead of running out, as on WSL2 and Windows, allows it."""
    if peaks is None or peaks.reserved is None:
        return None
    try:
        total = int(torch.cuda.get_device_properties(device).total_memory)
    except Exception:
        return None
    if peaks.reserved <= total:
        return None
    return (
        f"torch took {gigabytes(peaks.reserved)} GB of a device that has {gigabytes(total)} GB: the driver moved the "
        f"rest to the host's memory, as on WSL2, and steps that use it are many times slower"
    )


def _peak_rss() -> int:
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def before_backward_bytes(step: Step, workload: Workload, device: torch.device) -> int | None:
    """Run forward and loss once more: the bytes that tensors hold on the device before backward, all included. None if
    the pass has no backward, if memory ran out, or without a profiler on the host.

    CUDA's and Metal's allocators report them, CUDA's with a cuBLAS workspace. The host's only reports changes to the
    profiler, so parameters, buffers and batch are added. Holds for compiled code too. Not to be timed.
    """
    reports = device.type in ("cuda", "mps")
    if "backward" not in step.phases or not (reports or kineto_available()):
        return None
    recorder = None if reports else CpuRecorder()
    step.clear()
    tensors = () if reports else (*workload.model.parameters(), *workload.model.buffers(), *workload.batch)
    there = {each._cdata: each.nbytes() for each in (tensor.untyped_storage() for tensor in tensors)}
    try:
        with recorder or nullcontext():
            for phase in ("forward", "loss"):
                step.run(phase)
        if recorder:
            return sum(there.values()) + sum(event.bytes for event in recorder.recording().events)
        return torch.cuda.memory_allocated(device) if device.type == "cuda" else torch.mps.current_allocated_memory()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        step.failed_in = None
        step.clear()


WHOLE_MODEL = "model"  # The block's name if a model has no list of blocks
CHECKPOINT = "checkpoint"  # The node's name for inputs of blocks that are recomputed in backward


def saved_for_backward(workload: Workload, annotations: Sequence[Annotation] = ()) -> tuple[SavedBlock, ...]:
    """Run one more forward: the tensors that each block saves, each storage counted at its first save, in whole bytes.

    A row is a block, a group of blocks that are recomputed together, or a model without a list of blocks. Parameters
    and buffers are left out, autocast's copies of parameters are not. The model's parts stay named, so do not time it
    afterwards.
    """
    model = workload.model
    groups = block_groups(model)
    watch = _Watch((*model.parameters(), *model.buffers(), *workload.batch), "" if groups else WHOLE_MODEL)
    name_parts(model, watch.range, annotations)
    with ExitStack() as undo:
        undo.callback(watch.saved.clear)  # the model's named parts go on to hold the watch
        for group in groups:
            undo.callback(group.entry.register_forward_pre_hook(partial(watch.enter, group.name)).remove)
            undo.callback(group.entry.register_forward_hook(partial(watch.enter, "")).remove)
        with torch.autograd.graph.saved_tensors_hooks(watch.pack, watch.unpack), workload.autocast():
            logits = logits_of(model(workload.batch.inputs))
        if not any(isinstance(group.entry, StandIn) for group in groups):  # a node would recompute its saved tensors
            watch.name_nodes(logits)
        return watch.blocks()


_SavedKind = tuple[str, str, str, tuple[int, ...]]  # Node, range, dtype and shape


class _Saved(NamedTuple):
    """Autograd's handle on a saved tensor. Keeps it alive, so that no other gets its storage's address."""

    tensor: Tensor  # Detached: a node that saves its own result must not be kept by what it keeps
    sequence: int  # Of the node that saved it
    module: str
    range: str
    counts: bool


class _Watch:
    def __init__(self, there_anyway: tuple[Tensor, ...], module: str) -> None:
        self._counted = {tensor.untyped_storage()._cdata for tensor in there_anyway}
        """Storages that are not counted, or not again."""
        self.saved: list[_Saved] = []
        self._nodes: dict[int, str] = {}  # Names by sequence number
        self._module = module
        self._ranges: list[str] = []

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        self._ranges.append(name)
        try:
            yield
        finally:
            self._ranges.pop()

    def enter(self, module: str, *_: object) -> None:
        """Count tensors that are saved from now on to this module."""
        self._module = module

    def pack(self, tensor: Tensor) -> _Saved:
        storage = tensor.untyped_storage()
        # Checkpointing saved an empty tensor up to torch 2.6.
        counts = bool(storage.nbytes()) and storage._cdata not in self._counted
        if counts:
            self._counted.add(storage._cdata)
        sequence = torch.autograd._get_sequence_nr() - 1  # a node takes its number before it saves
        saved = _Saved(tensor.detach(), sequence, self._module, self._ranges[-1] if self._ranges else NO_RANGE, counts)
        self.saved.append(saved)
        return saved

    def unpack(self, saved: _Saved) -> Tensor:
        return saved.tensor

    def name_nodes(self, output: Tensor) -> None:
        """Read the names of the nodes, without their saved tensors: reading those would recompute blocks."""
        waiting, seen = [output.grad_fn], {output.grad_fn}
        while waiting:
            node = waiting.pop()
            self._nodes[node._sequence_nr()] = node.name()
            following = [found for found, _ in node.next_functions if found is not None and found not in seen]
            seen.update(following)
            waiting += following

    def blocks(self) -> tuple[SavedBlock, ...]:
        sizes: dict[str, dict[_SavedKind, list[int]]] = defaultdict(lambda: defaultdict(list))
        for saved in (each for each in self.saved if each.counts and each.module):
            # The input of a recomputed block is saved by no node that backward reaches.
            known = saved.sequence in self._nodes
            node, range_ = (self._nodes[saved.sequence], saved.range) if known else (CHECKPOINT, "residual")
            kind = node, range_, dtype_name(saved.tensor.dtype), tuple(saved.tensor.shape)
            sizes[saved.module][kind].append(saved.tensor.untyped_storage().nbytes())
        blocks = []
        for module, kinds in sizes.items():
            tensors = [SavedTensor(*kind, count=len(each), bytes=sum(each)) for kind, each in kinds.items()]
            tensors.sort(key=lambda tensor: -tensor.bytes)
            blocks.append(SavedBlock(module, sum(tensor.bytes for tensor in tensors), tuple(tensors)))
        return tuple(blocks)
