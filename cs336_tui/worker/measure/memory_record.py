"""The memory report: every allocation of one step after warm-up, from the device's allocator or from the tensors. An
allocator's recording is joined with the operations that asked for the memory. Of each Transformer block it has the live
bytes when its forward and its backward begin and end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.profiler import kineto_available
from torch.utils._pytree import tree_leaves

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import PHASES, prepared_phases
from cs336_tui.events.prediction import Allocation, Site, TrackedTimeline
from cs336_tui.events.reports import BlockMemory, MemoryReport, ReportRequest, SavedBlock
from cs336_tui.worker.estimate.tracker import Args, Kwargs, MemoryTracker
from cs336_tui.worker.measure import reporter
from cs336_tui.worker.measure.cell_memory import (
    AllocatorEvent,
    CpuRecorder,
    CudaRecorder,
    Recording,
    saved_for_backward,
)
from cs336_tui.worker.measure.failures import is_out_of_memory
from cs336_tui.worker.workload.building import Workload, build, configure_torch
from cs336_tui.worker.workload.model_parts import BlockGroup, block_groups
from cs336_tui.worker.workload.passes import Step
from cs336_tui.worker.workload.ranges import name_parts

What = Literal["begins", "forward begins", "forward ends", "backward begins", "backward ends"]


class Moment(NamedTuple):
    """A moment of a block, or the begin of a phase: the number of its mark, and the first event after it."""

    name: str
    what: What
    mark: int
    event: int


@contextmanager
def watched_blocks(model: nn.Module, at: Callable[[str, What], object]) -> Iterator[None]:
    """Call `at` with the block's name when its forward or backward begins or ends, recomputed forwards left out.

    The backward of a block begins when the gradient of its output is known and ends when that of its input is: then its
    parameters have their gradients and its saved tensors are free. Blocks that are recomputed together count as one.
    """
    with ExitStack() as undo:
        for group in block_groups(model):
            for hook in _hooks(group, at):
                undo.callback(hook.remove)
        yield


def _hooks(group: BlockGroup, at: Callable[[str, What], object]) -> Iterator[Any]:
    def enter(_module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch._C._current_autograd_node() is None:
            _once_known(group.name, "backward ends", (args, kwargs), at)
            at(group.name, "forward begins")

    def leave(_module: nn.Module, _args: Any, output: Any) -> None:
        if torch._C._current_autograd_node() is None:
            _once_known(group.name, "backward begins", output, at)
            at(group.name, "forward ends")

    yield group.entry.register_forward_pre_hook(enter, with_kwargs=True)
    yield group.entry.register_forward_hook(leave)


def _once_known(block: str, what: What, value: object, at: Callable[[str, What], object]) -> None:
    """Call `at` once the gradient of the value is known: of the first tensor that has one."""
    tensors = (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.requires_grad)
    if (tensor := next(tensors, None)) is not None:
        tensor.register_hook(lambda _: (at(block, what), None)[1])


def memory_of_blocks(model: nn.Module, moments: Iterable[Moment], timeline: TrackedTimeline) -> tuple[BlockMemory, ...]:
    """Live bytes at these moments, whose events are the timeline's. A block whose backward did not begin and end, as
    without a gradient of its input, is left out."""
    events = {(moment.name, moment.what): moment.event for moment in moments}

    def live(block: str, what: What) -> int:
        return timeline.totals[events[block, what] - 1]

    found = []
    for group in block_groups(model):
        name = group.name
        if {(name, "backward begins"), (name, "backward ends")} <= events.keys():
            first, end = events[name, "backward begins"], events[name, "backward ends"]
            trained = {each for block in group.blocks for each in block.parameters() if each.requires_grad}
            found.append(
                BlockMemory(
                    module=name,
                    forward_bytes=live(name, "forward ends") - live(name, "forward begins"),
                    before_bytes=live(name, "backward begins"),
                    after_bytes=live(name, "backward ends"),
                    peak_bytes=max(timeline.totals[first - 1 : end]),
                    gradient_bytes=sum(each.nbytes for each in trained),
                )
            )
    return tuple(found)


TENSORS_ONLY = "Counted are the results of operations, not the workspace of kernels."
CLEAR = "clear"  # The phase after a step's last one, which drops what the step left


def record_memory(request: ReportRequest, enter: reporter.Enter) -> MemoryReport:
    """Build the cell, warm it up and record one step; of training the step before too, whose tensors it begins with.
    Raises what building and running raise, such as torch's errors when memory runs out."""
    spec = request.spec
    enter("building")
    device = configure_torch(spec)
    workload = build(spec, device, as_written=True)
    enter("warm-up")
    _warm_up(workload, spec)
    enter("recording")
    timeline, recorded, note = _record(workload, request, device)
    enter("saved for backward")
    saved, saved_note = _saved(workload, spec)
    enter("predicting")
    rehearsal, prediction_note = reporter.rehearsed(spec, device)
    return MemoryReport(
        **reporter.header(spec, device),
        activation_peak_bytes=timeline.activation_peak()[0],
        saved=saved,
        prediction=rehearsal.prediction if rehearsal else None,
        note=reporter.joined(note, *reporter.left_out(spec), saved_note, prediction_note),
        **recorded,
        **timeline.fields(),
    )


def run_phases(step: Step, workload: Workload, spec: CellSpec, tracker: MemoryTracker | None = None) -> None:
    """Run every phase, preparation included, and drop what the step left. Phases and gradients go to `tracker`."""
    for phase in prepared_phases(spec.pass_):
        if tracker:
            tracker.phase(phase)
        step.run(phase)
        if tracker:
            tracker.claim("gradients", workload.gradients())
    if tracker:
        tracker.phase(CLEAR)
    step.clear()


def _record(
    workload: Workload, request: ReportRequest, device: torch.device
) -> tuple[TrackedTimeline, dict[str, Any], str]:
    """The recorded step, whose event 0 is its begin; the fields of a report that tell of its recorder, and a note."""
    recorder: CpuRecorder | CudaRecorder | None = None
    if device.type == "cuda":
        recorder = CudaRecorder(device)
    elif device.type == "cpu" and kineto_available():
        recorder = CpuRecorder()
    tracker = MarkedTracker(recorder.mark if recorder else lambda: None, device_type=device.type)
    name_parts(workload.model, tracker.range, request.spec.annotations)
    claimed_bytes = tracker.claim_cell(workload)
    step = workload.step(request.spec)
    with recorder or nullcontext(), watched_blocks(workload.model, tracker.moment), tracker:
        if step.back_to_back:
            run_phases(step, workload, request.spec, tracker)
        passed = len(tracker.moments)
        taken = reporter.steps_taken(workload.training)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        run_phases(step, workload, request.spec, tracker)
    note = reporter.skipped_note("recorded", workload.training, taken)
    moments = tracker.moments[passed:]
    allocations: Sequence[Allocation] = tracker.timeline().allocations
    events = tracker.events
    if recorder is not None:
        recording = recorder.recording()
        # Event i of a recording is event i + 1 here.
        moments = [each._replace(event=recording.marks[each.mark] + 1) for each in moments]
        allocations = join(recording, tracker.operations, allocations)
        events = len(recording.events) + 1
    begins = [(moment.name, moment.event) for moment in moments if moment.what == "begins"]
    timeline = cut(allocations, events, begins)
    before = begins[0][1] - 1
    moments = [moment._replace(event=moment.event - before) for moment in moments]
    blocks = memory_of_blocks(workload.model, moments, timeline)
    if recorder is None:
        return timeline, {"recorder": "tensors", "blocks": blocks}, TENSORS_ONLY
    if isinstance(recorder, CpuRecorder):
        peak = max(recording.live_bytes(claimed_bytes)[before:])
        return timeline, {"recorder": "CPU profiler", "blocks": blocks, "allocator_peak_bytes": peak}, note
    peak, spec = torch.cuda.max_memory_allocated(device), request.spec
    name = ("memory", spec.size, f"ctx{spec.context_length}", f"batch{spec.batch_size}", spec.pass_, spec.precision)
    snapshot, unsaved = reporter.save_file("memory snapshot", request.folder, name, ".pickle", recorder.save)
    by_history = {"recorder": "CUDA allocator history", "allocator_peak_bytes": peak, "snapshot": snapshot}
    return timeline, {"blocks": blocks, **by_history}, reporter.joined(note, unsaved)


def _saved(workload: Workload, spec: CellSpec) -> tuple[tuple[SavedBlock, ...], str]:
    if "backward" not in PHASES[spec.pass_]:
        return (), f"There is no backward in {spec.pass_}: no gradients, and nothing is saved for one."
    workload.model.zero_grad(set_to_none=True)  # as in the cell's own forward
    try:
        return saved_for_backward(workload, spec.annotations), ""
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return (), "Out of memory while recording what is saved for backward."


def _warm_up(workload: Workload, spec: CellSpec) -> None:
    """Run one step; of a training step as many as it takes until the optimizer has its state."""
    for _ in range(reporter.MOST_WARMUP_STEPS):
        run_phases(workload.step(spec), workload, spec)
        if workload.training is None or reporter.steps_taken(workload.training):
            break
    # Gradients left here would be freed within the recording, which did not see them allocated.
    workload.model.zero_grad(set_to_none=True)


HELD_BEFORE = Site("held since warm-up")  # Memory without a tensor of the cell, as a workspace


class Operation(NamedTuple):
    """One operation: the tracker's events in it, and the marks at its begin and end. Comes after operations in it."""

    first: int
    end: int
    opened: int
    closed: int
    site: Site


class MarkedTracker(MemoryTracker):
    """A tracker that calls `mark` before and after each operation and at each phase's begin."""

    def __init__(self, mark: Callable[[], object], *, device_type: str | None = None) -> None:
        super().__init__(device_type=device_type)
        self.operations: list[Operation] = []
        self.moments: list[Moment] = []
        self._mark = mark
        self._marks = 0

    def phase(self, name: str) -> None:
        super().phase(name)
        self.moment(name, "begins")

    def moment(self, name: str, what: What) -> None:
        self.moments.append(Moment(name, what, self._put_mark(), self.events))

    def __torch_dispatch__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs = None) -> Any:
        first, opened = self.events, self._put_mark()
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self.operations.append(Operation(first, self.events, opened, self._put_mark(), self.site))

    def _put_mark(self) -> int:
        self._mark()
        self._marks += 1
        return self._marks - 1


def join(recording: Recording, operations: Iterable[Operation], records: Sequence[Allocation]) -> list[Allocation]:
    """Every allocation of a recording, in order of birth; recorded event `i` becomes ``i + 1``, event 0 is the begin.
    One belongs to the operation in which it was made, or to the one before if made between two; at the address of a
    returned tensor it has the tracker's category, any other is temporary."""
    walk = _Walk(recording.events)
    by_birth = {record.born: record for record in records if record.born}
    claimed = {record.address: record for record in records if not record.born and record.bytes}
    before = recording.live_before or {address: record.bytes for address, record in claimed.items()}
    for address, size in before.items():
        life = walk.add(address, size, HELD_BEFORE)
        if record := claimed.get(address):
            _recognise(life, record)
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
    def __init__(self, events: Sequence[AllocatorEvent]) -> None:
        self.lives: list[Allocation] = []
        self._events = events
        self._next = 0
        self._live: dict[int, Allocation] = {}

    def add(self, address: int, size: int, site: Site, born: int = 0) -> Allocation:
        life = self._live[address] = Allocation(size, site, born)
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

    def returned(self, record: Allocation) -> None:
        found = self._live.get(record.address)
        if found and not found.form:
            _recognise(found, record)


def _recognise(allocation: Allocation, record: Allocation) -> None:
    """Copy the tracker's knowledge of an allocation that an operation returned."""
    allocation.category, allocation.site, allocation.form = record.category, record.site, record.form


def cut(allocations: Iterable[Allocation], events: int, begins: Sequence[tuple[str, int]]) -> TrackedTimeline:
    """The events from the first phase on, with everything before it as event 0."""
    before = begins[0][1] - 1
    kept = [
        msgspec.structs.replace(
            each, born=max(each.born - before, 0), died=None if each.died is None else each.died - before
        )
        for each in allocations
        if each.died is None or each.died > before
    ]
    kept.sort(key=lambda each: each.born)
    return TrackedTimeline(kept, events - before, [(phase, first - before) for phase, first in begins])
