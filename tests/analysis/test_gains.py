"""Gains of choices from the standings of a race."""

from __future__ import annotations

import math

import pytest

from cs336_tui.analysis.findings import gains_of, together
from cs336_tui.analysis.tuning import Entry, Race
from cs336_tui.config.tuning import Over, Tuning, changed, label, space_of
from cs336_tui.stats.racing import Standing
from tests.samples import a_spec

_OVER = (Over("attention", ("naive", "sdpa")), Over("checkpoint", (0, 1)), Over("nesting", ("off", "halves")))
_WIDTH = 1.02


def a_race(effects: dict[str, float], interaction: float = 1.0) -> Race:
    """A race whose candidates cost the product of the effects of what they change, times `interaction` where they
    change attention and checkpoint both."""
    tuning = Tuning(base=a_spec(pass_="train-step"), over=_OVER)
    specs = space_of(tuning).candidates
    costs = []
    for spec in specs:
        changes = changed(tuning, spec)
        cost = math.prod(effects.get(f"{field}={value}", 1.0) for field, value in changes.items())
        costs.append(cost * (interaction if {"attention", "checkpoint"} <= changes.keys() else 1.0))
    best = min(range(len(costs)), key=costs.__getitem__)
    standings = tuple(
        Standing(
            candidate=number,
            visits=2,
            ratio=cost,
            low=cost / _WIDTH,
            high=cost * _WIDTH,
            behind=cost / costs[best],
            behind_low=cost / costs[best] / _WIDTH,
            behind_high=cost / costs[best] * _WIDTH,
            is_out=False,
            is_tied=number == best,
        )
        for number, cost in enumerate(costs)
    )
    entries = tuple(
        Entry(
            number=number,
            spec=spec,
            label=label(tuning, spec),
            status="best" if number == best else "out",
            ratio=costs[number],
            low=costs[number] / _WIDTH,
            high=costs[number] * _WIDTH,
            cost=costs[number],
            visits=2,
            cells=(),
            peak_bytes=None,
            compile_s=None,
            agreement=None,
        )
        for number, spec in enumerate(specs)
    )
    return Race(tuning, entries, (), None, 2, 0.0, 1.0, "", standings)


def test_effects_that_multiply_gain_the_same_alone_and_beside_the_others() -> None:
    race = a_race({"attention=sdpa": 0.8, "checkpoint=1": 0.9})
    gains = {(gain.field, gain.value): gain for gain in gains_of(race)}

    sdpa, checkpoint = gains["attention", "sdpa"], gains["checkpoint", 1]
    assert sdpa.alone
    assert sdpa.alone.ratio == pytest.approx(0.8)
    assert sdpa.beside
    assert sdpa.beside.ratio == pytest.approx(0.8)
    assert sdpa.beside.low == pytest.approx(0.8 / _WIDTH)
    assert (sdpa.is_best, checkpoint.is_best) == (True, True)
    assert sdpa.interacts is checkpoint.interacts is False
    both = together(race, tuple(gains.values()))
    assert both
    assert both.ratio.ratio == pytest.approx(both.product) == pytest.approx(0.72)


def test_choices_that_spoil_each_other_interact() -> None:
    race = a_race({"attention=sdpa": 0.8, "checkpoint=1": 0.9}, interaction=1.4)
    gains = {(gain.field, gain.value): gain for gain in gains_of(race)}

    checkpoint = gains["checkpoint", 1]
    assert checkpoint.alone
    assert checkpoint.alone.ratio == pytest.approx(0.9)
    assert checkpoint.beside
    assert checkpoint.beside.ratio == pytest.approx(0.9 * 1.4)
    assert checkpoint.interacts is True
    assert not checkpoint.is_best
    assert together(race, tuple(gains.values())) is None, "the best changes one choice alone"


@pytest.mark.parametrize("slowdown", [1.0, 1.1])
def test_a_value_that_makes_no_other_cell_gains_nothing_that_is_known(slowdown: float) -> None:
    """Nesting without checkpointing is the same cell as without nesting."""
    gains = {gain.field: gain for gain in gains_of(a_race({"attention=sdpa": 0.8, "checkpoint=1": slowdown}))}

    assert gains["nesting"].alone is None


def test_a_candidate_that_was_not_measured_leaves_the_gain_open() -> None:
    race = a_race({"attention=sdpa": 0.8, "checkpoint=1": 0.9})
    alone = next(entry.number for entry in race.entries if entry.label == "attention sdpa")
    fewer = race._replace(standings=tuple(each for each in race.standings if each.candidate != alone))
    gains = {(gain.field, gain.value): gain for gain in gains_of(fewer)}

    assert gains["attention", "sdpa"].alone is None
    assert gains["attention", "sdpa"].interacts is None
    found = together(fewer, tuple(gains.values()))
    assert found
    assert found.product is None


def test_an_interval_that_says_nothing_is_none() -> None:
    race = a_race({"attention=sdpa": 0.8})
    noisy = [each._replace(low=each.ratio / 9, high=each.ratio * 9) for each in race.standings]
    (attention, *_) = gains_of(race._replace(standings=tuple(noisy)))
    assert attention.alone is not None
    assert attention.alone.ratio == pytest.approx(0.8)
    assert (attention.alone.low, attention.alone.high, attention.interacts) == (None, None, None)
