"""What a cell changes around itself, for as long as it runs: torch's global settings and Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from cs336_tui.workload.precision import set_matmul


@contextmanager
def restored_settings() -> Iterator[None]:
    """Put back torch's thread count, float32 matmul precision, default dtype, grad mode and current CUDA device."""
    threads = torch.get_num_threads()
    matmul = torch.get_float32_matmul_precision()
    dtype = torch.get_default_dtype()
    grad = torch.is_grad_enabled()
    # Asking for the current device would initialise CUDA; until then there is none to put back.
    cuda_device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:  # setting it, even to what it was, changes how MKL shares out its work
            torch.set_num_threads(threads)
        set_matmul(matmul)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        with suppress(RuntimeError):  # a device that has failed for good answers nothing
            if cuda_device is not None and cuda_device != torch.cuda.current_device():
                torch.cuda.set_device(cuda_device)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect once, then keep Python's collector away from everything: one collection can outlast a step."""
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
