"""Communication of ranks on two real GPUs: NCCL's kernels beside compute, and the all-gathers of fully_shard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cs336_tui.events.kernel_report import KernelReport, RankTraffic
from tests.gpu.cells import LAYERS, shallow_spec, trained_spec
from tests.runner.running import Running
from tests.runner.test_ranks import CODE
from tests.worker.measure.trace_overlap import times_in_trace

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")

BLOCKS = [f"layers.{number}" for number in range(LAYERS)]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = Running(tmp_path_factory.mktemp("ranks"))
    yield made
    made.bench.close()


def traffic(runner: Running, parallel: str) -> tuple[RankTraffic, ...]:
    """Of a train-step, whose report is of kernels; each rank's times are those of its Chrome trace."""
    spec = shallow_spec(ranks=2, parallel=parallel, pass_="train-step", model_path=(str(CODE),))
    runner.bench.trust.name(spec)
    runner.bench.ask_report("kernels", spec)
    runner.bench.work()
    content = list(runner.watch.state.reports.values())[-1].content
    assert isinstance(content, KernelReport)
    assert content.activity == "kernels"
    assert [each.rank for each in content.ranks] == [0, 1]
    for each in content.ranks:
        times_us = [time_ns / 1e3 for time_ns in (each.communication_ns, each.compute_ns, each.overlapped_ns)]
        assert times_in_trace(each.trace or "") == pytest.approx(times_us, rel=0.001, abs=5)
    return content.ranks


@pytest.mark.parametrize("parallel", ["ddp", "ddp:1MB", "adapters:get_ddp"])
def test_all_reduces_run_beside_the_backward(runner: Running, parallel: str) -> None:
    for each in traffic(runner, parallel):
        assert sum(count for name, count in each.operations.items() if "AllReduce" in name) >= 1
        assert each.all_gathers == ()
        assert 0 < each.overlapped_ns <= each.communication_ns
        if parallel != "adapters:get_ddp":  # it divides the first gradients while the last are sent, which may hide all
            assert each.overlapped_ns < each.communication_ns


def test_each_all_gather_of_fully_shard_ended_before_its_pass_or_was_waited_for(runner: Running) -> None:
    for each in traffic(runner, "fsdp2"):
        assert any("ReduceScatter" in name for name in each.operations)
        found = [(it.module, it.pass_) for it in each.all_gathers]
        assert found[0] == ("token_embedding, final_norm, head", "forward")
        assert found[1:] == [*((name, "forward") for name in BLOCKS), *((name, "backward") for name in BLOCKS[::-1])]
        for it in each.all_gathers:
            assert it.waited_ns is not None
            assert it.ready_ns is not None
            assert 0 <= it.waited_ns <= max(it.end_ns - it.ready_ns, 0)
            assert 0 <= it.alone_ns <= it.end_ns - it.begin_ns
        assert sum(it.early_ns is not None for it in each.all_gathers) > 0, "all-gathers are issued ahead"


def test_all_gathers_of_ones_own_are_of_the_modules_that_use_them(runner: Running) -> None:
    for each in traffic(runner, "adapters:get_fsdp"):
        modules = {it.module for it in each.all_gathers}
        assert {"token_embedding", "layers.0.attention.query", "head"} <= modules
        assert all(it.waited_ns is not None for it in each.all_gathers)


@pytest.mark.numbers
def test_gradient_sync_is_kept_of_each_rank_and_is_a_part_of_its_step(runner: Running) -> None:
    (cell,) = runner.run(trained_spec(parallel="adapters:get_ddp", model_path=(str(CODE),)))
    assert cell.status == "ok"
    assert [len(syncs_s) for syncs_s in cell.times.rank_sync_s] == [len(cell.step_times_s)] * 2
    for syncs_s, steps_s in zip(cell.times.rank_sync_s, cell.times.rank_s, strict=True):
        assert all(0 <= sync_s < step_s for sync_s, step_s in zip(syncs_s, steps_s, strict=True))
