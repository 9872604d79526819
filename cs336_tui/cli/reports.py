"""`cs336-tui kernels`, `memory` and `precision`: from flags to reports to tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from cs336_tui.cli.export import write_figures
from cs336_tui.cli.files import Destination, file_options, json_text
from cs336_tui.cli.flags import DIRECTORY, choice_options, fit_check_option, options, reword, timeout_option
from cs336_tui.cli.help import Choice, command, option_under
from cs336_tui.cli.run import HeadlessRun, Outputs, carry_out
from cs336_tui.cli.streams import shown
from cs336_tui.config.choices import sweep_from, with_model
from cs336_tui.config.order import in_order
from cs336_tui.config.spec import PASSES
from cs336_tui.config.variants import RANGES
from cs336_tui.events.kernel_report import FUSED, KernelReport
from cs336_tui.events.prediction import report_key
from cs336_tui.events.reports import ASKED_FOR, REPORTS, Report, ReportKind
from cs336_tui.export.reports import document_of_reports, drawings_of_reports, tables_of_reports
from cs336_tui.export.subjects.kernels import kernel_table
from cs336_tui.export.writing.files import AlreadyThere, ExportError, check_writable, make_folder
from cs336_tui.runner.bench import Bench
from cs336_tui.session.state import SessionState


def report_command(
    kind: ReportKind,
    *,
    to: Destination,
    figures: Path | None = None,
    session_dir: Path,
    timeout_s: float | None,
    min_mb: float = 0.0,
    check_fit: bool = True,
    phase: str | None = None,
    part: str | None = None,
    **choices: Any,
) -> int:
    """Make a report on every combination of the choices, print or write its tables; returns the exit code.

    Raises `SpecError` or `click.ClickException` for choices that cannot be run, before anything was.
    """
    own_pass = choices.get("passes") is not None or choices.get("workload") == "collective"
    if not own_pass and choices.get("preset_name") is None:
        choices["passes"] = REPORTS[kind].passes
    if (phase or part) and to.format == "json":
        option = f"--phase {phase}" if phase else f"--part {part}"
        raise click.UsageError(f"{option}: JSON has every phase and part, in groups; leave it out, or use --format csv")
    sweep = with_model(sweep_from(**choices), f"report of {kind}")
    if figures is not None:
        _check_folder(figures, "flame-graph" if kind == "kernels" else "memory-timeline", overwrite=to.overwrite)
    run = HeadlessRun()
    bench = Bench(run.sink, session_dir=session_dir, timeout_s=timeout_s, device_interval_s=0, check_fit=check_fit)

    def work() -> None:
        resolved = bench.resolve(sweep)
        for spec in in_order(list({report_key(spec): spec for spec in resolved.cells()}.values())):
            bench.ask_report(kind, spec)
        bench.work()

    def render(state: SessionState) -> str:
        reports = _contents(state, kind)
        if to.format == "json":
            return json_text(document_of_reports(reports))
        if phase or part:
            tables = [kernel_table(each, phase, part) for each in reports if isinstance(each, KernelReport)]
        else:
            tables = tables_of_reports(reports, min_bytes=round(min_mb * 1e6))
        if not tables:
            return "No report was made.\n" if to.format == "markdown" else ""
        return shown(tables, to.format)

    code = carry_out(bench, run, work, Outputs(render, to))
    if figures is not None:
        write_figures(drawings_of_reports(_contents(run.state, kind)), figures, overwrite=to.overwrite)
    return code


def _contents(state: SessionState, kind: ReportKind) -> list[Report]:
    return [report.content for report in state.reports.values() if report.kind == kind and report.content]


def _check_folder(folder: Path, name: str, *, overwrite: bool) -> None:
    """Raise `click.UsageError` now for figures, whose names begin so, that could not be written when all is done."""
    try:
        make_folder(folder)
        check_writable(folder / f"{name}.svg", overwrite=overwrite)
        if not overwrite and (there := sorted(folder.glob(f"{name}-*"))):
            raise AlreadyThere(there[0])
    except ExportError as error:
        raise click.UsageError(f"--figures {error}") from None


_FIGURES = option_under("Output", "--figures", "Also write the figures here, as SVG, PDF and PNG.", type=DIRECTORY)
_OWN_OPTIONS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "kernels": (
        option_under(
            "Which table",
            "--phase",
            "Only the kernels of this phase, as one table.",
            type=Choice(["zero_grad", "forward", "loss", "backward", "optimizer"]),
        ),
        option_under(
            "Which table",
            "--part",
            "Only the kernels of this part of the model, as one table.",
            type=Choice((*RANGES, FUSED)),
        ),
        _FIGURES,
        file_options(),
        fit_check_option,
    ),
    "memory": (
        option_under(
            "Output", "--min-mb MB", "Leave out allocations below this.", type=click.FloatRange(min=0), default=0.0
        ),
        _FIGURES,
        file_options(),
        fit_check_option,
    ),
}
_HELP = {
    "kernels": """Profile one step of every combination of the choices, apart from timing.

    Kernels on a GPU, operators by self time on a CPU: as nsys lists them, by kind, by part of the model, and matrix
    multiplication against softmax in attention. The Chrome trace is kept beside the session's log.
    """,
    "memory": """Record every allocation of one step of every combination of the choices.

    Peaks by phase, live bytes by category, the largest allocations with the line that asked for them, and what each
    Transformer block keeps for backward. On CUDA the snapshot for pytorch.org/memory_viz is kept beside the log.
    """,
    "precision": """Show which dtypes every combination of the choices really computes in.

    By hooks on each module. Beside it, once: the course's toy model under autocast, without a GPU by CUDA's rules too,
    and what adding 0.01 a thousand times comes to.
    """,
}
"""The help of a command beyond its line in `REPORTS`."""


def _command(kind: ReportKind) -> click.Command:
    """The command that makes reports of a kind, without the options that one step has no use for."""
    own = _OWN_OPTIONS.get(kind, (file_options(),))
    run = options(choice_options, *own, timeout_option)(partial(report_command, kind))
    made = command(kind, help=_HELP.get(kind, REPORTS[kind].command))(run)
    passes = f"What is timed: {', '.join(PASSES)}. [default: {','.join(REPORTS[kind].passes)}]"
    reword(made, passes=passes, warmups=None, steps=None, interval=None, sync=None)
    return made


REPORT_COMMANDS = {kind: _command(kind) for kind in ASKED_FOR}
