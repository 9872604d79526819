"""Ratios of runs and of steps measured in pairs, and their outcomes: laws, and coverage on simulated runs."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.steady_state import autoregression, holds, interleaved, ratio_coverage
from cs336_tui.stats.intervals import sample_of
from cs336_tui.stats.quantities import is_too_noisy
from cs336_tui.stats.ratio import (
    FROM_ONE_ROUND,
    FROM_PAIRS,
    FROM_RUNS,
    FROM_STEPS,
    HOLD,
    Outcome,
    Ratio,
    _held,
    explain,
    outcome,
    paired_ratio,
    passing,
    ratio_of,
)

times = st.floats(1e-6, 1e3)
step_lists = st.lists(times, min_size=2, max_size=24)
run_lists = st.lists(st.lists(times, min_size=1, max_size=5), min_size=2, max_size=4)


@given(step_lists, step_lists)
def test_swapping_the_sides_gives_the_reciprocal(a: list[float], b: list[float]) -> None:
    there, back = ratio_of([a], [b]), ratio_of([b], [a])
    assert there.ratio * back.ratio == pytest.approx(1)
    assert (there.low is None) == (back.high is None)
    assert there.low is None or min(len(a), len(b)) >= 10
    if there.low is not None:
        assert there.low * back.high == pytest.approx(1)
        assert there.low <= there.ratio <= there.high


@given(run_lists, run_lists, st.floats(1e-3, 1e3))
def test_a_ratio_does_not_depend_on_the_unit(a: list[list[float]], b: list[list[float]], unit: float) -> None:
    plain = ratio_of(a, b)
    scaled = ratio_of(*([[time_s * unit for time_s in run] for run in side] for side in (a, b)))
    assert scaled.method == plain.method
    assert scaled.ratio == pytest.approx(plain.ratio)
    assert plain.method == FROM_RUNS or plain.low is None
    if plain.low is not None:
        half = math.log(plain.high / plain.ratio)
        assert math.log(scaled.high / scaled.ratio) == pytest.approx(half, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("odd", [[[1.0]], [], [[1.0, math.nan]], [[1.0, math.inf]], [[0.0, 0.0]]])
def test_there_is_no_ratio_without_two_finite_times_a_side(odd: list[list[float]]) -> None:
    assert ratio_of(odd, [[1.0, 2.0]]) is ratio_of([[1.0, 2.0]], odd) is None


def test_repeats_widen_the_interval_when_runs_differ_more_than_steps() -> None:
    a = [[1.00, 1.001, 0.999], [1.10, 1.101, 1.099], [1.05, 1.051, 1.049]]
    b = [[1.02, 1.021, 1.019], [1.12, 1.121, 1.119], [1.07, 1.071, 1.069]]
    by_run, by_step = ratio_of(a, b), ratio_of([a[0] * 4], [b[0] * 4])
    assert (by_run.method, by_step.method) == (FROM_RUNS, FROM_STEPS)
    assert by_run.high - by_run.low > 2 * (by_step.high - by_step.low)


def test_steps_of_unlike_runs_are_not_taken_for_independent() -> None:
    a = [[1.00, 1.001, 0.999] * 4, [1.10, 1.101, 1.099] * 4]
    b = [[1.05, 1.051, 1.049] * 8]
    found = ratio_of(a, b)
    assert found.method == FROM_STEPS
    assert found.low < 1.00 / 1.05 < 1.10 / 1.05 < found.high


@pytest.mark.parametrize(("runs", "steps", "most"), [(1, 10, 0.99), (5, 4, 0.97)])
def test_95_percent_intervals_hold_the_true_ratio_95_times_in_100(runs: int, steps: int, most: float) -> None:
    """With few steps they hold it more often, since the correlation of so few is unknown."""
    random.seed(336)
    held = 0
    for _ in range(2000):
        a, b = (
            [[random.gauss(mean, mean * noise) for _ in range(steps)] for _ in range(runs)]
            for mean, noise in ((0.050, 0.03), (0.080, 0.06))
        )
        found = ratio_of(a, b)
        assert found is not None
        held += holds(found, 0.050 / 0.080)
    assert 0.93 * 2000 <= held <= most * 2000


@pytest.mark.parametrize("steps", [2, 5, 9])
def test_fewer_than_10_steps_a_side_have_no_interval_and_the_verdict_says_why(steps: int) -> None:
    """The correlation of so few steps is unknown: at 5 steps and 0.6 an interval held the ratio 9 times in 10."""
    one = [0.050 + 0.0001 * step for step in range(steps)]
    few = ratio_of([one], [[0.060] * 20])
    assert (few.low, few.high, outcome(few)) == (None, None, "ambiguous")
    why = f"{steps} steps are fewer than the 10 a side that are needed"
    assert f"ambiguous, no interval as {why}; run more repeats." in explain(few)
    assert few.bounds() == "(no interval)"
    pairs = paired_ratio([[(time_s, 0.06) for time_s in one]])
    assert (pairs.low, outcome(pairs)) == (None, "ambiguous")


def test_times_that_wander_have_no_interval_rather_than_an_endless_one_and_equal_ones_no_width() -> None:
    equal = ratio_of([[0.1] * 12], [[0.3] * 10])
    assert equal.low == equal.ratio == equal.high == pytest.approx(1 / 3)
    wandering = [0.05 * 1.6**step for step in range(20)]
    found = ratio_of([wandering], [[0.05, 0.06] * 10])
    assert found.low is None
    assert found.method.startswith("none: it would reach further than a factor of 4")
    assert "e-" not in explain(found)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.7])
@pytest.mark.parametrize("steps", [10, 30, 100])
def test_steps_that_are_alike_hold_the_true_ratio_as_often(steps: int, correlation: float) -> None:
    assert 0.93 <= ratio_coverage(correlation, steps, 800) <= 0.985


@pytest.mark.parametrize(
    ("ratio", "low", "high", "expected"),
    [
        (0.80, 0.78, 0.82, "faster"),
        (0.985, 0.975, 0.995, "faster"),  # the interval need not leave the margin, only 1
        (1.25, 1.20, 1.30, "slower"),
        (1.000, 0.995, 1.005, "same"),
        (0.995, 0.992, 0.998, "same"),  # surely below 1, and surely by too little to matter
        (0.80, 0.50, 1.20, "ambiguous"),
        (0.992, 0.985, 0.999, "ambiguous"),  # below 1, and nobody can tell whether it matters
        (1.008, 1.001, 1.015, "ambiguous"),
        (1.000, 0.900, 1.100, "ambiguous"),
    ],
)
def test_outcomes(ratio: float, low: float, high: float, expected: Outcome) -> None:
    found = Ratio(ratio, low, high, 0.95, FROM_STEPS)
    assert outcome(found) == expected
    said = explain(found, a="left", b="right")
    assert ("the same" if expected == "same" else expected) in said
    assert said.startswith("left takes ")
    assert said.endswith(".")


def test_a_ratio_reads_in_four_digits_and_none_is_ambiguous_and_says_why() -> None:
    assert outcome(None) == "ambiguous"
    assert "at least 2 measured steps" in explain(None)
    assert str(Ratio(1.0, 0.98765, 12.3456, 0.95, "")) == "1.000 [0.9877, 12.35]"
    assert str(Ratio(1234.4, 999.96, 2000, 0.95, "")) == "1234 [1000, 2000]"


def test_an_interval_that_says_nothing_is_not_given() -> None:
    wild = ratio_of([[1e-4] * 11 + [1.0]], [[1.0] + [1e-4] * 11])
    assert (wild.low, wild.high, wild.is_too_noisy) == (None, None, True)
    assert str(wild).endswith(" (too noisy)")
    assert "too noisy, the 95 % interval reaches further than a factor of 4; run more repeats." in explain(wild)
    few = ratio_of([[1.0, 1.1]], [[1.0, 1.2]])
    assert str(few).endswith(" (no interval)")
    assert not few.is_too_noisy
    bounds = ((0.0, 1.0), (-1.0, 1.0), (1.0, 15.9), (1.0, 16.1))
    assert [is_too_noisy(low, high) for low, high in bounds] == [True, True, False, True]


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
    assert found.method.startswith(FROM_PAIRS)
    assert outcome(found) == "same"
    assert found.high - found.low < (apart.high - apart.low) / 5


def test_one_spike_hardly_moves_a_round() -> None:
    plain, spiked = rounds_of(1.03, 1.03, 1.03), rounds_of(1.03, 1.03, 1.03)
    spiked[1][7] = (10 * spiked[1][7][0], spiked[1][7][1])
    before, after = paired_ratio(plain), paired_ratio(spiked)
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
    assert found.ratio == pytest.approx(1.03, abs=0.001)
    assert outcome(found) == "slower"
    assert " of 100 pairs held to 2 robust deviations; widened to hold 1.0" in found.method
    assert found.low <= mean_ratio(rounds) == pytest.approx(found.high)
    none = paired_ratio([[(1.01, 1.0), (1.02, 1.0), (1.03, 1.0)] * 4] * 3)
    assert none.method == f"{FROM_PAIRS}; none of 36 pairs held to 2 robust deviations"


def test_spikes_that_make_up_the_whole_difference_of_the_means_leave_no_verdict() -> None:
    rounds = rounds_of(1.0, 1.0, 1.0, 1.0, 1.0)
    plain = paired_ratio(rounds)
    assert (outcome(plain), "widened" in plain.method) == ("same", False)
    for number in (0, 3):
        a, b = rounds[number][5]
        rounds[number][5] = (a * 3, b)
    spiked = paired_ratio(rounds)
    assert spiked.ratio == pytest.approx(1.0, abs=0.001)
    assert spiked.high == pytest.approx(mean_ratio(rounds))
    assert outcome(spiked) == "ambiguous"


def test_being_second_costs_both_sides_alike() -> None:
    first = rounds_of(1.02, 1.02, 1.02)
    rounds = [[(a * 1.05, b) if n % 2 else (a, b * 1.05) for n, (a, b) in enumerate(pairs)] for pairs in first]
    found = paired_ratio(rounds)
    assert found.ratio == pytest.approx(1.02, abs=0.002)


def test_rounds_that_differ_widen_the_interval_and_one_round_cannot_know() -> None:
    many, one = paired_ratio(rounds_of(0.98, 1.0, 1.02)), paired_ratio(rounds_of(1.02))
    assert many is not None
    assert outcome(many) == "ambiguous"
    assert outcome(one) == "slower"
    assert one.method.startswith(FROM_ONE_ROUND)
    single = paired_ratio([[(1.01, 1.0)], [], [(1.03, 1.0)]])
    assert single.low < 1 < single.ratio < single.high, "rounds of one pair are runs"


def test_rounds_alike_by_chance_are_no_narrower_than_their_pairs() -> None:
    one = rounds_of(1.0, noise=0.02)[0]
    alone, thrice = paired_ratio([one]), paired_ratio([one, one, one])
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
    "rounds", [[], [[]], [[(1.0, 1.0)]], [[(1.0, math.nan)] * 3], [[(0.0, 1.0)] * 3] * 2, [[(1.0, math.inf)] * 3] * 2]
)
def test_pairs_that_say_nothing_have_no_ratio(rounds: list[list[tuple[float, float]]]) -> None:
    assert paired_ratio(rounds) is None


def test_pairs_of_equal_sides_are_seldom_different_and_3_percent_mostly_slower() -> None:
    rng = np.random.default_rng(8)
    said = [
        [outcome(paired_ratio(interleaved(rng, ratio, luck=0.01, noise=0.02))) for _ in range(200)]
        for ratio in (1.0, 1.03)
    ]
    assert sum(word in ("faster", "slower") for word in said[0]) <= 0.05 * 200
    assert said[1].count("slower") >= 0.9 * 200


@pytest.mark.parametrize(("steps", "correlation"), [(10, 0.0), (10, 0.6), (30, 0.6)])
def test_equal_sides_are_seldom_called_different(steps: int, correlation: float) -> None:
    rng = np.random.default_rng(9)
    sides = 1 + 0.01 * autoregression(rng, (400, 2, steps), correlation)
    said = [outcome(ratio_of([a.tolist()], [b.tolist()])) for a, b in sides]
    assert sum(word in ("faster", "slower") for word in said) <= 0.05 * 400


@pytest.mark.parametrize(
    ("low", "high", "answer"),
    [
        (1.021, 1.08, "slower"),
        (1.02, 1.08, "cannot tell"),
        (1.019, 1.021, "cannot tell"),
        (0.7, 1.02, "not slower"),
        (0.7, 0.8, "not slower"),
        (None, None, "cannot tell"),
    ],
)
def test_the_whole_interval_says_if_a_is_slower_by_more_than_a_share(
    low: float | None, high: float | None, answer: str
) -> None:
    assert passing(Ratio(1.0, low, high, 0.95, ""), 0.02) == answer
    assert passing(None, 0.02) == "cannot tell"
