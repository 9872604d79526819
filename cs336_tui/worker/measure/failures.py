"""Telling a cell that ran out of memory, which is a result, from one that failed."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Literal

import torch

from cs336_tui.worker.workload.imported.problems import ImportProblem, print_traceback, said_by, text_of, told

_OUT_OF_MEMORY = re.compile(
    "|".join(
        (
            r"DefaultCPUAllocator: can't allocate memory",
            r"DefaultCPUAllocator: not enough memory",
            r"C10 Out of Memory",
            r"Storage size calculation overflowed",
            r"Cannot allocate memory \(12\)",  # mmap's ENOMEM, as torch tells it
            r"std::bad_alloc",
            r"could not create a memory( object)?$",  # oneDNN
            r"(CUDA|HIP|XPU|MPS backend) out of memory",  # inside another error, as of a compiler
            r"(CUDA|HIP|CUDA driver|HIP driver) error: out of memory",
            r"Triton Error \[(CUDA|HIP)\].*out of memory",
            r"(CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|HIPBLAS|HIPSOLVER|HIPFFT|MIOPEN)(_STATUS)?_ALLOC(ATION)?_FAILED",
            r"CUDNN_STATUS_INTERNAL_ERROR_(DEVICE|HOST)_ALLOCATION_FAILED",
            r"NVRTC_ERROR_OUT_OF_MEMORY",
            r"MAGMA.*not enough memory",
            r"Invalid buffer size",  # Metal, for a single tensor larger than it can ever hold
            r"kIOGPUCommandBufferCallbackErrorOutOfMemory",
            r"Failed to allocate private MTLBuffer",
        )
    ),
    re.MULTILINE,
)
"""What torch's RuntimeErrors say when memory ran out where it has no exception of its own for that."""

_MAY_BE_OUT_OF_MEMORY = re.compile(
    r"CUBLAS_STATUS_NOT_INITIALIZED when calling `?cublas(Lt)?Create"
    r"|CUDNN_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR)\b"
    r"|unable to find an engine to execute this computation"
)
"""What they say when a library found too little memory for its handles, kernels or workspaces, but also for other
reasons: it is the former where next to nothing is free."""
LITTLE_BYTES = 512 * 2**20
"""More than what a library takes of a device's memory when it is first used."""

_ALLOCATOR_PREFIX = re.compile(r"^\[enforce fail at [^\]]*\] err == 0\. ")
"""Where in torch's source its CPU allocator gave up, which tells a reader nothing."""

_TRIED = re.compile(r"tried to allocate (?P<number>\d+(\.\d+)?) ?(?P<unit>bytes|[KMGT]i?B)", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: the device's, the host's, or any that could be addressed; also where another error was
    raised from that one, as by a compiler or by our own code."""
    return says_out_of_memory(_behind(error))


def says_out_of_memory(error: BaseException) -> bool:
    """As `is_out_of_memory`, by the error itself."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    said = text_of(error)
    return bool(_OUT_OF_MEMORY.search(said) or (_MAY_BE_OUT_OF_MEMORY.search(said) and _little_is_free()))


def _little_is_free() -> bool:
    """Of the memory of the CUDA device in use; False where it does not answer."""
    try:
        return torch.cuda.is_initialized() and torch.cuda.mem_get_info()[0] < LITTLE_BYTES
    except Exception:
        return False


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
        said = said_by(_behind(error), _OUT_OF_MEMORY.search)
        return "oom", _ALLOCATOR_PREFIX.sub("", said) or "out of memory"
    if not isinstance(error, ImportProblem):
        print_traceback(error)
        return "failed", told(error)
    if error.__cause__ is not None:
        print_traceback(error.__cause__)
    return "failed", str(error)


def chain_of(error: BaseException | None) -> Iterator[Exception]:
    """The error and those from which it was raised, down to the first."""
    seen: set[int] = set()
    while isinstance(error, Exception) and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = vars(error).get("inner_exception") or error.__cause__


def _behind(error: BaseException) -> BaseException:
    """Of the error and those from which it was raised the first that tells that memory ran out; else the error of the
    user's code that an `ImportProblem` tells of, any other as it is."""
    if (found := next(filter(says_out_of_memory, chain_of(error)), None)) is not None:
        return found
    return error.__cause__ if isinstance(error, ImportProblem) and error.__cause__ is not None else error
