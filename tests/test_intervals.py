"""Intervals of the mean of autocorrelated times: how often they hold it, and what they are made of."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.steady_state import LEAST_COVERAGE, MOST_COVERAGE, autoregression, coverage
from cs336_tui.intervals import mean_interval
from cs336_tui.ratio import interval


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.5, 0.7])
@pytest.mark.parametrize(("steps", "series"), [(30, 1500), (100, 1500), (1000, 1000)])
def test_it_holds_the_mean_as_often_as_it_says(
    steps: int, series: int, correlation: float, capsys: pytest.CaptureFixture[str]
) -> None:
    held = coverage(correlation, steps, series)
    with capsys.disabled():
        print(f" {steps} steps, r {correlation}: {held:.3f}", end="")
    assert LEAST_COVERAGE <= held <= MOST_COVERAGE


def test_ten_times_hold_it_less_often_when_they_are_alike() -> None:
    assert coverage(0.7, 10, 1000) >= 0.88


def test_it_is_about_students_when_times_are_independent() -> None:
    times = 0.05 * (1 + 0.02 * np.random.default_rng(0).standard_normal(2000))
    ours, students = mean_interval(times), interval(times)
    assert ours is not None
    assert students is not None
    assert ours.mean == pytest.approx(students.mean)
    assert ours.high - ours.low == pytest.approx(students.high - students.low, rel=0.1)
    assert ours.effective_n == pytest.approx(2000, rel=0.2)


def test_alike_neighbours_count_for_fewer() -> None:
    times = 0.05 * (1 + 0.02 * autoregression(np.random.default_rng(1), (2000,), 0.5))
    ours, students = mean_interval(times), interval(times)
    assert ours is not None
    assert students is not None
    assert ours.correlation == pytest.approx(0.5, abs=0.06)
    assert ours.effective_n == pytest.approx(2000 / 3, rel=0.2)
    assert ours.high - ours.low > 1.5 * (students.high - students.low)


def test_alternating_times_are_never_narrower_than_independent_ones() -> None:
    times = np.tile([0.049, 0.051], 50)
    ours, students = mean_interval(times), interval(times)
    assert ours is not None
    assert students is not None
    assert ours.high - ours.low >= students.high - students.low


def test_a_higher_level_is_wider() -> None:
    times = np.random.default_rng(2).uniform(1, 2, 30)
    narrow, wide = mean_interval(times, 0.9), mean_interval(times, 0.99)
    assert narrow is not None
    assert wide is not None
    assert wide.low < narrow.low < narrow.mean < narrow.high < wide.high
    assert narrow.half_share == pytest.approx((narrow.high - narrow.mean) / narrow.mean)


def test_equal_times_have_an_interval_of_no_width() -> None:
    found = mean_interval([0.25] * 12)
    assert found is not None
    assert (found.low, found.high) == (0.25, 0.25)


@pytest.mark.parametrize("times", [(), (1.0,), (1.0, 2.0), (1.0, 2.0, float("nan"))])
def test_too_few_times_have_none(times: tuple[float, ...]) -> None:
    assert mean_interval(times) is None


def test_a_level_outside_of_0_to_1_is_refused() -> None:
    with pytest.raises(ValueError, match="confidence level"):
        mean_interval([1.0, 2.0, 3.0, 4.0], 1.5)
