"""Simulated series of steps: the seam between warm-up and measuring, levels in turns, and automatic counts with spikes.

python -m benchmarks.series [--series 200] [--first-seed 0]
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist, median

import click
import numpy as np

from benchmarks.reporting import publish, table
from benchmarks.steady_state import STEP_S, Series, autoregression
from cs336_tui.stats.intervals import mean_interval, median_interval
from cs336_tui.stats.steady import classify, enough_warmup
from cs336_tui.worker.measure.timing import enough_measured, step_looks

NOISES = (0.005, 0.01, 0.02)
WARMUPS = (5, 10)
MOST = 1000
"""Steps at which an automatic count ends."""
SHARE = 0.01
"""Width of the interval that is asked for, over the mean."""


def _cold(t: Series, rng: np.random.Generator) -> Series:
    """One or two cold steps, 0.3 to 30 times slower."""
    excess = 10 ** rng.uniform(-0.5, 1.5)
    return np.where(t < rng.integers(1, 3), excess, 0.0)


def _fading(t: Series, rng: np.random.Generator) -> Series:
    """A cold step, and an excess of 5 to 100 % that falls to 1/e in 0.3 to 2 steps."""
    return _cold(t, rng) * (t < 1) + 10 ** rng.uniform(-1.3, 0) * np.exp(-t / rng.uniform(0.3, 2))


WARM_UPS: dict[str, Callable[[Series, np.random.Generator], Series]] = {
    "none": lambda t, _: 0 * t,
    "cold first steps": _cold,
    "fading": _fading,
}
"""The time that honest first steps take beyond the others, as a share of a step, by their number."""
JUMPS = (2.5, 0.1, -0.1)
"""The time that the warm-up steps of another work take beyond the measured ones."""


def seam(truth: str | float, warmup: int, noise: float, seed: int, *, measured: int = 10) -> str:
    """The advice on the warm-up of a series of a kind of honest warm-up, or whose level moves at the seam."""
    number = list(WARM_UPS).index(truth) if isinstance(truth, str) else round(1000 * (truth + 1))
    rng = np.random.default_rng([6, seed, number, warmup, round(noise * 1e4)])
    t = np.arange(warmup + measured, dtype=float)
    excess = WARM_UPS[truth](t, rng) if isinstance(truth, str) else _cold(t, rng) + truth * (t < warmup)
    times_s = (STEP_S * (1 + excess + noise * autoregression(rng, t.shape, rng.uniform(0, 0.6)))).tolist()
    return enough_warmup(times_s[:warmup], times_s[warmup:])


def seams(series: int, first: int) -> str:
    """Shares of series of which a shift at the seam is said, as a markdown table."""
    rows = []
    truths: tuple[str | float, ...] = (*WARM_UPS, *JUMPS)
    for truth in truths:
        name = truth if isinstance(truth, str) else f"at the seam {-100 * truth / (1 + truth):+.0f} %"
        said = [
            sum("as measuring begins" in seam(truth, n, noise, first + seed) for seed in range(series)) / series
            for n in WARMUPS
            for noise in NOISES
        ]
        rows.append([name, *(f"{share:.3f}" for share in said)])
    return table(["warm-up", *(f"{n} steps, {noise * 100:g} %" for n in WARMUPS for noise in NOISES)], rows)


def turns(gap: float, noise: float, correlation: float, steps: int, seed: int) -> bool:
    """True if a series that alternates between two levels is called anything but flat."""
    key = (round(gap * 1e3), round(noise * 1e4), round((correlation + 1) * 10), steps)
    rng = np.random.default_rng([7, seed, *key])
    times = 1 + gap * (np.arange(steps) % 2) + noise * autoregression(rng, (steps,), correlation)
    found = classify((STEP_S * times).tolist()).classes
    return "bimodal" in found or "periodic" in found


def in_turns(series: int, first: int) -> str:
    """Shares of series that are called two levels or periodic, as a markdown table."""
    cases = [(steps, noise) for steps in (10, 30, 100) for noise in NOISES]
    rows = []
    for gap, correlation in ((0.0, -0.3), (0.0, 0.0), (0.0, 0.5), (0.02, 0.0), (0.03, 0.0), (0.06, 0.0)):
        said = [sum(turns(gap, noise, correlation, n, first + s) for s in range(series)) / series for n, noise in cases]
        rows.append([f"{gap * 100:g} %", f"{correlation:g}", *(f"{share:.3f}" for share in said)])
    return table(["apart", "r", *(f"{n} steps, {noise * 100:g} %" for n, noise in cases)], rows)


def automatic(noise: float, correlation: float, share: float, size: float, series: int, first: int) -> list[str]:
    """Of automatic counts: the median count, how often both intervals hold what they are of, and their half widths."""
    centre = 1 + (noise * NormalDist().inv_cdf(0.5 / (1 - share)) if share else 0.0)
    counts, held_mean, held_median, halves = [], 0, 0, []
    for seed in range(first, first + series):
        rng = np.random.default_rng([8, seed, *(round(each * 1e4) for each in (noise, correlation, share, size))])
        spikes = size * (rng.random(MOST) < share)
        times_s = (STEP_S * (1 + noise * autoregression(rng, (MOST,), correlation) + spikes)).tolist()
        count = next((n for n in step_looks(MOST) if enough_measured(times_s[:n], SHARE)), MOST)
        mean, middle = mean_interval(times_s[:count]), median_interval(times_s[:count])
        assert mean is not None
        assert middle is not None
        held_mean += mean.low <= STEP_S * (1 + share * size) <= mean.high
        held_median += middle.low <= STEP_S * centre <= middle.high
        counts.append(count)
        halves.append(middle.half_share)
    held = [f"{each / series:.2f}" for each in (held_mean, held_median)]
    return [f"{median(counts):.0f}", *held, f"± {median(halves) * 100:.2f} %"]


def with_spikes(series: int, first: int) -> str:
    """Coverage at the end of automatic counts, as a markdown table."""
    rows = []
    for share, size in ((0.0, 0.0), (0.01, 0.1), (0.01, 0.5), (0.02, 0.5), (0.02, 2.0)):
        for correlation in (0.0, 0.5):
            for noise in NOISES[:2]:
                name = f"{share * 100:g} % of {size * 100:g} %" if share else "none"
                found = automatic(noise, correlation, share, size, series, first)
                rows.append([name, f"{correlation:g}", f"{noise * 100:g} %", *found])
    return table(["spikes", "r", "noise", "steps", "mean held", "median held", "median known to"], rows)


@click.command()
@click.option("--series", default=200, show_default=True, help="Series of each figure.")
@click.option("--first-seed", default=0, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(series: int, first_seed: int, output: Path | None) -> None:
    body = "\n\n".join(make(series, first_seed) for make in (seams, in_turns, with_spikes))
    publish(
        "Simulated series", f"python -m benchmarks.series --series {series} --first-seed {first_seed}", body, output
    )


if __name__ == "__main__":
    main()
