"""Launches in the raw events of a profiled, named step: GPU kernels, or host operators by self time."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple, Protocol

from cs336_tui.config.variants import RANGES
from cs336_tui.events.device_timeline import busy, extent, gaps_of, overlap_of
from cs336_tui.events.kernel_report import Gaps, KernelGroup, KernelKind, Overlap, kernel_kind, operator_kind
from cs336_tui.events.prediction import NO_RANGE
from cs336_tui.stats.quantities import counted, time_text
from cs336_tui.worker.workload.ranges import PHASE, RANGE

HOST_INSTEAD = "Shown instead: operators of the host, by the time each took to enqueue its work."
NO_CUPTI = (
    "No kernel could be seen. Either the driver lets only administrators profile (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)"
    ": have the nvidia module loaded with NVreg_RestrictProfilingToAdminUsers=0. Or another profiler, such as nsys or "
    "ncu, holds the GPU: run without it. " + HOST_INSTEAD
)
NO_METAL = "torch's profiler does not see Metal kernels. " + HOST_INSTEAD
_RUNTIME_CALL = re.compile(r"cu(da)?[A-Z]\w*$")


class Launch(NamedTuple):
    """One kernel, or one call of an operator. `duration_ns` of an operator is its self time."""

    name: str
    kind: KernelKind
    phase: str
    range: str
    begin_ns: int
    end_ns: int
    duration_ns: int
    op: str = ""
    """Of a kernel, the operator that launched it; empty if unknown."""
    stack: tuple[str, ...] = ()
    """The operators and annotations that enclose it, the outermost first."""


class Profile(NamedTuple):
    """Launches of the chosen phases, and the host's time from the first phase's begin to the last one's end."""

    launches: tuple[Launch, ...]
    host_ns: int
    unplaced_ns: tuple[int, ...] = ()
    """Durations of kernels that are in no launch here, since nothing tells in which phase they were launched."""

    @property
    def total_ns(self) -> int:
        return sum(launch.duration_ns for launch in self.launches)

    @property
    def busy_ns(self) -> int:
        """Time in which at least one launch ran."""
        return busy(*_columns(self.launches)[1:])

    def span_ns(self, phase: str | None = None) -> int:
        """Time from the first launch's begin to the last one's end, of one phase or of all; 0 without a launch."""
        return extent(*_columns([each for each in self.launches if phase in (None, each.phase)])[1:])

    def gaps(self) -> Gaps:
        """The times between launches in which none ran."""
        return gaps_of(*_columns(self.launches))

    def overlap(self) -> Overlap | None:
        """Communication between GPUs beside computation; None without communication."""
        return overlap_of(*_columns([each for each in self.launches if not each.name.startswith(("Memcpy", "Memset"))]))

    def groups(self) -> tuple[KernelGroup, ...]:
        """Launches grouped by name and place in the step, in the order of their first launch."""
        found: dict[tuple[str, KernelKind, str, str, str, tuple[str, ...]], list[int]] = {}
        for launch in sorted(self.launches, key=lambda launch: launch.begin_ns):
            key = launch.name, launch.kind, launch.phase, launch.range, launch.op, launch.stack
            found.setdefault(key, []).append(launch.duration_ns)
        return tuple(
            KernelGroup(name, kind, phase, range_, phase == "backward", tuple(durations), op, stack=stack)
            for (name, kind, phase, range_, op, stack), durations in found.items()
        )


def _columns(launches: Sequence[Launch]) -> tuple[list[str], list[int], list[int]]:
    """Names, begins and ends."""
    return [each.name for each in launches], [each.begin_ns for each in launches], [each.end_ns for each in launches]


class StepRead(NamedTuple):
    """A profiled step, the kind of its launches, and a note if kernels are missing."""

    profile: Profile
    activity: Literal["kernels", "operators"]
    note: str


def operators_of(events: Iterable[RawEvent], phases: Sequence[str]) -> Profile:
    """The operators of the host that began in one of these phases. Time between operators is not assigned."""
    host = [event for event in events if kind_of(event) == "operator"]
    times = PhaseTimes(host)
    launches = tuple(
        Launch(
            each.name,
            operator_kind(each.name),
            each.phase,
            each.range,
            each.begin_ns,
            each.end_ns,
            each.self_ns,
            stack=each.stack[:-1],
        )
        for each in attribute(host, times)
        if each.phase in phases and not each.annotation and not each.repeats
    )
    return Profile(launches, times.host_ns(phases))


def kernels_of(events: Iterable[RawEvent], phases: Sequence[str]) -> Profile:
    """The kernels, copies and fills of the GPU that were launched in one of these phases, each with phase and range of
    the operator whose `correlation_id` is its `linked_correlation_id`; else those at its launch, CUDA's runtime call
    with its own `correlation_id`; else the phase of the kernel before it on its stream; else it is
    unplaced."""
    events = list(events)
    host = [event for event in events if kind_of(event) == "operator"]
    times = PhaseTimes(host)
    operators = {each.correlation: each for each in attribute(host, times) if each.correlation}
    calls_ns = {event.correlation_id(): event.start_ns() for event in events if kind_of(event) == "runtime"}
    before: dict[tuple[int, int], str] = {}
    launches, unplaced_ns = [], []
    for event in sorted((event for event in events if kind_of(event) == "kernel"), key=lambda event: event.start_ns()):
        stream = event.device_index(), event.device_resource_id()
        phase, range_, op = before.get(stream, ""), NO_RANGE, ""
        stack: tuple[str, ...] = ()
        if operator := operators.get(event.linked_correlation_id()):
            phase, range_ = operator.phase, operator.range
            op, stack = "" if operator.annotation else operator.name, operator.stack
        elif (called_ns := calls_ns.get(event.correlation_id())) is not None:
            phase = times.at(called_ns)
            range_ = phase if phase in RANGES else NO_RANGE
        elif not phase:
            unplaced_ns.append(event.end_ns() - event.start_ns())
            continue
        before[stream] = phase
        if phase in phases:
            begin, end = event.start_ns(), event.end_ns()
            kind, took_ns = kernel_kind(event.name()), end - begin
            launches.append(Launch(event.name(), kind, phase, range_, begin, end, took_ns, op, stack))
    return Profile(tuple(launches), times.host_ns(phases), tuple(unplaced_ns))


def read_step(events: Sequence[RawEvent], phases: Sequence[str], device_type: str) -> StepRead:
    """The launches of these phases: a GPU's kernels if the profiler sees them, else the host's operators."""
    note = {"cuda": NO_CUPTI, "mps": NO_METAL}.get(device_type, "")
    if device_type == "cuda":
        kernels = kernels_of(events, phases)
        left_out = ""
        if unplaced_ns := kernels.unplaced_ns:
            number = f"{counted(len(unplaced_ns), 'kernel')} ({time_text(sum(unplaced_ns))})"
            why = "whose launch the profiler did not record, so that the phase is unknown"
            left_out = f"Left out: {number}, {why}."
        if kernels.launches:
            return StepRead(kernels, "kernels", left_out)
        note = f"{left_out} {HOST_INSTEAD}" if left_out else note
    return StepRead(operators_of(events, phases), "operators", note)


_KIND_OF_ACTIVITY = {
    **dict.fromkeys(("cpu_op", "user_annotation"), "operator"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver"), "runtime"),
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset"), "kernel"),
}


def kind_of(event: RawEvent) -> str:
    """``operator`` for one of the host, an autograd node or an annotation; ``runtime`` for a call of CUDA's runtime or
    driver, such as ``cudaLaunchKernel``; ``kernel`` for a kernel, copy or fill; empty for anything else."""
    if read := getattr(event, "activity_type", None):  # not in every torch
        return _KIND_OF_ACTIVITY.get(str(read()), "")
    device = str(event.device_type()).rpartition(".")[2]  # the name of torch's ``DeviceType``
    if device == "CPU":
        return "runtime" if _RUNTIME_CALL.match(event.name()) else "operator"
    return "kernel" if device == "CUDA" and not event.is_user_annotation() else ""


ACCUMULATE = "AccumulateGrad"
_EVALUATE = "autograd::engine::evaluate_function: "
_UNSEEN = frozenset((
    "[memory]", "[OutOfMemory]", "profiler::_record_function_enter", "profiler::_record_function_enter_new",
    "profiler::_record_function_exit", "aten::is_leaf", "aten::output_nr", "aten::_version",
))  # fmt: skip
"""Events that torch's own tables leave out; their time counts to the enclosing operator."""


class RawEvent(Protocol):
    """An event of the profiler, as torch's ``_KinetoEvent``. Times in ns."""

    def name(self) -> str: ...
    def start_ns(self) -> int: ...
    def end_ns(self) -> int: ...
    def start_thread_id(self) -> int: ...
    def end_thread_id(self) -> int: ...
    def fwd_thread_id(self) -> int: ...
    def sequence_nr(self) -> int: ...
    def correlation_id(self) -> int: ...
    def is_async(self) -> bool: ...
    def is_user_annotation(self) -> bool: ...
    def device_type(self) -> object: ...
    def device_index(self) -> int: ...
    def device_resource_id(self) -> int: ...
    def linked_correlation_id(self) -> int: ...


@dataclass(slots=True, eq=False)
class Operator:
    """One call of an operator or annotation, with its phase, its range and what encloses it on its thread."""

    name: str
    begin_ns: int
    end_ns: int
    thread: int
    forward_thread: int  # 0 but for autograd's nodes
    sequence: int
    correlation: int
    annotation: bool
    phase: str  # Empty outside every phase
    self_ns: int  # Its duration less that of what it called
    range: str = NO_RANGE
    node: tuple[int, int] | None = None
    """Thread and sequence number of the enclosing autograd node, or of the one that passed a gradient to it; None for
    what a node recomputes, which belongs where forward did it."""
    caller: Operator | None = None
    called: int = 0  # Number of its own calls
    repeats: bool = False
    """True if it is the only call of an operator of the same name, as when a call is dispatched to another backend.
    torch's tables count both as one call, and so does that operator's self time."""

    @property
    def stack(self) -> tuple[str, ...]:
        """Its name after those of all that enclose it on its thread, each once where it repeats."""
        names, each = [self.name], self.caller
        while each is not None:
            names.append(each.name)
            each = each.caller
        bare = (name.removeprefix(PHASE).removeprefix(RANGE) for name in reversed(names))
        return tuple(name for name, _ in groupby(bare))


class PhaseTimes:
    """The host's time spans of the phases, which do not overlap; the profiler also draws each phase on the GPU, over
    its kernels."""

    def __init__(self, events: Iterable[RawEvent]) -> None:
        spans = [
            (event.name().removeprefix(PHASE), event.start_ns(), event.end_ns())
            for event in events
            if event.is_user_annotation() and event.name().startswith(PHASE) and kind_of(event) == "operator"
        ]
        self._spans = sorted(spans, key=lambda span: span[1])
        self._begins = [begin for _, begin, _ in self._spans]

    def at(self, moment_ns: int) -> str:
        """The phase at this moment on any thread; empty outside every phase."""
        place = bisect_right(self._begins, moment_ns) - 1
        if place < 0 or moment_ns > self._spans[place][2]:
            return ""
        return self._spans[place][0]

    def host_ns(self, phases: Sequence[str]) -> int:
        """From the begin of the first of these to the end of the last."""
        spans = [span for span in self._spans if span[0] in phases]
        return max(end for _, _, end in spans) - min(begin for _, begin, _ in spans) if spans else 0


def attribute(events: Iterable[RawEvent], phases: PhaseTimes) -> tuple[Operator, ...]:
    """Every operator and annotation of the host with its phase, range and self time, by thread, then by begin.

    A backward operator belongs to the range of the forward operator that made its autograd node: both have the same
    forward thread and sequence number ("forward-backward correlation" in ``torch.autograd.profiler``); outside every
    node to ``loss``, whose gradient it makes. An accumulation of gradients belongs to the node whose gradient completes
    the sum, a parameter's gradient to the node that computed it. ``optimizer`` and ``zero_grad`` are ranges too.
    """
    operators = [each for thread in _by_thread(events, phases).values() for each in _enclosed(thread)]
    made: dict[tuple[int, int], Operator] = {}  # By thread and sequence number of a node: the last that began under it
    for each in operators:
        key = each.thread, each.sequence
        if each.annotation or each.sequence < 0 or each.node is not None:
            continue
        if key not in made or each.begin_ns >= made[key].begin_ns:
            made[key] = each
    forward_ranges = {key: _range_outside_nodes(each) for key, each in made.items()}
    for each in operators:
        each.range = _range_outside_nodes(each) if each.node is None else forward_ranges.get(each.node, NO_RANGE)
    return tuple(operators)


def _by_thread(events: Iterable[RawEvent], phases: PhaseTimes) -> dict[int, list[Operator]]:
    """Events of each thread by begin, the longer first."""
    threads: dict[int, list[Operator]] = defaultdict(list)
    for event in events:
        thread = event.start_thread_id()
        if event.is_async() or thread != event.end_thread_id() or event.name() in _UNSEEN:
            continue
        begin, end, forward, sequence = event.start_ns(), event.end_ns(), event.fwd_thread_id(), event.sequence_nr()
        place = event.correlation_id(), event.is_user_annotation(), phases.at(begin)
        threads[thread].append(Operator(event.name(), begin, end, thread, forward, sequence, *place, end - begin))
    for found in threads.values():
        found.sort(key=lambda each: (each.begin_ns, -each.end_ns))
    return threads


def _enclosed(operators: list[Operator]) -> list[Operator]:
    """The operators of one thread by begin, each told what encloses it: caller, innermost named range, node."""
    stack: list[Operator] = []
    last_node: tuple[int, int] | None = None
    for each in operators:
        while stack and (each.begin_ns >= stack[-1].end_ns or each.end_ns > stack[-1].end_ns):
            stack.pop()
        if stack:
            caller = each.caller = stack[-1]
            each.range, each.node = caller.range, caller.node
            caller.called += 1
            caller.self_ns -= each.self_ns
        if each.annotation and each.name.startswith(RANGE):
            each.range, each.node = each.name.removeprefix(RANGE), None  # inside a node: a recomputation
        elif each.forward_thread > 0 and each.sequence >= 0:
            each.node = last_node = each.forward_thread, each.sequence
        elif each.name.startswith(_EVALUATE) and ACCUMULATE in each.name:
            each.node = last_node  # autograd runs it right after the node that made its gradient
        stack.append(each)
    for each in reversed(operators):  # the innermost first
        if each.caller and each.caller.name == each.name and each.caller.called == 1:  # both count as one call
            each.caller.self_ns += each.self_ns
            each.caller.called = each.called
            each.self_ns, each.repeats = 0, True
    return operators


def _range_outside_nodes(operator: Operator) -> str:
    if operator.range:
        return operator.range
    if operator.phase == "backward":
        return "loss"
    return operator.phase if operator.phase in RANGES else NO_RANGE
