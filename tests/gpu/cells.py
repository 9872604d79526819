"""Cells on a CUDA GPU, and checks of them and of their profiles."""

from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from cs336_tui.config.spec import AXES, CellSpec, Precision
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.worker.estimate.predict import predict
from cs336_tui.worker.measure.probe import probe
from cs336_tui.worker.workload.compile_and_capture import why_cannot_compile
from tests.worker.measure.cells import Report, kernels_of, run, small_spec

needs_nvml = pytest.mark.skipif(find_spec("pynvml") is None, reason="needs what `pip install nvidia-ml-py` installs")
LAYERS = 4
"""Layers of `shallow_spec`."""


@cache
def the_gpu() -> DeviceInfo:
    (found,) = (device for device in probe().devices if device.name == "cuda:0")
    return found


def needs(precision: str) -> None:
    """Skip the test on a GPU whose hardware has no such format, as a T4 and a V100 have no bf16."""
    if precision not in the_gpu().precisions:
        pytest.skip(f"{the_gpu().label} cannot do {precision}")


def needs_compiler(mode: str) -> None:
    """Skip the test where torch.compile cannot work, if the mode compiles."""
    if mode != "off" and (why := why_cannot_compile("cuda")):
        pytest.skip(why)


COMPILED = [
    pytest.param(mode, marks=pytest.mark.real_numbers) if mode == "max-autotune" else mode
    for mode in AXES["compile"].values
    if mode != "off"
]
"""Modes of torch.compile. Only hardware can tell the fastest of the hundred kernels that autotuning compiles."""
_BESIDE = 1.2
"""Of the predicted peak: what the allocator reserves and what a profile keeps."""


def needs_memory(spec: CellSpec) -> None:
    """Skip the test of a cell that does not fit into the memory that is free, as on a GPU of 8 GB."""
    torch.cuda.empty_cache()
    free, needed = torch.cuda.mem_get_info()[0], _BESIDE * predict(spec).peak_bytes
    if needed > free:
        pytest.skip(f"needs {needed / 1e9:.1f} GB of free memory, and there are {free / 1e9:.1f}")


def low_precision() -> Precision:
    """Mixed with bf16, or with fp16 on a GPU without it."""
    return "bf16-mixed" if "bf16-mixed" in the_gpu().precisions else "fp16-mixed"


def gpu_spec(**changes: Any) -> CellSpec:
    """A cell that keeps a GPU busy for milliseconds a step: of size `small`, with `changes`."""
    fields = {
        "d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12, "vocab_size": 10_000, "context_length": 256,
        "batch_size": 4, "device": "cuda:0", "threads": None, "warmup_steps": 3, "measure_steps": 5,
    }  # fmt: skip
    return small_spec(**(fields | changes))


def shallow_spec(**changes: Any) -> CellSpec:
    """A cell as wide as `gpu_spec` with fewer layers, for tests whose time grows with the operators."""
    return gpu_spec(**({"num_layers": LAYERS} | changes))


def trained_spec(**changes: Any) -> CellSpec:
    """A train-step of ranks so small that a CPU can carry it out, for tests of what is trained."""
    small = {"d_model": 256, "d_ff": 512, "num_layers": 2, "num_heads": 4, "vocab_size": 1024, "context_length": 64}
    return gpu_spec(**({"ranks": 2, "pass_": "train-step"} | small | changes))


def assert_ok(report: Report) -> Report:
    assert report.finished.status == "ok", report.finished.error
    return report


def forget_workspaces() -> None:
    """cuBLAS keeps its workspaces between cells of one process, whichever thread they were made for."""
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def assert_peak_as_predicted(spec: CellSpec) -> None:
    needs(spec.precision)
    forget_workspaces()
    measured = run(spec).finished.peak_allocated_bytes
    predicted = predict(spec, capability=torch.cuda.get_device_capability()).peak_bytes
    assert predicted == pytest.approx(measured, rel=0.03)


def profiled(spec: CellSpec) -> KernelReport:
    report = kernels_of(spec)
    if report.activity == "operators":
        pytest.skip(report.note)
    return report
