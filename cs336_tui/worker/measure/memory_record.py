"""Every allocation of one step, after warm-up: from the device's allocator where it tells, else from the tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import kineto_available

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import MemoryReport, Prediction, ReportRequest, SavedBlock
from cs336_tui.worker.estimate.tracker import MemoryTracker
from cs336_tui.worker.measure.allocator_events import CpuRecorder, CudaRecorder, Recording
from cs336_tui.worker.measure.devices import device_label
from cs336_tui.worker.measure.failures import is_out_of_memory, outcome_of
from cs336_tui.worker.measure.memory_join import Life, MarkedTracker, columns, cut, join, lives_of, phase_spans, totals
from cs336_tui.worker.measure.report_parts import Enter
from cs336_tui.worker.measure.saved import saved_for_backward
from cs336_tui.worker.workload.building import Workload, build, settle_torch
from cs336_tui.worker.workload.imported.problems import is_interrupt
from cs336_tui.worker.workload.passes import PHASES, Step
from cs336_tui.worker.workload.ranges import left_out, name_parts

RecorderName = Literal["CUDA allocator history", "CPU profiler", "tensors"]

MOST_WARMUP_STEPS = 20
"""Where gradients overflow float16 at first, so that the scaler skips optimizer steps."""
SKIPPED = "The recorded step has no real optimizer phase: gradients overflowed float16, so that it was skipped."
TENSORS_ONLY = "Only what operations return is seen, not what kernels take while they run."
CLEAR = "clear"
"""The phase after a step's last one, in which what it left is dropped."""


def record_memory(request: ReportRequest, enter: Enter) -> MemoryReport:
    """Build the cell, warm up, record one step.

    Warm-up is one step. A training step begins with what the one before it has left, so that it is recorded together
    with one before it. Raises whatever building and running raise, such as torch's errors when memory runs out.
    """
    spec = request.spec
    enter("building")
    device = settle_torch(spec)
    workload = build(spec, device, as_written=True)
    enter("warm-up")
    _warm_up(workload, spec)
    enter("recording")
    found = _record(workload, request, device)
    enter("saved for backward")
    saved, saved_note = _saved(workload, spec)
    enter("predicting")
    prediction, prediction_note = predicted(spec, device)
    live = totals(found.lives, found.events)
    spans = phase_spans(found.phases, live)
    forward = next(span for span in reversed(spans) if span.phase == "forward")
    return MemoryReport(
        spec=spec,
        recorder=found.recorder,
        device_name=device_label(device),
        torch=str(torch.__version__),
        events=found.events,
        phases=spans,
        peak_bytes=max(live),
        peak_event=live.index(max(live)),
        forward_end_bytes=live[forward.end - 1],
        allocator_peak_bytes=found.allocator_peak,
        saved=saved,
        prediction=prediction,
        snapshot=found.snapshot,
        note=" ".join(filter(None, (found.note, *left_out(spec), saved_note, prediction_note))),
        **columns(found.lives)._asdict(),
    )


def run_phases(step: Step, model: nn.Module, spec: CellSpec, tracker: MemoryTracker | None = None) -> None:
    """Run every phase, those that prepare the step too, and drop what it left. `tracker` is told what there is."""
    # What prepares a backward is a forward and a loss.
    for phase in PHASES["forward+backward" if spec.pass_ == "backward" else spec.pass_]:
        if tracker:
            tracker.phase(phase)
        step.run(phase)
        if tracker:
            tracker.claim("gradients", (p.grad for p in model.parameters() if p.grad is not None))
    if tracker:
        tracker.phase(CLEAR)
    step.clear()


def claim_cell(tracker: MemoryTracker, workload: Workload, device: torch.device) -> int:
    """Tell the tracker what lives between two steps; gives its bytes. What the host keeps for a GPU is left out."""

    def here(tensors: Iterator[Tensor]) -> list[Tensor]:
        return [tensor for tensor in tensors if tensor.device.type == device.type]

    model = workload.model
    parameters = here(iter(model.parameters()))
    buffers = here(iter((*model.buffers(), *workload.batch)))
    state = here(optimizer_state(workload))
    tracker.claim("parameters", parameters)
    tracker.claim("buffers", buffers)
    tracker.claim("optimizer_state", state)
    storages = {s._cdata: s.nbytes() for s in (t.untyped_storage() for t in (*parameters, *buffers, *state))}
    return sum(storages.values())


def predicted(spec: CellSpec, device: torch.device) -> tuple[Prediction | None, str]:
    """What the cell was predicted to need, or why there is no prediction."""
    from cs336_tui.worker.estimate.predict import predict

    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    try:
        return predict(spec, capability=capability), ""
    except BaseException as error:  # the measurement stands without it
        if is_interrupt(error):
            raise
        return None, no_prediction(error)


def no_prediction(error: BaseException) -> str:
    """What a report says in place of its prediction."""
    return f"There is no prediction: {outcome_of(error)[1]}"


def optimizer_state(workload: Workload) -> Iterator[Tensor]:
    """All tensors that the optimizer has made so far."""
    states = workload.training.optimizer.state.values() if workload.training else ()
    return (value for state in states for value in state.values() if isinstance(value, Tensor))


class _Found(NamedTuple):
    """The recorded step: event 0 is its begin."""

    recorder: RecorderName
    lives: list[Life]
    events: int
    phases: list[tuple[str, int]]
    allocator_peak: int | None
    snapshot: str | None
    note: str


def _record(workload: Workload, request: ReportRequest, device: torch.device) -> _Found:
    recorder = _recorder(device)
    tracker = MarkedTracker(recorder.mark if recorder else lambda: None, device_type=device.type)
    name_parts(workload.model, tracker.range, request.spec.annotations)
    claimed_bytes = claim_cell(tracker, workload, device)
    step = workload.step(request.spec)
    with recorder or nullcontext(), tracker:
        if step.back_to_back:
            run_phases(step, workload.model, request.spec, tracker)
        recorded = len(tracker.phases)
        taken = _optimizer_steps(workload)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        run_phases(step, workload.model, request.spec, tracker)
    note = SKIPPED if workload.training and _optimizer_steps(workload) == taken else ""
    phases = tracker.phases[recorded:]
    records = tracker.timeline().allocations
    if recorder is None:
        return _found("tensors", lives_of(records), tracker.events, [(p.phase, p.event) for p in phases], TENSORS_ONLY)
    recording = recorder.recording()
    lives = join(recording, tracker.operations, records)
    # Event i of a recording is event i + 1 here.
    begins = [(phase.phase, recording.marks[phase.mark] + 1) for phase in phases]
    if isinstance(recorder, CudaRecorder):
        found = _found("CUDA allocator history", lives, len(recording.events) + 1, begins, note)
        peak = torch.cuda.max_memory_allocated(device)
        snapshot, unsaved = _save(recorder, request)
        return found._replace(allocator_peak=peak, snapshot=snapshot, note=" ".join(filter(None, (note, unsaved))))
    found = _found("CPU profiler", lives, len(recording.events) + 1, begins, note)
    return found._replace(allocator_peak=_cpu_peak(recording, begins[0][1], claimed_bytes))


def _recorder(device: torch.device) -> CpuRecorder | CudaRecorder | None:
    if device.type == "cuda":
        return CudaRecorder(device)
    return CpuRecorder() if device.type == "cpu" and kineto_available() else None


def _found(recorder: RecorderName, lives: list[Life], events: int, begins: list[tuple[str, int]], note: str) -> _Found:
    """With what came before the first phase as event 0."""
    before = begins[0][1] - 1
    phases = [(phase, first - before) for phase, first in begins]
    return _Found(recorder, cut(lives, before + 1), events - before, phases, None, None, note)


def _cpu_peak(recording: Recording, first: int, claimed_bytes: int) -> int:
    """The most that was allocated at a time from the recorded step's begin on, by adding up what the profiler says.

    It also tells of the end of what was allocated while it recorded something else: that is no memory of this cell.
    """
    live, sizes = [claimed_bytes], dict[int, int]()
    for event in recording.events:
        change = -sizes.pop(event.address, 0)
        if event.bytes > 0:
            sizes[event.address] = event.bytes
            change += event.bytes
        live.append(live[-1] + change)
    return max(live[first - 1 :])


def _save(recorder: CudaRecorder, request: ReportRequest) -> tuple[str | None, str]:
    """Where the snapshot is, and why it is nowhere; a record without it is still whole."""
    if request.folder is None:
        return None, ""
    spec = request.spec
    folder = Path(request.folder)
    settings = (spec.size, f"ctx{spec.context_length}", f"batch{spec.batch_size}", spec.pass_, spec.precision)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = unused_path(folder, "memory-" + "-".join(settings), ".pickle")
        recorder.save(path)
    except (OSError, RuntimeError) as error:
        return None, f"The memory snapshot could not be saved: {error}."
    return str(path), ""


def unused_path(folder: Path, stem: str, suffix: str) -> Path:
    """The first of ``stem.suffix``, ``stem-2.suffix``, ... that is not there."""
    names = (f"{stem}{'' if number == 1 else f'-{number}'}{suffix}" for number in count(1))
    return next(path for name in names if not (path := folder / name).exists())


def _saved(workload: Workload, spec: CellSpec) -> tuple[tuple[SavedBlock, ...], str]:
    if "backward" not in PHASES[spec.pass_]:
        return (), f"There is no backward in {spec.pass_}: no gradients, and nothing is saved for one."
    workload.model.zero_grad(set_to_none=True)  # the cell itself has no gradients when it comes to its forward
    try:
        return saved_for_backward(workload, spec.checkpoint, spec.annotations), ""
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return (), "Memory ran out while looking at what is saved for backward."


def _warm_up(workload: Workload, spec: CellSpec) -> None:
    """One step; for a training step as many as it takes until the optimizer has its state."""
    for _ in range(MOST_WARMUP_STEPS):
        run_phases(workload.step(spec), workload.model, spec)
        if workload.training is None or _optimizer_steps(workload):
            break
    # What a training step has left would be freed within the recording, which has not seen it come.
    workload.model.zero_grad(set_to_none=True)


def _optimizer_steps(workload: Workload) -> int:
    return workload.training.steps_taken if workload.training else 0
