"""Kernels and memory of variants and of a user's own model on a real GPU; dtypes there, whose autocast has other rules
than the CPU's."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cs336_tui.analysis.kernel_cells import attention_split
from cs336_tui.analysis.kernels import by_range, named_share
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Event
from cs336_tui.events.kernel_report import FUSED
from cs336_tui.events.reports import MemoryReport, ReportRequest
from cs336_tui.worker.measure.dtypes import toy_by_cuda_rules, toy_dtypes
from cs336_tui.worker.measure.report import make_report
from cs336_tui.worker.workload.compile_and_capture import why_cannot_compile
from tests.gpu.cells import forget_workspaces, low_precision, profiled, shallow_spec
from tests.worker.measure.cells import memory_of, small_spec
from tests.worker.other_dtypes import by_hand
from tests.worker.workload.own_code import BASICS, Folder


def own_spec(tmp_path: Path, **changes: Any) -> CellSpec:
    folder = Folder(tmp_path)
    return shallow_spec(model=f"{folder.write(BASICS)}:LM", model_path=folder.paths, pass_="train-step", **changes)


def recorded(spec: CellSpec) -> MemoryReport:
    forget_workspaces()
    return memory_of(spec)


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


DEVICE = torch.device("cuda:0")


def test_the_toy_models_dtypes_are_what_other_hooks_see() -> None:
    found, missing = toy_dtypes(DEVICE)
    assert len(found) + len(missing) == 2
    for toy in found:
        autocast = getattr(torch, toy.autocast)
        assert {field: getattr(toy, field) for field in toy.__struct_fields__} == by_hand(autocast, DEVICE)


def test_cuda_s_rules_say_what_hooks_see_here() -> None:
    found, _ = toy_dtypes(DEVICE)
    assert found
    assert set(map(repr, found)) <= set(map(repr, toy_by_cuda_rules()))


def test_layer_norm_runs_in_float32_here() -> None:
    """CUDA's autocast has layer norm in its list of float32 operations; the CPU's has not."""
    found, _ = toy_dtypes(DEVICE)
    assert {toy.layer_norm_output for toy in found} == {"float32"}


@pytest.mark.parametrize("pass_", ["inference", "train-step"])
def test_a_cells_report_is_made_on_the_gpu(pass_: str) -> None:
    events: list[Event] = []
    spec = small_spec(device="cuda:0", threads=None, precision="fp16-mixed", pass_=pass_)
    make_report(ReportRequest(kind="precision", spec=spec), 0, events.append, lambda: False)
    finished = events[-1]
    assert finished.error is None
    rows = {row.path: row for row in finished.content.modules}
    assert finished.content.device_name == torch.cuda.get_device_name(0)
    assert rows["layers.*.attention.query"].output == "float16"
    assert rows["layers.*.attention.weigh"].output == "float32"
    assert (finished.content.logits, finished.content.loss) == ("float16", "float32")
    assert finished.content.toy_by_rules == ()  # hooks see the device itself
