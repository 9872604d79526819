"""The memory report: every allocation of one step after warm-up, from the device's allocator or from the tensors."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal, NamedTuple

import torch
from torch.profiler import kineto_available

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import MemoryReport, ReportRequest, SavedBlock
from cs336_tui.worker.estimate.timeline import TrackedTimeline
from cs336_tui.worker.estimate.tracker import MemoryTracker
from cs336_tui.worker.measure import report_parts
from cs336_tui.worker.measure.allocator_events import CpuRecorder, CudaRecorder, Recording
from cs336_tui.worker.measure.failures import is_out_of_memory
from cs336_tui.worker.measure.memory_join import MarkedTracker, columns, cut, join
from cs336_tui.worker.measure.saved import saved_for_backward
from cs336_tui.worker.workload.building import Workload, build, configure_torch
from cs336_tui.worker.workload.passes import PHASES, Step, prepared_phases
from cs336_tui.worker.workload.ranges import name_parts

RecorderName = Literal["CUDA allocator history", "CPU profiler", "tensors"]

TENSORS_ONLY = "Only what operations return is seen, not what kernels take while they run."
CLEAR = "clear"  # The phase after a step's last one, which drops what the step left


def record_memory(request: ReportRequest, enter: report_parts.Enter) -> MemoryReport:
    """Build the cell, warm it up by one step and record one step.

    A training step begins with the tensors that the step before it left, so the step before is recorded too. Raises
    what building and running raise, such as torch's errors when memory runs out.
    """
    spec = request.spec
    enter("building")
    device = configure_torch(spec)
    workload = build(spec, device, as_written=True)
    enter("warm-up")
    _warm_up(workload, spec)
    enter("recording")
    found = _record(workload, request, device)
    enter("saved for backward")
    saved, saved_note = _saved(workload, spec)
    enter("predicting")
    prediction, prediction_note = report_parts.predicted(spec, device)
    timeline = found.timeline
    peak, forward = timeline.peak_event(), timeline.phase("forward")
    assert forward is not None
    return MemoryReport(
        **report_parts.header(spec, device),
        recorder=found.recorder,
        events=timeline.events,
        phases=timeline.phases,
        peak_bytes=timeline.totals[peak],
        peak_event=peak,
        forward_end_bytes=timeline.totals[forward.end - 1],
        allocator_peak_bytes=found.allocator_peak,
        saved=saved,
        prediction=prediction,
        snapshot=found.snapshot,
        note=report_parts.joined(found.note, *report_parts.left_out(spec), saved_note, prediction_note),
        **columns(timeline.allocations),
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


class _RecordedStep(NamedTuple):
    """The recorded step: event 0 is its begin."""

    recorder: RecorderName
    timeline: TrackedTimeline
    allocator_peak: int | None = None
    snapshot: str | None = None
    note: str = ""


def _record(workload: Workload, request: ReportRequest, device: torch.device) -> _RecordedStep:
    recorder = _recorder(device)
    tracker = MarkedTracker(recorder.mark if recorder else lambda: None, device_type=device.type)
    name_parts(workload.model, tracker.range, request.spec.annotations)
    claimed_bytes = tracker.claim_cell(workload)
    step = workload.step(request.spec)
    with recorder or nullcontext(), tracker:
        if step.back_to_back:
            run_phases(step, workload, request.spec, tracker)
        recorded = len(tracker.phases)
        taken = report_parts.steps_taken(workload.training)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        run_phases(step, workload, request.spec, tracker)
    note = report_parts.skipped_note("recorded", workload.training, taken)
    phases = tracker.phases[recorded:]
    records = tracker.timeline().allocations
    if recorder is None:
        timeline = cut(records, tracker.events, [(phase.phase, phase.event) for phase in phases])
        return _RecordedStep("tensors", timeline, note=TENSORS_ONLY)
    recording = recorder.recording()
    # Event i of a recording is event i + 1 here.
    begins = [(phase.phase, recording.marks[phase.mark] + 1) for phase in phases]
    timeline = cut(join(recording, tracker.operations, records), len(recording.events) + 1, begins)
    if isinstance(recorder, CpuRecorder):
        peak = _cpu_peak(recording, begins[0][1], claimed_bytes)
        return _RecordedStep("CPU profiler", timeline, peak, note=note)
    peak, spec = torch.cuda.max_memory_allocated(device), request.spec
    name = ("memory", spec.size, f"ctx{spec.context_length}", f"batch{spec.batch_size}", spec.pass_, spec.precision)
    snapshot, unsaved = report_parts.save_file("memory snapshot", request.folder, name, ".pickle", recorder.save)
    return _RecordedStep("CUDA allocator history", timeline, peak, snapshot, report_parts.joined(note, unsaved))


def _recorder(device: torch.device) -> CpuRecorder | CudaRecorder | None:
    if device.type == "cuda":
        return CudaRecorder(device)
    return CpuRecorder() if device.type == "cpu" and kineto_available() else None


def _cpu_peak(recording: Recording, first: int, claimed_bytes: int) -> int:
    """The peak of allocated bytes from the step's begin on, summed from the profiler's events.

    The profiler also reports frees of memory that it saw allocated in another recording; these are not counted.
    """
    live, sizes = [claimed_bytes], dict[int, int]()
    for event in recording.events:
        change = -sizes.pop(event.address, 0)
        if event.bytes > 0:
            sizes[event.address] = event.bytes
            change += event.bytes
        live.append(live[-1] + change)
    return max(live[first - 1 :])


def _saved(workload: Workload, spec: CellSpec) -> tuple[tuple[SavedBlock, ...], str]:
    if "backward" not in PHASES[spec.pass_]:
        return (), f"There is no backward in {spec.pass_}: no gradients, and nothing is saved for one."
    workload.model.zero_grad(set_to_none=True)  # as in the cell's own forward
    try:
        return saved_for_backward(workload, spec.checkpoint, spec.annotations), ""
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return (), "Memory ran out while looking at what is saved for backward."


def _warm_up(workload: Workload, spec: CellSpec) -> None:
    """Run one step; of a training step as many as it takes until the optimizer has its state."""
    for _ in range(report_parts.MOST_WARMUP_STEPS):
        run_phases(workload.step(spec), workload, spec)
        if workload.training is None or report_parts.steps_taken(workload.training):
            break
    # Gradients left here would be freed within the recording, which did not see them allocated.
    workload.model.zero_grad(set_to_none=True)
