"""Findings of results: the fastest and the slowest cells, the ratios along each choice that was swept, the peaks of
memory. A difference is claimed only where the interval of the ratio supports it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from cs336_tui.analysis.ab import runs_in_turns, turns_of
from cs336_tui.analysis.fields import values, varies
from cs336_tui.analysis.grouping import PLACES, TELLING, groups, shown, telling
from cs336_tui.analysis.measures import allocated_bytes, resident_bytes
from cs336_tui.analysis.merge import Result, ddof_of, grouped, measured, pooled, runs_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.stats.intervals import LEVEL, MeanInterval, t_quantile, t_tail
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
    """Results of the same peak memory, and the device's own, where it is known."""

    kind: str
    bytes: int
    results: tuple[Result, ...]
    capacity_bytes: int | None


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
    in_turns = _ratios_in_turns([run for cell in cells for run in cell.runs])
    firsts = [cell.first for cell in cells]
    by_result = {id(cell.first): cell for cell in cells}
    for key, apart in _swept(firsts):
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


def _ratios_in_turns(results: Sequence[Result]) -> dict[tuple[CellSpec, CellSpec], Ratio]:
    """The ratio of each two specs of which all runs took turns, either way round."""
    found: dict[tuple[CellSpec, CellSpec], Ratio] = {}
    for rounds in runs_in_turns(results):
        turns = turns_of(rounds)
        if turns.ratio:
            found[turns.a.spec, turns.b.spec] = turns.ratio
            found[turns.b.spec, turns.a.spec] = turns.ratio.inverse
    return found


def _swept(results: Sequence[Result]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The choices that vary, each with the fields that may differ beside it."""
    together = [key for key in ("session", *_HERE) if varies(results, key)]
    yield from ((key, (key,)) for key in TELLING if key not in _HERE and varies(results, key))
    if together:
        yield together[0], _HERE


def peaks(results: Sequence[Result]) -> tuple[Peak, Peak] | None:
    """The largest and the smallest peak of the measured cells: allocated on the device, or, where no cell's is known,
    resident of the process. None where neither is known."""
    for kind, read in (("allocated", allocated_bytes), ("RSS", resident_bytes)):
        sizes = [(size, result) for result in measured(results) if (size := read(result.cell)) is not None]
        if sizes:
            by_size = grouped(sizes, lambda pair: pair[0])
            return tuple(  # type: ignore[return-value]
                Peak(kind, size, tuple(result for _, result in by_size[size]), _capacity(by_size[size][0][1]))
                for size in (max(by_size), min(by_size))
            )
    return None


def _capacity(result: Result) -> int | None:
    device = result.environment.device(result.spec.device) if result.environment else None
    return device.memory_bytes if device else None
