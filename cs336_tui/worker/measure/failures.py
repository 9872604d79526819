"""Ends of a cell or a report: cancelled, out of memory (a result), or failed."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from typing import Literal

import torch

from cs336_tui.worker.workload.import_problems import ImportProblem, message_line, message_of, print_traceback, told


class Cancelled(Exception):
    """The user asked to stop."""


IsCancelled = Callable[[], bool]

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
            r"(Cuda|CUDA|HIP) (failure|error)( \d+)? 'out of memory'",  # NCCL and RCCL
            r"Failed to (CUDA host alloc|malloc) \d+ bytes",  # NCCL, of the host's memory
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
"""Messages of torch's RuntimeErrors for lack of memory, for which it has no own exception there."""

_MAY_BE_OUT_OF_MEMORY = re.compile(
    r"CUBLAS_STATUS_NOT_INITIALIZED when calling `?cublas(Lt)?Create"
    r"|CUDNN_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR)\b"
    r"|unable to find an engine to execute this computation"
    r"|Failed to CUDA (calloc|malloc)( async)? \d+ bytes"  # NCCL
)
"""Messages of a library that found too little memory for its handles, kernels or workspaces, or failed for another
reason. They count as out of memory only if less than `LITTLE_BYTES` are free."""
LITTLE_BYTES = 512 * 2**20  # More than a library takes of a device's memory at its first use

_ALLOCATOR_PREFIX = re.compile(r"^\[enforce fail at [^\]]*\] err == 0\. ")
"""The place in torch's source at which its CPU allocator gave up."""

_SIZE = r"(?P<number>\d+(\.\d+)?) ?(?P<unit>bytes|[KMGT]i?B)"
_TRIED = re.compile(rf"tried to allocate {_SIZE}", re.IGNORECASE)
_OTHER = re.compile(rf"Process (?P<pid>\d+) has {_SIZE} memory in use")


def is_out_of_memory(error: BaseException) -> bool:
    """True if memory ran out on device or host, or if the error was raised from one that says so."""
    return says_out_of_memory(_behind(error))


def says_out_of_memory(error: BaseException) -> bool:
    """As `is_out_of_memory`, for the error itself, not those behind it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError):
        return False
    said = message_of(error)
    return bool(_OUT_OF_MEMORY.search(said) or (_MAY_BE_OUT_OF_MEMORY.search(said) and _little_is_free()))


def _little_is_free() -> bool:
    """True if the CUDA device in use has little free memory; False if it does not answer."""
    try:
        return torch.cuda.is_initialized() and torch.cuda.mem_get_info()[0] < LITTLE_BYTES
    except Exception:
        return False


def failed_allocation(error: BaseException) -> int | None:
    """Bytes that could not be allocated, as torch's message gives them; None for any other error."""
    error = _behind(error)
    found = _TRIED.search(message_of(error)) if is_out_of_memory(error) else None
    return _bytes(found) if found else None


def held_by_others(error: BaseException) -> dict[int, int]:
    """Bytes of the device that other processes held when memory ran out, by PID, as torch's message gives them; empty
    where it cannot tell them from this process, as in a container that has PIDs of its own."""
    said = message_of(_behind(error))
    if "this process has" not in said:
        return {}
    return {int(found["pid"]): _bytes(found) for found in _OTHER.finditer(said)}


def _bytes(found: re.Match[str]) -> int:
    """Torch counts in powers of 1024, also where it writes GB."""
    return round(float(found["number"]) * 1024 ** "BKMGT".index(found["unit"][0].upper()))


def outcome_of(error: BaseException) -> tuple[Literal["oom", "failed"], str]:
    """Status and one line for a cell that ended in `error`, with the user's own frame if there is one. Prints a
    failure's traceback to standard error. SystemExit is a failure: a model may not end the program."""
    if is_out_of_memory(error):
        said = message_line(_behind(error), _OUT_OF_MEMORY.search)
        return "oom", _ALLOCATOR_PREFIX.sub("", said) or "out of memory"
    if isinstance(error, ImportProblem):
        shown, said = error.__cause__, str(error)
    else:
        shown, said = error, told(error)
    if shown is not None:
        print_traceback(shown)
    fault = _fault_of_device()
    return "failed", said if fault in said else f"{fault}, met as {said}"


def _fault_of_device() -> str:
    """The fault of the CUDA device in use for this process, as an illegal address in a kernel; empty without one.
    Every later call fails for it, and some libraries tell that in words of their own."""
    try:
        if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream().query()
    except Exception as error:
        return message_line(error)
    return ""


def in_one_line(error: BaseException) -> str:
    """The line of `outcome_of`."""
    return outcome_of(error)[1]


def chain_of(error: BaseException | None) -> Iterator[Exception]:
    """The error, and those from which it was raised, down to the first."""
    seen: set[int] = set()
    while isinstance(error, Exception) and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = vars(error).get("inner_exception") or error.__cause__


def _behind(error: BaseException) -> BaseException:
    """The first error of the chain that reports lack of memory; else the cause of an `ImportProblem`, or the error."""
    if (found := next(filter(says_out_of_memory, chain_of(error)), None)) is not None:
        return found
    return error.__cause__ if isinstance(error, ImportProblem) and error.__cause__ is not None else error
