"""Launch-bound steps: told by how far the host runs ahead of the device."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from statistics import fmean
from typing import NamedTuple

from cs336_tui.analysis.contention import Finding, milliseconds, percent
from cs336_tui.config.environment_variables import BLOCKING, slowing
from cs336_tui.session.states import CellState

LEAST_SHARE = 0.9
"""Share of a step in which the host was enqueuing it."""
QUEUE = 1000
"""Launches that a CUDA driver holds at least; at one more the host waits until the device has begun an earlier one."""
_LEAST_LAUNCH_S = 2e-6
"""Less than any launch takes the host. A queue fills only with kernels that take the device longer than that."""
_UNLIKE = 1.5
"""A second of a later phase may take so many times as much launching as one of the first that fills the queue."""
FULL_S = QUEUE * _LEAST_LAUNCH_S
"""The least time that a full queue keeps the device busy. Where the device has less to do, the host is not waiting."""


class Phase(NamedTuple):
    """Seconds: how long the host took to enqueue a phase, waiting included, and how long the device took for it."""

    name: str
    host_s: float
    device_s: float


class Enqueuing(NamedTuple):
    """Bounds of the host's time to enqueue a step without waiting for the device, in seconds; `ahead` is the phase at
    whose end it was ahead the most, if so far that the queue may have been full, and by how much."""

    least_s: float
    most_s: float
    ahead: tuple[str, float] | None


def launching(cell: CellState, idle: float | None = None) -> Finding:
    """True if the host needs nearly the whole step to enqueue it, without waiting for room in the device's queue.
    `idle` is the share of a profiled step of the same work in which the GPU ran nothing, if known. Of steps of a window
    the first tells, as others begin while steps are queued, and the quickest enqueuing counts."""
    spec, host_s, times_s = cell.spec, cell.times.host_s, cell.step_times_s
    if spec.device == "cpu":
        return Finding(None, "on cpu the host does the work itself")
    if not host_s:
        return Finding(None, "the host's time to enqueue a step was not recorded")
    if spec.pass_ == "train-step" and cell.in_force is not None and cell.in_force.grad_scaler:
        return Finding(None, "the gradient scaler makes the host wait for backward in every step")
    if cell.in_force and any(said.startswith(f"{BLOCKING}=") for said in slowing(cell.in_force.variables or ())):
        return Finding(None, f"{BLOCKING} makes the host wait for every kernel")
    mean_s = fmean(times_s)
    if mean_s <= 0:
        return Finding(None, "the mean step time is not above 0 s")
    each = not spec.is_window
    all_s = fmean(host_s) if each else min(host_s)
    text = (
        f"enqueuing takes the host{'' if each else ' at the quickest'} {milliseconds(all_s)} of a step's "
        f"{milliseconds(mean_s)} ({percent(all_s / mean_s)})"
    )
    if phases_s := [fmean(phase) for phase in cell.phase_times_s.values() if phase]:
        text += f", its phases {milliseconds(fsum(phases_s))} on the device"
    holds: bool | None = all_s / mean_s >= LEAST_SHARE
    why = ""
    if holds and (phases := _phases(cell, steps=len(times_s) if each else 1)):
        found = enqueuing(phases)
        holds = found.least_s / mean_s >= LEAST_SHARE
        if not holds and found.ahead:
            name, ahead_s = found.ahead
            text += f"; it was {milliseconds(ahead_s)} ahead of the device at the end of the {name}"
            if found.most_s / mean_s >= LEAST_SHARE:
                holds, why = None, "the host may have waited for a full queue"
            text += f", so that it {'may have waited' if why else 'waited'} for room in the queue of launches"
    elif holds:
        holds, why = None, "the host's time in each phase was not recorded"
        text += "; whether it waited for room in the queue of launches is not known, as its time in each phase is not"
    if spec.cuda_graph != "off":
        text += "; the host launches one CUDA graph"
    elif idle is None:
        text += "; the GPU's idle share is known once its kernels are profiled (cs336-tui kernels)"
    else:
        text += f"; profiled, the GPU was idle for {percent(idle)} of a step"
    graph = ", a CUDA graph of the step" if spec.device.startswith("cuda") and spec.cuda_graph == "off" else ""
    advice = f"a faster GPU would not help: a larger batch or context{graph} or fewer kernels would"
    return Finding(holds, text, advice if holds else "", why)


def enqueuing(phases: Sequence[Phase]) -> Enqueuing:
    """Bounds of what enqueuing a step takes without waiting, from its phases; the queue is empty before the first. The
    host waits where the queue is full, and is then ahead of the device by all that the queue holds. In a phase at whose
    end it was ahead by less than `FULL_S`, it waited no longer than it was ahead at its beginning. Of any other only
    the most is known: what it took, and half as much again as it would take at the rate of the first such phase, which
    began with an empty queue. A phase that fills the queue and then drains it cannot be told."""
    least_s = most_s = ahead_s = 0.0
    rate: float | None = None
    furthest: tuple[str, float] | None = None
    for phase in phases:
        waited_s = ahead_s if ahead_s >= FULL_S else 0.0
        ahead_s += phase.device_s - phase.host_s
        if ahead_s < FULL_S:
            least_s += max(phase.host_s - waited_s, 0.0)
            most_s += phase.host_s
            continue
        rate = _UNLIKE * phase.host_s / phase.device_s if rate is None else rate
        most_s += min(phase.host_s, rate * phase.device_s)
        if furthest is None or ahead_s > furthest[1]:
            furthest = phase.name, ahead_s
    return Enqueuing(least_s, most_s, furthest)


def _phases(cell: CellState, steps: int) -> list[Phase]:
    """Means over the first `steps` steps; none where the host's time of a phase was not recorded, or is below 0."""
    device_s = cell.phase_times_s
    host_s = cell.times.host_phases_s or (dict.fromkeys(device_s, cell.times.host_s) if len(device_s) == 1 else {})
    count = len(cell.step_times_s)
    if host_s.keys() != device_s.keys() or any(len(each) != count for each in (*host_s.values(), *device_s.values())):
        return []
    found = [Phase(name, fmean(host_s[name][:steps]), fmean(device_s[name][:steps])) for name in device_s]
    return found if all(phase.host_s >= 0 and phase.device_s >= 0 for phase in found) else []
