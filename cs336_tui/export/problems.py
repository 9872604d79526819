"""Exports of the handouts' problems: each part's tables and figures, what is missing, and what a person must do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from cs336_tui.analysis.estimates import Estimate, duration_range
from cs336_tui.analysis.merge import without_visits
from cs336_tui.analysis.problems import Material, Progress, editions_of, is_answered
from cs336_tui.config.problems.all_problems import every_problem, problem_named
from cs336_tui.config.problems.problem import Part, Problem
from cs336_tui.export.answers import figures_for, tables_of
from cs336_tui.export.drawing import Drawing
from cs336_tui.export.sections import Section, render_sections
from cs336_tui.export.tables import Column, Source, Table, Value
from cs336_tui.export.texts import untaken
from cs336_tui.stats.quantities import NONE, UNKNOWN, gigabytes

WITHOUT_FILES = "figures are written beside it with -o FILE, or with --figures FOLDER"


class Exported(NamedTuple):
    """A problem's export, before its format is chosen."""

    title: str
    sections: tuple[Section, ...]

    def render(
        self,
        format_: str,
        folder: str | None,
        *,
        with_notes: bool = True,
        draw: Callable[[Sequence[Table]], str] | None = None,
    ) -> str:
        """The document in one of `FORMATS`; `folder` and `draw` as `render_sections` takes them."""
        sections = self.sections if with_notes else tuple(each.without_notes for each in self.sections)
        return render_sections(self.title, sections, format_, folder, draw)

    def parts(self, *, with_notes: bool = True) -> Iterator[Table | str]:
        """The document for a terminal, without its figures."""
        yield self.title
        for section in self.sections:
            shown = section if with_notes else section.without_notes
            yield "\n".join([shown.heading, *shown.lines])
            yield from shown.tables

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
    drawings = [drawing for answer in part.answers for drawing in figures_for(answer, material)]
    return Section(
        part.letter,
        f"({part.letter}) {part.asks}" if part.letter else part.asks,
        tuple(_lines(problem, edition, part, material, has_any=bool(tables or drawings))),
        tables,
        tuple(_under_own_name(drawing, named) for drawing in drawings),
    )


def _lines(problem: Problem, edition: str, part: Part, material: Material, *, has_any: bool) -> Iterable[str]:
    if part.answers and not (has_any and all(is_answered(answer, material) for answer in part.answers)):
        what = "only part of this is" if has_any else "nothing of this is"
        but = ", where visits of a race do not count" if any(state.tuning for state in material.states) else ""
        yield f"{what} in this session{but}: cs336-tui bench --preset {problem.preset(edition, part)}"
    if part.command:
        yield f"by calculation: {part.command}"
    if part.person:
        yield f"for a person: {part.person}"


def _under_own_name(drawing: Drawing, named: dict[str, Drawing]) -> Drawing:
    """The drawing under a name that no other one has."""
    name = untaken(drawing.name, named)
    named[name] = drawing._replace(name=name)
    return named[name]


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
    columns: list[Source[Needs]] = [
        lambda row: {"problem": row.problem.name, "edition": row.edition, "title": row.problem.title},
        Column("problem", left=True, text=lambda row: f"{row.edition}/{row.problem.name}"),
        lambda row: {"presets": ", ".join(row.presets)},
        Column("parts", rank=2, left=True, read=lambda row: " ".join(part.letter for part in row.problem.parts)),
        Column("cells", rank=1, read=lambda row: row.cells),
        Column("fit", read=lambda row: row.fit),
        Column("reports", rank=3, left=True, read=lambda row: ", ".join(row.reports), show=lambda text: text or NONE),
        Column(
            "needed_bytes",
            "memory (GB)",
            read=lambda row: row.largest.needed_bytes if row.largest else None,
            text=lambda row: gigabytes(row.largest.needed_bytes) if row.largest else UNKNOWN if row.cells else NONE,
        ),
        lambda row: {"largest": row.largest.spec.title if row.largest else None, "low_s": row.low_s},
        Column(
            "high_s",
            "time",
            left=True,
            read=lambda row: row.high_s,
            text=lambda row: duration_range(row.low_s, row.high_s) if row.cells else NONE,
        ),
        Column(
            "gpu", "a GPU for", rank=4, left=True, read=lambda row: row.problem.gpu, show=lambda text: text or "nothing"
        ),
        lambda row: _progress_record(row.progress),
    ]
    if session:
        columns.append(Column("done", "in the session", left=True, text=lambda row: _progress_text(row) or NONE))
    shown = {row.edition for row in rows}
    others = sorted({edition for edition, _ in every_problem()} - shown, reverse=True)
    return Table.of(
        rows,
        columns,
        caption=f"Problems of the handouts, on {device}",
        footnotes=(
            "a problem with cells is a preset, too: cs336-tui bench --preset NAME, then cs336-tui export last "
            "--problem NAME; of one without cells, export names the command that calculates it",
            "memory: predicted peak of the largest cell, torch's process included; fit: cells that should fit, the "
            "others become out-of-memory rows",
            "time: estimate for the cells that fit, without compiling and reports"
            + (
                "; unknown until a session has similar cells of this device (cs336-tui peak gives a lower bound)"
                if any(row.low_s is None for row in rows)
                else ""
            ),
            *([f"other handouts: --edition {', '.join(others)} or all"] if others else []),
            *(
                [f"in the session {session}: ✓ every cell and part, ◐ some of them, or of other sizes"]
                if session
                else []
            ),
        ),
        label="problems",
    )


def _progress_text(row: Needs) -> str:
    return f"{row.progress.mark} {row.progress.text}".strip() if row.progress else ""


def _progress_record(progress: Progress | None) -> dict[str, Value]:
    letters = ("done", "begun", "missing", "persons")
    found: dict[str, Value] = {name: " ".join(getattr(progress, name)) if progress else None for name in letters}
    return found | {"cells_done": progress.cells_done if progress else None}
