"""`cs336-tui ab` and `gate`: two cells, or one in two commits, in turns, from options to an outcome."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

import cs336_tui
from cs336_tui.analysis.ab import is_decided, ratio_of_rounds, rounds_found, turns_of
from cs336_tui.analysis.eta import steps_so_far
from cs336_tui.analysis.merge import Result, results_of
from cs336_tui.cli.files import GITHUB, Destination, file_options
from cs336_tui.cli.flags import Parsed, choice_options, refuse, reword, timeout_option
from cs336_tui.cli.help import command, heading, option, option_under
from cs336_tui.cli.progress import RunProgress, cut
from cs336_tui.cli.run import EXIT_CELL_FAILED, EXIT_INTERRUPTED, EXIT_OK, HeadlessRun, Outputs, carry_out
from cs336_tui.cli.streams import in_one_line, shown
from cs336_tui.config.axis import UserError
from cs336_tui.config.choices import command_of, sweep_from
from cs336_tui.config.counts import share_of, share_words
from cs336_tui.config.order import check_sides
from cs336_tui.config.spec import AXES, PASSES, RAW_DIMS, CellSpec, SpecError
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.tuning import budget_of
from cs336_tui.config.variants import found_along
from cs336_tui.events.events import CellFinished, Event, Notice, StageChanged, StepsTimed
from cs336_tui.export.subjects.comparison import turns_table
from cs336_tui.export.writing.formats import render
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.trust import names_of
from cs336_tui.runner.worktrees import Repository, WorktreeError
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import UNKNOWN, milliseconds
from cs336_tui.stats.ratio import Passing

DEFAULTS: Mapping[str, Any] = {"passes": ("forward",), "warmups": (5,), "steps": 20}
"""Choices of a side that neither its own words, nor those for both, nor a preset make."""


def side_sweep(name: str, own: Mapping[str, Any], shared: Mapping[str, Any]) -> Sweep:
    """The one cell that a side's own choices and those for both come to, its device perhaps still ``auto``.

    Choices that are None were not made. Raises `click.UsageError` that names the side.
    """
    both = {key: value for key, value in shared.items() if value is not None}
    if any(name in own for name in RAW_DIMS):
        both = {key: value for key, value in both.items() if key != "sizes"}
    elif "sizes" in own:
        both = {key: value for key, value in both.items() if key not in RAW_DIMS}
    chosen = {**both, **own}
    if chosen.get("workload") == "collective":
        raise click.UsageError(
            f"{name}: collectives are not run in turns; cs336-tui comm --repeats R takes rounds of them"
        )
    if "preset_name" not in chosen:
        chosen = {**DEFAULTS, **chosen}
    try:
        sweep = sweep_from(**chosen, of_another_too=both.keys() - own.keys())
    except SpecError as error:
        raise click.UsageError(f"{name}: {error}") from None
    if sweep.lanes != 1:
        raise click.UsageError(f"{name}: cells in turns have no lanes; choose a preset without lanes")
    _one_cell(name, sweep.resolved_to("cpu"))  # what can be checked without asking the machine
    return sweep


def command_of_turns(a: Sweep, b: Sweep, rounds: int, by: float | None = None) -> str:
    """The command line that runs A and B in turns again: what both have beside what each has of its own."""
    sides = [_flags(sweep) for sweep in (a, b)]
    shared = [pair for pair in sides[0] if pair in sides[1]]
    own = [shlex.join(word for pair in side if pair not in shared for word in pair) for side in sides]
    words = ["cs336-tui", "ab", "--a", own[0], "--b", own[1], "--rounds", str(rounds)]
    words += [] if by is None else ["--by", share_words(by)]
    return shlex.join([*words, *(word for pair in shared for word in pair)])


def _flags(sweep: Sweep) -> list[tuple[str, ...]]:
    """Each option with its value, if it has one."""
    found: list[tuple[str, ...]] = []
    for word in shlex.split(command_of(sweep))[2:]:
        if word.startswith("--"):
            found.append((word,))
        else:
            found[-1] += (word,)
    return found


def _one_cell(name: str, sweep: Sweep) -> CellSpec:
    cells = sweep.cells()
    if len(cells) == 1:
        return cells[0]
    fields = (axis.sweep for axis in AXES.values() if axis.several and (axis.field != "size" or sweep.dims is None))
    several = {field: getattr(sweep, field) for field in (*fields, "head_dims")}
    said = "; ".join(f"{field} {','.join(map(str, values))}" for field, values in several.items() if len(values) > 1)
    raise click.UsageError(f"{name} comes to {len(cells)} cells ({said}); it must be one")


def _rounds_of(state: SessionState) -> list[tuple[Result, Result]]:
    """Both cells of each round of a session that has nothing else."""
    results = results_of(state)
    return list(zip(results[::2], results[1::2], strict=True))


def _text(state: SessionState, format_: str, by: float | None, names: str = "") -> str:
    """Every round; for GitHub the answer as a heading, and the rounds folded. `names` say what the sides are."""
    if not (rounds := _rounds_of(state)):
        return ""
    table = turns_table(turns_of(rounds, by), results_of(state))
    table = msgspec.structs.replace(table, caption=names + table.caption)
    if format_ != GITHUB:
        return shown([table], format_)
    last, whole = (render(each, "markdown") for each in (table.rows_at([-1]).without_notes, table))
    folded = f"<details>\n<summary>Every round, and notes</summary>\n\n{whole}\n</details>\n"
    return f"## {table.findings[0]}\n\n{last}\n{folded}"


class _AbProgress(RunProgress):
    """A line a round, with the ratio of all so far, instead of a line a cell."""

    def show(self, event: Event) -> None:
        match event:
            case CellFinished():
                number = event.cell // 2
                both = [self._state.cells[2 * number + side] for side in (0, 1)]
                if all(cell.is_over for cell in both) and any(cell.started_at for cell in both):
                    self._line(f"{self._round(number)}: {_said(_rounds_of(self._state), number)}")
            case StageChanged() | StepsTimed() | Notice():
                super().show(event)

    def _running(self, cell: CellState) -> Iterator[str]:
        steps = f" {steps_so_far(cell, self._state.last_at)}" if cell.stage == "measuring" else ""
        yield f"{self._round(cell.cell // 2)} · {cell.stage}{steps}"

    def _round(self, number: int) -> str:
        """The place of a round, counted from 0."""
        return f"round {number + 1}/{len(self._state.cells) // 2}"


EXIT_CODES: Mapping[Passing, int] = {"not slower": 0, "slower": 1, "cannot tell": 3}
"""Those of a command that is asked if A is slower than B."""


class _AbRun(HeadlessRun):
    """The sink of two cells in turns, perhaps to answer if A is slower than B by more than the share `by`."""

    shows_by = _AbProgress

    def __init__(self, by: float | None = None) -> None:
        super().__init__()
        self.by = by

    @property
    def passing(self) -> Passing | None:
        return turns_of(rounds, self.by).passing if (rounds := _rounds_of(self.state)) else None

    @property
    def exit_code(self) -> int:
        """0 when both sides were timed in every round, 1 when one was not; of `EXIT_CODES` where `by` is asked; 130
        when it was interrupted."""
        if super().exit_code == EXIT_INTERRUPTED:
            return EXIT_INTERRUPTED
        if self.by is not None:
            return EXIT_CODES[self.passing or "cannot tell"]
        return EXIT_OK if all(cell.status == "ok" for cell in self.state.cells.values()) else EXIT_CELL_FAILED

    def answered(self, carried_out: Callable[[], int]) -> int:
        """The exit code of a run, in which 1 says that A is slower, and nothing else, where `by` is asked."""
        try:
            code = carried_out()
        except Exception as error:
            if self.by is None:
                raise
            return _cannot_tell(error)
        is_lost = code == EXIT_CELL_FAILED and self.by is not None and self.passing != "slower"
        return EXIT_CODES["cannot tell"] if is_lost else code


def _cannot_tell(error: Exception) -> int:
    """Say why there is no answer; the exit code. Raises errors of usage again."""
    if isinstance(error, click.Abort) or getattr(error, "exit_code", 1) == UserError.exit_code:
        raise error
    is_known = isinstance(error, UserError | OSError | click.ClickException)
    click.echo(f"cs336-tui: cannot tell: {error if is_known else repr(error)}", err=True)
    return EXIT_CODES["cannot tell"]


def _said(results: Sequence[tuple[Result, Result]], number: int) -> str:
    """A round in a line, and the ratio of it and those before."""
    rounds = rounds_found(results[: number + 1])
    this = rounds[number]
    if this.note:
        return f"does not count: {this.note}"
    times = (" ± ".join(milliseconds(side.mean_s, side.std_s)) for side in (this.a, this.b) if side)
    return f"A {next(times)} ms, B {next(times)} ms; A / B so far {ratio_of_rounds(rounds) or UNKNOWN}"


@click.command(add_help_option=False)
@choice_options
def _choices(**_: Any) -> None:
    """Takes the words of one side of `ab`."""


def _side(text: str) -> dict[str, Any]:
    """The words of one side as the choices that they make, by name."""
    try:
        made = _choices.make_context(None, shlex.split(text)).params
    except click.UsageError as error:
        raise ValueError(error.format_message()) from None
    return {name: choice for name, choice in made.items() if choice is not None and choice != ()}


SIDE = Parsed("CHOICES", _side)


BY = "Exit with 1 if A is slower than B by more than this share, 0 if it is not, 3 if the interval does not tell."
_by_option = partial(
    option_under, "The two sides", "--by SHARE", BY, type=Parsed("SHARE", partial(share_of, field="by"))
)


@command("ab")
@heading("The two sides")
@option("--a", 'Options of A alone, such as "--precision bf16".', name="a", type=SIDE, required=True)
@option("--b", "Options of B alone.", name="b", type=SIDE, required=True)
@_by_option()
@choice_options
@option_under("How long", "--rounds", "Number of rounds, each in a fresh process.", type=click.IntRange(2), default=5)
@file_options("table", GITHUB)
@timeout_option
def ab(
    *,
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    by: float | None,
    rounds: int,
    to: Destination,
    timeout_s: float | None,
    session_dir: Path,
    **choices: Any,
) -> int:
    """Run two cells in turns, so that drift of the machine affects both alike.

    The options given beside --a and --b hold for both. In each round one fresh process builds both models, warms both
    up and times a step of the one, then one of the other. Each side must come to one cell; unless chosen, it has
    --pass forward, --warmup 5 and --steps 20. Exits with 0 when both were timed in every round, 1 when one was not, 130
    when interrupted; rounds that are whole count. With --by it exits with 0, 1 or 3, as that says.
    """
    asked_a, asked_b = side_sweep("--a", a, choices), side_sweep("--b", b, choices)
    check_sides(_one_cell("--a", asked_a.resolved_to("cpu")), _one_cell("--b", asked_b.resolved_to("cpu")))
    run = _AbRun(by)
    bench = Bench(run.sink, session_dir=session_dir, timeout_s=timeout_s, explain_oom=False)

    def work() -> None:
        sweep_a, sweep_b = bench.resolve(asked_a), bench.resolve(asked_b)
        command = command_of_turns(sweep_a, sweep_b, rounds, by)
        bench.run_ab(_one_cell("--a", sweep_a), _one_cell("--b", sweep_b), rounds, command)

    outputs = Outputs(lambda state: _text(state, to.format, by), to)
    return run.answered(lambda: carry_out(bench, run, work, outputs))


_PASSES_HELP = f"What is timed: {', '.join(PASSES)}. [default: forward]"
reword(
    ab,
    "N|TIME",
    passes=_PASSES_HELP,
    warmups="Warm-up steps, or a time such as 10s until which both sides run them. [default: 5]",
    steps="Measured steps of a round, or a time such as 30s that both sides come to. [default: 20]",
    interval=None,
)


class _GateProgress(_AbProgress):
    """As of two cells in turns whose rounds are not counted beforehand."""

    def _round(self, number: int) -> str:
        return f"round {number + 1}"

    def _bar(self) -> str:
        return cut("rounds go on until the interval decides or the budget ends", "", self._width)


class _GateRun(_AbRun):
    shows_by = _GateProgress
    without_flops = ()
    """None: predictions after the rounds would not be of the budget."""


def _off_path(repository: Repository) -> list[str]:
    """Take the working tree, but for this package's folder, off Python's path, which cells inherit; what it had."""
    ours = Path(cs336_tui.__file__).parent.parent
    taken = [entry for entry in sys.path if repository.holds(entry) and Path(entry).resolve() != ours]
    sys.path[:] = [entry for entry in sys.path if entry not in taken]
    return taken


def _sweep_at(
    name: str, repository: Repository, tree: Path, choices: Mapping[str, Any], on_path: Sequence[str]
) -> Sweep:
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
        places = filter(None, (found.origin, *(found.submodule_search_locations or ()))) if found else ("",)
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
@_by_option(default="2%")
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
            asked = [_sweep_at(name, repository, tree, choices, taken) for name, tree in named]
            bench = Bench(run.sink, session_dir=session_dir, timeout_s=timeout_s, explain_oom=False)

            def work() -> None:
                a, b = map(bench.resolve, asked)
                flags = _flags(msgspec.structs.replace(a, model_path=choices["model_path"]))
                words = ["cs336-tui", "gate", "--base", commits[1], "--head", commits[0], "--by", share_words(by)]
                words += ["--budget", f"{budget_s:g}s", *itertools.chain.from_iterable(flags)]
                bench.run_apart(_one_cell("--head", a), _one_cell("--base", b), shlex.join(words), left_s)

            def left_s() -> float:
                is_over = (rounds := _rounds_of(run.state)) and is_decided(rounds, by)
                return 0.0 if is_over else began + budget_s - time.monotonic()

            outputs = Outputs(lambda state: _text(state, to.format, by, names), to)
            code = run.answered(lambda: carry_out(bench, run, work, outputs))
    except WorktreeError as error:
        raise click.UsageError(str(error)) from None
    except Exception as error:
        return _cannot_tell(error)
    if to.format == GITHUB and (summary := os.environ.get("GITHUB_STEP_SUMMARY")):
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(_text(run.state, GITHUB, by, names))
        except OSError as error:
            click.echo(f"note: the summary of GitHub is not written: {in_one_line(error)}", err=True)
    return code


_COUNTS = {"warmups": "Warm-up steps. [default: 5]", "steps": "Measured steps of a cell. [default: 20]"}
reword(gate, "N", passes=_PASSES_HELP, interval=None, **_COUNTS)
