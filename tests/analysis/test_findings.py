"""Findings and gains against arithmetic of their own: which cells are told apart, by how much, along which choice."""

import math
import statistics
from collections.abc import Callable

import pytest

from cs336_tui.analysis.findings import Timed, along, extremes, gains_of, peaks, timed, together
from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.tuning import Entry, Race
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.tuning import Over, Tuning, changed, label, space_of
from cs336_tui.stats.intervals import MeanInterval, mean_interval
from cs336_tui.stats.racing import Standing
from tests.export.grids import SMALL, by, grid, merged
from tests.samples import a_spec

N = 40


def series(mean_s: float, spread: float = 0.01) -> list[float]:
    """Steps of this mean exactly, without correlation of neighbours to speak of."""
    return [mean_s * (1 + spread * (-1) ** step) for step in range(N)]


def interval(result: Result) -> MeanInterval | None:
    return mean_interval(result.cell.step_times_s)


def cells(specs: list[CellSpec], mean: Callable[[CellSpec], float], **more: object) -> tuple[Timed, ...]:
    state = grid(specs, times=lambda spec: series(mean(spec)), **more)
    return timed(merged(state), interval)


FACTORS = {"fp32": 1.0, "tf32": 1.001, "bf16-mixed": 0.25, "forward": 1.0, "forward+backward": 2.0, "train-step": 3.0}


def product(spec: CellSpec) -> float:
    return 0.01 * FACTORS[spec.precision] * FACTORS[spec.pass_] * spec.context_length / 128


def test_each_choice_has_the_ratio_of_its_means_in_every_pair_of_cells_alike_in_all_else() -> None:
    specs = by([SMALL], precision=["fp32", "bf16-mixed"], pass_=["forward", "train-step"], context_length=[128, 512])
    found = {(each.key, each.base, each.other): each for each in along(cells(specs, product))}
    assert {key: len(each.pairs) for key, each in found.items()} == {
        ("context", "128", "512"): 4, ("pass", "forward", "train-step"): 4, ("precision", "fp32", "bf16-mixed"): 4,
    }  # fmt: skip
    expected = {"context": 4.0, "pass": 3.0, "precision": 0.25}
    for (key, *_), each in found.items():
        for pair in each.pairs:
            a, b = (statistics.fmean(side.first.cell.step_times_s) for side in (pair.other, pair.base))
            assert pair.ratio.ratio == pytest.approx(a / b) == pytest.approx(expected[key])
            assert pair.outcome == ("faster" if key == "precision" else "slower")


def test_what_differs_less_than_the_intervals_tell_is_not_called_a_difference() -> None:
    specs = by([SMALL], precision=["fp32", "tf32"], pass_=["forward"])
    (precision,) = along(cells(specs, product))
    assert [pair.outcome for pair in precision.pairs] == ["same"]
    found = extremes(cells(specs, product))
    assert [cell.first.spec.precision for cell in found.fastest] == ["fp32", "tf32"]
    assert [cell.first.spec.precision for cell in found.slowest] == ["tf32", "fp32"]


def test_choices_that_change_together_are_not_told_apart() -> None:
    both = ("fp32", 128), ("bf16-mixed", 512)
    specs = [spec for precision, length in both for spec in by([SMALL], precision=[precision], context_length=[length])]
    assert list(along(cells(specs, product))) == []


def test_of_many_values_the_last_is_compared_with_the_first() -> None:
    contexts = [128, 256, 512, 1024, 2048, 4096]
    (context,) = along(cells(by([SMALL], pass_=["forward"], context_length=contexts), product))
    assert (context.base, context.other) == ("128", "4096")
    few = along(cells(by([SMALL], pass_=["forward"], context_length=contexts[:4]), product))
    assert [each.other for each in few] == ["256", "512", "1024"]


def test_fastest_and_slowest_are_those_of_least_and_greatest_mean() -> None:
    specs = by([SMALL], precision=["fp32", "bf16-mixed"], pass_=["forward", "train-step"])
    found = extremes(cells(specs, product))
    (fastest,), (slowest,) = found.fastest, found.slowest
    assert (fastest.first.spec.pass_, fastest.first.spec.precision) == ("forward", "bf16-mixed")
    assert (slowest.first.spec.pass_, slowest.first.spec.precision) == ("train-step", "fp32")
    assert found.ratio.ratio == pytest.approx(12.0)
    assert extremes(cells(specs[:1], product)) is None


def test_without_an_interval_every_cell_may_be_the_fastest() -> None:
    specs = by([SMALL], precision=["fp32", "bf16-mixed"], pass_=["forward"])
    state = grid(specs, times=lambda spec: [product(spec)] * 4)
    found = extremes(timed(merged(state), interval))
    assert found.ratio.low is None
    assert len(found.fastest) == len(found.slowest) == 2


def test_repeats_are_one_cell_whose_interval_is_that_of_the_runs_means() -> None:
    means = iter([0.010, 0.011, 0.0105])
    state = grid(by([SMALL], pass_=["forward"]) * 3, times=lambda _: series(next(means)), repeats=(1, 2, 3))
    (found,) = timed(merged(state), interval)
    assert len(found.runs) == 3
    assert found.mean_s == pytest.approx(0.0105)
    half = 4.302652729911275 * statistics.stdev([0.010, 0.011, 0.0105]) / math.sqrt(3)  # t of 2 degrees, 97.5 %
    assert (found.low, found.high) == (pytest.approx(0.0105 - half), pytest.approx(0.0105 + half))


def test_peaks_are_the_largest_and_the_smallest_with_the_devices_own_memory() -> None:
    state = grid(by([SMALL], pass_=["forward", "train-step"], context_length=[128, 512]), oom=[3])
    found = peaks(merged(state))
    most, least = found
    assert (most.bytes, least.bytes, most.capacity_bytes) == (4 * 10**9, 10**9, 85_029_158_912)
    assert [result.cell.cell for result in most.results] == [1]
    assert [result.cell.cell for result in least.results] == [0, 2]


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
    standings, entries = [], []
    for number, (spec, cost) in enumerate(zip(specs, costs, strict=True)):
        ratio, behind = ((to, to / _WIDTH, to * _WIDTH) for to in (cost, cost / costs[best]))
        standings.append(Standing(number, 2, *ratio, *behind, is_out=False, is_tied=number == best))
        status, name = "best" if number == best else "out", label(tuning, spec)
        entries.append(Entry(number, spec, name, status, *ratio, cost, 2, (), None, None, None))
    return Race(tuning, tuple(entries), (), None, 2, 0.0, 1.0, "", tuple(standings))


def test_effects_that_multiply_gain_the_same_alone_and_beside_the_others() -> None:
    race = a_race({"attention=sdpa": 0.8, "checkpoint=1": 0.9})
    gains = {(gain.field, gain.value): gain for gain in gains_of(race)}
    sdpa, checkpoint = gains["attention", "sdpa"], gains["checkpoint", 1]
    assert sdpa.alone.ratio == pytest.approx(0.8)
    assert sdpa.beside.ratio == pytest.approx(0.8)
    assert sdpa.beside.low == pytest.approx(0.8 / _WIDTH)
    assert (sdpa.is_best, checkpoint.is_best) == (True, True)
    assert sdpa.interacts is checkpoint.interacts is False
    both = together(race, tuple(gains.values()))
    assert both.ratio.ratio == pytest.approx(both.product) == pytest.approx(0.72)


def test_choices_that_spoil_each_other_interact() -> None:
    race = a_race({"attention=sdpa": 0.8, "checkpoint=1": 0.9}, interaction=1.4)
    gains = {(gain.field, gain.value): gain for gain in gains_of(race)}
    checkpoint = gains["checkpoint", 1]
    assert checkpoint.alone.ratio == pytest.approx(0.9)
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
    sdpa = gains["attention", "sdpa"]
    assert sdpa.alone is sdpa.interacts is together(fewer, tuple(gains.values())).product is None


def test_an_interval_that_says_nothing_is_none() -> None:
    race = a_race({"attention=sdpa": 0.8})
    noisy = [each._replace(low=each.ratio / 9, high=each.ratio * 9) for each in race.standings]
    (attention, *_) = gains_of(race._replace(standings=tuple(noisy)))
    assert attention.alone.ratio == pytest.approx(0.8)
    assert (attention.alone.low, attention.alone.high, attention.interacts) == (None, None, None)
