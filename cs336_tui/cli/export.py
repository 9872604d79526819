"""`cs336-tui export` and `summary`: the tables and figures of sessions, and the table that the options ask for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from cs336_tui.analysis.comparison import compare
from cs336_tui.analysis.fields import PivotError, field_named, select
from cs336_tui.analysis.merge import Result, results_of
from cs336_tui.analysis.pivot import VALUES, Pivot, pivot
from cs336_tui.analysis.problems import Material
from cs336_tui.cli.files import Destination, file_options, is_given, say_written
from cs336_tui.cli.flags import DIRECTORY, FILE, WORDS, refuse, session_dir_option, sessions_argument
from cs336_tui.cli.help import Choice, Command, command, heading, option, option_under
from cs336_tui.cli.streams import TERMINAL, on_terminal, shown
from cs336_tui.cli.suggestions import columns, conditions, layouts, pivots, problems
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import REPORTS
from cs336_tui.export.catalogue import axes_of
from cs336_tui.export.figures import heat_map
from cs336_tui.export.folder import Source, figures_of, write_summary
from cs336_tui.export.pivot import pivot_table
from cs336_tui.export.problems import WITHOUT_FILES, export_problem
from cs336_tui.export.record import document_of, to_csv, to_json
from cs336_tui.export.reference import reference_tables
from cs336_tui.export.reports import report_tables
from cs336_tui.export.subjects.comparison import comparison_table
from cs336_tui.export.subjects.results import results_table
from cs336_tui.export.writeups import layout_tables
from cs336_tui.export.writing.drawing import Absent, Drawing
from cs336_tui.export.writing.files import (
    FormatError,
    check_markdown,
    figures_beside,
    format_of,
    make_folder,
    write_atomically,
)
from cs336_tui.export.writing.formats import notes_text, pandas_text
from cs336_tui.export.writing.tables import Table
from cs336_tui.export.writing.verdicts import trust_notes
from cs336_tui.session import store
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import UNITS, Notation, Unit, counted

_REMEDY: Mapping[str, str] = {
    "ab": "; time two cells in turns with cs336-tui ab --a FLAGS --b FLAGS first, and let --where keep both",
    "race": "; race choices with cs336-tui tune --over CHOICES first",
}
"""The remedy for a report that there is none of."""


class _ListingLayouts(Command):
    """Its help ends with what `--layout` and `--columns` take."""

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from cs336_tui.export.writeups import LAYOUTS

        with formatter.section("Layouts"):
            formatter.write_dl([(name, layout.about) for name, layout in LAYOUTS.items()])
        with formatter.section("Columns"):
            formatter.write_text(", ".join(map(str, columns(_ctx, ""))))
            formatter.write_text("--pivot, --where and --baseline take those from size to repeat.")


@command("export", cls=_ListingLayouts)
@sessions_argument
@heading("Which table")
@option(
    "--pivot ROWS:COLUMNS",
    "Pivot table, such as size:pass or size,context:precision; auto chooses.",
    name="pivot_on",
    complete=pivots,
)
@option("--value", "Content of the pivot. [default: mean]", type=Choice(tuple(VALUES)))
@option("--baseline KEY=VALUE", "Baseline of the speed-up, such as precision=fp32.", multiple=True, complete=conditions)
@option("--layout NAME", "Table as found in write-ups; listed below.", complete=layouts)
@option("--columns", "Columns of the results table, such as size,pass,mean,std.", type=WORDS, complete=columns)
@option("--reference", "Times, peaks and kernels beside published ones.", is_flag=True)
@option("--compare", "Comparison of the first of two sessions with the second.", is_flag=True)
@option("--report", "Tables of reports of this kind.", type=Choice(tuple(REPORTS)))
@option(
    "--range NAME",
    "With --report kernels: only kernels in this phase or range, such as forward, 'step 3' or 'nccl:*'; several: "
    "in all of them.",
    name="ranges",
    multiple=True,
)
@option(
    "--problem NAME",
    "The tables and figures of a problem of the handouts, part by part; cs336-tui problems lists them.",
    complete=problems,
)
@option_under(
    "Which cells", "--where KEY=VALUE", "Only these cells, such as precision=fp32.", multiple=True, complete=conditions
)
@heading("Output")
@option("--unit", "Unit of times in text. [default: ms]", type=Choice(UNITS))
@option("--digits", "Decimal places of times. [default: as many as the std supports]", type=click.IntRange(0, 9))
@option("--ddof", "Every std divides by n - ddof. [default: as the session; kernels: 1]", type=click.IntRange(0, 1))
@option("--caption TEXT", "Caption of the table, in place of its own.", default="")
@option(
    "--style",
    "Markdown as pandas' to_markdown writes it: names and rows as in published tables, six significant digits, "
    "no notes.",
    type=Choice(["pandas"]),
)
@option(
    "--index/--no-index",
    "The index as the first column, with --style pandas.",
    name="with_index",
    default=True,
    show_default=False,
)
@option("--notes FILE", "Write the notes here, not below the tables.", type=FILE)
@option("--no-notes", "Tables without notes.", is_flag=True)
@option("--figures DIR", "Also write figures here, as SVG, PDF and PNG.", type=DIRECTORY)
@file_options()
def export(
    *,
    sessions: Sequence[str],
    session_dir: Path,
    to: Destination,
    where: Sequence[str],
    notes: Path | None,
    no_notes: bool,
    figures: Path | None,
    ddof: int | None = None,
    **choices: Any,
) -> str:
    """Tables and figures of SESSION...: ids, unique prefixes of ids, `last` or paths. Several become one table.

    Without other options a table of all results; as CSV and JSON the whole records.

    \f
    `choices` are of `TableChoice`. Raises `UserError` or `click.UsageError`; then nothing was written to `output`.
    """
    choice = TableChoice(**choices)
    format_ = "markdown" if choice.style and to.format == TERMINAL else to.format
    choice.check(format_)
    has_notes = not (choice.is_plain and format_ in ("json", "csv"))
    if notes and not has_notes:
        raise click.UsageError(f"--notes: {format_.upper()} of whole records has no notes; leave it out")
    if notes:
        check_markdown("--notes", notes)
    sources = read(sessions, session_dir)
    kernels_ddof = 1 if ddof is None else ddof  # 1 is nsys's
    if ddof is not None:
        for source in sources:
            source.state.ddof = ddof
    states = [source.state for source in sources]
    results: Sequence[Result] = results_of(*states)
    if results:  # a session may have nothing but reports
        results = select(results, pairs_of("--where", where))
    written: dict[Path, str] = {}
    drawn: Sequence[Drawing | Absent] | None = None
    with_notes = not (notes or no_notes)
    tables: Sequence[Table] = ()
    if choice.problem:
        material = Material(tuple(states), tuple(results), _wanted(states, where), kernels_ddof, bool(choice.style))
        exported = export_problem(choice.problem, material)
        drawn, tables = exported.figures, exported.tables
        if to.file and drawn:
            figures = figures or figures_beside(to.file)
        if not with_notes:
            exported = exported.without_notes
        if format_ == TERMINAL:
            text = on_terminal(list(exported.parts))
        else:
            draw = partial(pandas_text, index=choice.with_index, captions=True) if choice.style else None
            text = exported.render(format_, _seen_from(to.file, figures), draw)
    elif has_notes:
        if choice.report:
            tables = _reports(sources, results, choice, where, kernels_ddof)
        else:
            tables = choice.tables(results, states)
        text = _text(tables, results, format_, choice, with_notes=with_notes)
    else:
        chosen = [[result.cell for result in results if result.source == number] for number in range(len(sources))]
        documents = [document_of(source.state, cells) for source, cells in zip(sources, chosen, strict=True)]
        text = to_json(*documents) if format_ == "json" else to_csv(*documents)
    if notes:
        written[notes] = notes_text(tables)
    elif choice.style and not no_notes:
        number = len({note for table in tables for note in table.footnotes})
        click.echo(f"notes left out: {number}; --notes FILE writes them, --no-notes hides this line", err=True)
    if drawn and figures is None:
        click.echo(f"{counted(len(drawn), 'figure')}: {WITHOUT_FILES}", err=True)
    if figures is not None:
        maps = [heat_map(asked)] if (asked := choice.pivot(results)) else []
        found = figures_of(states, results) if drawn is None else drawn
        write_figures([*found, *maps], figures, overwrite=to.overwrite)
    if to.file is not None:
        written[to.file], text = text, ""
    for path, content in written.items():
        write_atomically(path, content, overwrite=to.overwrite)
        say_written(path)
    return text


def read(sessions: Sequence[str], session_dir: Path) -> list[Source]:
    """The sessions that a person means, each once. Raises `LogError`."""
    paths = dict.fromkeys(store.find(session, session_dir) for session in sessions)
    return [Source(path, store.load(path)) for path in paths]


def _seen_from(output: Path | None, figures: Path | None) -> str | None:
    """The folder of figures as a document in `output` names it."""
    if figures is None or output is None:
        return None if figures is None else figures.as_posix()
    return Path(os.path.relpath(figures, output.parent)).as_posix()


def _text(
    tables: Sequence[Table], results: Sequence[Result], format_: str, choice: TableChoice, *, with_notes: bool
) -> str:
    if choice.style:
        return pandas_text(tables, index=choice.with_index, captions=bool(choice.caption))
    if not with_notes:
        tables = [table.without_notes for table in tables]
    sessions = ", ".join(dict.fromkeys(result.session for result in results))
    return shown(tables, format_, choice.caption or f"cs336-tui: {sessions}")


def _reports(
    sources: Sequence[Source], results: Sequence[Result], choice: TableChoice, where: Sequence[str], ddof: int
) -> Sequence[Table]:
    """The tables of one kind of report. Raises `click.UsageError` when the sessions have none of the chosen cells."""
    name = choice.report or ""
    states = [source.state for source in sources]
    found = report_tables(states, results, _wanted(states, where), ddof, choice.ranges)
    if name == "memory" and (of_ranks := found.get("rank-memory")):
        return [*found.get(name, ()), *of_ranks]
    if name not in found:
        have = f"they have {', '.join(found)}" if found else "they have no reports"
        raise click.UsageError(f"--report {name}: no such report in these sessions; {have}{_REMEDY.get(name, '')}")
    return found[name]


def _wanted(states: Sequence[SessionState], where: Sequence[str]) -> Callable[[CellSpec], bool]:
    """True of the specs that ``--where`` names. Raises `PivotError` for a field that is none."""
    pairs = pairs_of("--where", where)
    for key in pairs:
        field_named(key)

    def wanted(spec: CellSpec) -> bool:
        try:
            return bool(select([Result(0, "", states[0], CellState(0, spec))], pairs))
        except PivotError:
            return False

    return wanted


def write_figures(found: Sequence[Drawing | Absent], folder: Path, *, overwrite: bool) -> None:
    """Every figure that there is, in every format; says which there are not and why."""
    make_folder(folder)
    for drawing in found:
        if isinstance(drawing, Absent):
            click.echo(f"no figure {drawing.name}: {drawing.reason}", err=True)
            continue
        for format_, data in drawing.files().items():
            path = folder / f"{drawing.name}.{format_}"
            write_atomically(path, data, overwrite=overwrite)
            say_written(path)


@command("summary")
@sessions_argument
@heading("Output")
@option("-o --output", "Folder to write; an earlier summary there is replaced.", type=DIRECTORY, required=True)
@option(
    "--force/--no-clobber",
    "Replace an earlier summary, also one with logs of other sessions, or refuse to.",
    name="overwrite",
    default=True,
)
@option("--every-format", "Tables also as LaTeX, Typst and CSV, figures as PDF and PNG.", is_flag=True)
@session_dir_option
def summary(*, sessions: Sequence[str], session_dir: Path, output: Path, overwrite: bool, every_format: bool) -> None:
    """Write the summary of SESSION... as a folder: summary.md and summary.html, tables/, figures/ and the logs."""
    if format_of(output) is not None:
        raise FormatError(f"-o {output}: the summary is a folder; name one, such as {output.with_suffix('')}")
    forced = overwrite and is_given("overwrite")
    sources = read(sessions, session_dir)
    write_summary(output, sources, overwrite=overwrite, with_logs=forced, every_format=every_format)
    say_written(output)


class TableChoice(NamedTuple):
    """The table that was asked for, and how it is to be written; without a choice the results."""

    pivot_on: str | None = None
    value: str | None = None
    baseline: Sequence[str] = ()
    layout: str | None = None
    columns: Sequence[str] | None = None
    reference: bool = False
    compare: bool = False
    report: str | None = None
    ranges: Sequence[str] = ()
    problem: str | None = None
    unit: Unit | None = None
    digits: int | None = None
    caption: str = ""
    style: str | None = None
    with_index: bool = True

    def check(self, format_: str) -> None:
        """Raise `click.UsageError` for choices that exclude each other, or that say nothing in this format."""
        given, own = self._given, self.report or self.problem
        first = "".join(given[:1])
        is_data, data = format_ in ("csv", "json"), format_.upper()
        number = f"--unit {self.unit}" if self.unit else "" if self.digits is None else f"--digits {self.digits}"
        refuse(
            (len(given) > 1, f"{' and '.join(given[:2])} make different tables; use one of them"),
            ((self.value or self.baseline) and not self.pivot_on, "--value and --baseline need --pivot ROWS:COLUMNS"),
            (self.ranges and self.report != "kernels", f"--range {' '.join(self.ranges[:1])} needs --report kernels"),
            (self.unit and (self.layout or own), f"--unit {self.unit}: {first} has fixed units; leave it out"),
            (self.digits is not None and own, f"--digits {self.digits}: {first} has fixed digits; leave it out"),
            (
                self.caption and own,
                f"--caption: {first} makes several tables, each with a caption of its own; leave it out",
            ),
            (
                self.style and format_ != "markdown",
                f"--style {self.style} writes markdown, not {format_}; leave one of the two out",
            ),
            (
                self.style and number,
                f"{number}: --style {self.style} has six significant digits in base units; leave it out",
            ),
            (not (self.style or self.with_index), "--no-index needs --style pandas, which alone has an index"),
            (is_data and number, f"{number}: {data} keeps every number unrounded, in base units; leave it out"),
            (
                is_data and self.caption and (format_ == "csv" or self.is_plain),
                f"--caption: {data} has no caption here; leave it out",
            ),
        )

    @property
    def _given(self) -> list[str]:
        """The options that were given of those that choose a table."""
        names = ("layout", "columns", "reference", "compare", "report", "problem")
        given = [f"--{name}" for name in names if getattr(self, name)]
        return ["--pivot", *given] if self.pivot_on else given

    @property
    def is_plain(self) -> bool:
        """True if nothing but the results was asked for."""
        return not self._given

    def pivot(self, results: Sequence[Result]) -> Pivot | None:
        """The pivot that is asked for; None without one."""
        if not self.pivot_on:
            return None
        rows, columns = axes_of(self.pivot_on, results)
        return pivot(results, rows, columns, self.value or "mean", pairs_of("--baseline", self.baseline) or None)

    def tables(self, results: Sequence[Result], states: Sequence[SessionState]) -> Sequence[Table]:
        """The chosen tables of these sessions. Raises the errors of the tables, or `click.UsageError`."""
        notation = Notation(self.unit or "ms", self.digits)
        if made := self.pivot(results):
            return [pivot_table(made, results, notation=notation, caption=self.caption)]
        if self.layout:
            published = self.style is not None
            return layout_tables(results, self.layout, decimals=self.digits, caption=self.caption, published=published)
        if self.reference:
            return reference_tables(results, states=states, notation=notation, caption=self.caption)
        if self.compare:
            a, b = _sides(results)
            doubts, found = trust_notes(results), compare(a, b)
            return [comparison_table(found, notation=notation, caption=self.caption, doubts=doubts, sides=(a, b))]
        return [results_table(results, columns=self.columns, notation=notation, caption=self.caption)]


def _sides(results: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """The cells of the first session and those of the second."""
    if {result.source for result in results} != {0, 1}:
        raise click.UsageError("--compare takes two different sessions that both have the chosen cells")
    a, b = ([result for result in results if result.source == number] for number in (0, 1))
    return a, b


def pairs_of(option: str, given: Sequence[str]) -> Mapping[str, str]:
    """``KEY=VALUE`` texts of an option as keys and values. Raises `click.UsageError` for others."""
    pairs: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise click.UsageError(f"{option} {text}: expected KEY=VALUE, such as precision=fp32")
        if key in pairs:
            raise click.UsageError(f"{option} {text}: {key} is given twice")
        pairs[key] = value
    return pairs
