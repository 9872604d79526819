"""False and true alarms of `cs336-tui ab`: a cell against itself, and against itself with 3 % more work."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.reporting import publish, spread, table, verdict
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.flops import step_flops

COMMAND = str(Path(sys.executable).with_name("cs336-tui"))
DIMS: dict[str, Any] = {"d_model": 64, "d_ff": 256, "num_heads": 2, "vocab_size": 256}
"""Thin layers: one more is a small share of the work and of the time."""
LAYERS, MORE_LAYERS = 32, 33
CONTEXT = 64
MOST_DIFFERENT, LEAST_SLOWER = 2 / 40, 0.9


class Answer(msgspec.Struct, frozen=True):
    """Result of one run of `ab`, and its duration."""

    case: str
    verdict: str
    ratio: float
    half_width: float
    """Half the width of the ratio's interval."""
    took_s: float


def flops(layers: int) -> int:
    """FLOPs of one step."""
    choices: dict[str, Any] = {"contexts": (CONTEXT,), "batches": (1,), "passes": ("forward",), "devices": ("cpu",)}
    sweep = sweep_from(**DIMS, num_layers=layers, **choices)
    return step_flops(sweep.cells()[0])


def ask(case: str, a_layers: int, words: Iterable[str]) -> Answer:
    """Run `ab` with this number of layers in A."""
    dims = [word for name, value in DIMS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    shared = [*dims, "--context", str(CONTEXT), "--batch", "1", "--pass", "forward"]
    sides = ["--a", f"--num-layers {a_layers}", "--b", f"--num-layers {LAYERS}"]
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [COMMAND, "ab", *sides, *shared, *words, "--format", "json", "--session-dir", home],
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise click.ClickException(f"ab exited with {done.returncode}: {done.stderr.strip()}")
    every = json.loads(done.stdout)["rows"][-1]
    half_width = (every["high"] - every["low"]) / 2
    return Answer(case, every["verdict"], every["ratio"], half_width, time.perf_counter() - begin)


def row(name: str, answers: list[Answer], said: tuple[str, ...], least: float, most: float) -> list[str]:
    counts = Counter(answer.verdict for answer in answers)
    number = sum(counts[word] for word in said)
    met = verdict(number / len(answers), least, most)
    return [
        name,
        str(len(answers)),
        f"{number}: {met}",
        ", ".join(f"{word} {count}" for word, count in counts.most_common()),
        spread([answer.ratio for answer in answers], 4),
        spread([answer.half_width * 100 for answer in answers], 2),
        spread([answer.took_s for answer in answers], 1),
    ]


@click.command()
@click.option("--times", default=40, show_default=True, help="Runs of each kind, in turns.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--steps", default=40, show_default=True, help="Of each side in a round.")
@click.option("--device", default="auto", show_default=True)
@click.option("--threads", default=1, show_default=True, help="Two wait for one another wherever a core is taken.")
@click.option(
    "--kept",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep each answer here; those that are here count, so that a run that was stopped can go on.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(
    times: int, rounds: int, steps: int, device: str, threads: int, kept: Path | None, output: Path | None
) -> None:
    words = ["--rounds", str(rounds), "--steps", str(steps), "--device", device, "--threads", str(threads)]
    cases = {"A/A": LAYERS, "more work": MORE_LAYERS}
    answers: list[Answer] = []
    if kept is not None and kept.exists():
        answers = [msgspec.json.decode(line, type=Answer) for line in kept.read_bytes().splitlines()]
    for number in range(times):
        for case, layers in cases.items():
            if sum(answer.case == case for answer in answers) > number:
                continue
            answer = ask(case, layers, words)
            answers.append(answer)
            if kept is not None:
                with kept.open("ab") as file:
                    file.write(msgspec.json.encode(answer) + b"\n")
            said = f"{answer.verdict}, {answer.ratio:.4f} ± {answer.half_width:.4f}, {answer.took_s:.1f} s"
            click.echo(f"{number + 1}/{times} {case}: {said}", err=True)
    added = flops(MORE_LAYERS) / flops(LAYERS) - 1
    by_case = {case: [answer for answer in answers if answer.case == case] for case in cases}
    rows = [
        row("A against itself: different", by_case["A/A"], ("faster", "slower"), 0, MOST_DIFFERENT),
        row(f"with {added * 100:.1f} % more FLOPs: slower", by_case["more work"], ("slower",), LEAST_SLOWER, 1),
    ]
    header = ["A / B", "runs", "said so", "verdicts", "ratio", "half of the interval, %", "seconds a run"]
    model = f"{LAYERS} layers of width {DIMS['d_model']}, context {CONTEXT}, batch 1, forward, {flops(LAYERS):,} FLOPs"
    marks = f"marks: at most {MOST_DIFFERENT:.0%} different, at least {LEAST_SLOWER:.0%} slower"
    body = f"{table(header, rows)}\n\n{model}, against {MORE_LAYERS} layers, {flops(MORE_LAYERS):,} FLOPs; {marks}"
    command = f"python -m benchmarks.ab --times {times} {' '.join(words)}"
    publish("Two cells in turns", command, body, output)


if __name__ == "__main__":
    main()
