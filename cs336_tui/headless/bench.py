"""`cs336-tui bench`: from flags to a run to data; files are kept up to date while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from cs336_tui.choices import sweep_from
from cs336_tui.events import CellFinished, Event, Notice, SessionEnded
from cs336_tui.export.files import ExportError, LivingFile
from cs336_tui.headless.progress import Progress
from cs336_tui.headless.signals import StopOnSignal
from cs336_tui.runner.bench import Bench
from cs336_tui.session.log import LogError, default_session_dir
from cs336_tui.session.state import SessionState

EXIT_OK, EXIT_CELL_FAILED, EXIT_INTERRUPTED = 0, 1, 130

Render = Callable[[SessionState], str]
"""Turns a session into the text of an export."""


class HeadlessRun:
    """The sink of a headless run: folds events, shows progress, rewrites its files after every finished cell."""

    def __init__(self) -> None:
        self.state = SessionState()
        self._progress = Progress(self.state, sys.stderr)
        self._files: list[tuple[LivingFile, Render]] = []

    def keep(self, path: Path, render: Render, *, overwrite: bool) -> None:
        """Keep a rendering of the session in `path`. Raises `ExportError` when it cannot be written."""
        self._files.append((LivingFile(path, overwrite=overwrite), render))

    def sink(self, events: Sequence[Event]) -> None:
        for event in events:
            self.state.apply(event)
            self._progress.show(event)
        if any(isinstance(event, CellFinished | SessionEnded) for event in events):
            for file, render in self._files:
                try:
                    file.write(render(self.state))
                except ExportError as error:  # the run goes on; the log still has everything
                    self._progress.show(Notice(at=time.time(), text=str(error)))

    def clear_progress(self) -> None:
        self._progress.clear()

    @property
    def exit_code(self) -> int:
        """0 when every cell has a result (out-of-memory is one), 1 when one failed, 130 when one was cancelled."""
        statuses = {cell.status for cell in self.state.cells.values()}
        if statuses & {"cancelled", "queued", "running"}:
            return EXIT_INTERRUPTED
        return EXIT_CELL_FAILED if statuses & {"failed", "killed"} else EXIT_OK


def bench_command(
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
    **choices: Any,
) -> int:
    """Run the chosen sweep and print or write its data; returns the exit code.

    Raises `SpecError` or `click.ClickException` for choices that cannot be run, before anything was.
    """
    sweep = sweep_from(**choices)
    if in_process and timeout is not None:
        raise click.UsageError("--timeout cannot end a cell that runs --in-process; use one or the other")
    run = HeadlessRun()
    render = _renderer(format_)
    bench = Bench(
        run.sink,
        session_dir=session_dir or default_session_dir(),
        ddof=ddof,
        timeout_s=timeout,
        device_interval_s=device_interval,
        in_process=in_process,
    )
    try:
        with StopOnSignal(bench.cancel):
            if output is not None:
                run.keep(output, render, overwrite=force)
            if summary is not None:
                run.keep(_summary_path(summary, bench.session), _renderer("summary"), overwrite=force)
            bench.prepare()
            bench.start()
            resolved = bench.resolve(sweep)
            bench.run(resolved.cells(), resolved.command(ddof))
    except (LogError, ExportError) as error:
        raise click.UsageError(str(error)) from None
    finally:
        interrupted = run.exit_code == EXIT_INTERRUPTED
        bench.close(interrupted=interrupted)
        run.clear_progress()
    if output is None:
        click.echo(render(run.state), nl=False)
    for path in (path for path in (output, summary and _summary_path(summary, bench.session)) if path):
        click.echo(f"wrote {path}", err=True)
    click.echo(f"session log: {bench.log_path}", err=True)
    return run.exit_code


def _summary_path(summary: str, session: str) -> Path:
    return Path(f"cs336-tui-summary-{session}.md") if summary == "auto" else Path(summary)


def _renderer(format_: str) -> Render:
    from cs336_tui.export.data import to_csv, to_json
    from cs336_tui.export.summary import summary_markdown
    from cs336_tui.export.table import results_markdown

    return {"json": to_json, "csv": to_csv, "markdown": results_markdown, "summary": summary_markdown}[format_]
