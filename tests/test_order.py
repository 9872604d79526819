"""In which order cells run: something useful first, and nothing that cannot fit."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.order import in_order, in_rounds, needs_at_least, relative_work
from cs336_tui.spec import RunSpec
from cs336_tui.sweep import Sweep
from tests.strategies import run_specs
from tests.watching import small_spec


@given(specs=st.lists(run_specs(), max_size=6))
def test_the_same_cells_run_with_the_least_work_first(specs: list[RunSpec]) -> None:
    ordered = in_order(specs)
    assert sorted(map(hash, map(str, ordered))) == sorted(map(hash, map(str, specs)))
    work = list(map(relative_work, ordered))
    assert work == sorted(work)
    assert in_order(specs, "as-given") == tuple(specs)


def test_cells_of_equal_work_stay_neighbours_in_the_order_given() -> None:
    sweep = Sweep(
        sizes=("medium", "small"),
        passes=("forward",),
        precisions=("fp32", "bf16-mixed"),
        devices=("cpu",),
        warmups=(0, 5),
    )
    ordered = in_order(sweep.cells())
    assert [cell.size for cell in ordered] == ["small"] * 4 + ["medium"] * 4
    assert [(cell.precision, cell.warmup_steps) for cell in ordered[:4]] == [
        ("fp32", 0),
        ("fp32", 5),
        ("bf16-mixed", 0),
        ("bf16-mixed", 5),
    ]


def test_repeats_go_round_after_round() -> None:
    a, b = small_spec(), small_spec(batch_size=2)
    assert in_rounds([a, b], 3) == ((a, 1), (b, 1), (a, 2), (b, 2), (a, 3), (b, 3))


@given(spec=run_specs(), field=st.sampled_from(["context_length", "batch_size", "num_layers", "vocab_size"]))
def test_a_cell_of_the_same_kind_with_nothing_smaller_needs_at_least_as_much(spec: RunSpec, field: str) -> None:
    value = getattr(spec, field)
    if value < 2**30:
        larger = msgspec.structs.replace(spec, **{field: value + 1})
        assert needs_at_least(larger, spec)
        assert not needs_at_least(spec, larger)
    assert needs_at_least(spec, spec)


def test_another_kind_of_cell_may_fit() -> None:
    spec = small_spec(pass_="train-step")
    for changes in ({"pass_": "forward"}, {"precision": "bf16-mixed"}, {"arch": "gelu-learned"}):
        assert not needs_at_least(small_spec(**({"pass_": "train-step", "batch_size": 9} | changes)), spec)
    assert not needs_at_least(small_spec(pass_="train-step", batch_size=9, context_length=4), spec)
