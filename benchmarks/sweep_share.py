"""Share of a CPU sweep's wall time that is spent in warm-up and measured steps."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from benchmarks.reporting import publish, table, verdict
from cs336_tui.session.store import load

COMMAND = str(Path(sys.executable).with_name("cs336-tui"))
SWEEP = "--size tiny,small --context 32,64,96,128,160 --batch 4 --pass forward,train-step --device cpu"
LEAST = 0.85


@click.command()
@click.option("--warmup", default=5, show_default=True)
@click.option("--steps", default=10, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(warmup: int, steps: int, output: Path | None) -> None:
    """Measure the share. The wall time is that of the whole command, with the import of torch."""
    words = f"{SWEEP} --warmup {warmup} --steps {steps}".split()
    with tempfile.TemporaryDirectory() as home:
        begin = time.monotonic()
        subprocess.run([COMMAND, "bench", *words, "--session-dir", home], capture_output=True, check=True)
        wall_s = time.monotonic() - begin
        (log,) = Path(home).glob("*.jsonl")
        state = load(log)
    timed_s = sum(sum(cell.warmup_times_s) + sum(cell.step_times_s) for cell in state.cells.values())
    share = timed_s / wall_s
    rows = [
        ["cells", str(len(state.cells))],
        ["wall time, s", f"{wall_s:.1f}"],
        ["in warm-up and measured steps, s", f"{timed_s:.1f}"],
        ["share", f"{share:.3f}; at least {LEAST}: {verdict(share, LEAST, float('inf'))}"],
    ]
    command = f"python -m benchmarks.sweep_share --warmup {warmup} --steps {steps}"
    publish("Share of a sweep that is timed", command, table([" ".join(words), ""], rows), output)


if __name__ == "__main__":
    main()
