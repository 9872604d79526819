"""Stopping rule of automatic step counts, on series of known truth."""

import re

import numpy as np
import pytest

from benchmarks.series import automatic
from cs336_tui.stats.intervals import mean_interval
from cs336_tui.worker.measure.timing import (
    enough_measured,
    is_narrow,
    noise_has_settled,
    step_looks,
    steps_left,
    warmup_looks,
    why_not_warm,
    why_stopped,
)

STEP_S = 0.05
"""20 such steps take longer than the least time that is measured."""


def noisy(n: int, std: float, seed: int, correlation: float = 0.0, step_s: float = STEP_S) -> list[float]:
    """Steps around `step_s` with normal noise of `std` of it, a stationary first-order autoregression."""
    rng = np.random.default_rng(seed)
    fresh = rng.standard_normal(n) * std * np.sqrt(1 - correlation**2)
    noise = [rng.standard_normal() * std]
    for value in fresh[1:]:
        noise.append(correlation * noise[-1] + value)
    return (step_s * (1 + np.array(noise))).tolist()


def warming(n: int, tau: float, seed: int, excess: float = 0.5) -> list[float]:
    """Steps that begin slower by `excess`, of which 1/e is left after `tau` steps."""
    decay = 1 + excess * np.exp(-np.arange(n) / tau)
    return (decay * np.array(noisy(n, 0.01, seed))).tolist()


def warmup_of(times_s: list[float]) -> int | None:
    """Number of steps after which warm-up would end; None if it would not."""
    return next((count for count in warmup_looks(len(times_s)) if not why_not_warm(times_s[:count])), None)


def steps_of(times_s: list[float], share: float) -> int:
    return next((count for count in step_looks(len(times_s)) if enough_measured(times_s[:count], share)), len(times_s))


@pytest.mark.parametrize("looks", [warmup_looks, step_looks])
@pytest.mark.parametrize("most", [1, 2, 10, 19, 20, 21, 100, 1000, 12345])
def test_looks_are_few_grow_and_end_with_the_most(looks, most: int) -> None:
    found = list(looks(most))
    assert found[-1] == most
    assert found == sorted(set(found))
    assert len(found) < 40
    assert list(warmup_looks(60)) == [10, 15, 20, 30, 40, 50, 60]
    assert list(step_looks(50)) == [20, 25, 31, 38, 47, 50]


def test_steady_steps_need_little_warming_up() -> None:
    """Flat ones, and those of which only the first is cold, which is what most cells look like."""
    flat = [warmup_of(noisy(100, 0.01, seed)) for seed in range(20)]
    cold = [warmup_of([1.0, *noisy(99, 0.01, seed)]) for seed in range(20)]
    assert flat.count(10) >= 15
    assert cold.count(15) >= 15
    assert all(count is not None and count <= 30 for count in (*flat, *cold)), (flat, cold)


def test_a_slow_warm_up_is_waited_for() -> None:
    """When warming up ends, steps are within 2 % of where they settle, however steep or shallow the decay."""
    for tau, excess in ((4, 0.5), (8, 0.5), (8, 0.1), (15, 0.5)):
        found = [warmup_of(warming(100, tau, seed, excess)) for seed in range(20)]
        ended = [count for count in found if count is not None]
        assert len(ended) >= 18, found
        left = [excess * np.exp(-count / tau) for count in ended]
        assert sum(share < 0.02 for share in left) >= 0.9 * len(left), found


def test_what_never_settles_is_said_to() -> None:
    falling = [STEP_S * (2 - 0.01 * step) for step in range(100)]
    assert why_not_warm(falling) == "still falling"
    assert warmup_of(falling) is None
    rising = [STEP_S * (1 + 0.01 * step) for step in range(100)]
    assert why_not_warm(rising) == "still not steady"
    assert why_not_warm(falling[:5]) == "too few steps to tell whether they are steady"


def test_measuring_ends_when_the_interval_is_narrow_but_not_within_half_a_second() -> None:
    for seed in range(5):
        times_s = noisy(1000, 0.01, seed)
        count = steps_of(times_s, 0.01)
        interval = mean_interval(times_s[:count])
        assert 2 * interval.half_share < 0.01
        assert count < 60
        why = why_stopped(times_s[:count], 0.01)
        assert f"stopped after {count} steps: the mean is known to ± 0." in why
        assert why.endswith(" (95 %)"), "the level of an interval stands apart from its sign"
    times_s = noisy(1000, 0.005, 3)
    assert steps_of(times_s, 0.01) < steps_of(times_s, 0.003)
    assert steps_of([STEP_S] * 1000, 0.01) == 20
    times_s = noisy(10_000, 0.001, 1, step_s=0.001)
    assert not enough_measured(times_s[:499], 0.01)
    assert 500 <= steps_of(times_s, 0.01) < 500 * 1.25


def test_measuring_ends_when_the_noise_is_known_and_a_growing_one_has_not_settled() -> None:
    times_s = noisy(1000, 0.1, 1)
    count = steps_of(times_s, 0.001)
    assert 50 <= count < 200
    assert not is_narrow(times_s[:count], 0.001)
    assert "not at the ± 0.05 % asked for: the mean is known to ± " in why_stopped(times_s[:count], 0.001)
    assert "its noise no longer changes" in why_stopped(times_s[:count], 0.001)
    times_s = [STEP_S * (1 + (-1) ** step * 0.0005 * step) for step in range(400)]
    assert not any(noise_has_settled(times_s[:count]) for count in step_looks(400))
    assert "the limit: the mean is known to ± " in why_stopped(times_s, 1e-6)


@pytest.mark.parametrize(("std", "correlation"), [(0.005, 0.0), (0.01, 0.0), (0.01, 0.5)])
def test_stopping_when_it_looks_good_costs_little_coverage(
    std: float, correlation: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """The interval at the stop is to hold the true mean nearly as often as it says; see `measure.timing`."""
    runs, held, counts = 100, 0, []
    for seed in range(runs):
        times_s = noisy(1000, std, seed, correlation)
        counts.append(steps_of(times_s, 0.01))
        interval = mean_interval(times_s[: counts[-1]])
        held += interval.low <= STEP_S <= interval.high
    with capsys.disabled():
        print(f"\n{std:.1%} noise, correlation {correlation}: {held / runs:.0%} held, {sum(counts) / runs:.0f} steps")
    assert held >= 0.84 * runs


@pytest.mark.parametrize(("share", "size"), [(0.01, 0.5), (0.02, 2.0)])
def test_with_rare_spikes_the_median_is_known_and_how_rare_they_are_is_said(share: float, size: float) -> None:
    _, held_mean, held_median, known_to = automatic(0.01, 0.0, share, size, 60, 0)
    assert float(held_mean) < 0.8, "of a spike that was not seen no interval of the mean can know"
    assert float(held_median) >= 0.89
    assert float(known_to.removeprefix("± ").removesuffix(" %")) < 1
    why = why_stopped(noisy(30, 0.005, 2), 0.01)
    assert re.search(r" but for spikes rarer than 1 in 10 steps, the median to ± 0\.\d+ % with them \(95 %\)$", why)


def test_steps_by_time_are_looked_at_one_by_one_or_at_half_of_what_is_left():
    assert [steps_left([0.1] * done, 100, 0.5) for done in (0, 1, 4, 5)] == [1, 1, 1, 0]
    assert steps_left([], 100, 10.0, at_once=True) == 1
    assert steps_left([0.1] * 20, 1000, 10.0, at_once=True) == 40  # 8 s are left, so 80 steps
    assert steps_left([0.1] * 20, 50, 10.0, at_once=True) == 30
    assert steps_left([0.1] * 50, 50, 10.0, at_once=True) == 0
