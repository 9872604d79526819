"""Telling a cell that ran out of memory, which is a result, from one that failed."""

from __future__ import annotations

import re
import sys
import traceback
from typing import Literal

import torch

_OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "MPS backend out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Storage size calculation overflowed",
    "Invalid buffer size",  # Metal, for a single tensor larger than it can ever hold
)
"""What torch's RuntimeErrors say when memory ran out where it has no exception of its own for that."""

_ALLOCATOR_PREFIX = re.compile(r"^\[enforce fail at [^\]]*\] err == 0\. ")
"""Where in torch's source its CPU allocator gave up, which tells a reader nothing."""

_TRIED = re.compile(r"tried to allocate (?P<number>\d+(\.\d+)?) ?(?P<unit>bytes|[KMGT]i?B)", re.IGNORECASE)


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: the device's, the host's, or any that could be addressed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def failed_allocation(error: Exception) -> int | None:
    """Bytes that could not be allocated, where torch's message says; None for any other error."""
    found = _TRIED.search(str(error)) if is_out_of_memory(error) else None
    if found is None:
        return None
    unit = found["unit"][0].upper()
    # Torch counts in powers of 1024, also where it writes GB.
    return round(float(found["number"]) * 1024 ** "BKMGT".index(unit))


def outcome_of(error: Exception) -> tuple[Literal["oom", "failed"], str]:
    """Status and one line for a cell that ended in `error`; a failure's traceback goes to standard error."""
    lines = _ALLOCATOR_PREFIX.sub("", str(error).strip()).splitlines()
    if is_out_of_memory(error):
        return "oom", lines[0] if lines else "out of memory"
    traceback.print_exception(error, file=sys.stderr)
    return "failed", f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
