"""Cells on a CUDA GPU, and what they and their profiles must be."""

from __future__ import annotations

from typing import Any

import pytest

from cs336_tui.measure.kernels import profile_kernels
from cs336_tui.measure.report import Progress
from cs336_tui.reports import KernelReport, ReportRequest
from cs336_tui.spec import RunSpec
from tests.measure.cells import Report, small_spec

LAYERS = 4
"""Of `shallow_spec`."""


def gpu_spec(**changes: Any) -> RunSpec:
    """A cell that keeps a GPU busy for milliseconds a step: of size `small`, with `changes`."""
    fields = {
        "d_model": 768,
        "d_ff": 3072,
        "num_layers": 12,
        "num_heads": 12,
        "vocab_size": 10_000,
        "context_length": 256,
        "batch_size": 4,
        "device": "cuda:0",
        "threads": None,
        "warmup_steps": 3,
        "measure_steps": 5,
    }
    return small_spec(**(fields | changes))


def shallow_spec(**changes: Any) -> RunSpec:
    """As wide as `gpu_spec` with fewer layers, for what takes its time over each operator."""
    return gpu_spec(**({"num_layers": LAYERS} | changes))


def assert_ok(report: Report) -> Report:
    assert report.finished.status == "ok", report.finished.error
    return report


def profiled(spec: RunSpec) -> KernelReport:
    report = profile_kernels(ReportRequest(kind="kernels", spec=spec), Progress(0, lambda _: None, lambda: False))
    if report.activity == "operators":
        pytest.skip(report.note)
    return report
