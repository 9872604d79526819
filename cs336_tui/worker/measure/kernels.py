"""The kernel report: one profiled step of a cell, each kernel or operator with its phase and named range,
and the communication of a rank beside compute."""

from __future__ import annotations

import operator
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, compress
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import sharing_of
from cs336_tui.config.variants import is_imported
from cs336_tui.events.device_timeline import busy, is_communication, overlap, shares_over_time
from cs336_tui.events.kernel_report import FUSED, AllGather, KernelReport, RankTraffic, computes
from cs336_tui.events.prediction import NO_RANGE
from cs336_tui.events.reports import ReportRequest
from cs336_tui.worker.measure import reporter
from cs336_tui.worker.measure.kernel_events import PhaseTimes, RawEvent, StepRead, kind_of, read_step
from cs336_tui.worker.measure.preparing import compile_ahead, fresh_compiler
from cs336_tui.worker.measure.timing import Clock, clock_for
from cs336_tui.worker.ranks import ALONE, Place
from cs336_tui.worker.ranks.group import Group
from cs336_tui.worker.workload.building import build, configure_torch
from cs336_tui.worker.workload.compile_and_capture import run_whole
from cs336_tui.worker.workload.passes import Step
from cs336_tui.worker.workload.ranges import PHASE, READY, name_step

if TYPE_CHECKING:
    from cs336_tui.worker.ranks.parallel import Gathered

PARTS = 60
"""Equal parts of a step, of each of which the share is known."""
_GLOO = "gloo:"
_COPIES = ("Memcpy", "Memset")
_ALL_GATHER = re.compile("all_?gather", re.IGNORECASE)


class Span(NamedTuple):
    """Something that ran, on the host or on a GPU."""

    name: str
    begin_ns: int
    end_ns: int


class Lines(NamedTuple):
    """The step, its communication and what it computed."""

    begin_ns: int
    end_ns: int
    communication: list[Span]
    compute: list[Span]


def lines_of(events: Sequence[RawEvent], found: StepRead, phases: Sequence[str]) -> Lines:
    """Communication: NCCL's kernels, and gloo's operations, which run on threads of the host. Compute: all other
    kernels of a GPU; without one torch's operators and compiled loops, but for those on gloo's threads, which serve its
    operations."""
    marks = [event for event in events if event.name().startswith(PHASE) and kind_of(event) == "operator"]
    first_ns, last_ns = _extent([_span(mark) for mark in marks if mark.name().removeprefix(PHASE) in phases])
    inside = [event for event in events if first_ns <= event.start_ns() <= last_ns]
    operations = [event for event in inside if event.name().startswith(_GLOO)]
    # The profiler may note the end of gloo's range late, on its thread, when the step has long gone on with the result.
    own = [span._replace(end_ns=min(span.end_ns, last_ns)) for span in map(_span, operations)]
    if found.activity == "kernels":
        launches = [each for each in found.profile.launches if not each.name.startswith(_COPIES)]
        kernels = [Span(each.name, each.begin_ns, each.end_ns) for each in launches]
        moves = [is_communication(each.name) for each in kernels]
        own += compress(kernels, moves)
        return Lines(*_extent([*kernels, *own]), own, list(compress(kernels, map(operator.not_, moves))))
    gloos = {event.start_thread_id() for event in operations} - {mark.start_thread_id() for mark in marks}
    computed = [event for event in inside if computes(event.name()) and event.start_thread_id() not in gloos]
    return Lines(first_ns, last_ns, own, list(map(_span, computed)))


def traffic_of(
    events: Sequence[RawEvent], found: StepRead, phases: Sequence[str], rank: int, gathered: Sequence[Gathered] = ()
) -> RankTraffic:
    """Communication beside compute in these phases, and all-gathers beside what uses them, as `gathered` tells."""
    lines = lines_of(events, found, phases)
    own, compute = _columns(lines.communication), _columns(lines.compute)
    shares = partial(shares_over_time, parts=PARTS, first=lines.begin_ns, last=lines.end_ns)
    return RankTraffic(
        rank=rank,
        span_ns=lines.end_ns - lines.begin_ns,
        compute_ns=busy(*compute),
        communication_ns=busy(*own),
        overlapped_ns=overlap(*own, *compute) if lines.communication and lines.compute else 0,
        operations=dict(Counter(each.name for each in lines.communication)),
        compute_over_time=shares(*compute),
        communication_over_time=shares(*own),
        all_gathers=tuple(_all_gathers(events, found, lines, gathered)),
    )


def _all_gathers(
    events: Sequence[RawEvent], found: StepRead, lines: Lines, gathered: Sequence[Gathered]
) -> Iterator[AllGather]:
    """The all-gathers that ran. They are those of `gathered`, in order, if there are as many; else no more is known of
    them than their times. On a GPU a pass is ready once its mark is reached on the host and all that was launched
    before it has run."""
    ran = [each for each in lines.communication if _ALL_GATHER.search(each.name)]
    ran.sort(key=lambda each: each.begin_ns)
    known: Sequence[Gathered | None] = gathered if len(gathered) == len(ran) else [None] * len(ran)
    marks = _marks(events)
    stream = _main_stream(events) if found.activity == "kernels" else _Stream(lines.compute, [])
    for each, of in zip(ran, known, strict=True):
        ready_ns = waited_ns = None
        if of is not None and of.unit is not None and (waiting := marks[of.unit, of.pass_]):
            ready_ns = stream.free_at(waiting.pop(0))
            waited_ns = _uncovered_ns(ready_ns, each.end_ns, stream.ran) if each.end_ns > ready_ns else 0
        yield AllGather(
            module=of.module if of else "",
            pass_=of.pass_ if of else "",
            bytes=of.bytes if of else None,
            begin_ns=each.begin_ns - lines.begin_ns,
            end_ns=each.end_ns - lines.begin_ns,
            alone_ns=_uncovered_ns(each.begin_ns, each.end_ns, lines.compute),
            ready_ns=None if ready_ns is None else ready_ns - lines.begin_ns,
            waited_ns=waited_ns,
        )


def _marks(events: Sequence[RawEvent]) -> dict[tuple[str, str], list[int]]:
    """The moments of each mark in a pass, in order."""
    times, found = PhaseTimes(events), defaultdict[tuple[str, str], list[int]](list)
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name().startswith(READY) and kind_of(event) == "operator":
            pass_ = "backward" if times.at(event.start_ns()) == "backward" else "forward"
            found[event.name().removeprefix(READY), pass_].append(event.start_ns())
    return found


class _Stream:
    """Kernels of a GPU's main stream, each with the moment of its launch; none where the host computes."""

    def __init__(self, ran: Sequence[Span], launched_ns: Sequence[int]) -> None:
        self.ran = ran
        order = sorted(range(len(launched_ns)), key=launched_ns.__getitem__)
        self._launched_ns = [launched_ns[place] for place in order]
        self._done_ns = list(accumulate((ran[place].end_ns for place in order), max))

    def free_at(self, moment_ns: int) -> int:
        """The moment, or the end of what was launched before it, if that is later."""
        before = bisect_left(self._launched_ns, moment_ns)
        return max(moment_ns, self._done_ns[before - 1]) if before else moment_ns


def _main_stream(events: Sequence[RawEvent]) -> _Stream:
    """The stream that computes most, as the model's own does: FSDP copies and communicates on others."""
    launched = {e.correlation_id(): e.start_ns() for e in events if kind_of(e) == "runtime"}
    streams = defaultdict[int, list[RawEvent]](list)
    for event in events:
        name = event.name()
        if kind_of(event) == "kernel" and not is_communication(name) and not name.startswith(_COPIES):
            streams[event.device_resource_id()].append(event)
    main = max(streams.values(), key=lambda ran: sum(e.end_ns() - e.start_ns() for e in ran), default=[])
    return _Stream([_span(e) for e in main], [launched.get(e.correlation_id(), e.start_ns()) for e in main])


def _uncovered_ns(begin_ns: int, end_ns: int, spans: Sequence[Span]) -> int:
    """Time between these moments in which none of the spans runs."""
    inside = [span for span in spans if span.begin_ns < end_ns and span.end_ns > begin_ns]
    begins, ends = [max(s.begin_ns, begin_ns) for s in inside], [min(s.end_ns, end_ns) for s in inside]
    return end_ns - begin_ns - busy(begins, ends)


def _span(event: RawEvent) -> Span:
    return Span(event.name(), event.start_ns(), event.end_ns())


def _extent(spans: Sequence[Span]) -> tuple[int, int]:
    """The first begin and the last end."""
    begins, ends = _columns(spans)
    return min(begins, default=0), max(ends, default=0)


def _columns(spans: Sequence[Span]) -> tuple[list[int], list[int]]:
    """Begins and ends."""
    return [span.begin_ns for span in spans], [span.end_ns for span in spans]


WARMUP_STEPS = 2  # Before the profiled step, so that libraries are loaded and memory is allocated
LONG_STEP_S = 2.0  # One step of this length is enough warm-up
OF_FIRST = "Kernels are those of rank 0."
COMPILED = "torch.compile has fused the model: forward and backward have no parts, and no kernel is of one alone."


def profile_kernels(request: ReportRequest, enter: reporter.Enter, place: Place = ALONE) -> KernelReport:
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
        taken = reporter.steps_taken(step.training)
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities):  # the first use sets the profiler up
            torch.ones(1, device=device).add_(1)
            clock.synchronize()
        Group(place, device).barrier()
        with profile(activities=activities) as profiler:
            _run(step, clock)
        skipped = reporter.skipped_note("profiled", step.training, taken)
        step.clear()
    enter("attributing")
    events = raw_events(profiler)
    read = read_step(events, step.phases, device.type)
    found, activity, unseen = read
    enter("predicting")
    rehearsal, unpredicted = reporter.rehearsed(spec, missing="No FLOPs beside the times")
    enter("saving the trace")
    of_rank = (spec.parallel, f"rank{place.rank}") if place.ranks > 1 else ()
    name = ("kernels", spec.size, f"ctx{spec.context_length}", spec.pass_, spec.precision, spec.device, *of_rank)
    trace, unsaved = reporter.save_file(
        "Chrome trace", request.folder, name, ".json.gz", lambda path: profiler.export_chrome_trace(str(path))
    )
    groups, compiled = found.groups(), ""
    if spec.compile != "off":
        compiled = COMPILED
        groups = tuple(
            msgspec.structs.replace(group, range=FUSED)
            if group.range == NO_RANGE and group.phase in ("forward", "backward")
            else group
            for group in groups
        )
    ranks: tuple[RankTraffic, ...] = ()
    if place.ranks > 1:
        ranks = (msgspec.structs.replace(traffic_of(events, read, step.phases, place.rank, gathered), trace=trace),)
        compiled = reporter.joined(compiled, OF_FIRST)
    launched = reporter.GRAPH_LEFT_OUT if spec.cuda_graph != "off" else ""
    return KernelReport(
        **reporter.header(spec, device),
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
        note=reporter.joined(unseen, compiled, launched, skipped, unpredicted, unsaved),
    )


def _gathers(spec: CellSpec, step: Step, model: nn.Module, enter: reporter.Enter) -> tuple[Gathered, ...]:
    """The all-gathers of a step of several ranks that FSDP or a user's own shares; each module marks its begin. None of
    a compiled model, which would run uncompiled with marks."""
    name = sharing_of(spec.parallel).name
    if spec.ranks == 1 or spec.compile != "off" or not (name == "fsdp2" or is_imported(name)):
        return ()
    enter("following all-gathers")
    from cs336_tui.worker.ranks.parallel import follow_gathers, mark_begins

    found = follow_gathers(step, model)
    mark_begins(model, found)
    return found


def _ready_step(spec: CellSpec, device: torch.device, enter: reporter.Enter, place: Place) -> tuple[Step, nn.Module]:
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


def _warm_up(step: Step, clock: Clock, enter: reporter.Enter) -> None:
    """Run a few steps, until one takes its optimizer step: the gradient scaler may skip the first ones."""
    for number in range(1, reporter.MOST_WARMUP_STEPS + 1):
        enter(f"warm-up {number}")
        taken, begin = reporter.steps_taken(step.training), perf_counter()
        _run(step, clock)
        step.clear()
        enough = number >= WARMUP_STEPS or perf_counter() - begin > LONG_STEP_S
        if enough and (step.training is None or reporter.steps_taken(step.training) > taken):
            return


def _run(step: Step, clock: Clock) -> None:
    step.prepare()
    clock.synchronize()
    run_whole(step)
    clock.synchronize()


def raw_events(profiler: profile) -> list[RawEvent]:
    """All events of a stopped profiler, in no order."""
    assert profiler.profiler is not None
    results: Any = profiler.profiler.kineto_results
    return list(results.events())
