"""Races: who is out, who is tied, what the next round affords, and what turns add."""

import math
import random
from collections.abc import Sequence

import pytest

from benchmarks.racing import GOOD, NOISES, Machine, race
from cs336_tui.stats.racing import (
    InTurns,
    Standing,
    Visit,
    affordable,
    is_decided,
    keep,
    standings,
    take_turns,
    visit_of,
)


def visits_of(
    costs: Sequence[float], rounds: int, noise: float = 0.01, drift: float = 0.2, seed: int = 1
) -> list[Visit]:
    """Rounds of one visit of each candidate, of known costs; each round is slower than the one before by `drift`."""
    draw = random.Random(seed)
    return [
        Visit(candidate, number, cost * (1 + drift) ** number * draw.lognormvariate(0, noise))
        for number in range(rounds)
        for candidate, cost in enumerate(costs)
    ]


def of(found: Sequence[Standing], candidate: int) -> Standing:
    return next(standing for standing in found if standing.candidate == candidate)


def test_a_drift_of_whole_rounds_is_gone_from_ratios_and_their_intervals() -> None:
    found = standings(visits_of([1.0, 0.8, 1.3, 0.9], 6, noise=0.005, seed=2))
    assert [standing.candidate for standing in found] == [1, 3, 0, 2]
    for standing, ratio in zip(found, (0.8, 0.9, 1.0, 1.3), strict=True):
        assert standing.low <= ratio <= standing.high
        assert standing.high / standing.low < 1.04
    assert (of(found, 0).low, of(found, 0).high) == (1.0, 1.0)


def test_after_one_round_there_are_no_intervals_and_only_the_grossly_worse_are_out() -> None:
    found = standings(visits_of([1.0, 0.97, 1.1, 1.5], 1, noise=0.0))
    assert all(standing.low is standing.high is standing.behind_high is None for standing in found)
    assert [standing.is_out for standing in found] == [False, False, False, True]
    noisy = [Visit(0, 0, 1.0), Visit(1, 0, 0.97), Visit(2, 0, 1.5, error=0.2)]
    assert not of(standings(noisy), 2).is_out, "steps as noisy as the difference"
    found = standings([Visit(0, 0, 1.0), Visit(1, 0, 0.99), Visit(0, 1, 1.0)])
    assert not of(found, 0).is_out, "without two common rounds the spread stays assumed"
    assert (of(found, 1).low, of(found, 1).high) == (None, None)


def test_one_much_noisier_candidate_is_less_certain_and_costs_the_others_little() -> None:
    draw = random.Random(3)
    costs, rounds = [1.0, 0.9, 0.95, 0.95, 0.9, 1.1], 6
    quiet = visits_of(costs, rounds, noise=0.005)
    noisy = [
        visit._replace(cost=visit.cost * draw.lognormvariate(0, 0.2), error=0.2) if visit.candidate == 3 else visit
        for visit in quiet
    ]
    widths = {each.candidate: each.high / each.low for each in standings(noisy)}
    assert widths[3] > 1.3
    assert all(widths[other] < 1.04 for other in (1, 2, 4, 5))


def test_a_drift_within_a_large_round_is_known_from_candidates_that_were_visited_again() -> None:
    draw = random.Random(4)
    costs = [1.0 + 0.02 * candidate for candidate in range(32)]
    visits = []
    for number in range(4):
        for place, candidate in enumerate(draw.sample(range(32), 32)):
            drift = 1 + 0.1 * place / 32
            visits.append(Visit(candidate, number, costs[candidate] * drift * draw.lognormvariate(0, 0.003)))
    found = standings(visits)
    in_one_block = standings(sorted(visits, key=lambda visit: visit.candidate))
    assert all(of(found, each).ratio == pytest.approx(costs[each], rel=0.03) for each in range(32))
    here, there = (of(each, 9).high - of(each, 9).low for each in (found, in_one_block))
    assert here < 0.6 * there


def test_candidates_that_left_early_are_compared_over_the_rounds_that_they_were_in() -> None:
    all_in = visits_of([1.0, 0.9, 2.0, 0.95], 8, noise=0.003, drift=0.5)
    found = standings([visit for visit in all_in if visit.candidate != 2 or visit.round == 0])
    assert of(found, 2).ratio == pytest.approx(2.0, rel=0.01)
    assert of(found, 2).visits == 1
    assert of(found, 1).ratio == pytest.approx(0.9, rel=0.005)


def test_a_barred_candidate_is_neither_best_nor_tied_and_puts_nobody_out() -> None:
    visits = visits_of([1.0, 0.5, 0.9], 4)
    found = standings(visits, barred={1})
    assert not of(found, 2).is_out
    assert of(found, 2).behind == 1.0
    assert not of(found, 1).is_tied
    assert of(found, 1).ratio == pytest.approx(0.5, rel=0.03)
    assert of(standings(visits), 2).is_out


def test_turns_decide_their_pair_and_leave_the_others_as_they_were() -> None:
    visits = visits_of([1.0, 0.8, 0.82, 0.9], 3, noise=0.02, seed=5)
    before = standings(visits)
    assert not of(before, 2).is_out or not of(before, 1).is_out
    draw = random.Random(1)
    pairs = tuple(
        tuple((0.8 * draw.lognormvariate(0, 0.005), 0.82 * draw.lognormvariate(0, 0.005)) for _ in range(8))
        for _ in range(4)
    )
    after = standings(visits, [InTurns(1, 2, pairs)])
    assert after[0].candidate == 1
    assert of(after, 2).behind == pytest.approx(0.82 / 0.8, rel=0.004)
    assert of(after, 2).is_out
    for candidate in (0, 3):
        assert of(after, candidate).ratio == pytest.approx(of(before, candidate).ratio, rel=1e-3)


def test_a_race_is_decided_when_all_who_could_be_best_are_within_the_margin() -> None:
    assert is_decided(standings(visits_of([1.0, 0.8, 0.801], 12, noise=0.001)))
    assert not is_decided(standings(visits_of([1.0, 0.8, 0.801], 3, noise=0.02)))
    assert not is_decided(standings(visits_of([1.0, 1.0], 1, noise=0.0))), "one round tells nothing apart"
    assert is_decided(standings([Visit(0, 0, 1.0)])), "a single candidate has won"
    assert is_decided(standings([Visit(0, 0, 1.0), Visit(0, 1, 1.1)]))
    exact = standings(visits_of([4e9, 2e9, 2e9, 3e9], 2, noise=0.0, drift=0.0))
    assert [standing.is_out for standing in exact] == [False, False, True, True]
    assert is_decided(exact), "costs without noise, after two rounds"


def test_the_best_that_the_budget_affords_go_on() -> None:
    found = standings(visits_of([1.0, 0.99, 0.98, 0.97, 3.0], 1, noise=0.0))
    assert keep(found, 10) == (3, 2, 1, 0)
    assert keep(found, 3) == (3, 2, 1)
    assert keep(found, 0) == (3, 2), "two at least, for the turns"
    assert keep(standings(visits_of([1.0, 0.9, 0.8], 1), barred={0, 1, 2}), 2) == ()
    found = standings(visits_of([1.0, 0.8, 0.801, 0.9], 12, noise=0.001))
    assert keep(found, 4) == (found[0].candidate,), "without those known to be within the margin"


@pytest.mark.parametrize(("left", "most"), [(1.0, 64), (5 / 6, 32), (0.5, 8), (1 / 6, 2), (0.0, 2)])
def test_each_halving_of_the_field_takes_the_same_part_of_the_budget(left: float, most: int) -> None:
    assert affordable(64, left + 1e-9) == most


def test_two_that_were_visited_twice_take_turns() -> None:
    costs = [1.0, 0.9, 0.9]
    assert not take_turns(standings(visits_of(costs, 1)), (1, 2))
    twice = standings(visits_of(costs, 2))
    assert take_turns(twice, (1, 2))
    assert not take_turns(twice, (0, 1, 2))


def test_a_visit_is_the_median_of_its_steps_with_its_error() -> None:
    assert visit_of(3, 2, [1.0, 1.0, 1.0, 9.0])[:3] == (3, 2, 1.0)
    draw = random.Random(2)
    visits = [visit_of(0, 0, [draw.gauss(1, 0.05) for _ in range(9)]) for _ in range(300)]
    errors = sum(visit.error for visit in visits) / len(visits)
    spread = (sum((visit.cost - 1) ** 2 for visit in visits) / len(visits)) ** 0.5
    assert errors == pytest.approx(spread, rel=0.15)


def test_simulated_races_find_the_best_and_claim_nothing_wrong() -> None:
    """A small part of `benchmarks/racing.py`: three noises, 8 candidates, a third of the visits."""
    done = [race(Machine(8, noise, seed)) for noise in NOISES for seed in range(12)]
    assert sum(each.excess <= GOOD for each in done) >= 0.95 * len(done)
    assert sum(each.is_wrong for each in done) <= 0.05 * len(done)
    assert max(each.share for each in done) <= 1 / 3


def test_what_cannot_be_raced_is_refused() -> None:
    with pytest.raises(ValueError, match="no visit of candidate 0, the starting point"):
        standings([Visit(1, 0, 1.0)])
    with pytest.raises(ValueError, match="not a number above 0"):
        standings([Visit(0, 0, 0.0)])
    with pytest.raises(ValueError, match="without steps"):
        visit_of(0, 0, [])


def test_a_process_that_is_slower_as_a_whole_does_not_decide() -> None:
    draw = random.Random(1)
    visits = [
        Visit(candidate, number, (0.9 if candidate == 1 else 1.0) * math.exp(draw.gauss(0, 0.01)), 0.005)
        for number in range(1, 7)
        for candidate in range(8)
    ]
    strayed = [
        visit._replace(cost=1.35 * visit.cost) if (visit.candidate, visit.round) == (1, 3) else visit
        for visit in visits
    ]
    for each in (visits, strayed):
        best, *_ = standings(each)
        assert best.candidate == 1
        assert best.ratio == pytest.approx(0.9, abs=0.015)
