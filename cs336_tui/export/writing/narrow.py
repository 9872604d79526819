"""Tables that fit a page: columns that say the same in every row become a note, a single row stands upright, columns of
a rank are left out, and what is still too wide is cut into several tables under the same names. `paged` cuts what is
too long, as pandoc's typst breaks no table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from textwrap import wrap

import msgspec

from cs336_tui.export.writing.tables import Column, Table, fitted
from cs336_tui.export.writing.texts import markdown_escape, one_line

PAGE = 90
"""Characters of a line of a page, the gaps between columns included."""
_PANDOC_LINE = 73
"""Characters of a line beyond which pandoc wraps a table's cells."""
_GAP = 3
_FEWEST, _MOST = 13, 30
"""Characters that a text which may wrap is given at least, and at most where others are short of room."""

_ROW, _LINE, _HEIGHT = 5.1, 14.3, 530.0
"""Points of a row, of each line in it, and of the rows of a page, with pandoc's typst at its 11 points."""
_BREAK = "\u200b"
"""A zero-width space: a line may end here."""
_NAMES = 3
"""Columns at most that name a row."""


def widths(table: Table) -> list[int]:
    """Characters that each column needs: a number its whole text, a text its longest word; headings may wrap."""
    found = []
    for place, column in enumerate(table.columns):
        cells = [one_line(row[place]) for row in table.rows]
        whole = max(map(len, cells), default=0)
        need = min(whole, max(_FEWEST, min(_longest_word(cells), _MOST))) if column.left else whole
        found.append(max(need, _longest_word([column.header]) + 1, 3))
    return found


def shares(table: Table) -> list[int]:
    """Characters that each column gets of a page: what it needs and its gaps; texts divide what is left by what they
    would take."""
    needed = widths(table)
    wishes = [
        max(0, max((len(one_line(row[place])) for row in table.rows), default=0) - need) if column.left else 0
        for place, (column, need) in enumerate(zip(table.columns, needed, strict=True))
    ]
    spare = max(PAGE - sum(needed) - _GAP * len(needed), 0)
    more = [min(wish, spare * wish // sum(wishes)) if wish else 0 for wish in wishes]
    return [need + extra + _GAP for need, extra in zip(needed, more, strict=True)]


def narrow(table: Table) -> Iterator[Table]:
    """The table, or what stands for it where a page is too narrow; the notes are below the last one."""
    if fits(table):
        yield table
        return
    if len(table.rows) == 1:  # it stands upright, a row for each column
        columns = (Column("what", "", left=True), Column("value", "", left=True))
        named = zip((column.header for column in table.columns), table.rows[0], strict=True)
        yield msgspec.structs.replace(table, columns=columns, rows=tuple(named))
        return
    table, left_out = _without_ranked(_said_once(table))
    if left_out:
        note = f"left out for want of room: {', '.join(left_out)}; cs336-tui export has all"
        table = msgspec.structs.replace(table, footnotes=(*table.footnotes, note))
    yield from _cut(table)


def slim(table: Table) -> Table:
    """The table as one of a page's width, as far as its columns have ranks: what all rows say alike becomes a note,
    then the highest rank is left out first. The notes name what is not shown."""
    if fits(table):
        return table
    table, gone = _without_ranked(_said_once(table))
    note = f"columns left out to fit the page: {', '.join(reversed(gone))}; CSV and JSON have all, --columns selects"
    return msgspec.structs.replace(table, footnotes=(*table.footnotes, note)) if gone else table


def _without_ranked(table: Table) -> tuple[Table, list[str]]:
    """The table without the columns of a rank that a page has no room for, of one rank the first before the last, and
    their headings in this order."""
    columns = table.columns
    ranks = [column.rank * len(columns) - place if column.rank else None for place, column in enumerate(columns)]
    kept = fitted(widths(table), ranks, PAGE, gap=_GAP)
    gone = [column for place, column in enumerate(columns) if place not in kept]
    return table.at(kept), [column.header for column in sorted(gone, key=lambda column: -column.rank)]


def fits(table: Table) -> bool:
    needed = widths(table)
    return sum(needed) + _GAP * len(needed) <= PAGE


def paged(table: Table) -> Iterator[Table]:
    """The table in pieces of about one length, none longer than a page, by the lines that its cells take there."""
    room = [most - _GAP for most in shares(table)]

    def lines(text: str, width: int) -> int:
        return len(wrap(breakable(text).replace(_BREAK, " "), width)) or 1

    heights = [_ROW + _LINE * max(map(lines, row, room)) for row in table.rows]
    pieces = _filled(heights, _HEIGHT)
    if len(pieces) > 1:
        pieces = _filled(heights, min(_HEIGHT, sum(heights) / len(pieces) + max(heights)))
    for number, (first, last) in enumerate(pieces, 1):
        found = msgspec.structs.replace(table, rows=table.rows[first:last])
        if len(pieces) > 1:
            here = f"rows {first + 1} to {last} of {len(table.rows)}"
            caption = f"{table.caption}, {here}" if table.caption else here.capitalize()
            notes = table.footnotes if number == len(pieces) else ()
            found = msgspec.structs.replace(found, caption=caption, footnotes=notes)
        yield found


def _filled(heights: Sequence[float], most: float) -> list[tuple[int, int]]:
    """Begin and end of runs of rows, as many in each as fit."""
    pieces, begin, height = [], 0, 0.0
    for number, each in enumerate(heights):
        if height + each > most and number > begin:
            pieces.append((begin, number))
            begin, height = number, 0.0
        height += each
    return [*pieces, (begin, len(heights))]


def markdown_rows(table: Table) -> str:
    """The table in markdown whose source lines up, without caption and notes. Where a line is long, pandoc divides the
    page by the dashes of the rule: numbers then get the room that they need, texts what is left."""
    headers, lefts = [column.header for column in table.columns], [column.left for column in table.columns]
    cells = [[markdown_escape(breakable(cell)) for cell in row] for row in (headers, *table.rows)]
    text = piped(cells, lefts, ":")
    is_long = len(text.partition("\n")[0]) > _PANDOC_LINE
    return piped(cells, lefts, ":", shares(table)) if is_long else text


def piped(cells: Sequence[Sequence[str]], lefts: Sequence[bool], mark: str = "-", dashes: Sequence[int] = ()) -> str:
    """A heading and rows as a table in markdown whose source lines up. The rule has so many `dashes` in each column, by
    default as many as it is wide; in one that is aligned to the left the first is the `mark`."""
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    dashes = dashes or widths
    widths = list(map(max, widths, dashes))
    rule = [
        mark + "-" * (most - 1) if left else "-" * (most - 1) + ":" for most, left in zip(dashes, lefts, strict=True)
    ]

    def line(row: Sequence[str]) -> str:
        padded = (f"{cell:{'<' if left else '>'}{width}}" for cell, left, width in zip(row, lefts, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    return "\n".join(map(line, (cells[0], rule, *cells[1:])))


def breakable(text: str) -> str:
    """The text with zero-width spaces in words that are longer than a column, after what parts a name."""
    return re.sub(
        rf"[^\s{_BREAK}]{{{_MOST},}}", lambda word: re.sub(r"(?<=[_.:/,<>()=-])(?=\w)", _BREAK, word[0]), text
    )


def without_breaks(text: str) -> str:
    """The text without them: a browser breaks long words by itself."""
    return text.replace(_BREAK, "")


def _said_once(table: Table) -> Table:
    """The values that all rows share, as a note."""
    alike = table.alike
    said = ", ".join(f"{table.columns[place].header} {text}" for place in alike if (text := table.rows[0][place]))
    table = table.at(place for place in range(len(table.columns)) if place not in alike)
    return msgspec.structs.replace(table, footnotes=(f"all rows: {said}", *table.footnotes)) if said else table


def _cut(table: Table) -> Iterator[Table]:
    """As many columns a table as fit, each after those that name the rows."""
    places = range(len(table.columns))
    names = [0]
    while len({tuple(row[place] for place in names) for row in table.rows}) < len(table.rows) and len(names) < _NAMES:
        if not (len(names) < len(places) and table.columns[len(names)].left):
            break
        names.append(len(names))
    pieces: list[list[int]] = []
    for place in (place for place in places if place not in names):
        if pieces and fits(table.at([*names, *pieces[-1], place])):
            pieces[-1].append(place)
        else:
            pieces.append([place])
    for number, piece in enumerate(pieces or [[]], 1):
        found = table.at([*names, *piece])
        if number > 1 and table.caption:
            found = msgspec.structs.replace(found, caption=f"{table.caption}, continued")
        yield found if number >= len(pieces) else msgspec.structs.replace(found, footnotes=())


def _longest_word(texts: Sequence[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=0)
