"""The Results tab: one row per cell, added when it is queued and filled as it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from cs336_tui.analysis.fields import FIELDS, shown_of
from cs336_tui.events.events import CellFinished
from cs336_tui.events.peaks import WRONG_PEAK
from cs336_tui.export.tables import Column
from cs336_tui.session.cell_state import CellState
from cs336_tui.session.state import SessionState
from cs336_tui.tui import format
from cs336_tui.tui.judging import Assessment, Judging
from cs336_tui.tui.tabs import status
from cs336_tui.tui.tabs.verdicts import verdict
from cs336_tui.tui.titles import told_variants, unique_names, variant_column
from cs336_tui.tui.widgets.columns import Layout, lay_out
from cs336_tui.tui.widgets.lines import Line, Span, line
from cs336_tui.tui.widgets.rows import Rows

_Reader = Callable[[SessionState, CellState, Assessment | None], str]


def _warmup(cell: CellState) -> str:
    """What was asked for; of as many as it takes, how many it took."""
    if not cell.spec.warmup_auto:
        return str(cell.spec.warmup_steps)
    return f"auto ({cell.finished.warmup_steps_done})" if cell.finished else "auto"


def _median(_: SessionState, cell: CellState, __: Assessment | None) -> str:
    summary = cell.summary(1) if cell.is_over else None
    return format.ms(summary.median_s, summary.std_s) if summary else "–"


def _peak(_: SessionState, cell: CellState, __: Assessment | None) -> str:
    if not cell.finished:
        return "–"
    allocated = cell.finished.peak_allocated_bytes
    return format.size(allocated if allocated is not None else cell.finished.peak_rss_bytes)


def _mean(state: SessionState, cell: CellState, _: Assessment | None) -> str:
    return format.ms(cell.running.mean, cell.running.std(state.ddof)) if cell.running.n else "–"


def _std(state: SessionState, cell: CellState, _: Assessment | None) -> str:
    std = cell.running.std(state.ddof)
    return format.ms(std, std)


def _verdict(_: SessionState, cell: CellState, found: Assessment | None) -> str:
    return verdict(cell, found).text


def _flops(_: SessionState, __: CellState, found: Assessment | None) -> str:
    return format.flops(found.limit.flops_per_s if found and found.limit else None)


def _share(_: SessionState, cell: CellState, found: Assessment | None) -> str:
    """Of the measured peak; of the data sheet's where there is no other, which is then said."""
    share = found.share_of_peak(cell.running.mean) if found and cell.is_over else None
    if share is None or found is None:
        return "–"
    if found.peak_is_measured:
        return f"{share * 100:.3g}" + " of wrong peak" * (share > WRONG_PEAK)
    return f"{share * 100:.3g} of sheet"


VERDICT = Column("verdict", left=True, rank=2)
_STD = Column("std ms", rank=1)
_TABLE: dict[Column, _Reader] = {
    Column("#", rank=9): lambda _, cell, __: str(status.number(cell)),
    Column("size", left=True): lambda _, cell, __: cell.spec.size,
    Column("ctx", rank=3): lambda _, cell, __: str(cell.spec.context_length),
    Column("batch", rank=8): lambda _, cell, __: str(cell.spec.batch_size),
    Column("pass", left=True): lambda _, cell, __: cell.spec.pass_,
    Column("precision", left=True, rank=2): lambda _, cell, __: cell.spec.precision,
    Column("device", left=True, rank=10): lambda _, cell, __: cell.spec.device,
    Column("warm-up", rank=7): lambda _, cell, __: _warmup(cell),
    Column("n", rank=6): lambda _, cell, __: str(cell.running.n),
    Column("mean ms"): _mean,
    _STD: _std,
    VERDICT: _verdict,
    Column("median", rank=11): _median,
    Column("tokens/s", rank=4): lambda _, cell, __: format.rate(cell.tokens_per_s),
    Column("FLOP/s", rank=12): _flops,
    Column("% peak", rank=13): _share,
    Column("peak", rank=5): _peak,
}
COLUMNS = tuple(_TABLE)
_USUAL = {column.key for column in COLUMNS}
_VARIANTS_BEFORE = COLUMNS.index(next(column for column in COLUMNS if column.key == "device"))
"""Where columns of variants stand."""
_ASKED = ("size", "ctx", "batch", "pass", "precision", "device", "warm-up")
"""Columns that are known of a cell before it runs."""
_RUN = Column("run", rank=4)
"""Which run of its spec a cell is; shown where there are repeats."""


def _variant(key: str, names: Mapping[str, str]) -> _Reader:
    return lambda _, cell, __: names[shown_of(cell.spec, key)]


def _in_common(variants: Mapping[str, set[str]]) -> str:
    """What all cells are that is not as usual. As a column it would be the first to go where there is little room."""
    return ", ".join(f"{FIELDS[key].title} {next(iter(shown))}" for key, shown in variants.items() if len(shown) == 1)


def _table_of(cells: Sequence[CellState], variants: Mapping[str, set[str]]) -> dict[Column, _Reader]:
    """The table's columns for these cells: those of variants that differ too, and of repeats. Which model a cell is of
    is always in sight; what tells cells apart goes later than how their steps scatter."""
    differ = any(len(shown) > 1 for shown in variants.values())
    table = [
        (column._replace(rank=2) if differ and column is _STD else column, read) for column, read in _TABLE.items()
    ]
    table[_VARIANTS_BEFORE:_VARIANTS_BEFORE] = [
        (variant_column(key)._replace(rank=0 if key == "model" else 1), _variant(key, unique_names(shown)))
        for key, shown in variants.items()
        if len(shown) > 1
    ]
    if any(cell.repeat > 1 for cell in cells):
        table.append((_RUN, lambda _, cell, __: str(cell.repeat)))
    return dict(table)


_STATUS = "status"
_WIDEST_STATUS = 11
_WHOLE_VERDICTS = 110
"""From this width on all verdicts of a cell are named; below it the most telling one and how many more there are."""
_FEW = 200
"""Up to so many rows count for the columns' widths all at once; of more, those that have been in sight."""


class ResultsPane(Rows):
    """The table; Enter on a row posts `Rows.Chosen` with the cell's place in the session.

    Its cursor is on the cell that the Live pane shows, except while somebody moves it.
    """

    BORDER_TITLE = "Results"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("m", "mark", "Mark to compare", id="results.mark"),
    ]

    class Marked(Message):
        """This cell is to be compared with another, or no longer."""

        def __init__(self, cell: CellState) -> None:
            super().__init__()
            self.cell = cell

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(cursor=True, id=id)
        self._state: SessionState | None = None
        self._cells: tuple[CellState, ...] = ()
        self._places: dict[int, int] = {}
        self._done: dict[int, tuple[CellFinished | None, Assessment | None, tuple[str, ...]]] = {}
        self._judging: Judging | None = None
        self._table = _TABLE
        self._in_common = ""
        self._alike: tuple[bool | None, ...] = ()
        self._least: tuple[int, ...] = ()
        self._ddof = 1
        self._marked: tuple[CellState, ...] = ()

    def show(
        self,
        state: SessionState,
        in_sight: CellState | None,
        marked: Sequence[CellState] = (),
        judging: Judging | None = None,
    ) -> None:
        """Paint; the cursor is on the cell `in_sight`, and `marked` ones, to be compared, say so.

        `judging` is asked about the cells whose rows are in sight.
        """
        self._judging = judging
        self._take(state)
        self._marked = tuple(marked)
        if not self._cells:
            self.fill((), [(), line(("No results yet. Each cell of a run adds a row here.", "muted"))])
            return
        if in_sight is not None and not self.has_focus:
            self.cursor = self._places.get(in_sight.cell, self.cursor)
        self.draw_from(len(self._cells), self._rows_in_sight, heading_rows=2 if self._in_common else 1)

    def _take(self, state: SessionState) -> None:
        """Remember the cells, and of them what does not change while they run."""
        if state is not self._state or state.ddof != self._ddof:
            self._state, self._ddof = state, state.ddof
            self._done, self._least, self._places = {}, (), {}
        self._cells = tuple(state.cells.values())
        if len(self._places) == len(self._cells):
            return
        self._places = {cell.cell: place for place, cell in enumerate(self._cells)}
        variants = told_variants(cell.spec for cell in self._cells)
        self._table, self._in_common = _table_of(self._cells, variants), _in_common(variants)
        self._least, self._done = (), {}
        if len(self._cells) <= _FEW:
            self._alike = ()
            return
        asked = (*_ASKED, *(column.key for column in self._table if column.key not in _USUAL))
        values = {column: {read(state, cell, None) for cell in self._cells} for column, read in self._table.items()
                  if column.key in asked}  # fmt: skip
        self._alike = tuple(len(values[column]) == 1 if column in values else None for column in self._table)

    def _rows_in_sight(self, first: int, last: int) -> tuple[list[Line], list[Line]]:
        few = len(self._cells) <= _FEW
        counted = self._cells if few else self._cells[first:last]
        in_sight = range(first, last) if few else range(len(counted))
        found = [self._found(cell, place in in_sight) for place, cell in enumerate(counted)]
        texts = [self._texts(cell, known) for cell, known in zip(counted, found, strict=True)]
        marks = [status.status(cell) for cell in counted]
        status_width = max(len(mark.text) for mark in marks) if few and marks else _WIDEST_STATUS
        width = self.content_size.width - self._position_width(len(self._cells))
        columns, at = tuple(self._table), self._verdict_at
        alike = list(self._alike or (None,) * len(columns))
        alike[at] = False  # it tells even where it is the same everywhere
        layout = lay_out(columns, texts, width - status_width, least=self._least, alike=alike)
        if few:
            texts, marks, found = texts[first:last], marks[first:last], found[first:last]
        else:
            self._least = layout.widths
        rows = [
            (*layout.spans(row, {at: verdict(cell, known).role}), mark, *self._mark_of(cell))
            for cell, row, mark, known in zip(self._cells[first:last], texts, marks, found, strict=True)
        ]
        above = [line((f"all cells: {self._in_common}", "muted"))] if self._in_common else []
        return [*above, heading(layout, width)], rows

    def _found(self, cell: CellState, in_sight: bool) -> Assessment | None:
        if self._judging is None or self._state is None:
            return None
        return (self._judging.of if in_sight else self._judging.known)(self._state, cell)

    def _mark_of(self, cell: CellState) -> tuple[Span, ...]:
        return (Span(f" ◆ {'AB'[self._marked.index(cell)]}", "title"),) if cell in self._marked[:2] else ()

    def action_mark(self) -> None:
        if self.cursor < len(self._cells):
            self.post_message(self.Marked(self._cells[self.cursor]))

    def _position_width(self, count: int) -> int:
        """Columns to leave free in the heading for which of the rows are in sight."""
        return len(f"  {count}–{count} of {count}") if count > self.room else 0

    def _texts(self, cell: CellState, found: Assessment | None) -> tuple[str, ...]:
        """The cell's figures; those of a finished cell are worked out once."""
        assert self._state is not None
        known = self._done.get(cell.cell)
        if known and known[0] is cell.finished and known[1] is found:
            texts = known[2]
        else:
            texts = tuple(read(self._state, cell, found) for read in self._table.values())
            if cell.is_over:
                self._done[cell.cell] = (cell.finished, found, texts)
        if self.content_size.width >= _WHOLE_VERDICTS:
            return texts
        short = verdict(cell, found, whole=False).text
        return (*texts[: self._verdict_at], short, *texts[self._verdict_at + 1 :])

    @property
    def _verdict_at(self) -> int:
        return tuple(self._table).index(VERDICT)


def heading(layout: Layout, width: int) -> Line:
    """The columns' names and, where there is room, the status's: it says little beside a glyph and a word."""
    names = layout.heading
    return line((names + _STATUS if len(names) + len(_STATUS) <= width else names, "muted"))
