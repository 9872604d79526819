"""The racing method on simulated candidates of known costs.

    python -m benchmarks.racing

A space is a product of choices with main effects and interactions of two. Three values in ten change nothing, so that
many candidates tie near the best. A visit is a process: it has luck of its own, its first steps are slower, its steps
have spikes and noise, one candidate's ten times as much. The machine drifts from visit to visit. Turns are two
candidates in one process, which share most of its luck.

A race has a third of the visits of an exhaustive search, a round of turns counting for two, and ends when it is decided
or its visits are spent. The search takes the candidate of least mean log cost after some rounds of all.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks.reporting import publish, table, verdict
from cs336_tui.analysis.next_step import FEWEST_ROUNDS, TURNS_A_ROUND
from cs336_tui.stats.racing import (
    InTurns,
    Standing,
    Visit,
    affordable,
    is_decided,
    keep,
    standings,
    take_turns,
    visit_of,
)

SPACES = {8: (2, 2, 2), 48: (4, 3, 2, 2), 200: (5, 5, 4, 2)}
"""Values of each choice, by the number of candidates."""
RACES = {8: 20, 48: 4, 200: 1}
"""Races of each number of candidates, for one of the option `--races`."""
STEPS, WARM_UP, PAIRS = 5, 3, 8
"""Measured steps of a visit, warm-up steps before them, and pairs of a round of turns."""
SPIKES = 0.01
"""Share of steps that take 1.3 to 4 times as long."""
SHARED = 0.8
"""Share of the variance between processes that is common to two candidates in one process."""
GOOD, MARK_GOOD, MARK_WRONG, MARK_SHARE = 0.01, 0.95, 0.05, 1 / 3


class Noise(NamedTuple):
    """Standard deviations of log costs between processes and between steps, and the amplitude of the drift."""

    processes: float
    steps: float
    drift: float
    rounds: int
    """Rounds of an exhaustive search."""
    strays: float = 0.0
    """Share of processes all of whose steps take 1.2 to 1.5 times as long."""


NOISES = (Noise(0.005, 0.005, 0.01, 6), Noise(0.015, 0.015, 0.02, 15), Noise(0.05, 0.03, 0.05, 36))


class Result(NamedTuple):
    """The end of a race: `excess` is the winner's true cost over that of the best, less 1."""

    excess: float
    is_wrong: bool
    """A claim of its end is wrong (`is_wrong`)."""
    was_wrong: bool
    """A claim after any of its rounds was."""
    share: float
    """Visits over those of an exhaustive search."""
    is_decided: bool


class Machine:
    """A machine that runs candidates of known log costs."""

    def __init__(self, size: int, noise: Noise, seed: int) -> None:
        self.draw = random.Random(f"{size} {noise} {seed}")
        self.noise, self.processes, self.wander = noise, 0, 0.0
        self.costs = space_of(self.draw, SPACES[size])
        self.step_noise = [noise.steps * math.exp(self.draw.gauss(0, 0.5)) for _ in self.costs]
        self.step_noise[self.draw.randrange(size)] *= 10
        self.warm_up = [self.draw.uniform(0, 0.3) for _ in self.costs]
        self.phase, self.period = self.draw.uniform(0, math.tau), self.draw.uniform(50, 500)

    def round(self, candidates: Sequence[int], number: int) -> list[Visit]:
        return [
            visit_of(candidate, number, self._steps(candidate, self._process(), STEPS))
            for candidate in self.draw.sample(candidates, len(candidates))
        ]

    def turns(self, a: int, b: int) -> tuple[tuple[float, float], ...]:
        luck = self._process()
        return tuple(zip(self._steps(a, luck, PAIRS), self._steps(b, luck, PAIRS), strict=True))

    def excess(self, candidate: int) -> float:
        return math.expm1(self.costs[candidate] - min(self.costs))

    def _process(self) -> float:
        """Log factor of all that runs in a new process: drift, and the luck that its candidates share."""
        self.processes += 1
        self.wander += self.draw.gauss(0, self.noise.drift / 30)
        drift = self.noise.drift * math.sin(self.phase + math.tau * self.processes / self.period) + self.wander
        return drift + self.draw.gauss(0, self.noise.processes * math.sqrt(SHARED))

    def _steps(self, candidate: int, luck: float, count: int) -> list[float]:
        luck += self.costs[candidate] + self.draw.gauss(0, self.noise.processes * math.sqrt(1 - SHARED))
        luck += math.log(self.draw.uniform(1.2, 1.5)) if self.draw.random() < self.noise.strays else 0.0
        return [
            math.exp(luck + self.draw.gauss(0, self.step_noise[candidate]))
            * (1 + self.warm_up[candidate] * math.exp(-(WARM_UP + step)))
            * (self.draw.uniform(1.3, 4) if self.draw.random() < SPIKES else 1.0)
            for step in range(count)
        ]


def space_of(draw: random.Random, values: Sequence[int]) -> list[float]:
    """Log costs of all candidates; candidate 0 has the first value of each choice."""
    main = [
        [0.0, *(0.0 if draw.random() < 0.3 else draw.gauss(-0.03, 0.15) for _ in range(count - 1))] for count in values
    ]
    joint = {
        (i, j, k, m): draw.gauss(0, 0.03) if draw.random() < 0.2 else 0.0
        for i, j in itertools.combinations(range(len(values)), 2)
        for k in range(1, values[i])
        for m in range(1, values[j])
    }
    return [
        sum(main[i][k] for i, k in enumerate(chosen))
        + sum(joint.get((i, j, chosen[i], chosen[j]), 0.0) for i, j in itertools.combinations(range(len(chosen)), 2))
        for chosen in itertools.product(*map(range, values))
    ]


def is_wrong(costs: Sequence[float], found: Sequence[Standing]) -> bool:
    """True if a candidate is said to be faster than the starting point, by its interval and by 1 % at least, or the
    best to be faster than another one, and it is not."""
    best = found[0].candidate
    return any(
        (each.high is not None and each.high < 1 and each.ratio <= 1 - GOOD and costs[each.candidate] >= costs[0])
        or (each.is_out and costs[each.candidate] <= costs[best])
        for each in found
    )


def race(machine: Machine) -> Result:
    """A race with a third of the visits of an exhaustive search, by the steps of `analysis.next_step`."""
    size = len(machine.costs)
    exhaustive = size * machine.noise.rounds
    budget = exhaustive // 3
    visits = machine.round(range(size), 1)
    rounds, spent = 1, size
    turns: dict[tuple[int, int], list[tuple[tuple[float, float], ...]]] = {}
    found = standings(visits)
    was_wrong = is_wrong(machine.costs, found)
    while (rounds < FEWEST_ROUNDS or not is_decided(found)) and spent + 2 <= budget:
        going = keep(found, affordable(size, 1 - spent / budget))
        if len(going) < 2:
            going = tuple(each.candidate for each in found[:2])
        while len({0, *going}) > budget - spent and len(going) > 2:
            going = going[:-1]
        a, b = min(going), max(going)
        if take_turns(found, going) and len(turns.get((a, b), ())) < TURNS_A_ROUND * rounds:
            turns.setdefault((a, b), []).append(machine.turns(a, b))
            spent += 2
        elif len({0, *going}) <= budget - spent:
            rounds += 1
            visits += machine.round(sorted({0, *going}), rounds)
            spent += len({0, *going})
        else:
            break
        found = standings(visits, [InTurns(*pair, tuple(taken)) for pair, taken in turns.items()])
        was_wrong |= is_wrong(machine.costs, found)
    wrong = is_wrong(machine.costs, found)
    return Result(machine.excess(found[0].candidate), wrong, was_wrong, spent / exhaustive, is_decided(found))


def exhaustive(machine: Machine) -> float:
    """The excess of an exhaustive search's winner."""
    totals = [0.0] * len(machine.costs)
    for number in range(machine.noise.rounds):
        for visit in machine.round(range(len(totals)), number):
            totals[visit.candidate] += math.log(visit.cost)
    return machine.excess(totals.index(min(totals)))


@click.command()
@click.option("--races", default=4, show_default=True, help="Races of 200 candidates; 4 times as many of 48, 20 of 8.")
@click.option("--first-seed", default=0, show_default=True)
@click.option("--strays", default=0.0, help="Share of processes that are slower as a whole, by a fifth to a half.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(races: int, first_seed: int, strays: float, output: Path | None) -> None:
    rows = []
    for size, noise in itertools.product(SPACES, [noise._replace(strays=strays) for noise in NOISES]):
        seeds = range(first_seed, first_seed + races * RACES[size])
        done = [race(Machine(size, noise, seed)) for seed in seeds]
        excess = [exhaustive(Machine(size, noise, seed)) for seed in seeds]
        good = sum(each.excess <= GOOD for each in done) / len(done)
        wrong = sum(each.is_wrong for each in done) / len(done)
        share = max(each.share for each in done)
        rows.append(
            [
                f"{size}",
                f"{noise.processes:.1%}",
                f"{len(done)}",
                f"{good:.1%}: {verdict(good, MARK_GOOD, 1)}",
                f"{max(each.excess for each in done):.1%}",
                f"{sum(each <= GOOD for each in excess) / len(excess):.1%}",
                f"{wrong:.1%}: {verdict(wrong, 0, MARK_WRONG)}",
                f"{sum(each.was_wrong for each in done) / len(done):.1%}",
                f"{share:.3f} of {noise.rounds} rounds: {verdict(share, 0, MARK_SHARE)}",
                f"{sum(each.is_decided for each in done) / len(done):.0%}",
            ]
        )
        click.echo(" | ".join(rows[-1]), err=True)
    header = [
        "candidates", "between processes", "races", "winner within 1 %", "farthest off", "exhaustive within 1 %",
        "wrongly faster", "wrong after any round", "most visits of exhaustive", "decided",
    ]  # fmt: skip
    command = f"python -m benchmarks.racing --races {races} --first-seed {first_seed}"
    command += f" --strays {strays:g}" if strays else ""
    publish("Races", command, table(header, rows), output)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices: threads only cost; numpy is loaded later
    main()
