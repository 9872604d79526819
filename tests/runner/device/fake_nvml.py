"""A stand-in for libnvidia-ml.so that the real pynvml drives: it fills pynvml's own C structs.

Use the fixture `nvml_library`, which puts an instance in place of the library that pynvml loads; change its `gpus`
and their attributes while a test goes on.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION = 0, 1, 2, 3, 4
NOT_FOUND, INSUFFICIENT_SIZE, DRIVER_NOT_LOADED, GPU_IS_LOST, VERSION_MISMATCH = 6, 7, 9, 15, 18
UNKNOWN = 999

GIB = 1024**3

_NEW = "MemoryInfo_v2 CurrentClocksEventReasons ComputeRunningProcesses_v3 GraphicsRunningProcesses_v3 TemperatureV"
NEW_SYMBOLS = frozenset(f"nvmlDeviceGet{name}" for name in _NEW.split())
"""Functions that a driver of the 470 series lacks."""


@dataclass
class FakeGpu:
    """A GPU, or a MIG instance of one, in NVML's units."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    total: int = 80 * GIB
    used: int = 10 * GIB
    reserved: int = GIB
    utilisation: int = 42
    power_mw: int = 350_500
    power_limit_mw: int = 700_000
    temperature: int = 61
    sm_clock: int = 1755
    memory_clock: int = 2619
    reasons: int = 0
    energy_mj: int = 5_000_000
    persistence: int = 1
    compute: list[tuple[int, int]] = field(default_factory=list)
    """PID and bytes."""
    graphics: list[tuple[int, int]] = field(default_factory=list)
    mig: list[FakeGpu | None] = field(default_factory=list)
    """Slots for MIG instances, None an empty one."""
    errors: dict[str, int] = field(default_factory=dict)
    """Error code by symbol, or by ``*`` for every query of this GPU."""


def mig_instance(uuid: str) -> FakeGpu:
    """A MIG instance: memory and processes, and nothing of what belongs to the whole GPU."""
    not_supported = (
        "UtilizationRates PowerUsage ClockInfo TotalEnergyConsumption PersistenceMode "
        "CurrentClocksEventReasons CurrentClocksThrottleReasons"
    )
    invalid = "EnforcedPowerLimit Temperature TemperatureV"
    codes = {f"nvmlDeviceGet{name}": NOT_SUPPORTED for name in not_supported.split()}
    codes |= {f"nvmlDeviceGet{name}": INVALID_ARGUMENT for name in invalid.split()}
    return FakeGpu(uuid, name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", total=10 * GIB, used=GIB, errors=codes)


class FakeNvmlLibrary:
    """`missing` symbols do not exist in this library; `init_error` is what opening it answers."""

    def __init__(self, *gpus: FakeGpu, missing: frozenset[str] = frozenset(), init_error: int = SUCCESS) -> None:
        self.gpus = list(gpus)
        self.missing = missing
        self.init_error = init_error
        self.driver = "580.65.06"
        self.open = 0
        """nvmlInit calls less nvmlShutdown calls."""
        self.calls: Counter[str] = Counter()
        self._handles: list[FakeGpu] = []

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        if not symbol.startswith("nvml") or symbol in self.missing:
            raise AttributeError(f"undefined symbol: {symbol}")
        implementation = getattr(self, f"_{symbol}", None) or self._query(symbol)

        def function(*args: Any) -> Any:
            self.calls[symbol] += 1
            return implementation(*args)

        return function

    # The library.

    def _nvmlInitWithFlags(self, _flags: int) -> int:
        if self.init_error == SUCCESS:
            self.open += 1
        return self.init_error

    def _nvmlShutdown(self) -> int:
        if not self.open:
            return UNINITIALIZED
        self.open -= 1
        return SUCCESS

    def _nvmlErrorString(self, code: int) -> bytes:
        return b"error %d" % code

    def _nvmlSystemGetDriverVersion(self, buffer: Any, _length: Any) -> int:
        buffer.value = self.driver.encode()
        return SUCCESS if self.open else UNINITIALIZED

    # Handles: one more than a GPU's place in `_handles`, as a handle must not be null.

    def _nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return SUCCESS if self.open else UNINITIALIZED

    def _nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:
        if index.value >= len(self.gpus):
            return INVALID_ARGUMENT
        return self._give_handle(self.gpus[index.value], handle)

    def _nvmlDeviceGetHandleByUUID(self, uuid: ctypes.c_char_p, handle: Any) -> int:
        wanted = (uuid.value or b"").decode()
        everything = [device for gpu in self.gpus for device in (gpu, *filter(None, gpu.mig))]
        found = next((device for device in everything if device.uuid == wanted), None)
        return NOT_FOUND if found is None else self._give_handle(found, handle)

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, slot: ctypes.c_uint, instance: Any) -> int:
        found = self._gpu(handle).mig[slot.value]
        return NOT_FOUND if found is None else self._give_handle(found, instance)

    def _give_handle(self, gpu: FakeGpu, handle: Any) -> int:
        if not self.open:
            return UNINITIALIZED
        self._handles.append(gpu)
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p)).contents.value = len(self._handles)
        return gpu.errors.get("handle", SUCCESS)

    def _gpu(self, handle: Any) -> FakeGpu:
        place = ctypes.cast(handle, ctypes.c_void_p).value
        assert place, "pynvml was given a null handle"
        return self._handles[place - 1]

    # Queries of one GPU.

    def _query(self, symbol: str) -> Callable[..., int]:
        fill = getattr(self, f"_fill_{symbol}", None) or _VALUES.get(symbol)
        if fill is None:
            raise AttributeError(f"undefined symbol: {symbol}")

        def query(handle: Any, *args: Any) -> int:
            gpu = self._gpu(handle)
            if not self.open:
                return UNINITIALIZED
            code = gpu.errors.get("*", gpu.errors.get(symbol, SUCCESS))
            return code or fill(gpu, *args) or SUCCESS

        return query

    def _fill_nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, memory: Any) -> None:
        memory._obj.total, memory._obj.used = gpu.total, gpu.used + gpu.reserved
        memory._obj.free = gpu.total - gpu.used - gpu.reserved

    def _fill_nvmlDeviceGetMemoryInfo_v2(self, gpu: FakeGpu, memory: Any) -> int:
        struct = memory._obj
        if struct.version != pynvml.nvmlMemory_v2 or ctypes.sizeof(struct) != pynvml.nvmlMemory_v2 & 0xFFFF:
            return 25
        struct.total, struct.used, struct.reserved = gpu.total, gpu.used, gpu.reserved
        struct.free = gpu.total - gpu.used - gpu.reserved
        return SUCCESS

    def _fill_nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu, rates: Any) -> None:
        rates._obj.gpu, rates._obj.memory = gpu.utilisation, 0

    def _fill_nvmlDeviceGetTemperatureV(self, gpu: FakeGpu, temperature: Any) -> None:
        temperature._obj.temperature = gpu.temperature

    def _fill_nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: Any, mhz: Any) -> None:
        mhz._obj.value = {pynvml.NVML_CLOCK_SM: gpu.sm_clock, pynvml.NVML_CLOCK_MEM: gpu.memory_clock}[kind.value]

    def _fill_nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: FakeGpu, count: Any, array: Any) -> int:
        return _fill_processes(gpu.compute, count, array)

    def _fill_nvmlDeviceGetGraphicsRunningProcesses_v3(self, gpu: FakeGpu, count: Any, array: Any) -> int:
        return _fill_processes(gpu.graphics, count, array)

    _fill_nvmlDeviceGetComputeRunningProcesses_v2 = _fill_nvmlDeviceGetComputeRunningProcesses_v3
    _fill_nvmlDeviceGetGraphicsRunningProcesses_v2 = _fill_nvmlDeviceGetGraphicsRunningProcesses_v3


def _texts(attribute: str) -> Callable[..., None]:
    """Fills a buffer with a text of the GPU."""

    def fill(gpu: FakeGpu, buffer: Any, _length: Any) -> None:
        buffer.value = getattr(gpu, attribute).encode()

    return fill


def _numbers(read: Callable[[FakeGpu], int]) -> Callable[..., None]:
    """Fills a number of the GPU into the last argument."""

    def fill(gpu: FakeGpu, *arguments: Any) -> None:
        arguments[-1]._obj.value = read(gpu)

    return fill


_VALUES = {
    "nvmlDeviceGetUUID": _texts("uuid"),
    "nvmlDeviceGetName": _texts("name"),
    "nvmlDeviceGetMaxMigDeviceCount": _numbers(lambda gpu: len(gpu.mig)),
    "nvmlDeviceGetPowerUsage": _numbers(lambda gpu: gpu.power_mw),
    "nvmlDeviceGetEnforcedPowerLimit": _numbers(lambda gpu: gpu.power_limit_mw),
    "nvmlDeviceGetTemperature": _numbers(lambda gpu: gpu.temperature),
    "nvmlDeviceGetCurrentClocksEventReasons": _numbers(lambda gpu: gpu.reasons),
    "nvmlDeviceGetCurrentClocksThrottleReasons": _numbers(lambda gpu: gpu.reasons),
    "nvmlDeviceGetPersistenceMode": _numbers(lambda gpu: gpu.persistence),
    "nvmlDeviceGetTotalEnergyConsumption": _numbers(lambda gpu: gpu.energy_mj),
}
"""The queries that fill in one value."""


def _fill_processes(processes: list[tuple[int, int]], count: Any, array: Any) -> int:
    room, count._obj.value = count._obj.value, len(processes)
    if len(processes) > room:
        return INSUFFICIENT_SIZE
    for place, (pid, used) in enumerate(processes):
        array[place].pid, array[place].usedGpuMemory = pid, used
    return SUCCESS
