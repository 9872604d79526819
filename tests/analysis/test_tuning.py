"""A race from made events: the statuses of candidates, and the next step in every situation."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from cs336_tui.analysis.agreement import agreement_key
from cs336_tui.analysis.next_step import DECIDED, MEASURED, NONE_LEFT, ONE_LEFT, TURNS_A_ROUND
from cs336_tui.config.order import Checks, Finish, Turns, Visits
from cs336_tui.config.tuning import BUDGET_ENDED, Over
from cs336_tui.events.events import SessionAnnotated, SessionEnded, SessionResumed, TuningEnded
from tests.analysis.racing import OVER, VISIT_S, Made
from tests.samples import START


def test_a_race_begins_with_a_visit_of_the_starting_point() -> None:
    made = Made()
    assert made.next() == Visits((0,), 1)
    assert made.statuses == ["waiting"] * 4
    assert made.race.best is None
    orders = [next_of(Made((Over("checkpoint", tuple(range(size))),))) for size in (5, 6, 7)]
    assert [sorted(order) for order in orders] == [[*range(1, size)] for size in (5, 6, 7)]
    assert any(order != tuple(sorted(order)) for order in orders), "shuffled"


def raced(
    costs: Sequence[float], over: Sequence[Over] = OVER, *, rounds: int = 2, noise: float = 0.02, **more: Any
) -> Made:
    """A race in which all was checked and each candidate was visited in these rounds."""
    made = Made(over, **more)
    made.checked()
    made.noise = noise
    for number in range(1, rounds + 1):
        made.round(number, costs)
    return made


def next_of(made: Made) -> tuple[int, ...]:
    made.round(1, only=(0,))
    return made.next().candidates


def test_the_best_is_checked_against_the_starting_point_before_anything_follows() -> None:
    made = Made()
    made.round(1)
    step = made.next()
    base = made.candidates[0]
    assert step.specs == (agreement_key(base, base), agreement_key(made.candidates[2], base))
    for spec in step.specs:
        made.check(spec)
    assert isinstance(made.next(), Visits)
    assert made.entry(2).agreement is not None, "the optimizer changes no logits: one check is of both"
    assert made.entry(3).agreement == made.entry(2).agreement
    alike = Made((Over("optimizer", ("adamw", "adamw-fused")),))
    alike.round(1, (1.0, 0.99))
    assert isinstance(alike.next(), Visits), "one like the starting point but for its optimizer needs no check"
    assert alike.entry(1).agreement.agrees


def test_what_differs_is_shown_and_neither_best_nor_puts_anyone_out() -> None:
    made = Made()
    made.round(1, (1.0, 0.99, 0.3, 0.3))
    made.checked(wrong=[2])
    assert made.statuses == ["in the race", "best", "differs", "differs"]
    assert "logits" in made.entry(2).why
    assert made.entry(2).ratio == pytest.approx(0.3, rel=0.02)
    assert set(made.next().candidates) == {0, 1}


def test_a_check_that_broke_leaves_a_doubt_and_one_that_was_stopped_is_made_again() -> None:
    made = Made()
    made.round(1)
    step = made.next()
    made.check(step.specs[0])
    made.check(step.specs[1], status="cancelled")
    assert made.next() == Checks(step.specs[1:])
    made.check(step.specs[1], status="failed")
    assert isinstance(made.next(), Visits)
    best = made.race.best
    assert best.why == "its logits and gradients may differ: could not be checked: it broke"


def test_survivors_are_checked_where_that_costs_little() -> None:
    over = (Over("attention", ("naive", "sdpa")), Over("checkpoint", (0, 1)))
    made = Made(over)
    made.round(1, (1.0, 0.99, 0.97, 0.98))
    step = made.next()
    base = made.candidates[0]
    assert step.specs[1] == agreement_key(made.candidates[2], base)
    for spec in step.specs:
        made.check(spec)
    assert set(made.next(80.0).specs) == {agreement_key(made.candidates[number], base) for number in (1, 3)}
    assert isinstance(made.next(7.9), Visits), "2 s of checks are more than a quarter of what is left"


def test_a_race_is_not_decided_after_one_round_and_is_when_all_others_are_worse() -> None:
    costs = (1.0, 2.0, 0.5, 2.0)
    made = raced(costs, rounds=1)
    assert made.statuses == ["out", "out", "best", "out"]
    assert set(made.next().candidates) == {0, 2}
    for number in (2, 3, 4):
        if made.next() == Finish(ONE_LEFT):
            break
        made.round(number, costs)
    assert made.next() == Finish(ONE_LEFT)
    assert made.entry(0).why.endswith("of the best")
    made.tell(TuningEnded(at=made.at, reason=ONE_LEFT))
    assert (made.race.ended, made.race.spent_s) == (ONE_LEFT, made.at - START)


def test_candidates_within_the_margin_are_tied_and_the_race_is_decided() -> None:
    made = Made()
    made.checked()
    for number in range(1, 13):
        for candidate, cost in enumerate((1.0, 1.0, 0.5, 0.5)):
            made.visit(candidate, cost, round_=number, noise=0.0005)
    assert made.next() == Finish(DECIDED)
    made.tell(TuningEnded(at=made.at, reason=DECIDED))
    assert sorted(made.statuses) == ["best", "out", "out", "tied"]


def test_the_budget_cuts_those_who_could_be_best_and_takes_them_in_again() -> None:
    costs = (1.0, 0.999, 1.001, 1.002, 0.998, 1.003)
    made = raced(costs, (Over("checkpoint", (0, 1, 2, 3, 4, 5)),), rounds=1, noise=0.03)
    going = made.next(VISIT_S * 8).candidates
    assert 0 in going
    assert len(going) < 6
    made.round(2, costs, only=going)
    cut = {*range(6)}.difference(going)
    assert {number for number in range(6) if made.entry(number).status == "cut"} == cut
    assert {made.entry(number).why for number in cut} == {"the budget does not allow another visit of it"}
    assert set(made.next(1e4).candidates) == set(range(6)), "there is time again"


def test_the_last_two_take_turns_and_the_pair_is_decided_by_them() -> None:
    made = raced((2.0, 2.0, 0.80, 0.82))
    assert made.next() == Turns(2, 3)
    for _ in range(4):
        made.turns(2, 3, (0.80, 0.82))
    assert made.next() == Finish(ONE_LEFT)
    best, other = made.entry(2), made.entry(3)
    assert (best.status, other.status) == ("best", "out")
    assert best.visits == 6
    assert best.cost == pytest.approx(0.8, rel=0.01), "of visits alone"
    assert made.race.rounds == 2, "turns are no rounds"


def test_turns_of_different_tokens_compare_the_cost_of_a_token() -> None:
    made = raced((1.0, 1.98), (Over("batch_size", (4, 8)),), noise=0.03, goal="tokens/s")
    assert made.next() == Turns(0, 1)
    for _ in range(4):
        made.turns(0, 1, (1.0, 1.9))
    assert made.entry(1).ratio == pytest.approx(0.95, rel=0.01)
    assert made.entry(1).status == "best"


def test_what_cannot_take_turns_goes_on_in_rounds() -> None:
    made = raced((2.0, 2.0, 0.80, 0.81))
    assert made.next() == Turns(2, 3)
    made.turns(2, 3, (0.80, 0.81), status="oom")
    assert set(made.next().candidates) == {0, 2, 3}
    assert made.entry(2).status == "best", "both models at once are no fault of either"
    assert isinstance(raced((0.8, 0.81), (Over("threads", (1, 2)),), threads=1).next(), Visits)


def test_a_race_without_a_decision_ends_and_visits_the_starting_point_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cs336_tui.analysis.next_step.MOST_ROUNDS", 4)
    costs, turns = (2.0, 2.0, 0.80, 0.80), 0
    made = raced(costs)
    while not isinstance(step := made.next(), Finish):
        if isinstance(step, Visits):
            assert set(step.candidates) == {0, 2, 3}
            made.round(step.round, costs, only=step.candidates)
        else:
            made.turns(2, 3, (0.8, 1.04 if turns % 2 else 0.56))
            turns += 1
    assert step == Finish("not decided within 4 rounds")
    assert turns == TURNS_A_ROUND * 4


@pytest.mark.parametrize(
    ("end", "status", "why"),
    [
        ({"status": "oom", "error": "CUDA out of memory"}, "oom", "CUDA out of memory"),
        ({"status": "failed", "error": "RuntimeError: no"}, "failed", "RuntimeError: no"),
        ({"peak_allocated_bytes": 5 * 10**9}, "over the limit", "its peak of 5.00 GB is over the limit of 4.00 GB"),
    ],
)
def test_who_cannot_be_best_is_out_of_the_race_with_its_reason(end: dict[str, Any], status: str, why: str) -> None:
    made = Made(limit_bytes=4 * 10**9)
    made.round(1, only=(0, 1, 3))
    made.visit(2, 0.1, round_=1, **end)
    made.checked()
    assert (made.entry(2).status, made.entry(2).why) == (status, why)
    assert 2 not in made.next().candidates
    assert not made.entry(2).is_alive


def test_one_that_needs_as_much_as_another_that_ran_out_is_skipped_not_failed() -> None:
    made = Made()
    made.round(1, only=(0, 1))
    made.visit(2, 1.0, round_=1, status="oom", error="out of memory")
    made.cut_off(made.queue(3, round_=1), why := "cell 3 ran out of memory, and this one needs as much")
    assert made.statuses[2:] == ["oom", "skipped"]
    assert made.entry(3).why == why


def test_a_starting_point_over_the_limit_is_the_reference_and_not_the_best() -> None:
    made = Made(limit_bytes=4 * 10**9)
    made.visit(0, 0.5, round_=1, peak_allocated_bytes=5 * 10**9)
    made.round(1, only=(1, 2, 3))
    made.checked()
    assert made.statuses[0] == "over the limit"
    assert made.race.best.ratio == pytest.approx(1.6, rel=0.02)
    assert 0 in made.next().candidates


def test_a_starting_point_that_fails_ends_the_race() -> None:
    made = Made()
    made.visit(0, 1.0, round_=1, status="failed", error="it broke")
    made.round(1, only=(1, 2, 3))
    assert made.next() == Finish("the starting point could not be measured: it broke")
    assert made.race.best is None
    later = raced((1.0, 2.0, 0.5, 2.0), rounds=1)
    later.visit(0, 1.0, round_=2, status="failed", error="it broke")
    later.round(2, only=(1, 2, 3))
    assert (later.entry(0).status, later.entry(2).status) == ("failed", "best")
    step = later.next()
    assert isinstance(step, Turns) or 0 not in step.candidates
    nobody = Made(limit_bytes=10**8)
    nobody.round(1)
    assert (nobody.statuses, nobody.next()) == (["over the limit"] * 4, Finish(NONE_LEFT))


def test_without_time_the_race_ends_and_says_what_was_not_visited_or_checked() -> None:
    made = Made()
    made.round(1, only=(0, 1, 2))
    why = f"{BUDGET_ENDED} before it: a visit may take 20 s, and 8 s were left"
    made.cut_off(made.queue(3, round_=1), why)
    assert made.next(0.0) == made.next(0.5) == Finish(BUDGET_ENDED)
    made.tell(TuningEnded(at=made.at, reason=BUDGET_ENDED))
    assert made.statuses == ["out", "out", "best", "not visited"]
    assert made.entry(3).why == why
    assert made.entry(2).why == "its logits and gradients may differ: they were not checked"


def test_a_decision_says_of_whom_it_is_not() -> None:
    made = Made()
    made.checked()
    costs = (2.0, 2.0, 0.5)
    made.round(1, costs)
    made.cut_off(made.queue(3, round_=1))
    for number in (2, 3, 4):
        made.round(number, costs)
    assert made.next() == Finish(f"{ONE_LEFT}; the budget did not allow a visit of 1 candidate")


@pytest.mark.parametrize("left_s", [VISIT_S, 1.9 * VISIT_S])
def test_a_step_that_does_not_fit_is_not_begun(left_s: float) -> None:
    made = raced((2.0, 2.0, 0.80, 0.81))
    assert made.next(left_s) == Finish(BUDGET_ENDED)


def test_memory_is_measured_once() -> None:
    made = Made(goal="memory")
    for number, gigabytes in enumerate((4.0, 4.0, 3.0, 2.97)):
        made.visit(number, 1.0, round_=1, peak_allocated_bytes=int(gigabytes * 1e9))
    assert isinstance(made.next(), Checks)
    made.checked()
    assert made.next() == Finish(MEASURED)
    assert made.statuses == ["out", "out", "out", "best"]
    assert made.entry(3).ratio == pytest.approx(2.97 / 4)


def test_energy_that_cannot_be_read_is_said_and_a_visit_that_waited_for_a_core_puts_nobody_out() -> None:
    made = Made(goal="tokens/J")
    made.round(1)
    assert (made.entry(0).status, "sample" in made.entry(0).why) == ("failed", True)
    assert isinstance(made.next(), Finish)
    made = Made(device="cpu")
    made.round(1, only=(0, 2))
    for number in (1, 3):
        made.visit(number, 2.0, round_=1, longest_cpu_wait_s=5.0)
    assert made.entry(1).status == "in the race"


def test_the_budget_is_used_by_the_race_alone() -> None:
    made = Made()
    made.round(1)
    spent = made.at - START
    made.tell(SessionEnded(at=made.at, reason="interrupted"), SessionAnnotated(at=made.at + 500, name="a name"))
    made.tell(SessionResumed(at=made.at + 1000, app="0.1.0"))
    made.at += 1000
    made.round(2)
    assert made.race.spent_s == pytest.approx(2 * spent)
    made.tell(msgspec.structs.replace(made.state.tuning, at=made.at, spent_s=3.0))
    assert (made.race.spent_s, made.race.began_at) == pytest.approx((3.0, made.at - 3.0))
    assert made.statuses == ["waiting"] * 4, "cells from before are no visits"
