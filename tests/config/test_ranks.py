"""Choices of several ranks and of collectives: which cells they make, what is refused, which cells count as alike."""

import shlex
from itertools import pairwise

import msgspec
import pytest

from cs336_tui.cli.bench import comm
from cs336_tui.config.choices import command_of, sweep_from, sweep_of
from cs336_tui.config.order import in_order, needs_at_least, rough_peak_bytes
from cs336_tui.config.presets import Preset, from_toml, preset, to_toml
from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.values import bytes_of
from cs336_tui.events.environment import DeviceInfo, fields_of_preset, without_impossible
from cs336_tui.events.prediction import prediction_key
from tests.samples import ENVIRONMENT


def collectives(**choices: object) -> Sweep:
    return sweep_from(**{"workload": "collective", "devices": ("cpu",)} | choices)


def cells(**choices: object) -> tuple[CellSpec, ...]:
    return collectives(**choices).cells()


def test_a_sweep_is_a_product_and_keeps_its_sizes_names():
    found = cells(sizes=("1GB", "1MB"), ranks=(2, 4), collectives=("all-reduce", "broadcast"), backends=("gloo",))
    assert len(found) == 8
    assert {spec.size for spec in found} == {"1GB", "1MB"}
    assert [spec.size for spec in in_order(found)] == ["1MB"] * 4 + ["1GB"] * 4
    assert found[0].title == "all-reduce · 1GB · fp32 · cpu · 2 ranks · gloo"
    assert all(spec.tokens_per_step == 0 for spec in found)


def test_equal_sizes_run_in_the_order_of_their_ranks_whatever_their_rounding():
    found = in_order(cells(sizes=("10MB", "1MB"), ranks=(2, 4, 6)))
    assert [(spec.size, spec.ranks) for spec in found] == [(size, n) for size in ("1MB", "10MB") for n in (2, 4, 6)]


def test_its_command_and_its_preset_make_it_again():
    sweep = collectives(sizes=("1MB", "10MiB"), ranks=(2, 6), collectives=("all-to-all",), precisions=("bf16",))
    words = shlex.split(command_of(sweep))
    assert words[:2] == ["cs336-tui", "comm"]
    given = comm.make_context("comm", words[2:]).params
    choices = {name: given[name] for name in ("sizes", "ranks", "collectives", "precisions", "devices")}
    assert collectives(**choices).cells() == sweep.cells()
    assert from_toml("mine", to_toml(Preset("mine", "", sweep))).sweep.cells() == sweep.cells()
    assert sweep_of(sweep.cells()).cells() == sweep.cells()
    keys = {line.split(" = ")[0] for line in to_toml(Preset("mine", "", sweep)).splitlines() if " = " in line}
    assert {"op", "size", "ranks", "precision", "workload"} <= keys
    assert not keys & {"context", "batch", "pass", "arch", "vocab_size"}


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"sizes": ("10",)}, "size 10: expected a size such as"),
        ({"sizes": ("4B",), "ranks": (4,)}, "size 4B: less than one fp32 number for each of 4 ranks"),
        ({"sizes": ("2TB",)}, "size 2TB: expected 4B to 1TB"),
        ({"ranks": (0,)}, "ranks 0: expected a whole number, at least 1"),
        ({"ranks": (1,)}, "ranks 1: a collective is of several"),
        ({"precisions": ("fp16-mixed",)}, "precision fp16-mixed: a message is fp32 or bf16"),
        ({"contexts": (128,)}, "context 128: a collective has none"),
        ({"passes": ("backward",)}, "pass backward: a collective has none"),
        ({"parallels": ("ddp",)}, "parallel ddp: workload collective has none"),
        ({"collectives": ("gather",)}, "collective gather: expected one of all-reduce"),
        ({"reports": ("memory",)}, "reports memory: none is made of a collective"),
        ({"backends": ("nccl",)}, "backend nccl: runs on cuda, not on cpu"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(choices: dict[str, object], said: str):
    with pytest.raises(SpecError) as caught:
        collectives(**choices)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("size", ["8GB", "9GB", "12GB", "64GiB", "1TB"])
def test_a_message_is_as_large_as_its_size_says(size: str):
    (spec,) = cells(sizes=(size,))
    assert abs(spec.message_bytes - bytes_of(size)) < 8
    assert msgspec.json.decode(msgspec.json.encode(spec), type=CellSpec) == spec


def test_a_larger_message_needs_more_even_past_what_one_dimension_counts():
    found = cells(sizes=("10MB", "10GB", "18GB", "26GB"))
    for small, large in pairwise(found):
        assert needs_at_least(large, small)
        assert not needs_at_least(small, large)
    assert len({prediction_key(spec) for spec in found}) == 4
    (gathered,) = cells(collectives=("all-gather",), ranks=(4,), sizes=("8MB",))
    assert rough_peak_bytes(gathered) == 4 * (8_000_000 + 2_000_000)


def test_ranks_for_which_a_machine_has_no_memory_are_refused_before_they_start():
    (few,), (many,) = cells(ranks=(2,)), cells(ranks=(1000,))
    machine = msgspec.structs.replace(ENVIRONMENT, memory_bytes=16_000_000_000)
    assert machine.refusal(few) is None
    assert "room for 80 here" in str(machine.refusal(many))


def test_backends_of_one_rank_are_one_cell():
    assert len(sweep_from(ranks=(1, 2), backends=("auto", "gloo"), passes=("forward",), devices=("cpu",)).cells()) == 3


def test_numbers_of_ranks_that_a_preset_asks_for_and_a_machine_lacks_are_left_out():
    gpus = tuple(DeviceInfo(name=f"cuda:{number}", label="GPU", precisions=("fp32",)) for number in range(2))
    machine = msgspec.structs.replace(ENVIRONMENT, devices=gpus, backends=("nccl",))
    sweep = preset("2026/all_reduce").sweep.with_devices(("cuda:0",))
    found, said = without_impossible(sweep, machine, fields_of_preset("2026/all_reduce", {}))
    assert (found.ranks, len(said)) == ((2,), 2)
    assert fields_of_preset("2026/all_reduce", {"ranks": (4,)}).count("ranks") == 0


def test_each_backend_runs_on_the_devices_that_it_can() -> None:
    sweep = sweep_from(ranks=(2,), backends=("gloo", "nccl"), devices=("cpu", "cuda:0"), passes=("forward",))
    assert len(sweep) == 3
    assert [(cell.device, cell.backend) for cell in sweep.cells()] == [
        ("cpu", "gloo"), ("cuda:0", "gloo"), ("cuda:0", "nccl")
    ]  # fmt: skip
    both = msgspec.structs.replace(sweep, ranks=(1, 2))
    assert len(both) == len(both.cells()) == 5


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


SEVERAL: dict[str, object] = {"ranks": (1, 2)}
MICRO: dict[str, object] = {"accumulations": (1, 2), "passes": ("train-step",)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (SEVERAL | {"sync": "pipelined"}, "sync pipelined: is of one rank; leave it out, or choose --ranks 1"),
        (
            SEVERAL | {"parallels": ("zero1",), "optimizers": ("a:B",), "passes": ("train-step",)},
            "parallel zero1: shards torch's AdamW by ZeroRedundancyOptimizer; with an optimizer of your own choose ddp",
        ),
        (
            {"workload": "collective", "timers": ("do_bench",), "ranks": (2,)},
            "timer do_bench: the ranks of a collective begin each step together; leave it out",
        ),
        (
            SEVERAL | {"reports": ("memory", "precision")},
            "reports precision: of one rank, not of 2; leave it out of --reports, or give --ranks 1",
        ),
        (
            {"ranks": (1, 2, 4), "batches": (6, 8), "batch_is": "global"},
            "batch size 6: cannot be divided equally by 4 ranks; choose a multiple, or --batch-is per-rank",
        ),
        ({"collectives": ("broadcast",)}, "collective broadcast: workload language-model has none; leave it out"),
        (MICRO | {"passes": ("forward",)}, "accumulate 2: forward has one batch; choose --pass train-step"),
        (MICRO | {"cuda_graphs": ("step",)}, "accumulate 2: a CUDA graph holds one batch; choose --cuda-graph off"),
        (
            MICRO | {"batches": (3,)},
            "accumulate 2: does not divide the 3 sequences of a rank's batch equally; choose a divisor",
        ),
        (
            MICRO | {"batches": (4,), "ranks": (4,), "batch_is": "global"},
            "accumulate 2: does not divide the 1 sequence of a rank's batch equally; choose a divisor",
        ),
        (
            MICRO | {"compiles": ("default", "max-autotune"), "devices": ("cuda:0",)},
            "accumulate 2: compile max-autotune replays CUDA graphs that overwrite the gradients of earlier "
            "micro-batches; choose --compile default or --accumulate 1",
        ),
        (
            MICRO | {"reports": ("memory",)},
            "reports memory: are of one batch a step, not of 2; give --reports none, or --accumulate 1",
        ),
    ],
)
def test_what_several_ranks_or_micro_batches_cannot_do_is_refused(words: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        sweep_from(**{"devices": ("cpu",)} | words)
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
        ("get_ddp", "or package.module:get_ddp; did you mean ddp?"),
    ],
)
def test_a_container_that_is_named_otherwise_is_told_how(parallel: str, advice: str) -> None:
    with pytest.raises(SpecError) as refused:
        sweep_from(ranks=(2,), parallels=(parallel,))
    assert str(refused.value).endswith(advice)
