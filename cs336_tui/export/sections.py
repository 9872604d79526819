"""Tables and figures under headings, as one document in every format of a table."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from cs336_tui.export.drawing import Drawing
from cs336_tui.export.formats import document_of_table, latex_escape, page, render_all, typst_string
from cs336_tui.export.tables import Table, Value
from cs336_tui.export.texts import csv_text, markdown_escape, one_line, untaken


class Section(NamedTuple):
    """The content under one heading. `key` is its name in data."""

    key: str
    heading: str
    lines: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    figures: tuple[Drawing, ...] = ()

    @property
    def without_notes(self) -> Section:
        return self._replace(tables=tuple(msgspec.structs.replace(table, footnotes=()) for table in self.tables))


def render_sections(
    title: str,
    sections: Sequence[Section],
    format_: str,
    folder: str | None = None,
    draw: Callable[[Sequence[Table]], str] | None = None,
) -> str:
    """The document in one of `FORMATS`; ends with a newline. Its figures are files in `folder`, seen from the document;
    None: there are none. A note that tables share stands below the first of them. `draw` writes tables as text, if not
    as the format does. CSV has the records, and the lines as notes; JSON has each section's tables as they are
    alone."""
    draw = draw or partial(render_all, format_=format_)
    sections = _told_once(sections)
    match format_:
        case "json":
            document = {"title": title, "parts": [_as_data(each, folder) for each in sections]}
            return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
        case "csv":
            records = [{"part": each.key, **record} for each in sections for record in _records(each)]
            return csv_text(dict.fromkeys(key for record in records for key in record), records)
    write = _WRITERS[format_]
    parts = [write.heading(1, title)]
    for each in sections:
        parts += [write.heading(2, each.heading), *map(write.line, each.lines)]
        parts += [draw([table]).rstrip("\n") for table in each.tables]
        parts += [write.figure(f"{folder}/{drawing.name}", drawing.title) for drawing in each.figures if folder]
    text = "\n\n".join(parts) + "\n"
    return page(title, text) if format_ == "html" else text


class _Writer(NamedTuple):
    """Parts of a document in one format. A figure is given its path without its suffix, and its title."""

    heading: Callable[[int, str], str]
    line: Callable[[str], str]
    figure: Callable[[str, str], str]


_WRITERS: Mapping[str, _Writer] = {
    "markdown": _Writer(
        lambda level, text: f"{'#' * level} {markdown_escape(text)}",
        markdown_escape,
        lambda path, title: f"![{markdown_escape(title)}](<{path}.svg>)",
    ),
    "table": _Writer(
        lambda level, text: f"{one_line(text)}\n{'=-'[level - 1] * len(one_line(text))}",
        one_line,
        lambda path, title: f"{one_line(title)}: {path}.svg",
    ),
    "latex": _Writer(
        lambda level, text: f"\\{'sub' * (level - 1)}section*{{{latex_escape(text)}}}",
        latex_escape,
        lambda path, title: (
            "% needs \\usepackage{graphicx}\n\\begin{figure}[htbp]\n\\centering\n"
            f"\\includegraphics[width=\\linewidth]{{\\detokenize{{{path}.pdf}}}}\n"
            f"\\caption{{{latex_escape(title)}}}\n\\end{{figure}}"
        ),
    ),
    "typst": _Writer(
        lambda level, text: f"#heading(level: {level}, {typst_string(text)})",
        lambda text: f"#{typst_string(text)}",
        lambda path, title: f"#figure(image({typst_string(f'{path}.svg')}), caption: {typst_string(title)})",
    ),
    "html": _Writer(
        lambda level, text: f"<h{level}>{html.escape(one_line(text))}</h{level}>",
        lambda text: f"<p>{html.escape(one_line(text))}</p>",
        lambda path, title: f'<img src="{html.escape(path)}.svg" alt="{html.escape(one_line(title))}">',
    ),
}


def _told_once(sections: Sequence[Section]) -> list[Section]:
    """Each note below the first table that has it, and each table under a label of its own."""
    notes: set[str] = set()
    labels: set[str] = set()

    def first_told(table: Table) -> Table:
        new = tuple(note for note in table.footnotes if note not in notes)
        notes.update(new)
        label = untaken(table.label, labels)
        labels.add(label)
        return msgspec.structs.replace(table, footnotes=new, label=label)

    return [each._replace(tables=tuple(map(first_told, each.tables))) for each in sections]


def _records(section: Section) -> list[dict[str, Value]]:
    noted: list[dict[str, Value]] = [{"note": line} for line in section.lines]
    named = [(table.caption or table.label, table) for table in section.tables]
    return noted + [{"table": name} | table.settings | record for name, table in named for record in table.records]


def _as_data(section: Section, folder: str | None) -> dict[str, Any]:
    return {
        "part": section.key,
        "asks": section.heading,
        "notes": section.lines,
        "tables": [document_of_table(table) for table in section.tables],
        "figures": [f"{folder}/{drawing.name}.svg" for drawing in section.figures] if folder else [],
    }
