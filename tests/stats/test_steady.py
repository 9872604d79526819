"""Steadiness of step times: classes of series of known truth, the warm-up needed, periods and levels."""

import itertools
import re
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import steady_state as simulated
from benchmarks.series import WARM_UPS, seam, turns
from benchmarks.steady_state import Condition, autoregression, synthetic
from cs336_tui.stats.course import SHORTEST, CourseTerm, _Search, course
from cs336_tui.stats.patterns import _periods, clock_tick, find_levels, find_wave, in_turns, teeth
from cs336_tui.stats.steady import classify, enough_warmup, limit_spikes

SEEDS = range(30)
"""A part of the 200 seeds of `python -m benchmarks.steady_state`."""


def times(steps: int, noise: float = 0.01, seed: int = 0) -> np.ndarray:
    return 0.05 * (1 + noise * np.random.default_rng(seed).standard_normal(steps))


def test_the_right_class_is_found_and_flat_series_raise_no_alarm(capsys: pytest.CaptureFixture[str]) -> None:
    noises = (min(simulated.NOISES), max(simulated.NOISES))
    conditions = itertools.starmap(Condition, itertools.product(simulated.TRUTHS, noises, (0.0, 0.5)))
    results = {condition: simulated.found(condition, SEEDS) for condition in conditions}
    with capsys.disabled():
        print(f"\n\n{simulated.shares(results)}\n\n{simulated.confusion(results)}")
    for truth in simulated.TRUTHS:
        counts = sum((of for condition, of in results.items() if condition.truth == truth), Counter())
        least = 1 - simulated.MOST_FALSE if truth == "flat" else simulated.LEAST_RIGHT
        assert simulated.right_share(truth, counts) >= least, truth


@pytest.mark.parametrize("correlation", [0.0, 0.5])
@pytest.mark.parametrize("steps", [15, 300])
def test_short_and_long_flat_series_raise_few_alarms(steps: int, correlation: float) -> None:
    alarms = sum(
        classify(synthetic(Condition("flat", 0.02, correlation), s, steps)).classes != ("flat",) for s in SEEDS
    )
    assert alarms <= 2


def test_a_skewed_distribution_is_not_bimodal_and_levels_that_alternate_in_stretches_are() -> None:
    rng = np.random.default_rng(0)
    bimodal = sum("bimodal" in classify(1 + 0.05 * rng.gamma(2, 1, 100)).classes for _ in SEEDS)
    assert bimodal <= 4
    in_stretches = times(100) * (1 + 0.08 * ((np.arange(100) // 12) % 2))
    assert classify(in_stretches).classes == ("bimodal",)


def test_cold_steps_are_warmup_and_the_rest_is_steady() -> None:
    series = times(15)
    series[:2] = 0.5, 0.06
    steadiness = classify(series)
    assert steadiness.classes == ("warm-up",)
    assert (steadiness.warmup_steps, steadiness.steady_after) == (2, 2)
    assert steadiness.findings[0].share == pytest.approx(9, rel=0.05)
    assert steadiness.sentence.startswith("The first 2 steps are up to 10 times as slow")


def test_a_throttle_is_found_where_it_is_and_by_how_much() -> None:
    series = times(100)
    series[60:] *= 1.06
    steadiness = classify(series)
    (slowdown,) = steadiness.findings
    assert slowdown.name == "slowdown"
    assert slowdown.after == pytest.approx(60, abs=1)
    assert slowdown.share == pytest.approx(0.06, abs=0.01)
    assert (steadiness.warmup_steps, steadiness.steady_after) == (0, slowdown.after)
    assert slowdown.text.startswith(f"from step {slowdown.after + 1} on steps are ")
    series = times(60)
    series[20:40] *= 1.1
    assert classify(series).sentence == "Steps 21 to 40 are 10 % slower.", "one that ends"


def test_a_drift_is_never_steady_and_reaches_from_the_first_step_to_the_last() -> None:
    steadiness = classify(times(100) * np.linspace(1, 1.08, 100))
    assert steadiness.classes == ("slowdown", "drift")
    assert steadiness.steady_after is None
    assert steadiness.findings[1].share == pytest.approx(0.08, abs=0.01)
    series = np.linspace(1, 1.2, 20) + 0.01 * (-1.0) ** np.arange(20)
    drift = next(finding for finding in classify(series).findings if finding.name == "drift")
    assert drift.share == pytest.approx(0.2 / series.mean(), rel=0.03)


def test_a_spike_is_an_outlier_and_no_change() -> None:
    series = times(50)
    series[30] *= 1.5
    steadiness = classify(series)
    (outlier,) = steadiness.findings
    assert (outlier.name, outlier.after) == ("outliers", 30)
    assert outlier.share == pytest.approx(0.5, abs=0.05)
    assert steadiness.steady_after == 0
    assert steadiness.limited >= 1


def test_noise_and_correlation_are_estimated() -> None:
    noise = autoregression(np.random.default_rng(3), (2000,), 0.5)
    steadiness = classify(0.05 * (1 + 0.02 * noise))
    assert steadiness.classes == ("flat",)
    assert steadiness.noise == pytest.approx(0.02, rel=0.1)
    assert steadiness.correlation == pytest.approx(0.5, abs=0.1)


def test_few_steps_say_so_and_an_impossible_time_is_refused() -> None:
    steadiness = classify(times(9))
    assert steadiness.classes == ("too-few",)
    assert steadiness.sentence == "9 steps: too few to tell, at least 10 are needed."
    assert (steadiness.findings[0].share, steadiness.limited) == (0, 0)
    assert classify(()).classes == ("too-few",)
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="step time"):
            classify([*times(20), bad])


def test_the_unit_does_not_matter_and_equal_times_are_flat() -> None:
    assert classify([0.05] * 30).classes == ("flat",)
    series = synthetic(Condition("warm-up, throttle", 0.01, 0.5), 4)
    one, other = classify(series), classify(series * 1000)
    assert one.classes == other.classes
    assert one.sentence == other.sentence


def test_only_what_is_far_from_its_neighbours_is_limited() -> None:
    series = np.concatenate([times(20), 1.5 * times(20, seed=1)])
    limited = limit_spikes(series)
    assert np.allclose(limited, series, rtol=0.03)
    series[30] *= 3
    assert limit_spikes(series)[30] < 0.09


@given(st.lists(st.floats(1e-7, 1e3), min_size=10, max_size=40))
@settings(max_examples=150, deadline=None)
def test_any_times_are_classified(series: list[float]) -> None:
    steadiness = classify(series)
    assert steadiness.findings
    assert steadiness.sentence.endswith(".")
    for steps in (steadiness.steady_after, steadiness.warmup_steps):
        assert steps is None or 0 <= steps < len(series)


def test_advice_on_warmup() -> None:
    cold = times(5)
    cold[:2] *= 4
    assert enough_warmup(cold, times(10, seed=1)) == "2 warm-up steps would have been enough"
    assert enough_warmup(cold[:2], times(10, seed=1)) == "2 warm-up steps were just enough"
    assert enough_warmup(times(5), times(10, seed=1)) == "no warm-up step was needed"
    assert enough_warmup((), times(5)) == "too few steps to tell, at least 10 are needed"
    falling = times(40) * (1 + 0.8 * np.exp(-np.arange(40) / 3))
    advice = enough_warmup(falling[:3], falling[3:])
    assert re.fullmatch(r"still falling after 3; 1\d* warm-up steps would have been enough", advice)
    slow = times(10) * np.linspace(1.5, 1, 10)
    assert enough_warmup(slow[:5], slow[5:]) == "still falling after 10"


@pytest.mark.parametrize("warmup", [4, 5, 12])
@pytest.mark.parametrize("cold", [1, 20])
def test_a_level_that_moves_as_measuring_begins_is_no_warm_up_that_was_just_enough(warmup: int, cold: float) -> None:
    """Such as work that is done in warm-up steps, and no longer in measured ones."""
    before = 0.549 * times(warmup) / 0.05
    before[0] *= cold
    for after, level in ((0.155, r"155\.\d"), (0.61, r"6\d\d\.\d")):
        advice = enough_warmup(before, after * times(10, noise=0.002, seed=1) / 0.05)
        assert re.fullmatch(rf"not known: steps go from 5\d\d\.\d ms to {level} ms just as measuring .*", advice), (
            advice
        )


def test_honest_warm_up_is_not_called_a_shift() -> None:
    said = [seam(truth, n, 0.01, seed) for truth in WARM_UPS for n in (3, 5, 10) for seed in range(15)]
    assert sum(advice.startswith("not known") for advice in said) <= 0.01 * len(said)
    assert enough_warmup([0.5], times(12)) == "1 warm-up step was just enough"


@pytest.mark.parametrize("noise", [0.005, 0.01])
def test_levels_in_turns_are_two_levels_from_three_percent_on(noise: float) -> None:
    assert sum(turns(0.03, noise, 0.0, 30, seed) for seed in SEEDS) >= 29
    steadiness = classify(times(100, noise) * (1 + 0.03 * (np.arange(100) % 2)) * np.linspace(1, 1.001, 100))
    assert steadiness.classes == ("bimodal",)
    assert steadiness.findings[0].share == pytest.approx(0.03, abs=0.004)
    assert steadiness.noise == pytest.approx(noise, rel=0.2), "not the distance of the levels"


def test_neither_noise_nor_what_rises_step_by_step_goes_in_turns() -> None:
    rng = np.random.default_rng(8)
    for r in (-0.3, 0.0, 0.5):
        found = [
            in_turns(limit_spikes(1 + 0.02 * autoregression(rng, (n,), r)), 0.02)
            for n in (10, 30, 100)
            for _ in range(200)
        ]
        assert sum(modes is not None for modes in found) <= 3
    t = np.arange(40)
    for rising in (t * 0.025, (t % 4) * 0.025, np.exp(-t / 3), 0.3 * (t == 20), 0.1 * (t >= 20)):
        assert in_turns(1 + rising + noise(40, 0.002), 0.02) is None


@pytest.mark.parametrize(
    "series",
    [[1e-6] * 6 + [1000.0] + [1e-6] * 6, [1e-4, 1.0] * 8, [1e-9] * 19 + [1e3], [1e-9, 1e-3, 1e3] * 5],
    ids=["one", "two levels", "last", "three levels"],
)
def test_steps_of_any_spread_are_classified(series: list[float]) -> None:
    steadiness = classify(series)
    assert steadiness.classes
    for number in re.findall(r"\d+(?= %)", steadiness.sentence):
        assert int(number) < 1000, "more is told as a factor"


def noise(steps: int, std: float = 0.01, seed: int = 0) -> np.ndarray:
    return std * np.random.default_rng(seed).standard_normal(steps)


def sawtooth(steps: int, period: float, height: float) -> np.ndarray:
    return 1 + height * ((np.arange(steps) / period) % 1)


@pytest.mark.parametrize(("steps", "period"), [(100, 25), (100, 7.3), (300, 41), (1000, 25)])
def test_a_throttling_devices_sawtooth_is_periodic_with_its_period_and_size(steps: int, period: float) -> None:
    (finding,) = classify(0.05 * (sawtooth(steps, period, 0.08) + noise(steps))).findings
    assert finding.name == "periodic"
    assert finding.share == pytest.approx(0.08, abs=0.02)
    said = float(finding.text.split()[-2])
    assert said == pytest.approx(period, rel=0.03)
    assert finding.text.startswith("steps go up and down by ")


@pytest.mark.parametrize(("steps", "period"), [(100, 40), (100, 12), (1000, 40), (400, 150)])
def test_a_sine_is_periodic(steps: int, period: float) -> None:
    times = 0.05 * (1 + 0.03 * np.sin(2 * np.pi * np.arange(steps) / period) + noise(steps))
    steadiness = classify(times)
    assert steadiness.classes == ("periodic",)
    assert steadiness.findings[0].share == pytest.approx(0.06, abs=0.015)
    assert steadiness.steady_after is None


def test_a_short_period_has_no_harmonic() -> None:
    """At 2 samples a period or fewer a harmonic is another frequency."""
    t = np.arange(100)
    wave = find_wave(1 + 0.02 * np.sin(2 * np.pi * t / 3.5) + 0.02 * np.sin(4 * np.pi * t / 3.5) + noise(100, 0.002))
    assert wave.period == pytest.approx(3.5, rel=0.01)
    sine = 2 * np.cos(2 * np.pi / wave.period) * wave.values[1:-1]
    assert wave.values[2:] + wave.values[:-2] == pytest.approx(sine, abs=1e-9)


def test_the_best_period_is_the_waves_in_correlated_noise_and_of_one_that_is_mostly_its_second_harmonic() -> None:
    correlated = 0.02 * autoregression(np.random.default_rng(2), (200,), 0.8)
    times = 1 + correlated + 0.015 * np.sin(2 * np.pi * np.arange(200) / 7.3)
    assert _periods(times)[0] == pytest.approx(7.3, rel=0.01)
    t = 2 * np.pi * np.arange(200) / 5
    times = 1 + 0.002 * np.sin(t) + 0.04 * np.sin(2 * t + 0.3) + noise(200)
    assert _periods(times)[0] == pytest.approx(5, rel=0.001)


def test_the_best_second_step_is_the_one_that_trying_all_would_find() -> None:
    t = np.arange(40)
    search = _Search(1 + 0.05 * (t >= 20) - 0.03 * (t >= 30) + noise(40, 0.005))
    terms = (CourseTerm("step", 20),)
    tried = {(added := CourseTerm("step", at)): search.whole_cost((*terms, added)) for at in range(1, 41 - SHORTEST)}
    _, cost, added = search.addition(terms)
    assert added == min(tried, key=tried.__getitem__)
    assert cost == pytest.approx(tried[added], abs=1e-6)


def test_a_warmup_before_an_oscillation_is_still_seen_and_a_sine_that_looks_like_two_levels_periodic() -> None:
    two_levels = 1 + 0.08 * np.sin(2 * np.pi * np.arange(100) / 20) + noise(100, 0.003)
    assert classify(two_levels).classes == ("periodic",)
    times = 1 + 0.6 * np.exp(-np.arange(200) / 4) + 0.03 * np.sin(np.arange(200) / 4) + noise(200, 0.005)
    assert set(classify(times).classes) == {"warm-up", "periodic"}


def test_correlated_noise_is_no_wave() -> None:
    rng = np.random.default_rng(2)
    found = [find_wave(1 + 0.02 * autoregression(rng, (100,), r)) for r in (0.0, 0.5, 0.7, 0.9) for _ in range(50)]
    assert sum(wave is not None for wave in found) <= 4


def test_one_shift_has_no_teeth_and_equal_resets_have() -> None:
    t = np.arange(100)
    assert teeth(course(1 + 0.06 * (t >= 50) + noise(100, 0.003))) is None
    wave = teeth(course(sawtooth(100, 27, 0.08) + noise(100, 0.001)))
    assert wave.period == pytest.approx(27, abs=0.5)
    assert wave.size == pytest.approx(0.08, abs=0.01)
    rising_unevenly = 1 + 0.002 * t - 0.06 * ((t >= 20).astype(float) + (t >= 32) + (t >= 80))
    assert teeth(course(rising_unevenly + noise(100, 0.001))) is None


@pytest.mark.parametrize("tick", [0.02, 0.03, 0.05])
@pytest.mark.parametrize("steps", [10, 100])
def test_a_coarse_clock_is_recognised_and_its_readings_are_no_levels(steps: int, tick: float) -> None:
    times = np.round((1 + noise(steps, 0.01)) / tick) * tick
    if len(np.unique(times)) == 1:
        times[0] += tick
    assert clock_tick(times) == pytest.approx(tick, rel=1e-6)
    steadiness = classify(0.02 * times)
    assert steadiness.classes == ("quantised",)
    assert steadiness.findings[0].text.startswith("the clock ticks every ")


def test_a_devices_clock_that_moves_in_ticks_is_recognised() -> None:
    rng = np.random.default_rng(4)
    times = 1 + 0.03 * rng.integers(0, 4, 100) + noise(100, 0.003)
    assert find_levels(times) == pytest.approx(0.03, rel=0.05)
    assert clock_tick(times) is None
    assert {"quantised", "bimodal"} & set(classify(times).classes)


@pytest.mark.parametrize("std", [0.0, 0.002, 0.01, 0.05])
def test_noise_has_neither_ticks_nor_levels(std: float) -> None:
    for seed in range(30):
        times = 1 + noise(100, std, seed)
        assert clock_tick(times) is None
        assert find_levels(times) is None


def test_ten_thousand_steps_take_less_than_a_second() -> None:
    series = synthetic(Condition("warm-up, throttle", 0.01, 0.5), 1, 10_000)
    begin = time.process_time()  # what others do to the machine meanwhile is no matter
    classify(series)
    assert time.process_time() - begin < 1
