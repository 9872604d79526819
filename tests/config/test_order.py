"""Order of cells: useful results come first, and cells that cannot fit are left out."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.config.order import in_order, in_rounds, needs_at_least, relative_work, rough_peak_bytes, usual_order
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import Sweep
from tests.strategies import run_specs
from tests.watching import small_spec


@given(specs=st.lists(run_specs(), max_size=6))
def test_the_same_cells_run_with_the_least_work_first(specs: list[CellSpec]) -> None:
    ordered = in_order(specs)
    assert sorted(map(hash, map(str, ordered))) == sorted(map(hash, map(str, specs)))
    work = list(map(relative_work, ordered))
    assert work == sorted(work)
    assert in_order(specs, "as-given") == tuple(specs)


def test_in_lanes_the_widest_and_then_the_longest_run_first() -> None:
    few, many = small_spec(measure_steps=5), small_spec(measure_steps=50)
    large = small_spec(context_length=256, measure_steps=50)
    wide = small_spec(ranks=2, parallel="ddp", measure_steps=1, pass_="train-step")
    assert in_order([few, large, wide, many], usual_order("auto")) == (wide, large, many, few)
    assert in_order([large, few], usual_order(1)) == (few, large)


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
def test_a_cell_of_the_same_kind_with_nothing_smaller_needs_at_least_as_much(spec: CellSpec, field: str) -> None:
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


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint": 1}, {"checkpoint": 2}, {"attention": "sdpa"}, {"optimizer": "adamw-foreach"},
        {"loss": "mine:loss"}, {"compile": "default"}, {"cuda_graph": "step"}, {"model": "mine:Model"},
    ],
)  # fmt: skip
def test_of_cells_that_run_otherwise_nothing_is_known(changes: dict[str, str]) -> None:
    """A larger batch may fit where activations are recomputed, and the reverse is not known either."""
    spec = small_spec(pass_="train-step", num_layers=2)
    other = small_spec(**({"pass_": "train-step", "num_layers": 2, "batch_size": 9} | changes))
    assert not needs_at_least(other, spec)
    assert not needs_at_least(msgspec.structs.replace(spec, batch_size=99), other)
    assert needs_at_least(msgspec.structs.replace(other, batch_size=10), other)


def test_recomputing_is_a_forward_more_of_work_where_there_is_a_backward() -> None:
    for pass_, forwards in (("forward", 1), ("forward+backward", 3)):
        plain, again = (small_spec(num_layers=2, pass_=pass_, checkpoint=every) for every in (0, 1))
        assert relative_work(again) / relative_work(plain) == (4 / 3 if forwards == 3 else 1)
    # Of 8 blocks halves compute 16 again: each once for its own backward, and 8 on the way.
    plain, nested = (
        small_spec(num_layers=8, pass_="forward+backward", checkpoint=every, nesting="halves") for every in (0, 1)
    )
    assert relative_work(nested) / relative_work(plain) == 5 / 3


def test_attention_alone_is_work_by_its_scores() -> None:
    """2 m n k for scores and for their product with the values: nothing of a model around them."""
    spec = small_spec(workload="attention", batch_size=3, context_length=16, d_model=8, num_layers=7, vocab_size=999)
    assert relative_work(spec) == 2 * 3 * 16 * 16 * 8
    assert relative_work(msgspec.structs.replace(spec, pass_="backward")) == 3 * relative_work(spec)


def test_a_rough_peak_is_near_the_predicted_one() -> None:
    """The rough peak is within a factor of two, enough to know which cells surely fit."""
    from cs336_tui.worker.estimate.predict import predict

    model = {"d_model": 128, "d_ff": 384, "num_layers": 6, "num_heads": 4, "context_length": 128, "batch_size": 4}
    cells = [small_spec(**model, pass_="forward+backward", checkpoint=every) for every in (0, 1, 2, 3, 6)]
    cells += [
        small_spec(workload="attention", pass_=pass_, batch_size=8, context_length=context, d_model=64, num_heads=1)
        for pass_ in ("forward", "forward+backward")
        for context in (256, 2048)
    ]
    for spec in cells:
        assert rough_peak_bytes(spec) == pytest.approx(predict(spec).peak_bytes, rel=0.5), spec.title
    nested = small_spec(**(model | {"num_layers": 16}), pass_="forward+backward", checkpoint=1, nesting="halves")
    assert rough_peak_bytes(nested) == pytest.approx(predict(nested).peak_bytes, rel=0.5)
    assert rough_peak_bytes(nested) < rough_peak_bytes(msgspec.structs.replace(nested, nesting="off"))
    rough = [rough_peak_bytes(spec) for spec in cells[1:5]]
    assert rough == sorted(rough)


def test_swiglu_has_one_matrix_more_than_gelu() -> None:
    swiglu, gelu = (rough_peak_bytes(small_spec(arch=arch)) for arch in ("swiglu-rope", "gelu-learned"))
    assert swiglu - gelu == 4 * 32 * 64, "4 bytes a weight of d_model by d_ff"


def test_a_larger_vocabulary_costs_embedding_head_and_logits_with_their_gradient() -> None:
    small, large = (small_spec(pass_="forward", vocab_size=vocab_size) for vocab_size in (64, 164))
    each = 2 * small.d_model + 2 * small.tokens_per_step
    assert rough_peak_bytes(large) - rough_peak_bytes(small) == 100 * each * 4
