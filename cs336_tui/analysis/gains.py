"""Gains of each searched choice: alone, and beside the other choices of the best candidate."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cs336_tui.analysis.tuning import Race
from cs336_tui.config.axis import SpecError
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.tuning import Tuning, Value, candidate
from cs336_tui.stats.quantities import is_too_noisy
from cs336_tui.stats.racing import Standing

Choices = tuple[tuple[str, Value], ...]
"""A value for each searched choice, by its field."""


class Factor(NamedTuple):
    """A ratio of two candidates' costs with its simultaneous interval; without one, `low` and `high` are None."""

    ratio: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, ratio: float, low: float | None, high: float | None) -> Factor:
        """Without the interval if that is too noisy to say something."""
        says = low is not None and high is not None and not is_too_noisy(low, high)
        return cls(ratio, low, high) if says else cls(ratio, None, None)

    def overlaps(self, other: Factor) -> bool | None:
        """True if one ratio may be both; None if either has no interval."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return None
        return self.low <= other.high and other.low <= self.high


class Gain(NamedTuple):
    """One value of a choice in place of the starting point's. `alone` is the cost of the starting point with this value
    over its own; `beside` the same where all other choices are the best candidate's. Each is None if one of the two
    candidates was not measured, or if they are one. They interact if the two ratios cannot be one."""

    field: str
    value: Value
    is_best: bool
    """True if the best candidate has this value."""
    alone: Factor | None
    beside: Factor | None

    @property
    def interacts(self) -> bool | None:
        """True if the value gains another ratio beside the others than alone; None if that cannot be told."""
        same = self.alone.overlaps(self.beside) if self.alone and self.beside else None
        return None if same is None else not same


class Together(NamedTuple):
    """The best candidate's cost over the starting point's, and the product of what its choices gain alone: the ratio
    that it would have if none interacted. `product` is None if one of them was not measured."""

    ratio: Factor
    product: float | None


def gains_of(race: Race) -> tuple[Gain, ...]:
    """The gains of all values but the starting point's, choices and values in the order of the search; none without a
    best candidate."""
    if race.best is None:
        return ()
    number_of = {entry.spec: entry.number for entry in race.entries}
    numbers = {choices: number_of.get(spec) for choices, spec in _combinations(race.tuning)}
    start, best = (_choices_of(number, numbers) for number in (0, race.best.number))
    by_number, best_number = {each.candidate: each for each in race.standings}, race.best.number

    def factor(choices: Mapping[str, Value], over: Mapping[str, Value]) -> Factor | None:
        pair = [numbers.get(tuple(each.items())) for each in (choices, over)]
        one, other = (None if number is None else by_number.get(number) for number in pair)
        return _factor(one, other, best_number) if one and other and one != other else None

    found = []
    for each in race.tuning.over:
        for value in each.values:
            if value != start[each.field]:
                alone = factor({**start, each.field: value}, start)
                beside = factor({**best, each.field: value}, {**best, each.field: start[each.field]})
                found.append(Gain(each.field, value, best[each.field] == value, alone, beside))
    return tuple(found)


def together(race: Race, gains: tuple[Gain, ...]) -> Together | None:
    """The gain of all the best candidate's choices at once; None if it changes fewer than two."""
    mine = [gain for gain in gains if gain.is_best]
    best = race.best
    if best is None or best.ratio is None or len(mine) < 2:
        return None
    alone = [gain.alone.ratio for gain in mine if gain.alone]
    product = math.prod(alone) if len(alone) == len(mine) else None
    return Together(Factor(best.ratio, best.low, best.high), product)


def _combinations(tuning: Tuning) -> Iterator[tuple[Choices, CellSpec]]:
    """Every combination of values, the starting point's among them, and its cell; several may make one cell."""
    values = [tuple(dict.fromkeys((_start_value(tuning, each.field), *each.values))) for each in tuning.over]
    for combination in itertools.product(*values):
        choices = tuple((each.field, value) for each, value in zip(tuning.over, combination, strict=True))
        with contextlib.suppress(SpecError):
            yield choices, candidate(tuning, dict(choices))


def _choices_of(number: int, numbers: Mapping[Choices, int | None]) -> dict[str, Value]:
    """The first combination that makes a candidate."""
    return dict(next(choices for choices, found in numbers.items() if found == number))


def _start_value(tuning: Tuning, field: str) -> Any:
    """The starting point's value of a choice; of a batch that is searched, its micro-batch if steps keep tokens."""
    base = tuning.base
    if field == "batch_size" and tuning.keeps_tokens:
        return base.rank_batch_size // base.accumulate
    return getattr(base, field)


def _factor(one: Standing, other: Standing, best: int) -> Factor:
    """The cost of one candidate over another's. There is an interval where one of them is the starting point or the
    best."""
    if other.candidate == 0:
        return Factor.of(one.ratio, one.low, one.high)
    if one.candidate == 0:
        return _inverse(Factor.of(other.ratio, other.low, other.high))
    if other.candidate == best:
        return Factor.of(one.behind, one.behind_low, one.behind_high)
    if one.candidate == best:
        return _inverse(Factor.of(other.behind, other.behind_low, other.behind_high))
    return Factor(one.ratio / other.ratio, None, None)


def _inverse(of: Factor) -> Factor:
    low, high = (None if bound is None else 1 / bound for bound in (of.high, of.low))
    return Factor(1 / of.ratio, low, high)
