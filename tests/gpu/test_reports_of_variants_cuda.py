"""Kernels and memory of variants and of a user's own model on a real GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cs336_tui.analysis.kernel_cells import attention_split
from cs336_tui.analysis.kernels import by_range, named_share
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.kernel_report import FUSED
from cs336_tui.events.reports import MemoryReport, ReportRequest
from cs336_tui.worker.measure.memory_record import record_memory
from cs336_tui.worker.workload.compile_and_capture import why_cannot_compile
from tests.gpu.cells import low_precision, profiled, shallow_spec
from tests.worker.workload.own_code import Folder
from tests.worker.workload.own_models import BASICS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def own_spec(tmp_path: Path, **changes: Any) -> CellSpec:
    folder = Folder(tmp_path)
    return shallow_spec(model=f"{folder.write(BASICS)}:LM", model_path=folder.paths, pass_="train-step", **changes)


def recorded(spec: CellSpec) -> MemoryReport:
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return record_memory(ReportRequest(kind="memory", spec=spec), lambda _stage: None)


def test_a_user_s_model_is_profiled_by_its_parts(tmp_path: Path) -> None:
    report = profiled(own_spec(tmp_path))
    assert named_share(report) >= 0.98
    assert all(split.matmul_ns and split.softmax_ns for split in attention_split(report))


@pytest.mark.parametrize("changes", [{}, {"checkpoint": 1}])
def test_a_user_s_model_needs_what_was_predicted(tmp_path: Path, changes: dict[str, Any]) -> None:
    report = recorded(own_spec(tmp_path, **changes))
    assert report.prediction is not None, report.note
    assert report.prediction.peak_bytes == pytest.approx(report.allocator_peak_bytes, rel=0.03)


def test_recomputed_kernels_keep_their_parts() -> None:
    """Operators recomputed on backward's thread belong to the range of their forward."""
    report = profiled(shallow_spec(pass_="train-step", checkpoint=1))
    assert named_share(report) >= 0.98
    assert all(split.softmax_ns for split in attention_split(report))


def test_fused_attention_is_one_part() -> None:
    report = profiled(shallow_spec(pass_="train-step", precision=low_precision(), attention="sdpa"))
    assert "attention core" in {share.name for share in by_range(report)}
    assert all(split.fused and split.softmax_ns is None for split in attention_split(report))


@pytest.mark.skipif(why_cannot_compile("cuda") is not None, reason="torch.compile cannot work here")
def test_a_compiled_step_is_profiled_compiled() -> None:
    report = profiled(shallow_spec(pass_="train-step", compile="default", num_layers=1))
    assert FUSED in {share.name for share in by_range(report)}
    assert any(group.name.startswith("triton_") for group in report.groups)
