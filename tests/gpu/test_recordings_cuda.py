"""Recordings of a real CUDA GPU, opened: torch's memory snapshots against the allocator, nsys against what was run."""

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from cs336_tui.analysis.memory import Timeline
from cs336_tui.events.kernel_report import KernelGroup
from cs336_tui.session.recordings.recording import Opening, read
from tests.gpu.cells import shallow_spec
from tests.worker.measure.cells import kernels_of


def steps(count: int) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(1000, 1000, device="cuda") for _ in range(20)])
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.randn(3000, 1000, device="cuda")).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("stacks", ["python", "all"])
@pytest.mark.parametrize("max_entries", [100_000, 300])
def test_a_snapshot_has_the_allocators_peak_and_end(tmp_path: Path, stacks: str, max_entries: int) -> None:
    """With few entries the history wraps round: then the end is exact all the same."""
    keep = torch.zeros(5_000_000, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(stacks=stacks, max_entries=max_entries)  # type: ignore[arg-type]
    try:
        steps(2)
        peak, end = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        torch.cuda.memory._dump_snapshot(str(tmp_path / "a.pickle"))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    cells = read(tmp_path / "a.pickle", "a.pickle", Opening())
    report = next(cell.report for cell in cells if cell.report.spec.device == f"cuda:{torch.cuda.current_device()}")
    assert int(Timeline(report).live_total[-1]) == end
    if max_entries > 10_000:
        assert report.peak_bytes == peak
        assert {"forward", "backward", "optimizer", "zero_grad"} <= {span.phase for span in report.phases}
    del keep


@pytest.mark.skipif(shutil.which("nsys") is None, reason="needs nsys")
def test_a_report_of_nsys_has_every_kernel_that_ran(tmp_path: Path) -> None:
    program = (
        "import torch\n"
        "a = torch.randn(512, 512, device='cuda')\n"
        "torch.cuda.synchronize()\n"
        "with torch.cuda.nvtx.range('forward'), torch.autograd.profiler.emit_nvtx():\n"
        "    for _ in range(17): a.relu()\n"
        "torch.cuda.synchronize()\n"
    )
    made = tmp_path / "made.nsys-rep"
    command = ["nsys", "profile", "--trace=cuda,nvtx", "--output", str(made), sys.executable, "-c", program]
    subprocess.run(command, check=True, capture_output=True)
    (cell,) = read(made, made.name, Opening())
    inside = [group for group in cell.report.groups if group.phase == "forward"]
    assert sum(group.instances for group in inside) == 17
    assert {group.op for group in inside} <= {"aten::relu", "aten::clamp_min"}
    assert cell.facts.label == torch.cuda.get_device_name()


@pytest.mark.parametrize("pass_", ["inference", "forward+backward", "train-step"])
def test_the_saved_trace_of_a_profiled_step_reads_as_its_report(tmp_path: Path, pass_: Any) -> None:
    """The report is made of Kineto's events, the reader has the file alone. Copies and fills stand apart there."""
    spec = shallow_spec(pass_=pass_)
    own = kernels_of(spec, str(tmp_path))
    if own.activity != "kernels":
        pytest.skip("CUPTI gives no kernels here")
    (cell,) = read(Path(own.trace), "saved", Opening())

    def times(groups: Iterable[KernelGroup]) -> Counter[tuple[str, str, str, str]]:
        found: Counter[tuple[str, str, str, str]] = Counter()
        for group in groups:
            if group.phase in own.phase_spans_ns:
                found[group.name, group.op, group.phase, group.range] += group.total_ns
        return found

    assert times((*cell.report.groups, *cell.report.copies)) == times(own.groups)
    assert cell.facts.label == torch.cuda.get_device_name()
