"""Containers and sharded optimizers of one's own on two real GPUs, by NCCL and by gloo."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.gpu.cells import trained_spec
from tests.runner.running import Running
from tests.runner.test_ranks import CODE

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")

FORMS: tuple[dict[str, object], ...] = (
    {"parallel": "adapters:get_ddp"},
    {"parallel": "adapters:get_ddp", "backend": "gloo"},
    {"parallel": "adapters:get_ddp_bucketed:1MB"},
    {"parallel": "adapters:get_fsdp"},
    {"parallel": "adapters:get_fsdp_in_bf16", "precision": "bf16-mixed"},
    {"parallel": "adapters:Zero3"},
    {"parallel": "adapters:AsUnderTorchrun"},  # which holds LOCAL_RANK to be its GPU's number
    {"parallel": "ddp", "optimizer": "adapters:get_sharded_optimizer"},
    {"parallel": "ddp", "optimizer": "adapters:BareOptimizer"},
)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = Running(tmp_path_factory.mktemp("ranks"))
    yield made
    made.bench.close()


@pytest.mark.numbers
def test_every_form_trains_what_one_process_does(runner: Running) -> None:
    """Each is compared with one process before it is timed."""
    cells = runner.run(*(trained_spec(model_path=(str(CODE),), **form) for form in FORMS))
    assert [cell.finished.error for cell in cells if cell.status != "ok"] == []
    assert all(len(cell.finished.rank_peak_bytes) == 2 for cell in cells)


def test_a_wrong_one_is_named_before_it_is_timed(runner: Running) -> None:
    (cell,) = runner.run(trained_spec(model_path=(str(CODE),), parallel="adapters:Sums"))
    assert (cell.status, cell.step_times_s) == ("failed", [])
    assert "of its norm" in cell.finished.error
