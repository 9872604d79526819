"""Fits the course of a series' mean under autocorrelated noise: level shifts, drift and decay.

A course is a constant plus a few terms: a step at c, a straight ramp, a decay exp(-t/tau). The noise is a stationary
first-order autoregression. For every correlation of a grid the series and the terms are whitened (Prais and Winsten
1954), so that ordinary least squares fit. Each course keeps its best correlation: so a shift is not taken for
correlation, nor correlation for a shift (Chakar et al. 2017, "A robust approach for estimating change-points in the
mean of an AR(1) process"). Courses are compared by their penalised likelihood, as changepoints are in PELT (Killick et
al. 2012). The search is binary segmentation (Scott and Knott 1974), term by term; earlier terms may be exchanged. The
penalties were set on simulated series (`benchmarks/steady_state.py` with seeds from 1000 on), for few false alarms in
100 steps.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Series = npt.NDArray[np.float64]
TermKind = Literal["step", "ramp", "decay"]

CORRELATIONS = np.linspace(0.0, 0.9, 10)
DECAYS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
"""Steps in which a decay falls to 1/e; up to a quarter of the series."""
PENALTY: dict[TermKind, float] = {"step": 3.6, "ramp": 1.7, "decay": 2.8}
"""Of twice the log likelihood, in units of log n. A step costs most, as it may be anywhere."""
SHORTEST = 5
"""The fewest times after a step."""
MOST_TERMS = 8
CLEARLY = 0.8
"""By how much a step must be likelier than a ramp in its place, in the penalties' unit."""
PATIENCE = 2
"""Terms tried beyond the best course yet: strong correlation may explain either of two shifts, and not both."""
LOST: dict[TermKind, int] = {"step": 10, "ramp": 10, "decay": 8}
"""See `small_sample`."""
RESOLUTION = 1e-4
"""The least noise, as a share of the level: clocks and printed times are not finer."""
SAME = 1e-12
"""A column with no more than this share of its square outside of the others is no direction of its own."""

_OF_CORRELATION = -np.log(1 - CORRELATIONS**2) - 2 * np.log(1 - CORRELATIONS)
"""The likelihood's determinant, and a prior density that falls as 1 - correlation: almost a random walk is unusual."""


def small_sample(n: int, lost: int = 8) -> float:
    """Factor of a penalty for n values, of which the fit uses up `lost`: ratios of variances have heavier tails if few
    values estimate them."""
    return n / max(n - lost, 2.5)


class CourseTerm(NamedTuple):
    """One term; `at` is the index of a step's first later time, or the steps in which a decay falls to 1/e."""

    kind: TermKind
    at: float

    def values(self, n: int) -> Series:
        """The term at times 0 to n - 1, of height 1."""
        t = np.arange(n, dtype=float)
        if self.kind == "step":
            return (t >= self.at).astype(float)
        return t / (n - 1) - 0.5 if self.kind == "ramp" else np.exp(-t / self.at)


RAMP = CourseTerm("ramp", 0)
CONSTANT = CourseTerm("step", 0)


class Course(NamedTuple):
    """A fitted course: ``shape + ramp`` is the mean at each time, in the series' unit."""

    terms: tuple[CourseTerm, ...]
    shape: Series
    """Constant, steps and decays."""
    ramp: Series
    """The drift, 0 in the middle."""
    correlation: float
    """Of neighbouring noise, from `CORRELATIONS`."""
    steps: tuple[tuple[int, float], ...]
    """The first time and the height of each step, in order of time."""
    cost: float
    """Minus twice the log likelihood, less a constant of the series, plus the penalty."""

    @property
    def mean(self) -> Series:
        return self.shape + self.ramp


def course(values: Series) -> Course:
    """The course of at least 8 values around 1 (`RESOLUTION` is a share of that)."""
    search = _Search(values)
    return search.course(search.best())


class _Fit(NamedTuple):
    """A constant and k - 1 terms, fitted to whitened values (P, n)."""

    basis: Series
    """Orthonormal vectors (P, k, n)."""
    mixing: Series
    """(P, k, k): the basis in the terms' columns."""
    residuals: Series
    """(P, n)."""


class _Search:
    """Penalised least squares over sets of terms, for all correlations at once (P of them, n times). Sums along time
    use einsum: matrix products would start BLAS's threads, which disturb a measurement."""

    def __init__(self, values: Series) -> None:
        self.n = len(values)
        self.values = whitened(values)
        decays = (CourseTerm("decay", tau) for tau in DECAYS if tau <= self.n / 4)
        self.smooth = (RAMP, *decays)
        self.smooth_columns = whitened(np.stack([term.values(self.n) for term in self.smooth]))
        self.smooth_squares = squared(self.smooth_columns)
        self._columns: dict[CourseTerm, tuple[Series, Series]] = {}

    def best(self) -> tuple[CourseTerm, ...]:
        """The terms of the course of least cost."""
        terms: tuple[CourseTerm, ...] = ()
        best_terms, best_cost = terms, math.inf
        while True:
            cost, added_cost, added = self.addition(terms)
            if cost < best_cost:
                best_terms, best_cost = terms, cost
            if len(terms) >= min(len(best_terms) + PATIENCE, MOST_TERMS):
                return self.gradual(*self.pruned(best_terms, best_cost))
            terms = self.revised((*terms, added), added_cost)

    def revised(self, terms: tuple[CourseTerm, ...], cost: float) -> tuple[CourseTerm, ...]:
        """The terms with each but the last exchanged where that costs less."""
        for term in terms[:-1]:
            rest = tuple(other for other in terms if other != term)
            _, other_cost, other = self.addition(rest)
            if other_cost < cost:
                terms, cost = (*rest, other), other_cost
        return terms

    def pruned(self, terms: tuple[CourseTerm, ...], cost: float) -> tuple[tuple[CourseTerm, ...], float]:
        """The terms without those that later ones made needless."""
        for term in terms:
            rest = tuple(other for other in terms if other != term)
            rest_cost = self.whole_cost(rest)
            if rest_cost <= cost:
                terms, cost = rest, rest_cost
        return terms, cost

    def gradual(self, terms: tuple[CourseTerm, ...], cost: float) -> tuple[CourseTerm, ...]:
        """The terms with a ramp instead of a step that is not clearly likelier."""
        for step in terms:
            ramped = tuple(RAMP if term == step else term for term in terms)
            near = cost + CLEARLY * math.log(self.n) * small_sample(self.n, LOST["step"])
            if step.kind == "step" and RAMP not in terms and self.whole_cost(ramped) <= near:
                return ramped
        return terms

    def whole_cost(self, terms: tuple[CourseTerm, ...]) -> float:
        return float(self.cost(squared(self.fit(terms).residuals), terms).min())

    def addition(self, terms: tuple[CourseTerm, ...]) -> tuple[float, float, CourseTerm]:
        """The cost of some terms; the least cost with one more term, and that term."""
        fit = self.fit(terms)
        squares = squared(fit.residuals)
        cost = self.cost(squares[:, None], terms).min()
        keep = 1 - CORRELATIONS[:, None]

        def along_steps(vectors: Series) -> Series:
            """Products of (P, n) vectors with the whitened step at each time: 1 at it, 1 - correlation after it."""
            after = np.cumsum(vectors[:, ::-1], axis=1)[:, ::-1] - vectors
            return vectors + keep * after

        lengths = 1 + keep**2 * (self.n - 1 - np.arange(self.n))
        for vector in range(fit.basis.shape[1]):
            lengths = lengths - along_steps(fit.basis[:, vector]) ** 2
        gains = _gains(along_steps(fit.residuals), lengths)
        gains[:, 0] = gains[:, self.n - SHORTEST + 1 :] = 0
        costs = self.cost(squares[:, None] - gains, (*terms, CourseTerm("step", 0))).min(axis=0)
        step = int(costs.argmin())
        best = float(costs[step]), CourseTerm("step", step)

        beside = np.stack([self.column(term)[1] for term in (CONSTANT, *terms)], axis=2)
        along_basis = np.einsum("pmk,pjk->pmj", beside, fit.mixing)
        gains = _gains(
            np.einsum("pmn,pn->pm", self.smooth_columns, fit.residuals), self.smooth_squares - squared(along_basis)
        )
        for number, term in enumerate(self.smooth):
            if term not in terms:
                term_cost = float(self.cost(squares - gains[:, number], (*terms, term)).min())
                best = min(best, (term_cost, term))
        return float(cost), *best

    def fit(self, terms: tuple[CourseTerm, ...]) -> _Fit:
        """By Cholesky's decomposition of the columns' products; a column that is no direction of its own becomes 0."""
        columns = np.stack([self.column(term)[0] for term in (CONSTANT, *terms)], axis=1)
        products = np.einsum("pkn,pjn->pkj", columns, columns) + SAME * np.eye(len(terms) + 1)
        mixing = np.linalg.inv(np.linalg.cholesky(products))
        basis = np.einsum("pkj,pjn->pkn", mixing, columns)
        along = np.einsum("pkn,pn->pk", basis, self.values)
        return _Fit(basis, mixing, self.values - np.einsum("pk,pkn->pn", along, basis))

    def column(self, term: CourseTerm) -> tuple[Series, Series]:
        """A term, whitened and of length 1 (P, n), and its products with the smooth columns (P, m)."""
        if term not in self._columns:
            column = whitened(term.values(self.n))
            column /= np.sqrt(squared(column))[:, None]
            self._columns[term] = column, np.einsum("pmn,pn->pm", self.smooth_columns, column)
        return self._columns[term]

    def cost(self, squares: Series, terms: tuple[CourseTerm, ...]) -> Series:
        """The cost (`Course.cost`) of what a fit leaves; `squares` is (P) or (P, m)."""
        penalty = sum(PENALTY[term.kind] * small_sample(self.n, LOST[term.kind]) for term in terms)
        return likelihood_cost(squares, self.n) + penalty * math.log(self.n)

    def course(self, terms: tuple[CourseTerm, ...]) -> Course:
        """The course of these terms at the likeliest correlation."""
        costs = self.cost(squared(self.fit(terms).residuals), terms)
        best = int(costs.argmin())
        columns = np.stack([term.values(self.n) for term in (CONSTANT, *terms)])
        heights = np.linalg.lstsq(whitened(columns)[best].T, self.values[best], rcond=None)[0]
        is_ramp = np.array([False, *(term.kind == "ramp" for term in terms)])
        parts = heights[:, None] * columns
        found = zip(terms, heights[1:].tolist(), strict=True)
        steps = tuple(sorted((int(term.at), height) for term, height in found if term.kind == "step"))
        shape, ramp = parts[~is_ramp].sum(axis=0), parts[is_ramp].sum(axis=0)
        return Course(terms, shape, ramp, float(CORRELATIONS[best]), steps, float(costs[best]))


def likelihood_cost(squares: Series, n: int) -> Series:
    """Minus twice the log likelihood of n values, less a constant, for each correlation; `squares`, (P) or (P, m), are
    the squared residuals of the whitened values."""
    variances = np.maximum(squares, 0) / n + RESOLUTION**2
    cost: Series = n * np.log(variances) + _OF_CORRELATION.reshape(-1, *(1,) * (squares.ndim - 1))
    return cost


def whitened(series: Series) -> Series:
    """(..., n) to (P, ..., n): each time less correlation times the one before; the first scaled to equal variance."""
    shape = (-1, *(1,) * series.ndim)
    whitened = np.repeat(series[None], len(CORRELATIONS), axis=0)
    whitened[..., 1:] -= CORRELATIONS.reshape(shape) * series[..., :-1]
    whitened[..., 0] *= np.sqrt(1 - CORRELATIONS**2).reshape(shape[:-1])
    return whitened


def squared(vectors: Series) -> Series:
    """Squared lengths along the last axis."""
    lengths: Series = np.einsum("...n,...n->...", vectors, vectors)
    return lengths


def _gains(products: Series, lengths: Series) -> Series:
    """Squares that a term explains, from its products with residuals and its squared length outside of the basis."""
    free = lengths > 1e-6
    return np.where(free, products**2 / np.where(free, lengths, 1), 0)
