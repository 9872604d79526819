"""`cs336-tui watch` and `cancel`: sessions that run elsewhere or in another process."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cs336_tui.cli.files import Destination, data_options
from cs336_tui.cli.flags import session_argument, session_dir_option, take_over_option, trust_option
from cs336_tui.cli.help import command, heading
from cs336_tui.cli.jobs import follow, has_jobs
from cs336_tui.cli.run import EXIT_OK, HeadlessRun, Outputs, StopOnSignal, renderer
from cs336_tui.cli.suggestions import offer, themes
from cs336_tui.runner.jobs.bench import JobsBench
from cs336_tui.session import store
from cs336_tui.session.lock import Writer, writer_of
from cs336_tui.stats.quantities import counted

_STOPS_WITHIN_S = 20.0


@command("watch")
@session_argument
@heading("Session")
@take_over_option
@trust_option
@heading("The app")
@click.option("--theme", metavar="NAME", help="Colour theme of the app.", shell_complete=offer(themes))
@click.option(
    "--low-bandwidth/--no-low-bandwidth",
    default=None,
    help="The app writes less to the terminal, for slow connections.",
)
@data_options
@session_dir_option
def watch(
    *,
    session: str,
    session_dir: Path,
    take_over: bool,
    trusted: bool,
    to: Destination,
    summary: str | None,
    **of_app: Any,
) -> int:
    """Follow a session that another process runs, or its jobs: in the app on a terminal, else until all is over, then
    print its data.

    SESSION is an id, a unique prefix of one, `last` or a path. Closing it changes nothing for the session. With an
    option of the data, such as --format, it follows without the app on a terminal, too.
    """
    opens_app = not (take_over or trusted) and _wants_app()
    if not opens_app and (name := next((name for name, value in of_app.items() if value is not None), None)):
        raise click.UsageError(f"--{name.replace('_', '-')} is of the app, which does not open here; leave it out")
    path = store.find(session, session_dir)
    if opens_app:
        from cs336_tui.cli.launch import open_watch

        return open_watch(path, **of_app)
    run = HeadlessRun()
    bench = JobsBench(run.sink, path, trusted=trusted)
    outputs = Outputs(renderer(to.format), to, summary)
    return follow(bench, run, lambda: bench.watch(run.recall, take_over=take_over), outputs)


def _wants_app() -> bool:
    """True on a terminal, unless an option of the data is given."""
    context = click.get_current_context()
    of_data = ("format_", "output", "summary", "force")
    asked = any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in of_data)
    return not asked and all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


@command("cancel")
@session_argument
@trust_option
@session_dir_option
def cancel(*, session: str, trusted: bool, session_dir: Path) -> int:
    """Cancel the jobs of SESSION, or stop the process that runs it on this machine."""
    path = store.find(session, session_dir)
    if not has_jobs(path):
        return _stop(path, writer_of(path))
    run = HeadlessRun()
    bench = JobsBench(run.sink, path, trusted=trusted)
    try:
        with StopOnSignal(lambda: False):
            bench.watch(run.recall)
            number = bench.jobs_going_on
            if not bench.cancel():
                click.echo(f"session {path.stem}: no job goes on")
                return EXIT_OK
            bench.work()
    finally:
        bench.close()
        run.progress.clear()
    click.echo(f"session {path.stem}: {counted(number, 'job')} cancelled")
    return EXIT_OK


def _stop(path: Path, writer: Writer | None) -> int:
    """Ask the writer of a session without jobs to stop, and wait until it has."""
    if writer is None:
        click.echo(f"session {path.stem}: nothing runs")
        return EXIT_OK
    if writer.host != socket.gethostname():
        raise click.ClickException(f"session {path.stem} is written by {writer}; cancel it there")
    os.kill(writer.pid, signal.SIGTERM)
    give_up_at = time.monotonic() + _STOPS_WITHIN_S
    while writer_of(path) == writer:
        if time.monotonic() > give_up_at:
            raise click.ClickException(f"session {path.stem}: {writer} was asked to stop and still runs")
        time.sleep(0.05)
    click.echo(f"session {path.stem}: stopped")
    return EXIT_OK
