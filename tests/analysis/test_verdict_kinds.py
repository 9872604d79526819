"""Verdicts on series of known truth, a part of what `python -m benchmarks.verdicts` judges."""

from __future__ import annotations

import pytest

from benchmarks.verdicts import (
    FLAT,
    KINDS,
    LEAST_ACCEPTABLE,
    MOST_FALSE,
    MOST_HIDDEN,
    is_acceptable,
    is_hidden,
    outcomes,
    said,
)
from tests.analysis.judging import a_cell, judged

SEEDS = range(500, 508)


@pytest.mark.parametrize("steps", [30, 100, 1000])
def test_from_30_steps_on_verdicts_are_right(steps: int) -> None:
    found = [(name, each) for name in KINDS for each in outcomes(name, steps, SEEDS if steps < 1000 else SEEDS[:3])]
    right = [is_acceptable(name, case, verdicts) for name, (case, verdicts) in found]
    assert sum(right) >= LEAST_ACCEPTABLE * len(right)


def test_flat_series_raise_no_alarm() -> None:
    found = [verdicts for name in FLAT for n in (10, 30, 100) for _, verdicts in outcomes(name, n, range(25))]
    alarms = [verdicts for verdicts in found if verdicts - {"steady", "too-few-steps"}]
    assert len(alarms) <= MOST_FALSE * len(found)


def test_ten_steps_are_not_called_steady_where_they_change_by_5_percent() -> None:
    large = [each for name in KINDS for each in outcomes(name, 10, range(30)) if each[0].change >= 0.05]
    assert len(large) > 200
    assert sum(is_hidden(*each) for each in large) <= MOST_HIDDEN * len(large)


def test_a_shift_within_ten_steps_is_drift_or_too_few() -> None:
    """Five steps near 50 ms, five near 53."""
    series = [0.0500, 0.0502, 0.0499, 0.0501, 0.0498, 0.0530, 0.0532, 0.0529, 0.0531, 0.0528]
    assert said(series) == {"drifting"}
    noisy = [0.0500, 0.0508, 0.0489, 0.0505, 0.0491, 0.0530, 0.0539, 0.0522, 0.0534, 0.0519]
    assert "steady" not in said(noisy)


def test_what_ten_steps_cannot_tell_is_too_few_steps_and_says_what_they_may_hide() -> None:
    found = judged(a_cell([0.050, 0.052, 0.049, 0.0515, 0.0505, 0.0485, 0.051, 0.0525, 0.0495, 0.0502]))
    assert found.names == ("too-few-steps",)
    assert "noise of 2.4 % in 10 measured steps may hide a change of 8.2 %" in found.sentence
    assert "--steps 30" in found.sentence
