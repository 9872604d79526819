"""The course's own model against the reference of the same dimensions, step by step in turns by `cs336-tui ab`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import click

from benchmarks.reporting import publish, table

COMMAND = str(Path(sys.executable).with_name("cs336-tui"))
MODEL = "cs336_basics.model:BasicsTransformerLM"
ROOT = Path(__file__).parent.parent
REFERENCES = {
    "same operations": "--model benchmarks.reference_as_course:reference",
    "as it is": "--model reference",
}
"""Models that the course's is compared with. The unchanged reference computes the same with fewer operations."""
MARK = 0.05
"""Largest accepted difference of a step from the reference's with the same operations, as a share."""
QUICK = "--d-model 32 --d-ff 64 --num-layers 2 --num-heads 2 --vocab-size 100 --context 16 --warmup 1".split()


def ask(pass_: str, reference: str, shared: list[str], folders: tuple[Path, ...]) -> dict[str, float]:
    """Mean ratio of the course's steps to the reference's, and its 95 % interval: ratio, low, high."""
    paths = [word for folder in (*folders, ROOT) for word in ("--model-path", str(folder.absolute()))]
    sides = ["--a", f"--model {MODEL}", "--b", REFERENCES[reference]]
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [COMMAND, "ab", *sides, *paths, *shared, "--pass", pass_, "--format", "json", "--session-dir", home],
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise click.ClickException(f"ab exited with {done.returncode}: {done.stderr.strip()}")
    every = json.loads(done.stdout)["rows"][-1]
    return {name: float(every[name]) for name in ("ratio", "low", "high")}


def judged(low: float, high: float) -> str:
    """Verdict against the mark: met if the whole interval is within it, missed if it is wholly outside."""
    if low >= 1 - MARK and high <= 1 + MARK:
        return "met"
    return "MISSED" if low > 1 + MARK or high < 1 - MARK else "open: the interval holds the mark, run more rounds"


@click.command()
@click.option(
    "--path",
    "folders",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    multiple=True,
    required=True,
    help="The folder that has cs336_basics, and any that has what it imports; may be repeated.",
)
@click.option("--size", default="small", show_default=True)
@click.option("--context", default=256, show_default=True)
@click.option("--batch", default=1, show_default=True)
@click.option("--passes", default="forward,forward+backward,train-step", show_default=True)
@click.option("--against", default=",".join(REFERENCES), show_default=True, help="Which references.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--steps", default=10, show_default=True, help="Of each side in a round.")
@click.option("--threads", type=int, help="torch's intra-op threads.  [default: torch's own]")
@click.option("--quick", is_flag=True, help="Dimensions so small that this only shows that it runs.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(
    folders: tuple[Path, ...],
    size: str,
    context: int,
    batch: int,
    passes: str,
    against: str,
    device: str,
    rounds: int,
    steps: int,
    threads: int | None,
    quick: bool,
    output: Path | None,
) -> None:
    if quick:
        rounds, steps = 2, 5
    shared = QUICK if quick else ["--size", size, "--context", str(context)]
    shared = [*shared, "--batch", str(batch), "--device", device, "--rounds", str(rounds), "--steps", str(steps)]
    shared += ["--threads", str(threads)] if threads is not None else []
    rows = []
    for pass_, reference in product(passes.split(","), against.split(",")):
        found = ask(pass_, reference, shared, folders)
        between = f"{found['low']:.4f} to {found['high']:.4f}"
        marked = judged(found["low"], found["high"]) if reference == "same operations" else "-"
        rows.append([pass_, reference, f"{found['ratio']:.4f}", between, marked])
        click.echo(" ".join(rows[-1]), err=True)
    header = ["pass", "reference", "course's / reference's step", "95 % interval", f"within {MARK:.0%}"]
    command = f"python -m benchmarks.course_model --path FOLDER {' '.join(shared)}"
    publish("The course's model against the reference", command, table(header, rows), output)


if __name__ == "__main__":
    main()
