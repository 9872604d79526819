"""Sweeps: choices, their product into cells, and problems reported before anything runs."""

import math
from typing import Any

import click
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.config.choices import command_of, sweep_of
from cs336_tui.config.counts import share_of, share_words
from cs336_tui.config.flops import parameters
from cs336_tui.config.presets import Preset, from_toml, preset, to_toml
from cs336_tui.config.spec import AXES, CUSTOM_SIZE, CellSpec, ModelDims, SpecError
from cs336_tui.config.sweep import Sweep
from tests.config.test_variants import chosen
from tests.strategies import automatic_sweeps, sweeps

HERE = Sweep(devices=("cpu",))

# Changes to a sweep, each of which makes some sweeps impossible to run.
SPOILERS: list[dict[str, Any]] = [
    {"sizes": ("tiny", "huge"), "dims": None},
    {"contexts": (128, 0)},
    {"batches": (-1,)},
    {"batches": ()},
    {"passes": ("forward", "sideways")},
    {"precisions": ("fp8",)},
    {"devices": ("gpu",)},
    {"devices": ("cuda", "cuda:0")},
    {"warmups": (-1,)},
    {"warmups": (5, 5)},
    {"steps": 0},
    {"edition": "1999"},
    {"arch": "rnn"},
    {"sync": "never"},
    {"seed": -1},
    {"threads": 0},
    {"warmup_auto": True, "warmups": (9,)},
    {"warmup_auto": True, "warmups": (20, 30)},
    {"steps_auto": 0.01, "steps": 19, "sync": "each-step"},
    {"steps_auto": 1.0, "steps": 100, "sync": "each-step"},
    {"steps_auto": 0.01, "steps": 100, "sync": "pipelined"},
]


def test_nesting_means_nothing_without_checkpointing() -> None:
    here = msgspec.structs.replace(HERE, passes=("forward",))
    sweep = msgspec.structs.replace(here, checkpoints=(0, 1), nestings=("off", "halves"))
    found = [(cell.checkpoint, cell.nesting) for cell in sweep.cells()]
    assert found == [(0, "off"), (1, "off"), (1, "halves")]
    nested = msgspec.structs.replace(sweep, nestings=("halves",))
    assert [(cell.checkpoint, cell.nesting) for cell in nested.cells()] == [(0, "off"), (1, "halves")]
    (problem,) = msgspec.structs.replace(nested, checkpoints=(0,)).problems()
    assert str(problem) == (
        "nesting halves: without checkpointing there are no groups to nest; choose --checkpoint 1 or more"
    )


def test_cells_that_differ_only_in_a_choice_without_effect_run_once() -> None:
    several = {"passes": ("forward", "train-step"), "optimizers": ("adamw-fused", "adamw", "adamw-foreach")}
    sweep = msgspec.structs.replace(HERE, **several)
    found = [(cell.pass_, cell.optimizer) for cell in sweep.cells()]
    first, *others = several["optimizers"]
    assert found == [("forward", first), ("train-step", first), *(("train-step", other) for other in others)]
    assert len(sweep) == 4
    assert sweep.once_words == "optimizer changes nothing in some cells, which run once: 4 cells, not 6"
    assert sweep_of(sweep.cells()).cells() == sweep.cells()
    ranks = msgspec.structs.replace(sweep, ranks=(1, 2), parallels=("ddp", "fsdp2"))
    assert ranks.once_words == "optimizer, parallel change nothing in some cells, which run once: 12 cells, not 24"
    trained = msgspec.structs.replace(sweep, passes=("train-step",))
    assert (len(trained), trained.once_words) == (3, "")
    forward = msgspec.structs.replace(sweep, passes=("forward",), optimizers=("adamw-fused",))
    assert [cell.optimizer for cell in forward.cells()] == ["adamw-fused"], "what was asked for stays, if it is alone"
    drops = {"dropouts": (0.1, 0.0), "attention_dropouts": (0.0, 0.2)}
    untrained = msgspec.structs.replace(sweep, passes=("inference", "forward"), optimizers=("adamw",), **drops)
    assert [cell.pass_ for cell in untrained.cells()] == ["inference", *["forward"] * 4], "inference drops nothing"


def test_the_product_is_ordered_and_complete() -> None:
    sweep = msgspec.structs.replace(HERE, sizes=("tiny", "small"), contexts=(64, 128), passes=("forward",))
    cells = [(cell.size, cell.context_length, cell.pass_) for cell in sweep.cells()]
    assert cells == [(size, context, "forward") for size in ("tiny", "small") for context in (64, 128)]
    assert all(cell.device == "cpu" and cell.measure_steps == sweep.steps for cell in sweep.cells())


def _what_counts(cell: CellSpec) -> tuple[object, ...]:
    return tuple(getattr(cell, field) for field, axis in AXES.items() if axis.counts_in(cell))


@given(sweeps())
def test_a_valid_sweep_has_no_problems_and_as_many_cells_as_its_length(sweep: Sweep) -> None:
    assert sweep.problems() == ()
    cells = sweep.cells()
    assert len(cells) == len(sweep) == len({_what_counts(cell) for cell in cells})
    assert bool(sweep.once_words) == (len(cells) < math.prod(map(len, sweep._axes().values())))


@given(automatic_sweeps())
def test_automatic_counts_reach_every_cell(sweep: Sweep) -> None:
    assert sweep.problems() == ()
    for cell in sweep.cells():
        assert (cell.warmup_auto, cell.steps_auto) == (sweep.warmup_auto, sweep.steps_auto)
        assert cell.warmup_steps in sweep.warmups
        assert cell.measure_steps == sweep.steps


@given(sweeps(["language-model"]), st.lists(st.sampled_from(SPOILERS), min_size=0, max_size=3))
def test_problems_are_told_exactly_when_cells_would_fail(sweep: Sweep, spoilers: list[dict[str, Any]]) -> None:
    for changes in spoilers:
        sweep = msgspec.structs.replace(sweep, **changes)
    problems = sweep.problems()
    assert bool(problems) == bool(spoilers)
    if problems:
        with pytest.raises(SpecError) as caught:
            sweep.cells()
        assert str(caught.value) == str(problems[0])
    else:
        assert len(sweep.cells()) == len(sweep)
    messages = [str(problem) for problem in problems]
    assert len(set(messages)) == len(messages)
    assert all("\n" not in message for message in messages)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *(
            ({axis: ()}, "choose at least one")
            for axis in "sizes contexts batches passes precisions devices warmups".split()
        ),
        ({"contexts": (128, 128)}, "context length 128,128: names the same value twice"),
        ({"devices": ("cuda", "cuda:0")}, "device cuda:0,cuda:0: names the same value twice"),
    ],
)
def test_an_axis_has_at_least_one_choice_and_none_twice(changes: dict[str, Any], says: str) -> None:
    (problem,) = msgspec.structs.replace(HERE, **changes).problems()
    assert says in str(problem)


def test_every_problem_is_told_at_once_and_auto_is_one_until_it_is_resolved() -> None:
    sweep = msgspec.structs.replace(HERE, sizes=("tiny", "huge"), precisions=("fp32", "fp8"))
    assert [problem.field for problem in sweep.problems()] == ["size", "precision"]
    assert Sweep().problems()
    assert Sweep().with_devices(("cpu",)).problems() == ()


DIMS = ModelDims(d_model=128, d_ff=256, num_layers=2, num_heads=4, vocab_size=500)
MIXED = msgspec.structs.replace(HERE, sizes=("small", CUSTOM_SIZE), dims=DIMS, vocab_size=500)


def test_raw_dimensions_replace_sizes_or_stand_beside_them() -> None:
    (cell,) = msgspec.structs.replace(HERE, sizes=("tiny", "small"), dims=DIMS, passes=("forward",)).cells()
    assert (cell.size, cell.dims) == (CUSTOM_SIZE, DIMS)
    cells = MIXED.cells()
    assert len(cells) == len(MIXED)
    found = {(each.size, each.d_model, each.vocab_size) for each in cells}
    assert found == {("small", 768, 500), (CUSTOM_SIZE, 128, 500)}
    assert "--size small,custom" in command_of(MIXED)
    assert chosen(command_of(MIXED)).cells() == sweep_of(cells).cells() == cells
    assert from_toml("mine", to_toml(Preset("mine", "", MIXED))).sweep == MIXED


def there(sweep: Sweep) -> Sweep:
    """The same sweep with folders that exist, which the flags insist on."""
    return msgspec.structs.replace(sweep, model_path=("/",) if sweep.model_path else ())


@given((automatic_sweeps() | sweeps()).map(there))
def test_the_flags_make_the_same_cells_of_the_command(sweep: Sweep) -> None:
    found = chosen(command_of(sweep))
    assert found.cells() == sweep.cells()
    assert found.oom_skip == sweep.oom_skip
    assert command_of(found) == command_of(sweep)


def test_automatic_counts_have_usual_ceilings() -> None:
    sweep = chosen("--warmup auto --steps auto")
    assert (sweep.warmup_auto, sweep.warmups, sweep.steps_auto, sweep.steps) == (True, (100,), 0.01, 1000)
    sweep = chosen("--warmup auto:50 --steps auto:200 --interval 2%")
    assert (sweep.warmup_auto, sweep.warmups, sweep.steps_auto, sweep.steps) == (True, (50,), 0.02, 200)
    assert "--warmup auto:50 --steps auto:200 --interval 2%" in command_of(sweep)
    assert command_of(chosen("--warmup AUTO:50 --steps Auto")) == command_of(chosen("--warmup auto:50 --steps auto"))


def test_fixed_counts_are_the_default_and_replace_automatic_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Sweep().warmup_auto
    assert Sweep().steps_auto is None
    automatic = msgspec.structs.replace(preset("quick"), sweep=chosen("--warmup auto --steps auto"))
    monkeypatch.setattr("cs336_tui.config.choices.preset", lambda _name: automatic)
    kept = chosen("--preset automatic --interval 3%")
    assert (kept.warmup_auto, kept.steps_auto) == (True, 0.03)
    sweep = chosen("--preset automatic --warmup 3 --steps 7")
    assert (sweep.warmup_auto, sweep.warmups, sweep.steps_auto, sweep.steps) == (False, (3,), None, 7)


@given(st.floats(1e-9, 1, exclude_max=True))
def test_a_share_reads_as_it_is_written(share: float) -> None:
    assert share_of(share_words(share)) == share


@pytest.mark.parametrize(
    ("text", "share"), [("1%", 0.01), (" 0.3 %", 0.003), (".5", 0.5), ("2.%", 0.02), ("1e-3", 0.001)]
)
def test_a_share_is_a_percentage_or_a_number(text: str, share: float) -> None:
    assert share_of(text) == share


@pytest.mark.parametrize("text", ["", "%", "1", "0", "0%", "100%", "-1%", "1%%", "1_0%", "٣%", "1e-3%", "nan", "."])
def test_what_is_no_share_of_the_mean_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="expected a share of the mean such as 1% or"):
        share_of(text)


@pytest.mark.parametrize(
    ("words", "cell"), [("--size small", ("small", 768, 500)), ("--vocab-size 700", (CUSTOM_SIZE, 32, 700))]
)
def test_a_size_and_a_vocabulary_replace_those_of_a_preset_s_dimensions(
    monkeypatch: pytest.MonkeyPatch, words: str, cell: tuple[str, int, int]
) -> None:
    dims = ModelDims(d_model=32, d_ff=64, num_layers=1, num_heads=2, vocab_size=500)
    mine = msgspec.structs.replace(preset("quick"), sweep=Sweep(dims=dims, vocab_size=500, devices=("cpu",)))
    monkeypatch.setattr("cs336_tui.config.choices.preset", lambda _name: mine)
    found = chosen(f"--preset raw {words}").cells()[0]
    assert (found.size, found.d_model, found.vocab_size) == cell


def test_attention_alone_has_as_many_heads_as_are_asked_for() -> None:
    sweep = chosen("--workload attention --num-heads 16 --head-dim 64,128 --device cpu")
    assert [(cell.size, cell.d_model, cell.num_heads, cell.head_dim) for cell in sweep.cells()[::2]] == [
        ("16xd64", 1024, 16, 64),
        ("16xd128", 2048, 16, 128),
    ]
    assert "--head-dim 64,128 --num-heads 16" in command_of(sweep)
    assert command_of(sweep_of(sweep.cells())) == command_of(sweep)
    assert "16xd64" in sweep.cells()[0].title
    one = chosen("--workload attention --head-dim 64 --device cpu")
    assert (one.heads, one.cells()[0].size) == (1, "d64")
    assert "--num-heads" not in command_of(one)
    assert chosen("--preset 2025/leaderboard --num-heads 4").heads == 4


def test_a_norm_alone_has_widths_and_rows() -> None:
    sweep = chosen("--workload norm --width 64,128 --context 50 --batch 2 --norm rmsnorm,layernorm --device cpu")
    first, *_ = cells = sweep.cells()
    assert len(cells) == 2 * 2 * 2
    assert (first.size, first.d_model, first.tokens_per_step, first.method) == ("d64", 64, 100, "rmsnorm")
    assert {cell.pass_ for cell in cells} == {"forward", "backward"}
    assert "--workload norm --width 64,128" in command_of(sweep)
    assert command_of(sweep_of(cells)) == command_of(sweep)
    assert from_toml("a", to_toml(Preset("a", "", sweep))).sweep == sweep
    assert "width = [" in to_toml(Preset("a", "", sweep))
    assert chosen("--preset 2024/pytorch_layernorm --width 32").head_dims == (32,)
    assert chosen("--workload norm --device cpu").head_dims == (1024,)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "--workload attention --size small,medium",
            "size small,medium: attention alone has no model; give --head-dim",
        ),
        ("--preset 2026/attention --vocab-size 500", "vocab size 500: attention alone has no model; give --head-dim"),
        (
            "--workload attention --d-model 64 --d-ff 128 --num-layers 2 --num-heads 2",
            "d model 64: attention alone has no model",
        ),
        ("--workload norm --size small", "size small: norm alone has no model; give --width"),
        ("--workload norm --num-heads 2", "num heads 2: a norm has no heads; leave it out"),
        ("--workload norm --attention sdpa", "attention sdpa: workload norm has none; leave it out"),
        ("--workload norm --pass train-step", "pass train-step: norm alone has nothing to train"),
        ("--workload norm --no-causal", "causal no: only with --workload attention"),
        ("--workload attention --norm layernorm", "norm layernorm: workload attention has none; leave it out"),
        ("--model my.model:LM --norm layernorm", "norm layernorm: LM has its own; leave it out, or use --model-arg"),
        ("--norm layer", "norm layer: expected one of rmsnorm, layernorm, torch-rmsnorm, or package.module:name"),
        ("--warmup auto,5", "'auto,5': auto stands alone"),
        ("--warmup auto:9", "'auto:9': expected auto, or auto:MAX with the most steps, at least 10"),
        ("--steps auto:1.5", "'auto:1.5': expected auto, or auto:MAX with the most steps, at least 20"),
        ("--warmup autoo", "'autoo': expected a number, auto, auto:MAX or a time such as 10s"),
        ("--warmup 5,,6", "auto:MAX or a time such as 10s; several numbers are separated by commas"),
        ("--warmup 10s,5", "'10s,5': a time stands alone"),
        ("--steps 10s:0", "'10s:0': expected a time such as 10s or 25ms, or 10s:MAX with the most steps"),
        ("--steps ten", "'ten': expected a number, auto, auto:MAX or a time such as 10s"),
        ("--steps auto --interval 1", "'1': expected a share of the mean such as 1% or 0.01"),
        ("--steps auto --interval 0%", "'0%': expected a share of the mean"),
        ("--interval 1%", "--interval is only used with --steps auto"),
        ("--steps auto --sync pipelined", "sync pipelined: a number of steps that is not fixed needs each-step"),
        ("--size small,custom", "size custom: edition 2026 has"),
        ("--size small --d-model 128 --d-ff 256 --num-layers 2 --num-heads 4", "custom among the sizes"),
        ("--workload attention --num-heads 0", "num heads 0: expected a whole number, at least 1"),
    ],
)
def test_choices_that_cannot_be_are_refused_by_naming_what_is_allowed(words: str, says: str) -> None:
    with pytest.raises((SpecError, click.BadParameter)) as caught:
        chosen(words)
    assert says in str(caught.value)


def test_the_leaderboards_are_as_the_handouts_have_them() -> None:
    alone = preset("2025/leaderboard").sweep.with_devices(("cuda:0",)).cells()[0]
    assert (alone.num_heads, alone.head_dim, alone.context_length, alone.batch_size) == (16, 64, 16_384, 1)
    assert (alone.causal, alone.precision, alone.pass_, alone.timer) == (True, "bf16", "forward+backward", "do_bench")
    assert (alone.warmup_for, alone.steps_for) == (1.0, 10.0)
    (whole,) = preset("2026/leaderboard").sweep.with_devices(("cuda:0",)).cells()
    assert (whole.d_model, whole.d_ff, whole.num_layers, whole.num_heads) == (4096, 11_008, 34, 32)
    assert (whole.vocab_size, whole.context_length, whole.batch_size) == (151_936, 32_768, 2)
    assert (whole.pass_, whole.precision, whole.timer, whole.within) == ("train-step", "bf16", "do_bench", 600)
    assert (whole.warmup_for, whole.steps_for) == (10.0, 30.0)
    assert round(parameters(whole).numbers / 1e9, 1) == 8.1


def test_checks_reach_the_cells_and_their_command() -> None:
    cells = Sweep(checks="off", devices=("cpu",)).cells()
    assert {cell.check for cell in cells} == {"off"}
    assert "--check off" in command_of(sweep_of(cells))
