"""`cs336-tui kernels`, `memory` and `precision`: from flags to reports to tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from cs336_tui.cli.run import HeadlessRun, Outputs, carry_out
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.order import in_order
from cs336_tui.events.reports import KernelReport, Report, ReportKind, report_key
from cs336_tui.export.figures import FIGURE_FORMATS
from cs336_tui.export.files import ExportError, NoRoom, check_writable, write_atomically
from cs336_tui.export.formats import page, render_all
from cs336_tui.export.kernels import kernel_table
from cs336_tui.export.reports import document_of_report, drawings_of_report, tables_of_reports
from cs336_tui.export.tables import Table
from cs336_tui.runner.bench import Bench
from cs336_tui.session.log import default_session_dir
from cs336_tui.session.state import SessionState

_PASSES: dict[str, tuple[str, ...]] = {"memory": ("forward", "train-step")}
"""What is looked at where nobody says: a whole step, and for memory also a forward alone."""


def report_command(
    kind: ReportKind,
    *,
    format_: str,
    output: Path | None,
    figures: Path | None = None,
    force: bool,
    session_dir: Path | None,
    timeout: float | None,
    min_mb: float = 0.0,
    fit_check: bool = True,
    phase: str | None = None,
    part: str | None = None,
    **choices: Any,
) -> int:
    """Make a report on every combination of the choices and print or write its tables; returns the exit code.

    Raises `SpecError` or `click.ClickException` for choices that cannot be run, before anything was.
    """
    if choices.get("passes") is None and choices.get("preset_name") is None:
        choices["passes"] = _PASSES.get(kind, ("train-step",))
    if (phase or part) and format_ == "json":
        option = f"--phase {phase}" if phase else f"--part {part}"
        raise click.UsageError(f"{option}: JSON has every phase and part, in groups; leave it out, or use --format csv")
    sweep = sweep_from(**choices)
    if figures is not None:
        _check_folder(figures, overwrite=force)
    run = HeadlessRun()
    bench = Bench(
        run.sink,
        session_dir=session_dir or default_session_dir(),
        timeout_s=timeout,
        device_interval_s=0,
        check_fit=fit_check,
    )

    def work() -> None:
        resolved = bench.resolve(sweep)
        for spec in in_order(list({report_key(spec): spec for spec in resolved.cells()}.values())):
            bench.ask_report(kind, spec)
        bench.work()

    def render(state: SessionState) -> str:
        reports = _contents(state, kind)
        if phase or part:
            chosen = [kernel_table(each, phase, part) for each in reports if isinstance(each, KernelReport)]
            return tables_text(chosen, format_)
        return reports_text(reports, format_, min_bytes=round(min_mb * 1e6))

    code = carry_out(bench, run, work, Outputs(render, output, None, overwrite=force))
    if figures is not None:
        _write_figures(_contents(run.state, kind), figures, overwrite=force)
    return code


def reports_text(reports: Sequence[Report], format_: str, *, min_bytes: int = 0) -> str:
    """The tables of these reports one after another; as JSON one report's document, or ``{"reports": [...]}``."""
    if format_ == "json":
        documents = [document_of_report(report) for report in reports]
        found = documents[0] if len(documents) == 1 else {"reports": documents}
        return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"
    return tables_text(tables_of_reports(reports, min_bytes=min_bytes), format_)


def tables_text(tables: Sequence[Table], format_: str) -> str:
    """Tables one after another in one of the formats."""
    if not tables:
        return "No report was made.\n" if format_ == "markdown" else ""
    text = render_all(tables, format_)
    return page("cs336-tui", text) if format_ == "html" else text


def _contents(state: SessionState, kind: ReportKind) -> list[Report]:
    return [report.content for report in state.reports.values() if report.kind == kind and report.content]


def _check_folder(folder: Path, *, overwrite: bool) -> None:
    """Raise `click.UsageError` now for figures that could not be written when all is done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder / "memory-timeline.svg", overwrite=overwrite)
    except (OSError, ExportError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        raise click.UsageError(f"--figures {folder}: {reason}") from None
    if not overwrite and (there := sorted(folder.glob("memory-timeline-*"))):
        raise click.UsageError(f"--figures {folder}: {there[0].name} is there; choose another folder, or --force")


def _write_figures(reports: Sequence[Report], folder: Path, *, overwrite: bool) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for drawing in (drawing for report in reports for drawing in drawings_of_report(report)):
            for format_ in FIGURE_FORMATS:
                path = folder / f"{drawing.name}.{format_}"
                write_atomically(path, drawing.render(format_), overwrite=overwrite)
                click.echo(f"wrote {path}", err=True)
    except NoRoom as error:
        raise click.ClickException(f"not written: {error}") from None
    except ExportError as error:
        raise click.UsageError(str(error)) from None
