"""From a trace to kernel reports, one for each device: the operator, the ranges and the phase of every kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from cs336_tui.config.variants import RANGES
from cs336_tui.events.device_timeline import busy, extent, gaps_of, overlap_of
from cs336_tui.events.kernel_report import KernelGroup, KernelReport, Runs, kernel_kind, operator_kind
from cs336_tui.events.prediction import NO_RANGE
from cs336_tui.session.recordings import recording
from cs336_tui.session.recordings.recording import USUAL_PHASES, DeviceFacts, Opening, Recorded
from cs336_tui.session.recordings.trace import KERNEL, OPERATOR, USER_RANGE, Ints, Spans, Trace
from cs336_tui.stats.quantities import counted

NO_KERNELS = "no kernel of a GPU in the file; shown are the host's operators, by self time"
_NODE = "autograd::engine::evaluate_function: "
_OWN_BACKWARD = "phase/backward"
_ACCUMULATES = f"{_NODE}torch::autograd::AccumulateGrad"
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
_OWN_STEP = re.compile(r"\W*(train(ing)?[ _-]?)?(step|iter(ation)?)[\W_]*\d*\W*", re.IGNORECASE)
"""The user's own range round a step."""
_DEEPEST = 64
"""Ranges that enclose each other, at most; deeper ones are left out."""


def reports_of(trace: Trace, name: str, path: str, opening: Opening) -> tuple[Recorded, ...]:
    """A cell for each device of a trace, named `name`. `path` is its file. Raises `Damaged`."""
    found = _Attributed(trace, opening)
    recording.check_time(found.duration.sum(dtype=float))
    devices = sorted({*found.device.tolist()})
    return tuple(_recorded(found, name, path, device) for device in devices)


class _Place(NamedTuple):
    """The ranges round a launch, and its phase."""

    path: tuple[str, ...]
    phase: str
    range: str


class _Attributed:
    """A trace's kernels, each with its operator, place and whether it is of backward; columns over all kernels. Of a
    trace without kernels the host's operators stand in for them, `duration` being their self time."""

    def __init__(self, trace: Trace, opening: Opening) -> None:
        self.trace = trace
        self._phases = recording.phase_finder(opening.phases)
        self._span_thread, self._span_name = _view(trace.span_thread), _view(trace.span_name)
        self._span_begin, self._span_end = _view(trace.span_begin), _view(trace.span_end)
        self._span_kind = _view(trace.span_kind)
        self.of_host = not len(trace.kernel_name)
        if self.of_host:
            self._take_operators()
        else:
            self.begin, self.duration = _view(trace.kernel_begin), _view(trace.kernel_duration)
            self.end = self.begin + self.duration
            self.device, self.kind = _view(trace.kernel_device), _view(trace.kernel_kind)
            self.name = _view(trace.kernel_name)
            self._thread, self._moment = self._launches()
        self._user = {thread: self._spans_of(thread, USER_RANGE) for thread in self._threads(USER_RANGE)}
        self._main = self._main_thread()
        self.op, in_node, in_forward = self._operators()
        self.run = np.full(len(self.begin), -1, np.int64)
        """Of each kernel the outermost range of its phase that encloses its launch, -1 without one."""
        self.step, self.step_unit = self.run, ""
        """Of each kernel the number of its step, -1 for none, and what tells steps apart; empty: nothing does."""
        self.places, self.place = self._places(in_node, in_forward, self._ranges_of_forward())
        self.backward = in_node | np.fromiter((each.phase == "backward" for each in self.places), bool)[self.place]

    def _take_operators(self) -> None:
        """Take the operators for kernels, each with its duration less that of those that it called."""
        chosen = np.flatnonzero(self._span_kind == OPERATOR)
        duration = (self._span_end - self._span_begin).astype(np.int64)
        own = duration.copy()
        for thread in self._threads(OPERATOR):
            spans = self._spans_of(thread, OPERATOR)
            parents = spans.parents()
            called = np.flatnonzero(parents >= 0)
            np.subtract.at(own, spans.place[parents[called]], duration[spans.place[called]])
        self.begin, self.end = self._span_begin[chosen], self._span_end[chosen]
        self.duration = np.maximum(own[chosen], 0)
        self.device, self.kind = np.zeros(len(chosen), np.int32), np.full(len(chosen), KERNEL, np.int8)
        self.name = self._span_name[chosen]
        self._thread, self._moment = self._span_thread[chosen], self.begin

    def _launches(self) -> tuple[Any, Ints]:
        """Thread and moment of each kernel's launch; thread -1 where the file has no call of its correlation."""
        trace = self.trace
        thread, moment = np.full(len(self.begin), -1, np.int32), self.begin.copy()
        if not len(trace.call_begin) or not len(thread):
            return thread, moment
        calls, correlation = _view(trace.call_correlation), _view(trace.kernel_correlation)
        order = np.argsort(calls, kind="stable")
        place = np.minimum(np.searchsorted(calls, correlation, sorter=order), len(order) - 1)
        call = order[place]
        linked = (calls[call] == correlation) & (correlation >= 0)
        thread[linked] = _view(trace.call_thread)[call[linked]]
        moment[linked] = _view(trace.call_begin)[call[linked]]
        return thread, moment

    def _threads(self, kind: int) -> list[int]:
        return [int(thread) for thread in np.unique(self._span_thread[self._span_kind == kind])]

    def _spans_of(self, thread: int, kind: int, among: Any = None) -> Spans:
        chosen = (self._span_thread == thread) & (self._span_kind == kind)
        place = np.flatnonzero(chosen if among is None else chosen & among).astype(np.int32)
        return Spans(self._span_begin[place], self._span_end[place], place)

    def _named_so(self, beginning: str) -> Any:
        """Of each span, True if its name begins so."""
        names = self.trace.names
        found = np.fromiter((name.startswith(beginning) for name in names), bool, len(names))
        return found[self._span_name] if len(names) else np.zeros(len(self._span_name), bool)

    def _main_thread(self) -> int | None:
        """The thread with the profiler's steps, else the one whose ranges last the longest together."""
        names = self.trace.names
        for thread, spans in self._user.items():
            if any(_STEP.match(names[name]) for name in np.unique(self._span_name[spans.place])):
                return thread
        lasting = {t: int((self._span_end[s.place] - self._span_begin[s.place]).sum()) for t, s in self._user.items()}
        return max(lasting, key=lambda thread: lasting[thread], default=None)

    def _operators(self) -> tuple[Any, Any, Any]:
        """The name of the operator that launched each kernel, -1 if unknown; if an autograd node, and if an operator
        that autograd recorded, encloses its launch."""
        trace, count = self.trace, len(self.begin)
        op = np.full(count, -1, np.int32)
        in_node, in_forward = np.zeros(count, bool), np.zeros(count, bool)
        is_node = self._named_so(_NODE)
        recorded = np.zeros(len(self._span_name), bool)
        forward = _view(trace.node_span)[_view(trace.node_forward) <= 0]
        recorded[forward] = True
        for thread in self._threads(OPERATOR):
            launched = np.flatnonzero(self._thread == thread)
            if not len(launched):
                continue
            moments = self._moment[launched]
            spans = self._spans_of(thread, OPERATOR)
            inner = spans.innermost(moments)
            known = inner >= 0
            op[launched[known]] = self._span_name[spans.place[inner[known]]]
            del spans, inner
            in_node[launched] = self._spans_of(thread, OPERATOR, is_node).innermost(moments) >= 0
            in_forward[launched] = self._spans_of(thread, OPERATOR, recorded & ~is_node).innermost(moments) >= 0
        return op, in_node, in_forward & ~in_node

    def _ranges_of_forward(self) -> Any:
        """Of each kernel that an autograd node launched the user's range round the operator that made the node, else
        -1. Both have the same sequence number ("forward-backward correlation" in ``torch.autograd.profiler``); of
        several such operators on the thread of the ranges the last is the one. What accumulates a gradient belongs to
        the node before it, whose gradient completes the sum."""
        trace, found = self.trace, np.full(len(self.begin), -1, np.int32)
        if self._main is None or not len(trace.node_span):
            return found
        span, sequence = _view(trace.node_span), _view(trace.node_sequence)
        is_node = _view(trace.node_forward) > 0
        made = ~is_node & (self._span_thread[span] == self._main)
        order = np.lexsort((self._span_begin[span[made]], sequence[made]))
        makers, numbers = span[made][order], sequence[made][order]
        of_span = np.full(len(self._span_name), -1, np.int64)
        of_span[span[is_node]] = sequence[is_node]
        for thread in np.unique(self._span_thread[span[is_node]]).tolist():
            launched = np.flatnonzero(self._thread == thread)
            nodes = self._spans_of(thread, OPERATOR, of_span >= 0)
            moments = self._moment[launched]
            inner = nodes.innermost(moments)
            adds = (inner < 0) & (
                self._spans_of(thread, OPERATOR, self._named_so(_ACCUMULATES)).innermost(moments) >= 0
            )
            inner[adds] = np.searchsorted(nodes.begins, moments[adds], side="right") - 1
            launched, inner = launched[inner >= 0], inner[inner >= 0]
            wanted = of_span[nodes.place[inner]]
            place = np.searchsorted(numbers, wanted, side="right") - 1
            known = (place >= 0) & (numbers[place] == wanted) if len(numbers) else np.zeros(len(wanted), bool)
            user = self._user[self._main]
            outer = user.innermost(self._span_begin[makers[place[known]]])
            found[launched[known]] = np.where(outer >= 0, user.place[outer], -1)
        return found

    def _places(self, in_node: Any, in_forward: Any, of_forward: Any) -> tuple[list[_Place], Ints]:
        """The different places of kernels, and of each kernel the number of its own."""
        count = len(self.begin)
        on_main, own = np.full(count, -1, np.int32), np.full(count, -1, np.int32)
        enclosing: dict[int, int] = {}
        """Of each span the one round it, -1 for none; both by their places in the trace."""
        for thread, spans in self._user.items():
            parents = spans.parents()
            outer = np.where(parents >= 0, spans.place[parents], -1) if len(parents) else parents
            enclosing |= zip(spans.place.tolist(), outer.tolist(), strict=True)
            launched = np.flatnonzero((self._thread == thread) if thread != self._main else np.full(count, True))
            inner = spans.innermost(self._moment[launched])
            known = inner >= 0
            (on_main if thread == self._main else own)[launched[known]] = spans.place[inner[known]]
        on_main[self._thread < 0] = -1  # the time of a kernel is not the time of its launch
        self._take_runs(enclosing, on_main, own)
        passed = in_node.astype(np.int8) * 2 + in_forward
        columns = on_main, own, of_forward, passed
        first, place = _different(*columns)
        return [self._named(enclosing, *(int(column[at]) for column in columns)) for at in first], place

    def _take_runs(self, enclosing: Mapping[int, int], on_main: Any, own: Any) -> None:
        """Tell the times apart that a phase ran: by its ranges, and the steps: by theirs, or from a forward's range to
        the next. The ranges are those on the thread of the profiler's steps."""
        top = np.full(len(self._span_name) + 1, -1, np.int64)  # the last one is that of no range
        phases = {-1: ""}
        outermost: dict[int, dict[str, int]] = {-1: {"": -1}}
        """Of each span those of the phases that enclose it, itself included."""
        for span, outer in enclosing.items():  # on each thread in the order of begins
            phase = self._phases(self.trace.names[int(self._span_name[span])])
            around = outermost[outer]
            outermost[span] = around if phase in around else {**around, phase: span}
            phases[span] = phase or phases[outer]
            top[span] = outermost[span][phases[span]]
        self.run = np.where(top[own] >= 0, top[own], top[on_main])
        if self._main is None:
            return
        place = self._user[self._main].place.tolist()
        names = [self.trace.names[int(self._span_name[span])] for span in place]
        forwards = [span for span in place if top[span] == span and phases[span] == "forward"]
        first = self._span_begin[forwards]
        steps: list[int] = []
        for pattern in (_STEP, _OWN_STEP):
            for span, name in zip(place, names, strict=True):
                begin, end = self._span_begin[span], self._span_end[span]
                if not pattern.fullmatch(name.strip()) or (steps and begin < self._span_end[steps[-1]]):
                    continue
                if pattern is _STEP or not forwards or np.searchsorted(first, begin) < np.searchsorted(first, end):
                    steps.append(span)
            if steps:
                break
        if not (begins := self._span_begin[steps or forwards]).size:
            return
        self.step_unit = "step" if steps else "forward"
        step = np.searchsorted(begins, self._moment, side="right") - 1
        inside = (step >= 0) & (self._thread >= 0)
        if steps:
            inside &= self._moment < self._span_end[steps][step]
        self.step = np.where(inside, step, -1)

    def runs(self, kernels: Ints, phase: str | None) -> Runs | None:
        """The times that these kernels, all of a phase, or None: of a step, ran; None if nothing tells them apart."""
        run, unit = (self.run[kernels], phase or "") if phase else (self.step[kernels], self.step_unit)
        steps = 0
        if phase and (run < 0).any():
            run, unit, steps = self.step[kernels], self.step_unit, len(np.unique(self.step[self.step >= 0]))
        inside = run >= 0
        if not inside.any():
            return None
        begins, ends, times = (each[kernels][inside] for each in (self.begin, self.end, self.duration))
        _, first, number = np.unique(run[inside], return_index=True, return_inverse=True)
        order = np.argsort(number, kind="stable")
        edges = np.searchsorted(number[order], np.arange(len(first) + 1))
        parts = [order[low:high] for low, high in pairwise(edges)]
        return Runs(
            unit=unit,
            steps=steps,
            launches=tuple(map(len, parts)),
            total_ns=tuple(int(times[part].sum()) for part in parts),
            span_ns=tuple(extent(begins[part], ends[part]) for part in parts),
        )

    def _named(self, enclosing: Mapping[int, int], on_main: int, own: int, of_forward: int, passed: int) -> _Place:
        raw = [*self._climb(enclosing, on_main), *self._climb(enclosing, own)]
        phases = [self._phases(name) for name in raw]
        for name in self._climb(enclosing, of_forward):
            if name not in raw and self._phases(name) in ("", *RANGES) and not _STEP.match(name):
                raw.append(name)
                phases.append("")
        phase = next((phase for phase in reversed(phases) if phase), "")
        if not phase:
            phase = {2: "backward", 1: "forward"}.get(passed & 3, "")
        shown = tuple(map(shown_range, raw))
        parts = [n for n, r, p in zip(shown, raw, phases, strict=True) if not p and not _STEP.match(r)]
        alone = "loss" if _OWN_BACKWARD in raw and not passed & 2 else phase  # this tool's: the loss's gradient
        return _Place(shown, phase, parts[-1] if parts else alone if alone in RANGES else NO_RANGE)

    def _climb(self, enclosing: Mapping[int, int], span: int) -> list[str]:
        found: list[str] = []
        while span >= 0 and len(found) < _DEEPEST:
            found.append(self.trace.names[int(self._span_name[span])])
            span = enclosing[span]
        return found[::-1]

    def steps_ns(self) -> dict[str, int]:
        """Host times of the profiler's steps by name, in their order."""
        found: dict[str, int] = {}
        for each in self._user[self._main].place.tolist() if self._main is not None else ():
            name = self.trace.names[int(self._span_name[each])]
            if _STEP.match(name):
                found[shown_range(name)] = int(self._span_end[each] - self._span_begin[each])
        return found


def shown_range(name: str) -> str:
    """The name of a range as people ask for it: ``step 3`` for ``ProfilerStep#3``, without this tool's prefixes."""
    if step := _STEP.match(name):
        return f"step {step[1]}"
    return name.removeprefix("range/").removeprefix("phase/")


def _recorded(found: _Attributed, name: str, path: str, device: int) -> Recorded:
    trace = found.trace
    mine = np.flatnonzero(found.device == device)
    mine = mine[np.argsort(found.begin[mine], kind="stable")]
    kernels, copies = mine[found.kind[mine] == KERNEL], mine[found.kind[mine] != KERNEL]
    begins, ends = found.begin[mine], found.end[mine]
    names = trace.names
    shown, of_kernels = ([names[each] for each in found.name[chosen]] for chosen in (mine, kernels))
    phases = [found.places[each].phase for each in np.unique(found.place[kernels])]
    facts = DeviceFacts() if found.of_host else trace.devices.get(device, DeviceFacts())
    where = "cpu" if found.of_host else f"cuda:{device}"
    report = KernelReport(
        **recording.header(name, where, facts.label, trace.torch),  # type: ignore[arg-type]
        activity="operators" if found.of_host else "kernels",
        groups=_groups(found, kernels),
        copies=_groups(found, copies),
        total_ns=int(found.duration[kernels].sum()),
        launches=len(kernels),
        span_ns=extent(begins, ends),
        busy_ns=busy(begins, ends),
        phase_spans_ns={phase: _span(found, kernels, phase) for phase in _in_order(phases)},
        gaps=None if found.of_host else gaps_of(shown, begins, ends),
        overlap=None if found.of_host else overlap_of(of_kernels, found.begin[kernels], found.end[kernels]),
        trace=path,
        note=_note(found, kernels),
        steps_ns=found.steps_ns(),
        runs=_runs(found, kernels, phases),
    )
    return Recorded(report=report, facts=facts, torch=trace.torch, host=trace.host)


def _groups(found: _Attributed, chosen: Ints) -> tuple[KernelGroup, ...]:
    """Kernels by name, operator, place, and in a step or not, in the order of their first launch."""
    names, kind_of = found.trace.names, operator_kind if found.of_host else kernel_kind
    outside = (found.step[chosen] < 0) & bool(found.step_unit)
    columns = (found.name[chosen], found.op[chosen], found.place[chosen], found.backward[chosen], outside)
    first, group = _different(*columns)
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(np.bincount(group, minlength=len(first)))
    durations = found.duration[chosen[order]]
    made: list[KernelGroup] = []
    for place in np.argsort(first, kind="stable").tolist():
        name, op, where, backward, is_outside = (int(column[first[place]]) for column in columns)
        at = found.places[where]
        taken = durations[ends[place - 1] if place else 0 : ends[place]].tolist()
        made.append(
            KernelGroup(
                name=names[name],
                kind=kind_of(names[name]),
                phase=at.phase,
                range=at.range,
                backward=bool(backward),
                durations_ns=tuple(taken),
                op=names[op] if op >= 0 and not found.of_host else "",
                path=at.path,
                stepped=0 if is_outside else None,
            )
        )
    return tuple(made)


def _different(*columns: Any) -> tuple[Ints, Ints]:
    """The first place of each different row of these columns, and of every row the number of its own."""
    _, first, number = np.unique(columns[0], return_index=True, return_inverse=True)
    for column in columns[1:]:
        values, value = np.unique(column, return_inverse=True)
        _, first, number = np.unique(number * len(values) + value, return_index=True, return_inverse=True)
    return first, number


def _span(found: _Attributed, kernels: Ints, phase: str) -> int:
    chosen = _of_phase(found, kernels, phase)
    return extent(found.begin[chosen], found.end[chosen])


def _of_phase(found: _Attributed, kernels: Ints, phase: str) -> Ints:
    of_phase = np.fromiter((each.phase == phase for each in found.places), bool)[found.place[kernels]]
    chosen: Ints = kernels[of_phase]
    return chosen


def _runs(found: _Attributed, kernels: Ints, phases: Iterable[str]) -> dict[str, Runs]:
    """The times that each phase ran, and all of a step."""
    of = {phase: found.runs(_of_phase(found, kernels, phase), phase) for phase in _in_order(phases) if phase}
    return {name: runs for name, runs in (of | {"recording": found.runs(kernels, None)}).items() if runs}


def _in_order(phases: Iterable[str]) -> list[str]:
    """Phases in the order of a step, those of other names last, what is in none at the end."""
    usual = list(USUAL_PHASES)
    return sorted({*phases}, key=lambda each: (each == "", usual.index(each) if each in usual else len(usual), each))


def _note(found: _Attributed, kernels: Ints) -> str:
    unlinked = 0 if found.of_host else int((found.op[kernels] < 0).sum())
    unread = found.trace.unread
    notes = [NO_KERNELS] if found.of_host else []
    if unlinked:
        have = f"of {counted(len(kernels), 'kernel', ',')} {'has' if unlinked == 1 else 'have'}"
        notes.append(f"{unlinked:,} {have} no launching operator in the file")
    if unread:
        notes.append(f"{counted(unread, 'event', ',')} could not be read")
    return "; ".join(notes)


def _view(column: Any) -> Any:
    """An array's numbers without a copy."""
    return np.frombuffer(column, column.typecode) if len(column) else np.zeros(0, column.typecode)
