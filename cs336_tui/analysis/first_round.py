"""The first round of a race: one visit of each candidate, or of those that promise most where the budget is short."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from cs336_tui.analysis.tuning import BARRED, Race, solo
from cs336_tui.config.tuning import Tuning, changed
from cs336_tui.session.visits import Visited, visit_s

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

    costs = {
        entry.number: math.log(entry.ratio)
        for entry in race.entries
        if entry.ratio is not None and entry.status not in BARRED
    }
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
