"""Samples the device and the host on a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.events import DeviceSampled, GpuSample, HostSample
from cs336_tui.runner.pipes import StopSignal

if TYPE_CHECKING:
    from cs336_tui.runner.device.gpu import GpuMonitor
    from cs336_tui.runner.device.host import HostReader

SAMPLE_AFTER_S = 0.5
"""Seconds for which a cell that is over waits for the sample that was asked for when it stopped measuring."""
OPENING = "opening NVML"


class DeviceSampler:
    """Samples every `interval_s` seconds while a cell runs, else every `idle_interval_s` (or `interval_s`, if longer),
    counted from the end of a sample; 0 is off. `emit` is called on the sampler's thread; its errors are ignored. NVML
    and psutil are imported and opened on that thread, after a first event without a GPU, as that may take seconds."""

    def __init__(
        self, emit: Callable[[DeviceSampled], None], *, interval_s: float = 0.5, idle_interval_s: float = 2.0
    ) -> None:
        """Raises ValueError for a negative interval."""
        if not (interval_s >= 0 and idle_interval_s >= 0):
            raise ValueError(f"sampling interval {min(interval_s, idle_interval_s)}: seconds, at least 0 (0 is off)")
        self._emit = emit
        self._interval_s, self._idle_interval_s = interval_s, max(interval_s, idle_interval_s)
        self._uuid: str | None = None
        self._other_uuids: tuple[str, ...] = ()
        self._children: tuple[int, ...] = ()
        self._changed = threading.Condition()
        self._woken = self._stopping = False
        self._awaited: list[threading.Event] = []  # set once a sample that begins from now on was handed on
        self._sampled_after: threading.Event | None = None
        """Set once the device was sampled after the running cell stopped measuring."""
        self._thread = threading.Thread(target=self._run, name="device-sampler", daemon=True)
        self._host: HostReader | None = None
        self._gpu: GpuMonitor | None = None
        self._other_gpus: list[GpuMonitor] = []

    def start(self) -> None:
        """Returns at once."""
        if self._interval_s:
            self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the thread, which closes NVML; a query that hangs is left behind after `timeout_s`."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def watch(self, uuid: str | None, *pids: int | None, other_uuids: tuple[str, ...] = ()) -> None:
        """Set the GPU (None: CUDA's first) and the PIDs of the running cell's ranks, if any, and the GPUs of its other
        ranks. A change is sampled at once."""
        wanted = uuid, tuple(pid for pid in pids if pid is not None), other_uuids
        with self._changed:
            if wanted != (self._uuid, self._children, self._other_uuids):
                self._uuid, self._children, self._other_uuids = wanted
                self._wake()

    def sample_soon(self) -> threading.Event:
        """Sample at once, the GPU's processes too. The event is set when that was handed on, or never will be."""
        handed_on = threading.Event()
        with self._changed:
            if self._stopping or not self._interval_s:
                handed_on.set()
            else:
                self._awaited.append(handed_on)
                self._wake()
        return handed_on

    def point(self, device: DeviceInfo | None, *pids: int | None, others: Iterable[DeviceInfo] = ()) -> None:
        """Watch the device and the processes of the running cell's ranks, or none between runs. `others` are the
        devices of its other ranks."""
        other_uuids = tuple(other.uuid for other in others if other.uuid)
        self.watch(device.uuid if device else None, *pids, other_uuids=other_uuids)

    def measured(self) -> None:
        """Sample at once after measuring: a short cell may have no sample. One before would disturb its first step."""
        self._sampled_after = self.sample_soon()

    def await_sample(self, stop: StopSignal) -> None:
        """Wait for that sample, so that the log has it before the next cell; not while `stop` is set."""
        sampled, self._sampled_after = self._sampled_after, None
        if sampled is not None and not stop.is_set():
            sampled.wait(SAMPLE_AFTER_S)

    def _wake(self) -> None:
        self._woken = True
        self._changed.notify()

    def _run(self) -> None:
        while not self._stopping:
            with self._changed:
                self._woken = False
                uuid, children, other_uuids = self._uuid, self._children, self._other_uuids
                awaited, self._awaited = self._awaited, []
            if self._gpu is None:
                self._deliver(None, OPENING, children)
            began = time.monotonic()
            gpu, why = self._sample_gpu(uuid, children[0] if children else None, began, fresh=bool(awaited))
            others = self._sample_others(other_uuids, began) if gpu else ()
            self._deliver(gpu, why, children, began, others)
            for event in awaited:
                event.set()
            with self._changed:
                interval_s = self._interval_s if children else self._idle_interval_s
                self._changed.wait_for(lambda: self._woken or self._stopping, interval_s)
        for event in self._awaited:  # nothing is added once we are stopping
            event.set()
        for monitor in (*filter(None, (self._gpu,)), *self._other_gpus):
            monitor.close()

    def _deliver(
        self,
        gpu: GpuSample | None,
        why: str | None,
        children: tuple[int, ...],
        began: float = 0.0,
        others: tuple[GpuSample, ...] = (),
    ) -> None:
        """Hand on the GPU as sampled from `began` (monotonic seconds) on, and the host as it is now."""
        host, host_why = self._sample_host(children)
        if gpu is not None and gpu.processes_age_s is not None:
            # The list was read before `at`, by as much as a slow driver took.
            gpu = msgspec.structs.replace(gpu, processes_age_s=gpu.processes_age_s + time.monotonic() - began)
        with suppress(Exception):  # a consumer that is closing must not end the sampling
            self._emit(DeviceSampled(at=time.time(), host=host, gpu=gpu, why=host_why or why, other_gpus=others))

    def _sample_host(self, children: tuple[int, ...]) -> tuple[HostSample, str | None]:
        try:
            if self._host is None:
                from cs336_tui.runner.device.host import HostReader

                self._host = HostReader()
            return self._host.sample(*children), None
        except Exception as error:
            return HostSample(), f"the host cannot be sampled: {type(error).__name__}: {error}"

    def _sample_gpu(
        self, uuid: str | None, child: int | None, now: float, *, fresh: bool
    ) -> tuple[GpuSample | None, str | None]:
        try:
            if self._gpu is None:
                from cs336_tui.runner.device.gpu import GpuMonitor

                self._gpu = GpuMonitor()
            self._gpu.follow(uuid)
            return self._gpu.sample(now, child, fresh=fresh)
        except Exception as error:
            return None, f"the GPU cannot be sampled: {type(error).__name__}: {error}"

    def _sample_others(self, uuids: tuple[str, ...], now: float) -> tuple[GpuSample, ...]:
        """The GPUs of further ranks, in their order; of one that does not answer its UUID alone."""
        from cs336_tui.runner.device.gpu import GpuMonitor

        self._other_gpus += (GpuMonitor() for _ in uuids[len(self._other_gpus) :])
        found: list[GpuSample] = []
        for monitor, uuid in zip(self._other_gpus, uuids, strict=False):
            sample = None
            with suppress(Exception):
                monitor.follow(uuid)
                sample, _ = monitor.sample(now)
            found.append(sample or GpuSample(uuid=uuid))
        return tuple(found)
