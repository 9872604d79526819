"""Cells in lanes on several GPUs: each on its own, which is sampled as its own, and the cost of its neighbours."""

from contextlib import closing
from pathlib import Path

import pytest
import torch

from cs336_tui.cli.selftest import lanes_asked, run_lanes
from cs336_tui.cli.targets import read_machine
from cs336_tui.config.choices import sweep_from
from cs336_tui.events.events import DeviceSampled
from cs336_tui.export.subjects.selftest import lanes_sentence
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.lanes import lanes_of
from cs336_tui.selftest.programs import SelftestCell
from cs336_tui.selftest.turns import Plan
from cs336_tui.worker.measure.probe import nvml_uuid
from tests.gpu.cells import shallow_spec
from tests.watching import Watch

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")


def test_each_lane_runs_its_cells_on_a_gpu_of_its_own(tmp_path: Path) -> None:
    uuids = {f"cuda:{n}": nvml_uuid(n, torch.cuda.get_device_properties(n)) for n in range(torch.cuda.device_count())}
    watch = Watch()
    bench = Bench(watch, session_dir=tmp_path, device_interval_s=0.1)
    bench.prepare()
    with closing(bench):
        pool = bench.resolve(sweep_from(devices=("cuda",), lanes="auto")).devices
        specs = [shallow_spec(steps_for=2.0, measure_steps=100_000, seed=seed) for seed in range(2 * len(pool))]
        bench.add([(spec, 1) for spec in specs], lanes=lanes_of("auto", pool, specs))
        bench.work()
    cells = watch.state.cells
    assert {cell.status for cell in cells.values()} == {"ok"}
    assert {cell.spec.device for cell in cells.values()} == set(pool) == set(uuids)
    assert all(cell.neighbours for cell in cells.values())
    for sample in (each for each in watch.of(DeviceSampled) if each.cells and each.gpu):
        uuid = uuids[cells[sample.cells[0]].spec.device]
        assert uuid is None or sample.gpu.uuid == uuid
        assert sample.gpu.other_processes in (None, ())


@pytest.mark.real_numbers
def test_each_gpu_runs_its_cell_alone_and_beside_all_others() -> None:
    environment = read_machine().environment
    lanes = lanes_asked("auto", "cuda", environment)
    assert [lane.device for lane in lanes] == [f"cuda:{index}" for index in range(torch.cuda.device_count())]

    found = run_lanes(SelftestCell(size="small", device="cuda"), lanes, Plan(starts=1, rounds=3), environment)
    print(lanes_sentence(found))
    for cost in found.costs:
        assert cost.steps_alone > 20
        assert cost.steps_beside > 20
        assert 0.8 < cost.ratio.ratio < 2, "a neighbour on a GPU of its own does not halve the speed"
    assert "2 lanes together make" in lanes_sentence(found) or len(lanes) > 2
