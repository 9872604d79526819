"""The reference model against plain PyTorch of the same mathematics (`benchmarks/plain_model.py`), in turns.

`cs336-tui ab` runs both step by step in one process a round, from the same seed, batch and optimizer. The mark is that
the reference takes at most 3 % longer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from benchmarks.reporting import publish, table

COMMAND = str(Path(sys.executable).with_name("cs336-tui"))
PLAIN = "benchmarks.plain_model:PlainTransformer"
MARK = 1.03


def compare(words: list[str]) -> list[dict[str, Any]]:
    """Rows of the table of `ab`: one for each round and one for all."""
    root = str(Path(__file__).parent.parent)
    sides = ["--a", "--model reference", "--b", f"--model {PLAIN}", "--model-path", root]
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [COMMAND, "ab", *sides, *words, "--format", "json", "--session-dir", home], capture_output=True, text=True
        )
    if done.returncode:
        raise click.ClickException(f"ab exited with {done.returncode}: {done.stderr.strip()}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return rows


def judged(low: float, high: float) -> str:
    """Verdict against the mark: met if the whole interval is below it, missed if it is wholly above."""
    return "met" if high <= MARK else "MISSED" if low > MARK else "open: the interval holds the mark, run more rounds"


@click.command()
@click.option("--size", default="small", show_default=True)
@click.option("--context", default=256, show_default=True)
@click.option("--batch", default=4, show_default=True)
@click.option("--pass", "pass_", default="train-step", show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--steps", default=12, show_default=True, help="Of each side in a round.")
@click.option("--threads", default=0, help="0 for torch's own choice.")
@click.option("--quick", is_flag=True, help="A try: tiny, 2 rounds of 4 steps. Its numbers say nothing.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(
    size: str,
    context: int,
    batch: int,
    pass_: str,
    device: str,
    rounds: int,
    steps: int,
    threads: int,
    quick: bool,
    output: Path | None,
) -> None:
    if quick:
        size, context, batch, rounds, steps = "tiny", 32, 1, 2, 4
    options: dict[str, Any] = {
        "size": size, "context": context, "batch": batch, "pass": pass_, "device": device, "warmup": 2,
        "steps": steps, "rounds": rounds,
    }  # fmt: skip
    if threads:
        options["threads"] = threads
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    found = compare(words)
    rows = [
        [
            "all" if number == len(found) else str(number),
            f"{row['a_mean_s']:.3f}",
            f"{row['b_mean_s']:.3f}",
            f"{row['ratio']:.4f} [{row['low']:.4f}, {row['high']:.4f}]",
        ]
        for number, row in enumerate(found, 1)
    ]
    whole = found[-1]
    header = ["round", "reference, s a step", "plain, s a step", "ratio"]
    met = judged(whole["low"], whole["high"])
    body = f"{table(header, rows)}\n\n{whole['method']}; at most {MARK:g}: {met}."
    publish("The reference against plain PyTorch", f"python -m benchmarks.plain_torch {' '.join(words)}", body, output)


if __name__ == "__main__":
    main()
