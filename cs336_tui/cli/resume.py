"""`cs336-tui resume`: the cells of a session that have no result, into the same session."""

from __future__ import annotations

import time
from pathlib import Path

import click

from cs336_tui.cli.run import HeadlessRun, Outputs, carry_out
from cs336_tui.runner.bench import Bench
from cs336_tui.session import store
from cs336_tui.session.log import LogError, default_session_dir


def resume_command(
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
) -> int:
    """Run what is left of the session and print or write the data of all of it; returns the exit code.

    Raises `SpecError` or `click.ClickException` when the session cannot go on here; its log is then as it was.
    """
    try:
        path = store.find(session, session_dir or default_session_dir())
    except LogError as error:
        raise click.UsageError(str(error)) from None
    run = HeadlessRun()
    bench = Bench(
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
        cells = bench.resume(run.recall, failed=failed, take_over=take_over)
        click.echo(said(store.describe(run.state, path), len(cells)), err=True)
        bench.work()

    return carry_out(bench, run, work, Outputs(format_, output, summary, overwrite=force))


def said(info: store.SessionInfo, waiting: int) -> str:
    """What resuming will do, in one line."""
    begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.started_at)) if info.started_at else "?"
    done = info.cells - waiting - info.skipped
    what = f"{waiting} of {info.cells} cells left to run" if waiting else "nothing left to run"
    skipped = f", {info.skipped} stay skipped" if info.skipped else ""
    return f"session {info.title}, begun {begun}: {done} of {info.cells} cells have a result{skipped}; {what}"
