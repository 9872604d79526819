"""The Queue tab: the waiting cells in order, cells that are left out and why, and the cells that Run would add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.message import Message

from cs336_tui.analysis.eta import Prices, ends_s, prices
from cs336_tui.config.spec import CellSpec
from cs336_tui.export.tables import Column
from cs336_tui.session.cell_state import CellState
from cs336_tui.session.state import SessionState
from cs336_tui.stats import quantities
from cs336_tui.tui import format
from cs336_tui.tui.configure.preview import Cells
from cs336_tui.tui.tabs import status
from cs336_tui.tui.titles import CELL_KEYS, as_shown, cell_columns, told_variants
from cs336_tui.tui.widgets.columns import lay_out
from cs336_tui.tui.widgets.lines import Line, Span, line, width_of
from cs336_tui.tui.widgets.rows import Rows

if TYPE_CHECKING:
    from cs336_tui.runner.queue import CellQueue

LEFT_OUT = ("skipped", "cancelled", "failed", "killed")
"""Statuses of cells that can wait again."""
_REASON_WIDTH = 28
"""Most columns that are kept free for the reason why a cell does not run."""


class QueueView(NamedTuple):
    """The contents of the tab. `queue` is None if the cells cannot be ordered: the session is only opened."""

    state: SessionState
    queue: CellQueue | None
    running: bool
    skips_after_oom: bool
    preview: Cells
    """The cells that Run would add; shown while nothing waits."""


class _QueueRow(NamedTuple):
    """A cell of the session, or a cell that would be added; times in s from now, None if unknown."""

    place: str
    cell: CellState | None
    spec: CellSpec
    repeat: int
    takes_s: float | None = None
    ends_s: float | None = None


def _columns(variants: Mapping[str, set[str]]) -> tuple[Column[_QueueRow], ...]:
    def duration(time_s: float | None) -> str:
        return "" if time_s is None else quantities.duration(time_s)

    ranks = {"context": 3, "batch": 7, "precision": 2, "device": 9, "warmup": 6}
    return (
        Column("place", "order"),
        Column("cell", rank=8, show=lambda cell: str(status.number(cell)) if cell else ""),
        *cell_columns(lambda row: row.spec, ranks, as_shown(variants), (*CELL_KEYS, "warmup")),
        Column("repeat", "run", rank=5),
        Column("takes_s", "takes", rank=4, show=duration),
        Column("ends_s", "done in", rank=1, show=duration),
    )


class QueuePane(Rows):
    """Orders, skips, pauses and retries the waiting cells; every change takes effect at once."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("K,shift+up", "move_cell(-1)", "Earlier", key_display="K", id="queue.earlier"),
        Binding("J,shift+down", "move_cell(1)", "Later", key_display="J", id="queue.later"),
        Binding("x,space", "skip", "Skip", id="queue.skip"),
        Binding("P", "hold", "Pause", id="queue.hold"),
        Binding("f", "retry", "Retry failed", id="queue.retry"),
        Binding("o", "oom_rule", "OOM rule", id="queue.oom"),
        Binding("less_than_sign,shift+home", "to_end(-1)", "First", key_display="<", id="queue.first"),
        Binding("greater_than_sign,shift+end", "to_end(1)", "Last", key_display=">", id="queue.last"),
    ]

    class Changed(Message):
        """The queue has changed; `waits`: a cell waits again, and has to be run."""

        def __init__(self, *, waits: bool = False) -> None:
            super().__init__()
            self.waits = waits

    class OomRuleTurned(Message):
        """The user wants to skip cells larger than one that ran out of memory, or to try all."""

        def __init__(self, skip: bool) -> None:
            super().__init__()
            self.skip = skip

    _view: QueueView | None = None
    _at_work: CellState | None = None
    _waiting: Sequence[CellState] = ()
    _left_out: Sequence[CellState] = ()
    _added: Sequence[tuple[CellSpec, int]] = ()
    _prices = Prices({}, {}, None, {})
    _ends: Sequence[float | None] = (None,)
    _on: int | None = None
    """The waiting cell that the cursor follows."""
    _least: tuple[int, ...] = ()
    _columns = _columns({})
    _variants_of: tuple[object, ...] = (None, None, None)

    def show(self, view: QueueView) -> None:
        before, self._view = self._view, view
        if before is None or view.state is not before.state:
            self._least, self._on = (), None
        if before is None or (view.queue, view.running) != (before.queue, before.running):
            self.refresh_bindings()
        state = view.state
        self._at_work, self._waiting = state.running_cell, [state.cells[number] for number in state.waiting]
        self._left_out = [cell for cell in state.cells.values() if cell.status in LEFT_OUT]
        self._added = () if self._waiting or self._at_work else view.preview.cells
        self._prices = prices(state)
        self._take_variants()
        self._ends = ends_s(state, self._prices, [spec for spec, _ in self._added])
        if self._on is not None and self._on in state.waiting:
            self.cursor = list(state.waiting).index(self._on) + (self._at_work is not None)
        count = (self._at_work is not None) + len(self._waiting) + len(self._added) + len(self._left_out)
        if count:
            self.draw_from(count, self._rows_in_sight, heading_rows=2)
        else:
            self._on = None
            why = view.preview.why_none or "Nothing waits."
            self.fill((), [self._summary(), (), line((format.plain(why), "muted"))])

    def _take_variants(self) -> None:
        assert self._view is not None
        state = self._view.state
        known, count, added = self._variants_of
        if known is not state or count != len(state.cells) or added is not self._added:
            self._variants_of = (state, len(state.cells), self._added)
            specs = {*(cell.spec for cell in state.cells.values()), *(spec for spec, _ in self._added)}
            self._columns, self._least = _columns(told_variants(specs)), ()

    @property
    def selected(self) -> CellState | None:
        row = next(islice(self._all_rows(), self.cursor, None), None)
        return row.cell if row else None

    def _summary(self) -> Line:
        view, waiting = self._view, len(self._waiting)
        assert view is not None
        if self._added:
            parts = [Span(f"Run would add {format.plural(len(self._added), 'cell')}", "strong")]
        else:
            parts = [Span(f"{format.plural(waiting, 'cell')} wait{'s' * (waiting == 1)}", "strong")]
            if (left := self._ends[-1]) is not None and (waiting or self._at_work):
                parts.append(Span(f" · done in {quantities.duration(left)}"))
        if view.queue is not None and (asked := len(view.queue.asked)):
            parts.append(Span(f" · {format.plural(asked, 'report')} before the next cell", "strong"))
        if view.queue is not None and view.queue.paused:
            parts.append(Span(" · paused (P goes on)", "caution"))
        parts.append(Span(f" · after OOM: {'skip larger' if view.skips_after_oom else 'try all'}", "muted"))
        return tuple(parts)

    def _rows_in_sight(self, first: int, last: int) -> tuple[list[Line], list[Line]]:
        rows = [self._timed(first + at, row) for at, row in enumerate(islice(self._all_rows(), first, last))]
        texts = [[column.cell(row) for column in self._columns] for row in rows]
        reasons = [_why(row.cell) for row in rows]
        for_reasons = min(max(map(width_of, reasons), default=0), _REASON_WIDTH)
        layout = lay_out(self._columns, texts, self.content_size.width - for_reasons, least=self._least)
        self._least = layout.widths
        lines: list[Line] = [
            (Span(layout.row(text), "muted" if row.place == "–" else "text"), *why)
            for row, text, why in zip(rows, texts, reasons, strict=True)
        ]
        return [self._summary(), line((layout.heading, "muted"))], lines

    def _all_rows(self) -> Iterator[_QueueRow]:
        """The running cell, then waiting cells, cells to add, cells left out."""
        if (cell := self._at_work) is not None:
            yield _QueueRow("now", cell, cell.spec, cell.repeat)
        for place, cell in enumerate(self._waiting, 1):
            yield _QueueRow(str(place), cell, cell.spec, cell.repeat)
        for place, (spec, repeat) in enumerate(self._added, 1):
            yield _QueueRow(f"+{place}", None, spec, repeat)
        for cell in self._left_out:
            yield _QueueRow("–", cell, cell.spec, cell.repeat)

    def _timed(self, index: int, row: _QueueRow) -> _QueueRow:
        """The row with the time that its cell takes, and the time of its end."""
        if row.place == "–":
            return row
        ends_s = self._ends[index + (self._at_work is None)]
        return row._replace(takes_s=ends_s if row.place == "now" else self._prices.of(row.spec), ends_s=ends_s)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        queue = self._view.queue if self._view else None
        if action == "hold":
            return queue is not None and self._view is not None and self._view.running
        return queue is not None or action not in ("move_cell", "to_end", "skip", "retry")

    def _move(self, rows: int) -> None:
        super()._move(rows)
        cell = self.selected
        self._on = cell.cell if cell and cell.status == "queued" else None

    def on_blur(self) -> None:
        self._on = None
        super().on_blur()

    def _queue(self) -> CellQueue:
        queue = self._view.queue if self._view else None
        assert queue is not None, "check_action offers no such key"
        return queue

    def action_move_cell(self, by: int) -> None:
        cell = self.selected
        if cell is None or cell.status != "queued":
            self._tell("Only waiting cells can be moved.")
        else:
            self._queue().move(cell.cell, by)
            self._on = cell.cell
            self.post_message(self.Changed())

    def action_to_end(self, direction: int) -> None:
        self.action_move_cell(direction * len(self._waiting))

    def action_skip(self) -> None:
        cell = self.selected
        if cell is None:
            self._tell("That cell is not in the queue yet; r adds the choices of Configure.")
        elif cell.status in LEFT_OUT:
            self._queue().requeue([cell.cell])
            self.post_message(self.Changed(waits=True))
        elif cell.status == "queued":
            self._queue().skip([cell.cell], "skipped by hand")
            self._on = None
            self.post_message(self.Changed())
        else:
            self._tell(f"Cell {status.number(cell)} is running; s stops it and those after it.")

    def action_hold(self) -> None:
        self._queue().pause(not self._queue().paused)
        self.post_message(self.Changed())

    def action_retry(self) -> None:
        failed = [cell.cell for cell in self._left_out if cell.status in ("failed", "killed")]
        if failed:
            self._queue().requeue(failed)
            self.post_message(self.Changed(waits=True))
        else:
            self._tell("No cell has failed.")

    def action_oom_rule(self) -> None:
        if self._view is not None:
            self.post_message(self.OomRuleTurned(not self._view.skips_after_oom))

    def _tell(self, text: str) -> None:
        self.app.notify(text, severity="warning", markup=False, timeout=4)


def _why(cell: CellState | None) -> tuple[Span, ...]:
    if cell is None or cell.status == "queued":
        return ()
    mark = status.status(cell)
    reason = cell.skipped_because if cell.status == "skipped" else status.how_it_ended(cell)
    if cell.status in ("running", "cancelled") or not reason:
        return (mark,)
    return (mark, Span(f": {format.plain(reason)}", "muted"))
