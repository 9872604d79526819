"""Findings against arithmetic of their own: which cells are told apart, by how much, along which choice."""

import math
import statistics
from collections.abc import Callable

import pytest

from cs336_tui.analysis.findings import Timed, along, extremes, peaks, timed
from cs336_tui.analysis.merge import Result
from cs336_tui.config.spec import CellSpec
from cs336_tui.stats.intervals import MeanInterval, mean_interval
from tests.export.grids import SMALL, by, grid, merged

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
            assert pair.ratio is not None
            assert pair.ratio.ratio == pytest.approx(a / b) == pytest.approx(expected[key])
            assert pair.outcome == ("faster" if key == "precision" else "slower")


def test_what_differs_less_than_the_intervals_tell_is_not_called_a_difference() -> None:
    specs = by([SMALL], precision=["fp32", "tf32"], pass_=["forward"])
    (precision,) = along(cells(specs, product))
    assert [pair.outcome for pair in precision.pairs] == ["same"]
    found = extremes(cells(specs, product))
    assert found is not None
    assert [cell.first.spec.precision for cell in found.fastest] == ["fp32", "tf32"]
    assert [cell.first.spec.precision for cell in found.slowest] == ["tf32", "fp32"]


def test_choices_that_change_together_are_not_told_apart() -> None:
    specs = [
        *by([SMALL], precision=["fp32"], context_length=[128]),
        *by([SMALL], precision=["bf16-mixed"], context_length=[512]),
    ]
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
    assert found is not None
    (fastest,), (slowest,) = found.fastest, found.slowest
    assert (fastest.first.spec.pass_, fastest.first.spec.precision) == ("forward", "bf16-mixed")
    assert (slowest.first.spec.pass_, slowest.first.spec.precision) == ("train-step", "fp32")
    assert found.ratio is not None
    assert found.ratio.ratio == pytest.approx(12.0)
    assert extremes(cells(specs[:1], product)) is None


def test_without_an_interval_every_cell_may_be_the_fastest() -> None:
    specs = by([SMALL], precision=["fp32", "bf16-mixed"], pass_=["forward"])
    state = grid(specs, times=lambda spec: [product(spec)] * 4)
    found = extremes(timed(merged(state), interval))
    assert found is not None
    assert found.ratio is not None
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
    assert found is not None
    most, least = found
    assert (most.bytes, least.bytes, most.capacity_bytes) == (4 * 10**9, 10**9, 85_029_158_912)
    assert [result.cell.cell for result in most.results] == [1]
    assert [result.cell.cell for result in least.results] == [0, 2]
