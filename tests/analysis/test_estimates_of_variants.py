"""Estimated times of a cell from measured cells of other variants, with a note that says so."""

from __future__ import annotations

from typing import Any

import pytest

from cs336_tui.analysis.estimates import Estimate, judge_all
from cs336_tui.analysis.targets import target_here
from cs336_tui.config.spec import CellSpec
from tests.analysis.test_estimates import predicted
from tests.made_predictions import made_prediction, on
from tests.samples import ENVIRONMENT, a_spec
from tests.session.made import Cell, cell

HERE = target_here(ENVIRONMENT.devices[1], ENVIRONMENT)
TRAIN = a_spec(pass_="train-step")


def judged(spec: CellSpec, *measured: Cell) -> Estimate:
    """The estimate of a cell in a session of these."""
    return judge_all([made_prediction(spec)], HERE, predicted(*measured), [spec])[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"compile": "default"},
        {"cuda_graph": "step"},
        {"optimizer": "adamw-fused"},
        {"attention": "sdpa"},
        {"checkpoint": 1},
        {"loss": "mine:loss"},
        {"model": "mine:Model"},
    ],
)
def test_only_cells_of_the_same_variant_are_experience_where_there_are_any(changes: dict[str, Any]) -> None:
    other = on(TRAIN, **changes)
    cells = [cell([0.1] * 3, pass_="train-step"), cell([0.9] * 3, pass_="train-step", **changes)]
    larger = judged(on(TRAIN, batch_size=8), *cells)
    assert larger.low_s == larger.high_s == pytest.approx(0.2)
    assert larger.basis.startswith("from 1 measured cell: ")
    assert judged(on(other, batch_size=8), *cells).low_s == pytest.approx(1.8)
    assert not larger.by_others


@pytest.mark.parametrize("changes", [{"compile": "default"}, {"cuda_graph": "step"}])
def test_a_cell_that_runs_another_way_is_not_this_cell(changes: dict[str, Any]) -> None:
    """Both need the same memory, but one of them was not measured."""
    found = judged(on(TRAIN, **changes), cell([0.1] * 3, pass_="train-step"))
    assert not found.measured
    assert found.by_others
    assert found.basis.startswith("from 1 measured cell of other variants (as written): ")


def test_without_one_alike_it_is_said_which_they_were() -> None:
    cells = [
        cell([0.1] * 3, pass_="train-step", compile="default"),
        cell([0.2] * 3, pass_="train-step", attention="sdpa"),
        cell([0.2] * 3, pass_="train-step", attention="sdpa", batch_size=8),
    ]
    found = judged(TRAIN, *cells)
    assert found.basis.startswith("from 3 measured cells of other variants (compiled; sdpa): ")
    many = judged(on(TRAIN, checkpoint=1), *cells, cell([0.1] * 3, pass_="train-step"),
                  cell([0.1] * 3, pass_="train-step", attention="flash"))  # fmt: skip
    assert "of other variants (compiled; sdpa; as written; ...)" in many.basis


def test_the_same_variant_in_another_pass_goes_before_another_variant_in_the_same_pass() -> None:
    cells = [cell([0.1] * 3, pass_="forward", compile="default"), cell([0.9] * 3, pass_="inference")]
    found = judged(a_spec(pass_="inference", compile="default"), *cells)
    assert found.low_s == pytest.approx(0.1)
    assert "from 1 measured cell of other passes: " in found.basis
    neither = judged(a_spec(pass_="backward", attention="sdpa"), *cells)
    assert "of other passes and variants (compiled; as written): " in neither.basis


def test_attention_alone_is_another_variant_than_a_model() -> None:
    alone = a_spec(workload="attention", num_heads=1)
    found = judged(a_spec(), cell([0.1] * 3, workload="attention", num_heads=1))
    assert "of other variants (attention alone, naive)" in found.basis
    assert judged(on(alone, batch_size=8), cell([0.1] * 3, workload="attention", num_heads=1)).low_s == (
        pytest.approx(0.2)
    )
