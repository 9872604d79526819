"""Cells in lanes on four simulated GPUs: apart from one another, as long as alone, and four at a time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.simgpu.cells import TINY, Bench, bench
from tests.simgpu.test_times import Judge

GPUS = 4
CELLS = 8
WORDS = "--pass forward --context 8,12,16,20,24,28,32,36 --cuda-graph step --steps 12".split()
LONG = {"DEVICES": GPUS, "KERNEL_US": 1500, "GEMM_US": 1500}


def made(folder: Path, lanes: int) -> Bench:
    names = ",".join(f"cuda:{number}" for number in range(GPUS if lanes > 1 else 1))
    return bench(folder, *TINY, *WORDS, "--device", names, "--lanes", str(lanes), **LONG)


def taken_s(of: Bench) -> float:
    """From the first cell's begin to the last one's end."""
    moments = [event["at"] for event in of.events if event["type"] in ("CellStarted", "CellFinished")]
    return max(moments) - min(moments)


@pytest.fixture(scope="module")
def in_lanes(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return made(tmp_path_factory.mktemp("lanes"), GPUS)


def test_each_cell_has_a_gpu_of_its_own(in_lanes: Bench) -> None:
    assert len(in_lanes.runs) == CELLS
    spans: dict[int, list[tuple[int, int]]] = {}
    for windows in in_lanes.windows.values():
        work = [each for window in windows for each in window.work]
        (device,) = {each.device for each in work}
        spans.setdefault(device, []).append((work[0].begin_ns, work[-1].end_ns))
    assert len(spans) == GPUS
    for of_device in spans.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(of_device)))


def test_times_in_lanes_are_the_devices(in_lanes: Bench) -> None:
    judge = Judge()
    for run in in_lanes.runs:
        judge.cell(in_lanes, run)
    assert judge.misses == []


def test_four_lanes_take_about_a_quarter_of_the_time(in_lanes: Bench, tmp_path: Path) -> None:
    alone = made(tmp_path, 1)
    assert taken_s(in_lanes) == pytest.approx(taken_s(alone) / GPUS, rel=0.3)
