"""The kernel report: one profiled step of a cell, each kernel or operator with its phase and named range."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from cs336_tui.config.ranks import sharing_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.events.kernel_report import FUSED, KernelGroup, KernelReport, RankTraffic
from cs336_tui.events.prediction import NO_RANGE
from cs336_tui.events.reports import ReportRequest
from cs336_tui.worker.measure import report_parts
from cs336_tui.worker.measure.kernel_events import RawEvent, read_step
from cs336_tui.worker.measure.preparing import compile_ahead, fresh_compiler
from cs336_tui.worker.measure.rank_traffic import Gathered, traffic_of
from cs336_tui.worker.measure.timing import Clock, clock_for
from cs336_tui.worker.place import ALONE, Place
from cs336_tui.worker.ranks.group import Group
from cs336_tui.worker.workload.building import build, configure_torch
from cs336_tui.worker.workload.passes import Step
from cs336_tui.worker.workload.ranges import name_step

WARMUP_STEPS = 2  # Before the profiled step, so that libraries are loaded and memory is allocated
LONG_STEP_S = 2.0  # One step of this length is enough warm-up
OF_FIRST = "Kernels are those of rank 0."
COMPILED = "torch.compile has fused the model: forward and backward have no parts, and no kernel is of one alone."


def profile_kernels(request: ReportRequest, enter: report_parts.Enter, place: Place = ALONE) -> KernelReport:
    """Build the cell's workload, compile it if the cell is compiled, warm it up and profile one step: a GPU's kernels
    if the profiler sees them, else the host's operators. Saves the Chrome trace in the request's folder, if any. Raises
    what building and running a cell raises. Of several ranks, whose process group is joined, each profiles the same
    step."""
    spec = request.spec
    enter("building")
    device = configure_torch(spec, torch.device(place.device_of(spec)), place.here)
    clock = clock_for(device)
    with fresh_compiler(spec.compile):
        step, model = _ready_step(spec, device, enter, place)
        _warm_up(step, clock, enter)
        gathered = _gathers(spec, step, model, enter)
        enter("profiling")
        taken = report_parts.steps_taken(step.training)
        profiler = _profile_step(step, clock, device, Group(place, device).barrier)
        skipped = report_parts.skipped_note("profiled", step.training, taken)
        step.clear()
    enter("attributing")
    events = raw_events(profiler)
    read = read_step(events, step.phases, device.type)
    found, activity, unseen = read
    enter("predicting")
    rehearsal, unpredicted = report_parts.rehearsed(spec, missing="No FLOPs beside the times")
    enter("saving the trace")
    of_rank = (spec.parallel, f"rank{place.rank}") if place.ranks > 1 else ()
    name = ("kernels", spec.size, f"ctx{spec.context_length}", spec.pass_, spec.precision, spec.device, *of_rank)
    trace, unsaved = report_parts.save_file(
        "Chrome trace", request.folder, name, ".json.gz", lambda path: profiler.export_chrome_trace(str(path))
    )
    groups = found.groups() if spec.compile == "off" else tuple(map(_fused, found.groups()))
    compiled = COMPILED if spec.compile != "off" else ""
    ranks: tuple[RankTraffic, ...] = ()
    if place.ranks > 1:
        ranks = (msgspec.structs.replace(traffic_of(events, read, step.phases, place.rank, gathered), trace=trace),)
        compiled = report_parts.joined(compiled, OF_FIRST)
    launched = report_parts.GRAPH_LEFT_OUT if spec.cuda_graph != "off" else ""
    return KernelReport(
        **report_parts.header(spec, device),
        activity=activity,
        groups=groups,
        total_ns=found.total_ns,
        span_ns=found.span_ns(),
        phase_spans_ns={phase: found.span_ns(phase) for phase in step.phases},
        busy_ns=found.busy_ns,
        launches=len(found.launches),
        host_ns=found.host_ns if device.type != "cpu" else None,
        gaps=found.gaps() if activity == "kernels" else None,
        overlap=found.overlap() if activity == "kernels" else None,
        prediction=rehearsal.prediction if rehearsal else None,
        trace=trace,
        ranks=ranks,
        note=report_parts.joined(unseen, compiled, launched, skipped, unpredicted, unsaved),
    )


def _gathers(spec: CellSpec, step: Step, model: nn.Module, enter: report_parts.Enter) -> tuple[Gathered, ...]:
    """The all-gathers of a step of several ranks that FSDP or a user's own shares; each module marks its begin. None of
    a compiled model, which would run uncompiled with marks."""
    name = sharing_of(spec.parallel).name
    if spec.ranks == 1 or spec.compile != "off" or not (name == "fsdp2" or is_imported(name)):
        return ()
    enter("following all-gathers")
    from cs336_tui.worker.ranks.gathers import follow_gathers, mark_begins

    found = follow_gathers(step, model)
    mark_begins(model, found)
    return found


def _ready_step(
    spec: CellSpec, device: torch.device, enter: report_parts.Enter, place: Place
) -> tuple[Step, nn.Module]:
    """The step with its phases and parts named, and its model. Names would break a compiled model's graphs: its parts
    have none."""
    shown = msgspec.structs.replace(spec, cuda_graph="off")
    if place.ranks > 1:
        from cs336_tui.worker.ranks.parallel import share  # it imports much

        workload = build(shown, device, rank=place.rank, share=partial(share, spec=shown, device=device))
    else:
        workload = build(shown, device)
    step = workload.step(shown)
    if spec.compile == "off":
        name_step(step, workload.model, record_function, spec.annotations)
        return step, workload.model
    enter("compiling")
    from torch._inductor import config

    with config.patch({"cpp.enable_kernel_profile": True}):  # a CPU's code reports each of its loops
        settled = Group(place, device).all
        compile_ahead(step, device, spec.compile, lambda: enter("compiling"), settled)
    name_step(step, None, record_function)
    return step, workload.model


def _fused(group: KernelGroup) -> KernelGroup:
    in_model = group.range == NO_RANGE and group.phase in ("forward", "backward")
    return msgspec.structs.replace(group, range=FUSED) if in_model else group


def _warm_up(step: Step, clock: Clock, enter: report_parts.Enter) -> None:
    """Run a few steps, until one takes its optimizer step: the gradient scaler may skip the first ones."""
    for number in range(1, report_parts.MOST_WARMUP_STEPS + 1):
        enter(f"warm-up {number}")
        taken, begin = report_parts.steps_taken(step.training), perf_counter()
        _run(step, clock)
        step.clear()
        enough = number >= WARMUP_STEPS or perf_counter() - begin > LONG_STEP_S
        if enough and (step.training is None or report_parts.steps_taken(step.training) > taken):
            return


def _run(step: Step, clock: Clock) -> None:
    step.prepare()
    clock.synchronize()
    for phase in step.phases:
        step.run(phase)
    clock.synchronize()


def _profile_step(step: Step, clock: Clock, device: torch.device, barrier: Callable[[], object]) -> profile:
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities):  # the first use sets the profiler up
        torch.ones(1, device=device).add_(1)
        clock.synchronize()
    barrier()
    with profile(activities=activities) as profiler:
        _run(step, clock)
    return profiler


def raw_events(profiler: profile) -> list[RawEvent]:
    """All events of a stopped profiler, in no order."""
    assert profiler.profiler is not None
    results: Any = profiler.profiler.kineto_results
    return list(results.events())
