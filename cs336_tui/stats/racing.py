"""A race: candidates are measured in rounds until few are left, and the last two in turns.

A round is one visit of each candidate still in, a process each, with candidate 0, the starting point, always among
them. After each round `standings` says who is worse than the best, and `keep` who goes on.

The method is a race (Maron and Moore 1994), blocked by rounds as in F-Race (Birattari et al. 2002) and irace
(López-Ibáñez et al. 2016). Those use Hoeffding's bound and ranks; here log costs follow a linear model, as visits are
few and ratios are asked for. The budget is kept by sequential halving (Karnin, Koren and Somekh 2013), a relative of
successive rejects (Audibert, Bubeck and Munos 2010). `benchmarks/racing.py` simulates it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from statistics import median, stdev
from typing import TYPE_CHECKING, NamedTuple

from cs336_tui.stats.intervals import LEVEL, t_quantile, t_tail
from cs336_tui.stats.ratio import MARGIN, paired_ratio

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Ints = npt.NDArray[np.intp]

START = 0
"""The candidate that is the starting point."""
SPREAD = 0.05
"""Standard deviation of log costs between processes that is assumed while each candidate has one visit only."""
PRIOR_DF = 10.0
"""Degrees of freedom at most with which all candidates together vouch for the variance of one."""
BLOCK = 8
"""Visits at most over which a round's machine counts as unchanged."""
_ERROR_DF = 4.0
"""Degrees of freedom of a visit's error: those of five steps."""
_ROUND_SPREAD = 1.0
"""Standard deviation of log costs between rounds: so large that only rounds without a common candidate notice."""
_HOLD = 3.0
"""Robust standard deviations to which the residual of a visit is held."""
_LEAST = 1e-8
"""Variance of log costs at least."""


class Visit(NamedTuple):
    """One process's measurement of a candidate, of which `visit_of` makes one. `error` is the standard error of the
    logarithm of `cost` from the steps of this process alone; 0 if unknown."""

    candidate: int
    round: int
    cost: float
    error: float = 0.0


class InTurns(NamedTuple):
    """Two candidates step by step in one process: rounds of pairs (cost of a, cost of b)."""

    a: int
    b: int
    rounds: tuple[tuple[tuple[float, float], ...], ...]


class Standing(NamedTuple):
    """A candidate in the race. `ratio` is its cost over that of the starting point, `behind` its cost over that of the
    best. After a single visit neither has an interval, as nothing tells its luck; turns give their pair one."""

    candidate: int
    visits: int
    ratio: float
    low: float | None
    high: float | None
    behind: float
    behind_low: float | None
    behind_high: float | None
    is_out: bool
    """Worse than the best: by its interval, and by the margin at least."""
    is_tied: bool
    """It could be best: neither out nor barred. True of the best itself."""


def visit_of(candidate: int, number: int, costs: Sequence[float]) -> Visit:
    """A visit in round `number` from the costs of its measured steps: their median, as single steps have spikes and the
    first ones may still be slower. Its error is that of a median of n normal values, √(π/2n) times their
    standard deviation. Raises ValueError without a step."""
    if not costs:
        raise ValueError("a visit without steps")
    cost = median(costs)
    error = math.sqrt(math.pi / 2 / len(costs)) * stdev(costs) / cost if len(costs) > 1 and cost else 0.0
    return Visit(candidate, number, cost, error)


def standings(
    visits: Sequence[Visit],
    turns: Sequence[InTurns] = (),
    *,
    barred: Collection[int] = (),
    spread: float = SPREAD,
) -> tuple[Standing, ...]:
    """Standings of all visited candidates, best first. `barred` are candidates that may not be best: they put nobody
    out. Raises ValueError without a visit of the starting point, or for a cost that is not finite or not above 0.

    The log of a visit's cost is the effect of its candidate plus that of its block, fitted by weighted least squares. A
    block is a part of a round, of 8 visits at most in the order of `visits`, which is that of time. The machine may
    change freely from round to round, and within one from block to block about as much as from process to process (a
    random walk).

    A visit whose residual is further from 0 than 3 robust standard deviations of all residuals (1.4826 times their
    median deviation) counts as one at that distance (Huber 1981, "Robust Statistics", section 7.8), but for the
    variance: now and then a whole process is slower by a third.

    The variance of a candidate's visits is moderated (Smyth 2004): (d₀ s₀² + d s²) / (d₀ + d). s² is that of its own
    residuals, with d degrees of freedom; s₀² the mean squared error of its visits plus the variance between processes,
    which all candidates share (Paule and Mandel 1982); d₀ is as much as is known of s₀², but 10 at most. So two rounds
    say something of many candidates, and a noisy one has a variance of its own. As long as each has one visit, the
    standard deviation between processes is taken to be `spread`, so that only a grossly worse candidate is out.

    Intervals are t intervals (Satterthwaite 1946) of differences of effects. With n candidates and r rounds so far,
    each is at (1 - `LEVEL`) / ((2 n - 2) r) (Bonferroni): for n - 1 comparisons with the starting point and n - 1 with
    the best, which are enough though the best is not known beforehand (Hsu 1984), looked at after each round.

    Turns are one more observation of the difference of their pair, with the interval of `paired_ratio`. Which pair it
    is was chosen before they were measured, so its level is (1 - `LEVEL`) / 2 over the rounds of all turns.
    """
    if not all(0 < visit.cost < math.inf for visit in visits):
        raise ValueError("a visit's cost is not a number above 0")
    candidates = sorted({visit.candidate for visit in visits})
    if START not in candidates:
        raise ValueError(f"no visit of candidate {START}, the starting point")
    row_of = {candidate: row for row, candidate in enumerate(candidates)}
    rounds, rounds_of_turns = len({visit.round for visit in visits}), sum(len(each.rounds) for each in turns)
    tail = (1 - t_tail(LEVEL)) / 2
    upper = 1 - tail / (max(len(candidates) - 1, 1) * rounds)
    upper_of_turns = 1 - tail / max(rounds_of_turns, 1)
    pairs = {
        frozenset((row_of[each.a], row_of[each.b])): (row_of[each.a], row_of[each.b], *difference)
        for each in turns
        if each.a in row_of and each.b in row_of and (difference := _difference(each, upper_of_turns))
    }
    fit = _fit(visits, row_of, tuple(pairs.values()), spread)
    may_be_best = [row for candidate, row in row_of.items() if candidate not in barred]
    best = min(may_be_best or [row_of[START]], key=lambda row: float(fit.effects[row]))

    def half(row: int, other: int) -> float:
        """Distance to which the interval of a log ratio reaches, to either side."""
        in_turns = frozenset((row, other)) in pairs
        quantile = t_quantile(upper_of_turns, math.inf) if in_turns else t_quantile(upper, fit.df(row, other))
        return quantile * fit.error(row, other)

    def ratio(row: int, other: int) -> tuple[float, float | None, float | None]:
        """Ratio of costs with its interval."""
        log_ratio = float(fit.effects[row] - fit.effects[other])
        if min(fit.numbers[row], fit.numbers[other]) < 2 and frozenset((row, other)) not in pairs:
            return math.exp(log_ratio), None, None
        return math.exp(log_ratio), math.exp(log_ratio - half(row, other)), math.exp(log_ratio + half(row, other))

    def standing(candidate: int, row: int) -> Standing:
        behind = ratio(row, best)
        is_out = math.log(behind[0]) > max(half(row, best), math.log1p(MARGIN))
        is_tied = not is_out and row in may_be_best
        return Standing(candidate, int(fit.numbers[row]), *ratio(row, row_of[START]), *behind, is_out, is_tied)

    found = [standing(*each) for each in row_of.items()]
    return tuple(sorted(found, key=lambda each: (each.behind, each.candidate)))


def is_decided(standings: Sequence[Standing]) -> bool:
    """True if all candidates that could be best are the best itself or within `MARGIN` of it, by their intervals."""
    return len(keep(standings, 2)) < 2


def keep(standings: Sequence[Standing], affordable: int) -> tuple[int, ...]:
    """Candidates that go on: the best, and the foremost of the others that could be best and are not known to be within
    `MARGIN` of it; `affordable` in all, two at least. Those that are not among them are cut by the budget; they come
    back as soon as others are told apart. One alone has won; none, if all are barred."""
    tied = [each for each in standings if each.is_tied]
    others = [each for each in tied[1:] if each.behind_high is None or each.behind_high > 1 + MARGIN]
    return tuple(each.candidate for each in [*tied[:1], *others][: max(affordable, 2)])


def affordable(candidates: int, left: float) -> int:
    """Candidates that the next round may have when a share `left` of the budget is left: `candidates` to the power of
    `left`, two at least. So each halving of the field takes the same part of the budget (sequential halving)."""
    return max(int(candidates**left), 2)


def take_turns(standings: Sequence[Standing], going: Collection[int]) -> bool:
    """True if the candidates that go on are two that now run in turns: visited twice at least, so that their ratios to
    the starting point have intervals."""
    return len(going) == 2 and all(each.visits > 1 for each in standings if each.candidate in going)


def _difference(turns: InTurns, upper: float) -> tuple[float, float] | None:
    """Log of cost of a over cost of b, and its variance: such that a normal interval at `upper` is `paired_ratio`'s."""
    found = paired_ratio(turns.rounds, 2 * upper - 1)
    if found is None or found.low is None or found.high is None:
        return None
    half = math.log(found.high / found.low) / 2
    return math.log(found.ratio), (half / t_quantile(upper, math.inf)) ** 2


class _Fit(NamedTuple):
    """Of log costs, by row: effects of candidates with their covariance, the variance of one visit with its degrees of
    freedom, and the number of visits."""

    effects: Array
    covariance: Array
    variances: Array
    dfs: Array
    numbers: Ints

    def error(self, row: int, other: int) -> float:
        """Standard error of the difference of two effects."""
        variance = self.covariance[row, row] + self.covariance[other, other] - 2 * self.covariance[row, other]
        return math.sqrt(max(float(variance), 0.0))

    def df(self, row: int, other: int) -> float:
        """Degrees of freedom of `error` by Satterthwaite; one at least."""
        u, v = (float(self.variances[each] / self.numbers[each]) for each in (row, other))
        df = (u + v) ** 2 / (u**2 / float(self.dfs[row]) + v**2 / float(self.dfs[other]))
        return max(float(round(df, 1 if df < 20 else 0)), 1.0)


def _fit(
    visits: Sequence[Visit], row_of: dict[int, int], differences: Sequence[tuple[int, int, float, float]], spread: float
) -> _Fit:
    import numpy as np

    count = len(row_of)
    rows = np.array([row_of[visit.candidate] for visit in visits])
    blocks, follows = _blocks(visits)
    columns = count + np.array(blocks)
    costs = np.log([visit.cost for visit in visits])
    costs -= costs.mean()
    held = costs
    numbers = np.bincount(rows, minlength=count)
    errors: Array = np.bincount(rows, [visit.error**2 for visit in visits], count) / numbers
    variances: Array = np.maximum(spread**2 + errors, _LEAST)
    dfs: Array = _ERROR_DF * numbers * (variances / np.maximum(errors, _LEAST)) ** 2
    between, steps = spread**2, np.array([[1, -1], [-1, 1]])
    for last in (numbers.max() < 2, False, False, True):
        weights = 1 / variances[rows]
        # Before any visit candidates have no precision; of blocks the first of a round is free, the next ones walk.
        normal = np.zeros((count + len(follows),) * 2)
        for block, is_next in enumerate(follows, count):
            if is_next:
                normal[block - 1 : block + 1, block - 1 : block + 1] += steps / max(between, _LEAST)
            else:
                normal[block, block] += 1 / _ROUND_SPREAD**2
        right = np.zeros(len(normal))
        for each, other in ((rows, columns), (columns, rows)):
            np.add.at(normal, (each, each), weights)
            np.add.at(normal, (each, other), weights)
            np.add.at(right, each, weights * held)
        inverse: Array = np.linalg.inv(normal).astype(float)
        effects: Array = inverse @ right
        if last:
            break
        residuals = costs - effects[rows] - effects[columns]
        leverage = weights * (inverse[rows, rows] + inverse[columns, columns] + 2 * inverse[rows, columns])
        own_dfs: Array = np.bincount(rows, 1 - leverage, count).astype(float)
        if own_dfs.sum() < 0.5:  # no two candidates have two rounds in common
            break
        reach = max(_HOLD * 1.4826 * float(np.median(np.abs(residuals))), math.sqrt(_LEAST))
        held = costs - residuals + np.clip(residuals, -reach, reach)
        squares: Array = np.bincount(rows, residuals**2, count).astype(float)
        between, variances, dfs = _moderated(squares, np.maximum(own_dfs, 0.0), errors, numbers)
    for a, b, difference, variance in differences:
        # One more observation of a difference (Sherman and Morrison).
        step = inverse[:, a] - inverse[:, b]
        gain = step / (max(variance, _LEAST) + step[a] - step[b])
        effects = effects + gain * (difference - (effects[a] - effects[b]))
        inverse = inverse - np.outer(gain, step)
    return _Fit(effects[:count], inverse[:count, :count], variances, dfs, numbers)


def _blocks(visits: Sequence[Visit]) -> tuple[list[int], list[bool]]:
    """The block of each visit, and of each block if it follows another of its round: equal parts of a round, in the
    order of its visits, of at most `BLOCK` visits."""
    sizes = Counter(visit.round for visit in visits)
    seen: Counter[int] = Counter()
    numbers: dict[tuple[int, int], int] = {}
    blocks = []
    for visit in visits:
        parts = math.ceil(sizes[visit.round] / BLOCK)
        part = seen[visit.round] * parts // sizes[visit.round]
        seen[visit.round] += 1
        blocks.append(numbers.setdefault((visit.round, part), len(numbers)))
    return blocks, [part > 0 for _, part in numbers]


def _moderated(squares: Array, dfs: Array, errors: Array, numbers: Ints) -> tuple[float, Array, Array]:
    """Variance between processes; variances of candidates and their degrees of freedom; from sums of squared residuals
    with their degrees of freedom and the mean squared errors of steps."""
    import numpy as np

    total = float(dfs.sum())
    between, step = 0.0, float(squares.sum()) / total
    while step > _LEAST:  # bisection: from above all that is left over is too little
        if float((squares / np.maximum(between + step + errors, _LEAST)).sum()) > total:
            between += step
        step /= 2
    prior = np.maximum(between + errors, _LEAST)
    unsure = between**2 / np.maximum(total - dfs, 1e-6) + errors**2 / (_ERROR_DF * numbers)
    prior_dfs = np.minimum(prior**2 / np.maximum(unsure, _LEAST**3), PRIOR_DF)
    variances: Array = np.maximum((prior_dfs * prior + squares) / (prior_dfs + dfs), _LEAST)
    return between, variances, prior_dfs + dfs
