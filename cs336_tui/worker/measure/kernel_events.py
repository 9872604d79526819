"""A profiled step's raw events as launches: kernels of a GPU, or operators of the host by self time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

from cs336_tui.events.reports import NO_RANGE, RANGES, KernelGroup, KernelKind
from cs336_tui.worker.measure.attribution import HostEvent, Operator, PhaseTimes, attribute, phase_times
from cs336_tui.worker.measure.kernel_kinds import kernel_kind, operator_kind

HOST_INSTEAD = "Shown instead: operators of the host, by the time each took to enqueue its work."
NO_CUPTI = (
    "No kernel could be seen. Either the driver lets only administrators profile (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)"
    ": have the nvidia module loaded with NVreg_RestrictProfilingToAdminUsers=0. Or another profiler, such as nsys or "
    "ncu, holds the GPU: run without it. " + HOST_INSTEAD
)
NO_METAL = "Metal tells torch's profiler of no kernel. " + HOST_INSTEAD
_RUNTIME_CALL = re.compile(r"cu(da)?[A-Z]\w*$")


class RawEvent(HostEvent, Protocol):
    """What is read of any event of the profiler's."""

    def device_type(self) -> object: ...
    def device_index(self) -> int: ...
    def device_resource_id(self) -> int: ...
    def linked_correlation_id(self) -> int: ...


class Launch(NamedTuple):
    """One kernel, or one call of an operator. `duration_ns` of an operator is its self time."""

    name: str
    kind: KernelKind
    phase: str
    range: str
    begin_ns: int
    end_ns: int
    duration_ns: int


class Profile(NamedTuple):
    """The launches of the phases that count, and the host's time from the first of these phases to the last's end."""

    launches: tuple[Launch, ...]
    host_ns: int

    @property
    def total_ns(self) -> int:
        return sum(launch.duration_ns for launch in self.launches)

    @property
    def busy_ns(self) -> int:
        """Time in which at least one ran."""
        busy, reached = 0, 0
        for launch in sorted(self.launches, key=lambda launch: launch.begin_ns):
            busy += max(0, launch.end_ns - max(launch.begin_ns, reached))
            reached = max(reached, launch.end_ns)
        return busy

    def span_ns(self, phase: str | None = None) -> int:
        """From the begin of the first to the end of the last, of one phase or of all; 0 where there is none."""
        chosen = [launch for launch in self.launches if phase is None or launch.phase == phase]
        if not chosen:
            return 0
        return max(launch.end_ns for launch in chosen) - min(launch.begin_ns for launch in chosen)

    def groups(self) -> tuple[KernelGroup, ...]:
        """Launches of one name from one place of the step together, in the order in which they first came."""
        found: dict[tuple[str, KernelKind, str, str], list[int]] = {}
        for launch in sorted(self.launches, key=lambda launch: launch.begin_ns):
            key = launch.name, launch.kind, launch.phase, launch.range
            found.setdefault(key, []).append(launch.duration_ns)
        return tuple(
            KernelGroup(name, kind, phase, range_, phase == "backward", tuple(durations))
            for (name, kind, phase, range_), durations in found.items()
        )


class StepRead(NamedTuple):
    """A profiled step, what its launches are, and why they are not what one would want."""

    profile: Profile
    activity: Literal["kernels", "operators"]
    note: str


def operators_of(events: Iterable[RawEvent], phases: Sequence[str]) -> Profile:
    """The operators of the host that began in one of these phases. Time between operators is nobody's."""
    host = [event for event in events if _is_operator(event)]
    times = phase_times(host)
    launches = tuple(
        Launch(each.name, operator_kind(each.name), each.phase, each.range, each.begin_ns, each.end_ns, each.self_ns)
        for each in attribute(host, times)
        if each.phase in phases and not each.annotation and not each.repeats
    )
    return Profile(launches, times.host_ns(phases))


def kernels_of(events: Iterable[RawEvent], phases: Sequence[str]) -> Profile:
    """The kernels, copies and fills of the GPU that were launched in one of these phases.

    A kernel belongs where the operator that launched it belongs: its `linked_correlation_id` is the operator's
    `correlation_id`. Without such an operator it belongs to the moment of its launch, a call of CUDA's runtime with the
    kernel's own `correlation_id`; without that, to the phase of the kernel before it on its stream.
    """
    events = list(events)
    host = [event for event in events if _is_operator(event)]
    times = phase_times(host)
    launchers = _Launchers(attribute(host, times), (event for event in events if _is_runtime(event)), times)
    before: dict[tuple[int, int], str] = {}
    launches = []
    for event in sorted((event for event in events if _is_kernel(event)), key=lambda event: event.start_ns()):
        stream = event.device_index(), event.device_resource_id()
        phase, range_ = launchers.place(event) or (before.get(stream, ""), NO_RANGE)
        before[stream] = phase
        if phase in phases:
            begin, end = event.start_ns(), event.end_ns()
            launches.append(Launch(event.name(), kernel_kind(event.name()), phase, range_, begin, end, end - begin))
    return Profile(tuple(launches), times.host_ns(phases))


def read_step(events: Sequence[RawEvent], phases: Sequence[str], device_type: str) -> StepRead:
    """What ran in these phases: on a GPU its kernels where they can be seen, elsewhere the host's operators."""
    if device_type == "cuda":
        kernels = kernels_of(events, phases)
        if kernels.launches:
            return StepRead(kernels, "kernels", "")
    note = {"cuda": NO_CUPTI, "mps": NO_METAL}.get(device_type, "")
    return StepRead(operators_of(events, phases), "operators", note)


class _Launchers:
    """Finds out where in the step a kernel was launched."""

    def __init__(self, operators: Sequence[Operator], runtime: Iterable[RawEvent], times: PhaseTimes) -> None:
        self._operators = {each.correlation: each for each in operators if each.correlation}
        self._calls = {event.correlation_id(): event.start_ns() for event in runtime}
        self._times = times

    def place(self, kernel: RawEvent) -> tuple[str, str] | None:
        """Phase and range; None where nothing tells."""
        if operator := self._operators.get(kernel.linked_correlation_id()):
            return operator.phase, operator.range
        if (called_ns := self._calls.get(kernel.correlation_id())) is not None:
            phase = self._times.at(called_ns)
            return phase, phase if phase in RANGES else NO_RANGE
        return None


def _is_operator(event: RawEvent) -> bool:
    """Whether it is an operator of the host, one of autograd's nodes, or an annotation."""
    activity = _activity(event)
    if activity is not None:
        return activity in ("cpu_op", "user_annotation")
    return _device(event) == "CPU" and not _RUNTIME_CALL.match(event.name())


def _is_runtime(event: RawEvent) -> bool:
    """Whether it is a call of CUDA's runtime or driver, such as ``cudaLaunchKernel`` or ``cuLaunchKernelEx``."""
    activity = _activity(event)
    if activity is not None:
        return activity in ("cuda_runtime", "cuda_driver")
    return _device(event) == "CPU" and bool(_RUNTIME_CALL.match(event.name()))


def _is_kernel(event: RawEvent) -> bool:
    activity = _activity(event)
    if activity is not None:
        return activity in ("kernel", "gpu_memcpy", "gpu_memset")
    return _device(event) == "CUDA" and not event.is_user_annotation()


def _activity(event: RawEvent) -> str | None:
    """The profiler's own word for an event, such as ``cpu_op`` or ``kernel``; None where torch does not tell."""
    read = getattr(event, "activity_type", None)
    return str(read()) if read else None


def _device(event: RawEvent) -> str:
    """``CPU`` or ``CUDA``, as the name of torch's ``DeviceType``."""
    return str(event.device_type()).rpartition(".")[2]
