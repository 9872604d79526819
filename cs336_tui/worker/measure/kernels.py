"""One profiled step of a cell: every kernel, or on a CPU every operator, with its phase and named range."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import FUSED, NO_RANGE, KernelGroup, KernelReport, Prediction, ReportRequest
from cs336_tui.worker.measure.devices import Clock, clock_for, device_label
from cs336_tui.worker.measure.failures import outcome_of
from cs336_tui.worker.measure.kernel_events import RawEvent, read_step
from cs336_tui.worker.measure.preparing import compile_ahead, fresh_compiler
from cs336_tui.worker.measure.report_parts import Enter
from cs336_tui.worker.workload.building import build, settle_torch
from cs336_tui.worker.workload.imported.problems import is_interrupt
from cs336_tui.worker.workload.passes import Step
from cs336_tui.worker.workload.ranges import GRAPH_LEFT_OUT, name_step

WARMUP_STEPS = 2
"""Before the profiled step, so that libraries are loaded and memory is there."""
LONG_STEP_S = 2.0
"""One step as long as this is warm-up enough."""
MOST_WARMUP_STEPS = 20
"""Where gradients overflow float16 at first, so that the scaler skips optimizer steps."""

SKIPPED = "The profiled step has no real optimizer phase: gradients overflowed float16, so that it was skipped."
COMPILED = "torch.compile has fused the model: forward and backward have no parts, and no kernel is of one alone."


def profile_kernels(request: ReportRequest, enter: Enter) -> KernelReport:
    """Build the cell's workload, compiled where the cell is, warm it up and profile one step of it.

    A GPU's kernels where they can be seen, the host's operators elsewhere. With a folder, the step's Chrome trace goes
    there. Raises what building and running a cell raises.
    """
    spec = request.spec
    enter("building")
    device = settle_torch(spec)
    clock = clock_for(device)
    with fresh_compiler(spec.compile):
        step = _ready_step(spec, device, enter)
        _warm_up(step, clock, enter)
        enter("profiling")
        taken = _optimizer_steps(step)
        profiler = _profile_step(step, clock, device)
        skipped = SKIPPED if step.training and _optimizer_steps(step) == taken else ""
        step.clear()
    enter("attributing")
    found, activity, unseen = read_step(raw_events(profiler), step.phases, device.type)
    enter("predicting")
    prediction, unpredicted = _predict(spec)
    enter("saving the trace")
    trace, unsaved = _save_trace(profiler, spec, request.folder)
    groups = found.groups() if spec.compile == "off" else tuple(map(_fused, found.groups()))
    compiled = COMPILED if spec.compile != "off" else ""
    launched = GRAPH_LEFT_OUT if spec.cuda_graph != "off" else ""
    return KernelReport(
        spec=spec,
        activity=activity,
        device_name=device_label(device),
        torch=str(torch.__version__),
        groups=groups,
        total_ns=found.total_ns,
        span_ns=found.span_ns(),
        phase_spans_ns={phase: found.span_ns(phase) for phase in step.phases},
        busy_ns=found.busy_ns,
        launches=len(found.launches),
        host_ns=found.host_ns if device.type != "cpu" else None,
        prediction=prediction,
        trace=trace,
        note=" ".join(filter(None, (unseen, compiled, launched, skipped, unpredicted, unsaved))),
    )


def _ready_step(spec: CellSpec, device: torch.device, enter: Enter) -> Step:
    """The step with its names, compiled where that is asked for: then parts have none, which would break its graphs."""
    shown = msgspec.structs.replace(spec, cuda_graph="off")
    workload = build(shown, device)
    step = workload.step(shown)
    if spec.compile == "off":
        name_step(step, workload.model, record_function, spec.annotations)
        return step
    enter("compiling")
    with _loops_named():
        compile_ahead(step, device, spec.compile, lambda: enter("compiling"))
    name_step(step, None, record_function)
    return step


@contextmanager
def _loops_named() -> Iterator[None]:
    """Have what torch.compile writes for a CPU tell the profiler of each of its loops."""
    from torch._inductor import config

    with config.patch({"cpp.enable_kernel_profile": True}):
        yield


def _fused(group: KernelGroup) -> KernelGroup:
    in_model = group.range == NO_RANGE and group.phase in ("forward", "backward")
    return msgspec.structs.replace(group, range=FUSED) if in_model else group


def _warm_up(step: Step, clock: Clock, enter: Enter) -> None:
    """A few steps that nobody looks at, the last of them with an optimizer step that was not skipped."""
    for number in range(1, MOST_WARMUP_STEPS + 1):
        enter(f"warm-up {number}")
        taken, begin = _optimizer_steps(step), perf_counter()
        _run(step, clock)
        step.clear()
        enough = number >= WARMUP_STEPS or perf_counter() - begin > LONG_STEP_S
        if enough and (step.training is None or _optimizer_steps(step) > taken):
            return


def _optimizer_steps(step: Step) -> int:
    return step.training.steps_taken if step.training else 0


def _run(step: Step, clock: Clock) -> None:
    step.prepare()
    clock.synchronize()
    for phase in step.phases:
        step.run(phase)
    clock.synchronize()


def _profile_step(step: Step, clock: Clock, device: torch.device) -> profile:
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities):  # the first use sets the profiler up, which must not be part of the step
        torch.ones(1, device=device).add_(1)
        clock.synchronize()
    with profile(activities=activities) as profiler:
        _run(step, clock)
    return profiler


def raw_events(profiler: profile) -> list[RawEvent]:
    """Everything that a profiler which has stopped recorded, in no order."""
    assert profiler.profiler is not None
    results: Any = profiler.profiler.kineto_results
    return list(results.events())


def _save_trace(profiler: profile, spec: CellSpec, folder: str | None) -> tuple[str | None, str]:
    """Where the trace is, and why it is nowhere; a report without it is still whole."""
    if folder is None:
        return None, ""
    name = re.sub(
        r"[^\w.+-]+", "-", f"kernels-{spec.size}-ctx{spec.context_length}-{spec.pass_}-{spec.precision}-{spec.device}"
    )
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        numbered = (Path(folder) / f"{name}{f'-{number}' if number else ''}.json.gz" for number in count())
        path = next(path for path in numbered if not path.exists())
        profiler.export_chrome_trace(str(path))
    except (OSError, RuntimeError) as error:
        return None, f"The Chrome trace could not be saved: {error}."
    return str(path), ""


def _predict(spec: CellSpec) -> tuple[Prediction | None, str]:
    """FLOPs for beside the times; without them the profile is still whole."""
    try:
        from cs336_tui.worker.estimate.predict import predict

        return predict(spec), ""
    except BaseException as error:
        if is_interrupt(error):
            raise
        return None, f"There are no FLOPs beside the times: {outcome_of(error)[1]}."
