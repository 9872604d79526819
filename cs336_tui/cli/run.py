"""A run without a screen: folds events, shows progress, keeps its files up to date, says how it went."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click

from cs336_tui.cli.progress import Progress
from cs336_tui.cli.signals import StopOnSignal
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import CellFinished, Event, Notice, ReportFinished, SessionEnded
from cs336_tui.export.files import ExportError, LivingFile, NoRoom
from cs336_tui.export.trust import get_ready
from cs336_tui.runner.bench import Bench
from cs336_tui.session.log import LogError, NoRoomForLog
from cs336_tui.session.state import SessionState

EXIT_OK, EXIT_CELL_FAILED, EXIT_INTERRUPTED = 0, 1, 130
"""The second also where something could not be written."""

Render = Callable[[SessionState], str]
"""Turns a session into the text of an export."""


class Outputs:
    """Where the data and the summary of a run go; None for standard output and for no summary.

    `data` is a format of the results, or what makes other text of the session.
    """

    def __init__(self, data: str | Render, output: Path | None, summary: str | None, *, overwrite: bool) -> None:
        self.render = _renderer(data) if isinstance(data, str) else data
        self.output, self.summary, self.overwrite = output, summary, overwrite

    def files(self, session: str) -> list[tuple[Path, Render]]:
        """The files to keep, each with what belongs in it."""
        found = [(self.output, self.render)] if self.output is not None else []
        if self.summary is not None:
            auto = Path(f"cs336-tui-summary-{session}.md")
            found.append((auto if self.summary == "auto" else Path(self.summary), _renderer("summary")))
        return found


class _Kept:
    """A file that is rewritten as the session goes on, and why it does not hold what it should."""

    def __init__(self, path: Path, render: Render, *, overwrite: bool) -> None:
        self._file, self._render = LivingFile(path, overwrite=overwrite), render
        self.problem: str | None = "nothing was written to it"

    @property
    def path(self) -> Path:
        return self._file.path

    def write(self, state: SessionState) -> str | None:
        """Write the session as it is now; returns a problem that was not there before."""
        before, self.problem = self.problem, None
        try:
            self._file.write(self._render(state))
        except ExportError as error:
            self.problem = str(error)
        return self.problem if self.problem != before else None


class HeadlessRun:
    """The sink of a headless run: folds events, shows progress, rewrites its files after every finished cell."""

    def __init__(self) -> None:
        self.state = SessionState()
        self._progress = Progress(self.state, sys.stderr)
        self._files: list[_Kept] = []
        self.stopped = False
        """Whether somebody stopped it before all was done."""

    def keep(self, path: Path, render: Render, *, overwrite: bool) -> None:
        """Keep a rendering of the session in `path`. Raises `ExportError` when it cannot be written."""
        self._files.append(_Kept(path, render, overwrite=overwrite))

    def sink(self, events: Sequence[Event]) -> None:
        for event in events:
            self.state.apply(event)
            self._progress.show(event)
        if any(isinstance(event, CellFinished | ReportFinished | SessionEnded) for event in events):
            for file in self._files:
                if problem := file.write(self.state):  # the run goes on, and there may be room again later
                    self._progress.show(Notice(at=time.time(), text=problem))

    def settle_files(self) -> tuple[dict[Path, str], list[Path]]:
        """The files that do not hold all of the session, each with the reason, and those that do. Tries them again."""
        for file in self._files:
            if file.problem:
                file.write(self.state)
        unwritten = {file.path: file.problem for file in self._files if file.problem}
        return unwritten, [file.path for file in self._files if not file.problem]

    def recall(self, events: Iterable[Event]) -> None:
        """Take what happened before, without showing it as news."""
        for event in events:
            self.state.apply(event)

    @property
    def without_flops(self) -> tuple[CellSpec, ...]:
        """The measured cells with code of the user's, whose FLOPs only a prediction tells, and there is none."""
        specs = (cell.spec for cell in self.state.cells.values() if cell.status == "ok")
        return tuple(spec for spec in specs if spec.brings_own_code and self.state.prediction_of(spec) is None)

    def say(self, text: str) -> None:
        """Show what is being done that no event tells of, until the next one."""
        self._progress.say(text)

    def clear_progress(self) -> None:
        self._progress.clear()

    @property
    def exit_code(self) -> int:
        """0 when every cell has a result (out-of-memory is one) or was skipped and every report that was asked for is
        there, 1 when one failed, 130 when one was cancelled."""
        statuses: set[str] = {cell.status for cell in self.state.cells.values()}
        asked = [report for report in self.state.reports.values() if report.kind != "oom"]
        statuses |= {"failed" if report.status == "oom" else report.status or "running" for report in asked}
        if self.stopped and not self.state.cells:
            return EXIT_INTERRUPTED
        if statuses & {"cancelled", "queued", "running"}:
            return EXIT_INTERRUPTED
        return EXIT_CELL_FAILED if statuses & {"failed", "killed"} else EXIT_OK


def carry_out(bench: Bench, run: HeadlessRun, work: Callable[[], None], outputs: Outputs) -> int:
    """Let `work` run cells on the bench, then print or write the data; returns the exit code.

    Data that a file does not take is printed. What was lost makes an exit code 1 of a 0. Raises `click.UsageError` when
    a file or the session's log cannot be had, and OSError when standard output cannot be written to.
    """
    files = outputs.files(bench.session)

    def stop() -> bool:
        # The signal may have come in the middle of a write that holds the locks which cancelling needs.
        if stoppable := bench.queue.busy or len(bench.queue) > 0:
            run.stopped = True
            threading.Thread(target=bench.cancel, name="cancel", daemon=True).start()
        return stoppable

    try:
        with StopOnSignal(stop):
            for path, render in files:
                run.keep(path, render, overwrite=outputs.overwrite)
            bench.prepare()
            bench.start()
            get_ready()  # while the children's server loads torch: later it would take time from a cell
            work()
            if not run.stopped:
                with contextlib.suppress(KeyboardInterrupt):  # the times are there and must be written
                    bench.predict_afterwards(run.without_flops)
    except (NoRoom, NoRoomForLog) as error:
        raise click.ClickException(str(error)) from None
    except (LogError, ExportError) as error:
        raise click.UsageError(str(error)) from None
    finally:
        bench.close(interrupted=run.exit_code == EXIT_INTERRUPTED)
        run.clear_progress()
    unwritten, written = run.settle_files()
    try:
        if outputs.output is None or outputs.output in unwritten:
            click.echo(outputs.render(run.state), nl=False)
    finally:
        for path in written:
            click.echo(f"wrote {path}", err=True)
        for problem in unwritten.values():
            click.echo(f"not written: {problem}", err=True)
        if bench.log_problem:
            click.echo(f"not saved as asked: {bench.log_problem}", err=True)
        click.echo(f"session log: {bench.log_path}", err=True)
    return run.exit_code or (EXIT_CELL_FAILED if unwritten or bench.log_problem else EXIT_OK)


def _renderer(format_: str) -> Render:
    from cs336_tui.export.data import to_csv, to_json
    from cs336_tui.export.summary import summary_markdown
    from cs336_tui.export.table import results_markdown

    return {"json": to_json, "csv": to_csv, "markdown": results_markdown, "summary": summary_markdown}[format_]
