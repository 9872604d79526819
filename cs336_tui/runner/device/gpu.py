"""Reads one GPU through NVML, field by field, also after it was lost; lists who else uses it. Queries take the driver's
lock, which the benchmark needs too: six a sample, four every `SLOW_S`, two every `PROCESSES_S` or when asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from cs336_tui.events.environment import GpuProcess, GpuSample
from cs336_tui.events.gpus import clock_reasons
from cs336_tui.runner.device.nvml import LOST, Nvml, NvmlSilent, NvmlUnavailable, why_lost

SLOW_S = 5.0
PROCESSES_S = 2.0
RETRY_S = 10.0
"""Seconds between two attempts to open what did not open or was lost."""

_CANNOT = frozenset({2, 3, 13, 25, 26})
"""Codes after which a call is never made again: invalid argument (MIG), not supported, not found, deprecated."""

_UNKNOWN = 999
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # inode of the machine's own PID namespace (PROC_PID_INIT_INO of Linux's proc_ns.h).


class _Query:
    """The calls that can answer one field, best first. One that never can is dropped, a silent one paused."""

    def __init__(self, *calls: Callable[[], Any]) -> None:
        self.calls = list(calls)
        self.not_before = float("-inf")
        self.why: str | None = None


class GpuLost(Exception):
    """The GPU stopped answering; the message is one line for people."""


class GpuReader:
    """Reads the GPU behind `handle`. A field that the GPU or driver cannot give is None, and not asked again."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        """Raises pynvml's NVMLError when the GPU does not answer, and like `Nvml`."""
        self.identity: GpuSample = nvml.identify(handle)
        self.why: str | None = None
        """One line on the NVML calls that gave no answer in time for the latest sample."""
        self._api = nvml.api
        self._now = 0.0
        self._answered = self._unknown = False
        self._slow_due = self._processes_due = float("-inf")
        self._slow_values: dict[str, Any] = {}
        self._others: tuple[GpuProcess, ...] | None = None
        self._others_at = 0.0
        self._other_processes = OtherProcesses()

        api = nvml.api
        self._memory = _Query(
            lambda: api.nvmlDeviceGetMemoryInfo(handle, version=api.nvmlMemory_v2),
            lambda: api.nvmlDeviceGetMemoryInfo(handle),
        )
        self._fast = {
            "utilisation": _Query(lambda: api.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
            "power_w": _Query(lambda: api.nvmlDeviceGetPowerUsage(handle) / 1000),
            "sm_clock_mhz": _Query(lambda: int(api.nvmlDeviceGetClockInfo(handle, api.NVML_CLOCK_SM))),
            "clock_reasons": _Query(
                lambda: clock_reasons(api.nvmlDeviceGetCurrentClocksEventReasons(handle)),
                lambda: clock_reasons(api.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
            ),
            "energy_j": _Query(lambda: api.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000),
        }
        """By the fields of a `GpuSample`, as `_slow`."""
        self._slow = {
            "temperature_c": _Query(
                lambda: float(api.nvmlDeviceGetTemperature(handle, api.NVML_TEMPERATURE_GPU)),
                lambda: float(api.nvmlDeviceGetTemperatureV(handle, api.NVML_TEMPERATURE_GPU)),
            ),
            "power_limit_w": _Query(lambda: api.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
            "memory_clock_mhz": _Query(lambda: int(api.nvmlDeviceGetClockInfo(handle, api.NVML_CLOCK_MEM))),
            "persistence_mode": _Query(lambda: bool(api.nvmlDeviceGetPersistenceMode(handle))),
        }
        self._compute = _Query(
            lambda: _by_pid(api.nvmlDeviceGetComputeRunningProcesses(handle)),
            lambda: _by_pid(api.nvmlDeviceGetComputeRunningProcesses_v2(handle)),
        )
        self._graphics = _Query(
            lambda: _by_pid(api.nvmlDeviceGetGraphicsRunningProcesses(handle)),
            lambda: _by_pid(api.nvmlDeviceGetGraphicsRunningProcesses_v2(handle)),
        )

    def sample(self, now: float, child: int | None = None, *, fresh: bool = False) -> GpuSample:
        """The GPU at `now` (monotonic seconds); `child` is the running cell's PID; `fresh` reads the processes anew.
        Memory is NVML's v2, if there, without the driver's reserve; power the average of a second from Ampere on (but
        for A100), else the instant. Raises `GpuLost`, and `NvmlSilent` while NVML answers nothing."""
        self._now, self.why = now, None
        self._answered = self._unknown = False
        memory = self._read(self._memory)
        fast = {field: self._read(query) for field, query in self._fast.items()}
        if now >= self._slow_due:
            self._slow_due = now + SLOW_S
            self._slow_values = {field: self._read(query) for field, query in self._slow.items()}
        if fresh or now >= self._processes_due:
            self._processes_due, self._others_at = now + PROCESSES_S, now
            compute, graphics = self._read(self._compute), self._read(self._graphics) or {}
            self._others = None if compute is None else self._other_processes.among(graphics | compute, child)
        if self._unknown and not self._answered:
            # One field may be unknown on its own; all of them are when the device has gone.
            raise GpuLost("the GPU answers no query (NVML error 999)")
        return GpuSample(
            uuid=self.identity.uuid,
            name=self.identity.name,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            **fast,
            **self._slow_values,
            other_processes=self._others,
            processes_age_s=None if self._others is None else now - self._others_at,
        )

    def _read(self, query: _Query) -> Any:
        """The first answer of its calls; None without one."""
        if self._now < query.not_before:
            self.why = query.why
            return None
        calls = query.calls
        while calls:
            try:
                value = calls[0]()
            except NvmlSilent as silent:
                self.why = str(silent)
                if not (silent.waited or self._answered):
                    self._slow_due = float("-inf")
                    raise
                if silent.waited:  # others may be answered, and must not wait for this one each time
                    query.not_before, query.why = self._now + RETRY_S, self.why
                return None
            except self._api.NVMLError as error:
                if error.value in LOST:
                    raise GpuLost(why_lost(error.value, str(error))) from None
                if error.value not in _CANNOT:
                    self._unknown |= error.value == _UNKNOWN
                    return None
                calls.pop(0)
            # The driver lacks a process query (not an NVMLError), or this release of pynvml a function.
            except (self._api.NVMLLibraryMismatchError, AttributeError):
                calls.pop(0)
            else:
                self._answered = True
                return value
        return None


def _by_pid(listed: Any) -> dict[int, int | None]:
    """PID to bytes of GPU memory, None if NVML does not tell."""
    return {process.pid: process.usedGpuMemory for process in listed}


class GpuMonitor:
    """Follows a GPU: opens it at the first sample, and `RETRY_S` after a loss. Makes one call of NVML at a time."""

    def __init__(self) -> None:
        self._uuid: str | None = None
        self._nvml: Nvml | None = None
        self._stuck: dict[str | None, Nvml] = {}
        """NVMLs with a call that has not returned, by GPU: another GPU may be followed meanwhile."""
        self._reader: GpuReader | None = None
        self._lost: GpuSample | None = None
        self._why: str | None = None
        self._retry_at = float("-inf")

    def follow(self, uuid: str | None) -> None:
        """Follow the GPU with this UUID; None for the first that CUDA would show."""
        if uuid != self._uuid:
            if self._nvml is not None and self._nvml.is_stuck:
                self._stuck[self._uuid], self._nvml = self._nvml, None
            if uuid in self._stuck:
                if self._nvml is not None:
                    self._nvml.close()
                self._nvml = self._stuck.pop(uuid)
            self._uuid, self._reader, self._lost = uuid, None, None
            self._retry_at = float("-inf")

    def sample(
        self, now: float, child: int | None = None, *, fresh: bool = False
    ) -> tuple[GpuSample | None, str | None]:
        """The GPU, if any, and why it or a part is missing, as `GpuReader.sample`, in `nvml.ANSWER_S` at most."""
        try:
            self._nvml = self._nvml or Nvml()
            with self._nvml.in_time():
                return self._sample(self._nvml, now, child, fresh=fresh)
        except NvmlUnavailable as error:
            return None, str(error)

    def close(self) -> None:
        for nvml in filter(None, (self._nvml, *self._stuck.values())):
            nvml.close()
        self._reader = self._nvml = None
        self._stuck.clear()

    def _sample(self, nvml: Nvml, now: float, child: int | None, *, fresh: bool) -> tuple[GpuSample | None, str | None]:
        if self._reader is None and now >= self._retry_at:
            self._open(nvml, now)
        if self._reader is not None:
            try:
                return self._reader.sample(now, child, fresh=fresh), self._reader.why
            except NvmlSilent as silent:
                return self._reader.identity, str(silent)
            except GpuLost as error:
                self._lost = self._reader.identity
                self._give_up(nvml, now, str(error))
        return self._lost, self._why

    def _open(self, nvml: Nvml, now: float) -> None:
        try:
            self._reader = GpuReader(nvml, nvml.find(self._uuid))
            self._lost = self._why = None
        except NvmlSilent as silent:
            self._why = str(silent)
        except NvmlUnavailable as error:
            self._give_up(nvml, now, str(error))
        except nvml.api.NVMLError as error:
            self._give_up(nvml, now, f"the GPU does not answer: {why_lost(error.value, str(error))}")

    def _give_up(self, nvml: Nvml, now: float, why: str) -> None:
        nvml.close()
        self._reader = None
        self._why = why
        self._retry_at = now + RETRY_S


def read_each(gpus: Sequence[GpuSample], monitors: dict[str | None, GpuMonitor], now: float) -> tuple[GpuSample, ...]:
    """These GPUs of the machine, of which a benchmark may use one, each by the monitor of its UUID, which is made if
    there is none; one that does not answer has its name alone."""
    found: list[GpuSample] = []
    for identity in gpus:
        monitor = monitors.setdefault(identity.uuid, GpuMonitor())
        sample = None
        with suppress(Exception):
            monitor.follow(identity.uuid)
            sample, _ = monitor.sample(now)
        found.append(sample or identity)
    return tuple(found)


class OtherProcesses:
    """Finds processes outside of this app's own process tree; looks at each once, while it stays listed."""

    def __init__(self, *, namespaced: bool | None = None) -> None:
        """`namespaced`: True if PIDs may be another namespace's, as in most containers; None finds out."""
        self._namespaced = bool(namespaced)
        if namespaced is None:
            with suppress(OSError):
                self._namespaced = Path("/proc/self/ns/pid").stat().st_ino != _FIRST_PID_NAMESPACE
        self._own: dict[int, bool] = {}
        self._names: dict[int, str | None] = {}

    def among(self, listed: Mapping[int, int | None], child: int | None) -> tuple[GpuProcess, ...] | None:
        """The other processes among those that NVML lists (PID to bytes of GPU memory), by PID; `child` is own. None if
        that would be a guess: in a container older drivers list the host's PIDs, newer ones hide those outside."""
        self._own = {
            pid: pid == child or (self._own[pid] if pid in self._own else _descends_from_us(pid)) for pid in listed
        }
        strangers = sorted(pid for pid, own in self._own.items() if not own)
        if self._namespaced and not (strangers and any(self._own.values())):
            return None
        self._names = {pid: self._names[pid] if pid in self._names else _name(pid) for pid in strangers}
        return tuple(
            # Zero means unknown, as in containers: a process with a context holds some memory.
            GpuProcess(pid=pid, name=self._names[pid], memory_bytes=listed[pid] or None)
            for pid in strangers
        )


def _descends_from_us(pid: int) -> bool:
    with suppress(psutil.Error):
        return os.getpid() in (pid, *(parent.pid for parent in psutil.Process(pid).parents()))
    return False


def _name(pid: int) -> str | None:
    with suppress(psutil.Error):
        return psutil.Process(pid).name()
    return None
