"""Findings of results: the fastest and the slowest cells, the ratios along each choice that was swept, the gains of
each choice that was searched, the peaks of memory. A difference is claimed only where the interval of the ratio
supports it."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cs336_tui.analysis.ab import runs_in_turns, turns_of
from cs336_tui.analysis.fields import values, varies
from cs336_tui.analysis.grouping import PLACES, TELLING, groups, shown, telling
from cs336_tui.analysis.measures import allocated_bytes, resident_bytes, tensor_bytes
from cs336_tui.analysis.merge import Result, ddof_of, grouped, measured, pooled, runs_of
from cs336_tui.analysis.tuning import Race
from cs336_tui.config.axis import SpecError
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.tuning import Tuning, Value, candidate
from cs336_tui.stats.intervals import LEVEL, MeanInterval, t_quantile, t_tail
from cs336_tui.stats.quantities import is_too_noisy
from cs336_tui.stats.racing import Standing
from cs336_tui.stats.ratio import Outcome, Ratio, independent, outcome, ratio_of
from cs336_tui.stats.summaries import Summary

MOST_VALUES = 4
"""Values of a choice that are each compared with its first one; of more of them, the last one alone is."""
_HERE = ("device", *PLACES)
"""Fields that change together from one machine to another, as one choice."""


class Timed(NamedTuple):
    """All measured runs of one cell at one place. `mean_s` is over the steps of all; `low` and `high` bound it, in
    seconds, at `LEVEL`, None where that is not known."""

    runs: tuple[Result, ...]
    summary: Summary
    low: float | None
    high: float | None

    @property
    def first(self) -> Result:
        return self.runs[0]

    @property
    def mean_s(self) -> float:
        return self.summary.mean_s or 0.0

    @property
    def half_share(self) -> float | None:
        """Half the interval over the mean."""
        if self.low is None or self.high is None or not self.mean_s:
            return None
        return (self.high - self.low) / 2 / self.mean_s


class Versus(NamedTuple):
    """A cell against one that differs in one choice alone; `ratio` is its mean step time over the other's."""

    base: Timed
    other: Timed
    ratio: Ratio | None

    @property
    def outcome(self) -> Outcome:
        return outcome(self.ratio)


class Along(NamedTuple):
    """A value of a swept choice against the choice's first one, in every pair of cells alike in all else."""

    key: str
    base: str
    other: str
    pairs: tuple[Versus, ...]

    def count(self, of: Outcome) -> int:
        return sum(pair.outcome == of for pair in self.pairs)


class Extremes(NamedTuple):
    """The cells of the least and of the greatest mean, each followed by those that no interval tells apart from it.
    `ratio` is the slowest's mean over the fastest's."""

    fastest: tuple[Timed, ...]
    slowest: tuple[Timed, ...]
    ratio: Ratio | None


class Peak(NamedTuple):
    """Results of the same peak memory."""

    kind: str
    bytes: int
    results: tuple[Result, ...]

    @property
    def capacity_bytes(self) -> int | None:
        """The device's own, where it is known."""
        device = self.results[0].device
        return device.memory_bytes if device else None


def timed(results: Sequence[Result], interval_of: Callable[[Result], MeanInterval | None]) -> tuple[Timed, ...]:
    """The measured cells, repeats of one together, in order. The interval of a single run is `interval_of` it; of
    several it is Student's, from the runs' means."""
    alike = grouped(measured(results), lambda result: (result.spec, *shown(result, PLACES)))
    return tuple(_timed(tuple(runs), interval_of) for runs in alike.values())


def _timed(runs: tuple[Result, ...], interval_of: Callable[[Result], MeanInterval | None]) -> Timed:
    summary = pooled(runs, ddof_of(runs))
    assert summary is not None  # they are measured
    if len(runs) == 1:
        found = interval_of(runs[0])
        return Timed(runs, summary, found.low if found else None, found.high if found else None)
    means = independent([math.fsum(times_s) / len(times_s) for times_s in runs_of(runs)])
    half = t_quantile(t_tail(LEVEL), means.df) * math.sqrt(means.variance)
    return Timed(runs, summary, max(means.mean - half, 0.0), means.mean + half)


def ratio(of: Timed, over: Timed) -> Ratio | None:
    """The ratio of two cells' mean step times, from the runs or the steps of both."""
    return ratio_of(runs_of(of.runs), runs_of(over.runs))


def extremes(cells: Sequence[Timed]) -> Extremes | None:
    """The fastest and the slowest; None of fewer than two cells."""
    if len(cells) < 2:
        return None
    up = sorted(cells, key=lambda cell: cell.mean_s)
    least, most = up[0], up[-1]
    fastest = (least, *(cell for cell in up[1:] if outcome(ratio(cell, least)) != "slower"))
    slowest = (most, *(cell for cell in up[-2::-1] if outcome(ratio(cell, most)) != "faster"))
    return Extremes(fastest, slowest, ratio(most, least))


def along(cells: Sequence[Timed]) -> Iterator[Along]:
    """Each choice that was swept: its values against the first one. Machine, device, session and versions, which seldom
    change alone, are one choice. Two cells that ran in turns have the ratio of their pairs of steps."""
    in_turns: dict[tuple[CellSpec, CellSpec], Ratio] = {}
    for turns in map(turns_of, runs_in_turns([run for cell in cells for run in cell.runs])):
        if turns.ratio:
            in_turns[turns.a.spec, turns.b.spec] = turns.ratio
            in_turns[turns.b.spec, turns.a.spec] = turns.ratio.inverse
    firsts = [cell.first for cell in cells]
    by_result = {id(cell.first): cell for cell in cells}
    # Choices that vary, each with the fields that may differ beside it.
    swept: list[tuple[str, tuple[str, ...]]]
    swept = [(key, (key,)) for key in TELLING if key not in _HERE and varies(firsts, key)]
    swept += [(key, _HERE) for key in ("session", *_HERE) if varies(firsts, key)][:1]
    for key, apart in swept:
        alike = groups(firsts, telling(firsts, but=apart)).values()
        first, *others = values(firsts, key)
        for other in others if len(others) < MOST_VALUES else others[-1:]:
            pairs = []
            for members in alike:
                sides = groups(members, (key,))
                here, there = sides.get((first,), []), sides.get((other,), [])
                if len(here) == len(there) == 1:
                    base, against = by_result[id(here[0])], by_result[id(there[0])]
                    paired = in_turns.get((against.first.spec, base.first.spec))
                    pairs.append(Versus(base, against, paired or ratio(against, base)))
            if pairs:
                yield Along(key, first, other, tuple(pairs))


def peaks(results: Sequence[Result]) -> tuple[Peak, Peak] | None:
    """The largest and the smallest peak of the measured cells: allocated on the device, or, where no cell's is known,
    of tensors by the memory report, or resident of the process. None where none is known."""
    readings: Mapping[str, Callable[[Result], int | None]] = {
        "allocated": lambda result: allocated_bytes(result.cell),
        "tensors": tensor_bytes,
        "RSS": lambda result: resident_bytes(result.cell),
    }
    for kind, read in readings.items():
        sizes = [(size, result) for result in measured(results) if (size := read(result)) is not None]
        if sizes:
            by_size = grouped(sizes, lambda pair: pair[0])
            return tuple(  # type: ignore[return-value]
                Peak(kind, size, tuple(result for _, result in by_size[size])) for size in (max(by_size), min(by_size))
            )
    return None


Choices = tuple[tuple[str, Value], ...]
"""A value for each searched choice, by its field."""
FROM_RACE = "simultaneous t interval of the race's candidates"


class Gain(NamedTuple):
    """One value of a choice in place of the starting point's. `alone` is the cost of the starting point with this value
    over its own; `beside` the same where all other choices are the best candidate's. Each is None if one of the two
    candidates was not measured, or if they are one. They interact if the two ratios cannot be one."""

    field: str
    value: Value
    is_best: bool
    """True if the best candidate has this value."""
    alone: Ratio | None
    beside: Ratio | None

    @property
    def interacts(self) -> bool | None:
        """True if the value gains another ratio beside the others than alone; None if that cannot be told."""
        known = [(each.low, each.high) for each in (self.alone, self.beside) if each and each.low and each.high]
        if len(known) < 2:
            return None
        (low, high), (other_low, other_high) = known
        return low > other_high or other_low > high


class Together(NamedTuple):
    """The best candidate's cost over the starting point's, and the product of what its choices gain alone: the ratio
    that it would have if none interacted. `product` is None if one of them was not measured."""

    ratio: Ratio
    product: float | None


def gains_of(race: Race) -> tuple[Gain, ...]:
    """The gains of all values but the starting point's, choices and values in the order of the search; none without a
    best candidate."""
    if race.best is None:
        return ()
    number_of = {entry.spec: entry.number for entry in race.entries}
    numbers = {choices: number_of.get(spec) for choices, spec in _combinations(race.tuning)}
    start, best = (  # the first combination that makes each
        dict(next(choices for choices, made in numbers.items() if made == number)) for number in (0, race.best.number)
    )
    by_number, best_number = {each.candidate: each for each in race.standings}, race.best.number

    def factor(choices: Mapping[str, Value], over: Mapping[str, Value]) -> Ratio | None:
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
    return Together(_interval(best.ratio, best.low, best.high), product)


def _combinations(tuning: Tuning) -> Iterator[tuple[Choices, CellSpec]]:
    """Every combination of values, the starting point's among them, and its cell; several may make one cell. Of a batch
    that is searched the starting point has its micro-batch if steps keep tokens."""
    start = {each.field: getattr(tuning.base, each.field) for each in tuning.over}
    if "batch_size" in start and tuning.keeps_tokens:
        start["batch_size"] = tuning.base.rank_batch_size // tuning.base.accumulate
    values = [tuple(dict.fromkeys((start[each.field], *each.values))) for each in tuning.over]
    for combination in itertools.product(*values):
        choices = tuple((each.field, value) for each, value in zip(tuning.over, combination, strict=True))
        with contextlib.suppress(SpecError):
            yield choices, candidate(tuning, dict(choices))


def _factor(one: Standing, other: Standing, best: int) -> Ratio:
    """The cost of one candidate over another's. There is an interval where one of them is the starting point or the
    best."""
    if other.candidate == 0:
        return _interval(one.ratio, one.low, one.high)
    if other.candidate == best and one.candidate != 0:
        return _interval(one.behind, one.behind_low, one.behind_high)
    if one.candidate in (0, best):
        return _factor(other, one, best).inverse
    return _interval(one.ratio / other.ratio, None, None)


def _interval(ratio: float, low: float | None, high: float | None) -> Ratio:
    """A ratio of two candidates' costs with its simultaneous interval, unless that is too noisy to say something."""
    if low is None or high is None or is_too_noisy(low, high):
        low = high = None
    return Ratio(ratio, low, high, LEVEL, FROM_RACE)
