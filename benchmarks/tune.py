"""Distance of the winners of `cs336-tui tune` from the best of 48 candidates, whose costs were measured one by one.

``--exhaustive`` measures all candidates, 30 steps each in rounds, and keeps their ratios to the starting point beside
this file. Without it races are run, each within a third of the time that this took, and their winners looked up there.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.reporting import machine, publish, spread, table, verdict
from cs336_tui.analysis.tuning import race_of
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.tuning import Over, Tuning, label, space_of
from cs336_tui.events.events import Event, TuningStarted
from cs336_tui.runner.bench import Bench
from cs336_tui.session.state import SessionState
from cs336_tui.stats.racing import Standing

WARMUP, STEPS, ROUNDS = 3, 5, 6
"""Rounds and the steps of a visit of the exhaustive measurement; a race has visits of as many steps."""


class Raced(msgspec.Struct, frozen=True):
    """A starting point, and the choices that are searched."""

    dims: dict[str, Any]
    context: int
    batch: int
    over: tuple[Over, ...]


_OPTIMIZERS = Over("optimizer", ("adamw", "adamw-fused", "adamw-foreach", "adamw-for-loop"))
SPACES = {
    "apart": Raced(
        {"d_model": 64, "d_ff": 256, "num_layers": 4, "num_heads": 4, "vocab_size": 4096},
        context=32,
        batch=4,
        over=(_OPTIMIZERS, Over("checkpoint", (0, 1, 2, 4)), Over("batch_size", (4, 2, 1))),
    ),
    "near": Raced(
        {"d_model": 96, "d_ff": 256, "num_layers": 2, "num_heads": 4, "vocab_size": 512},
        context=128,
        batch=2,
        over=(
            Over("attention", ("naive", "sdpa")),
            Over("norm", ("rmsnorm", "torch-rmsnorm")),
            _OPTIMIZERS,
            Over("checkpoint", (0, 1, 2)),
        ),
    ),
}
"""Of `apart`, with few tokens and many parameters, each choice changes a step by 10 % and more. Of `near` four are
within 5 % of the best, about as far as processes of one candidate are apart: there the record itself is not sure."""
CLOSE, LEAST_CLOSE, MOST_SHARE = 0.02, 19 / 20, 1 / 3
"""The winner costs at most so much more than the best, in so large a share of all races, in so much of the time."""


class Known(msgspec.Struct, frozen=True):
    """The costs of all candidates over the starting point's, by their labels, and the seconds that measuring took."""

    machine: str
    took_s: float
    ratios: dict[str, float]
    errors: dict[str, float]
    """Half the width of the ratio's simultaneous interval."""

    @property
    def best(self) -> str:
        return min(self.ratios, key=self.ratios.__getitem__)


class Outcome(msgspec.Struct, frozen=True):
    """One race: its winner, what it costs over the best, and the seconds of the whole command."""

    winner: str
    behind: float
    claimed: float
    """The ratio to the starting point that the race told."""
    took_s: float
    ended: str
    visits: int


def tuning(raced: Raced) -> Tuning:
    choices: dict[str, Any] = {
        "contexts": (raced.context,),
        "batches": (raced.batch,),
        "passes": ("train-step",),
        "devices": ("cpu",),
    }
    counts: dict[str, Any] = {"warmups": (WARMUP,), "steps": STEPS, "threads": 1}
    (base,) = sweep_from(**raced.dims, **choices, **counts).cells()
    return Tuning(base=base, over=raced.over, budget_s=1e6)


def measure(raced: Raced, rounds: int) -> Known:
    """Visit every candidate once a round, each round in an order of its own."""
    searched, began, state = tuning(raced), time.monotonic(), SessionState()

    def fold(events: Sequence[Event]) -> None:
        for event in events:
            state.apply(event)

    candidates = space_of(searched).candidates
    with tempfile.TemporaryDirectory() as home:
        bench = Bench(fold, session_dir=Path(home), explain_oom=False)
        try:
            bench.prepare()
            bench.record(TuningStarted(at=time.time(), tuning=searched, candidates=candidates))
            for number in range(1, rounds + 1):
                order = list(candidates)
                random.Random(number).shuffle(order)
                bench.add([(spec, number) for spec in order])
                bench.work()
                click.echo(f"round {number}/{rounds}: {time.monotonic() - began:.0f} s", err=True)
        finally:
            bench.close()
    race = race_of(state)
    assert race is not None
    labels = {entry.number: entry.label for entry in race.entries}
    if len(race.standings) < len(candidates):
        raise click.ClickException("not every candidate could be measured")
    ratios = {labels[standing.candidate]: standing.ratio for standing in race.standings}
    errors = {labels[standing.candidate]: _half(standing) for standing in race.standings}
    return Known(machine(), time.monotonic() - began, ratios, errors)


def _half(standing: Standing) -> float:
    return 0.0 if standing.low is None or standing.high is None else (standing.high - standing.low) / 2


def race(raced: Raced, known: Known, budget_s: float) -> Outcome:
    """Run `cs336-tui tune` on the same candidates."""
    dims = [word for name, value in raced.dims.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    shared = ["--context", str(raced.context), "--batch", str(raced.batch), "--device", "cpu", "--threads", "1"]
    shared += ["--warmup", str(WARMUP), "--steps", str(STEPS), "--budget", f"{budget_s:.1f}s", "--format", "json"]
    searched = tuning(raced)
    over = [word for each in raced.over for word in ("--over", each.texts[0])]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "cs336_tui", "tune", *dims, *shared, *over, "--session-dir", home]
        done = subprocess.run(command, capture_output=True, text=True)
    took_s = time.monotonic() - begin
    if done.returncode:
        raise click.ClickException(f"tune exited with {done.returncode}: {done.stderr.strip()[-2000:]}")
    told = json.loads(done.stdout)
    best = next(each for each in told["ranking"] if each["status"] == "best")
    winner = label(searched, msgspec.convert(told["best"], CellSpec))
    visits = sum(each["visits"] for each in told["ranking"])
    behind = known.ratios[winner] / known.ratios[known.best]
    return Outcome(winner, behind, best["ratio"], took_s, told["ended"], visits)


@click.command()
@click.option("--exhaustive", is_flag=True, help="Measure all candidates first, and keep their costs.")
@click.option("--rounds", default=ROUNDS, show_default=True, help="Of the exhaustive measurement.")
@click.option("--times", default=20, show_default=True, help="Races; 0 for none.")
@click.option("--share", default=MOST_SHARE, show_default=True, help="Of the exhaustive time, for one race.")
@click.option("--space", type=click.Choice(list(SPACES)), default="apart", show_default=True, help="The candidates.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(exhaustive: bool, rounds: int, times: int, share: float, space: str, output: Path | None) -> None:
    raced, path = SPACES[space], Path(__file__).with_name(f"tune_exhaustive_{space}.json")
    if exhaustive:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(measure(raced, rounds)), indent=1) + b"\n")
    known = msgspec.json.decode(path.read_bytes(), type=Known)
    reference = f"exhaustive: {len(known.ratios)} candidates in {known.took_s:.0f} s, best {known.best}"
    click.echo(f"{reference}: {known.ratios[known.best]:.3f} of the starting point, on {known.machine}", err=True)
    outcomes: list[Outcome] = []
    for number in range(1, times + 1):
        found = race(raced, known, share * known.took_s * 0.95)  # the interpreter starts before the budget does
        outcomes.append(found)
        said = f"{found.winner}, {found.behind - 1:+.2%} of the best, {found.took_s:.1f} s, {found.visits} visits"
        click.echo(f"{number}/{times}: {said}, {found.ended}", err=True)
    if outcomes:
        _publish(known, outcomes, reference, f"--space {space} --times {times}", output)


def _publish(known: Known, outcomes: Sequence[Outcome], reference: str, options: str, output: Path | None) -> None:
    close = sum(outcome.behind <= 1 + CLOSE for outcome in outcomes)
    times, shares = len(outcomes), [outcome.took_s / known.took_s for outcome in outcomes]
    rows = [
        [f"winner within {CLOSE:.0%} of the best", f"{close} of {times}", f"at least {LEAST_CLOSE:.0%}",
         verdict(close / times, LEAST_CLOSE, 1)],
        ["share of the exhaustive time", spread(shares), f"at most {MOST_SHARE:.3f}",
         verdict(max(shares), 0, MOST_SHARE)],
        ["winner over the best", spread([outcome.behind for outcome in outcomes], 4), "", ""],
        ["visits", spread([outcome.visits for outcome in outcomes], 0), f"{len(known.ratios)} a round", ""],
    ]  # fmt: skip
    within = sum(ratio <= (1 + CLOSE) * known.ratios[known.best] for ratio in known.ratios.values())
    about = f"{reference}; candidates within {CLOSE:.0%} of it: {within}"
    body = f"{table(['', 'found', 'mark', ''], rows)}\n\n{about}"
    publish("A race among 48 candidates", f"python -m benchmarks.tune {options}", body, output)


if __name__ == "__main__":
    main()
