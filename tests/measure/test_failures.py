"""Which errors mean that memory ran out, and what is said of the others."""

import pytest
import torch

from cs336_tui.measure.failures import outcome_of


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nSee documentation"),
            "CUDA out of memory. Tried to allocate 20.00 GiB.",
        ),
        (MemoryError(), "out of memory"),
        (
            RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"),
            "MPS backend out of memory (MPS allocated: 9 GB)",
        ),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might"), "CUDA error: out of memory"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        ),
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
        (
            RuntimeError("CUDA error: an illegal memory access\nmore"),
            "RuntimeError: CUDA error: an illegal memory access",
        ),
        (ValueError("out of memory"), "ValueError: out of memory"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_anything_else_is_a_failure(error: Exception, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome_of(error) == ("failed", line)
    assert type(error).__name__ in capsys.readouterr().err
