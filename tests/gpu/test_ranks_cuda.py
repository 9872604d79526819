"""Ranks on two real GPUs, through NCCL and gloo: steps that torch or a user's own shares, compared with one process
before they are timed; uses of memory beside what CUDA's allocator tells; communication beside compute, and all-gathers.
"""

from collections.abc import Iterator

import pytest
import torch

from cs336_tui.events.kernel_report import RankTraffic
from tests.gpu.cells import LAYERS, gpu_spec, low_precision, needs_compiler, shallow_spec, trained_spec
from tests.runner.running import Running
from tests.runner.test_ranks import CODE, WRONG
from tests.worker.measure.trace_overlap import times_in_trace

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


WAYS = ("ddp", "ddp:1MB", "zero1", "fsdp2", "adapters:get_ddp", "adapters:get_fsdp")


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
        assert all(peak and peak > 0 for peak in cell.finished.rank_peak_bytes)
        assert cell.step_times_s == [max(times) for times in zip(*cell.times.rank_s, strict=True)]


def test_wrong_wrappers_fail_before_anything_is_timed(runner: Running) -> None:
    specs = (trained_spec(parallel=way, model_path=(str(CODE),)) for way in WRONG)
    for cell in runner.run(*specs):
        assert (cell.status, cell.step_times_s, cell.warmup_times_s) == ("failed", [], [])


DIMS = {"d_model": 1024, "d_ff": 4096, "num_layers": 4, "num_heads": 16, "vocab_size": 8192}
"""Every matrix is a multiple of 2 MiB: the allocator, which leaves up to 1 MiB of a block unsplit, splits those."""
PHASES = {"after forward": "loss", "before optimizer": "backward", "after optimizer": "optimizer"}


@pytest.mark.parametrize("parallel", ["ddp", "zero1", "fsdp2"])
def test_uses_add_up_and_are_as_predicted(runner: Running, parallel: str) -> None:
    report = runner.memory(gpu_spec(ranks=2, parallel=parallel, pass_="train-step", **DIMS))

    assert report.recorder == "CUDA allocator"
    predicted = report.prediction
    workspaces = predicted.workspaces * predicted.workspace_bytes
    for moment in report.moments:
        # Rounding to 512 bytes, unsplit rests of buckets, and a workspace for each thread that has multiplied so far.
        assert 0 <= moment.rest_bytes <= workspaces + 0.02 * moment.live_bytes
    for name, phase in PHASES.items():
        live = [each.live_bytes or 0 for each in report.moments if (each.step, each.moment) == (3, name)]
        assert predicted.phases[phase].end_bytes == pytest.approx(max(live), rel=0.02)
    peak = max(each.peak_bytes or 0 for each in report.moments if each.step == 3)
    assert predicted.peak_bytes == pytest.approx(peak, rel=0.02)


BLOCKS = [f"layers.{number}" for number in range(LAYERS)]


def traffic(runner: Running, parallel: str) -> tuple[RankTraffic, ...]:
    """Of a train-step, whose report is of kernels; each rank's times are those of its Chrome trace."""
    spec = shallow_spec(ranks=2, parallel=parallel, pass_="train-step", model_path=(str(CODE),))
    runner.bench.trust.name(spec)
    runner.bench.ask_report("kernels", spec)
    runner.bench.work()
    content = list(runner.watch.state.reports.values())[-1].content
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
