"""Memory of ranks on two real GPUs: uses add up to what CUDA's allocator tells, and predictions stand beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.gpu.cells import gpu_spec
from tests.runner.running import Running

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")

DIMS = {"d_model": 1024, "d_ff": 4096, "num_layers": 4, "num_heads": 16, "vocab_size": 8192}
"""Every matrix is a multiple of 2 MiB: the allocator, which leaves up to 1 MiB of a block unsplit, splits those."""
PHASES = {"after forward": "loss", "before optimizer": "backward", "after optimizer": "optimizer"}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = Running(tmp_path_factory.mktemp("ranks"))
    yield made
    made.bench.close()


@pytest.mark.parametrize("parallel", ["ddp", "zero1", "fsdp2"])
def test_uses_add_up_and_are_as_predicted(runner: Running, parallel: str) -> None:
    report = runner.memory(gpu_spec(ranks=2, parallel=parallel, pass_="train-step", **DIMS))

    assert report.recorder == "CUDA allocator"
    assert report.prediction is not None
    predicted = report.prediction
    workspaces = predicted.workspaces * predicted.workspace_bytes
    for moment in report.moments:
        assert moment.live_bytes is not None
        assert moment.rest_bytes is not None
        # Rounding to 512 bytes, unsplit rests of buckets, and a workspace for each thread that has multiplied so far.
        assert 0 <= moment.rest_bytes <= workspaces + 0.02 * moment.live_bytes
    for name, phase in PHASES.items():
        live = [each.live_bytes or 0 for each in report.moments if (each.step, each.moment) == (3, name)]
        assert predicted.phases[phase].end_bytes == pytest.approx(max(live), rel=0.02)
    peak = max(each.peak_bytes or 0 for each in report.moments if each.step == 3)
    assert predicted.peak_bytes == pytest.approx(peak, rel=0.02)
