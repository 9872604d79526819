"""Intervals of the mean of autocorrelated times: coverage and parts."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.steady_state import LEAST_COVERAGE, MOST_COVERAGE, autoregression, coverage, noise_of
from cs336_tui.stats.intervals import (
    BOOTSTRAP,
    FROM_EFFECTIVE_N,
    MeanInterval,
    mean_interval,
    median_interval,
    sample_of,
    t_interval,
    t_quantile,
)
from tests.loading import python


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.5, 0.7])
@pytest.mark.parametrize(("steps", "series"), [(30, 1500), (100, 1500), (1000, 300)])
def test_the_t_interval_holds_the_mean_as_often_as_it_says(steps: int, series: int, correlation: float) -> None:
    assert LEAST_COVERAGE <= coverage(correlation, steps, series, method=t_interval) <= MOST_COVERAGE


@pytest.mark.parametrize("kind", ["lognormal", "spikes of 5 deviations"])
def test_the_t_interval_holds_it_where_times_are_skewed_or_spike(kind: str) -> None:
    assert LEAST_COVERAGE <= coverage(0.7, 100, 1000, kind=kind, method=t_interval) <= MOST_COVERAGE


@pytest.mark.parametrize(
    ("steps", "kind", "correlation"), [(30, "lognormal", 0.0), (100, "normal", 0.7), (100, "lognormal", 0.7)]
)
def test_the_bootstrap_holds_the_mean_as_often_as_it_says(
    steps: int, kind: str, correlation: float, capsys: pytest.CaptureFixture[str]
) -> None:
    held = coverage(correlation, steps, 250, kind=kind)
    with capsys.disabled():
        print(f" {steps} steps, {kind}, r {correlation}: {held:.3f}", end="")
    assert LEAST_COVERAGE <= held <= MOST_COVERAGE


@pytest.mark.parametrize("correlation", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["normal", "spikes of 25 deviations"])
@pytest.mark.parametrize("steps", [20, 100])
def test_the_interval_of_the_median_holds_it_beside_spikes(steps: int, kind: str, correlation: float) -> None:
    rng, held = np.random.default_rng([steps, round(correlation * 10)]), 0
    for noise in noise_of(kind, rng, (400, steps), correlation):
        found = median_interval((1 + 0.01 * (noise + 0.02 * 25 * kind.startswith("spikes"))).tolist())
        held += found.low <= 1.0003 and found.high >= 1
    assert held / 400 >= 0.92


def test_the_interval_of_the_median_is_between_times_of_which_enough_lie_outside() -> None:
    found = median_interval([float(time) for time in (3, 9, 1, 8, 2, 12, 4, 13, 5, 10, 6, 11, 7)])
    assert (found.low, found.median, found.high) == (3, 7, 11), "by the table of the sign test for 13 values"
    assert median_interval([1.0] * 9) is median_interval([1.0] * 10 + [math.inf]) is None
    assert median_interval([1.0] * 10) == (1, 1, 1)


def test_skewed_times_reach_further_up_and_the_same_times_the_same_way() -> None:
    times = (0.05 * np.exp(np.random.default_rng(3).standard_normal(40))).tolist()
    found, again = mean_interval(times), mean_interval(times)
    assert found == again
    in_ms = mean_interval([1000 * time for time in times])
    assert (in_ms.low, in_ms.high) == pytest.approx((1000 * found.low, 1000 * found.high))
    assert found.method == BOOTSTRAP
    assert found.high - found.mean > 1.2 * (found.mean - found.low)


def test_a_made_series_is_as_long_as_the_times() -> None:
    """Recorded, as the draws have a fixed seed: one step more in each series narrows the interval by 1 %."""
    found = mean_interval([1.0, 1.2, 0.9, 1.1, 1.0, 1.3, 0.8, 1.1, 1.0, 1.2, 1.4, 0.9])
    assert (found.low, found.high) == pytest.approx((0.9781946433904206, 1.1806388837151394), rel=1e-6)


def test_a_single_spike_does_not_let_the_interval_burst() -> None:
    times = 0.05 * (1 + 0.001 * np.random.default_rng(4).standard_normal(100))
    times[50] *= 2
    found, quick = mean_interval(times.tolist()), t_interval(times.tolist())
    assert found.low < quick.mean < found.high <= quick.mean + 2.001 * (quick.high - quick.mean)


def test_spikes_do_not_hide_how_alike_the_other_times_are() -> None:
    times = 0.05 * (1 + 0.01 * autoregression(np.random.default_rng(5), (1000,), 0.7))
    without = sample_of(times.tolist())
    times[::97] *= 1.3
    assert without.correlation == pytest.approx(0.7, abs=0.07)
    assert sample_of(times.tolist()).correlation == pytest.approx(without.correlation, abs=0.1)


@pytest.mark.parametrize("times", [[1.0] * 9 + [2.0], [1.0] * 50 + [2.0] * 50, list(range(1, 101)), [1.0, 2.0] * 5])
@pytest.mark.filterwarnings("error")
def test_odd_times_have_a_finite_interval_around_their_mean(times: list[float]) -> None:
    found = mean_interval(times)
    assert math.isfinite(found.low)
    assert math.isfinite(found.high)
    assert found.low <= found.mean <= found.high


def test_fewer_than_ten_times_have_none_and_equal_ones_the_t_interval() -> None:
    """An interval of five times with a correlation of 0.6 held the mean 70 times in 100, of ten alike ones 88."""
    assert coverage(0.7, 10, 200) >= 0.88
    assert mean_interval([1.0, 1.2, 0.9, 1.1, 1.0, 1.2, 0.9, 1.1, 1.0]) is None
    found = mean_interval([1.0] * 10)
    assert (found.low, found.high, found.effective_n, found.method) == (1.0, 1.0, 10, FROM_EFFECTIVE_N)


def test_the_quick_ones_need_no_numpy() -> None:
    code = (
        "import sys; from cs336_tui.stats.intervals import sample_of, t_interval; t = [1.0, 1.2, 0.9, 1.1] * 5;"
        "t_interval(t); sample_of(t); from cs336_tui.stats.ratio import paired_ratio, ratio_of; ratio_of([t], [t]);"
        "paired_ratio([list(zip(t, t))]); sys.exit('numpy' in sys.modules)"
    )
    python(code)


def width_of_independent(times: list[float]) -> float:
    """Width of Student's 95 % interval, for which all times count."""
    return 2 * t_quantile(0.975, len(times) - 1) * float(np.std(times, ddof=1)) / math.sqrt(len(times))


@pytest.mark.parametrize("method", [mean_interval, t_interval])
def test_it_is_about_students_when_times_are_independent(
    method: Callable[[Sequence[float]], MeanInterval | None],
) -> None:
    times = (0.05 * (1 + 0.02 * np.random.default_rng(0).standard_normal(2000))).tolist()
    found = method(times)
    assert found.mean == pytest.approx(np.mean(times))
    assert found.high - found.low == pytest.approx(width_of_independent(times), rel=0.1)
    assert found.effective_n == pytest.approx(2000, rel=0.2)


@pytest.mark.parametrize("method", [mean_interval, t_interval])
def test_alike_neighbours_count_for_fewer(method: Callable[[Sequence[float]], MeanInterval | None]) -> None:
    times = (0.05 * (1 + 0.02 * autoregression(np.random.default_rng(1), (2000,), 0.5))).tolist()
    found = method(times)
    assert found.correlation == pytest.approx(0.5, abs=0.06)
    assert found.effective_n == sample_of(times).effective_n == pytest.approx(2000 / 3, rel=0.2)
    assert found.high - found.low > 1.5 * width_of_independent(times)


def test_alternating_times_are_taken_for_independent_with_students_interval() -> None:
    few = t_interval([1.0, 4.0, 2.0, 5.0, 3.0])  # neighbours are unlike
    half = 2.7764451 * math.sqrt(2.5 / 5)  # t(0.975, 4) from the table to 7 digits
    assert (few.mean, few.n) == (3.0, 5)
    assert (few.low, few.high) == pytest.approx((3 - half, 3 + half), rel=1e-7)
    times = [0.049, 0.051] * 50
    found, quick = mean_interval(times), t_interval(times)
    assert quick.high - quick.low == pytest.approx(width_of_independent(times))
    assert quick.effective_n == 100
    assert found.high - found.low == pytest.approx(width_of_independent(times), rel=0.1)


def test_a_higher_level_is_wider() -> None:
    times = np.random.default_rng(2).uniform(1, 2, 30).tolist()
    narrow, wide = mean_interval(times, 0.9), mean_interval(times, 0.99)
    assert wide.low < narrow.low < narrow.mean < narrow.high < wide.high
    assert narrow.half_share == pytest.approx((narrow.high - narrow.low) / 2 / narrow.mean)


@pytest.mark.parametrize("times", [(), (1.0,), (1.0, math.inf), (1.0, 2.0), (1.0, 2.0, math.nan)])
def test_too_few_times_have_none(times: tuple[float, ...]) -> None:
    assert mean_interval(times) is None
    assert (t_interval(times) is None) == (times != (1.0, 2.0))
    if len(times) < 2:
        with pytest.raises(ValueError, match="at least 2"):
            sample_of(times)


@pytest.mark.parametrize("level", [1.5, 95, 0.0])
def test_a_level_outside_of_0_to_1_is_refused(level: float) -> None:
    for method in (mean_interval, t_interval):
        with pytest.raises(ValueError, match=f"confidence level {level}"):
            method([1.0, 2.0, 3.0, 4.0], level)


@pytest.mark.parametrize(
    ("p", "df", "expected", "within"),
    [
        # Closed forms for 1 and 2 degrees of freedom; NIST/SEMATECH e-Handbook 1.3.6.7.2, there to three decimals.
        *((p, 1, math.tan(math.pi * (p - 0.5)), 1e-7) for p in (0.975, 0.995)),
        *((p, 2, (2 * p - 1) * math.sqrt(2 / (1 - (2 * p - 1) ** 2)), 1e-7) for p in (0.90, 0.975, 0.9995)),
        (0.975, 3, 3.182, 6e-4), (0.975, 5, 2.571, 6e-4), (0.975, 9, 2.262, 6e-4), (0.975, 10, 2.228, 6e-4),
        (0.975, 30, 2.042, 6e-4), (0.975, 100, 1.984, 6e-4), (0.95, 9, 1.833, 6e-4), (0.99, 4, 3.747, 6e-4),
        (0.995, 20, 2.845, 6e-4), (0.999, 7, 4.785, 6e-4),
    ],
)  # fmt: skip
def test_t_quantiles_are_those_of_closed_forms_and_of_the_printed_table(
    p: float, df: float, expected: float, within: float
) -> None:
    assert t_quantile(p, df) == pytest.approx(expected, rel=0, abs=within)


def test_t_quantiles_join_where_the_expansion_takes_over() -> None:
    below, above = t_quantile(0.975, 9_999.999), t_quantile(0.975, 10_000)
    assert below == pytest.approx(above, rel=1e-9)
    assert t_quantile(0.975, 1e15) == pytest.approx(1.959963984540054, rel=1e-12)


@given(st.floats(0.001, 0.999), st.floats(1, 500))
def test_t_quantiles_are_symmetric_and_wider_than_the_normal(p: float, df: float) -> None:
    assert t_quantile(p, df) == pytest.approx(-t_quantile(1 - p, df), rel=1e-6, abs=1e-9)
    if p > 0.5:
        assert t_quantile(p, df) >= t_quantile(p, 2 * df) > 0


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (0.5, 0), (math.nan, 3)])
def test_a_quantile_that_does_not_exist_is_refused(p: float, df: float) -> None:
    with pytest.raises(ValueError, match="expected"):
        t_quantile(p, df)
