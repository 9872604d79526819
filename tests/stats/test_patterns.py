"""Periods and levels in step times: detection, accuracy and false alarms."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.steady_state import autoregression
from cs336_tui.stats.course import SHORTEST, CourseTerm, _Search, course
from cs336_tui.stats.patterns import _periods, clock_tick, find_levels, find_wave, teeth
from cs336_tui.stats.steady import classify


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


def test_a_sine_that_looks_like_two_levels_is_periodic() -> None:
    times = 1 + 0.08 * np.sin(2 * np.pi * np.arange(100) / 20) + noise(100, 0.003)
    assert classify(times).classes == ("periodic",)


def test_a_short_period_has_no_harmonic() -> None:
    """At 2 samples a period or fewer a harmonic is another frequency."""
    t = np.arange(100)
    wave = find_wave(1 + 0.02 * np.sin(2 * np.pi * t / 3.5) + 0.02 * np.sin(4 * np.pi * t / 3.5) + noise(100, 0.002))
    assert wave is not None
    assert wave.period == pytest.approx(3.5, rel=0.01)
    sine = 2 * np.cos(2 * np.pi / wave.period) * wave.values[1:-1]
    assert wave.values[2:] + wave.values[:-2] == pytest.approx(sine, abs=1e-9)


def test_the_best_period_of_a_wave_in_correlated_noise_is_the_waves() -> None:
    correlated = 0.02 * autoregression(np.random.default_rng(2), (200,), 0.8)
    times = 1 + correlated + 0.015 * np.sin(2 * np.pi * np.arange(200) / 7.3)
    assert _periods(times)[0] == pytest.approx(7.3, rel=0.01)


def test_a_wave_that_is_mostly_its_second_harmonic_has_its_own_period() -> None:
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


def test_a_warmup_before_an_oscillation_is_still_seen() -> None:
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
    assert wave is not None
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


@pytest.mark.parametrize("std", [0.002, 0.01, 0.05])
def test_noise_has_neither_ticks_nor_levels(std: float) -> None:
    for seed in range(30):
        times = 1 + noise(100, std, seed)
        assert clock_tick(times) is None
        assert find_levels(times) is None


def test_equal_times_have_no_tick() -> None:
    assert clock_tick(np.ones(30)) is None
