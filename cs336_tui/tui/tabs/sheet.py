"""A table with more rows than the screen: what stands above it, its rows, and what takes the rest of each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from cs336_tui.tui.charts.blocks import bar
from cs336_tui.tui.tabs.page import wrapped
from cs336_tui.tui.widgets.columns import Column, Layout, lay_out
from cs336_tui.tui.widgets.lines import Line, Span, line

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
        from cs336_tui.export.markdown import Align, bullets, escape, table

        tails = self.tail.texts
        headers = [column.name for column in self.columns] + ([self.tail.heading] if tails else [])
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
