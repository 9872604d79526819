"""GitHub-flavoured markdown from plain values: tables, escapes and code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from cs336_tui.export.tables import Align
from cs336_tui.export.texts import one_line, plain

_ARRAY = r"\[(?:[\d.]+(?:, [\d.]+)*)?\](?![(\[:])"
_SPECIAL = re.compile(rf"({_ARRAY})|([\\`*\[\]<>|~&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
"""Characters that markdown could take as markup are the second group; an underscore in a word and an array are not."""
_OPENING = re.compile(r"^(\d+(?=[.)])|)([-+#=.)])")


def escape(text: str) -> str:
    """One line of text that renders as itself inside a line or a table cell."""
    return _SPECIAL.sub(lambda found: found[1] or f"\\{found[2]}", one_line(text))


def code_block(text: str, language: str = "") -> str:
    """A fenced block; the fence is longer than any run of backticks inside."""
    body = plain(text).strip("\n")
    longest = max(map(len, re.findall("`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{body}\n{fence}"


def bullets(lines: Iterable[str]) -> str:
    """A list; no line can begin a heading or a list of its own."""
    return "\n".join("- " + _OPENING.sub(r"\1\\\2", line) for line in lines)


def table(headers: Sequence[str], aligns: Sequence[Align], rows: Sequence[Sequence[str]]) -> str:
    """A table whose source lines up too. Cells are plain text and are escaped here."""
    cells = [[escape(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    rule = ["-" * (width - 1) + (":" if align == "right" else "-") for width, align in zip(widths, aligns, strict=True)]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if align == "right" else cell.ljust(width)
            for cell, width, align in zip(row, widths, aligns, strict=True)
        )
        return f"| {' | '.join(padded)} |"

    return "\n".join(map(line, [cells[0], rule, *cells[1:]]))
