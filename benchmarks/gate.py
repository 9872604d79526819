"""False and true alarms of `cs336-tui gate`: a commit against itself, and against one that takes 5 % longer."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from benchmarks.referee import load
from benchmarks.reporting import publish, spread, table, verdict

COMMAND = str(Path(sys.executable).with_name("cs336-tui"))
MORE = 0.05
"""Share that the slower commit's forward takes longer."""
MOST_SLOWER, LEAST_FOUND, MOST_S = 3 / 60, 0.9, 120.0
SLOWER = f"""

class LM(PlainTransformer):
    def forward(self, tokens):
        began = time.perf_counter()
        logits = super().forward(tokens)
        until = began + {1 + MORE} * (time.perf_counter() - began)
        while time.perf_counter() < until:
            pass
        return logits
"""
"""It waits in proportion to what its forward took, so that its ratio is known however busy the machine is."""
SAME = '''

class LM(PlainTransformer):
    """The plain model as it is."""
'''


class Answer(msgspec.Struct, frozen=True):
    """Result of one run of `gate`, and its duration."""

    case: str
    code: int
    ratio: float
    half_width: float
    rounds: int
    took_s: float


def make_repository(folder: Path) -> None:
    """A repository with the commits `itself` and `slower`, each with `lm.py`."""

    def git(*words: str) -> None:
        identity = ("-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)

    plain = (
        Path(__file__).with_name("plain_model.py").read_text().replace("import math\n", "import math\nimport time\n")
    )
    git("init", "--quiet")
    for name, model in (("itself", SAME), ("slower", SLOWER)):
        (folder / "lm.py").write_text(plain + model)
        git("add", "lm.py")
        git("commit", "--quiet", "--message", name)
        git("tag", name)


def ask(case: str, repository: Path, words: Sequence[str]) -> Answer:
    """Run `gate` with this commit as the head."""
    sides = ["--base", "itself", "--head", case, "--model", "lm:LM"]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [COMMAND, "gate", *sides, *words, "--format", "json", "--session-dir", home],
            capture_output=True,
            text=True,
            cwd=repository,
        )
    took_s = time.perf_counter() - began
    if done.returncode not in (0, 1, 3) or not done.stdout:
        raise click.ClickException(f"gate exited with {done.returncode}: {done.stderr.strip()}")
    rows = json.loads(done.stdout)["rows"]
    low, high = (rows[-1][bound] or float("nan") for bound in ("low", "high"))
    return Answer(case, done.returncode, rows[-1]["ratio"], (high - low) / 2, len(rows) - 1, took_s)


def row(name: str, answers: Sequence[Answer], least: float, most: float) -> list[str]:
    number = sum(answer.code == 1 for answer in answers)
    said = Counter({0: "not slower", 1: "slower", 3: "cannot tell"}[answer.code] for answer in answers)
    return [
        name,
        str(len(answers)),
        f"{number}: {verdict(number / len(answers), least, most)}",
        ", ".join(f"{word} {count}" for word, count in said.most_common()),
        spread([answer.ratio for answer in answers], 4),
        spread([answer.half_width * 100 for answer in answers], 2),
        spread([answer.rounds for answer in answers], 0),
        spread([answer.took_s for answer in answers], 0),
    ]


@click.command()
@click.option("--times", default=10, show_default=True, help="Runs of each kind, in turns.")
@click.option("--case", "cases", type=click.Choice(("itself", "slower")), multiple=True, help="[default: both]")
@click.option("--size", default="tiny", show_default=True)
@click.option("--by", default="2%", show_default=True)
@click.option("--budget", default="2m", show_default=True)
@click.option("--load", "busy", default=0, show_default=True, help="Processes that compute beside it.")
@click.option("--words", default="--device cpu", show_default=True, help="Further options of gate.")
@click.option(
    "--kept",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep each answer here; those that are here count, so that a run that was stopped can go on.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(
    times: int,
    cases: tuple[str, ...],
    size: str,
    by: str,
    budget: str,
    busy: int,
    words: str,
    kept: Path | None,
    output: Path | None,
) -> None:
    cases = cases or ("itself", "slower")
    every = ["--size", size, "--by", by, "--budget", budget, *words.split()]
    answers: list[Answer] = []
    if kept is not None and kept.exists():
        answers = [msgspec.json.decode(line, type=Answer) for line in kept.read_bytes().splitlines()]
    with tempfile.TemporaryDirectory() as folder, load(busy):
        make_repository(Path(folder))
        for number in range(times):
            for case in cases:
                if sum(answer.case == case for answer in answers) > number:
                    continue
                answers.append(answer := ask(case, Path(folder), every))
                if kept is not None:
                    with kept.open("ab") as file:
                        file.write(msgspec.json.encode(answer) + b"\n")
                said = f"exit {answer.code}, {answer.ratio:.4f} ± {answer.half_width:.4f}"
                click.echo(
                    f"{number + 1}/{times} {case}: {said}, {answer.rounds} rounds, {answer.took_s:.0f} s", err=True
                )
    of_case = {case: [answer for answer in answers if answer.case == case] for case in cases}
    rows = []
    if of_case.get("itself"):
        rows.append(row("against itself: slower", of_case["itself"], 0.0, MOST_SLOWER))
    if of_case.get("slower"):
        rows.append(row(f"{MORE:.0%} slower: found", of_case["slower"], LEAST_FOUND, 1.0))
    header = ["head", "runs", "said so", "answers", "ratio", "half of the interval, %", "rounds", "seconds a run"]
    marks = f"marks: at most {MOST_SLOWER:.0%} slower, at least {LEAST_FOUND:.0%} found in {MOST_S:g} s"
    body = f"{table(header, rows)}\n\n{marks}"
    command = f"python -m benchmarks.gate --times {times} --load {busy} {' '.join(every)}"
    publish("Two commits in turns", command, body, output)


if __name__ == "__main__":
    main()
