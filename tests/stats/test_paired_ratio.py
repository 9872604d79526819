"""Ratios of steps measured in pairs: spikes, drifts, rounds, and their outcomes."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.steady_state import interleaved
from cs336_tui.stats.intervals import sample_of
from cs336_tui.stats.ratio import FROM_ONE_ROUND, FROM_PAIRS, HOLD, _held, outcome, paired_ratio, ratio_of

times = st.floats(1e-6, 1e3)


def rounds_of(*ratios: float, pairs: int = 20, noise: float = 0.002) -> list[list[tuple[float, float]]]:
    """Rounds whose steps of A take `ratio` times as long as their neighbours of B, and both drift by 20 %."""
    drawn = random.Random(7)
    return [
        [
            (ratio * time_s * drawn.gauss(1, noise), time_s * drawn.gauss(1, noise))
            for time_s in (0.05 * (1 + 0.2 * pair / pairs) for pair in range(pairs))
        ]
        for ratio in ratios
    ]


def test_a_drift_of_both_sides_is_gone_from_their_pairs() -> None:
    rounds = rounds_of(1.0, 1.0, 1.0)
    found = paired_ratio(rounds)
    apart = ratio_of([[a for pairs in rounds for a, _ in pairs]], [[b for pairs in rounds for _, b in pairs]])
    assert found is not None
    assert apart is not None
    assert found.method.startswith(FROM_PAIRS)
    assert outcome(found) == "same"
    assert found.high - found.low < (apart.high - apart.low) / 5


def test_one_spike_hardly_moves_a_round() -> None:
    plain, spiked = rounds_of(1.03, 1.03, 1.03), rounds_of(1.03, 1.03, 1.03)
    spiked[1][7] = (10 * spiked[1][7][0], spiked[1][7][1])
    before, after = paired_ratio(plain), paired_ratio(spiked)
    assert before is not None
    assert after is not None
    assert after.ratio == pytest.approx(before.ratio, abs=0.0005)
    assert outcome(after) == "slower"


def test_a_held_value_makes_the_mean_of_the_others_less_certain() -> None:
    values = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.97, 3.0, 1.01, 0.99]
    found, held = _held(values)
    middle = np.median(values)
    reach = HOLD * 1.4826 * float(np.median(np.abs(np.array(values) - middle)))
    kept = np.clip(values, found.mean - reach, found.mean + reach)
    assert held == 1
    assert kept.sum() == pytest.approx(len(values) * found.mean, abs=1e-8), "Huber's equation"
    assert found.variance == pytest.approx(sample_of(kept.tolist()).variance * (10 / 9) ** 2, rel=1e-6)


def mean_ratio(rounds: list[list[tuple[float, float]]]) -> float:
    """Mean time of A over that of B, as a table shows them."""
    pairs = [pair for each in rounds for pair in each]
    return math.fsum(a_s for a_s, _ in pairs) / math.fsum(b_s for _, b_s in pairs)


def often_slow(share: float, factor: float, seed: int, usual: float = 1.0) -> list[list[tuple[float, float]]]:
    """Five rounds whose steps of A are `factor` times as slow in `share` of the steps, and else take `usual`."""
    drawn = random.Random(seed)
    return [
        [(a * (factor if drawn.random() < share else 1), b) for a, b in pairs]
        for pairs in rounds_of(*[usual] * 5, noise=0.003)
    ]


@pytest.mark.parametrize(
    ("share", "factor", "usual"),
    [(0.1, 1.2, 1.0), (0.2, 1.2, 1.0), (0.2, 1.5, 1.0), (0.4, 1.1, 1.0), (0.25, 1.2, 0.98)],
)
def test_no_verdict_on_a_side_that_is_often_slow_contradicts_the_means(
    share: float, factor: float, usual: float
) -> None:
    for seed in range(20):
        rounds = often_slow(share, factor, seed, usual)
        found, swapped = paired_ratio(rounds), paired_ratio([[(b, a) for a, b in pairs] for pairs in rounds])
        assert found is not None
        assert swapped is not None
        assert found.low * 0.999 <= mean_ratio(rounds) <= found.high * 1.001
        small = ["same"] if abs(mean_ratio(rounds) - 1) < 0.01 else []
        assert outcome(found) in ("slower", "ambiguous", *small)
        assert outcome(swapped) in ("faster", "ambiguous", *small)


def test_a_side_that_is_slow_in_a_fifth_of_its_steps_is_slower() -> None:
    found = [paired_ratio(often_slow(0.2, 1.2, seed)) for seed in range(20)]
    assert [outcome(each) for each in found].count("slower") >= 18
    assert all(each is not None and "none of 100 pairs held, as" in each.method for each in found)


def test_two_spikes_in_a_hundred_pairs_are_held_and_said() -> None:
    rounds = rounds_of(1.03, 1.03, 1.03, 1.03, 1.03)
    for number, pair in ((0, 3), (3, 11)):
        a, b = rounds[number][pair]
        rounds[number][pair] = (a * 1.5, b)
    found = paired_ratio(rounds)
    assert found is not None
    assert found.ratio == pytest.approx(1.03, abs=0.001)
    assert outcome(found) == "slower"
    assert " of 100 pairs held to 2 robust deviations; widened to hold 1.0" in found.method
    assert found.low <= mean_ratio(rounds) == pytest.approx(found.high)


def test_spikes_that_make_up_the_whole_difference_of_the_means_leave_no_verdict() -> None:
    rounds = rounds_of(1.0, 1.0, 1.0, 1.0, 1.0)
    plain = paired_ratio(rounds)
    assert plain is not None
    assert (outcome(plain), "widened" in plain.method) == ("same", False)
    for number in (0, 3):
        a, b = rounds[number][5]
        rounds[number][5] = (a * 3, b)
    spiked = paired_ratio(rounds)
    assert spiked is not None
    assert spiked.ratio == pytest.approx(1.0, abs=0.001)
    assert spiked.high == pytest.approx(mean_ratio(rounds))
    assert outcome(spiked) == "ambiguous"


def test_pairs_that_all_count_in_full_are_said_to() -> None:
    found = paired_ratio([[(1.01, 1.0), (1.02, 1.0), (1.03, 1.0)] * 4] * 3)
    assert found is not None
    assert found.method == f"{FROM_PAIRS}; none of 36 pairs held to 2 robust deviations"


def test_being_second_costs_both_sides_alike() -> None:
    rounds = [
        [(a * 1.05, b) if pair % 2 else (a, b * 1.05) for pair, (a, b) in enumerate(pairs)]
        for pairs in rounds_of(1.02, 1.02, 1.02)
    ]
    found = paired_ratio(rounds)
    assert found is not None
    assert found.ratio == pytest.approx(1.02, abs=0.002)


def test_rounds_that_differ_widen_the_interval_and_one_round_cannot_know() -> None:
    many, one = paired_ratio(rounds_of(0.98, 1.0, 1.02)), paired_ratio(rounds_of(1.02))
    assert many is not None
    assert one is not None
    assert outcome(many) == "ambiguous"
    assert outcome(one) == "slower"
    assert one.method.startswith(FROM_ONE_ROUND)


def test_rounds_alike_by_chance_are_no_narrower_than_their_pairs() -> None:
    one = rounds_of(1.0, noise=0.02)[0]
    alone, thrice = paired_ratio([one]), paired_ratio([one, one, one])
    assert alone is not None
    assert thrice is not None
    alone_half, thrice_half = (math.log(found.high / found.ratio) for found in (alone, thrice))
    assert thrice.ratio == pytest.approx(alone.ratio)
    assert thrice_half == pytest.approx(alone_half / math.sqrt(3), rel=0.1)


@given(st.lists(st.lists(st.tuples(times, times), max_size=6), min_size=2, max_size=4))
def test_swapping_paired_sides_gives_the_reciprocal(rounds: list[list[tuple[float, float]]]) -> None:
    there, back = paired_ratio(rounds), paired_ratio([[(b, a) for a, b in pairs] for pairs in rounds])
    assert (there is None) == (back is None)
    if there and back and there.low is not None:
        assert there.low <= there.ratio <= there.high
        assert math.log(there.ratio) == pytest.approx(-math.log(back.ratio), abs=1e-6)
        for bound, other in ((there.low, back.high), (there.high, back.low)):
            assert math.log(bound) == pytest.approx(-math.log(other), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    "rounds",
    [[], [[]], [[(1.0, 1.0)]], [[(1.0, math.nan)] * 3], [[(0.0, 1.0)] * 3] * 2, [[(1.0, math.inf)] * 3] * 2],
)
def test_pairs_that_say_nothing_have_no_ratio(rounds: list[list[tuple[float, float]]]) -> None:
    assert paired_ratio(rounds) is None


def test_rounds_of_one_pair_are_runs() -> None:
    found = paired_ratio([[(1.01, 1.0)], [], [(1.03, 1.0)]])
    assert found is not None
    assert found.low < 1 < found.ratio < found.high


def test_pairs_of_equal_sides_are_seldom_different_and_3_percent_mostly_slower() -> None:
    rng = np.random.default_rng(8)
    said = [
        [outcome(paired_ratio(interleaved(rng, ratio, luck=0.01, noise=0.02))) for _ in range(200)]
        for ratio in (1.0, 1.03)
    ]
    assert sum(word in ("faster", "slower") for word in said[0]) <= 0.05 * 200
    assert said[1].count("slower") >= 0.9 * 200
