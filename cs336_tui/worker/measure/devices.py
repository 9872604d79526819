"""Devices: clocks, names and GPU identities. A GPU works off a queue, so a time stamp there is an event in the queue,
which can be read once the device has been waited for. Times are in seconds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, Protocol, Self

import torch


class DeviceEvent(Protocol):
    """`torch.cuda.Event` or `torch.mps.Event`, made with ``enable_timing=True``."""

    def elapsed_time(self, end_event: DeviceEvent, /) -> float:
        """Milliseconds on the device from this event to a later one."""


class Stamp(Protocol):
    """A time stamp that can be taken repeatedly; `host_s` is the host's clock at the last time."""

    host_s: float

    def take(self) -> None: ...

    def until(self, later: Self, /) -> float:
        """Seconds from this stamp to a later one; both were taken and the device was waited for since."""


class HostStamp:
    def __init__(self) -> None:
        self.host_s = 0.0

    def take(self) -> None:
        self.host_s = perf_counter()

    def until(self, later: HostStamp) -> float:
        return later.host_s - self.host_s


class EventStamp:
    """An event in the device's queue. Taking it only enqueues it; `host_s` is when the host did."""

    def __init__(self, event: DeviceEvent, record: Callable[[], None]) -> None:
        self.host_s = 0.0
        self._event = event
        self._record = record

    def take(self) -> None:
        self._record()
        self.host_s = perf_counter()

    def until(self, later: EventStamp) -> float:
        return self._event.elapsed_time(later._event) / 1e3


class MetalStamp(EventStamp):
    """An event in Metal's queue. As the later of two it may be read once per taking: torch before 2.14 hangs else.

    torch stamps it in a callback on the host, so two events close together can come out in the wrong order. torch then
    raises, and the interval counts as 0.
    """

    def until(self, later: EventStamp) -> float:
        try:
            return super().until(later)
        except RuntimeError:
            return 0.0


class Clock(NamedTuple):
    """One device's clock: `mark` makes a stamp, `synchronize` waits for all queued work."""

    mark: Callable[[], Stamp]
    synchronize: Callable[[], None]


def clock_for(device: torch.device) -> Clock:
    if device.type == "cuda":
        stream = torch.cuda.current_stream(device)

        def cuda_mark() -> EventStamp:
            event = torch.cuda.Event(enable_timing=True)
            return EventStamp(event, partial(event.record, stream))

        return Clock(cuda_mark, partial(torch.cuda.synchronize, device))
    if device.type == "mps":

        def mps_mark() -> EventStamp:
            event = torch.mps.Event(enable_timing=True)
            return MetalStamp(event, event.record)

        return Clock(mps_mark, torch.mps.synchronize)
    return Clock(HostStamp, lambda: None)  # a CPU's work is done when its call returns


def device_label(device: torch.device) -> str:
    """The device's name; of a CPU the widest instructions that torch uses on it."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    if device.type == "mps":
        return "Apple GPU (Metal)"
    capability = torch.backends.cpu.get_cpu_capability()
    return "CPU" if capability == "DEFAULT" else f"CPU ({capability})"


def nvml_uuid(index: int, properties: Any) -> str | None:
    """The UUID of CUDA device `index` as NVML spells it: ``GPU-...``, or ``MIG-...`` for a slice of a GPU. torch gives
    the bare UUID, and of a slice the whole GPU's; the slice's own is in ``CUDA_VISIBLE_DEVICES``."""
    visible = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if index < len(visible) and visible[index].startswith("MIG-"):
        return visible[index]
    uuid = str(getattr(properties, "uuid", "") or "")
    if not uuid:
        return None
    return uuid if re.match("GPU-|MIG-", uuid) else f"{'MIG' if ' MIG ' in properties.name else 'GPU'}-{uuid}"
