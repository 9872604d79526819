"""The device sampler, pointed at what runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.events import DeviceSampled
from cs336_tui.runner.stop import StopSignal

if TYPE_CHECKING:
    from cs336_tui.runner.device.sampler import DeviceSampler

SAMPLE_AFTER_S = 0.5
"""How long a cell that is over waits for the sample that was asked for when it stopped measuring."""


class DeviceWatch:
    """Samples every `interval_s` once started, never with 0. `sink` is called on the sampler's thread."""

    def __init__(self, sink: Callable[[DeviceSampled], None], *, interval_s: float) -> None:
        self._sink = sink
        self._interval_s = interval_s
        self._sampler: DeviceSampler | None = None
        self._sampled_after: threading.Event | None = None
        """Set once the device has been sampled after the running cell stopped measuring."""

    def start(self) -> None:
        if self._interval_s > 0:
            from cs336_tui.runner.device.sampler import DeviceSampler

            self._sampler = DeviceSampler(self._sink, interval_s=self._interval_s)
            self._sampler.start()

    def stop(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    def point(self, device: DeviceInfo | None, pid: int | None) -> None:
        """At the device and process of the running cell, or at none between runs."""
        if self._sampler is not None:
            self._sampler.watch(device.uuid if device else None, pid)

    def measured(self) -> None:
        """The running cell has stopped measuring: have the device sampled at once.

        A short cell may have ended before a sample was due. Never when measuring begins: that sample would fall into
        the first step of every cell.
        """
        if self._sampler is not None:
            self._sampled_after = self._sampler.sample_soon()

    def await_sample(self, stop: StopSignal) -> None:
        """Have that sample in the log while it is this cell's, unless somebody waits for us to stop."""
        sampled, self._sampled_after = self._sampled_after, None
        if sampled is not None and not stop.is_set():
            sampled.wait(SAMPLE_AFTER_S)
