"""Overhead between cells: from the end of one cell's last timed step to the start of the next cell's first."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from pathlib import Path

import click

from benchmarks.reporting import app, publish, spread, table, verdict
from cs336_tui.events.events import CellFinished, CellStarted, ModelBuilt, StepsTimed
from cs336_tui.session.log import LogReader

COMMAND = app()
MARK_MS = 150.0


def gaps_ms(log: Path) -> dict[str, list[float]]:
    """Milliseconds of each part of the gap, one value per pair of neighbouring cells."""
    parts: dict[str, list[float]] = {"whole gap": [], "end of cell to next start": [], "start to model built": []}
    last_step = finished = started = built = None
    first_done = False
    for event in LogReader(log):
        match event:
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
    return parts


@click.command()
@click.option("--cells", default=20, show_default=True)
@click.option("--device", default="auto", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(cells: int, device: str, output: Path | None) -> None:
    warmups = ",".join(str(n) for n in range(1, cells + 2))
    words = f"--size tiny --context 128 --pass forward --warmup {warmups} --steps 1 --device {device}"
    with tempfile.TemporaryDirectory() as home:
        subprocess.run([*COMMAND, "bench", *words.split(), "--session-dir", home], capture_output=True, check=True)
        (log,) = Path(home).glob("*.jsonl")
        parts = gaps_ms(log)
    rows = [[name, spread(values, 0)] for name, values in parts.items()]
    whole = statistics.median(parts["whole gap"])
    rows[0][1] += f"; at most {MARK_MS:.0f}: {verdict(whole, 0, MARK_MS)}"
    body = table(["tiny forward", f"ms: median of {len(parts['whole gap'])} gaps (least to greatest)"], rows)
    publish("Overhead", f"python -m benchmarks.overhead --cells {cells} --device {device}", body, output)


if __name__ == "__main__":
    main()
