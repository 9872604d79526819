"""Memory of a cell: peaks of torch's allocator and of the process, and what tensors hold before backward."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.profiler import kineto_available

from cs336_tui.stats.quantities import gigabytes
from cs336_tui.worker.measure.allocator_events import CpuRecorder
from cs336_tui.worker.measure.failures import is_out_of_memory
from cs336_tui.worker.workload.building import Workload
from cs336_tui.worker.workload.passes import Step

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class Peaks(NamedTuple):
    """Peak bytes of tensors, of the allocator's reserved memory, and of the process's resident memory; None: unknown.
    `num_alloc_retries` counts how often CUDA's allocator freed its cache and asked again, which costs time."""

    allocated: int | None
    reserved: int | None
    rss: int
    num_alloc_retries: int | None


class PeakMeter:
    """Measures peaks since its creation or last reset. For a CUDA device it initialises CUDA.

    The peak of resident memory is Linux's high-water mark, reset by writing 5 to ``/proc/self/clear_refs``. Where that
    fails (other systems, some containers) it is the peak of the process's whole life.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.reset()

    def reset(self, *, allocated: bool = True) -> None:
        """Start again; without `allocated` the allocator's peaks continue."""
        with contextlib.suppress(OSError):
            _CLEAR_REFS.write_text("5")
        if allocated and self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._retries_before = self._retries()

    def read(self) -> Peaks:
        if self._device.type != "cuda":
            return Peaks(None, None, _peak_rss(), None)
        return Peaks(
            torch.cuda.max_memory_allocated(self._device),
            torch.cuda.max_memory_reserved(self._device),
            _peak_rss(),
            self._retries() - self._retries_before,
        )

    def _retries(self) -> int:
        if self._device.type != "cuda":
            return 0
        return int(torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0))


def spilled(peaks: Peaks | None, device: torch.device) -> str | None:
    """A remark that torch reserved more memory than the CUDA device has; None if it did not, or if unknown. A driver
    that moves memory to the host instead of running out, as on WSL2 and Windows, allows it."""
    if peaks is None or peaks.reserved is None:
        return None
    try:
        total = int(torch.cuda.get_device_properties(device).total_memory)
    except Exception:
        return None
    if peaks.reserved <= total:
        return None
    return (
        f"torch took {gigabytes(peaks.reserved)} GB of a device that has {gigabytes(total)} GB: the driver moved the "
        f"rest to the host's memory, as on WSL2, and steps that use it are many times slower"
    )


def _peak_rss() -> int:
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def before_backward_bytes(step: Step, workload: Workload, device: torch.device) -> int | None:
    """Run forward and loss once more: the bytes that tensors hold on the device before backward, all included.

    CUDA's and Metal's allocators report them, CUDA's with a cuBLAS workspace. The host's allocator only reports changes
    to the profiler, so parameters, buffers and batch are added. Holds for compiled code too. Not to be timed; drops
    what it makes. None if the pass has no backward, if memory ran out, or without a profiler on the host.
    """
    if "backward" not in step.phases:
        return None
    step.clear()

    def forward() -> None:
        for phase in ("forward", "loss"):
            step.run(phase)

    try:
        return _allocated_after(forward, workload, device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        step.failed_in = None
        step.clear()


def _allocated_after(forward: Callable[[], None], workload: Workload, device: torch.device) -> int | None:
    if device.type == "cuda":
        forward()
        return torch.cuda.memory_allocated(device)
    if device.type == "mps":
        forward()
        return torch.mps.current_allocated_memory()
    if not kineto_available():
        return None
    there = storage_bytes((*workload.model.parameters(), *workload.model.buffers(), *workload.batch))
    with CpuRecorder() as recorder:
        forward()
    return there + sum(event.bytes for event in recorder.recording().events)


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' storages, each counted once."""
    return sum({s._cdata: s.nbytes() for s in (tensor.untyped_storage() for tensor in tensors)}.values())
