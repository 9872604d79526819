"""The cost of neighbours on GPUs, one lane each."""

from __future__ import annotations

import pytest
import torch

from cs336_tui.cli.selftest import lanes_asked, run_lanes
from cs336_tui.cli.targets import read_machine
from cs336_tui.export.subjects.selftest import lanes_sentence
from cs336_tui.selftest.programs import SelftestCell
from cs336_tui.selftest.turns import Plan

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")


@pytest.mark.real_numbers
def test_each_gpu_runs_its_cell_alone_and_beside_all_others() -> None:
    environment = read_machine().environment
    lanes = lanes_asked("auto", "cuda", environment)
    assert [lane.device for lane in lanes] == [f"cuda:{index}" for index in range(torch.cuda.device_count())]

    found = run_lanes(SelftestCell(size="small", device="cuda"), lanes, Plan(starts=1, rounds=3), environment)
    print(lanes_sentence(found))
    for cost in found.costs:
        assert cost.ratio is not None
        assert cost.steps_alone > 20
        assert cost.steps_beside > 20
        assert 0.8 < cost.ratio.ratio < 2, "a neighbour on a GPU of its own does not halve the speed"
    assert "2 lanes together make" in lanes_sentence(found) or len(lanes) > 2
