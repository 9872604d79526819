"""Accuracy on step times of known truth: classes by `stats.steady`, coverage of intervals of the mean and of
ratios, and detection of differences between interleaved runs."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt

from benchmarks.reporting import publish, table, verdict
from cs336_tui.stats.intervals import MeanInterval, mean_interval, t_interval
from cs336_tui.stats.ratio import MARGIN, Ratio, paired_ratio, ratio_of
from cs336_tui.stats.ratio import outcome as difference
from cs336_tui.stats.steady import classify

Series = npt.NDArray[np.float64]

TRUTHS: dict[str, frozenset[str]] = {
    "flat": frozenset({"flat"}),
    "warm-up": frozenset({"warm-up"}),
    "warm-up, throttle": frozenset({"warm-up", "slowdown"}),
    "two spikes": frozenset({"outliers"}),
    "drift": frozenset({"slowdown", "drift"}),
    "bimodal": frozenset({"bimodal"}),
}
"""True classes of each kind of series. A drift is a slowdown too; a throttle that might as well be gradual is both."""
NOISES = (0.005, 0.01, 0.02)
CORRELATIONS = (0.0, 0.5)
STEP_S = 0.05
LEAST_RIGHT, MOST_FALSE = 0.95, 0.02
LEAST_COVERAGE, MOST_COVERAGE = 0.92, 0.98
MARKED_STEPS = 100
"""Number of steps to which the mark of coverage applies."""
INTERVAL_CORRELATIONS = (0.0, 0.3, 0.5, 0.7)
INTERVAL_NOISES = ("normal", "lognormal", "spikes of 5 deviations", "spikes of 25 deviations")
PAIRS_LUCK = (0.0, 0.005, 0.01, 0.015)


class Condition(NamedTuple):
    truth: str
    noise: float
    correlation: float


def autoregression(rng: np.random.Generator, shape: tuple[int, ...], correlation: float) -> Series:
    """Stationary normal noise of variance 1 along the last axis, neighbours correlated."""
    noise = rng.standard_normal(shape)
    noise[..., 1:] *= math.sqrt(1 - correlation**2)
    for step in range(1, shape[-1]):
        noise[..., step] += correlation * noise[..., step - 1]
    return noise


def synthetic(condition: Condition, seed: int, steps: int = 100) -> Series:
    """Step times in seconds. `noise` is its standard deviation over the mean, whatever the correlation.

    Warm-up: 30 to 100 % slower at first, falling to 1/e of that in 1 to 5 steps. Throttle: 6 % slower from a step on
    that is between 40 and 80 % of the way. Spikes: 30 to 100 % slower, after the first tenth. Drift: 6 % from first to
    last. Bimodal: 8 % slower, or not, step by step, with a probability of 35 to 65 %.
    """
    truth, noise, correlation = condition
    rng = np.random.default_rng([seed, list(TRUTHS).index(truth), round(noise * 1e4), round(correlation * 100)])
    times = 1 + noise * autoregression(rng, (steps,), correlation)
    t = np.arange(steps)
    if truth.startswith("warm-up"):
        times += rng.uniform(0.3, 1.0) * np.exp(-t / rng.uniform(1, 5))
    match truth:
        case "warm-up, throttle":
            times += 0.06 * (t >= round(rng.uniform(0.4, 0.8) * steps))
        case "two spikes":
            times[rng.choice(np.arange(steps // 10, steps), 2, replace=False)] += rng.uniform(0.3, 1.0, 2)
        case "drift":
            times += 0.06 * t / (steps - 1)
        case "bimodal":
            times += 0.08 * (rng.random(steps) < rng.uniform(0.35, 0.65))
    return STEP_S * times


def found(condition: Condition, seeds: Sequence[int]) -> Counter[frozenset[str]]:
    """Number of series by the set of classes found."""
    return Counter(frozenset(classify(synthetic(condition, seed).tolist()).classes) for seed in seeds)


def is_right(truth: str, classes: frozenset[str]) -> bool:
    """True if exactly the true classes were found. A throttle may be called gradual besides: in 100 steps with 2 % of
    correlated noise, a ramp of 6 % and the step most like it are 2.5 standard deviations apart, so that no method tells
    them apart in 95 %."""
    expected = TRUTHS[truth]
    return classes == expected or (truth == "warm-up, throttle" and classes == expected | {"drift"})


def conditions() -> tuple[Condition, ...]:
    return tuple(Condition(truth, noise, r) for truth in TRUTHS for noise in NOISES for r in CORRELATIONS)


def right_share(truth: str, counts: Counter[frozenset[str]], exactly: bool = False) -> float:
    right = sum(
        n for classes, n in counts.items() if (classes == TRUTHS[truth] if exactly else is_right(truth, classes))
    )
    return right / counts.total()


def confusion(results: Mapping[Condition, Counter[frozenset[str]]]) -> str:
    """The matrix of truths and findings, in % of the series of a truth, as a markdown table."""
    by_truth = {truth: Counter[frozenset[str]]() for truth in TRUTHS}
    for condition, counts in results.items():
        by_truth[condition.truth].update(counts)
    every = sum(by_truth.values(), Counter[frozenset[str]]())
    columns = [classes for classes, _ in every.most_common()]
    rows = [
        [truth, *(f"{100 * counts[classes] / counts.total():.1f}" if counts[classes] else "" for classes in columns)]
        for truth, counts in by_truth.items()
    ]
    return table(["truth \\ found, %", *(" + ".join(sorted(classes)) for classes in columns)], rows)


def shares(results: Mapping[Condition, Counter[frozenset[str]]]) -> str:
    """Share of right classes under each condition, as a markdown table."""
    rows = []
    for truth in TRUTHS:
        of_truth = {condition: counts for condition, counts in results.items() if condition.truth == truth}
        whole = sum(of_truth.values(), Counter[frozenset[str]]())
        least = LEAST_RIGHT if truth != "flat" else 1 - MOST_FALSE
        cells = [f"{right_share(truth, counts):.3f}" for counts in of_truth.values()]
        exact, right = right_share(truth, whole, exactly=True), right_share(truth, whole)
        rows.append([truth, *cells, f"{right:.3f}: {verdict(right, least, 1)}", f"{exact:.3f}"])
    of_conditions = [f"{noise * 100:g} %, r {r:g}" for noise in NOISES for r in CORRELATIONS]
    return table(["right", *of_conditions, "all", "exactly"], rows)


def noise_of(kind: str, rng: np.random.Generator, shape: tuple[int, ...], correlation: float) -> Series:
    """Noise of mean 0 along the last axis. Lognormal: exp(z/2) of the normal one z, of skewness 1.75. Spikes: the
    normal one and, in 2 % of the steps, 5 or 25 of its standard deviations (10 or 50 % of a step, where noise is 2 %).
    """
    noise = autoregression(rng, shape, correlation)
    if kind == "lognormal":
        return np.exp(noise / 2) - math.exp(1 / 8)
    if kind.startswith("spikes"):
        return noise + int(kind.split()[2]) * ((rng.random(shape) < 0.02) - 0.02)
    return noise


def coverage(
    correlation: float,
    steps: int,
    series: int,
    seed: int = 0,
    kind: str = "normal",
    method: Callable[[Sequence[float]], MeanInterval | None] = mean_interval,
) -> float:
    """Share of series whose 95 % interval holds the true mean."""
    rng = np.random.default_rng([seed, steps, round(correlation * 100)])
    held = 0
    for noise in noise_of(kind, rng, (series, steps), correlation):
        interval = method((STEP_S * (1 + 0.02 * noise)).tolist())
        held += interval is not None and interval.low <= STEP_S <= interval.high
    return held / series


def holds(found: Ratio, ratio: float) -> bool:
    """True if the interval holds this ratio; a missing interval holds every ratio."""
    return found.low is None or found.high is None or found.low <= ratio <= found.high


def ratio_coverage(correlation: float, steps: int, series: int) -> float:
    """Share of pairs of runs, 3 and 6 % of noise, whose 95 % interval by `ratio_of` holds the true ratio."""
    rng = np.random.default_rng([2, steps, round(correlation * 100)])
    a, b = (1 + noise * autoregression(rng, (series, steps), correlation) for noise in (0.03, 0.06))
    held = 0
    for run, other in zip(a.tolist(), (1.6 * b).tolist(), strict=True):
        found = ratio_of([run], [other])
        held += found is not None and holds(found, 1 / 1.6)
    return held / series


def interleaved(
    rng: np.random.Generator, ratio: float, luck: float, noise: float, rounds: int = 5, pairs: int = 20
) -> list[list[tuple[float, float]]]:
    """Rounds of interleaved steps. All of a round drift together by 5 %, strongly correlated; each step has noise of
    its own; and in each round one side is a little faster throughout, of standard deviation `luck`."""
    drift = 1 + 0.05 * autoregression(rng, (rounds, pairs), 0.9)
    own = 1 + noise * rng.standard_normal((2, rounds, pairs))
    lucky = np.exp(luck * rng.standard_normal((rounds, 1)))
    a, b = STEP_S * drift * own[0] * ratio * lucky, STEP_S * drift * own[1]
    return [list(zip(*both, strict=True)) for both in zip(a.tolist(), b.tolist(), strict=True)]


def pairs_told_apart(series: int) -> str:
    """Share of comparisons of 5 rounds of 20 pairs that are called different, as a markdown table."""
    rows = []
    for noise in (0.02, 0.05):
        for luck in PAIRS_LUCK:
            rng = np.random.default_rng([3, round(noise * 1e3), round(luck * 1e4)])
            equal = [paired_ratio(interleaved(rng, 1.0, luck, noise)) for _ in range(series)]
            slower = [paired_ratio(interleaved(rng, 1.03, luck, noise)) for _ in range(series)]
            held = sum(found is not None and holds(found, 1) for found in equal)
            wrong = sum(difference(found) in ("faster", "slower") for found in equal)
            right = sum(difference(found) == "slower" for found in slower)
            half = median(math.log(found.high / found.ratio) for found in equal if found and found.high)
            row = (f"{noise * 100:g} %", f"{luck * 100:g} %", *(f"{n / series:.3f}" for n in (held, wrong, right)))
            rows.append([*row, f"± {half * 100:.2f} %"])
    said = f"equal: different by {MARGIN * 100:g} %"
    return table(["noise of a step", "luck of a round", "equal: held", said, "3 % more: slower", "interval"], rows)


def bootstrap_coverage(correlation: float, steps: int, series: int, resamples: int = 400) -> float:
    """Coverage of the percentile interval of a circular block bootstrap. Blocks are (6 n r²/(1-r²)²)^(1/3) long, the
    best for a first-order autoregression (Politis and White 2004), r estimated."""
    rng = np.random.default_rng([1, steps, round(correlation * 100)])
    held = 0
    for noise in autoregression(rng, (series, steps), correlation):
        deviations = noise - noise.mean()
        r = min(max(float(deviations[1:] @ deviations[:-1] / (deviations @ deviations)), 0.0), 0.95)
        length = min(max(1, math.ceil((1.5 * steps) ** (1 / 3) * (2 * r / (1 - r**2)) ** (2 / 3))), steps // 3)
        blocks = -(-steps // length)
        starts = rng.integers(steps, size=(resamples, blocks, 1))
        means = noise[(starts + np.arange(length)).reshape(resamples, -1)[:, :steps] % steps].mean(axis=1)
        low, high = np.quantile(means, (0.025, 0.975))
        held += bool(low <= 0 <= high)
    return held / series


def held_means(series: int) -> str:
    """Coverage of intervals of the mean by steps, noise and method, as a markdown table."""
    methods = {"bootstrap-t": mean_interval, "t, effective n": t_interval}
    rows = []
    for steps in (10, 30, MARKED_STEPS, 1000):
        for kind in INTERVAL_NOISES:
            for name, method in methods.items():
                held = [coverage(r, steps, series, kind=kind, method=method) for r in INTERVAL_CORRELATIONS]
                rows.append([str(steps), kind, name, *(f"{share:.3f}" for share in held), _within(held, steps)])
        held = [bootstrap_coverage(r, steps, min(series, 400)) for r in INTERVAL_CORRELATIONS]
        rows.append([str(steps), "normal", "block bootstrap", *(f"{share:.3f}" for share in held), ""])
    return table(["steps", "noise", "interval", *(f"r {r:g}" for r in INTERVAL_CORRELATIONS), "0.92 to 0.98"], rows)


def _within(held: Sequence[float], steps: int) -> str:
    met = min(held) >= LEAST_COVERAGE and max(held) <= MOST_COVERAGE
    return ("met" if met else "MISSED") if steps == MARKED_STEPS else ("within" if met else "outside")


def held_ratios(series: int) -> str:
    """Coverage of intervals of the ratio of two runs, as a markdown table."""
    rows = [
        [str(steps), *(f"{ratio_coverage(r, steps, series):.3f}" for r in INTERVAL_CORRELATIONS)]
        for steps in (10, 30, MARKED_STEPS)
    ]
    return table(["ratio of two runs, steps", *(f"r {r:g}" for r in INTERVAL_CORRELATIONS)], rows)


def ratios_said(series: int) -> str:
    """Share of pairs of runs with 1 % noise that are called faster or slower, as a markdown table."""
    rows = []
    for steps in (10, 30, MARKED_STEPS):
        for correlation in (0.0, 0.3, 0.6):
            rng = np.random.default_rng([4, steps, round(correlation * 100)])
            runs = 1 + 0.01 * autoregression(rng, (series, 2, steps), correlation)
            equal = [difference(ratio_of([a], [b])) for a, b in runs.tolist()]
            slower = [difference(ratio_of([[1.02 * time_s for time_s in a]], [b])) for a, b in runs.tolist()]
            wrong = sum(said in ("faster", "slower") for said in equal)
            rows.append(
                [str(steps), f"{correlation:g}", f"{wrong / series:.3f}", f"{slower.count('slower') / series:.3f}"]
            )
    return table(["two runs, steps", "r", "equal: faster or slower", "2 % more: slower"], rows)


def false_alarms(series: int) -> str:
    """Shares of flat series of several lengths and 2 % noise that are not called flat, as a markdown table."""
    rows = []
    for steps in (10, 15, 30, 100, 300):
        flat = [
            [classify(synthetic(Condition("flat", 0.02, r), seed, steps).tolist()).classes for seed in range(series)]
            for r in (0.0, 0.5, 0.8)
        ]
        rows.append([str(steps), *(f"{1 - classes.count(('flat',)) / series:.3f}" for classes in flat)])
    return table(["false alarms, steps", "r 0", "r 0.5", "r 0.8"], rows)


def analysis_s(steps: int) -> float:
    """Seconds that a cell takes whose steps warm up, throttle and spike."""
    times = synthetic(Condition("warm-up, throttle", 0.01, 0.5), 1, steps)
    times[:: max(steps // 20, 1)] *= 1.5
    begin = time.perf_counter()
    classify(times.tolist())
    mean_interval(times.tolist())
    return time.perf_counter() - begin


@click.command()
@click.option("--seeds", default=200, show_default=True, help="Series of each kind and noise.")
@click.option("--first-seed", default=0, show_default=True)
@click.option("--series", default=1000, show_default=True, help="Series of each coverage figure.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(seeds: int, first_seed: int, series: int, output: Path | None) -> None:
    results = {condition: found(condition, range(first_seed, first_seed + seeds)) for condition in conditions()}
    times = [[str(steps), f"{analysis_s(steps):.3f} s"] for steps in (100, 1000, 10_000)]
    body = "\n\n".join(
        (
            shares(results),
            confusion(results),
            false_alarms(seeds),
            held_means(series),
            held_ratios(series),
            ratios_said(series),
            pairs_told_apart(series),
            table(["steps", "analysis"], times),
        )
    )
    command = f"python -m benchmarks.steady_state --seeds {seeds} --first-seed {first_seed} --series {series}"
    publish("Steady state and intervals", command, body, output)


if __name__ == "__main__":
    main()
