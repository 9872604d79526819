"""The Results tab: a row per cell, filled as it runs. The columns follow from the width and from what the cells are,
never from what they come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import BindingType

from cs336_tui.analysis.fields import FIELDS
from cs336_tui.events.events import CellFinished
from cs336_tui.export.writing.tables import Column
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.tui.format import told_variants
from cs336_tui.tui.judging import Assessment, Judging
from cs336_tui.tui.keys import bind, key_name
from cs336_tui.tui.requests import requests_of
from cs336_tui.tui.tabs import status
from cs336_tui.tui.tabs.results_columns import (
    ASKED,
    STD,
    TELLING,
    VERDICT,
    ShownRow,
    named_columns,
    result_columns,
    shortened,
    sort_value,
)
from cs336_tui.tui.tabs.sessions import Source
from cs336_tui.tui.tabs.status import verdict
from cs336_tui.tui.widgets.columns import ellipsis, lay_out, words_room
from cs336_tui.tui.widgets.lines import Line, Span, joined, line
from cs336_tui.tui.widgets.rows import TableRows

_STATUS = "status"
_WIDEST_STATUS = 11
_LEAST_VERDICT = 10
"""Columns of a verdict in the place of the status."""
_LEAST_ROWS = 5
"""Rows of the table that a chart leaves."""
_CHART_ROWS = (9, 16)
"""Fewest and most rows of a chart."""
_ALL = "all cells: "
_LATER = ("verdict", "flops", "peak", "activations", "energy", "tokens_per_joule")
"""Columns whose values come after a cell's end: with verdicts, with a report or a prediction."""


class ResultsPane(TableRows):
    """The table. Without focus the cursor is on the cell in Live."""

    BINDINGS: ClassVar[list[BindingType]] = [bind("mark", "mark", "Mark to compare", "results.mark")]
    largest_first = "mean"

    chosen: Sequence[str] = ()
    """The columns that a person wants, by their names in exports; none: those that fit."""
    marked: tuple[tuple[Source, CellState], ...] = ()
    """Up to two cells to compare, each with its session."""
    _state: SessionState | None = None
    _title = ""
    _cells: Sequence[CellState] = ()
    _places: Mapping[int, int] = {}
    _order: Sequence[int] = ()
    """The place in the session of each row's cell."""
    _ordered_by: tuple[object, ...] = ()
    _done: dict[int, tuple[CellFinished | None, Assessment | None, tuple[str, ...]]]
    _judging: Judging | None = None
    _columns: tuple[Column[ShownRow], ...] = ()
    _alike: Sequence[bool] = ()
    """For each column whether all cells, if there are several, were asked for the same."""
    _in_common: Sequence[str] = ()
    """The variants that all cells have, and other facts about all of them."""
    _named: Sequence[Sequence[str]] = ()
    """The texts of every cell, empty for what it comes to."""
    _laid_out_for = -1
    _is_short = False
    """True if passes have their short names, as there is no room for what tells cells apart, verdict and std."""
    _is_merged = False
    """True if verdicts stand in the place of the status, as there is no room for both."""
    _above = ""
    _ddof = 1
    _of_messages = False
    """True if every cell is a collective."""

    def show(
        self, state: SessionState, in_sight: CellState | None, judging: Judging | None = None, title: str = ""
    ) -> None:
        """Paint; without focus the cursor is on the cell `in_sight`. `judging` gives verdicts of the cells in sight;
        `title`: the session's."""
        self._judging, self._title = judging, title
        self._take(state)
        if not self._cells:
            self.pages = ()
            self.fill((), [(), line(("No results yet. Each cell of a run adds a row here.", "muted"))])
            return
        self._lay_out()
        self._put_in_order()
        if in_sight is not None and not self.has_focus:
            self.go_to(self._places.get(in_sight.cell, self.index_of(self.cursor)))
        heading_rows = 1 + len(self._lines_above())
        below = self._chart(state, heading_rows) if self._of_messages else ()
        self.draw_from(len(self._cells), self._rows_in_sight, heading_rows=heading_rows, below=below)

    def choose(self, columns: Sequence[str]) -> None:
        """Show these columns, by their names in exports; none: those that fit."""
        self.chosen, self._places = columns, {}
        self.resort()

    def go_to(self, place: int) -> None:
        """Put the cursor on the cell of this place in the session."""
        self.cursor = self._order.index(place) if place in self._order else place

    def index_of(self, row: int) -> int:
        return self._order[row] if row < len(self._order) else row

    def resort(self) -> None:
        if self._state is not None:
            self.show(self._state, None, self._judging, self._title)

    def _chart(self, state: SessionState, heading_rows: int) -> Sequence[Line]:
        """Bandwidth over size of the operation under the cursor, where the table leaves room for it."""
        fewest, most = _CHART_ROWS
        width, height = self.content_size
        rows = height - heading_rows - max(min(len(self._cells), height // 3), _LEAST_ROWS) - 1
        if rows < fewest:
            return ()
        from cs336_tui.tui.charts.roofline import session_bandwidths

        spec = self._cells[self.index_of(min(self.cursor, len(self._cells) - 1))].spec
        drawn = session_bandwidths(state, status.settled_of(state), spec, width, min(rows, most))
        return [(), *drawn] if drawn else ()

    def _take(self, state: SessionState) -> None:
        """Take in the session; the columns follow from what its cells are."""
        if state is not self._state or state.ddof != self._ddof:
            self._state, self._ddof = state, state.ddof
            self._done, self._places, self._order, self._ordered_by = {}, {}, (), ()
        self._cells = tuple(state.cells.values())
        if len(self._places) == len(self._cells):
            return
        self._places = {cell.cell: place for place, cell in enumerate(self._cells)}
        variants = told_variants(cell.spec for cell in self._cells)
        self._of_messages = bool(self._cells) and all(cell.spec.is_collective for cell in self._cells)
        self._columns = result_columns(self._cells, variants)
        chosen = named_columns(self.chosen, self._columns)
        self._columns = chosen or self._columns
        alike = {FIELDS[key].title: next(iter(shown)) for key, shown in variants.items() if len(shown) == 1}
        self._in_common = [f"{title} {value}" for title, value in alike.items()]
        items = [ShownRow(state, cell, None) for cell in self._cells]
        self._named = [["" if column.room else column.cell(item) for column in self._columns] for item in items]
        values = [
            {column.cell(item) for item in items} if column.key in (*ASKED, *variants) else set()
            for column in self._columns
        ]
        self._alike = [len(items) > 1 and len(told) == 1 and not chosen for told in values]
        self._columns = tuple(
            column._replace(rank=min(column.rank, TELLING)) if len(told) > 1 and not chosen else column
            for column, told in zip(self._columns, values, strict=True)
        )
        self._laid_out_for, self._done = -1, {}

    def _lay_out(self) -> None:
        """The columns that fit, and what is said of all cells instead of the columns in which they are alike."""
        width = self.content_size.width
        if width == self._laid_out_for:
            return
        self._laid_out_for = width
        for_columns = width - _WIDEST_STATUS
        layout = lay_out(self._columns, self._named, for_columns, alike=self._alike)
        telling = {index for index, column in enumerate(self._columns) if column.rank <= STD}
        self._is_short = not telling <= {*layout.kept}
        if self._is_short:
            short = list(map(shortened, self._named))
            layout = lay_out(self._columns, short, for_columns, alike=self._alike)
        self._is_merged = False
        if self._is_short and not telling <= {*layout.kept} and not self.chosen:
            last = {STD: TELLING, VERDICT: len(self._columns) + STD}
            columns = tuple(column._replace(rank=last.get(column.rank, column.rank)) for column in self._columns)
            merged = lay_out(columns, short, width - _LEAST_VERDICT, alike=self._alike)
            self._is_merged = all(columns[at].rank > STD or at in merged.kept for at in telling)
            layout, for_columns = (merged, width - _LEAST_VERDICT) if self._is_merged else (layout, for_columns)
        count = len(self._cells)
        room = width - words_room() - len(f" ·   {count}–{count} of {count}")
        told: set[int] = set()
        above = ", ".join(self._in_common)
        for index, column in enumerate(self._columns):
            if self._alike[index] and index not in layout.kept:
                title = FIELDS[column.key].title if column.key in FIELDS else column.heading
                longer = ", ".join(filter(None, [above, f"{title} {self._named[0][index]}"]))
                if cell_len(_ALL + longer) <= room:
                    above = longer
                    told.add(index)
        above = ellipsis(_ALL + above, width) if above else ""
        remarks = ("algbw, busbw in GB/s", f"{key_name('app.open_roofline')}: busbw over size")
        for remark in remarks * self._of_messages:
            longer = " · ".join(filter(None, [above, remark]))
            above = longer if cell_len(longer) <= room else above
        self._above, self.pages = above, layout.pages(for_columns, told)
        self.columns_page = min(self.columns_page, len(self.pages) - 1)

    def _put_in_order(self) -> None:
        """Sort the rows; the cursor stays on its cell, and cells of which the value is not known come last."""
        assert self._state is not None
        state, known = self._state, self._judging.known if self._judging else None
        column = next((column for column in self._columns if column.key == self.sort.key), None)
        of = (self.sort, column is None, len(self._cells), column and status.settled_of(state))
        if of == self._ordered_by and self.sort.key not in _LATER:
            return
        on, self._ordered_by = self.index_of(self.cursor), of
        order: Sequence[int] = range(len(self._cells))
        if column is None:
            order = order[::-1] if self.sort.descending else order
        else:
            items = (ShownRow(state, cell, known(cell) if known else None) for cell in self._cells)
            values = [sort_value(column, item) for item in items]
            told = [place for place in order if values[place] is not None]
            told.sort(key=values.__getitem__, reverse=self.sort.descending)
            order = [*told, *(place for place in order if values[place] is None)]
        self._order = order
        self.go_to(on)

    def _rows_in_sight(self, first: int, last: int) -> tuple[list[Line], list[Line]]:
        judging, state, layout = self._judging, self._state, self.layout_now
        assert layout is not None
        cells = [self._cells[place] for place in self._order[first:last]]
        at = next((place for place, column in enumerate(self._columns) if column.key == "verdict"), -1)
        signs = {id(cell): (Span(f" ◆ {name}", "title"),) for name, (_, cell) in zip("AB", self.marked, strict=False)}
        rows: list[Line] = []
        for cell in cells:
            known = judging.of(state, cell) if judging and state else None
            said, end = verdict(cell, known), status.status(cell, known)
            if self._is_merged and known and known.judgement:
                end = Span(f"{end.text[0]} {said.text}", said.role)
            roles = {at: said.role}
            texts = shortened(self._texts(cell, known)) if self._is_short else self._texts(cell, known)
            rows.append((*layout.spans(texts, roles), end, *signs.get(id(cell), ())))
        names, end_name = layout.heading_of(self.sort), "verdict" if self._is_merged else _STATUS
        names += end_name * (len(names) + len(end_name) <= self.content_size.width)
        return [*self._lines_above(), line((names, "muted"))], rows

    def _lines_above(self) -> list[Line]:
        """The settings that all cells share, and the columns that do not fit: in one line, if there is room."""
        parts = [line((text, role)) for text, role in ((self._above, "muted"), (self.columns_words, "strong")) if text]
        return joined(parts, self.content_size.width, " · ")

    def action_mark(self) -> None:
        """Mark the cell under the cursor, or no longer; a third takes the place of the first."""
        if self._state is None or self.cursor >= len(self._cells):
            return
        cell = self._cells[self.index_of(self.cursor)]
        others = tuple(each for each in self.marked if each[1] is not cell)
        is_new = len(others) == len(self.marked)
        self.marked = (*others, ((self._title, self._state), cell))[-2:] if is_new else others
        self.post_message(self.Resized())  # Compare is about them, too

    def on_rows_moved(self, event: TableRows.Moved) -> None:
        for cell in self._cells[event.index : event.index + 1]:  # none if another session is shown meanwhile
            requests_of(self).choose_cell(cell)
            requests_of(self).follow_cell(cell)

    def on_rows_chosen(self, event: TableRows.Chosen) -> None:
        for cell in self._cells[event.index : event.index + 1]:
            requests_of(self).read_cell(cell)

    def _texts(self, cell: CellState, found: Assessment | None) -> tuple[str, ...]:
        """The cell's texts; those of a finished cell are made once, unless a report or a prediction may change them."""
        assert self._state is not None
        finished, assessed, texts = self._done.get(cell.cell, (None, None, ()))
        if not texts or finished is not cell.finished or assessed is not found:
            item = ShownRow(self._state, cell, found)
            texts = tuple(column.cell(item) for column in self._columns)
            if cell.is_over and not any(column.key == "activations" for column in self._columns):
                self._done[cell.cell] = (cell.finished, found, texts)
        return texts
