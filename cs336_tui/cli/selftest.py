"""`cs336-tui selftest`: the tool's step times against a bare script's, on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from cs336_tui.analysis.eta import eta_words
from cs336_tui.cli.files import Destination, file_options, json_text
from cs336_tui.cli.flags import LANES
from cs336_tui.cli.help import command, heading, option
from cs336_tui.cli.run import StopOnSignal
from cs336_tui.cli.streams import StatusLines
from cs336_tui.cli.suggestions import devices, sizes
from cs336_tui.cli.targets import read_machine
from cs336_tui.config.spec import SpecError, canonical_device, dims_of
from cs336_tui.config.sweep import LaneCount
from cs336_tui.events.environment import Environment
from cs336_tui.events.events import Lane
from cs336_tui.export.subjects.selftest import Selftest, SideBySide, lanes_table, selftest_table
from cs336_tui.export.writing.files import ExportError, write_atomically
from cs336_tui.runner.lanes import cores_here, lanes_of, pool_of
from cs336_tui.selftest.programs import SelftestCell, SelftestError, programs_of
from cs336_tui.selftest.side_by_side import costs_of, take_lane_turns
from cs336_tui.selftest.turns import Plan, TurnsProgress, judge, marks_for, take_turns
from cs336_tui.session.log import new_session_id
from cs336_tui.stats.quantities import counted, duration

_Taken = TypeVar("_Taken")
EXIT_CODES = {"pass": 0, "fail": 1, "cannot tell": 3}
FULL, QUICK = Plan(starts=6, rounds=3), Plan(starts=3, rounds=2)
RAW_FOLDER = "selftests"
"""File in the session folder that keeps every step time."""
LANES_FULL, LANES_QUICK = Plan(starts=4, rounds=4), Plan(starts=1, rounds=8)
_USUAL_STEP_S = 0.05


@command("selftest")
@heading("How it runs")
@option(
    "--device",
    "Where to run: auto, cpu, mps, cuda, cuda:N; with --lanes the devices that lanes share",
    default="auto",
    complete=devices,
)
@option("--size", "Model size. [default: tiny on a CPU, small elsewhere]", complete=sizes)
@option("--quick", "Fewer starts and rounds: about a minute, and wider intervals.", is_flag=True)
@option(
    "--lanes",
    "Measure what running side by side costs, in this many lanes; auto: one for each GPU or core.",
    type=LANES,
)
@file_options("table")
def selftest(
    *, device: str, size: str | None, quick: bool, to: Destination, session_dir: Path, lanes: LaneCount | None = None
) -> int:
    """Time the same cell with a bare script, with `cs336-tui bench` and with the app, in turns.

    Prints the ratios of means and of stds with their intervals, device sampling on and off, and whether they are within
    the marks: on a CPU means within 2 % and stds at most 1.2, on a GPU 1 % and 1.1. Takes about three minutes. Every
    step time is kept in the session folder. Exits with 0 for a pass, 1 when a ratio misses its mark or a program
    failed, 3 when that cannot be told, 130 when interrupted.

    With --lanes instead: the cell alone and beside the same cell in all other lanes, in turns; prints for each lane how
    many times as long a step takes beside them. Exits with 0, 1 when a lane failed, 130 when interrupted.

    \f
    Raises `UserError` or `click.ClickException` for what cannot be run or written, and when a program fails.
    """
    if size is not None:
        dims_of(size, "2026")
    with StopOnSignal(lambda: False):
        environment = read_machine().environment
        several = lanes_asked(lanes, device, environment) if lanes not in (None, 1) else ()
        name = several[0].device if several else device_of(environment, device)
        work = SelftestCell(
            size=size or ("tiny" if name == "cpu" else "small"), device=name.partition(":")[0] if several else name
        )
        if several:
            found = run_lanes(work, several, LANES_QUICK if quick else LANES_FULL, environment)
            _keep(found, session_dir / RAW_FOLDER)
            click.echo(to.show([lanes_table(found)], "cs336-tui selftest --lanes"), nl=False)
            return 0
        selftest = run_selftest(work, QUICK if quick else FULL, environment)
    return publish(selftest, to, session_dir)


def lanes_asked(count: LaneCount, device: str, environment: Environment) -> tuple[Lane, ...]:
    """The lanes on these devices; ``auto`` is one for each device, on a CPU for each core. Raises `SpecError` where
    there is no room for two."""
    pool = pool_of(device.split(","), environment)
    found = lanes_of(len(cores_here()) if pool == ("cpu",) and count == "auto" else count, pool, ())
    if len(found) < 2:
        raise SpecError("lanes", count, f"neighbours need two lanes, and {', '.join(pool)} has room for one")
    return found


def run_lanes(work: SelftestCell, lanes: tuple[Lane, ...], plan: Plan, environment: Environment) -> SideBySide:
    """Run the cell in these lanes, alone and beside the others, in turns. Raises `click.ClickException`."""
    _announce(work, f"{counted(len(lanes), 'lane')}, each alone and beside the others", plan, 2 * len(lanes) + 2)
    run = _watched(lambda say: take_lane_turns(work, lanes, plan, say))
    return SideBySide(work=work, environment=environment, run=run, costs=costs_of(run))


def _announce(work: SelftestCell, what: str, plan: Plan, turns: int) -> None:
    """Say what is run, and about how long it takes."""
    about = duration(plan.lasts_s(turns, _USUAL_STEP_S))
    often = f"{counted(plan.starts, 'start')} of {counted(plan.rounds, 'round')}"
    click.echo(f"selftest: {work.title}; {what}, {often}: about {about}, longer where steps are slow", err=True)


def _watched(take: Callable[[Callable[[TurnsProgress], None]], _Taken]) -> _Taken:
    """The measurement in turns, with its progress on standard error. Raises `click.ClickException`."""
    status = StatusLines(sys.stderr)
    try:
        return take(partial(_show, line=status))
    except SelftestError as error:
        raise click.ClickException(f"selftest: {error}") from None
    finally:
        status.clear()


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
    programs = programs_of(work, Path())
    _announce(work, counted(len(programs), "program"), plan, len(programs))
    taken = _watched(lambda say: take_turns(partial(programs_of, work, keep_memory=keep_memory), plan, say))
    outcome = judge(taken.starts, marks_for(work.device))
    return Selftest(work=work, environment=environment, taken=taken, outcome=outcome, keep_memory=keep_memory)


def publish(selftest: Selftest, to: Destination, session_dir: Path) -> int:
    """Print the result or write it to `output`, keep every step time; returns the exit code."""
    _keep(selftest, session_dir / RAW_FOLDER)
    click.echo(to.show([selftest_table(selftest)], "cs336-tui selftest"), nl=False)
    return EXIT_CODES[selftest.outcome.judged]


def _keep(selftest: Selftest | SideBySide, folder: Path) -> None:
    """Write every step time to a file, and say which; without one the result still stands."""
    path = folder / f"{new_session_id()}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json_text(selftest))
    except (OSError, ExportError) as error:
        click.echo(f"note: step times are not kept: {error}", err=True)
    else:
        click.echo(f"every step time: {path}", err=True)


def _show(progress: TurnsProgress, line: StatusLines) -> None:
    """Redraw the line in place on a terminal; elsewhere write a line a start."""
    text = f"start {progress.start}/{progress.starts}, "
    text += f"round {progress.round}/{progress.rounds}" if progress.round else "programs are starting"
    if progress.turn_s is not None:
        text += f" of turns of {progress.turn_s:.1f} s" if progress.round else ""
    if progress.left_s is not None:
        text += f", {eta_words(progress.left_s)}"
    if line.is_live:
        line.say(text)
    elif not progress.round or progress.start == progress.round == 1:
        click.echo(text, err=True)
