"""First visits of a race: all candidates where there is time, else values one at a time, then what they promise."""

from cs336_tui.config.order import Checks, Finish
from cs336_tui.config.tuning import BUDGET_ENDED, NOT_AFFORDED, Over
from tests.analysis.racing import VISIT_S, Made

OVER = (
    Over("attention", ("naive", "sdpa")),
    Over("checkpoint", (0, 1, 2)),
    Over("optimizer", ("adamw", "adamw-fused", "adamw-foreach")),
)
FACTORS = (1.0, 0.5), (1.0, 1.3, 1.5), (1.0, 0.9, 1.1)
COSTS = tuple(a * b * c for a in FACTORS[0] for b in FACTORS[1] for c in FACTORS[2])
"""Of candidates by number: the last choice changes fastest."""
SDPA, VALUES = 9, (9, 3, 1, 6, 2)
"""Candidates with one value each that is not the starting point's: a value of each choice, then another one."""
HALF_S = 50.0
"""Seconds left of the budget when the first round has used its part."""


def begun(over: tuple[Over, ...] = OVER, **more: object) -> Made:
    """A race whose starting point was visited."""
    made = Made(over, **more)  # type: ignore[arg-type]
    made.round(1, COSTS, only=(0,))
    return made


def tried(*, wrong: tuple[int, ...] = (), failed: tuple[int, ...] = ()) -> Made:
    """A race in which each value was visited by itself, and what is checked was checked."""
    made = begun()
    for number in VALUES:
        made.visit(number, COSTS[number], round_=1, status="failed" if number in failed else "ok")
    made.checked(wrong=wrong)
    return made


def visits(made: Made, left_s: float) -> tuple[int, ...]:
    step = made.next(left_s)
    assert step.round == 1
    return step.candidates


def test_with_time_for_all_come_the_starting_point_each_value_and_then_all_others() -> None:
    made = Made(OVER)
    seen = []
    for number in range(3):
        seen.append(visits(made, 90.0 - number))
        made.round(1, COSTS, only=seen[-1])
    assert seen[0] == (0,)
    assert sorted(seen[1]) == sorted(VALUES)
    assert sorted(seen[2]) == sorted({*range(18)} - {0, *VALUES})
    assert list(seen[2]) != sorted(seen[2]), "in an order that favours none"
    assert isinstance(made.next(), Checks)


def test_where_time_is_short_a_value_of_each_choice_comes_first() -> None:
    made = begun()
    assert visits(made, 3.5 * VISIT_S) == VALUES[:3]
    made.round(1, COSTS, only=VALUES[:3])
    assert sorted(visits(made, 2.5 * VISIT_S)) == [2, 6]


def test_what_the_values_promise_together_is_visited_next_as_long_as_half_of_the_budget_lasts() -> None:
    made = tried()
    assert visits(made, HALF_S + 5 * VISIT_S) == (10, 11, 13, 12, 16)
    assert visits(made, HALF_S + 5 * VISIT_S) == visits(made, HALF_S + 5 * VISIT_S), "the same for the same state"
    assert visits(made, HALF_S - 20) == (10,), "the best of them in any case"
    made.round(1, COSTS, only=(10, 11))
    step = made.next(HALF_S)
    assert step.round == 2
    assert set(step.candidates) <= {0, *VALUES, 10, 11}
    made.round(2, COSTS, only=step.candidates)
    assert (made.entry(17).status, made.entry(17).why) == ("not visited", NOT_AFFORDED)
    assert not made.entry(17).is_alive


def test_the_best_value_is_checked_before_others_are_chosen_by_it() -> None:
    made = begun()
    made.round(1, COSTS, only=VALUES)
    assert isinstance(made.next(HALF_S + 5 * VISIT_S), Checks)
    made.checked(wrong=(SDPA,))
    assert made.entry(10).status == "differs", "its check is that of the value alone"
    assert visits(made, HALF_S + 5 * VISIT_S) == (4, 7, 5, 8, 13)


def test_what_has_a_value_that_failed_comes_last() -> None:
    made = tried(failed=(SDPA,))
    assert visits(made, HALF_S + 5 * VISIT_S) == (4, 7, 5, 8, 10)


def test_a_value_that_needs_another_one_is_tried_with_as_few_changes_as_can_be() -> None:
    made = begun((Over("ranks", (1, 2)), Over("parallel", ("ddp", "fsdp2")), Over("checkpoint", (0, 1))), batch_size=4)
    together = visits(made, HALF_S + 5 * VISIT_S)
    labels = {made.entry(number).label for number in together}
    assert labels == {"checkpoint 1", "ranks 2, parallel ddp", "ranks 2, parallel fsdp2"}


def test_a_round_whose_visits_the_budget_all_refused_ends_the_race() -> None:
    made = tried()
    made.round(1, COSTS, only=(10,))
    step = made.next(20.0)
    assert step.round == 2
    made.cut_off(made.queue(*step.candidates, round_=2))
    assert made.next(19.0) == Finish(BUDGET_ENDED)
