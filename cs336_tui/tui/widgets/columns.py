"""Tables on the screen: which columns fit in a width, and rows laid out in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar, runtime_checkable

import msgspec
from rich.cells import cell_len, set_cell_size

from cs336_tui.export.writing.tables import Column, Table, fitted
from cs336_tui.stats.quantities import NONE, Scale, Units, counted, scale
from cs336_tui.tui.format import plain
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.widgets.lines import Line, Span, bar, line, paragraphs, runs

T = TypeVar("T")
_GAP = 2
_ALL_ALIKE = 20
"""Added to the rank of a column whose values are all alike, so that it is dropped first."""
_LEAST_BAR, _WIDEST_BAR = 5, 40
_BARS_FROM = 100
"""Width of a window from which rows that end with a name have bars, too."""
_PERCENT = " %"
_AS_EXPORTED: Mapping[str, Any] = {}


class Layout(NamedTuple):
    """The columns that fit, and the width of each."""

    columns: tuple[Column, ...]
    widths: tuple[int, ...]
    """Of every column, also of those that do not fit."""
    kept: tuple[int, ...]

    @property
    def heading(self) -> str:
        return self.row(tuple(column.header for column in self.columns))

    def heading_of(self, sort: Sort) -> str:
        """The heading; the sign of the order stands behind the sorted column's name, in its gap if need be."""
        names = [self._padded(self.columns[index].header, index) for index in self.kept]
        for place, index in enumerate(self.kept):
            if self.columns[index].key == sort.key:
                name = names[place].rstrip()
                names[place] = name + sort.mark + names[place][len(name) + 1 :]
        return "".join(names)

    def row(self, texts: Sequence[str]) -> str:
        """The texts in the columns that fit, each padded, with a gap behind it."""
        return "".join(self._padded(texts[index], index) for index in self.kept)

    def spans(self, texts: Sequence[str], roles: Mapping[int, str]) -> Line:
        """As `row`; the columns in `roles`, by index, in styles of their own."""
        padded = [self._padded(texts[index], index) for index in self.kept]
        return tuple(runs(padded, [roles.get(index, "text") for index in self.kept]))

    def column_at(self, x: int) -> Column | None:
        """The column at a place of the heading."""
        ends = accumulate(self.widths[index] + _GAP for index in self.kept)
        return next((self.columns[index] for index, end in zip(self.kept, ends, strict=True) if x < end), None)

    def pages(self, width: int, told: Collection[int] = (), *, named: int = 1) -> tuple[Layout, ...]:
        """This layout, then as many as it takes to show each column that does not fit, but for those `told` elsewhere:
        each beside the first columns, which say what a row is of, as far as their texts are known and take half; so
        many as are `named` stand there in any case."""
        left = [index for index in range(len(self.columns)) if index not in self.kept and index not in told]
        pages = [self]
        while left:
            page = [*self._named(width, left[0], named), left.pop(0)]
            while left and self._taken([*page, left[0]]) <= width:
                page.append(left.pop(0))
            pages.append(self._replace(kept=tuple(page)))
        return tuple(pages)

    def _named(self, width: int, beside: int, least: int) -> list[int]:
        """The first columns in sight without those whose texts are still to come: at most half, with room `beside`, but
        no fewer than the `least`."""
        named = [index for index in self.kept if not self.columns[index].room]
        while len(named) > least and (self._taken(named) > width // 2 or self._taken([*named, beside]) > width):
            named.pop()
        return named

    def _taken(self, indices: Iterable[int]) -> int:
        return sum(self.widths[index] + _GAP for index in indices)

    def _padded(self, text: str, index: int) -> str:
        """The text in its column; one column more than plausible it may take of the gap, a longer one is cut."""
        width = self.widths[index]
        taken = cell_len(text)
        if taken > width + _GAP - 1:
            text, taken = ellipsis(text, width), width
        if taken > width:
            return text + " " * (width + _GAP - taken)
        pad = " " * (width - taken)
        return (text + pad if self.columns[index].left else pad + text) + " " * _GAP


class Sort(NamedTuple):
    """The column that rows are sorted by; without a key they are in the order in which they were made."""

    key: str = ""
    descending: bool = False

    @property
    def mark(self) -> str:
        return "▾" if self.descending else "▴"

    def turned(self) -> Sort:
        return self._replace(descending=not self.descending)


UNSORTED = Sort()


def ellipsis(text: str, width: int) -> str:
    """The text, cut to `width` columns with an ellipsis."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…"[: max(width, 0)]


def columns_words(pages: Sequence[Layout], page: int = 0, binding: str = "table.columns") -> str:
    """The columns that are not in sight, and the key of the `binding` that shows them: ``+6 columns →``, on a further
    page ``columns 2/3 →``; empty if all are."""
    if len(pages) < 2:
        return ""
    if page:
        return f"columns {page + 1}/{len(pages)} {key_name(binding)}"
    hidden = len({index for each in pages for index in each.kept} - {*pages[0].kept})
    return f"{hidden_words(hidden)} {key_name(binding)}"


def hidden_words(hidden: int) -> str:
    """``+6 columns``; empty for none."""
    return f"+{counted(hidden, 'column')}" if hidden else ""


def words_room() -> int:
    """Room for `columns_words`."""
    return len(f"+99 columns {key_name('table.columns')}")


def lay_out(
    columns: tuple[Column, ...],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    least: Sequence[int] = (),
    alike: Sequence[bool | None] = (),
) -> Layout:
    """The columns that fit in `width`; of those of one rank the last is dropped first. A column with `room` is as wide
    as that, or as its heading; another as wide as these rows need, and at least as wide as `least`. `alike`: for each
    column whether all its values are the same, so that it is dropped first; None, or left out: these rows show it of a
    column without `room`."""
    widths: list[int] = []
    ranks: list[int | None] = []
    for index, column in enumerate(columns):
        texts = [] if column.room else [row[index] for row in rows]
        widths.append(max([cell_len(column.header), column.room, *least[index : index + 1], *map(cell_len, texts)]))
        told = alike[index] if index < len(alike) else None
        same = told if told is not None else len(texts) > 1 and len(set(texts)) == 1
        ranks.append(column.rank + _ALL_ALIKE * same if column.rank else None)
    return Layout(columns, tuple(widths), tuple(fitted(widths, ranks, width, gap=_GAP)))


def shown_table(items: Iterable[T], columns: Iterable[Column[T]], footnotes: Iterable[str] = ()) -> Table:
    """A table for the screen alone: it has no records."""
    return Table.of(items, columns, record=lambda _: {}, footnotes=footnotes)


def on_screen(
    table: Table,
    ranks: Mapping[str, int] = _AS_EXPORTED,
    *,
    titles: Mapping[str, str] = _AS_EXPORTED,
    scales: Mapping[str, Scale] = _AS_EXPORTED,
    shows: Mapping[str, Callable[[str], str]] = _AS_EXPORTED,
    last: str = "",
) -> Table:
    """An exported table as a screen has it: with short headings, a unit or a sign that a whole column has in its
    heading, figures in units that suit them. By key: `ranks`, `titles` and `scales` replace the table's own, `shows`
    makes the text on the screen from the table's. `last`: the key of the column that takes the rest of a row."""
    sizes: dict[Units, list[float]] = {}
    for column in table.columns:
        if column.units and column.key not in scales:
            sizes.setdefault(column.units, []).extend(filter(_is_number, table.raw[column.key]))
    common = {units: scale(values, units) for units, values in sizes.items()}
    drawn: list[tuple[Column, Sequence[str]]] = []
    written = list(map(list, zip(*table.rows, strict=True))) or [list[str]() for _ in table.columns]
    for column, texts in zip(table.columns, written, strict=True):
        key, title = column.key, column.header if column.short is None else column.short
        if column.left:
            texts = list(map(plain, texts))
        if show := shows.get(key):
            texts = list(map(show, texts))
        if column.units:
            chosen = scales[key] if key in scales else common[column.units]
            raw = zip(table.raw[key], texts, strict=True)
            texts = [chosen.text(value) if _is_number(value) else text for value, text in raw]
            title = f"{title} {chosen.unit}".lstrip()
        elif not column.left and {text.endswith(_PERCENT) for text in texts if text != NONE} == {True}:
            texts = [text.removesuffix(_PERCENT) for text in texts]
            title += _PERCENT
        rank = ranks.get(key, column.rank)
        drawn.append((column._replace(title=titles.get(key, title), rank=rank, group=""), texts))
    drawn.sort(key=lambda each: each[0].key == last)
    rows = zip(*(texts for _, texts in drawn), strict=True)
    return msgspec.structs.replace(table, columns=tuple(column for column, _ in drawn), rows=tuple(rows))


def without_shared(table: Table, keys: Collection[str]) -> tuple[Table, str]:
    """The table without those of these columns in which all rows have the same; and what they have, in words: ``size
    small, precision fp32``."""
    found = {column: set(table.texts(column.key)) for column in table.columns if column.key in keys}
    shared = {column: texts.pop() for column, texts in found.items() if len(texts) == 1}
    said = ", ".join(f"{column.header} {text}" for column, text in shared.items())
    return table.without(*(column.key for column in shared)), said


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float)


class Copied(msgspec.Struct, frozen=True):
    """The table that `c` copies of a tab: its name, and what makes it as markdown, which a thread may call. Raises
    `UserError` where there is nothing."""

    name: str
    make: Callable[[], str]
    table: Table | None = None
    """Its table, if some of its columns can be copied alone."""


@runtime_checkable
class Copies(Protocol):
    """A pane with a table of its own."""

    def copied(self) -> Copied | None:
        """The table to copy now, if there is one."""


def copied_table(name: str, table: Table) -> Copied:
    """A table of the screen to be copied, with all its columns."""

    def make() -> str:
        from cs336_tui.export.writing.formats import render

        return render(table, "markdown")

    return Copied(name, make, table)


class TableLines(NamedTuple):
    """A table in a window of some width."""

    heading: Sequence[Line]
    rows: Sequence[Line]
    pages: Sequence[Layout] = ()
    """The pages of its columns, where a key turns them."""

    @property
    def lines(self) -> tuple[Line, ...]:
        return (*self.heading, *self.rows)


def table_lines(
    table: Table,
    width: int,
    marks: Sequence[Span] = (),
    *,
    roles: Sequence[str] = (),
    alike: Sequence[bool | None] = (),
    page: int | None = None,
    binding: str = "table.columns",
    named: int = 1,
) -> TableLines:
    """The heading of a table and its rows, each in its role and with its mark at the end; `alike` as for `lay_out`,
    `named` as for `Layout.pages`. The heading says how many columns do not fit, if there is room for that. `page`: the
    page of columns in sight, counted in a circle, where the key of the `binding` turns them; the heading then has a
    line for the others where it has no room."""
    room = width - max((cell_len(mark.text) for mark in marks), default=0)
    layout = lay_out(table.columns, table.rows, room, alike=alike)
    words = hidden_words(len(table.columns) - len(layout.kept))
    pages: Sequence[Layout] = ()
    if page is not None:
        pages = layout.pages(room, named=named)
        page %= len(pages)
        layout, words = pages[page], columns_words(pages, page, binding)
    ends: list[Line] = [(mark,) for mark in marks] or [()] * len(table.rows)
    styles = roles or ["text"] * len(table.rows)
    rows = [(Span(layout.row(row), role), *end) for row, role, end in zip(table.rows, styles, ends, strict=True)]
    heading = heading_lines(layout.heading, words, width)
    return TableLines(heading[-1:] if page is None else heading, rows, pages)


def heading_lines(names: str, words: str, width: int) -> list[Line]:
    """The columns' names, with `columns_words` behind them; without room for both the words above."""
    together = cell_len(names) + cell_len(words) <= width
    lines = [line((names, "muted"), *([(words, "strong")] if words and together else []))]
    return lines if together or not words else [line((words, "strong")), *lines]


class Sheet(msgspec.Struct, frozen=True):
    """A table with what stands above it, for a window of any width."""

    table: Table
    lead: str = ""
    """The result in words, above the table."""
    keys: tuple[str | None, ...] = ()
    """The thing that each row stands for."""
    rest: int = 0
    """The least width of what takes the rest of each row: the last column, or the bars. 0: nothing does."""
    shares: tuple[float, ...] = ()
    """A bar for each row, from 0 to 1."""
    bar: int = 0
    """Columns of each bar, before the last column in a wide window. 0: bars take the rest of the rows."""
    roles: tuple[str, ...] = ()
    """The style of each bar; else they are alike."""
    sort: Sort = UNSORTED
    """The column that the rows are sorted by."""

    def markdown(self, caption: str) -> str:
        """All of it as GitHub-flavoured markdown."""
        from cs336_tui.export.writing.formats import render
        from cs336_tui.export.writing.texts import markdown_escape

        table = render(msgspec.structs.replace(self.table, caption=""), "markdown")
        lead = [markdown_escape(self.lead)] if self.lead else []
        return "\n\n".join([f"**{markdown_escape(caption)}**", *lead, table])


class Laid:
    """A sheet in a window of some width: only the lines that are asked for are made."""

    def __init__(self, sheet: Sheet, width: int, page: int = 0) -> None:
        self.sheet, self._width = sheet, width
        table = sheet.table
        self._bar = sheet.bar if width >= _BARS_FROM else 0
        self._cuts_last = bool(sheet.rest) and (not sheet.shares or bool(sheet.bar))
        columns = table.columns[:-1] if self._cuts_last else table.columns
        room = width - sheet.rest - self._bar
        self.pages = lay_out(columns, table.rows, room).pages(room)
        self.page = page % len(self.pages)
        self._layout = self.pages[self.page]
        self._notes = paragraphs(table.footnotes, width, "muted", "  ")
        if self._notes and table.rows:
            self._notes.insert(0, ())

    def __len__(self) -> int:
        return len(self.sheet.table.rows) + len(self._notes)

    def at(self, width: int, page: int = 0) -> Laid:
        """The same in a window of this width, with the columns of a page."""
        return self if (width, page % len(self.pages)) == (self._width, self.page) else Laid(self.sheet, width, page)

    @property
    def above(self) -> list[Line]:
        """`columns_words`, if the heading has no room for them."""
        return self._headings[:-1]

    @property
    def heading(self) -> Line:
        return self._headings[-1]

    @property
    def _headings(self) -> list[Line]:
        """The columns' names, with the sign of the order behind the one that rows are sorted by."""
        last = self.sheet.table.columns[-1] if self._cuts_last else None
        sort = self.sheet.sort
        name = " " * self._bar + f"{last.header}{sort.mark * (sort.key == last.key)}  " if last else ""
        return heading_lines(self._layout.heading_of(sort) + name, columns_words(self.pages, self.page), self._width)

    def lines(self, first: int, last: int) -> Sequence[Line]:
        """The rows from `first` up to, not including, `last`; notes follow the table."""
        count = len(self.sheet.table.rows)
        rows = [self._row(place) for place in range(first, min(last, count))]
        return [*rows, *self._notes[max(first - count, 0) : max(last - count, 0)]]

    def _row(self, place: int) -> Line:
        row = self.sheet.table.rows[place]
        text = self._layout.row(row)
        shares, roles = self.sheet.shares, self.sheet.roles
        width, role = max(self._width - cell_len(text) - self._bar, 0), roles[place] if roles else "measured"
        room = self._bar - 1 if self._cuts_last else min(width, _WIDEST_BAR)
        bars = [Span(bar(shares[place], room), role)] if shares and room >= _LEAST_BAR else []
        name = [Span(" " * bool(bars) + middle(row[-1], width))] if self._cuts_last else []
        return Span(text), *bars, *name


def middle(text: str, width: int) -> str:
    """The text, cut in its middle to `width` columns: names of kernels differ at both ends."""
    if cell_len(text) <= width:
        return text
    if width < 3:
        return set_cell_size(text, max(width, 0))
    head = width // 2
    return f"{text[:head]}…{text[len(text) - (width - head - 1) :]}"
