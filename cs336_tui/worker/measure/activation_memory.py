"""How much memory tensors hold when a forward is done and its backward has not begun."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import kineto_available

from cs336_tui.worker.measure.allocator_events import CpuRecorder
from cs336_tui.worker.measure.failures import is_out_of_memory
from cs336_tui.worker.workload.building import Workload
from cs336_tui.worker.workload.passes import Step


def before_backward_bytes(step: Step, workload: Workload, device: torch.device) -> int | None:
    """Run forward and loss once more and say what tensors hold then, in bytes; for a pass that has a backward.

    That is everything on the device: parameters, batch, output, and what autograd keeps. CUDA's and Metal's allocators
    say so themselves, CUDA's with a cuBLAS workspace. The host's only tells the profiler what it gives and takes, so
    that what was there before is added: parameters, buffers and batch. Either way it holds for compiled code too.

    Not to be timed. Whatever it makes is dropped. None where memory ran out, where nothing tells, and for a step that
    cannot stop before its backward, as one that is replayed as a graph cannot.
    """
    if "backward" not in step.phases:
        return None
    step.clear()

    def forward() -> None:
        for phase in ("forward", "loss"):
            step.run(phase)

    try:
        return _held_after(forward, workload, device)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        step.failed_in = None
        step.clear()


def _held_after(forward: Callable[[], None], workload: Workload, device: torch.device) -> int | None:
    if device.type == "cuda":
        forward()
        return torch.cuda.memory_allocated(device)
    if device.type == "mps":
        forward()
        return torch.mps.current_allocated_memory()
    if not kineto_available():
        return None
    there = (*workload.model.parameters(), *workload.model.buffers(), *workload.batch)
    storages = {storage._cdata: storage.nbytes() for storage in (tensor.untyped_storage() for tensor in there)}
    with CpuRecorder() as recorder:
        forward()
    return sum(storages.values()) + sum(event.bytes for event in recorder.recording().events)
