"""Errors that mean out of memory, and messages for the others."""

import errno

import pytest
import torch
from torch.distributed import DistBackendError

from cs336_tui.worker.measure.failures import (
    LITTLE_BYTES,
    failed_allocation,
    held_by_others,
    is_out_of_memory,
    outcome_of,
)
from cs336_tui.worker.workload.compile_and_capture import CaptureError

NCCL = (
    "NCCL error in: ProcessGroupNCCL.cpp:3699, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL "
    "version 2.27.3\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n{}"
)


OUT_OF_MEMORY = (
    "MPS backend out of memory (MPS allocated: 9 GB)",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "could not create a memory object",
    "std::bad_alloc",
)
NCCL_OUT_OF_MEMORY = (
    "Cuda failure 2 'out of memory'",
    "Cuda failure 'out of memory'",
    "CUDA error 2 'out of memory'",
    "HIP failure 'out of memory'",
    "Failed to CUDA host alloc 4923392 bytes",
    "Failed to malloc 32 bytes",
)
NO_HANDLE = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
TRIED = "CUDA out of memory. Tried to allocate 20.00 GiB."


@pytest.mark.parametrize(
    ("error", "line"),
    [
        *((RuntimeError(text), text) for text in OUT_OF_MEMORY),
        *((DistBackendError(NCCL.format(text)), text) for text in NCCL_OUT_OF_MEMORY),
        (torch.OutOfMemoryError(f"{TRIED}\nSee documentation"), TRIED),
        (MemoryError(), "out of memory"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might"), "CUDA error: out of memory"),
        (
            RuntimeError("backend='inductor' raised:\nRuntimeError: Triton Error [CUDA]: out of memory\n\nSet TORCH"),
            "RuntimeError: Triton Error [CUDA]: out of memory",
        ),
        (RuntimeError(f"OutOfMemoryError: {TRIED}\n\nSet TORCHDYNAMO"), f"OutOfMemoryError: {TRIED}"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "[Errno 12] Cannot allocate memory"),
    ],
)
def test_out_of_memory_is_a_result(error: Exception, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome_of(error) == ("oom", line)
    assert capsys.readouterr().err == ""


def test_more_than_can_be_addressed_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**31 - 1, 2**31 - 1, 8)
    assert outcome_of(caught.value)[0] == "oom"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("CUDA error: an illegal access\nmore"), "RuntimeError: CUDA error: an illegal access"),
        (ValueError("out of memory"), "ValueError: out of memory"),
        (RuntimeError("the mask ran out of memory slots"), "RuntimeError: the mask ran out of memory slots"),
        (OSError(errno.ENOENT, "No such file"), "FileNotFoundError: [Errno 2] No such file"),
        (RuntimeError(NO_HANDLE), f"RuntimeError: {NO_HANDLE}"),
        (AssertionError(), "AssertionError"),
        (DistBackendError(NCCL.format("Cuda failure 1 'invalid'")), f"DistBackendError: {NCCL.splitlines()[0]}"),
    ],
)
def test_anything_else_is_a_failure(error: Exception, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome_of(error) == ("failed", line)
    assert type(error).__name__ in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        NO_HANDLE,
        NO_HANDLE.replace("cublasCreate", "cublasLtCreate"),
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "GET was unable to find an engine to execute this computation",
        NCCL.format("Failed to CUDA calloc 6291456 bytes"),
        NCCL.format("Failed to CUDA calloc async 608 bytes"),
    ],
)
def test_what_a_library_says_without_memory_for_itself_is_that_where_little_is_free(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> tuple[int, int]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    error = RuntimeError(text)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for free, status in ((LITTLE_BYTES - 1, "oom"), (LITTLE_BYTES, "failed"), (None, "failed")):
        monkeypatch.setattr(torch.cuda, "mem_get_info", broken if free is None else lambda free=free: (free, 2**34))
        assert outcome_of(error)[0] == status
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert outcome_of(error)[0] == "failed"


@pytest.mark.parametrize("says_it_itself", [True, False])
def test_what_broke_the_device_is_told_where_a_library_met_it_first(
    says_it_itself: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault in a kernel is met by some later call, of which cuBLAS and others tell in words of their own."""
    fault = "CUDA error: an illegal memory access was encountered"

    class Broken:
        def query(self) -> bool:
            raise RuntimeError(f"{fault}\nCUDA kernel errors might be asynchronously reported")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", Broken)
    of_library = "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(handle)`"
    said = outcome_of(RuntimeError(fault if says_it_itself else of_library))
    met_as = "" if says_it_itself else f", met as RuntimeError: {of_library}"
    assert said == ("failed", f"RuntimeError: {fault}" if says_it_itself else f"{fault}{met_as}")


def test_an_error_that_was_raised_from_running_out_of_memory_is_that() -> None:
    first = RuntimeError("CUDA driver error: out of memory")
    captured = CaptureError(first, "forward")
    captured.__cause__ = first
    assert outcome_of(captured) == ("oom", "CUDA driver error: out of memory")
    mine = KeyError("cache")
    mine.__cause__ = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")
    assert (is_out_of_memory(mine), failed_allocation(mine)) == (True, 3 * 2**30)
    itself = ValueError("round and round")
    itself.__cause__ = itself
    assert not is_out_of_memory(itself)


FULL = (
    "CUDA out of memory. Tried to allocate 314.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which 256.00 MiB is "
    "free. Process 4242 has 6.00 GiB memory in use. Process 77 has 512.00 MiB memory in use. "
)


def test_other_processes_that_hold_the_device_are_told_but_none_that_may_be_this_one() -> None:
    error = torch.OutOfMemoryError(FULL + "Including non-PyTorch memory, this process has 1.75 GiB memory in use.")
    assert held_by_others(error) == {4242: 6 * 2**30, 77: 2**29}
    # In a container torch knows its own PID and NVML another one.
    assert held_by_others(torch.OutOfMemoryError(FULL)) == {}
