"""Timer do_bench beside `triton.testing.do_bench`, in turns in one process, on the same steps of a CUDA GPU.

Both get the same callable, warm-up and repetition times and flush; the ratio of the medians is to be 1. Says why where
triton or a CUDA GPU is missing.
"""

from __future__ import annotations

import importlib
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from benchmarks.reporting import publish, spread, table, verdict

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from cs336_tui.config.spec import CellSpec
    from cs336_tui.worker.workload.passes import Step

MARK = (0.97, 1.03)
"""The median ratio of the medians."""


class Round(NamedTuple):
    """Seconds: median and 20 and 80 % quantiles of each."""

    ours: tuple[float, float, float]
    theirs: tuple[float, float, float]


def cells() -> dict[str, CellSpec]:
    """A short kernel that the L2 feeds, a long one, and steps of many kernels."""
    from cs336_tui.config.choices import sweep_from

    shared: dict[str, Any] = {"devices": ("cuda",), "timers": ("do_bench",)}
    alone: dict[str, Any] = {**shared, "workload": "attention", "attentions": ("sdpa",), "precisions": ("bf16",)}
    model: dict[str, Any] = {**shared, "sizes": ("small",), "contexts": (256,)}
    found = {
        "attention, 1024 tokens": sweep_from(**alone, batches=(1,), contexts=(1024,), passes=("forward",)),
        "attention, 16384 tokens": sweep_from(**alone, batches=(4,), contexts=(16384,), passes=("forward+backward",)),
        "small, forward": sweep_from(**model, passes=("forward",)),
        "small, train-step": sweep_from(**model, passes=("train-step",)),
    }
    return {name: sweep.cells()[0] for name, sweep in found.items()}


def rounds_of(spec: CellSpec, rounds: int, warmup_ms: float, rep_ms: float) -> list[Round]:
    """Both in turns on one step, ours first in every other round."""
    from cs336_tui.worker.workload.building import build, configure_torch

    device = configure_torch(spec)
    workload = build(spec, device)
    step = workload.step(spec)
    tensors = [] if step.back_to_back else list(workload.model.parameters())
    found: list[Round] = []
    for number in range(rounds):
        sides = {}
        for ours in (True, False) if number % 2 == 0 else (False, True):
            sides[ours] = _ours(step, device, warmup_ms, rep_ms) if ours else _theirs(step, tensors, warmup_ms, rep_ms)
        found.append(Round(sides[True], sides[False]))
    return found


def _ours(step: Step, device: torch.device, warmup_ms: float, rep_ms: float) -> tuple[float, float, float]:
    from cs336_tui.config.counts import MOST_BY_TIME, steps_in
    from cs336_tui.stats.summaries import summarize
    from cs336_tui.worker.measure.timing import L2Flush, WindowTiming, clock_for, estimate_step, time_window

    clock, flush = clock_for(device), L2Flush(device)
    step_s = estimate_step(step, clock, flush).step_s
    warmups, steps = (steps_in(for_ms / 1e3, step_s, MOST_BY_TIME) for for_ms in (warmup_ms, rep_ms))
    time_window(step, clock, warmups, lambda _: True, WindowTiming(whole=True))
    times = time_window(step, clock, steps, lambda _: True, WindowTiming(flush, whole=True))
    summary = summarize(time.total_s for time in times)
    assert summary.median_s is not None
    assert summary.p20_s is not None
    assert summary.p80_s is not None
    return summary.median_s, summary.p20_s, summary.p80_s


def _theirs(step: Step, tensors: list[Tensor], warmup_ms: float, rep_ms: float) -> tuple[float, float, float]:
    do_bench = importlib.import_module("triton.testing").do_bench

    def run() -> None:
        for phase in step.phases:
            step.run(phase)

    median, low, high = do_bench(
        run, warmup=warmup_ms, rep=rep_ms, grad_to_none=tensors or None, quantiles=[0.5, 0.2, 0.8]
    )
    step.clear()
    return median / 1e3, low / 1e3, high / 1e3


def why_not() -> str:
    """Why the two cannot be compared here; empty if they can."""
    import torch

    if not torch.cuda.is_available():
        return "no CUDA GPU here"
    try:
        importlib.import_module("triton.testing")
    except ImportError as error:
        return f"no triton here: {error}"
    return ""


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--warmup", default=25.0, show_default=True, metavar="MS")
@click.option("--rep", default=100.0, show_default=True, metavar="MS")
@click.option("--quick", is_flag=True, help="One round.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(rounds: int, warmup: float, rep: float, quick: bool, output: Path | None) -> None:
    command = f"python -m benchmarks.do_bench --rounds {rounds} --warmup {warmup:g} --rep {rep:g}"
    if why := why_not():
        publish("Timer do_bench beside triton's", command, f"Not compared: {why}.", output)
        return
    rows = []
    for name, spec in cells().items():
        found = rounds_of(spec, 1 if quick else rounds, warmup, rep)
        ratios = [each.ours[0] / each.theirs[0] for each in found]
        cell = [name]
        for side in ("ours", "theirs"):
            low, high = (statistics.median(getattr(each, side)[place] for each in found) * 1e3 for place in (1, 2))
            cell.append(f"{spread([getattr(each, side)[0] * 1e3 for each in found])}; {low:.3f} to {high:.3f}")
        rows.append([*cell, f"{spread(ratios)}: {verdict(statistics.median(ratios), *MARK)}"])
    columns = (f"{whose}, ms: medians; p20 to p80" for whose in ("ours", "triton's"))
    header = ["step", *columns, f"ratio, {MARK[0]} to {MARK[1]}"]
    publish("Timer do_bench beside triton's", command, table(header, rows), output)


if __name__ == "__main__":
    main()
