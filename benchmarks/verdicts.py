"""Verdicts on step times of known truth: thirteen kinds of series at 10 to 1,000 steps, judged as a cell's are.

The kinds and their parameters are drawn anew for each series, apart from those on which the thresholds were chosen
(`benchmarks/steady_state.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from benchmarks.reporting import publish, table
from benchmarks.steady_state import autoregression
from cs336_tui.analysis.verdicts import judge
from tests.analysis.judging import a_cell

Series = npt.NDArray[np.floating[Any]]
STEPS = (10, 30, 100, 1000)
LEAST_ACCEPTABLE, MOST_FALSE, MOST_HIDDEN = 0.95, 0.02, 0.05
TOO_FEW = frozenset({"too-few-steps"})
LARGE = 0.05
"""Smallest change, as a share of the step time, that may not be called steady."""


class Kind(NamedTuple):
    """One kind of series."""

    make: Callable[[np.random.Generator, int], Series]
    """Step times without noise, around 1, from a generator and the number of steps."""
    accepted: frozenset[str]
    """Verdicts of which one must be given. Beside it no other doubt may stand but those in `allowed`."""
    allowed: frozenset[str] = frozenset()
    correlated: bool = False
    noise: tuple[float, float] = (0.002, 0.015)
    """The standard deviation is drawn from this range."""
    read: Callable[[Series, np.random.Generator], Series] = lambda times, _: times
    """The clock: makes the times that are read from the true ones."""


def _flat(_: np.random.Generator, steps: int) -> Series:
    return np.ones(steps)


def _decay(rng: np.random.Generator, steps: int) -> Series:
    times: Series = 1 + rng.uniform(0.08, 0.6) * np.exp(-np.arange(steps) / rng.uniform(0.04, 0.2) / steps)
    return times


def _shift(rng: np.random.Generator, steps: int) -> Series:
    at = round(rng.uniform(0.3, 0.75) * steps)
    times: Series = 1 + rng.uniform(0.05, 0.12) * (np.arange(steps) >= at)
    return times


def _fall(rng: np.random.Generator, steps: int) -> Series:
    return _shift(rng, steps)[::-1].copy()


def _ramp(rng: np.random.Generator, steps: int) -> Series:
    return 1 + float(rng.choice([-1, 1])) * rng.uniform(0.055, 0.12) * np.linspace(0, 1, steps)


def _period(rng: np.random.Generator, steps: int) -> float:
    """A period from 6 steps to a third of the series, at most 60; if impossible, about the series' length."""
    most = min(steps / 3, 60.0)
    return rng.uniform(6, most) if most > 6 else rng.uniform(5, 12)


def _sawtooth(rng: np.random.Generator, steps: int) -> Series:
    return 1 + rng.uniform(0.055, 0.12) * ((np.arange(steps) / _period(rng, steps) + rng.random()) % 1)


def _sine(rng: np.random.Generator, steps: int) -> Series:
    phase = 2 * math.pi * (np.arange(steps) / _period(rng, steps) + rng.random())
    times: Series = 1 + rng.uniform(0.027, 0.06) * np.sin(phase)
    return times


def _levels(rng: np.random.Generator, steps: int) -> Series:
    times: Series = 1 + rng.uniform(0.06, 0.15) * (rng.random(steps) < rng.uniform(0.3, 0.7))
    return times


def _turns(rng: np.random.Generator, steps: int) -> Series:
    """Two levels, one step at each."""
    times: Series = 1 + rng.uniform(0.03, 0.12) * (np.arange(steps) % 2)
    return times


def _spikes(rng: np.random.Generator, steps: int) -> Series:
    times = np.ones(steps)
    count = max(1, round(rng.uniform(0.01, 0.03) * steps))
    times[rng.choice(np.arange(steps // 10, steps), count, replace=False)] += rng.uniform(0.2, 1.5, count)
    return times


def _quantised(rng: np.random.Generator, steps: int) -> Series:
    """Three or four levels of a device's clock."""
    times: Series = 1 + rng.uniform(0.02, 0.05) * rng.integers(0, rng.integers(3, 5), steps)
    return times


def _read_coarsely(times: Series, rng: np.random.Generator) -> Series:
    tick = rng.uniform(0.02, 0.05)
    read: Series = np.round((times + rng.uniform(0, tick)) / tick) * tick
    return read


KINDS: dict[str, Kind] = {
    "flat": Kind(_flat, frozenset({"steady"})),
    "flat, autocorrelated": Kind(_flat, frozenset({"steady"}), correlated=True),
    "warm-up": Kind(_decay, frozenset({"still-warming"}), frozenset({"drifting", "outliers"})),
    "shift up": Kind(_shift, frozenset({"drifting"})),
    "shift down": Kind(_fall, frozenset({"still-warming", "drifting"}), frozenset({"still-warming", "drifting"})),
    "ramp": Kind(_ramp, frozenset({"drifting", "still-warming"}), frozenset({"still-warming", "drifting"})),
    "sawtooth": Kind(_sawtooth, frozenset({"periodic"}), frozenset({"still-warming", "drifting", "outliers"})),
    "sine": Kind(_sine, frozenset({"periodic"}), frozenset({"still-warming", "drifting"})),
    "two levels": Kind(_levels, frozenset({"two-levels"})),
    "spikes": Kind(_spikes, frozenset({"outliers"})),
    "levels of a clock": Kind(
        _quantised, frozenset({"quantised", "two-levels"}), frozenset({"too-few-steps"}), noise=(0.001, 0.004)
    ),
    "coarse clock": Kind(
        _flat, frozenset({"quantised"}), frozenset({"too-few-steps"}), read=_read_coarsely, noise=(0.008, 0.03)
    ),
    "levels in turns": Kind(_turns, frozenset({"two-levels", "periodic"}), noise=(0.002, 0.01)),
}
FLAT = ("flat", "flat, autocorrelated")
CHANGING = tuple(name for name in KINDS if name not in FLAT)


class Case(NamedTuple):
    times_s: list[float]
    change: float
    """Change from the least to the greatest true time, as a share of the least."""


def made(name: str, steps: int, seed: int) -> Case:
    """A series of a kind: step time, noise and the kind's own parameters are drawn."""
    kind = KINDS[name]
    rng = np.random.default_rng([seed, list(KINDS).index(name), steps])
    truth = kind.make(rng, steps)
    correlation = rng.uniform(0.2, 0.7) if kind.correlated else 0.0
    noise = rng.uniform(*kind.noise) * autoregression(rng, (steps,), correlation)
    times_s = 10 ** rng.uniform(-4, 0) * kind.read(np.maximum(truth + noise, 1e-3), rng)
    return Case(times_s.tolist(), float(truth.max() / truth.min() - 1))


def said(times_s: Sequence[float]) -> frozenset[str]:
    """The verdicts on a series of measured steps."""
    judgement = judge(a_cell(times_s))
    assert judgement is not None
    return frozenset(judgement.names) - {"launch-bound", "contended", "throttled", "allocator-retry"}


def is_acceptable(name: str, case: Case, verdicts: frozenset[str]) -> bool:
    """True if the verdicts are right.

    Below 30 steps: no alarm on a flat series, and no steady one where there is a change of 5 % or more. From 30 on: one
    of the kind's verdicts and no other doubt; of 30 steps also that they are too few, and of an oscillation with so few
    periods that it drifts.
    """
    kind, steps = KINDS[name], len(case.times_s)
    if steps < 30:
        return not verdicts - {"steady", "too-few-steps"} if name in FLAT else not is_hidden(case, verdicts)
    accepted, allowed = kind.accepted, kind.allowed
    if steps == 30:
        accepted, allowed = (accepted | allowed if "periodic" in accepted else accepted), allowed | TOO_FEW
    return bool(verdicts & accepted) and verdicts <= accepted | allowed


def is_hidden(case: Case, verdicts: frozenset[str]) -> bool:
    """True if a large change is called steady."""
    return case.change >= LARGE and "steady" in verdicts


def outcomes(name: str, steps: int, seeds: Sequence[int]) -> list[tuple[Case, frozenset[str]]]:
    return [(case, said(case.times_s)) for case in (made(name, steps, seed) for seed in seeds)]


@click.command()
@click.option("--series", default=40, show_default=True, help="Series of each kind and length.")
@click.option("--first-seed", default=0, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(series: int, first_seed: int, output: Path | None) -> None:
    seeds = range(first_seed, first_seed + series)
    rows, errors = [], []
    acceptable: Counter[int] = Counter()
    alarms: Counter[int] = Counter()
    hidden: Counter[int] = Counter()
    large: Counter[int] = Counter()
    for name in KINDS:
        row = [name]
        for steps in STEPS:
            found = outcomes(name, steps, seeds)
            right = sum(is_acceptable(name, case, verdicts) for case, verdicts in found)
            acceptable[steps] += right
            row.append(f"{right}")
            wrong = Counter(", ".join(sorted(v)) for case, v in found if not is_acceptable(name, case, v))
            errors += [[name, str(steps), *each] for each in ((what, str(n)) for what, n in wrong.most_common())]
            if name in FLAT:
                alarms[steps] += sum(bool(verdicts - {"steady", "too-few-steps"}) for _, verdicts in found)
            else:
                large[steps] += sum(case.change >= LARGE for case, _ in found)
                hidden[steps] += sum(is_hidden(case, verdicts) for case, verdicts in found)
        rows.append(row)
    total = series * len(KINDS)
    rows.append(["all", *(f"{100 * acceptable[steps] / total:.1f} %" for steps in STEPS)])
    rows.append(["false alarms on flat", *(f"{100 * alarms[s] / (series * len(FLAT)):.1f} %" for s in STEPS)])
    rows.append([f"steady in spite of {LARGE:.0%}", *(f"{hidden[s]} of {large[s]}" for s in STEPS)])
    body = table([f"acceptable of {series}", *(f"{steps} steps" for steps in STEPS)], rows)
    body += "\n\n" + table(["kind", "steps", "said", "series"], errors)
    publish("Verdicts", f"python -m benchmarks.verdicts --series {series} --first-seed {first_seed}", body, output)


if __name__ == "__main__":
    main()
