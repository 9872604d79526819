"""Steps that two ranks share on real GPUs, through NCCL, compared with one process before they are timed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.gpu.cells import low_precision, needs_compiler, trained_spec
from tests.runner.running import Running
from tests.runner.test_ranks import CODE, WRONG

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")

WAYS = ("ddp", "ddp:1MB", "zero1", "fsdp2", "adapters:get_ddp", "adapters:get_fsdp")


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = Running(tmp_path_factory.mktemp("ranks"))
    yield made
    made.bench.close()


@pytest.mark.numbers
@pytest.mark.parametrize("changes", [{}, {"precision": low_precision}, {"dropout": 0.1}])
def test_every_way_trains_what_one_process_does(runner: Running, changes: dict[str, object]) -> None:
    _train_in_every_way(runner, {name: value() if callable(value) else value for name, value in changes.items()})


@pytest.mark.real_numbers
def test_every_way_trains_what_one_process_does_compiled(runner: Running) -> None:
    needs_compiler("default")
    _train_in_every_way(runner, {"compile": "default"})


def _train_in_every_way(runner: Running, changes: dict[str, object]) -> None:
    specs = (trained_spec(parallel=way, model_path=(str(CODE),), **changes) for way in WAYS)
    cells = dict(zip(WAYS, runner.run(*specs), strict=True))
    assert {way: cell.finished and cell.finished.error for way, cell in cells.items() if cell.status != "ok"} == {}
    for cell in cells.values():
        assert cell.finished is not None
        assert all(peak and peak > 0 for peak in cell.finished.rank_peak_bytes)
        assert cell.step_times_s == [max(times) for times in zip(*cell.times.rank_s, strict=True)]


def test_wrong_wrappers_fail_before_anything_is_timed(runner: Running) -> None:
    specs = (trained_spec(parallel=way, model_path=(str(CODE),)) for way in WRONG)
    for cell in runner.run(*specs):
        assert (cell.status, cell.step_times_s, cell.warmup_times_s) == ("failed", [], [])
