"""`cs336-tui gate`: two commits of the user's own code in turns, from options to an exit code."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import click
import msgspec

import cs336_tui
from cs336_tui.analysis.ab import is_decided, turns_of
from cs336_tui.analysis.merge import results_of
from cs336_tui.cli.ab import PASSES_HELP, AbProgress, AbRun, by_option, flags_of, one_cell, rounds_in, side_sweep
from cs336_tui.cli.files import GITHUB, Destination, file_options
from cs336_tui.cli.flags import Parsed, choice_options, reword, timeout_option
from cs336_tui.cli.help import command, heading, option, option_under
from cs336_tui.cli.progress import bar
from cs336_tui.cli.run import Outputs, carry_out
from cs336_tui.cli.streams import shown
from cs336_tui.config.counts import share_words
from cs336_tui.config.order import check_sides
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.tuning import budget_of
from cs336_tui.config.variants import found_along
from cs336_tui.export.subjects.comparison import turns_table
from cs336_tui.export.writing.formats import render
from cs336_tui.export.writing.tables import Table
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.trust import names_of
from cs336_tui.runner.worktrees import Commit, Repository, WorktreeError, worktrees
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import duration


class _GateProgress(AbProgress):
    """As of two cells in turns, with the share of the budget that is used."""

    ends_at, budget_s = 0.0, 1.0

    def _round(self, number: int) -> str:
        return f"round {number + 1}"

    def _bar(self) -> str:
        left_s = max(self.ends_at - time.monotonic(), 0.0)
        return bar(min(1 - left_s / self.budget_s, 1.0), f"{duration(left_s)} left at most", self._width)


class _GateRun(AbRun):
    shows_by = _GateProgress


@contextlib.contextmanager
def _without(repository: Repository) -> Iterator[list[str]]:
    """While entered Python's path, which cells inherit, has no folder of the user's working tree; gives those that it
    had, but for the one of this package."""
    before, ours = sys.path[:], Path(cs336_tui.__file__).parent.parent
    taken = [entry for entry in before if repository.holds(entry) and Path(entry).resolve() != ours]
    sys.path[:] = [entry for entry in before if entry not in taken]
    try:
        yield taken
    finally:
        sys.path[:] = before


def _side(name: str, repository: Repository, tree: Path, choices: Mapping[str, Any], on_path: Sequence[str]) -> Sweep:
    """The one cell of a commit, whose code is that of its worktree. Raises `click.UsageError`."""
    asked = tuple(choices["model_path"])
    folders = [repository.moved(folder, tree) for folder in asked]
    usual = [repository.moved(folder, tree) for folder in (*(() if asked else (Path.cwd(),)), *on_path)]
    folders += [folder for folder in (*usual, str(tree), str(tree / "src")) if Path(folder).is_dir()]
    own = {key: choice for key, choice in choices.items() if choice is not None and key != "model_path"}
    sweep = side_sweep(name, own, {"model_path": tuple(dict.fromkeys(folders))})
    if sweep.steps_for is not None:
        raise click.UsageError(f"{name}: both commits need the same number of steps; give --steps a number")
    codes = names_of(sweep)
    outside = [code for code in codes if not _found(code, folders)]
    for code in outside:
        there = _found(code, [*(asked or ("",)), *on_path]) or importlib.util.find_spec(
            code.partition(":")[0].partition(".")[0]
        )
        places = (there.origin, *(there.submodule_search_locations or ())) if there else ()
        if any(map(repository.holds, filter(None, places))):
            why = "commit it, or give its folder with --model-path"
            raise click.UsageError(f"{name}: {code} is in your working tree, and not found in the commit; {why}")
    if len(outside) == len(codes):
        named = f"{', '.join(outside)} is not of this repository" if outside else "no code of your own is named"
        raise click.UsageError(f"{name}: {named}; give --model package.module:Class, or another choice of your own")
    return sweep


def _found(code: str, folders: Sequence[str]) -> ModuleSpec | None:
    """The module of ``package.module:name`` in these folders."""
    return list(found_along(code.partition(":")[0], folders))[-1][1]


def _command(head: Commit, base: Commit, sweep: Sweep, asked: tuple[str, ...], by: float, budget_s: float) -> str:
    """The command line that compares these commits again, in the repository."""
    flags = flags_of(msgspec.structs.replace(sweep, model_path=asked))
    words = ["cs336-tui", "gate", "--base", base.hash, "--head", head.hash, "--by", share_words(by)]
    return shlex.join([*words, "--budget", f"{budget_s:g}s", *(word for pair in flags for word in pair)])


def _text(state: SessionState, format_: str, by: float, names: tuple[str, str]) -> str:
    if not (rounds := rounds_in(state)):
        return ""
    table = turns_table(turns_of(rounds, by), results_of(state), names)
    return _github(table) if format_ == GITHUB else shown([table], format_)


def _github(table: Table) -> str:
    """The answer as a heading, what all rounds come to, and the rest folded."""
    answer, _, why = table.findings[0].partition(": ")
    last = table.rows_at([len(table.rows) - 1]).without_notes
    whole = render(table, "markdown")
    folded = f"<details>\n<summary>Every round, and notes</summary>\n\n{whole}\n</details>\n"
    return f"## Gate: {answer}\n\n{why}\n\n{render(last, 'markdown')}\n{folded}"


@command("gate")
@heading("The two sides")
@option("--base REV", "Commit to compare with: a branch, a tag or a hash.", required=True)
@option("--head REV", "Commit that must not be slower.", default="HEAD")
@by_option(default="2%")
@choice_options
@option_under(
    "How long",
    "--budget TIME",
    "Time after which the interval decides or does not: 90s, 10m or 2h.",
    name="budget_s",
    type=Parsed("TIME", budget_of),
    default="2m",
)
@file_options("table", GITHUB)
@timeout_option
def gate(
    *,
    base: str,
    head: str,
    by: float,
    budget_s: float,
    to: Destination,
    timeout_s: float | None,
    session_dir: Path,
    **choices: Any,
) -> int:
    """Run a cell of your own code in two commits in turns, and say if the one is slower.

    Side A is --head, side B is --base. Each commit is checked out in a temporary worktree, and each cell runs in a
    fresh process that imports your code from there; your files, index, stash and branches stay as they are. Rounds go
    on until the interval decides or the budget ends. Exits with 0 if the head is not slower by more than --by, 1 if it
    is, 3 when that cannot be told, also if a cell failed or its time is not that of its work; 2 for bad input, 130
    when interrupted.
    """
    began, run = time.monotonic(), _GateRun(by)
    try:
        repository = Repository.here()
        sides = repository.commit(head), repository.commit(base)
        if repository.has_changes and head == "HEAD":
            click.echo("note: changes that are not committed are not measured", err=True)
        with _without(repository) as on_path, worktrees(repository, *sides) as trees:
            asked = [
                _side(f"{name} {commit}", repository, tree, choices, on_path)
                for name, commit, tree in zip(("--head", "--base"), sides, trees, strict=True)
            ]
            check_sides(*(one_cell("gate", sweep.resolved_to("cpu")) for sweep in asked))
            bench = Bench(run.sink, session_dir=session_dir, timeout_s=timeout_s, explain_oom=False)
            assert isinstance(run.progress, _GateProgress)
            run.progress.ends_at, run.progress.budget_s = began + budget_s, budget_s

            def work() -> None:
                sweeps = [bench.resolve(sweep) for sweep in asked]
                a, b = (one_cell("gate", sweep) for sweep in sweeps)
                command = _command(*sides, sweeps[0], tuple(choices["model_path"]), by, budget_s)
                bench.run_apart(a, b, command, left_s)

            def left_s() -> float:
                rounds = rounds_in(run.state)
                return 0.0 if rounds and is_decided(rounds, by) else began + budget_s - time.monotonic()

            names = str(sides[0]), str(sides[1])
            outputs = Outputs(lambda state: _text(state, to.format, by, names), to)
            code = run.answered(lambda: carry_out(bench, run, work, outputs))
    except WorktreeError as error:
        raise click.UsageError(str(error)) from None
    if to.format == GITHUB and (summary := os.environ.get("GITHUB_STEP_SUMMARY")):
        with Path(summary).open("a") as file:
            file.write(_text(run.state, GITHUB, by, names))
    return code


reword(
    gate,
    "N",
    passes=PASSES_HELP,
    warmups="Warm-up steps. [default: 5]",
    steps="Measured steps of a cell. [default: 20]",
    interval=None,
)
