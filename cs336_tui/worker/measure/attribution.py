"""Assigns each operator of a profiled step to a phase and a named range, backward included.

Reads the profiler's raw events (``torch.profiler.profile.profiler.kineto_results.events()``) of a step named by
`worker.workload.ranges`. A backward operator belongs to the range of the forward operator that made its autograd node:
both have the same forward thread and sequence number (``torch.autograd.profiler``, "forward-backward correlation").
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from cs336_tui.events.reports import NO_RANGE, RANGES
from cs336_tui.worker.workload.ranges import PHASE, RANGE

ACCUMULATE = "AccumulateGrad"
_EVALUATE = "autograd::engine::evaluate_function: "
_UNSEEN = frozenset((
    "[memory]", "[OutOfMemory]", "profiler::_record_function_enter", "profiler::_record_function_enter_new",
    "profiler::_record_function_exit", "aten::is_leaf", "aten::output_nr", "aten::_version",
))  # fmt: skip
"""Events that torch's own tables leave out; their time counts to the enclosing operator."""


class HostEvent(Protocol):
    """An event of the host, as torch's ``_KinetoEvent``. Times in ns."""

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


class Operator(NamedTuple):
    """One call of an operator or annotation, with its phase and range. `self_ns` excludes the operators it called."""

    name: str
    phase: str  # Empty outside every phase
    range: str
    begin_ns: int
    end_ns: int
    self_ns: int  # Its duration less that of what it called
    correlation: int
    annotation: bool
    repeats: bool
    """True if it is the only call of an operator of the same name, as when a call is dispatched to another backend.
    torch's tables count both as one call, and so does that operator's self time."""


class PhaseTimes:
    """The host's time spans of the phases, which do not overlap."""

    def __init__(self, spans: Iterable[tuple[str, int, int]]) -> None:
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


class _Event(NamedTuple):
    name: str
    begin: int
    end: int
    thread: int
    forward_thread: int  # 0 but for autograd's nodes
    sequence: int
    correlation: int
    annotation: bool

    @property
    def is_node(self) -> bool:
        return self.forward_thread > 0 and self.sequence >= 0


def phase_times(events: Iterable[HostEvent]) -> PhaseTimes:
    """The phases among the events of the host."""
    return PhaseTimes(
        (event.name().removeprefix(PHASE), event.start_ns(), event.end_ns())
        for event in events
        if event.is_user_annotation() and event.name().startswith(PHASE)
    )


def attribute(events: Iterable[HostEvent], phases: PhaseTimes) -> tuple[Operator, ...]:
    """Every operator and annotation of the host with its phase, range and self time, by thread, then by begin.

    ``loss``, ``optimizer`` and ``zero_grad`` are ranges too. Operators of backward outside every node belong to
    ``loss``: they make its gradient. An accumulation of gradients belongs to the node whose gradient completes the sum;
    a parameter's gradient belongs to the node that computed it.
    """
    placed = [each for thread in _by_thread(events).values() for each in _enclosed(thread)]
    forward_ranges = _forward_ranges(placed, phases)
    found = []
    for each in placed:
        name, begin, end, _, _, _, correlation, annotation = each.event
        phase = phases.at(begin)
        range_ = _range(each, phase, forward_ranges)
        found.append(Operator(name, phase, range_, begin, end, each.self_ns, correlation, annotation, each.repeats))
    return tuple(found)


def _by_thread(events: Iterable[HostEvent]) -> dict[int, list[_Event]]:
    """Events of each thread by begin, the longer first."""
    threads: dict[int, list[_Event]] = defaultdict(list)
    for event in events:
        thread = event.start_thread_id()
        if event.is_async() or thread != event.end_thread_id() or event.name() in _UNSEEN:
            continue
        begin, end, forward, sequence = event.start_ns(), event.end_ns(), event.fwd_thread_id(), event.sequence_nr()
        correlation, annotation = event.correlation_id(), event.is_user_annotation()
        threads[thread].append(_Event(event.name(), begin, end, thread, forward, sequence, correlation, annotation))
    for found in threads.values():
        found.sort(key=lambda event: (event.begin, -event.end))
    return threads


class _Placed:
    """An event of one thread and what encloses it there.

    `range` is the innermost named range. `node` is the thread and sequence number of the enclosing autograd node, or of
    the one that passed a gradient to it; None for what a node recomputes, which belongs where forward did it.
    """

    def __init__(self, event: _Event, range_: str, node: tuple[int, int] | None, caller: _Placed | None) -> None:
        self.event, self.range, self.node, self.caller = event, range_, node, caller
        self.self_ns = event.end - event.begin
        self.called = 0
        self.repeats = False
        if caller:
            caller.called += 1
            caller.self_ns -= self.self_ns

    def join_caller(self) -> None:
        """Count as one call with a caller of the same name that called nothing else."""
        caller = self.caller
        if caller and caller.event.name == self.event.name and caller.called == 1:
            caller.self_ns += self.self_ns
            caller.called = self.called
            self.self_ns, self.repeats = 0, True


def _enclosed(events: Sequence[_Event]) -> list[_Placed]:
    """The events of one thread by begin, each with what encloses it."""
    stack: list[_Placed] = []
    opened: list[_Placed] = []
    last_node: tuple[int, int] | None = None
    for event in events:
        while stack and (event.begin >= stack[-1].event.end or event.end > stack[-1].event.end):
            stack.pop()
        around = stack[-1] if stack else None
        range_ = around.range if around else NO_RANGE
        node = around.node if around else None
        if event.annotation and event.name.startswith(RANGE):
            range_, node = event.name.removeprefix(RANGE), None  # inside a node: a recomputation
        elif event.is_node:
            node = last_node = event.forward_thread, event.sequence
        elif event.name.startswith(_EVALUATE) and ACCUMULATE in event.name:
            node = last_node  # autograd runs it right after the node that made its gradient
        opened.append(_Placed(event, range_, node, around))
        stack.append(opened[-1])
    for each in reversed(opened):  # the innermost first
        each.join_caller()
    return opened


def _forward_ranges(placed: Iterable[_Placed], phases: PhaseTimes) -> dict[tuple[int, int], str]:
    """The range of the operator that made each node, by thread and sequence number: the last that began under it."""
    last: dict[tuple[int, int], tuple[int, str]] = {}
    for each in placed:
        event = each.event
        if event.annotation or event.sequence < 0 or each.node is not None:
            continue
        key = event.thread, event.sequence
        if key not in last or event.begin >= last[key][0]:
            last[key] = event.begin, _range_outside_nodes(each, phases.at(event.begin))
    return {key: range_ for key, (_, range_) in last.items()}


def _range(each: _Placed, phase: str, forward_ranges: dict[tuple[int, int], str]) -> str:
    if each.node is not None:
        return forward_ranges.get(each.node, NO_RANGE)
    return _range_outside_nodes(each, phase)


def _range_outside_nodes(each: _Placed, phase: str) -> str:
    if each.range:
        return each.range
    if phase == "backward":
        return "loss"
    return phase if phase in RANGES else NO_RANGE
