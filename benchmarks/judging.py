"""Time to judge a cell: mark, 1 s for 10,000 measured steps. Judging runs off the UI's thread."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import click
import numpy as np

from benchmarks.reporting import publish, spread, table, verdict
from benchmarks.steady_state import TRUTHS, Condition, synthetic
from cs336_tui.analysis.verdicts import judge
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import CellFinished, StepsTimed
from cs336_tui.session.states import CellState

STEPS = (10, 100, 1_000, 10_000)
MARK_S = 1.0
WARMUP = 5
NOISE, CORRELATION = 0.01, 0.5
SHIFTED = "flat between 8 shifts"
"""The series with the most changes that the search looks for."""


@click.command()
@click.option("--repeats", default=5, show_default=True, help="Series of each kind; the median counts.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the figures to this file.")
def main(repeats: int, output: Path | None) -> None:
    """Time the judgement of cells whose steps have known truth, each made anew."""
    judge(made_cell("flat", 100, seed=0))
    rows = []
    for truth in (*TRUTHS, SHIFTED):
        for steps in STEPS:
            times_s = [judging_s(made_cell(truth, steps, seed)) for seed in range(repeats)]
            met = verdict(statistics.median(times_s), 0, MARK_S) if steps == max(STEPS) else ""
            rows.append((truth, f"{steps:,}", spread([1e3 * time_s for time_s in times_s], 1), met))
    body = (
        f"{WARMUP} warm-up steps, noise of {NOISE:.0%} of the mean, neighbours correlated by {CORRELATION}.\n\n"
        + table(("steps are", "measured steps", "median (least to greatest), ms", f"at most {MARK_S:g} s"), rows)
    )
    publish("Judging a cell", f"python -m benchmarks.judging --repeats {repeats}", body, output)


def made_cell(truth: str, steps: int, seed: int) -> CellState:
    """A finished cell on a CPU whose steps are such a series (`steady_state.synthetic`)."""
    cell = CellState(0, _spec(steps))
    series = synthetic(Condition("flat" if truth == SHIFTED else truth, NOISE, CORRELATION), seed, WARMUP + steps)
    if truth == SHIFTED:
        rng = np.random.default_rng(seed)
        for begin in rng.integers(0, len(series), 8):
            series[begin:] *= 1 + rng.uniform(-0.05, 0.08)
    times_s = tuple(series.tolist())
    cell.times.add(StepsTimed(at=0.0, cell=0, kind="warm-up", first=0, times_s=times_s[:WARMUP]))
    cell.times.add(StepsTimed(at=0.0, cell=0, kind="measured", first=0, times_s=times_s[WARMUP:]))
    cell.status, cell.finished = "ok", CellFinished(at=0.0, cell=0, status="ok", cpu_wait_s=0.0)
    return cell


def judging_s(cell: CellState) -> float:
    """Seconds that the judgement takes."""
    began = time.perf_counter()
    if judge(cell) is None:
        raise ValueError("the cell cannot be judged")
    return time.perf_counter() - began


def _spec(steps: int) -> CellSpec:
    return CellSpec(
        size="small",
        edition="2026",
        arch="swiglu-rope",
        d_model=768,
        d_ff=3072,
        num_layers=12,
        num_heads=12,
        vocab_size=10_000,
        context_length=128,
        batch_size=4,
        pass_="forward",
        precision="fp32",
        device="cpu",
        warmup_steps=WARMUP,
        measure_steps=steps,
    )


if __name__ == "__main__":
    main()
