"""Verdicts on work that was not done: cells that cheat and honest ones (`tests/referee`), run by the tool.

    python -m benchmarks.referee --only 'model/Memoised*' --load 4

A cheat is found if one of its verdicts is said of it. Of one whose results are right nothing need be said if it is no
faster than its honest twin, as the tool may have taken its trick away. An honest cell is doubted wrongly if one of the
referee's doubts is said of it. A sample of cheats is run by `ab` against their twins, in turns: none may be called
faster. A sample of attentions and optimizers races against theirs by `tune`: none may win. Cells of one run share a
session; each run has another seed of parameters and tokens.
"""

from __future__ import annotations

import fnmatch
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from benchmarks.reporting import app, publish, spread, table, verdict
from cs336_tui.analysis.ab import turns_of
from cs336_tui.analysis.merge import merge
from cs336_tui.analysis.verdicts import judge
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Event, StepsTimed
from cs336_tui.runner.bench import Bench
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from tests.referee.corpus import CAN_CHECK, CHEATS, DOUBTS, FAILED, USERS, Cheat, Honest, spec_of
from tests.referee.honest_cells import HONEST

LEAST_FOUND, MOST_DOUBTED, MOST_STEPS = 0.95, 1 / 60, 3.0
"""The share of cheats to be found, of honest cells that may be doubted, and the cost of the check in steps."""
LARGE: dict[str, Any] = {"batch_size": 16, "context_length": 256, "measure_steps": 5}
"""The cells whose check is timed."""
NO_GAIN = 0.9
"""From this time over its twin's on a cheat gains nothing."""


class Outcome(NamedTuple):
    """The verdicts on one cell of a case."""

    case: Cheat | Honest
    status: str
    said: frozenset[str]
    """Its verdicts, `FAILED` among them if it has no result."""
    error: str
    evidence: str
    """That of the referee's doubts."""
    gains_nothing: bool = False

    @property
    def is_right(self) -> bool:
        if isinstance(self.case, Cheat):
            return self.gains_nothing or bool(self.said & self.case.verdicts)
        return self.status == "ok" and not self.said & DOUBTS

    @property
    def words(self) -> str:
        """The verdicts, those that count first."""
        if self.status != "ok":
            return f"{self.status}: {self.error}"
        names = sorted(self.said, key=lambda name: (name not in DOUBTS, name))
        return ", ".join((*names, "but gains nothing") if self.gains_nothing else names)


class Turns(NamedTuple):
    """A cheat in turns with its honest twin."""

    id: str
    outcome: str
    words: str
    ratio: float | None
    """Its time over that of its twin."""

    @property
    def is_fooled(self) -> bool:
        return self.outcome == "faster"


class Race(NamedTuple):
    """A cheat among the candidates of `tune`, beside its honest twin."""

    id: str
    winner: str
    is_fooled: bool


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep so many processors busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


class Session:
    """The session of what is run on a bench."""

    def __init__(self) -> None:
        self.state = SessionState()
        self.last_step_at: dict[int, float] = {}
        """Unix seconds of the last step of each cell."""

    def __call__(self, events: Sequence[Event]) -> None:
        for event in events:
            self.state.apply(event)
            if isinstance(event, StepsTimed):
                self.last_step_at[event.cell] = event.at

    def after_steps(self, cell: CellState) -> float | None:
        """The time from a cell's last measured step to its end, in steps."""
        at, finished = self.last_step_at.get(cell.cell), cell.finished
        if finished is None or at is None or not cell.step_times_s:
            return None
        return (finished.at - at) / statistics.fmean(cell.step_times_s)


def run(work: Callable[[Bench], None]) -> Session:
    session = Session()

    with tempfile.TemporaryDirectory() as home:
        bench = Bench(session, session_dir=Path(home), explain_oom=False)
        bench.prepare()
        try:
            work(bench)
        finally:
            bench.close()
    return session


def outcomes(cases: Sequence[Cheat | Honest], seed: int, reference: bool) -> list[Outcome]:
    """Run a cell of each case, one after the other."""
    specs = [spec_of(case, seed=seed, reference=reference) for case in cases]
    session = run(lambda bench: bench.run(specs, "python -m benchmarks.referee"))
    found = [outcome(case, session.state.cells[number]) for number, case in enumerate(cases)]
    return [each._replace(gains_nothing=gains_nothing(each, seed, reference)) for each in found]


def gains_nothing(found: Outcome, seed: int, reference: bool) -> bool:
    """True for a cheat of right results that was not found and is no faster than its twin."""
    case = found.case
    if not isinstance(case, Cheat) or not case.in_time_alone or found.is_right:
        return False
    ratio = in_turns(case, seed, 2, reference).ratio
    return ratio is not None and ratio >= NO_GAIN


def outcome(case: Cheat | Honest, cell: CellState) -> Outcome:
    judgement = judge(cell)
    said: set[str] = set(judgement.names) if judgement else {FAILED}
    error = (cell.finished.error if cell.finished else cell.skipped_because) or ""
    doubts = [check for check in judgement.checks if check.holds and check.name in DOUBTS] if judgement else []
    evidence = "; ".join(f"{check.name}: {check.evidence}" for check in doubts)
    return Outcome(case, cell.status, frozenset(said), error, evidence)


def in_turns(case: Cheat, seed: int, rounds: int, reference: bool) -> Turns:
    """The cheat as A and its honest twin as B."""
    specs: tuple[CellSpec, ...] = tuple(
        spec_of(case, seed=seed, twin=twin, reference=reference) for twin in (False, True)
    )
    results = merge([("referee", run(lambda bench: bench.run_ab(specs[0], specs[1], rounds)).state)])
    turns = turns_of(list(zip(results[::2], results[1::2], strict=True)))
    words = str(turns.ratio) if turns.ratio else turns.explanation
    return Turns(case.id, str(turns.outcome), words, turns.ratio.ratio if turns.ratio else None)


def costs(cases: Sequence[Honest], seed: int) -> list[float]:
    """The cost of the check of each honest cell, in steps: the time between its last step and its end, less that of the
    same cell without a check. These have more tokens than the corpus, so that a step takes longer than what every check
    does once."""
    specs = [
        msgspec.structs.replace(spec_of(case, seed=seed, checked=checked), **LARGE)
        for case in cases
        for checked in (True, False)
    ]
    session = run(lambda bench: bench.run(specs, "python -m benchmarks.referee"))
    after = [session.after_steps(session.state.cells[number]) for number in range(len(specs))]
    return [on - off for on, off in zip(after[::2], after[1::2], strict=True) if on is not None and off is not None]


def can_take_turns(case: Cheat) -> bool:
    """True for a cell of one rank whose own process is no other cell's: a clock that is replaced is so for both."""
    return case.changes.get("ranks", 1) == 1 and "/Patches" not in case.id


def race(case: Cheat, seed: int, budget_s: float) -> Race:
    """Run `cs336-tui tune` from the honest twin, with the cheat as the only other candidate."""
    (field,) = case.twin
    spec, candidate = spec_of(case, seed=seed, twin=True), case.changes[field]
    dims = ("d_model", "d_ff", "num_layers", "num_heads", "vocab_size", "device", "threads", "seed")
    named: dict[str, object] = {name: getattr(spec, name) for name in dims}
    named |= {"context": spec.context_length, "batch": spec.batch_size, "pass": spec.pass_, field: case.twin[field]}
    words = [word for name, value in named.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words += ["--over", f"{field}={case.twin[field]},{candidate}", "--model-path", str(USERS)]
    with tempfile.TemporaryDirectory() as home:
        command = [*app(), "tune", *words, "--budget", f"{budget_s:g}s", "--format", "json", "--session-dir", home]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return Race(case.id, f"none: {(done.stderr.strip().splitlines() or ['?'])[-1]}", False)
    best = json.loads(done.stdout)["best"][field]
    return Race(case.id, best, best == candidate)


def can_race(case: Cheat) -> bool:
    """True for an attention or an optimizer that is the only choice in which its cell is unlike the others."""
    return next(iter(case.twin)) in ("attention", "optimizer") and not case.changes.keys() - {*case.twin, "pass_"}


def chosen(only: Sequence[str]) -> list[Cheat | Honest]:
    cases: list[Cheat | Honest] = [*CHEATS, *HONEST]
    return [case for case in cases if not only or any(fnmatch.fnmatch(case.id, glob) for glob in only)]


def table_of_cheats(cheats: Sequence[Outcome]) -> str:
    rows = []
    for name in dict.fromkeys(each.case.id for each in cheats):
        of_case = [each for each in cheats if each.case.id == name]
        right, case = sum(each.is_right for each in of_case), of_case[0].case
        said = Counter(each.words for each in of_case).most_common()
        words = "; ".join(words if len(of_case) == 1 else f"{words} ({n})" for words, n in said)
        mark = "yes" if right == len(of_case) else "**no**" if not right else f"**{right} of {len(of_case)}**"
        rows.append([f"{name}{' (blind)' if case.blind else ''}", ", ".join(sorted(case.verdicts)), words, mark])
    return table(["cheat", "one of", "said", "right"], rows)


def table_of_honest(honest: Sequence[Outcome]) -> str:
    rows = [[each.case.id, each.words, each.evidence] for each in honest if not each.is_right]
    return table(["honest cell", "said", "evidence"], rows) if rows else "No honest cell is doubted."


def table_of_verdicts(cheats: Sequence[Outcome], honest: Sequence[Outcome]) -> str:
    """The frequency of each doubt: of honest cells, and of cheats of which it is one that may be said."""
    rows = []
    for name in sorted(DOUBTS):
        groups = honest, [each for each in cheats if name in each.case.verdicts]
        rows.append([f"`{name}`", *(f"{sum(name in each.said for each in of)} of {len(of)}" for of in groups)])
    return table(["verdict", "said of honest cells", "said of cheats of which it may be said"], rows)


def share(count: int, every: Sequence[object]) -> str:
    return f"{count} of {len(every)}, {count / len(every):.1%}"


def summary(
    cheats: Sequence[Outcome],
    honest: Sequence[Outcome],
    cost: Sequence[float],
    turns: Sequence[Turns],
    races: Sequence[Race],
) -> str:
    rows = []
    if cheats:
        right = sum(each.is_right for each in cheats)
        mark = f"at least {LEAST_FOUND:.0%}: {verdict(right / len(cheats), LEAST_FOUND, 1)}"
        rows.append(["cheats found", share(right, cheats), mark])
    if blind := [each for each in cheats if each.case.blind]:
        rows.append(["of these told by comparison alone", share(sum(each.is_right for each in blind), blind), ""])
    if honest:
        wrong = sum(not each.is_right for each in honest)
        mark = f"at most 1 in {1 / MOST_DOUBTED:.0f}: {verdict(wrong / len(honest), 0, MOST_DOUBTED)}"
        rows.append(["honest cells doubted", share(wrong, honest), mark])
    if cost:
        mark = f"at most {MOST_STEPS:g}: {verdict(statistics.median(cost), float('-inf'), MOST_STEPS)}"
        rows.append(["the check of an honest cell, in steps", spread(cost, 1), mark])
    pairs: list[tuple[str, Sequence[Turns | Race]]] = [
        ("cheats that ab calls faster", turns),
        ("cheats that win a race", races),
    ]
    for title, pair in pairs:
        if pair:
            fooled = sum(each.is_fooled for each in pair)
            rows.append([title, f"{fooled} of {len(pair)}", f"none: {verdict(fooled, 0, 0)}"])
    return table(["", "found", "mark"], rows)


@click.command()
@click.option("--runs", default=1, show_default=True, help="Runs of the whole corpus, each with a seed of its own.")
@click.option("--seed", default=0, show_default=True, help="Of the first run.")
@click.option("--only", multiple=True, help="Only cases whose id is such a pattern; may be repeated.")
@click.option("--load", "busy", default=0, show_default=True, help="Processes that keep processors busy meanwhile.")
@click.option("--checks", default=8, show_default=True, help="Honest cells run with and without their check.")
@click.option("--turns", default=8, show_default=True, help="Cheats that ab runs against their honest twins.")
@click.option("--rounds", default=2, show_default=True, help="Rounds of each ab.")
@click.option("--races", default=2, show_default=True, help="Cheats that tune runs against their honest twins.")
@click.option("--budget", default=15.0, show_default=True, help="Seconds of a race.")
@click.option("--slow/--no-slow", default=True, show_default=True, help="With cells that compile.")
@click.option(
    "--reference/--no-reference", default=True, show_default=True, help="Name an honest model to compare with."
)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(
    runs: int,
    seed: int,
    only: tuple[str, ...],
    busy: int,
    checks: int,
    turns: int,
    rounds: int,
    races: int,
    budget: float,
    slow: bool,
    reference: bool,
    output: Path | None,
) -> None:
    cases = [case for case in chosen(only) if slow or not (isinstance(case, Honest) and case.slow)]
    cheating = [case for case in cases if isinstance(case, Cheat)]
    draw = random.Random(seed)
    in_pairs = [case for case in cheating if can_take_turns(case)]
    racing = [case for case in cheating if can_race(case)]
    plain = [case for case in cases if isinstance(case, Honest) and not case.slow and "ranks" not in case.changes]
    found, paired, raced = list[Outcome](), list[Turns](), list[Race]()
    with load(busy):
        for number in range(seed, seed + runs):
            of_run = outcomes(cases, number, reference)
            found += of_run
            right = sum(each.is_right for each in of_run)
            click.echo(f"seed {number}: right of {right} of {len(of_run)} cells", err=True)
        cost = costs(draw.sample(plain, min(checks, len(plain))), seed) if CAN_CHECK and checks else []
        for case in draw.sample(in_pairs, min(turns, len(in_pairs))):
            paired.append(in_turns(case, seed, rounds, reference))
            click.echo(f"{paired[-1].id} in turns: {paired[-1].outcome}, {paired[-1].words}", err=True)
        for case in draw.sample(racing, min(races, len(racing))):
            raced.append(race(case, seed, budget))
            click.echo(f"{raced[-1].id} in a race: {raced[-1].winner} wins", err=True)
    cheats = [each for each in found if isinstance(each.case, Cheat)]
    honest = [each for each in found if isinstance(each.case, Honest)]
    parts = [summary(cheats, honest, cost, paired, raced), table_of_verdicts(cheats, honest)]
    parts += [table_of_cheats(cheats)] if cheats else []
    parts += [table_of_honest(honest)] if honest else []
    if paired:
        rows = [[each.id, each.outcome, each.words, "**yes**" if each.is_fooled else "no"] for each in paired]
        parts.append(table(["cheat against its honest twin", "outcome", "ratio", "called faster"], rows))
    if raced:
        rows = [[each.id, each.winner, "**yes**" if each.is_fooled else "no"] for each in raced]
        parts.append(table(["cheat in a race", "winner", "the cheat"], rows))
    words = [
        f"--runs {runs} --seed {seed} --checks {checks} --turns {turns} --races {races} --load {busy}",
        *(f"--only '{glob}'" for glob in only),
        *(() if slow else ("--no-slow",)),
        *(() if reference else ("--no-reference",)),
    ]
    publish("The referee", f"python -m benchmarks.referee {' '.join(words)}", "\n\n".join(parts), output)


if __name__ == "__main__":
    main()
