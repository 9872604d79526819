"""`cs336-tui gate`: two commits of the user's own code in turns, from options to an exit code."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

import cs336_tui
from cs336_tui.analysis.ab import is_decided
from cs336_tui.cli.ab import (
    PASSES_HELP,
    AbProgress,
    AbRun,
    by_option,
    flags_of,
    one_cell,
    rounds_in,
    side_sweep,
    text_of_turns,
)
from cs336_tui.cli.files import GITHUB, Destination, file_options
from cs336_tui.cli.flags import Parsed, choice_options, refuse, reword, timeout_option
from cs336_tui.cli.help import command, heading, option
from cs336_tui.cli.progress import cut
from cs336_tui.cli.run import Outputs, carry_out
from cs336_tui.config.counts import share_words
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.tuning import budget_of
from cs336_tui.config.variants import found_along
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.trust import names_of
from cs336_tui.runner.worktrees import Repository, WorktreeError


class _GateProgress(AbProgress):
    """As of two cells in turns whose rounds are not counted beforehand."""

    def _round(self, number: int) -> str:
        return f"round {number + 1}"

    def _bar(self) -> str:
        return cut("rounds go on until the interval decides or the budget ends", "", self._width)


class _GateRun(AbRun):
    shows_by = _GateProgress
    without_flops = ()
    """None: predictions after the rounds would not be of the budget."""


def _off_path(repository: Repository) -> list[str]:
    """Take the folders of the user's working tree, but for that of this package, off Python's path, which cells
    inherit; returns them."""
    ours = Path(cs336_tui.__file__).parent.parent
    taken = [entry for entry in sys.path if repository.holds(entry) and Path(entry).resolve() != ours]
    sys.path[:] = [entry for entry in sys.path if entry not in taken]
    return taken


def _side(name: str, repository: Repository, tree: Path, choices: Mapping[str, Any], on_path: Sequence[str]) -> Sweep:
    """The one cell of a commit, whose code is that of its worktree. Raises `click.UsageError`."""
    asked = [repository.moved(folder, tree) for folder in choices["model_path"]]
    usual = [repository.moved(folder, tree) for folder in (*(() if asked else (os.curdir,)), *on_path)]
    there = [folder for folder in (*usual, str(tree), str(tree / "src")) if Path(folder).is_dir()]
    own = {key: choice for key, choice in choices.items() if choice is not None and key != "model_path"}
    sweep = side_sweep(name, own, {"model_path": tuple(dict.fromkeys([*asked, *there]))})
    refuse(
        (sweep.steps_for is not None, f"{name}: both commits need the same number of steps; give --steps a number"),
        (sweep.ranks != (1,), f"{name}: a gate is of one rank; leave out --ranks"),
    )
    codes, inside = names_of(sweep), [folder for folder in sweep.model_path if Path(folder).is_relative_to(tree)]
    outside = [code for code in codes if not list(found_along(code.partition(":")[0], inside))[-1][1]]
    for code in outside:  # which may be installed
        found = importlib.util.find_spec(re.split("[.:]", code)[0])
        places = (found.origin or "", *(found.submodule_search_locations or ())) if found else ("",)
        why = f"{code} is not in the commit; commit it, or give its folder with --model-path"
        refuse((any(map(repository.holds, places)), f"{name}: {why}"))
    what = f"{', '.join(outside)} is not of this repository" if outside else "no code of your own is named"
    refuse((len(outside) == len(codes), f"{name}: {what}; give --model package.module:Class, or another one"))
    return sweep


@command("gate")
@heading("The two sides")
@option("--base REV", "Commit to compare with: a branch, a tag or a hash.", required=True)
@option("--head REV", "Commit that must not be slower.", default="HEAD")
@option("--budget", "Time to tell: 90s, 10m or 2h.", name="budget_s", type=Parsed("TIME", budget_of), default="2m")
@by_option(default="2%")
@choice_options
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

    Side A is --head, side B is --base. Each commit is checked out in a temporary worktree; your files, index, stash and
    branches stay as they are. In each round a fresh process a side imports your code from there, and both take steps in
    turns, until the interval decides or the budget ends. Exits with 0 if the head is not slower by more than --by, 1 if
    it is, 3 when that cannot be told, also if a cell failed or its time is not that of its work; 2 for bad input, 130
    when interrupted.
    """
    began, run, names = time.monotonic(), _GateRun(by), ""
    try:
        repository = Repository.here()
        commits = repository.commit(head), repository.commit(base)
        names = f"A is {head} ({commits[0][:9]}), B is {base} ({commits[1][:9]}). "
        if head == "HEAD" and repository.git("status", "--porcelain", "--untracked-files=no"):
            click.echo("note: changes that are not committed are not measured", err=True)
        with repository.worktrees(*commits) as trees:
            named, taken = zip((f"--head {head}", f"--base {base}"), trees, strict=True), _off_path(repository)
            asked = [_side(name, repository, tree, choices, taken) for name, tree in named]
            bench = Bench(run.sink, session_dir=session_dir, timeout_s=timeout_s, explain_oom=False)

            def work() -> None:
                a, b = map(bench.resolve, asked)
                flags = flags_of(msgspec.structs.replace(a, model_path=choices["model_path"]))
                words = ["cs336-tui", "gate", "--base", commits[1], "--head", commits[0], "--by", share_words(by)]
                words += ["--budget", f"{budget_s:g}s", *itertools.chain.from_iterable(flags)]
                bench.run_apart(one_cell("--head", a), one_cell("--base", b), shlex.join(words), left_s)

            def left_s() -> float:
                is_over = (rounds := rounds_in(run.state)) and is_decided(rounds, by)
                return 0.0 if is_over else began + budget_s - time.monotonic()

            outputs = Outputs(lambda state: text_of_turns(state, to.format, by, names), to)
            code = run.answered(lambda: carry_out(bench, run, work, outputs))
    except WorktreeError as error:
        raise click.UsageError(str(error)) from None
    if to.format == GITHUB and (summary := os.environ.get("GITHUB_STEP_SUMMARY")):
        with Path(summary).open("a") as file:
            file.write(text_of_turns(run.state, GITHUB, by, names))
    return code


_COUNTS = {"warmups": "Warm-up steps. [default: 5]", "steps": "Measured steps of a cell. [default: 20]"}
reword(gate, "N", passes=PASSES_HELP, interval=None, **_COUNTS)
