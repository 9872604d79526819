"""Overhead between cells: from the end of one cell's last timed step to the start of the next cell's first, beside a
bare fork and build of the model on the same device, in turns."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from benchmarks.reporting import app, publish, spread, table, verdict
from cs336_tui.events.events import CellFinished, CellsQueued, CellStarted, ModelBuilt, StepsTimed
from cs336_tui.session.log import LogReader

COMMAND = app()
MARK_MS = 150.0
MARK = 1.5
"""The gap over a bare fork and build."""
BARE = "benchmarks.bare_start"
_CELLS = 6
"""Cells of a round."""


def gaps_ms(log: Path) -> tuple[str, dict[str, list[float]]]:
    """The device of the cells, and milliseconds of each part of the gap, one value per pair of neighbouring cells."""
    device = ""
    parts: dict[str, list[float]] = {"whole gap": [], "end of cell to next start": [], "start to model built": []}
    last_step = finished = started = built = None
    first_done = False
    for event in LogReader(log):
        match event:
            case CellsQueued():
                device = event.specs[0].device
            case CellStarted():
                started, first_done = event.at, False
            case ModelBuilt():
                built = event.at
            case StepsTimed():
                begin = event.at - event.times_s[-1]
                if not first_done and last_step and finished and started and built:
                    parts["whole gap"].append((begin - last_step) * 1e3)
                    parts["end of cell to next start"].append((started - last_step) * 1e3)
                    parts["start to model built"].append((built - started) * 1e3)
                first_done, last_step = True, event.at
            case CellFinished():
                finished = event.at
    return device, parts


def bare_ms(count: int, device: str) -> list[float]:
    """Milliseconds of each of so many bare forks and builds on the device."""
    words = [sys.executable, "-m", BARE, str(count), device]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [*map(float, done.stdout.split())]


@click.command()
@click.option("--cells", default=24, show_default=True)
@click.option("--device", default="auto", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(cells: int, device: str, output: Path | None) -> None:
    warmups = ",".join(str(n) for n in range(1, _CELLS + 2))
    words = f"--size tiny --context 128 --pass forward --warmup {warmups} --steps 1 --device {device}"
    parts: dict[str, list[float]] = {}
    bare: list[float] = []
    ratios: list[float] = []
    for _ in range(max(cells // _CELLS, 1)):
        with tempfile.TemporaryDirectory() as home:
            subprocess.run([*COMMAND, "bench", *words.split(), "--session-dir", home], capture_output=True, check=True)
            (log,) = Path(home).glob("*.jsonl")
            used, found = gaps_ms(log)
        beside = bare_ms(_CELLS, used)
        ratios.append(statistics.median(found["whole gap"]) / statistics.median(beside))
        bare += beside
        for name, values in found.items():
            parts[name] = [*parts.get(name, []), *values]
    rows = [[name, spread(values, 0)] for name, values in parts.items()]
    whole = statistics.median(parts["whole gap"])
    if used == "cpu":  # elsewhere each cell makes a context on the device, as the bare build does
        rows[0][1] += f"; at most {MARK_MS:.0f}: {verdict(whole, 0, MARK_MS)}"
    rows.append([f"bare fork and build of the model on {used}", spread(bare, 0)])
    met = verdict(statistics.median(ratios), 0, MARK)
    rows.append(["whole gap / bare, by rounds", f"{spread(ratios, 2)}; at most {MARK:g}: {met}"])
    count = f"{len(parts['whole gap'])} gaps of {len(ratios)} rounds"
    body = table(["tiny forward", f"ms: median of {count} (least to greatest)"], rows)
    publish("Overhead", f"python -m benchmarks.overhead --cells {cells} --device {device}", body, output)


if __name__ == "__main__":
    main()
