"""Choices and their product: every problem is told before anything runs."""

import shlex
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.presets import bundled, preset
from cs336_tui.spec import CUSTOM_SIZE, ModelDims, SpecError
from cs336_tui.sweep import Sweep
from tests.strategies import sweeps

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
]


def test_the_product_is_ordered_and_complete() -> None:
    sweep = msgspec.structs.replace(HERE, sizes=("tiny", "small"), contexts=(64, 128), passes=("forward",))
    cells = [(cell.size, cell.context_length, cell.pass_) for cell in sweep.cells()]
    assert cells == [(size, context, "forward") for size in ("tiny", "small") for context in (64, 128)]
    assert all(cell.device == "cpu" and cell.measure_steps == sweep.steps for cell in sweep.cells())


@given(sweeps())
def test_a_valid_sweep_has_no_problems_and_as_many_cells_as_its_length(sweep: Sweep) -> None:
    assert sweep.problems() == ()
    cells = sweep.cells()
    assert len(cells) == len(sweep) == len(set(cells))


@given(sweeps(), st.lists(st.sampled_from(SPOILERS), min_size=0, max_size=3))
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


def test_every_problem_is_told_at_once() -> None:
    sweep = msgspec.structs.replace(HERE, sizes=("tiny", "huge"), precisions=("fp32", "fp8"))
    assert [problem.field for problem in sweep.problems()] == ["size", "precision"]


@pytest.mark.parametrize("axis", ["sizes", "contexts", "batches", "passes", "precisions", "devices", "warmups"])
def test_an_axis_without_a_choice_is_a_problem(axis: str) -> None:
    (problem,) = msgspec.structs.replace(HERE, **{axis: ()}).problems()
    assert "choose at least one" in str(problem)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"contexts": (128, 128)}, "128,128"), ({"devices": ("cuda", "cuda:0")}, "cuda:0,cuda:0")],
)
def test_a_value_named_twice_is_a_problem(changes: dict[str, Any], named: str) -> None:
    problems = msgspec.structs.replace(HERE, **changes).problems()
    assert any(named in str(problem) and "twice" in str(problem) for problem in problems)


def test_raw_dimensions_replace_the_sizes() -> None:
    dims = ModelDims(d_model=128, d_ff=256, num_layers=2, num_heads=4, vocab_size=500)
    sweep = msgspec.structs.replace(HERE, sizes=("tiny", "small"), dims=dims, passes=("forward",))
    (cell,) = sweep.cells()
    assert (cell.size, cell.dims) == (CUSTOM_SIZE, dims)


def test_auto_is_resolved_before_there_are_cells() -> None:
    assert Sweep().problems()
    assert Sweep().with_devices(("cpu",)).problems() == ()


FLAGS = {
    "--size": "sizes", "--context": "contexts", "--batch": "batches", "--pass": "passes",
    "--precision": "precisions", "--warmup": "warmups", "--device": "devices",
}  # fmt: skip
SINGLE = {"--steps": "steps", "--edition": "edition", "--arch": "arch", "--sync": "sync", "--seed": "seed"} | {
    "--threads": "threads",
    "--vocab-size": "vocab_size",
}


def parsed(command: str) -> Sweep:
    """The sweep that the words of a command line say, by the documented flags alone."""
    program, verb, *words = shlex.split(command)
    assert (program, verb) == ("cs336-tui", "bench")
    flags = dict(zip(words[::2], words[1::2], strict=True))
    fields: dict[str, Any] = {name: flags.pop(flag).split(",") for flag, name in FLAGS.items() if flag in flags}
    fields |= {name: flags.pop(flag) for flag, name in SINGLE.items() if flag in flags}
    raw = {flag[2:].replace("-", "_"): value for flag, value in flags.items()}
    if raw:
        raw["vocab_size"] = fields.pop("vocab_size")
        fields["dims"] = raw
    if "passes" in fields:
        fields["pass"] = fields.pop("passes")
    return msgspec.convert(fields, Sweep, strict=False)


@given(sweeps())
def test_the_command_runs_the_same_cells_again(sweep: Sweep) -> None:
    assert parsed(sweep.command()).cells() == sweep.cells()


@pytest.mark.parametrize("candidate", bundled(), ids=lambda preset: preset.name)
def test_every_preset_can_run(candidate) -> None:
    assert candidate.sweep.with_devices(("cuda:0",)).problems() == ()
    assert preset(candidate.name) is candidate


def test_an_unknown_preset_is_answered_with_the_known_ones() -> None:
    with pytest.raises(SpecError, match="preset slow: expected one of quick, "):
        preset("slow")
