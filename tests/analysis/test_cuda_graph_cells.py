"""Launch time of a cell, from its replay as one CUDA graph."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cs336_tui.analysis.pivot import pivot
from cs336_tui.analysis.verdicts import judge
from cs336_tui.export.pivot import pivot_table
from tests.analysis.judging import a_cell
from tests.session.made import cell, results_of

STEPS = [0.0100, 0.0101, 0.0099, 0.0100, 0.0100, 0.0101, 0.0099, 0.0100]


def test_a_pivot_by_cuda_graph_shows_what_launching_cost() -> None:
    results = results_of(
        cell([0.020, 0.021], device="cuda:0", pass_="train-step"),
        cell([0.010, 0.0105], device="cuda:0", pass_="train-step", cuda_graph="step"),
        cell([0.009, 0.0091], device="cuda:0", pass_="inference"),
        cell([0.003, 0.0031], device="cuda:0", pass_="inference", cuda_graph="step"),
    )
    made = pivot(results, ["pass"], ["cuda-graph"], "speedup", {"cuda-graph": "off"})
    assert made.column_keys == (("off",), ("step",))
    table = pivot_table(made, results)
    assert [row[:2] for row in table.rows] == [("inference", "1 (baseline)"), ("train-step", "1 (baseline)")]
    assert [re.match(r"\d\.\d", row[2])[0] for row in table.rows] == ["2.9", "2.0"]  # type: ignore[index]


def launch_bound(host_share: float, **spec: Any) -> tuple[str, str]:
    """Evidence and advice of the launch-bound verdict."""
    judgement = judge(a_cell(STEPS, spec={"device": "cuda:0", **spec}, host_share=host_share), idle=0.6)
    assert judgement is not None
    (check,) = (check for check in judgement.checks if check.name == "launch-bound")
    return check.evidence, check.advice


def test_a_launch_bound_step_is_advised_a_cuda_graph() -> None:
    evidence, advice = launch_bound(0.99)
    assert "a CUDA graph of the step" in advice
    assert "profiled, the GPU was idle for 60" in evidence


@pytest.mark.parametrize("host_share", [0.02, 0.99])
def test_a_graph_is_not_told_what_was_profiled_without_it(host_share: float) -> None:
    evidence, advice = launch_bound(host_share, cuda_graph="step", pass_="train-step")
    assert "the host launches one CUDA graph" in evidence
    assert "idle" not in evidence
    assert "CUDA graph" not in advice
