"""`cs336-tui bench` and `resume`: run cells without a screen and print their data."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import click

from cs336_tui.cli.flags import (
    choice_options,
    data_options,
    device_interval_option,
    explain_option,
    fit_check_option,
    oom_option,
    options,
    order_options,
    session_argument,
    session_dir_option,
    timeout_option,
)
from cs336_tui.cli.run import HeadlessRun, Outputs, carry_out
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.order import Order, in_order, in_rounds
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.capabilities import fields_of_preset
from cs336_tui.session import store
from cs336_tui.session.log import LogError, default_session_dir


@click.command("bench")
@choice_options
@click.option("--ddof", type=click.IntRange(0, 1), default=1, show_default=True, help="std divides by n - ddof.")
@options(*data_options)
@click.option("--in-process", is_flag=True, help="Run the cells in this process, for external profilers.")
@click.option("--nvtx", is_flag=True, help="Mark steps, phases and parts for nsys; always so when it is running.")
@options(*order_options)
@oom_option
@explain_option
@fit_check_option
@timeout_option
@session_dir_option
@device_interval_option
def bench(
    *,
    format_: str,
    output: Path | None,
    summary: str | None,
    force: bool,
    session_dir: Path | None,
    ddof: int,
    timeout: float | None,
    device_interval: float,
    in_process: bool,
    repeats: int,
    order: Order,
    oom_skip: bool,
    oom_explain: bool,
    fit_check: bool,
    nvtx: bool,
    preset_name: str | None = None,
    **choices: Any,
) -> NoReturn:
    """Run every combination of the given choices, one cell after another.

    Comma lists make a sweep. Progress goes to standard error. Exits with 0 when all cells have a result
    (out-of-memory is one), 1 when a cell failed or something could not be written, 2 on bad usage, 130 when
    interrupted.
    """
    sweep = sweep_from(preset_name=preset_name, **choices)
    if in_process and timeout is not None:
        raise click.UsageError("--timeout cannot end a cell that runs --in-process; use one or the other")
    run = HeadlessRun()
    runner = Bench(
        run.sink,
        session_dir=session_dir or default_session_dir(),
        ddof=ddof,
        timeout_s=timeout,
        device_interval_s=device_interval,
        in_process=in_process,
        skip_after_oom=oom_skip,
        explain_oom=oom_explain,
        check_fit=fit_check,
        nvtx=nvtx,
    )

    def work() -> None:
        resolved = runner.resolve(sweep, may_leave_out=fields_of_preset(preset_name, choices))
        runner.add(in_rounds(in_order(resolved.cells(), order), repeats), resolved.command(ddof))
        if len(resolved.checkpoints) > 1:  # their table holds measured peaks against predicted ones
            runner.predict_now(resolved.cells(), run.say)
        runner.work()

    sys.exit(carry_out(runner, run, work, Outputs(format_, output, summary, overwrite=force)))


@click.command("resume")
@session_argument
@click.option("--failed", is_flag=True, help="Also run those again that failed or were killed.")
@click.option("--take-over", is_flag=True, help="Whoever is named as the session's writer is surely gone.")
@options(*data_options)
@oom_option
@explain_option
@fit_check_option
@timeout_option
@session_dir_option
@device_interval_option
def resume(
    *,
    session: str,
    session_dir: Path | None,
    failed: bool,
    take_over: bool,
    format_: str,
    output: Path | None,
    summary: str | None,
    force: bool,
    timeout: float | None,
    device_interval: float,
    oom_skip: bool,
    oom_explain: bool,
    fit_check: bool,
) -> NoReturn:
    """Run exactly the cells of SESSION that have no result, into the same session.

    SESSION is an id, a unique prefix of one, `last` or a path. Then print the data of the whole session.
    """
    try:
        path = store.find(session, session_dir or default_session_dir())
    except LogError as error:
        raise click.UsageError(str(error)) from None
    run = HeadlessRun()
    runner = Bench(
        run.sink,
        session_dir=path.parent,
        session=path.stem,
        timeout_s=timeout,
        device_interval_s=device_interval,
        skip_after_oom=oom_skip,
        explain_oom=oom_explain,
        check_fit=fit_check,
    )

    def work() -> None:
        cells = runner.resume(run.recall, failed=failed, take_over=take_over)
        click.echo(said(store.describe(run.state, path), len(cells)), err=True)
        runner.work()

    sys.exit(carry_out(runner, run, work, Outputs(format_, output, summary, overwrite=force)))


def said(info: store.SessionInfo, waiting: int) -> str:
    """The cells that resuming will run, in one line."""
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.started_at)) if info.started_at else "?"
    done = info.cells - waiting - info.skipped
    what = f"{waiting} of {info.cells} cells left to run" if waiting else "nothing left to run"
    skipped = f", {info.skipped} stay skipped" if info.skipped else ""
    return f"session {info.title}, begun {begun}: {done} of {info.cells} cells have a result{skipped}; {what}"
