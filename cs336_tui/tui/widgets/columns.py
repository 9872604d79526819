"""Tables of text: which columns fit in a width, and rows that stand in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from cs336_tui.export.tables import Column
from cs336_tui.tui.widgets.lines import Line, Span, bar, line, wrapped

_GAP = 2
_ALL_ALIKE = 20
"""Added to the rank of a column whose values are all alike: it tells least."""


class Layout(NamedTuple):
    """The columns that are shown, and how wide each is."""

    columns: tuple[Column, ...]
    widths: tuple[int, ...]
    """Of every column, also of those that are left out."""
    kept: tuple[int, ...]

    @property
    def heading(self) -> str:
        return self.row(tuple(column.header for column in self.columns))

    def row(self, texts: Sequence[str]) -> str:
        """One text a column, in the columns that are shown, and a gap behind each."""
        return "".join(self._padded(texts, index) for index in self.kept)

    def spans(self, texts: Sequence[str], roles: Mapping[int, str]) -> Line:
        """As `row`, the columns in `roles` (by their index) in styles of their own."""
        spans: list[Span] = []
        for index in self.kept:
            text, role = self._padded(texts, index), roles.get(index, "text")
            if spans and spans[-1].role == role:
                spans[-1] = Span(spans[-1].text + text, role)
            else:
                spans.append(Span(text, role))
        return tuple(spans)

    def _padded(self, texts: Sequence[str], index: int) -> str:
        text, pad = texts[index], " " * (self.widths[index] - cell_len(texts[index]))
        return (text + pad if self.columns[index].left else pad + text) + " " * _GAP


def lay_out(
    columns: tuple[Column, ...],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    least: Sequence[int] = (),
    alike: Sequence[bool | None] = (),
) -> Layout:
    """The columns that `width` holds, as wide as these rows need and at least as wide as `least`.

    `alike` says of columns whether their values are all the same where these rows do not tell, None where they do.
    """
    widths: list[int] = []
    ranks: list[int] = []
    for index, column in enumerate(columns):
        texts = [row[index] for row in rows]
        widths.append(max([cell_len(column.header), *least[index : index + 1], *map(cell_len, texts)]))
        told = alike[index] if index < len(alike) else None
        same = told if told is not None else len(texts) > 1 and len(set(texts)) == 1
        ranks.append(column.rank + _ALL_ALIKE * same)
    kept = set(range(len(columns)))
    for index in sorted(kept, key=lambda i: -ranks[i]):
        if sum(widths[i] + _GAP for i in kept) <= width:
            break
        if columns[index].rank:
            kept.remove(index)
    return Layout(columns, tuple(widths), tuple(sorted(kept)))


_WIDEST_BAR = 40


class Tail(NamedTuple):
    """The last column, as wide as the others leave it: texts, cut in the middle, or bars of shares."""

    heading: str
    texts: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()
    least: int = 0
    """Columns that it wants before others are left out for it."""

    def span(self, row: int, width: int) -> Span:
        if row < len(self.texts):
            return Span(middle(self.texts[row], width))
        share = self.shares[row] if row < len(self.shares) else 0.0
        return Span(bar(share, max(min(width, _WIDEST_BAR), 0)), "phase-1")


class Sheet(NamedTuple):
    """One table as it would be shown in a window of any width."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    tail: Tail = Tail("")
    lead: str = ""
    """Above the table: what it comes to, in words and figures."""
    notes: tuple[str, ...] = ()
    """Below it."""
    keys: tuple[str | None, ...] = ()
    """What each row stands for."""

    def markdown(self, caption: str) -> str:
        """All of it as GitHub-flavoured markdown."""
        from cs336_tui.export.markdown import bullets, escape, table
        from cs336_tui.export.tables import Align

        tails = self.tail.texts
        headers = [column.header for column in self.columns] + ([self.tail.heading] if tails else [])
        aligns: list[Align] = ["left" if column.left else "right" for column in self.columns]
        aligns += ["left"] if tails else []
        rows = [(*row, *tails[place : place + 1]) for place, row in enumerate(self.rows)]
        parts = [f"**{escape(caption)}**", *([escape(self.lead)] if self.lead else []), table(headers, aligns, rows)]
        if self.notes:
            parts.append(bullets(map(escape, self.notes)))
        return "\n\n".join(parts) + "\n"


class Laid:
    """A sheet in a window of some width: only the lines that are asked for are made."""

    def __init__(self, sheet: Sheet, width: int) -> None:
        self._sheet, self._width = sheet, width
        self._layout: Layout = lay_out(sheet.columns, sheet.rows, width - sheet.tail.least)
        self._notes = [found for note in sheet.notes for found in wrapped(note, width, "muted", "  ")]
        if self._notes and sheet.rows:
            self._notes.insert(0, ())

    def __len__(self) -> int:
        return len(self._sheet.rows) + len(self._notes)

    @property
    def heading(self) -> Line:
        return line((self._layout.heading + self._sheet.tail.heading, "muted"))

    def lines(self, first: int, last: int) -> Sequence[Line]:
        """The rows from one place to another, the latter excluded; notes follow the table."""
        count = len(self._sheet.rows)
        rows = [self._row(place) for place in range(first, min(last, count))]
        return [*rows, *self._notes[max(first - count, 0) : max(last - count, 0)]]

    def _row(self, place: int) -> Line:
        text = self._layout.row(self._sheet.rows[place])
        return Span(text), self._sheet.tail.span(place, max(self._width - cell_len(text), 0))


def middle(text: str, width: int) -> str:
    """The text, cut to `width` columns in its middle: names of kernels differ at both ends."""
    if cell_len(text) <= width:
        return text
    if width < 3:
        return set_cell_size(text, max(width, 0))
    head = width // 2
    return f"{text[:head]}…{text[len(text) - (width - head - 1) :]}"
