"""A run without a screen: folds events, shows progress, keeps its files up to date, says how it went."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import click

from cs336_tui.cli.files import Destination, say_written
from cs336_tui.cli.progress import RunProgress
from cs336_tui.cli.streams import TERMINAL, on_terminal
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import CellFinished, Event, Notice, ReportFinished, SessionEnded
from cs336_tui.export.writing.files import ExportError, LivingFile
from cs336_tui.export.writing.verdicts import get_ready
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.trust import Import
from cs336_tui.session.log import default_session_dir
from cs336_tui.session.state import SessionState, fold

EXIT_OK, EXIT_CELL_FAILED, EXIT_INTERRUPTED = 0, 1, 130
"""The second also where something could not be written."""

Render = Callable[[SessionState], str]
"""Turns a session into the text of an export."""


class Outputs(NamedTuple):
    """The data of a run, where they go, and the file of its summary; None for no summary."""

    render: Render
    to: Destination
    summary: str | None = None

    def files(self, session: str) -> list[tuple[Path, Render]]:
        """The files to keep, each with what belongs in it."""
        found = [(self.to.file, self.render)] if self.to.file is not None else []
        if self.summary is not None:
            from cs336_tui.export.summary import summary_markdown

            auto = Path(f"cs336-tui-summary-{session}.md")
            found.append((auto if self.summary == "auto" else Path(self.summary), summary_markdown))
        return found


class _Kept(LivingFile):
    """A file that is rewritten as the session goes on, and why it does not hold what it should."""

    def __init__(self, path: Path, render: Render, *, overwrite: bool) -> None:
        super().__init__(path, overwrite=overwrite)
        self._render = render
        self.problem: str | None = "nothing was written to it"
        self._was_there = path.exists()

    def update(self, state: SessionState) -> str | None:
        """Write the session as it is now; returns a problem that was not there before."""
        before, self.problem = self.problem, None
        try:
            if self._was_there and not _has_results(state):
                raise ExportError(self.path, "no cell has a measured step so far", "the earlier file is left as it is")
            self.write(self._render(state))
        except ExportError as error:
            self.problem = str(error)
        return self.problem if self.problem != before else None


def _has_results(state: SessionState) -> bool:
    """True if a cell has a measured step or ran out of memory, or there is a report."""
    return any(cell.step_times_s or cell.status == "oom" for cell in state.cells.values()) or any(
        report.content for report in state.reports.values()
    )


class HeadlessRun:
    """The sink of a headless run: folds events, shows progress, rewrites its files after every finished cell."""

    shows_by: type[RunProgress] = RunProgress

    def __init__(self) -> None:
        self.state = SessionState()
        self.progress = self.shows_by(self.state, sys.stderr)
        self._files: list[_Kept] = []
        self.stopped = False
        """True if somebody stopped it before all was done."""

    def keep(self, path: Path, render: Render, *, overwrite: bool) -> None:
        """Keep a rendering of the session in `path`. Raises `ExportError` when it cannot be written."""
        self._files.append(_Kept(path, render, overwrite=overwrite))

    def sink(self, events: Sequence[Event]) -> None:
        for event in events:
            self.state.apply(event)
            self.progress.show(event)
        if any(isinstance(event, CellFinished | ReportFinished | SessionEnded) for event in events):
            for file in self._files:
                if problem := file.update(self.state):  # the run goes on, and there may be room again later
                    self.progress.show(Notice(at=time.time(), text=problem))

    def settle_files(self) -> tuple[dict[Path, str], list[Path]]:
        """The files that do not hold all of the session, each with the reason, and those that do. Tries them again."""
        for file in self._files:
            if file.problem:
                file.update(self.state)
        unwritten = {file.path: file.problem for file in self._files if file.problem}
        return unwritten, [file.path for file in self._files if not file.problem]

    def recall(self, events: Iterable[Event]) -> None:
        """Take what happened before, without showing it as news."""
        fold(events, self.state)

    @property
    def without_flops(self) -> tuple[CellSpec, ...]:
        """The measured cells with code of the user's, whose FLOPs only a prediction tells, and there is none."""
        specs = (cell.spec for cell in self.state.cells.values() if cell.status == "ok")
        return tuple(spec for spec in specs if spec.brings_own_code and self.state.prediction_of(spec) is None)

    @property
    def exit_code(self) -> int:
        """0 when every cell has a result (out-of-memory is one) or was skipped and every report that was asked for is
        there, 1 when one failed, 130 when one was cancelled."""
        statuses: set[str] = {cell.status for cell in self.state.cells.values()}
        asked = [report for report in self.state.reports.values() if report.kind not in ("oom", "agreement")]
        statuses |= {"failed" if report.status == "oom" else report.status or "running" for report in asked}
        if self.stopped and not self.state.cells:
            return EXIT_INTERRUPTED
        if statuses & {"cancelled", "queued", "running"}:
            return EXIT_INTERRUPTED
        return EXIT_CELL_FAILED if statuses & {"failed", "killed"} else EXIT_OK


def carry_out(bench: Bench, run: HeadlessRun, work: Callable[[], None], outputs: Outputs) -> int:
    """Let `work` run cells on the bench, then print or write the data; returns the exit code.

    Data that a file does not take is printed. What was lost makes an exit code 1 of a 0. Raises `UserError` when
    a file or the session's log cannot be had, and OSError when standard output cannot be written to.
    """
    files = outputs.files(bench.session)

    def stop() -> bool:
        # The signal may have come in the middle of a write that holds the locks which cancelling needs.
        if stoppable := bench.is_at_work:
            run.stopped = True
            threading.Thread(target=bench.cancel, name="cancel", daemon=True).start()
        return stoppable

    try:
        with StopOnSignal(stop):
            for path, render in files:
                run.keep(path, render, overwrite=outputs.to.overwrite)
            bench.prepare()
            bench.start()
            get_ready()  # while the children's server loads torch: later it would take time from a cell
            work()
            if not run.stopped:
                with contextlib.suppress(KeyboardInterrupt):  # the times are there and must be written
                    bench.predict_afterwards(run.without_flops)
    finally:
        bench.close(interrupted=run.exit_code == EXIT_INTERRUPTED)
        run.progress.clear()
    return hand_over(run, outputs, bench.log_path, bench.log_problem)


def hand_over(run: HeadlessRun, outputs: Outputs, log: Path, log_problem: str | None) -> int:
    """Print or write the data of a run that is over, and say where; the exit code. Raises like `carry_out`."""
    unwritten, written = run.settle_files()
    try:
        if outputs.to.file is None or outputs.to.file in unwritten:
            click.echo(outputs.render(run.state), nl=False)
    finally:
        for path in written:
            say_written(path)
        for problem in unwritten.values():
            click.echo(f"not written: {problem}", err=True)
        if log_problem:
            click.echo(f"not saved as asked: {log_problem}", err=True)
        click.echo(f"session log: {log}", err=True)
    return run.exit_code or (EXIT_CELL_FAILED if unwritten or log_problem else EXIT_OK)


def name_of_log(path: Path) -> str:
    """The session of a log as commands without --session-dir find it: ``last``, or its path elsewhere."""
    return "last" if path.parent == default_session_dir() else shlex.quote(str(path))


def renderer(to: Destination) -> Render:
    """The writer of a session's results in one of `FILE_FORMATS`: its records as CSV and JSON, its table in the
    others."""
    from cs336_tui.export.catalogue import results_document
    from cs336_tui.export.subjects.results import results_parts

    if to.format == TERMINAL:
        return lambda state: on_terminal(results_parts(state))
    return partial(results_document, format_=to.format, brief=to.is_brief)


def say_imports(imports: Iterable[Import]) -> None:
    """Say what code a session that goes on imports, and from where."""
    for each in imports:
        click.echo(f"imports {each}", err=True)


class StopOnSignal:
    """While entered, Ctrl-C, a hang-up or SIGTERM calls `stop`; a second one raises KeyboardInterrupt.

    `stop` returns whether there was something to stop; when not, the first signal raises at once.
    """

    def __init__(self, stop: Callable[[], bool]) -> None:
        self._stop = stop
        self.received: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopOnSignal:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave it takes back

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        again = self.received is not None
        self.received = number
        if again or not self._stop():
            raise KeyboardInterrupt
