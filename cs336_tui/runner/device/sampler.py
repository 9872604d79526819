"""Samples the device and the host on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic, time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from cs336_tui.events.environment import DeviceInfo, GpuSample, HostSample
from cs336_tui.events.events import DeviceSampled
from cs336_tui.runner.pipes import StopSignal

if TYPE_CHECKING:
    from cs336_tui.runner.device.gpu import GpuMonitor
    from cs336_tui.runner.device.host import HostReader

_Found = tuple[GpuSample | None, str | None]
"""A GPU, if it was found, and why it or a part of it was not."""
_Gpus = tuple[GpuSample | None, str | None, tuple[GpuSample, ...]]
"""The GPU of a cell, as `_Found`, and those of its other ranks."""
SAMPLE_AFTER_S = 0.5
"""Seconds for which a cell that is over waits for the sample that was asked for when it stopped measuring."""
OPENING = "opening NVML"
MACHINE_S = 10.0
"""Interval at which all GPUs of the machine are read, which takes queries that the benchmark does not need."""


class _Watched(NamedTuple):
    """A GPU (None: CUDA's first), the PIDs of a cell's ranks, if any, and the GPUs of its other ranks."""

    uuid: str | None = None
    pids: tuple[int, ...] = ()
    other_uuids: tuple[str, ...] = ()


class DeviceSampler:
    """Samples every `interval_s` seconds while a cell runs, else every `idle_interval_s` (or `interval_s`, if longer),
    counted from the end of a sample; 0 is off. Of cells that run side by side, by their numbers, each has an event of
    its own, for which each GPU and the host are read once. `emit` is called on the sampler's thread; its errors are
    ignored. NVML and psutil are imported and opened on that thread, after a first event without a GPU, as that may take
    seconds."""

    def __init__(
        self, emit: Callable[[DeviceSampled], None], *, interval_s: float = 0.5, idle_interval_s: float = 2.0
    ) -> None:
        """Raises ValueError for a negative interval."""
        if not (interval_s >= 0 and idle_interval_s >= 0):
            raise ValueError(f"sampling interval {min(interval_s, idle_interval_s)}: seconds, at least 0 (0 is off)")
        self._emit = emit
        self._interval_s, self._idle_interval_s = interval_s, max(interval_s, idle_interval_s)
        self._alone = _Watched()
        self._beside: dict[int, _Watched] = {}
        """By the cells that run side by side."""
        self._changed = threading.Condition()
        self._stopping = self._is_elsewhere = False
        self._soon: set[int | None] = set()  # cells to sample at once; None for all
        self._awaited: list[tuple[int | None, threading.Event]] = []
        # Each is set once a sample of its cell that begins from now on was handed on.
        self._sampled_after: dict[int | None, threading.Event] = {}
        """Set once the device was sampled after the cell stopped measuring."""
        self._thread = threading.Thread(target=self._run, name="device-sampler", daemon=True)
        self._host: HostReader | None = None
        self._gpus: dict[Hashable, GpuMonitor] = {}
        """By UUID, for cells side by side, and by the ranks of one that runs alone."""
        self._machine: tuple[GpuSample, ...] | None = None
        """All GPUs of the machine, a list that is read once."""
        self._of_machine: dict[str | None, GpuMonitor] = {}
        self._machine_due = float("-inf")

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

    def point(
        self, device: DeviceInfo | None, *pids: int | None, others: Iterable[DeviceInfo] = (), cell: int | None = None
    ) -> None:
        """Watch the device (None: CUDA's first GPU) and the processes of the running cell's ranks, or none between
        runs. `others` are the devices of its other ranks; `cell` runs beside others. A change is sampled at once."""
        uuid, other_uuids = device.uuid if device else None, tuple(other.uuid for other in others if other.uuid)
        wanted = _Watched(uuid, tuple(pid for pid in pids if pid is not None), other_uuids)
        with self._changed:
            if cell is not None:
                self._beside[cell] = wanted
                self._wake(cell)
            elif wanted != self._alone:
                self._alone = wanted
                self._wake(None)

    def sample_soon(self, cell: int | None = None) -> threading.Event:
        """Sample at once, the GPU's processes too; of cells side by side this one alone. The event is set when that was
        handed on, or never will be."""
        handed_on = threading.Event()
        with self._changed:
            if self._stopping or not self._interval_s:
                handed_on.set()
            else:
                self._awaited.append((cell, handed_on))
                self._wake(cell)
        return handed_on

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """While entered nothing is handed on: the running cell's ranks are sampled where they run."""
        self._is_elsewhere = True
        try:
            yield
        finally:
            self._is_elsewhere = False

    def leave(self, cell: int) -> None:
        """Sample a cell that ran beside others no more."""
        with self._changed:
            self._beside.pop(cell, None)
            self._sampled_after.pop(cell, None)

    def measured(self, cell: int | None = None) -> None:
        """Sample at once after measuring: a short cell may have no sample. One before would disturb its first step."""
        self._sampled_after[cell] = self.sample_soon() if cell is None else self.sample_soon(cell)

    def await_sample(self, stop: StopSignal, cell: int | None = None) -> None:
        """Wait for that sample, so that the log has it before the next cell; not while `stop` is set."""
        sampled = self._sampled_after.pop(cell, None)
        if sampled is not None and not stop.is_set():
            sampled.wait(SAMPLE_AFTER_S)

    def _wake(self, cell: int | None) -> None:
        self._soon.add(cell)
        self._changed.notify()

    def _run(self) -> None:
        due_at = 0.0
        while not self._stopping:
            with self._changed:
                soon, self._soon = self._soon, set()
                beside: dict[int | None, _Watched] = dict(self._beside.items())
                watched = beside or {None: self._alone}
                if beside and None not in soon and monotonic() < due_at:
                    watched = {cell: each for cell, each in watched.items() if cell in soon}
                awaited, self._awaited = self._awaited, []
            if not self._gpus:
                self._deliver(watched, [(None, OPENING, ())] * len(watched))
            self._sample(watched, {cell for cell, _ in awaited})
            for _, event in awaited:
                event.set()
            with self._changed:
                interval_s = self._interval_s if beside or self._alone.pids else self._idle_interval_s
                if len(watched) >= len(beside):
                    due_at = monotonic() + interval_s
                self._changed.wait_for(lambda: self._soon or self._stopping, max(0.0, due_at - monotonic()))
        for _, event in self._awaited:  # nothing is added once we are stopping
            event.set()
        for monitor in (*self._gpus.values(), *self._of_machine.values()):
            monitor.close()

    def _sample(self, watched: Mapping[int | None, _Watched], fresh: Collection[int | None]) -> None:
        """Read each GPU of these cells once, then hand on an event for each cell. Each rank of one that runs alone has
        a monitor, which goes with it from GPU to GPU."""
        began = monotonic()
        found: dict[Hashable, _Found] = {}

        def read(cell: int | None, each: _Watched, rank: int, uuid: str | None) -> _Found:
            key = rank if cell is None else uuid
            if key not in found:
                pid = each.pids[rank] if rank < len(each.pids) else None
                found[key] = self._read_gpu(key, uuid, pid, began, fresh=None in fresh or cell in fresh)
            return found[key]

        gpus: list[_Gpus] = []
        for cell, each in watched.items():
            gpu, why = read(cell, each, 0, each.uuid)
            others = (
                read(cell, each, *other)[0] or GpuSample(uuid=other[1]) for other in enumerate(each.other_uuids, 1)
            )
            gpus.append((gpu, why, tuple(others) if gpu else ()))
        machine = self._sample_machine(began) if any(gpu for gpu, _ in found.values()) and not fresh else ()
        self._deliver(watched, gpus, began, machine)

    def _read_gpu(self, key: Hashable, uuid: str | None, pid: int | None, now: float, *, fresh: bool) -> _Found:
        try:
            if key not in self._gpus:
                from cs336_tui.runner.device.gpu import GpuMonitor

                self._gpus[key] = GpuMonitor()
            self._gpus[key].follow(uuid)
            return self._gpus[key].sample(now, pid, fresh=fresh)
        except Exception as error:
            return None, f"the GPU cannot be sampled: {type(error).__name__}: {error}"

    def _deliver(
        self,
        watched: Mapping[int | None, _Watched],
        gpus: Sequence[_Gpus],
        began: float = 0.0,
        machine: tuple[GpuSample, ...] = (),
    ) -> None:
        """Hand on the GPUs that were found from `began` (monotonic seconds) on, the machine's, and the host as it is
        now."""
        if self._is_elsewhere:
            return
        hosts, host_why = self._sample_host([each.pids for each in watched.values()])
        for cell, host, (gpu, why, others) in zip(watched, hosts, gpus, strict=True):
            if gpu is not None and gpu.processes_age_s is not None:
                # The list was read before `at`, by as much as a slow driver took.
                gpu = msgspec.structs.replace(gpu, processes_age_s=gpu.processes_age_s + monotonic() - began)
            sample = DeviceSampled(
                at=time(),
                host=host,
                gpu=gpu,
                why=host_why or why,
                other_gpus=others,
                cells=() if cell is None else (cell,),
                machine_gpus=machine,
            )
            machine = ()  # once is enough
            with suppress(Exception):  # a consumer that is closing must not end the sampling
                self._emit(sample)

    def _sample_host(self, children: Sequence[tuple[int, ...]]) -> tuple[Sequence[HostSample], str | None]:
        try:
            if self._host is None:
                from cs336_tui.runner.device.host import HostReader

                self._host = HostReader()
            with self._changed:
                later = [each.pids for each in self._beside.values()]
            return self._host.sample_each(children, later), None
        except Exception as error:
            return [HostSample() for _ in children], f"the host cannot be sampled: {type(error).__name__}: {error}"

    def _sample_machine(self, now: float) -> tuple[GpuSample, ...]:
        """All GPUs of the machine every `MACHINE_S`, if there are several; else, and meanwhile, empty."""
        if now < self._machine_due:
            return ()
        self._machine_due = now + MACHINE_S
        try:
            from cs336_tui.runner.device.gpu import read_each
            from cs336_tui.runner.device.nvml import nvml_report

            self._machine = nvml_report().gpus if self._machine is None else self._machine
            if len(self._machine) < 2:
                self._machine_due = float("inf")
                return ()
            return read_each(self._machine, self._of_machine, now)
        except Exception:  # the sample of the benchmark's own GPU is there
            return ()
