"""The Results tab: one row per cell, added when it is queued and filled as it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cs336_tui.session.state import CellState, SessionState
from cs336_tui.tui import format
from cs336_tui.tui.panes import status
from cs336_tui.tui.widgets.lines import Line, Span, line
from cs336_tui.tui.widgets.rows import Rows


class _Column(NamedTuple):
    name: str
    value: Callable[[SessionState, CellState], str]
    left: bool = False
    rank: int = 0
    """Columns of the highest rank go first when the table is too wide."""


def _median(_: SessionState, cell: CellState) -> str:
    summary = cell.summary(1) if cell.is_over else None
    return format.ms(summary.median_s, summary.std_s) if summary else "–"


def _peak(_: SessionState, cell: CellState) -> str:
    if not cell.finished:
        return "–"
    allocated = cell.finished.peak_allocated_bytes
    return format.size(allocated if allocated is not None else cell.finished.peak_rss_bytes)


def _mean(state: SessionState, cell: CellState) -> str:
    return format.ms(cell.running.mean, cell.running.std(state.ddof)) if cell.running.n else "–"


def _std(state: SessionState, cell: CellState) -> str:
    std = cell.running.std(state.ddof)
    return format.ms(std, std)


_COLUMNS = (
    _Column("#", lambda state, cell: str(status.number(state, cell)), rank=9),
    _Column("size", lambda _, cell: cell.spec.size, left=True),
    _Column("ctx", lambda _, cell: str(cell.spec.context_length), rank=3),
    _Column("batch", lambda _, cell: str(cell.spec.batch_size), rank=8),
    _Column("pass", lambda _, cell: cell.spec.pass_, left=True),
    _Column("precision", lambda _, cell: cell.spec.precision, left=True, rank=2),
    _Column("device", lambda _, cell: cell.spec.device, left=True, rank=10),
    _Column("warm-up", lambda _, cell: str(cell.spec.warmup_steps), rank=7),
    _Column("n", lambda _, cell: str(cell.running.n), rank=6),
    _Column("mean ms", _mean),
    _Column("std ms", _std, rank=1),
    _Column("median", _median, rank=11),
    _Column("tokens/s", lambda _, cell: format.rate(cell.tokens_per_s), rank=4),
    _Column("peak", _peak, rank=5),
)
_STATUS = "status"
_ALL_ALIKE = 20
"""Added to the rank of a column whose cells are all alike: it tells least."""


class ResultsPane(Rows):
    """The table; Enter on a row posts `Rows.Chosen` with the cell's place in the session.

    Its cursor is on the cell that the Live pane shows, except while somebody moves it.
    """

    BORDER_TITLE = "Results"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(cursor=True, id=id)
        self._done: dict[int, tuple[str, ...]] = {}

    def show(self, state: SessionState, in_sight: CellState | None) -> None:
        if not state.cells:
            self._done.clear()
            self.fill((), [(), line(("No results yet. Each cell of a run adds a row here.", "muted"))])
            return
        if in_sight is not None and not self.has_focus:
            self.cursor = list(state.cells).index(in_sight.cell)
        texts = [self._texts(state, cell) for cell in state.cells.values()]
        statuses = [status.status(cell) for cell in state.cells.values()]
        heading, rows = table(texts, statuses, self.content_size.width - self._position_width(len(texts)))
        self.fill(rows, [heading])

    def _position_width(self, count: int) -> int:
        """Columns to leave free in the heading for which of the rows are in sight."""
        return len(f"  {count}–{count} of {count}") if count > self.content_size.height - 1 else 0

    def _texts(self, state: SessionState, cell: CellState) -> tuple[str, ...]:
        """The cell's figures; those of a finished cell are worked out once."""
        if known := self._done.get(cell.cell):
            return known
        texts = tuple(column.value(state, cell) for column in _COLUMNS)
        if cell.is_over:
            self._done[cell.cell] = texts
        return texts


def table(texts: list[tuple[str, ...]], statuses: list[Span], width: int) -> tuple[Line, list[Line]]:
    """Heading and rows in as many of the columns as `width` holds; numbers to the right."""
    by_column = list(zip(*texts, strict=True))
    widths = [max(len(column.name), *map(len, by_column[i])) for i, column in enumerate(_COLUMNS)]
    alike = [len(texts) > 1 and len(set(values)) == 1 for values in by_column]
    status_width = max(len(mark.text) for mark in statuses)
    kept = set(range(len(_COLUMNS)))
    for index in sorted(kept, key=lambda i: -(_COLUMNS[i].rank + _ALL_ALIKE * alike[i])):
        if sum(widths[i] + 2 for i in kept) + status_width <= width:
            break
        if _COLUMNS[index].rank:
            kept.remove(index)

    def joined(row: tuple[str, ...]) -> str:
        cells = (f"{row[i]:<{widths[i]}}" if _COLUMNS[i].left else f"{row[i]:>{widths[i]}}" for i in sorted(kept))
        return "  ".join(cells) + "  "

    heading = joined(tuple(column.name for column in _COLUMNS))
    if len(heading) + len(_STATUS) <= width:
        heading += _STATUS  # says little beside a glyph and a word, so that no column goes for it
    return line((heading, "muted")), [(Span(joined(row)), mark) for row, mark in zip(texts, statuses, strict=True)]
