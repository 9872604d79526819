"""`cs336-tui selftest`: the tool's step times against a bare script's, on this machine."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

from cs336_tui.cli.flags import file_options, options, session_dir_option
from cs336_tui.cli.run import StopOnSignal
from cs336_tui.cli.streams import StatusLine
from cs336_tui.cli.targets import deliver, read_machine, to_json
from cs336_tui.config.spec import SpecError, canonical_device, dims_of
from cs336_tui.events.environment import Environment
from cs336_tui.export.files import ExportError, check_writable, write_atomically
from cs336_tui.export.formats import answer
from cs336_tui.export.selftest import Selftest, selftest_table
from cs336_tui.selftest.programs import SelftestCell, SelftestError, programs_of
from cs336_tui.selftest.ratios import judge, marks_for
from cs336_tui.selftest.turns import Plan, TurnsProgress, take_turns
from cs336_tui.session.log import new_session_id
from cs336_tui.stats.quantities import duration

EXIT_CODES = {"pass": 0, "fail": 1, "cannot tell": 3}
FULL, QUICK = Plan(starts=6, rounds=3), Plan(starts=3, rounds=2)
RAW_FOLDER = "selftests"
"""File in the session folder that keeps every step time."""
_PROGRAMS, _USUAL_STEP_S = 5, 0.05


@click.option("--device", default="auto", show_default=True, help="auto, cpu, mps, cuda, cuda:N")
@click.option("--size", help="[default: tiny on a CPU, small elsewhere]")
@click.option("--quick", is_flag=True, help="Fewer starts and rounds: about a minute, and wider intervals.")
@options(*file_options("table"))
@session_dir_option
def selftest_command(
    *,
    device: str,
    size: str | None,
    quick: bool,
    format_: str,
    output: Path | None,
    force: bool,
    session_dir: Path,
) -> int:
    """Time the same cell with a bare script, with `cs336-tui bench` and with the app, in turns.

    Prints the ratios of means and of stds with their intervals, device sampling on and off, and whether they are within
    the marks: on a CPU means within 2 % and stds at most 1.2, on a GPU 1 % and 1.1. Takes about three minutes. Every
    step time is kept in the session folder. Exits with 0 for a pass, 1 when a ratio is past its mark or a program
    failed, 3 when that cannot be told, 130 when interrupted.

    \f
    Raises `UserError` or `click.ClickException` for what cannot be run or written, and when a program fails.
    """
    if size is not None:
        dims_of(size, "2026")
    if output is not None:
        check_writable(output, overwrite=force)
    with StopOnSignal(lambda: False):
        environment = read_machine().environment
        name = device_of(environment, device)
        work = SelftestCell(size=size or ("tiny" if name == "cpu" else "small"), device=name)
        selftest = run_selftest(work, QUICK if quick else FULL, environment)
    return publish(selftest, format_, output, session_dir, force=force)


def device_of(environment: Environment, asked: str) -> str:
    """The one device that is asked for, as torch calls it. Raises `SpecError` when it is not here."""
    (name,) = environment.resolve((asked if asked == "auto" else canonical_device(asked),))
    if environment.device(name) is None:
        raise SpecError("device", asked, f"this machine has {', '.join(each.name for each in environment.devices)}")
    return name


def run_selftest(work: SelftestCell, plan: Plan, environment: Environment, *, keep_memory: bool = False) -> Selftest:
    """Run the programs in turns, saying on standard error how far that is. Raises `click.ClickException`.

    With `keep_memory` the bare script keeps freed memory, as cells do.
    """
    about = duration(plan.lasts_s(_PROGRAMS, _USUAL_STEP_S))
    click.echo(
        f"selftest: {work.title}; {_PROGRAMS} programs, {plan.starts} starts of {plan.rounds} rounds: about {about}, "
        "longer where steps are slow",
        err=True,
    )
    status = StatusLine(sys.stderr)
    try:
        taken = take_turns(partial(programs_of, work, keep_memory=keep_memory), plan, partial(_show, line=status))
    except SelftestError as error:
        raise click.ClickException(f"selftest: {error}") from None
    finally:
        status.clear()
    outcome = judge(taken.starts, marks_for(work.device))
    return Selftest(work=work, environment=environment, taken=taken, outcome=outcome, keep_memory=keep_memory)


def publish(selftest: Selftest, format_: str, output: Path | None, session_dir: Path, *, force: bool) -> int:
    """Print the result or write it to `output`, keep every step time; returns the exit code."""
    _keep(selftest, session_dir / RAW_FOLDER)
    click.echo(deliver(text_of(selftest, format_), output, force=force), nl=False)
    return EXIT_CODES[selftest.outcome.judged]


def text_of(selftest: Selftest, format_: str) -> str:
    """The table in a format, `table` being that of people."""
    return answer([selftest_table(selftest)], format_, "cs336-tui selftest")


def _keep(selftest: Selftest, folder: Path) -> None:
    """Write every step time to a file, and say which; without one the result still stands."""
    path = folder / f"{new_session_id()}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_json(selftest))
    except (OSError, ExportError) as error:
        click.echo(f"note: step times are not kept: {error}", err=True)
    else:
        click.echo(f"every step time: {path}", err=True)


def _show(progress: TurnsProgress, line: StatusLine) -> None:
    """Redraw the line in place on a terminal; elsewhere write a line a start."""
    text = f"start {progress.start}/{progress.starts}, "
    text += f"round {progress.round}/{progress.rounds}" if progress.round else "programs are starting"
    if progress.turn_s is not None:
        text += f" of turns of {progress.turn_s:.1f} s" if progress.round else ""
    if progress.left_s is not None:
        text += f", ETA {duration(progress.left_s)}"
    if line.is_live:
        line.show(text)
    elif not progress.round or progress.start == progress.round == 1:
        click.echo(text, err=True)


selftest = click.command("selftest")(selftest_command)
