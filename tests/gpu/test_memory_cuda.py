"""Recording memory on a real CUDA GPU: against the allocator's own peak, and running out of it."""

import gc
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from cs336_tui.analysis.memory import Timeline, block_rows
from cs336_tui.config.spec import PASSES, CellSpec
from cs336_tui.events.reports import MemoryReport, ReportRequest
from cs336_tui.worker.measure.memory_record import record_memory
from cs336_tui.worker.measure.oom import explain_oom
from tests.gpu.cells import needs, shallow_spec


def narrow_spec(**changes: Any) -> CellSpec:
    return shallow_spec(**({"d_model": 512, "d_ff": 2048, "num_heads": 8} | changes))


def record(spec: CellSpec, folder: Path | None = None) -> MemoryReport:
    return record_memory(ReportRequest(kind="memory", spec=spec, folder=folder and str(folder)), lambda _stage: None)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_the_recorded_peak_is_what_the_allocator_counts(pass_: str, precision: str) -> None:
    needs(precision)
    report = record(narrow_spec(pass_=pass_, precision=precision))
    assert report.recorder == "CUDA allocator history"
    assert report.allocator_peak_bytes
    assert report.peak_bytes == pytest.approx(report.allocator_peak_bytes, rel=0.001)
    timeline = Timeline(report)
    assert timeline.by_category.min() >= 0
    assert int(timeline.live_total.max()) == report.peak_bytes


@pytest.mark.parametrize(
    "changes", [{}, {"precision": "bf16-mixed"}, {"checkpoint": 1}, {"checkpoint": 1, "nesting": "halves"}]
)
def test_the_backward_of_a_block_changes_memory_as_its_gradients_and_saved_tensors_say(changes: dict[str, Any]) -> None:
    """The allocator rounds each of a few dozen tensors a block up to 512 bytes. It also leaves up to 1 MiB of a block
    unsplit, but none here: with this vocabulary every tensor of more than 1 MiB is a multiple of 2 MiB."""
    spec = narrow_spec(**({"pass_": "train-step", "vocab_size": 8192} | changes))
    needs(spec.precision)
    rows = block_rows(record(spec))
    groups = 2 if spec.nesting == "halves" else 4
    numbers = 4 * spec.d_model**2 + 3 * spec.d_model * spec.d_ff + 2 * spec.d_model
    assert len(rows) == groups
    for row in rows:
        assert row.gradient_bytes == 4 * numbers * spec.num_layers // groups
        assert abs(row.difference_bytes) <= 64 * 512 * spec.num_layers // groups


def test_the_activation_peak_is_near_the_predicted_one() -> None:
    for changes in ({}, {"checkpoint": 2}, {"checkpoint": 1, "nesting": "halves"}):
        report = record(narrow_spec(**({"pass_": "train-step"} | changes)))
        assert report.activation_peak_bytes == pytest.approx(report.prediction.activation_peak_bytes, rel=0.03)


def test_what_lives_when_a_training_step_begins_is_known() -> None:
    spec = narrow_spec(pass_="train-step")
    begin = Timeline(record(spec)).at(0).by_category
    assert begin["gradients"] == pytest.approx(begin["parameters"], rel=0.01)
    assert begin["optimizer_state"] == pytest.approx(2 * begin["parameters"], rel=0.01)


def test_backward_allocations_name_their_range_though_another_thread_makes_them() -> None:
    report = record(narrow_spec())
    sizes = {"named": 0, "unnamed": 0}
    for size, born, place in zip(report.bytes, report.born, report.site_of, strict=True):
        if born and report.sites[place].phase == "backward":
            sizes["named" if report.sites[place].range else "unnamed"] += size
    assert sizes["named"] > 50 * sizes["unnamed"]


def test_the_snapshot_is_kept_for_the_memory_viewer(tmp_path: Path) -> None:
    report = record(narrow_spec(), tmp_path)
    snapshot = pickle.loads(Path(report.snapshot).read_bytes())
    assert {"segments", "device_traces"} <= set(snapshot)
    assert record(narrow_spec(), tmp_path).snapshot != report.snapshot


def test_running_out_of_memory_is_seen_again_with_its_blocks() -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    gc.collect()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    torch.cuda.set_per_process_memory_fraction(min(2 * 1024**3 / total, 1.0))
    try:
        spec = narrow_spec(context_length=1024, batch_size=32, pass_="train-step")
        report = explain_oom(
            ReportRequest(kind="oom", spec=spec, capacity_bytes=total, failed_phase="forward"), lambda _stage: None
        )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert (report.observed, report.phase) == (True, "forward")
    assert report.request_bytes
    assert report.live_bytes == sum(report.by_category.values())
    assert report.by_category["activations"] > report.by_category["parameters"]
    assert report.largest[0].site.frame.startswith("transformer.py:")
    assert torch.cuda.memory_allocated() - held < 200e6, "what the attempt made is given back"
