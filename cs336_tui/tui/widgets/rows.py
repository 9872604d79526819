"""A list of rows that scrolls under a heading, with or without a cursor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import msgspec
from textual import events
from textual.binding import BindingType
from textual.message import Message

from cs336_tui.tui.keys import bind, bind_keys
from cs336_tui.tui.widgets.columns import Layout, Sort, columns_words
from cs336_tui.tui.widgets.lines import Line, Lines, Span, fit, spread, width_of, wrapped

Draw = Callable[[int, int], tuple[Sequence[Line], Sequence[Line]]]
"""Makes the heading, and the rows from one index up to, not including, another."""


class Page(msgspec.Struct, frozen=True):
    """`heading` stays in sight, `rows` scroll; `details`: the texts that Enter opens, by the row's index; `pages`: of
    columns."""

    heading: tuple[Line, ...]
    rows: tuple[Line, ...] = ()
    details: dict[int, str] = {}
    pages: Sequence[Layout] = ()


def message(text: str, width: int, role: str = "muted") -> Page:
    """A page with only a text."""
    return Page(((), *wrapped(text, width, role)))


class Rows(Lines, can_focus=True):
    """Scrolls by row. With a cursor, Enter or a click posts `Chosen`, a move `Moved`. With `follow`, the last row stays
    in sight."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("up", "step(-1)", "Up", "rows.up", first="up", show=False),
        bind("down", "step(1)", "Down", "rows.down", first="down", show=False),
        bind_keys("pageup", "page(-1)", "Page up", "rows.page_up", show=False),
        bind_keys("pagedown", "page(1)", "Page down", "rows.page_down", show=False),
        bind_keys("home", "edge(-1)", "First", "rows.first", show=False),
        bind_keys("end", "edge(1)", "Last", "rows.last", show=False),
        bind_keys("enter", "choose", "Details", "rows.choose", show=False),
    ]

    @dataclass(eq=False, repr=False)
    class _OfRow(Message):
        """Something happened to the row of this index."""

        index: int

    class Chosen(_OfRow):
        """The user chose the row under the cursor."""

    class Moved(_OfRow):
        """The cursor went to another row."""

    coming: asyncio.Event | None = None
    """Set once the rows are there, if they come from a thread; None if none were asked for."""

    def __init__(self, *, cursor: bool = True, follow: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self._count = self._heading_rows = 0
        self._draw: Draw = lambda _first, _last: ((), ())
        self._below: Sequence[Line] = ()
        self.first_in_sight = 0
        self._following = follow
        self._has_cursor = cursor
        self.cursor = 0

    def fill(self, rows: Sequence[Line], heading: Sequence[Line] = ()) -> None:
        """Show these rows; cursor and window keep their place."""
        fixed = tuple(heading)
        self.draw_from(len(rows), lambda first, last: (fixed, rows[first:last]), heading_rows=len(fixed))

    def draw_from(self, count: int, draw: Draw, *, heading_rows: int, below: Sequence[Line] = ()) -> None:
        """As `fill`, but only the rows in sight are made. `below` them these lines keep the end of the pane."""
        self._count, self._draw, self._heading_rows, self._below = count, draw, heading_rows, below
        if self._has_cursor:
            self.cursor = min(max(self.cursor, 0), max(count - 1, 0))
        self.show_again()

    def show_from(self, row: int) -> None:
        """Scroll so that this row is the first in sight, if as many follow."""
        self.first_in_sight = row
        self.show_again()

    @property
    def room(self) -> int:
        """Rows that fit under the heading."""
        return max(self.content_size.height - self._heading_rows - len(self._below), 0)

    @property
    def position_width(self) -> int:
        """Most columns of the heading that the rows in sight take."""
        return len(f"  {self._count}–{self._count} of {self._count}") if self._count > self.room else 0

    def show_again(self) -> None:
        count, room, width = self._count, self.room, self.content_size.width
        lowest = max(count - room, 0)
        cursor = min(self.cursor, max(count - 1, 0))  # it may be on a row that is still to come
        if self._has_cursor:
            self.first_in_sight = min(max(self.first_in_sight, cursor - room + 1), cursor)
        elif self._following:
            self.first_in_sight = lowest
        self.first_in_sight = min(max(self.first_in_sight, 0), lowest)
        heading, rows = self._draw(self.first_in_sight, min(self.first_in_sight + room, count))
        visible = list(rows)
        at = cursor - self.first_in_sight
        if self._has_cursor and self.has_focus and at < len(visible):
            row = fit(visible[at], width)
            visible[at] = (Span("".join(span.text for span in row) + " " * (width - width_of(row)), "cursor"),)
        gap: list[Line] = [()] * (room - len(visible)) if self._below else []
        if heading and count > room:  # its first line gives the rows in sight
            position = f"{self.first_in_sight + 1}–{min(self.first_in_sight + room, count)} of {count}"
            heading = [spread(heading[0], (Span(position, "muted"),), width), *heading[1:]]
        self.paint([*heading, *visible, *gap, *self._below])

    def _move(self, rows: int) -> None:
        if self._has_cursor:
            before = self.cursor
            self.cursor = min(max(self.cursor + rows, 0), max(self._count - 1, 0))
            if self.cursor != before:
                self.post_message(self.Moved(self.index_of(self.cursor)))
        else:
            self.first_in_sight += rows
            self._following = self.first_in_sight >= self._count - self.room
        self.show_again()

    def action_step(self, rows: int) -> None:
        self._move(rows)

    def action_page(self, pages: int) -> None:
        self._move(pages * max(self.room - 1, 1))

    def action_edge(self, direction: int) -> None:
        self._move(direction * self._count)

    def action_choose(self) -> None:
        if self._has_cursor and self._count:
            self.post_message(self.Chosen(self.index_of(self.cursor)))

    def index_of(self, row: int) -> int:
        """The index, for `Chosen` and `Moved`, of what a row shows."""
        return row

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self._move(1 if self._has_cursor else 3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self._move(-1 if self._has_cursor else -3)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or not self._has_cursor:
            return
        index = self.first_in_sight + offset.y - self._heading_rows
        in_sight = self._heading_rows <= offset.y < self._heading_rows + self.room
        if in_sight and index < self._count:
            again = index == self.cursor
            self._move(index - self.cursor)
            if again:
                self.action_choose()
        elif offset.y == self._heading_rows - 1:
            self.click_heading(offset.x)

    def click_heading(self, x: int) -> None:
        """The last row of the heading was clicked at a column of characters."""


class WideRows(Rows):
    """A table's rows. Columns that do not fit are on further pages."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("further", "columns(1)", "Columns", "table.columns", first="right", show=False, shown_as="→ ← . ,"),
        bind("further-back", "columns(-1)", "Previous columns", "table.columns_before", first="left", show=False),
    ]

    pages: Sequence[Layout] = ()
    """The pages of columns, set by who fills the rows; of several tables those of the one with the most: the keys turn
    all of them, each in a circle."""
    columns_page = 0
    """The page in sight."""

    def resort(self) -> None:
        """Paint the rows again: other columns, or another order, are wanted."""
        self.post_message(self.Resized())

    @property
    def layout_now(self) -> Layout | None:
        """The page of columns in sight."""
        return self.pages[self.columns_page % len(self.pages)] if self.pages else None

    @property
    def columns_words(self) -> str:
        """The columns that are not in sight: ``+6 columns →``, on a further page ``columns 2/2 →``."""
        return columns_words(self.pages, self.columns_page)

    def action_columns(self, by: int) -> None:
        if len(self.pages) > 1:
            self.columns_page = (self.columns_page + by) % len(self.pages)
            self.resort()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "columns":
            return len(self.pages) > 1
        return super().check_action(action, parameters)


class TableRows(WideRows):
    """A table's rows, in the order of a column."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("sort", "sort(1)", "Sort", "table.sort", shown_as="< >"),
        bind("sort-before", "sort(-1)", "Sort by the previous column", "table.sort_before", show=False),
        bind("order", "turn", "Order", "table.order", show=False),
    ]

    sort = Sort()
    largest_first: ClassVar[str] = ""
    """The column whose largest values come first when the order of unsorted rows is turned; none: it is reversed."""

    def action_sort(self, by: int) -> None:
        if (layout := self.layout_now) is not None:
            keys = ["", *(layout.columns[index].key for index in layout.kept)]
            at = keys.index(self.sort.key) if self.sort.key in keys else 0
            self.sort = Sort(keys[(at + by) % len(keys)])
            self.resort()

    def action_turn(self) -> None:
        unsorted = self.largest_first and not self.sort.key
        self.sort = Sort(self.largest_first, descending=True) if unsorted else self.sort.turned()
        self.resort()

    def click_heading(self, x: int) -> None:
        layout = self.layout_now
        if layout is not None and (column := layout.column_at(x)) is not None:
            self.sort = self.sort.turned() if column.key == self.sort.key else Sort(column.key)
            self.resort()
