"""Choices of several ranks that do not go together, refused in one line."""

import pytest

from cs336_tui.config.choices import sweep_from
from cs336_tui.config.spec import SpecError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"sync": "pipelined"}, "sync pipelined: is of one rank; leave it out, or choose --ranks 1"),
        (
            {"parallels": ("zero1",), "optimizers": ("a:B",), "passes": ("train-step",)},
            "parallel zero1: shards torch's AdamW by ZeroRedundancyOptimizer; with an optimizer of your own choose ddp",
        ),
        ({"timers": ("do_bench",)}, "timer do_bench: is of one rank; leave it out, or choose --ranks 1"),
        (
            {"reports": ("memory", "precision")},
            "reports precision: of one rank, not of 2; leave it out of --reports, or give --ranks 1",
        ),
    ],
)
def test_what_is_of_one_rank_is_refused_of_several(words: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        sweep_from(ranks=(1, 2), devices=("cpu",), **words)
    assert str(refused.value) == said


def test_a_backend_of_gpus_waits_for_the_machine_to_tell_its_devices() -> None:
    sweep = sweep_from(ranks=(2,), backends=("nccl",))

    assert sweep.with_devices(("cuda:0",)).cells()[0].backend == "nccl"
    with pytest.raises(SpecError, match="backend nccl: runs on cuda, not on cpu"):
        sweep.with_devices(("cpu",)).cells()


def test_a_global_batch_is_divided_by_the_ranks_and_one_per_rank_is_not() -> None:
    each, whole = (sweep_from(ranks=(4,), batches=(8,), batch_is=whose).with_devices(("cpu",)).cells()[0]
                   for whose in ("per-rank", "global"))  # fmt: skip
    assert (each.rank_batch_size, whole.rank_batch_size) == (8, 2)
    assert each.tokens_per_step == 4 * whole.tokens_per_step
    assert (each.heading.endswith("batch 8 per-rank"), whole.heading.endswith("batch 8 global")) == (True, True)
    alone = sweep_from(ranks=(1,), batches=(8,), batch_is="global").with_devices(("cpu",)).cells()[0]
    assert (alone.rank_batch_size, alone.heading.endswith("batch 8")) == (8, True)


def test_a_global_batch_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(SpecError, match="batch size 6: cannot be divided equally by 4 ranks; choose a multiple, or"):
        sweep_from(ranks=(1, 2, 4), batches=(6, 8), batch_is="global")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"passes": ("forward",)}, "accumulate 2: forward has one batch; choose --pass train-step"),
        ({"cuda_graphs": ("step",)}, "accumulate 2: a CUDA graph holds one batch; choose --cuda-graph off"),
        (
            {"batches": (3,)},
            "accumulate 2: does not divide the 3 sequences of a rank's batch equally; choose a divisor",
        ),
        (
            {"batches": (4,), "ranks": (4,), "batch_is": "global"},
            "accumulate 2: does not divide the 1 sequence of a rank's batch equally; choose a divisor",
        ),
        (
            {"compiles": ("default", "max-autotune"), "devices": ("cuda:0",)},
            "accumulate 2: compile max-autotune replays CUDA graphs that overwrite the gradients of earlier "
            "micro-batches; choose --compile default or --accumulate 1",
        ),
        (
            {"reports": ("memory",)},
            "reports memory: are of one batch a step, not of 2; give --reports none, or --accumulate 1",
        ),
    ],
)
def test_micro_batches_that_cannot_be_are_refused(words: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        sweep_from(**{"accumulations": (1, 2), "passes": ("train-step",), "devices": ("cpu",)} | words)
    assert str(refused.value) == said


@pytest.mark.parametrize("compiled", ["reduce-overhead", "max-autotune"])
def test_micro_batches_are_compiled_where_no_cuda_graph_is_captured(compiled: str) -> None:
    words = {"accumulations": (2,), "batches": (2,), "passes": ("train-step",)}
    (on_cpu,) = sweep_from(**words, compiles=(compiled,), devices=("cpu",)).cells()
    assert (on_cpu.compile, on_cpu.accumulate) == (compiled, 2)
    (without_graphs,) = sweep_from(**words, compiles=("default",), devices=("cuda:0",)).cells()
    assert without_graphs.accumulate == 2


@pytest.mark.parametrize(
    ("parallel", "advice"),
    [
        ("my_repo.adapters.get_ddp", "; write my_repo.adapters:get_ddp"),
        ("my_repo/adapters.py:get_ddp", "that is a path; write my_repo.adapters:get_ddp"),
        ("get_ddp", "or package.module:get_ddp"),
    ],
)
def test_a_container_that_is_named_otherwise_is_told_how(parallel: str, advice: str) -> None:
    with pytest.raises(SpecError) as refused:
        sweep_from(ranks=(2,), parallels=(parallel,))
    assert str(refused.value).endswith(advice)
