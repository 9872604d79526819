"""Exports of the handouts' problems, as `config.problems` names them: the tables and figures of each part, what is
missing, and what a person must do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from cs336_tui.analysis.estimates import Estimate, duration_range, stream_text
from cs336_tui.analysis.fields import FIELDS, NUMBERS, PivotError, varies
from cs336_tui.analysis.measures import Runs
from cs336_tui.analysis.merge import ddof_of, grouped, measured, without_visits
from cs336_tui.analysis.pivot import pivot, suggest
from cs336_tui.analysis.problems import MADE_OF, Material, Progress, editions_of, is_answered
from cs336_tui.config.problem import Answer, Part, Problem
from cs336_tui.config.problems import every_problem, problem_named
from cs336_tui.events.prediction import Prediction
from cs336_tui.events.reports import MemoryReport, Report
from cs336_tui.export.folder import figures_of
from cs336_tui.export.pivot import pivot_table
from cs336_tui.export.reports import drawings_of_reports, report_tables
from cs336_tui.export.subjects.memory import ALLOCATOR_COUNTS
from cs336_tui.export.subjects.results import TableError, phase_names, results_table
from cs336_tui.export.writeups import layout_tables
from cs336_tui.export.writing.drawing import Drawing
from cs336_tui.export.writing.formats import Section, render_sections
from cs336_tui.export.writing.tables import Column, Source, Table, Value, attributes, cell_record
from cs336_tui.export.writing.texts import untaken
from cs336_tui.stats.quantities import MILLISECONDS, NONE, UNKNOWN, gigabytes

_PROGRESS = ("done", "begun", "missing", "persons")
"""Parts of a problem by how far they came."""
WITHOUT_FILES = "figures are written beside it with -o FILE, or with --figures FOLDER"
_CELL = ("recording", "size", "context", "batch", "pass", "variants", "precision", "device")
"""Keys of records that tell cells apart."""


class Exported(NamedTuple):
    """A problem's export, before its format is chosen."""

    title: str
    sections: tuple[Section, ...]

    @property
    def without_notes(self) -> Exported:
        return self._replace(sections=tuple(section.without_notes for section in self.sections))

    def render(self, format_: str, folder: str | None, draw: Callable[[Sequence[Table]], str] | None = None) -> str:
        """The document in one of `FORMATS`; `folder` and `draw` as `render_sections` takes them."""
        return render_sections(self.title, self.sections, format_, folder, draw)

    @property
    def parts(self) -> Iterator[Table | str]:
        """The document for a terminal, without its figures."""
        yield self.title
        for section in self.sections:
            yield "\n".join([section.heading, *section.lines])
            yield from section.tables

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(table for section in self.sections for table in section.tables)

    @property
    def figures(self) -> tuple[Drawing, ...]:
        return tuple(drawing for section in self.sections for drawing in section.figures)


def export_problem(name: str, material: Material) -> Exported:
    """Answers of `material` to a problem, part by part; visits of a race, few steps each, are none. Raises `SpecError`
    for a name that is none."""
    problem, edition = problem_named(name, editions_of(material.results))
    material = material._replace(results=without_visits(material.results))
    named: dict[str, Drawing] = {}
    sections = [_section(problem, edition, part, material, named) for part in problem.parts]
    return Exported(f"{edition} {problem.name}: {problem.title}", tuple(sections))


def _section(problem: Problem, edition: str, part: Part, material: Material, named: dict[str, Drawing]) -> Section:
    name = problem.name + (f" ({part.letter})" if part.letter else "")
    tables = tuple(
        msgspec.structs.replace(table, caption=f"{name}: {table.caption}")
        for answer in part.answers
        for table in tables_of(answer, material)
    )
    figures: list[Drawing] = []
    for drawing in (each for answer in part.answers for each in figures_for(answer, material)):
        name = untaken(drawing.name, named)
        named[name] = drawing._replace(name=name)
        figures.append(named[name])
    heading = f"({part.letter}) {part.asks}" if part.letter else part.asks
    lines = _lines(problem, edition, part, material, has_any=bool(tables or figures))
    return Section(part.letter, heading, tuple(lines), tables, tuple(figures))


def _lines(problem: Problem, edition: str, part: Part, material: Material, *, has_any: bool) -> Iterable[str]:
    if part.answers and not (has_any and all(is_answered(answer, material) for answer in part.answers)):
        what = "only part of this is" if has_any else "nothing of this is"
        but = ", where visits of a race do not count" if any(state.tuning for state in material.states) else ""
        yield f"{what} in this session{but}: cs336-tui bench --preset {problem.preset(edition, part)}"
    if part.command:
        yield f"by calculation: {part.command}"
    if part.person:
        yield f"for a person: {part.person}"


class Needs(NamedTuple):
    """The needs of a problem's presets. `largest` is the estimate of the cell with most memory, None where no cell can
    run or be predicted; `low_s` and `high_s` are of the cells that fit, by their work against the largest one's."""

    edition: str
    problem: Problem
    presets: tuple[str, ...]
    cells: int
    fit: int
    """Cells that about fit the device."""
    reports: tuple[str, ...]
    largest: Estimate | None
    low_s: float | None
    high_s: float | None
    progress: Progress | None


def problems_table(rows: Sequence[Needs], session: str, device: str) -> Table:
    """A row for each problem: its preset, what it needs, and what of it is in the session."""

    def memory(row: Needs) -> str:
        return gigabytes(row.largest.needed_bytes) if row.largest else UNKNOWN if row.cells else NONE

    def time(row: Needs) -> str:
        return duration_range(row.low_s, row.high_s) if row.cells else NONE

    def progress(row: Needs) -> str:
        return (f"{row.progress.mark} {row.progress.text}".strip() if row.progress else "") or NONE

    columns: list[Source[Needs]] = [
        lambda row: {"problem": row.problem.name, "edition": row.edition, "title": row.problem.title},
        Column("problem", left=True, text=lambda row: f"{row.edition}/{row.problem.name}"),
        lambda row: {"presets": ", ".join(row.presets)},
        Column("parts", rank=2, left=True, read=lambda row: " ".join(part.letter for part in row.problem.parts)),
        Column("cells", rank=1, read=lambda row: row.cells),
        Column("fit", read=lambda row: row.fit),
        Column("reports", rank=3, left=True, read=lambda row: ", ".join(row.reports), show=lambda text: text or NONE),
        lambda row: attributes(row.largest, "needed_bytes"),
        Column("needed_bytes", "memory (GB)", text=memory),
        lambda row: {"largest": row.largest.spec.title if row.largest else None, "low_s": row.low_s},
        Column("high_s", "time", left=True, read=lambda row: row.high_s, text=time),
        lambda row: {"gpu": row.problem.gpu},
        Column("gpu", "a GPU for", rank=4, left=True, text=lambda row: row.problem.gpu or "nothing"),
        lambda row: {name: " ".join(getattr(row.progress, name)) if row.progress else None for name in _PROGRESS},
        lambda row: attributes(row.progress, "cells_done"),
    ]
    if session:
        columns.append(Column("done", "in the session", left=True, text=progress))
    caption, notes = f"Problems of the handouts, on {device}", _needs_notes(rows, session)
    return Table.of(rows, columns, caption=caption, footnotes=notes, label="problems")


def parts_table(problem: Problem, edition: str) -> Table:
    """A row for each part of a problem: what is asked for, the command that makes it, and what is a person's."""

    def command(part: Part) -> str:
        return part.command or (f"cs336-tui bench --preset {problem.preset(edition, part)}" if part.answers else NONE)

    columns: list[Source[Part]] = [
        Column("part", left=True, read=lambda part: part.letter or NONE),
        Column("asks", "asked for", left=True),
        Column("command", left=True, text=command),
        Column("person", "by hand", left=True, text=lambda part: part.person or NONE),
    ]
    last = f"then: cs336-tui export last --problem {problem.name}"
    return Table.of(problem.parts, columns, caption=problem.title, footnotes=[last], label="parts")


def _needs_notes(rows: Sequence[Needs], session: str) -> Iterator[str]:
    yield (
        "a problem with cells is a preset, too: cs336-tui bench --preset NAME, then cs336-tui export last "
        "--problem NAME; of one without cells, export names the command that calculates it"
    )
    yield (
        "memory: predicted peak of the largest cell, torch's process included; fit: cells that should fit, the "
        "others become out-of-memory rows"
    )
    time = "time: estimate for the cells that fit, without compiling and reports"
    if any(row.low_s is None for row in rows):
        time += "; unknown until a session has similar cells of this device (cs336-tui peak gives a lower bound)"
    yield time
    if others := sorted({edition for edition, _ in every_problem()} - {row.edition for row in rows}, reverse=True):
        yield f"other handouts: --edition {', '.join(others)} or all"
    if session:
        yield f"in the session {session}: ✓ every cell and part, ◐ some of them, or of other sizes"


def tables_of(answer: Answer, material: Material) -> tuple[Table, ...]:
    """The tables of an answer, those of several cells joined; empty where there is nothing to show."""
    if not is_answered(answer, material) or answer.source == "figure":
        return ()
    made: tuple[Table, ...] = ()
    with contextlib.suppress(TableError, PivotError):
        made = tuple(_MAKERS[answer.source](answer, material))
    return tuple(filter(lambda table: table.rows, (_chosen(table, answer) for table in made)))


def figures_for(answer: Answer, material: Material) -> tuple[Drawing, ...]:
    """The figures of an answer."""
    if answer.source != "figure" or not is_answered(answer, material):
        return ()
    if kind := MADE_OF.get(answer.name):
        return drawings_of_reports(material.reports(kind, answer.where))
    found = figures_of(material.states, material.where(answer.where).results)
    return tuple(each for each in found if isinstance(each, Drawing) and each.name.startswith(answer.name))


def _pivot(answer: Answer, material: Material) -> Iterator[Table]:
    """The pivot as it is named; what else varies is named with the rows."""
    results = material.where(answer.where).results
    axes, _, shown = answer.name.partition(" ")
    value, _, base = shown.partition(" over ")
    across = axes.partition(":")[2].split(",")
    keys = [key for several in suggest(results) for key in several]
    columns = [key for key in keys if key in across]
    rows = [key for key in keys if key not in columns]
    baseline = dict([base.split("=")]) if base else None
    yield pivot_table(pivot(results, rows, columns, value or "mean", baseline), results)


def _phases(answer: Answer, material: Material) -> Iterator[Table]:
    """Mean and std of every phase of a step, a row for each cell."""
    timed = [result for result in measured(material.where(answer.where).results) if result.cell.phase_times_s]
    ddof = ddof_of(timed)

    def setting(key: str) -> Column[Runs]:
        return Column(key, FIELDS[key].title, key not in NUMBERS, read=lambda runs: FIELDS[key].show(runs.first))

    def column(name: str) -> Column[Runs]:
        def text(runs: Runs) -> str:
            return MILLISECONDS.mean_and_std(summary) if (summary := runs.phase(name)) else NONE

        def read(runs: Runs) -> float | None:
            return summary.mean_s if (summary := runs.phase(name)) else None

        return Column(f"{name}_s", f"{name} (ms)", read=read, text=text)

    keys = [key for key in (*_CELL, "warmup") if key in FIELDS and (key in ("size", "pass") or varies(timed, key))]
    if timed:
        rows, caption = [Runs([result], ddof) for result in timed], "Phases of a step: mean ± std of the device's time"
        yield Table.of(rows, [*map(setting, keys), *map(column, phase_names(timed))], caption=caption, label="phases")


def _reports(answer: Answer, material: Material) -> Iterable[Table]:
    kind, _, name = answer.name.partition("/")
    if name == "residual-stream":
        return [_residual_stream(material.reports(MemoryReport, answer.where), answer.context)]
    chosen = material.where(answer.where).results
    found = report_tables(
        material.states, chosen, lambda spec: material.wants(spec, answer.where), material.ddof, keys=(kind,)
    )
    tables = found.get(kind, ())
    return _joined([_head(_kept(table, answer), answer.most) for table in tables if table.label.startswith(name)])


def _kept(table: Table, answer: Answer) -> Table:
    """The rows that the answer names."""
    if not (answer.rows or answer.but) or len(table.records) != len(table.rows):
        return table
    kept = table.rows_at(
        at
        for at, record in enumerate(table.records)
        if all(record.get(key) == value for key, value in answer.rows)
        and all(record.get(key) != value for key, value in answer.but)
    )
    if not answer.but:
        return kept
    without = f"without {' and '.join(value for _, value in answer.but)}"
    return msgspec.structs.replace(kept, footnotes=(without, *table.footnotes))


def _head(table: Table, most: int) -> Table:
    if not most or len(table.rows) <= most:
        return table
    notes = (f"the first {most} rows of each cell", *table.footnotes)
    return msgspec.structs.replace(table, rows=table.rows[:most], records=table.records[:most], footnotes=notes)


def _residual_stream(reports: Sequence[Report], context: int) -> Table:
    """The size of one tensor of the residual stream of each model and context, derived; also at the handout's
    `context`, if that is not 0."""
    found = [each.prediction for each in reports if isinstance(each, MemoryReport) and each.prediction]
    keys = ("size", "context", "batch")
    several = {tuple(cell_record(each.spec, *keys).values()): each for each in found}
    for each in found if context else ():
        # The size is proportional to the context length.
        size = each.residual_stream_bytes * context // each.spec.context_length
        spec = msgspec.structs.replace(each.spec, context_length=context)
        other = msgspec.structs.replace(each, spec=spec, residual_stream_bytes=size)
        several.setdefault(tuple(cell_record(spec, *keys).values()), other)
    columns: list[Source[Prediction]] = [
        lambda each: cell_record(each.spec, *keys),
        *(Column(key, FIELDS[key].title, key not in NUMBERS) for key in keys),
        Column("residual_stream", "one tensor", left=True, read=stream_text),
        lambda each: attributes(each, "residual_stream_bytes"),
    ]
    return Table.of(several.values(), columns, caption="A tensor of the residual stream", label="residual-stream")


def _joined(tables: Sequence[Table]) -> list[Table]:
    """Tables of several cells with the same columns as one, in which the first columns tell the cells apart."""
    alike = grouped(tables, lambda table: tuple(column.key for column in table.columns))
    return [several[0] if len(several) == 1 else _one_of(several) for several in alike.values()]


def _one_of(tables: Sequence[Table]) -> Table:
    shown = {column.key for column in tables[0].columns}
    keys = [key for key in (*_CELL, "phase") if key not in shown]

    def settings(table: Table) -> dict[str, Value]:
        return {key: table.records[0][key] for key in keys if table.records and key in table.records[0]}

    cells = [settings(table) for table in tables]
    several = len({tuple(str(cell.get(key)) for key in _CELL) for cell in cells})
    differ = [key for key in keys if len({str(cell.get(key)) for cell in cells}) > 1]
    titles = {key: FIELDS[key].title if key in FIELDS else key for key in differ}
    columns = [Column[object](key, title, key not in NUMBERS) for key, title in titles.items()]
    names = [[str(cell.get(key, "")) for key in differ] for cell in cells]
    rows = [(*name, *row) for name, table in zip(names, tables, strict=True) for row in table.rows]
    first = tables[0]
    return msgspec.structs.replace(
        first,
        columns=(*columns, *first.columns),
        rows=tuple(rows),
        records=tuple(record for table in tables for record in table.records),
        caption=f"{first.caption.partition(' of ' if 'phase' in differ else ':')[0]}: {several} cells",
        footnotes=tuple(_notes_of(tables, [" · ".join(name) for name in names])),
        label=first.label.partition("-")[0] + "-of-cells",
    )


def _notes_of(tables: Sequence[Table], names: Sequence[str]) -> Iterator[str]:
    """The notes of all tables, then those of some, after the names of their cells. Each allocator's count is a column
    of the table of peaks."""
    of: dict[str, list[str]] = {}
    for table, name in zip(tables, names, strict=True):
        for note in table.footnotes:
            of.setdefault(note, []).append(name)
    yield from (note for note, cells in of.items() if len(cells) == len(tables))
    for note, cells in of.items():
        if len(cells) < len(tables) and not note.startswith(ALLOCATOR_COUNTS):
            yield f"{'; '.join(cells)}: {note}"


def _chosen(table: Table, answer: Answer) -> Table:
    """The columns that the answer names."""
    if answer.source != "report" or not answer.columns:
        return table
    wanted = (*answer.columns, *_CELL, *FIELDS)
    return table.without(*(column.key for column in table.columns if column.key not in wanted))


_MAKERS: Mapping[str, Callable[[Answer, Material], Iterable[Table]]] = {
    "results": lambda answer, material: [
        results_table(material.where(answer.where).results, columns=answer.columns or None, caption="Step times")
    ],
    "layout": lambda answer, material: layout_tables(
        material.where(answer.where).results, answer.name, published=material.published
    ),
    "pivot": _pivot,
    "phases": _phases,
    "report": _reports,
}
