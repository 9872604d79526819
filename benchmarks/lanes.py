"""Lanes against one lane: the same cells, run in N lanes and one after the other, in turns."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.reporting import publish, spread, table, verdict
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Event, Lane
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.lanes import lanes_of
from cs336_tui.session.state import SessionState

MODEL = Path(__file__).parents[1] / "tests" / "runner"


def a_spec(**changes: Any) -> CellSpec:
    given: dict[str, Any] = {
        "size": "custom", "edition": "2026", "arch": "swiglu-rope", "d_model": 256, "d_ff": 1024, "num_layers": 4,
        "num_heads": 4, "vocab_size": 1000, "context_length": 64, "batch_size": 4, "pass_": "train-step",
        "precision": "fp32", "device": "cpu", "warmup_steps": 2, "measure_steps": 60, "threads": 1,
    }  # fmt: skip
    return CellSpec(**(given | changes))


def waiting_spec(steps: int, seconds: float) -> CellSpec:
    """A cell of a simulated device: its forward waits and uses no CPU."""
    return a_spec(
        model="waiting:Waits", model_path=(str(MODEL),), model_args=(("seconds", str(seconds)),), pass_="forward",
        vocab_size=8, context_length=4, batch_size=1, warmup_steps=1, measure_steps=steps,
    )  # fmt: skip


def simulated(count: int) -> tuple[Lane, ...]:
    """Lanes of devices that use no CPU, pinned to no core."""
    return tuple(Lane(lane=number, device="cpu") for number in range(count))


def took_s(specs: Sequence[CellSpec], lanes: Sequence[Lane]) -> float:
    """Seconds from the start of the first cell to the end of the last."""
    state = SessionState()

    def fold(events: Sequence[Event]) -> None:
        for event in events:
            state.apply(event)

    with tempfile.TemporaryDirectory() as home:
        bench = Bench(fold, session_dir=Path(home))
        bench.prepare()
        try:
            bench.add([(spec, 1) for spec in specs], lanes=lanes)
            began = time.monotonic()
            bench.work()
            took = time.monotonic() - began
        finally:
            bench.close()
    assert {cell.status for cell in state.cells.values()} == {"ok"}
    assert {bool(cell.lanes) for cell in state.cells.values()} == {bool(lanes)}
    return took


def ratios(specs: Sequence[CellSpec], lanes: Sequence[Lane], pairs: int) -> list[float]:
    """The time in lanes over the time in one, of each pair; pairs begin with one and with the other alternately."""
    took_s(specs[: len(lanes)], lanes)  # files are read for the first time
    found = []
    for pair in range(pairs):
        both = {of: took_s(specs, of) for of in ((tuple(lanes), ()) if pair % 2 else ((), tuple(lanes)))}
        found.append(both[tuple(lanes)] / both[()])
    return found


@click.command()
@click.option("--pairs", default=3, show_default=True)
@click.option("--cells", default=2, show_default=True, help="Cells a lane.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(pairs: int, cells: int, output: Path | None) -> None:
    on_cpu = [a_spec(seed=number) for number in range(2 * cells)]
    on_devices = [waiting_spec(60, 0.1)] * (8 * cells)
    measured = {
        "2 lanes of a core each, train-step, --threads 1": (on_cpu, lanes_of(2, ("cpu",), on_cpu)),
        "8 lanes of simulated devices": (on_devices, simulated(8)),
    }
    rows = []
    for name, (specs, lanes) in measured.items():
        found = ratios(specs, lanes, pairs)
        most = 1 / (0.9 * len(lanes))
        middle = statistics.median(found)
        rows.append([name, str(len(specs)), spread(found, 3), f"{most:.3f}: {verdict(middle, 0, most)}"])
    head = ["lanes", "cells", f"time in lanes / in one, median of {pairs} pairs (least to greatest)", "at most"]
    publish("Lanes", f"python -m benchmarks.lanes --pairs {pairs} --cells {cells}", table(head, rows), output)


if __name__ == "__main__":
    main()
