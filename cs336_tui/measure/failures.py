"""Telling a cell that ran out of memory, which is a result, from one that failed."""

from __future__ import annotations

import re
from typing import Literal

import torch

from cs336_tui.workload.imported.problems import ImportProblem, print_traceback, said_by, text_of, told

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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: the device's, the host's, or any that could be addressed."""
    error = _behind(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in text_of(error) for text in _OUT_OF_MEMORY)


def failed_allocation(error: BaseException) -> int | None:
    """Bytes that could not be allocated, where torch's message says; None for any other error."""
    error = _behind(error)
    found = _TRIED.search(text_of(error)) if is_out_of_memory(error) else None
    if found is None:
        return None
    unit = found["unit"][0].upper()
    # Torch counts in powers of 1024, also where it writes GB.
    return round(float(found["number"]) * 1024 ** "BKMGT".index(unit))


def outcome_of(error: BaseException) -> tuple[Literal["oom", "failed"], str]:
    """Status and one line for a cell that ended in `error`, with the user's own frame if it came through one.

    A failure's traceback goes to standard error. SystemExit is a failure: a model has no business to end the program.
    """
    if is_out_of_memory(error):
        return "oom", _ALLOCATOR_PREFIX.sub("", said_by(_behind(error))) or "out of memory"
    if not isinstance(error, ImportProblem):
        print_traceback(error)
        return "failed", told(error)
    if error.__cause__ is not None:
        print_traceback(error.__cause__)
    return "failed", str(error)


def _behind(error: BaseException) -> BaseException:
    """The error of the user's code that an `ImportProblem` tells of, any other as it is."""
    return error.__cause__ if isinstance(error, ImportProblem) and error.__cause__ is not None else error
