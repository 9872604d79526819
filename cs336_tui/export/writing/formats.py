"""Tables, and documents of tables and figures, as text: plain, markdown, LaTeX, Typst, CSV, JSON and HTML."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from cs336_tui.config.reading import packaged
from cs336_tui.export.writing.narrow import piped, slim
from cs336_tui.export.writing.tables import Column, Table, Value
from cs336_tui.export.writing.texts import bullets, csv_text, json_text, markdown_escape, one_line, untaken

if TYPE_CHECKING:
    from cs336_tui.export.writing.drawing import Drawing

_OWN_NOTES = ("†", "‡", "§", "¶", "the first ")
LATEX_PREAMBLE = "% needs \\usepackage{booktabs}"
_LATEX_WIDE = "% needs \\usepackage{graphicx}"
_LATEX_LINE = 72
"""Characters of a narrow text line of LaTeX's; what has more is shrunk to the line if it really does not fit."""
_LATEX_NOTE, _LATEX_PAGE = 90, 40
"""Characters of a line of small text, and lines of a float that a page has room for: it cannot be broken over two."""
_LATEX_GAP = 2.5
"""Characters that fit into the space between two columns."""
_LATEX_KEEP = "\\ifdefined\\tablebox\\else\\newsavebox{\\tablebox}\\fi\n\\begin{lrbox}{\\tablebox}"
_LATEX_SHRINK = (
    "\\end{lrbox}\n\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{\\usebox{\\tablebox}}"
)
"""Around a table: scales it down where it is wider than the line, and never up. The table does not stand within
``\\resizebox``, as pandoc leaves out what does."""

_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "±": r"$\pm$", "×": r"$\times$", "−": "$-$", "·": r"$\cdot$", "µ": r"\textmu{}",
    "≥": r"$\geq$", "≤": r"$\leq$", "√": r"$\surd$", "Φ": r"$\Phi$", "│": r"\textbar{}",
    **{raised: f"$^{plain}$" for raised, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ", "0123456789n", strict=True)}, "⁻": "$^-$",
    "†": r"\textdagger{}", "‡": r"\textdaggerdbl{}", "§": r"\S{}", "¶": r"\P{}", "…": r"\ldots{}",
})  # fmt: skip


def render(table: Table, format_: str) -> str:
    """The table in one of `FILE_FORMATS`, with its caption and footnotes; ends with a newline.

    HTML is a fragment, see `page`. CSV has the records only, each with the table's settings.
    """
    return render_all([table], format_)


def render_all(tables: Sequence[Table], format_: str) -> str:
    """Several tables one after another: in CSV one list of all records, in JSON ``{"tables": [...]}``.

    In CSV records of different kinds name their table first.
    """
    match format_:
        case "csv":
            kinds = {tuple(record) for table in tables for record in table.records[:1]}
            is_told_apart = len(kinds) < 2 or any("table" in kind for kind in kinds)
            records: list[dict[str, Value]] = []
            for table in tables:
                name: dict[str, Value] = {} if is_told_apart else {"table": table.caption or table.label}
                records += [name | each | table.settings | each for each in table.records]
            return _records_text(records)
        case "typst":
            tables = list(map(slim, tables))
        case "json":
            documents = [document_of_table(table) for table in tables]
            return json_text(documents[0] if len(documents) == 1 else {"tables": documents})
        case "latex":
            tables = list(map(slim, tables))
            packages = [LATEX_PREAMBLE, _LATEX_WIDE] if any(map(_is_wide, tables)) else [LATEX_PREAMBLE]
            return "\n".join([*packages, *map(_latex, noted_once(tables))])
    writers: dict[str, Callable[[Table], str]] = {
        "markdown": _markdown, "typst": _typst, "html": _html, "table": plain_text,
    }  # fmt: skip
    return "\n".join(map(writers[format_], noted_once(tables)))


def noted_once(tables: Iterable[Table], own: tuple[str, ...] = _OWN_NOTES) -> list[Table]:
    """The tables, each without the notes that stand below an earlier one; what begins with a sign or a number of rows
    is of its `own` table."""
    seen: set[str] = set()
    found = []
    for table in tables:
        notes = tuple(note for note in table.footnotes if note not in seen or note.startswith(own))
        seen |= {*notes}
        found.append(msgspec.structs.replace(table, footnotes=notes))
    return found


def answer(tables: Sequence[Table], format_: str, title: str = "cs336-tui") -> str:
    """Several tables as a whole document in one of `FILE_FORMATS`."""
    text = render_all(tables, format_)
    return page(title, text) if format_ == "html" else text


def plain_text(table: Table) -> str:
    """The table in aligned columns; a column in which all rows say the same is said once, above them."""
    from tabulate import tabulate

    alike = table.alike
    said = ", ".join(f"{table.columns[place].header} {table.rows[0][place]}" for place in alike)
    kept = table.at(place for place in range(len(table.columns)) if place not in alike)
    rows, heads = [list(map(one_line, row)) for row in kept.rows], [one_line(each.header) for each in kept.columns]
    aligns = [column.align for column in kept.columns]
    lines = tabulate(rows, heads, tablefmt="simple", disable_numparse=True, colalign=aligns)
    return "\n".join([table.caption, *([f"all: {said}"] if said else []), "", lines, "", *table.footnotes, ""])


def pandas_text(tables: Sequence[Table], *, index: bool = True, captions: bool = False) -> str:
    """Each table as pandas' ``DataFrame.to_markdown`` writes its values under their keys, without footnotes; several,
    or with `captions`, after its caption. Numbers have six significant digits, one that is missing is ``nan``. Without
    `index` as ``to_markdown(index=False)``. What would end a cell or begin a tag is escaped, unlike pandas'."""
    captions = captions or len(tables) > 1
    return "\n".join(
        (f"**{markdown_escape(table.caption)}**\n\n" if captions and table.caption else "") + _pandas_rows(table, index)
        for table in tables
    )


def _pandas_rows(table: Table, index: bool) -> str:
    """A column without a key is the index; else the rows are numbered. A column that the records lack is its texts,
    under its header."""
    from tabulate import tabulate

    keys = [column.key for column in table.columns]
    alike = len(table.records) == len(table.rows)
    known = [alike and all(key in record for record in table.records) for key in keys]
    columns = [
        [_pandas_value(record[c.key], c) for record in table.records]
        if has
        else [_pandas_string(row[place]) for row in table.rows]
        for place, (c, has) in enumerate(zip(table.columns, known, strict=True))
    ]
    heads = [_pandas_string(c.key if has else c.header) for c, has in zip(table.columns, known, strict=True) if c.key]
    numbers: list[Any] = columns.pop(keys.index("")) if "" in keys else list(range(len(table.rows)))
    if all(type(value) in (int, float) for column in columns for value in column):
        # pandas then has one type for all, which is float if one of them is.
        has_float = any(isinstance(value, float) for column in columns for value in column)
        columns = [[float(value) for value in column] for column in columns] if has_float else columns
    rows, shown = list(zip(*columns, strict=True)), numbers if index else False
    return tabulate(rows, heads, tablefmt="pipe", showindex=shown) + "\n"


def _pandas_string(text: str) -> str:
    return re.sub(r"[\\`|<>]", r"\\\g<0>", one_line(text))


def _pandas_value(value: Value, column: Column) -> Any:
    if isinstance(value, str):
        return _pandas_string(value)
    if isinstance(value, tuple):
        return [float(f"{each:.6g}") for each in value]
    return (None if column.left else math.nan) if value is None else value


def notes_text(tables: Sequence[Table]) -> str:
    """The footnotes of the tables in markdown: those of all, then what else each has, under its caption."""
    several = len(tables) > 1
    every = [note for note in tables[0].footnotes if all(note in table.footnotes for table in tables)] if tables else []
    parts = [("", every), *((table.caption, [n for n in table.footnotes if n not in every]) for table in tables)]
    heads = [f"**{markdown_escape(caption)}**\n\n" if caption and several else "" for caption, _ in parts]
    lists = [bullets(map(markdown_escape, notes)) for _, notes in parts]
    return "\n".join(f"{head}{notes}\n" for head, notes in zip(heads, lists, strict=True) if notes)


def latex_escape(text: str) -> str:
    """One line of text that LaTeX sets as itself; needs no package."""
    found = re.sub("-(?=-)", "-{}", one_line(text).translate(_LATEX))
    # After a line's end a bracket would be an option of it, and a star a form of it.
    return "{}" + found if found.startswith(("[", "*")) else found


def _label(table: Table) -> str:
    return "tab:" + re.sub("[^A-Za-z0-9]+", "-", table.label).strip("-")


def _markdown(table: Table) -> str:
    parts = [f"**{markdown_escape(table.caption)}**"] if table.caption else []
    cells = [[markdown_escape(cell) for cell in row] for row in ([c.header for c in table.columns], *table.rows)]
    parts.append(piped(cells, [column.left for column in table.columns]))
    if table.footnotes:
        parts.append(bullets(map(markdown_escape, table.footnotes)))
    return "\n\n".join(parts) + "\n"


def _latex(table: Table) -> str:
    caption, notes = latex_escape(table.floating_caption), list(map(latex_escape, table.footnotes))
    before, behind = ([_LATEX_KEEP], [_LATEX_SHRINK]) if _is_wide(table) else ([], [])
    lines = [
        "\\begin{table}[htbp]",
        "\\centering",
        f"\\caption{{{caption}}}\\label{{{_label(table)}}}",
        *before,
        f"\\begin{{tabular}}{{{''.join(column.align[0] for column in table.columns)}}}",
        "\\toprule",
        *_latex_groups(table),
        _latex_row(column.heading for column in table.columns),
        "\\midrule",
        *map(_latex_row, table.rows),
        "\\bottomrule",
        "\\end{tabular}",
        *behind,
    ]
    text = "\\\\\n".join(notes)
    if notes and len(table.rows) + sum(1 + len(note) // _LATEX_NOTE for note in notes) <= _LATEX_PAGE:
        lines += ["\\par\\smallskip\n\\begin{minipage}{\\linewidth}\\footnotesize", text, "\\end{minipage}"]
        notes = []
    lines.append("\\end{table}")
    if notes:
        lines += [f"{{\\noindent\\footnotesize Notes on Table~\\ref{{{_label(table)}}}:\\\\", f"{text}\\par}}"]
    return "\n".join([*lines, ""])


def _groups(table: Table) -> list[tuple[str, int]]:
    """Groups of neighbouring columns, each with its width; none if no column has one."""
    found = [(name, len(list(columns))) for name, columns in groupby(table.columns, attrgetter("group"))]
    return found if any(name for name, _ in found) else []


def _latex_groups(table: Table) -> list[str]:
    if not (found := _groups(table)):
        return []
    spans = (f"\\multicolumn{{{width}}}{{{'c' if name else 'l'}}}{{{latex_escape(name)}}}" for name, width in found)
    ends = list(accumulate(width for _, width in found))
    rules = (
        f"\\cmidrule(lr){{{end - width + 1}-{end}}}" for (name, width), end in zip(found, ends, strict=True) if name
    )
    # pandoc takes the numbers of a bare cmidrule for text of the next row.
    return [" & ".join(spans) + " \\\\", f"\\unexpanded{{{''.join(rules)}}}"]


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(map(latex_escape, cells)) + " \\\\"


def _is_wide(table: Table) -> bool:
    """True if LaTeX may not fit it into a line of text, by its characters."""
    rows = ([column.header for column in table.columns], *table.rows)
    widths = [max(map(len, map(one_line, cells))) for cells in zip(*rows, strict=True)]
    return sum(widths) + _LATEX_GAP * len(widths) > _LATEX_LINE


def _html(table: Table) -> str:
    def text(found: str) -> str:
        return html.escape(one_line(found))

    lines = [f'<table id="T_{_label(table)}">']
    if caption := text(table.caption):
        lines.append(f"  <caption>{caption}</caption>")
    lines += ["  <thead>", "    <tr>"]
    if found := _groups(table):
        lines += [f'      <th colspan="{width}" class="group" >{text(name)}</th>' for name, width in found]
        lines += ["    </tr>", "    <tr>"]
    lines += [f'      <th class="{column.align}" >{text(column.heading)}</th>' for column in table.columns]
    lines += ["    </tr>", "  </thead>", "  <tbody>"]
    for number, row in enumerate(table.rows):
        lines.append("    <tr>")
        for place, (column, cell) in enumerate(zip(table.columns, row, strict=True)):
            lines.append(f'      <td class="data row{number} col{place} {column.align}" >{text(cell)}</td>')
        lines.append("    </tr>")
    body = "\n".join([*lines, "  </tbody>", "</table>", ""])
    notes = "".join(f"<li>{html.escape(one_line(note))}</li>\n" for note in table.footnotes)
    return body + (f'<ul class="notes">\n{notes}</ul>\n' if notes else "")


def _typst(table: Table) -> str:
    def line(texts: Iterable[str]) -> str:
        return ", ".join(map(typst_string, texts))

    aligns = "".join(f"{column.align}, " for column in table.columns)
    spans = (f"colspan: {width}, align: center, {typst_string(name)}" for name, width in _groups(table))
    groups = "".join(f"table.cell({span}), " for span in spans)
    lines = [
        "#figure(",
        f"  caption: {typst_string(table.floating_caption)},",
        "  table(",
        f"    columns: {len(table.columns)}, align: ({aligns}), stroke: none,",
        "    table.hline(),",
        f"    table.header({groups}{line(column.heading for column in table.columns)}),",
        "    table.hline(stroke: 0.5pt),",
        *(f"    {line(row)}," for row in table.rows),
        "    table.hline(),",
        "  ),",
        f") <{_label(table)}>",
    ]
    if table.footnotes:
        notes = [f"  - #{typst_string(note)}" for note in table.footnotes]
        lines += ["#[", "  #set text(size: 0.85em)", *notes, "]"]
    return "\n".join(lines) + "\n"


def typst_string(text: str) -> str:
    """A string of Typst's, which is shown letter by letter: nothing in it is markup."""
    return '"' + one_line(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _records_text(records: Sequence[dict[str, Value]]) -> str:
    return csv_text(dict.fromkeys(key for record in records for key in record), records)


def document_of_table(table: Table) -> dict[str, Any]:
    return {
        "caption": table.caption,
        "columns": [column.header for column in table.columns],
        "rows": list(table.records),
        "notes": list(table.footnotes),
    }


def page(title: str, body: str) -> str:
    """A whole HTML page round a body of HTML; needs nothing but itself."""
    style = packaged("page.css")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{html.escape(one_line(title))}</title>\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


class Section(NamedTuple):
    """The content under one heading. `key` is its name in data."""

    key: str
    heading: str
    lines: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    figures: tuple[Drawing, ...] = ()

    @property
    def without_notes(self) -> Section:
        return self._replace(tables=tuple(table.without_notes for table in self.tables))


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
            parts_data = [
                {
                    "part": each.key,
                    "asks": each.heading,
                    "notes": each.lines,
                    "tables": [document_of_table(table) for table in each.tables],
                    "figures": [f"{folder}/{drawing.name}.svg" for drawing in each.figures if folder],
                }
                for each in sections
            ]
            return json_text({"title": title, "parts": parts_data})
        case "csv":
            records: list[dict[str, Value]] = []
            for each in sections:
                records += [{"part": each.key, "note": line} for line in each.lines]
                for table in each.tables:
                    first: dict[str, Value] = {"part": each.key, "table": table.caption or table.label}
                    records += [first | table.settings | record for record in table.records]
            return _records_text(records)
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
    once = iter(noted_once((table for each in sections for table in each.tables), own=()))
    labels: list[str] = []
    found = []
    for section in sections:
        tables = []
        for table in islice(once, len(section.tables)):
            labels.append(untaken(table.label, labels))
            tables.append(msgspec.structs.replace(table, label=labels[-1]))
        found.append(section._replace(tables=tuple(tables)))
    return found
