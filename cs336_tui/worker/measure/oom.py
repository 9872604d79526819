"""The out-of-memory report: what was live at that moment, seen in a second attempt or, if that is unsafe, predicted. A
GPU raises an error; a host may instead kill processes, the user's shell among them, so a cell there is tried again only
if it is expected to fit or was refused memory before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as registration

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.prediction import CATEGORIES, TOP, Category, MemoryBlock, TrackedTimeline
from cs336_tui.events.reports import OomReport, ReportRequest
from cs336_tui.worker.estimate.tracker import MemoryTracker
from cs336_tui.worker.measure.failures import failed_allocation, is_out_of_memory
from cs336_tui.worker.measure.memory_record import run_phases
from cs336_tui.worker.measure.reporter import MOST_WARMUP_STEPS, Enter, joined, rehearsed
from cs336_tui.worker.workload.building import Workload, build, configure_torch
from cs336_tui.worker.workload.passes import Step
from cs336_tui.worker.workload.ranges import name_parts

BUILDING = "building"
NOT_AGAIN = "A second attempt fitted: another program held memory during the first."
UNSAFE = "Not tried again: out of host memory, the operating system may end other programs."
WITHIN = "The prediction is within the device's memory; shown is its peak."
SEEN = "Counted are tensors; workspaces, fragmentation and other programs add to that."
CANNOT_BEGIN = "What is kept between two steps exceeds the device's memory: only the first step can begin."


def explain_oom(request: ReportRequest, enter: Enter) -> OomReport:
    """Try the cell again: what was live when memory ran out, or at the predicted moment. Raises any other error."""
    spec = request.spec
    enter("predicting")
    device = configure_torch(spec)
    rehearsal, note = rehearsed(spec, device)
    prediction = rehearsal.prediction if rehearsal else None
    moment: _Moment | None = None
    notes = [UNSAFE]
    if may_try(request, device, prediction.peak_bytes if prediction else None):
        enter("second attempt")
        moment = attempt(spec, device)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        notes = [SEEN if moment else NOT_AGAIN]
    observed = moment is not None
    if moment is None:
        enter("looking for the moment")
        moment = _Moment(request.failed_phase, None, 0, dict.fromkeys(CATEGORIES, 0), ())
        if rehearsal:
            moment, why = predicted_moment(rehearsal.timeline, request.capacity_bytes)
            notes.append(why)
    reported, seen = request.failed_request_bytes, moment.request_bytes
    return OomReport(
        spec=spec,
        **moment._replace(request_bytes=(seen or reported) if observed else (reported or seen))._asdict(),
        observed=observed,
        capacity_bytes=request.capacity_bytes,
        prediction=prediction,
        note=joined(*notes, note),
    )


def may_try(request: ReportRequest, device: torch.device, needed_bytes: int | None) -> bool:
    """True if a second attempt ends in an error at worst."""
    if device.type == "cuda":
        return True
    if request.failed_phase is None and request.failed_request_bytes is None:
        return False  # killed by the system, not refused an allocation
    if request.capacity_bytes is None:
        return True
    return needed_bytes is not None and needed_bytes <= request.capacity_bytes


class _Moment(NamedTuple):
    """A moment of the step; None for a phase or a request that is not known."""

    phase: str | None
    request_bytes: int | None
    live_bytes: int
    by_category: dict[str, int]
    largest: tuple[MemoryBlock, ...]


def attempt(spec: CellSpec, device: torch.device) -> _Moment | None:
    """Run the cell's first step, of training the second too: what was live when memory ran out, None if it did not."""
    tracker = MemoryTracker(device_type=device.type)
    step: Step | None = None
    try:
        with tracker:
            tracker.phase(BUILDING)
            with _claimed_as_registered(tracker):
                workload = build(spec, device, as_written=True)
            name_parts(workload.model, tracker.range, spec.annotations)
            tracker.claim("buffers", workload.batch)
            step = workload.step(spec)
            for _ in range(MOST_WARMUP_STEPS if step.back_to_back else 1):
                had_state = any(True for _ in _large_state(workload))
                run_phases(step, workload, spec, tracker)
                tracker.claim("optimizer_state", _large_state(workload))
                if had_state:
                    break  # one whole step after one whose optimizer step was not skipped
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        # The error holds the frames that hold the tensors: claim them before it goes.
        if step is not None:
            tracker.claim("gradients", workload.gradients())
            tracker.claim("optimizer_state", _large_state(workload))
        timeline = tracker.timeline()
        event = tracker.failure.event if tracker.failure else timeline.events - 1
        return _at(timeline, event, step.failed_in if step else BUILDING, failed_allocation(error))
    return None


def _large_state(workload: Workload) -> Iterator[torch.Tensor]:
    """The optimizer's state without its step counts, a few bytes that no operation makes."""
    return (tensor for tensor in workload.optimizer_state() if tensor.dim())


@contextmanager
def _claimed_as_registered(tracker: MemoryTracker) -> Iterator[None]:
    """Claim a module's parameters and buffers when they are registered: it may never be finished."""

    def claim(category: Category, _module: nn.Module, _name: str, value: torch.Tensor | None) -> None:
        if value is not None:
            tracker.claim(category, [value])

    with ExitStack() as undo:
        undo.callback(registration.register_module_parameter_registration_hook(partial(claim, "parameters")).remove)
        undo.callback(registration.register_module_buffer_registration_hook(partial(claim, "buffers")).remove)
        yield


def _at(timeline: TrackedTimeline, event: int, phase: str | None, request_bytes: int | None) -> _Moment:
    by_category = timeline.by_category(event)
    return _Moment(phase, request_bytes, timeline.totals[event], by_category, timeline.largest(event))


def predicted_moment(timeline: TrackedTimeline, capacity_bytes: int | None) -> tuple[_Moment, str]:
    """The first allocation that does not fit and what is live before it; if all fit, the peak. A step that cannot begin
    ran out in building if the parameters alone do not fit, else in the first step, whose optimizer makes its state."""
    capacity = capacity_bytes or max(timeline.totals)
    if timeline.totals[0] > capacity:
        return _in_the_first_step(timeline, capacity), CANNOT_BEGIN
    if found := _first_without_room(timeline, capacity):
        return found, ""
    peak = timeline.peak_event()
    return _at(timeline, peak, timeline.phase_at(peak), None), WITHIN if capacity_bytes else ""


def _first_without_room(timeline: TrackedTimeline, capacity: int) -> _Moment | None:
    event = next((event for event, live in enumerate(timeline.totals) if live > capacity), None)
    if event is None:
        return None
    born = next(allocation for allocation in timeline.allocations if allocation.born == event)
    return _at(timeline, event - 1, born.site.phase, born.bytes)


def _in_the_first_step(timeline: TrackedTimeline, capacity: int) -> _Moment:
    """The moment if tensors that live between two steps do not fit: in building, else in the first step, which has no
    earlier gradients and no optimizer state until its optimizer runs."""
    live: list[MemoryBlock] = []
    by_category = dict.fromkeys(CATEGORIES, 0)
    order: tuple[Category, ...] = ("parameters", "buffers", "temporary", "activations")
    built = [each.block for each in timeline.live_at(0) if each.category in order]
    for block in sorted(built, key=lambda block: order.index(block.category)):
        if sum(by_category.values()) + block.bytes > capacity:
            largest = tuple(sorted(live, key=lambda each: -each.bytes)[:TOP])
            return _Moment(BUILDING, block.bytes, sum(by_category.values()), by_category, largest)
        live.append(block)
        by_category[block.category] += block.bytes
    left = tuple(each for each in timeline.allocations if each.born or each.category in order)
    first = TrackedTimeline(left, timeline.events, timeline.begins)
    if found := _first_without_room(first, capacity):
        return found
    optimizer = first.phase("optimizer")
    assert optimizer is not None  # only a training step leaves tensors for the next
    return _at(first, optimizer.first - 1, "optimizer", None)
