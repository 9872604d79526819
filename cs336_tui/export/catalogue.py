"""Everything that a session can be exported as: what there is to choose, its text, and the files that it makes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import platformdirs

from cs336_tui.analysis.merge import Result, measured, results_of, title_of
from cs336_tui.analysis.pivot import VALUES, pivot, suggest
from cs336_tui.analysis.problems import Material, editions_of, progress_of
from cs336_tui.config.axis import UserError, names_of
from cs336_tui.config.problems import every_problem
from cs336_tui.config.reading import UNREADABLE, read_small, write_quietly
from cs336_tui.events.reports import REPORTS
from cs336_tui.export.folder import Source, figures_of, write_summary
from cs336_tui.export.pivot import pivot_table
from cs336_tui.export.problems import Exported, export_problem
from cs336_tui.export.record import document_of, to_csv, to_json
from cs336_tui.export.reference import reference_tables
from cs336_tui.export.reports import report_tables
from cs336_tui.export.subjects.results import TableError, results_markdown, results_parts, results_table
from cs336_tui.export.summary import summary_markdown
from cs336_tui.export.writeups import LAYOUTS, layout_tables
from cs336_tui.export.writing.drawing import FIGURE_FORMATS, Drawing
from cs336_tui.export.writing.files import FORMATS, SUFFIXES, check_free, figures_beside, make_folder, write_atomically
from cs336_tui.export.writing.formats import answer, pandas_text
from cs336_tui.export.writing.tables import Column, Table
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import MILLISECONDS, Notation, Unit

RESULTS, PIVOT, REFERENCE, FIGURES, SUMMARY = "results", "pivot", "reference", "figures", "summary"
LAYOUT, REPORT, PROBLEM = "layout", "report", "problem"
"""Before a name and a space."""
EVERY_FIGURE, WHOLE_FOLDER = "all", "folder"
_OWN_FORMATS: Mapping[str, tuple[str, ...]] = {
    FIGURES: (EVERY_FIGURE, *FIGURE_FORMATS),
    SUMMARY: (WHOLE_FOLDER, "markdown"),
}
AUTO = "auto"
"""The rows and columns of a pivot that fit the results."""


class Choice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A choice of what is exported, and how. `what` is a key of an `Offer`."""

    what: str = RESULTS
    format: str = "markdown"
    """One of `formats_of(what)`."""
    axes: str = AUTO
    """Rows and columns of a pivot: ``size,context:pass``."""
    value: str = "mean"
    baseline: str = ""
    """Over what a speed-up is: ``precision=fp32``; empty: what `pivot` takes."""
    notes: bool = True
    pandas: bool = False
    """Markdown as pandas writes it, without notes."""
    columns: str = ""
    """Columns of the results: ``size,pass,mean``; empty: all that tell cells apart, and every statistic."""
    unit: Unit = "ms"
    digits: int | None = None
    """Decimal places of times; None: as many as the std supports."""

    @property
    def kind(self) -> str:
        return self.what.partition(" ")[0]

    @property
    def name(self) -> str:
        return self.what.partition(" ")[2]

    @property
    def is_folder(self) -> bool:
        """True if it makes a folder and not a file."""
        return self.what == FIGURES or (self.what == SUMMARY and self.format == WHOLE_FOLDER)

    @property
    def takes_unit(self) -> bool:
        """True if `unit` says something: data keeps base units, other tables have fixed ones."""
        return self.what in (RESULTS, PIVOT, REFERENCE) and self._rounds

    @property
    def takes_digits(self) -> bool:
        """True if `digits` says something."""
        return self.takes_unit or (self.kind == LAYOUT and self._rounds)

    @property
    def _rounds(self) -> bool:
        return self.format not in ("csv", "json") and not _as_pandas(self)

    @property
    def notation(self) -> Notation:
        return Notation(self.unit, self.digits) if self.takes_unit else MILLISECONDS


class Offer(NamedTuple):
    """One thing that can be exported; `group` is the heading that it stands under."""

    what: str
    title: str
    about: str
    group: str


def offers(state: SessionState) -> Iterator[Offer]:
    """Everything that the session may be exported as. A table may still turn out to have nothing in it."""
    yield Offer(RESULTS, "Results", "Every cell with every statistic; CSV and JSON have every step, too.", "Tables")
    results = results_of(state)
    usual = ":".join(map(",".join, suggest(results))) if measured(results) else "none, as no cell is measured"
    yield Offer(PIVOT, "Pivot", f"One value side by side; {AUTO} is {usual}.", "Tables")
    yield Offer(REFERENCE, "Reference", "These results beside published ones.", "Tables")
    yield Offer(FIGURES, "Figures", "Every figure of the session, in a folder.", "Figures, summary")
    about = "A folder to hand in: the text as markdown and as a page, tables, figures, the log."
    yield Offer(SUMMARY, "Summary", about, "Figures, summary")
    for name, layout in LAYOUTS.items():
        yield Offer(f"{LAYOUT} {name}", name, layout.about, "As in write-ups")
    for key, report in REPORTS.items():
        is_there = report.content is None or any(True for _ in state.contents(report.content))
        if is_there and (key != "race" or state.tuning):
            yield Offer(f"{REPORT} {key}", key, f"Report: {report.title}.", "Reports")
    editions = editions_of(results)
    for edition, problem in every_problem():
        if edition in editions and (mark := progress_of(problem, edition, [state], results).mark):
            title = f"{edition}/{problem.name} {mark}"
            about = f"{problem.title}: each part with its tables and figures."
            yield Offer(f"{PROBLEM} {edition}/{problem.name}", title, about, "Problems")


def formats_of(what: str) -> tuple[str, ...]:
    """The formats that it can be written in."""
    return _OWN_FORMATS.get(what, FORMATS)


def suited(choice: Choice, what: str) -> Choice:
    """The choice of something else, in the same format if it has that."""
    formats = formats_of(what)
    format_ = choice.format if choice.format in formats else formats[0]
    return msgspec.structs.replace(choice, what=what, format=format_)


def usual_name(choice: Choice, state: SessionState) -> str:
    """The name of a new file or folder."""
    # The name comes from a log, which anybody may have written.
    session = re.sub(r"[^\w-]+", "-", state.started.session)[:80] if state.started else "session"
    word = re.sub(r"[^\w-]+", "-", choice.name or choice.what)
    return f"cs336-tui-{word}-{session}" + ("" if choice.is_folder else f".{SUFFIXES[choice.format]}")


def results_document(state: SessionState, format_: str, *, brief: bool = False) -> str:
    """The results of a session as a document in one of `FILE_FORMATS`: its records as CSV and JSON, its table in the
    others, with `brief` of its notes those on numbers in doubt alone."""
    match format_:
        case "csv":
            return to_csv(document_of(state))
        case "json":
            return to_json(document_of(state))
        case "markdown":
            return results_markdown(state, brief=brief)
    (found,) = results_parts(state, brief=brief)
    if isinstance(found, str):
        found = Table(columns=(Column("results", left=True),), rows=(), footnotes=(found,), caption="Results")
    return answer([found], format_, f"cs336-tui: {title_of(state)}")


def text_of(choice: Choice, state: SessionState, path: Path | None = None) -> str:
    """The text of a file; of a problem with its figures beside `path`. Raises `UserError` where there is nothing."""
    if choice.what == SUMMARY:
        return summary_markdown(state)
    if exported := _problem(choice, state):
        folder = figures_beside(path).name if path and exported.figures else None
        if _as_pandas(choice):
            return exported.without_notes.render(choice.format, folder, partial(pandas_text, captions=True))
        return (exported if choice.notes else exported.without_notes).render(choice.format, folder)
    is_whole = not choice.columns and choice.notation == MILLISECONDS
    if choice.what == RESULTS and is_whole and choice.notes and not _as_pandas(choice):
        return results_document(state, choice.format)
    tables = _tables(choice, state)
    if _as_pandas(choice):
        return pandas_text(tables)
    if not choice.notes:
        tables = [table.without_notes for table in tables]
    return answer(tables, choice.format, f"cs336-tui: {title_of(state)}")


def _drawings(choice: Choice, state: SessionState) -> tuple[Drawing, ...]:
    """The figures that were chosen, or those of a problem."""
    if choice.what != FIGURES:
        exported = _problem(choice, state)
        return exported.figures if exported else ()
    found = figures_of([state], results_of(state))
    drawings = tuple(each for each in found if isinstance(each, Drawing))
    if not drawings:
        raise UserError("no figure can be drawn of this session; a cell must be measured first")
    return drawings


def write(choice: Choice, source: Source, path: Path, *, overwrite: bool = False) -> None:
    """Write the file or folder `path`, and of a problem its figures beside it. All is made before anything is written.

    Raises `UserError`, which says in one line what to do.
    """
    state = source.state
    if choice.what == SUMMARY and choice.is_folder:
        write_summary(path, [source], overwrite=overwrite)
        return
    drawings, folder = _drawings(choice, state), path if choice.is_folder else figures_beside(path)
    formats = (choice.format,) if choice.format in FIGURE_FORMATS else FIGURE_FORMATS
    paths = [folder / f"{each.name}.{name}" for each in drawings for name in formats]
    for file in paths if choice.is_folder else (*paths, path):
        check_free(file, overwrite=overwrite)  # before anything is drawn, which takes seconds
    files: dict[Path, str | bytes] = {} if choice.is_folder else {path: text_of(choice, state, path)}
    for drawing in drawings:
        files |= {folder / f"{drawing.name}.{name}": data for name, data in drawing.files(formats).items()}
    if drawings:
        make_folder(folder)
    for file, content in files.items():
        write_atomically(file, content, overwrite=overwrite)


def last_choice(file: Path | None = None) -> Choice | None:
    """The choice of the export before this one, if it can be read and still made."""
    with contextlib.suppress(*UNREADABLE):
        found = msgspec.json.decode(read_small(file or _usual_file()), type=Choice)
        if found.format in formats_of(found.what) and found.value in VALUES:
            return found
    return None


def remember(choice: Choice, file: Path | None = None) -> None:
    """Keep the choice for the next export; a file that cannot be written is left as it is."""
    with contextlib.suppress(UnicodeEncodeError):
        write_quietly(file or _usual_file(), msgspec.json.format(msgspec.json.encode(choice)))


def _usual_file() -> Path:
    return platformdirs.user_state_path("cs336-tui", appauthor=False) / "last-export.json"


def _as_pandas(choice: Choice) -> bool:
    return choice.pandas and choice.format == "markdown"


def _problem(choice: Choice, state: SessionState) -> Exported | None:
    """The problem that was chosen, if one was."""
    if choice.kind != PROBLEM:
        return None
    material = Material((state,), tuple(results_of(state)), published=_as_pandas(choice))
    return export_problem(choice.name, material)


def _tables(choice: Choice, state: SessionState) -> list[Table]:
    results = results_of(state)
    match choice.kind:
        case "pivot":
            rows, columns = axes_of(choice.axes, results)
            key, equals, value = choice.baseline.partition("=")
            if choice.baseline and not (key and equals and value):
                raise UserError(f"baseline {choice.baseline}: expected KEY=VALUE, such as precision=fp32")
            over = {key.strip(): value.strip()} if choice.baseline else None
            made = pivot(results, rows, columns, choice.value, over)
            return [pivot_table(made, results, notation=choice.notation)]
        case "layout":
            digits = choice.digits if choice.takes_digits else None
            return [*layout_tables(results, choice.name, decimals=digits, published=_as_pandas(choice))]
        case "reference":
            return [*reference_tables(results, states=[state], notation=choice.notation)]
        case "report":
            found = report_tables([state], results, keys=[choice.name]).get(choice.name)
            if not found:
                raise TableError(f"this session has nothing for report {choice.name}; choose another one")
            return [*found]
    return [results_table(results, columns=names_of(choice.columns) or None, notation=choice.notation)]


def axes_of(text: str, results: Sequence[Result]) -> tuple[list[str], list[str]]:
    """``size,context:pass`` as field keys of rows and columns; ``auto`` is what fits the results. Raises `UserError`
    for a text that is neither."""
    if text.strip() in ("", AUTO):
        found = suggest(results)
        return [*found[0]], [*found[1]]
    rows, colon, columns = text.partition(":")
    if not colon or ":" in columns:
        raise UserError(f"pivot {text}: expected ROWS:COLUMNS, such as size:pass, or {AUTO}")
    return [*names_of(rows)], [*names_of(columns)]
