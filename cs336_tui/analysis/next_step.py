"""The next step of a race: a pure function of its session's state and of what is left of the budget. The first
round is one visit of each candidate, or of those that promise most where the budget is short."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from cs336_tui.analysis.tuning import BARRED, NO_START, Race, race_of, solo, unchecked, was_cut_off
from cs336_tui.config.order import Checks, Finish, Step, Turns, Visits, check_sides
from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.config.tuning import BUDGET_ENDED, Goal, Tuning, changed
from cs336_tui.session.state import SessionState, Visited, check_s, turns_s, visit_s, visits_of
from cs336_tui.stats.quantities import counted
from cs336_tui.stats.racing import affordable, is_decided, keep, take_turns
from cs336_tui.stats.ratio import MARGIN

_SHARE = 0.5
"""Share of the budget for first visits; the rest is for more visits of the best, without which there is no interval."""

_Changes = Mapping[int, Sequence[tuple[str, Any]]]
"""The values of each candidate that are not the starting point's, by field."""


class FirstVisits(NamedTuple):
    """Candidates in the order in which they are visited for the first time. They are `promising` if there is no time
    for all others: then it is by what was measured that they are chosen."""

    candidates: tuple[int, ...]
    promising: bool = False


def first_round_s(tuning: Tuning) -> float:
    """Seconds of the budget that first visits may take. Peak memory is measured once, so there all of it."""
    return tuning.budget_s * (1.0 if tuning.goal == "memory" else _SHARE)


def first_visits(race: Race, visited: Visited, left_s: float) -> FirstVisits | None:
    """The next first visits, with so many seconds of the budget left; None if the first round is over.

    First the starting point; then each other value once, with as few other changes as can be; then all others, in
    orders that favour none. Where time is short, values go choice by choice, a value of each at a time, and of the
    others those go first whose values promise most (`_by_promise`), one of them in any case, as long as
    `first_round_s` lasts.
    """
    entries = sorted(race.entries, key=lambda entry: entry.number)
    specs = [entry.spec for entry in entries]
    new = [each.number for each in entries if each.status not in BARRED and not any(solo(visited.get(each.number, ())))]
    if 0 in new:
        return FirstVisits((0,))
    takes_s = {number: visit_s(visited, specs, number) or 0.0 for number in new}
    changes = {number: tuple(changed(race.tuning, spec).items()) for number, spec in enumerate(specs)}
    values = _each_value(changes, race.tuning)
    if chosen := _in_time([number for number in values if number in takes_s], takes_s, left_s):
        return FirstVisits(chosen)
    spare_s = left_s - race.tuning.budget_s + first_round_s(race.tuning)
    if not new or sum(takes_s.values()) <= spare_s:
        return FirstVisits(in_own_order(new, 1)) if new else None
    order = _by_promise(race, changes, new)
    chosen = _in_time(order, takes_s, spare_s, shuffle=False)
    if not chosen and visited.keys() <= {0, *values}:
        chosen = _in_time(order[:1], takes_s, left_s)
    return FirstVisits(chosen, promising=True) if chosen else None


def in_own_order(candidates: Iterable[int], round_: int) -> tuple[int, ...]:
    """In an order of the round's own, so that drift favours none."""
    order = sorted(candidates)
    random.Random(round_).shuffle(order)
    return tuple(order)


def _each_value(changes: _Changes, tuning: Tuning) -> tuple[int, ...]:
    """For each value the candidate that has it and changes least; first a value of each choice, then another one."""
    simplest: dict[tuple[str, Any], int] = {}
    for number in sorted(changes, key=lambda number: (len(changes[number]), number)):
        for change in changes[number]:
            simplest.setdefault(change, number)
    fields = (*(each.field for each in tuning.over), "accumulate")  # as `changed`
    of_each = [[number for (of, _), number in simplest.items() if of == field] for field in fields]
    return tuple(dict.fromkeys(number for row in zip_longest(*of_each) for number in row if number is not None))


def _in_time(
    order: Sequence[int], takes_s: Mapping[int, float], room_s: float, *, shuffle: bool = True
) -> tuple[int, ...]:
    """Those that fit into the time, the first ones first; all of them in an order that favours none."""
    chosen = []
    for number in order:
        if takes_s[number] <= room_s:
            chosen.append(number)
            room_s -= takes_s[number]
    return in_own_order(chosen, 1) if shuffle and len(chosen) == len(order) else tuple(chosen)


def _by_promise(race: Race, changes: _Changes, new: Sequence[int]) -> list[int]:
    """The candidates by the costs that they would have if no two values interacted, by least squares from those that
    were measured: the least first. Last those with a value of which none was measured."""
    import numpy as np

    allowed = [entry for entry in race.entries if entry.status not in BARRED]
    costs = {entry.number: math.log(entry.ratio) for entry in allowed if entry.ratio is not None}
    values = list(dict.fromkeys(change for number in costs for change in changes[number]))
    effects: dict[tuple[str, Any], float] = {}
    if values:
        rows = np.array([[value in changes[number] for value in values] for number in costs], dtype=float)
        found = np.linalg.lstsq(rows, np.array(list(costs.values())), rcond=None)[0]
        effects = dict(zip(values, map(float, found), strict=True))

    def promise(number: int) -> tuple[int, float, int]:
        unknown = sum(change not in effects for change in changes[number])
        return unknown, round(sum(effects.get(change, 0.0) for change in changes[number]), 9), number

    return sorted(new, key=promise)


DECIDED = f"decided: every other candidate is worse than the best, or within {MARGIN:.0%} of it"
ONE_LEFT = "decided: no other candidate can be best"
MEASURED = "every candidate was measured once, as peak memory hardly varies"
NONE_LEFT = "no candidate could be measured"
MOST_ROUNDS = 200
"""Rounds after which a race ends even if nothing is decided."""
TURNS_A_ROUND = 4
"""Rounds of a pair in turns for each round of visits, which tell their ratios to the starting point."""
FEWEST_ROUNDS = 2
"""Rounds before a race is decided or the last two run in turns: one round has no interval."""
_CHECKS_SHARE = 0.25
"""Share of what is left of the budget that checks of others than the best may take."""


def next_step(state: SessionState, left_s: float) -> Step:
    """The next step of the session's race, of whose budget so many seconds are left. Visits that are queued are over.

    Each candidate is visited once, as far as the budget allows (`first_visits`). Then, before each round, the best is
    checked, and the others that could be best where that costs little; the round has as many of those that could be
    best, by their standing, as the budget allows (`racing.affordable`). When two are left, or are all that the budget
    affords, they take turns.
    """
    race = race_of(state)
    assert race is not None, "a race was begun"
    candidates = [entry.spec for entry in sorted(race.entries, key=lambda entry: entry.number)]
    if left_s <= 0:
        return Finish(BUDGET_ENDED)
    visited, best = visits_of(state), race.best
    if race.start.status in ("oom", "failed") and race.start.cost is None:
        return Finish(f"{NO_START}: {race.start.why}")
    first = first_visits(race, visited, left_s) if race.rounds < FEWEST_ROUNDS else None
    if first and not first.promising:
        return Visits(first.candidates, 1)
    one_check_s = check_s(state)
    if best is not None and (specs := unchecked(state, [best.number])):
        return Checks(specs) if len(specs) * one_check_s <= left_s else Finish(BUDGET_ENDED)
    if first:
        return Visits(first.candidates, 1)
    if best is None:
        return Finish(NONE_LEFT)
    in_round = (cell for cells in visited.values() for cell in solo(cells) if cell.repeat == race.rounds)
    if race.rounds >= FEWEST_ROUNDS and all(map(was_cut_off, in_round)):
        return Finish(BUDGET_ENDED)
    if race.tuning.goal == "memory":
        return Finish(_of_visited(race, MEASURED))
    barred = {entry.number for entry in race.entries if entry.status in BARRED}
    allowed = [standing for standing in race.standings if standing.candidate not in barred]
    tied = [standing for standing in allowed if standing.is_tied]
    is_settled = len(tied) < 2 or is_decided(tied)
    if is_settled:
        if race.rounds >= FEWEST_ROUNDS or len(allowed) < 2:
            return Finish(_of_visited(race, ONE_LEFT if len(tied) < 2 else DECIDED))
        tied = allowed[:2]
    if specs := unchecked(state, [standing.candidate for standing in tied]):
        if len(specs) * one_check_s <= left_s * _CHECKS_SHARE:
            return Checks(specs)
        left_s -= one_check_s  # another one may become the best
    takes_s = [visit_s(visited, candidates, number) or 0.0 for number in range(len(candidates))]
    chosen = tuple(standing.candidate for standing in tied)
    if not is_settled:
        chosen = keep(tied, affordable(len(visited), left_s / race.tuning.budget_s))
    if take_turns(allowed, chosen):
        a, b = sorted(chosen)
        taken = _taken_turns(race.tuning.goal, visited, candidates, a, b)
        if taken is not None and taken < TURNS_A_ROUND * race.rounds:
            return Turns(a, b) if turns_s(visited, candidates, a, b) <= left_s else Finish(BUDGET_ENDED)
    if race.rounds >= MOST_ROUNDS:
        return Finish(f"not decided within {MOST_ROUNDS} rounds")
    reference = () if race.start.status in ("oom", "failed") else (0,)
    while sum(takes_s[number] for number in {*chosen, *reference}) > left_s:
        if len(chosen) == 2:
            return Finish(BUDGET_ENDED)
        chosen = chosen[:-1]
    return Visits(in_own_order({*chosen, *reference}, race.rounds + 1), race.rounds + 1)


def _of_visited(race: Race, reason: str) -> str:
    """The reason, and of how many candidates it does not hold."""
    left = sum(entry.status in ("waiting", "not visited") for entry in race.entries)
    return f"{reason}; the budget did not allow a visit of {counted(left, 'candidate')}" if left else reason


def _taken_turns(goal: Goal, visited: Visited, candidates: Sequence[CellSpec], a: int, b: int) -> int | None:
    """The rounds that two candidates took in turns; None if they cannot take turns: an energy counter cannot tell two
    apart, and both models may not fit at once."""
    if goal == "tokens/J":
        return None
    try:
        check_sides(candidates[a], candidates[b])
    except SpecError:
        return None
    processes = [{cell.pid for cell in visited[number] if cell.in_turns} for number in (a, b)]
    together = [cell for cell in visited[a] if cell.in_turns and cell.pid in processes[0] & processes[1]]
    if any(cell.status in ("oom", "failed", "killed") for cell in together):
        return None
    return sum(cell.status == "ok" for cell in together)
