"""The Queue tab: the running cells, the waiting ones in order, cells that are left out and why, and the cells that Run
would add. Where cells run side by side: their lanes or jobs, and the cells that are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec
from textual.binding import BindingType

from cs336_tui.analysis.eta import Ends, Outlook, Prices, ends_s, eta_words, takes_words
from cs336_tui.config.spec import CellSpec
from cs336_tui.export.writing.tables import Column
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats import quantities
from cs336_tui.tui import format
from cs336_tui.tui.configure.preview import Cells
from cs336_tui.tui.format import CELL_KEYS, as_shown, cell_columns, told_variants
from cs336_tui.tui.keys import bind, key_name
from cs336_tui.tui.requests import requests_of
from cs336_tui.tui.tabs import status
from cs336_tui.tui.widgets.columns import Copied, Layout, copied_table, lay_out, shown_table
from cs336_tui.tui.widgets.lines import Line, Span, line, width_of
from cs336_tui.tui.widgets.rows import WideRows

if TYPE_CHECKING:
    from cs336_tui.runner.queue import CellQueue

LEFT_OUT = ("skipped", "cancelled", "failed", "killed")
"""Statuses of cells that can wait again."""
DONE = ("ok", "oom")
"""Statuses of cells that have a result."""
_REASON_WIDTHS = ((110, 28), (76, 20), (0, 11))
"""Columns that are kept free for the reason why a cell does not run, by the least width."""
_STATUS_WIDTH = 14
"""The same in a narrow window, where one cell runs at a time: the status fits."""
_LANE, _JOB, _DURATION, _DEVICE = len("12–15"), len("1234567_12"), len("1:02:03"), len("cuda:0")
"""Room for what is known once a cell runs."""
_MOST_SET_ASIDE = 2
"""Most lanes that are set aside and named, each with its reason."""


class QueueView(msgspec.Struct, frozen=True):
    """The contents of the tab. `queue` is None if the cells cannot be ordered: the session is only opened."""

    state: SessionState
    queue: CellQueue | None
    running: bool
    skips_after_oom: bool
    preview: Cells
    """The cells that Run would add; shown while nothing waits."""
    outlook: Callable[[], Outlook]
    """The time that the session's cells take."""
    left: str = ""
    """The end of the run and the cells that it left, in words; empty if none is left."""


_NO_OUTLOOK = Outlook(Prices({}, {}, None, {}), Ends({}, []))
_NOTHING = QueueView(SessionState(), None, False, True, Cells(), lambda: _NO_OUTLOOK)


class _QueueRow(NamedTuple):
    """A cell of the session, or a cell that would be added; times in s from now, None if unknown."""

    place: str
    cell: CellState | None
    spec: CellSpec
    repeat: int
    takes_s: float | None = None
    ends_s: float | None = None


def _columns(variants: Mapping[str, set[str]], state: SessionState | None = None) -> tuple[Column[_QueueRow], ...]:
    def duration(time_s: float | None) -> str:
        return "" if time_s is None else quantities.duration(time_s)

    def of_cell(told: Callable[[SessionState, CellState], str]) -> Callable[[_QueueRow], str]:
        return lambda row: told(state, row.cell) if state and row.cell else ""

    ranks = {"context": 3, "batch": 7, "precision": 2, "device": 9, "warmup": 6}
    more: list[Column[_QueueRow]] = []
    if state and state.lanes:
        more.append(Column("lane", text=of_cell(lambda _, cell: quantities.spans(cell.lanes)), room=_LANE))
        ranks["device"] = 1
    if state and state.jobs:
        more.append(Column("job", rank=1, text=of_cell(status.job_of), room=_JOB))
        more.append(Column("node", left=True, rank=1, text=of_cell(status.node_of), room=_JOB))
    if more and len({cell.spec.pass_ for cell in state.cells.values()} if state else ()) == 1:
        ranks["pass"] = 1
    of_spec = cell_columns(lambda row: row.spec, ranks, as_shown(variants), (*CELL_KEYS, "warmup"))
    return (
        Column("place", "order"),
        *more,
        Column("cell", rank=8, show=lambda cell: str(status.number(cell)) if cell else ""),
        *(_once_it_runs(column) if more and column.key == "device" else column for column in of_spec),
        Column("repeat", "run", rank=5),
        Column("takes_s", "takes", rank=4, show=duration, room=_DURATION),
        Column("ends_s", "ends in", rank=1, show=duration, room=_DURATION),
    )


def _once_it_runs(column: Column[_QueueRow]) -> Column[_QueueRow]:
    """A column that is empty while a cell waits: any lane may take it."""
    return column._replace(
        text=lambda row: "" if row.cell and row.cell.status == "queued" else column.cell(row), room=_DEVICE
    )


class QueuePane(WideRows):
    """Orders, skips, pauses and retries the waiting cells; every change takes effect at once."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("earlier", "move_cell(-1)", "Earlier", "queue.earlier", also="shift+up", shown_as="K"),
        bind("later", "move_cell(1)", "Later", "queue.later", also="shift+down", shown_as="J"),
        bind("skip", "skip", "Skip", "queue.skip", also="space"),
        bind("pause", "hold", "Pause", "queue.hold"),
        bind("retry", "retry", "Retry failed", "queue.retry"),
        bind("memory-rule", "oom_rule", "OOM rule", "queue.oom"),
        bind("first", "to_end(-1)", "First", "queue.first", also="shift+home", shown_as="A"),
        bind("last", "to_end(1)", "Last", "queue.last", also="shift+end", shown_as="Z"),
    ]

    _view = _NOTHING
    _at_work: Sequence[CellState] = ()
    _waiting: Sequence[CellState] = ()
    _left_out: Sequence[CellState] = ()
    _added: Sequence[tuple[CellSpec, int]] = ()
    _done: Sequence[CellState] = ()
    """Cells that have a result, if cells run side by side."""
    _prices, _ends, _ = _NO_OUTLOOK
    _on: int | None = None
    """The cell that the cursor follows: a waiting one, of several running ones one of these, too."""
    _columns = _columns({})
    _named: Sequence[Sequence[str]] = ()
    """The texts of every cell, empty for what is known once it runs."""
    _laid_out_for = -1
    _variants_of: tuple[object, ...] = (None,) * 5

    def show(self, view: QueueView) -> None:
        before, self._view = self._view, view
        if view.state is not before.state:
            self._on = None
        if (view.queue, view.running) != (before.queue, before.running):
            self.refresh_bindings()
        state = view.state
        self._at_work = status.by_lane(state) if state.side_by_side else [*filter(None, [state.running_cell])]
        self._waiting = [state.cells[number] for number in state.waiting]
        self._left_out = [cell for cell in state.cells.values() if cell.status in LEFT_OUT]
        self._done = [cell for cell in state.cells.values() if cell.status in DONE] if state.side_by_side else ()
        self._added = () if self._waiting or self._at_work else view.preview.cells
        self._prices, self._ends, _ = view.outlook()
        self._take_variants()
        if self._added:
            self._ends = ends_s(state, self._prices, [spec for spec, _ in self._added], view.preview.lanes)
        self._follow()
        count = sum(map(len, (self._at_work, self._waiting, self._added, self._left_out, self._done)))
        if count:
            self.draw_from(count, self._rows_in_sight, heading_rows=2 + len(_set_aside(state)))
        else:
            self._on = None
            why = view.preview.why_none or "The queue is empty."
            self.fill((), [self._summary(), (), line((format.plain(why), "muted"))])

    def _follow(self) -> None:
        """Put the cursor on the cell that it follows."""
        running, waiting = [cell.cell for cell in self._at_work], self._view.state.waiting
        if self._on in running:
            self.cursor = running.index(self._on)
        elif self._on is not None and self._on in waiting:
            self.cursor = len(running) + list(waiting).index(self._on)

    def _take_variants(self) -> None:
        state = self._view.state
        of = (state, len(state.cells), self._added, bool(state.lanes), bool(state.jobs))
        if not all(now is before or now == before for now, before in zip(of, self._variants_of, strict=True)):
            self._variants_of = of
            specs = {*(cell.spec for cell in state.cells.values()), *(spec for spec, _ in self._added)}
            self._columns, self._laid_out_for = _columns(told_variants(specs), state), -1
            cells = [_QueueRow("now", cell, cell.spec, cell.repeat) for cell in state.cells.values()]
            rows = [*cells, *(_QueueRow(f"+{at}", None, *added) for at, added in enumerate(self._added, 1))]
            self._named = [["" if column.room else column.cell(row) for column in self._columns] for row in rows]

    @property
    def selected(self) -> CellState | None:
        row = next(islice(self._all_rows(), self.cursor, None), None)
        return row.cell if row else None

    def _summary(self) -> Line:
        view, waiting = self._view, len(self._waiting)
        if self._added:
            parts = [Span(f"Run would add {format.plural(len(self._added), 'cell')}", "strong")]
            if takes := takes_words(self._ends.last_s):
                parts.append(Span(f" · {takes}"))
        else:
            parts = [Span(f"{format.plural(waiting, 'cell')} wait{'s' * (waiting == 1)}", "strong")]
            if view.state.side_by_side:
                parts = [Span(status.totals(view.state), "strong")]
            held = view.queue is not None and view.queue.paused
            if (left := self._ends.last_s) is not None and (waiting or self._at_work) and not held:
                parts.append(Span(f" · {eta_words(left)}"))
        if view.left:
            parts.append(Span(f" · {view.left}", "caution"))
        if view.queue is not None and (asked := len(view.queue.asked)):
            parts.append(Span(f" · {format.plural(asked, 'report')} before the next cell", "strong"))
        if view.queue is not None and view.queue.paused:
            parts.append(Span(f" · paused ({key_name('queue.hold')} goes on)", "caution"))
        if not view.state.jobs:
            parts.append(Span(f" · after OOM: {'skip larger' if view.skips_after_oom else 'try all'}", "muted"))
        words = self.columns_words
        ends: Line = (Span(" · "), Span(words, "strong")) if words else ()
        room = self.content_size.width - self.position_width - width_of(ends)
        fitting: Line = ()
        for part in parts:
            if not fitting or width_of((*fitting, part)) <= room:
                fitting = (*fitting, part)
        return (*fitting, *ends)

    def _rows_in_sight(self, first: int, last: int) -> tuple[list[Line], list[Line]]:
        rows = [self._timed(first + at, row) for at, row in enumerate(islice(self._all_rows(), first, last))]
        texts = [[column.cell(row) for column in self._columns] for row in rows]
        state = self._view.state
        reasons = [_why(row.cell, state) for row in rows]
        layout = self._lay_out()
        lines: list[Line] = [
            (Span(layout.row(text), "muted" if row.place == "–" else "text"), *why)
            for row, text, why in zip(rows, texts, reasons, strict=True)
        ]
        return [self._summary(), *_set_aside(state), line((layout.heading, "muted"))], lines

    def copied(self) -> Copied | None:
        """The cells of the queue."""
        rows = [self._timed(index, row) for index, row in enumerate(self._all_rows())]
        return copied_table("The queue", shown_table(rows, self._columns)) if rows else None

    def _lay_out(self) -> Layout:
        """The page of columns in sight; they follow from the width and from what the cells are."""
        width = self.content_size.width
        if width != self._laid_out_for:
            self._laid_out_for = width
            for_reasons = next(taken for least, taken in _REASON_WIDTHS if width >= least)
            if not self._view.state.side_by_side and width < _REASON_WIDTHS[0][0]:
                for_reasons = min(for_reasons, _STATUS_WIDTH)
            room = width - for_reasons
            self.pages = lay_out(self._columns, self._named, room).pages(room)
        layout = self.layout_now
        assert layout is not None
        return layout

    def _all_rows(self) -> Iterator[_QueueRow]:
        """The running cells, then waiting cells, cells to add, cells left out, cells that are done."""
        for cell in self._at_work:
            yield _QueueRow("now", cell, cell.spec, cell.repeat)
        for place, cell in enumerate(self._waiting, 1):
            yield _QueueRow(str(place), cell, cell.spec, cell.repeat)
        for place, (spec, repeat) in enumerate(self._added, 1):
            yield _QueueRow(f"+{place}", None, spec, repeat)
        for cell in chain(self._left_out, self._done):
            yield _QueueRow("–", cell, cell.spec, cell.repeat, cell.whole_run_s if cell.status in DONE else None)

    def _timed(self, index: int, row: _QueueRow) -> _QueueRow:
        """The row with the time that its cell takes, and the time of its end."""
        if row.place == "–":
            return row
        if row.place == "now" and row.cell:
            ends_s = self._ends.running.get(row.cell.cell)
            return row._replace(takes_s=ends_s, ends_s=ends_s)
        return row._replace(takes_s=self._prices.of(row.spec), ends_s=self._ends.waiting[index - len(self._at_work)])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "columns":
            return super().check_action(action, parameters)
        queue = self._view.queue
        if action == "hold":
            return queue is not None and self._view.running
        return queue is not None or action not in ("move_cell", "to_end", "skip", "retry")

    def _move(self, rows: int) -> None:
        super()._move(rows)
        cell, several = self.selected, self._view.state.side_by_side
        follows = cell is not None and (cell.status == "queued" or (several and cell.status == "running"))
        self._on = cell.cell if cell and follows else None

    def on_rows_moved(self) -> None:
        if (cell := self.selected) is not None:
            requests_of(self).follow_cell(cell)

    def on_blur(self) -> None:
        self._on = None
        super().on_blur()

    def _queue(self) -> CellQueue:
        assert self._view.queue is not None, "check_action offers no such key"
        return self._view.queue

    def action_move_cell(self, by: int) -> None:
        cell = self.selected
        if cell is None or cell.status != "queued":
            self._tell("Only waiting cells can be moved.")
        else:
            self._queue().move(cell.cell, by)
            self._on = cell.cell
            requests_of(self).queue_changed(False)

    def action_to_end(self, direction: int) -> None:
        self.action_move_cell(direction * len(self._waiting))

    def action_skip(self) -> None:
        cell = self.selected
        if cell is None:
            self._tell(f"Not queued yet: {key_name('app.run')} adds these cells.")
        elif cell.status in LEFT_OUT:
            self._queue().requeue([cell.cell])
            requests_of(self).queue_changed(True)
        elif cell.status == "queued":
            self._queue().skip([cell.cell], "skipped by hand")
            self._on = None
            requests_of(self).queue_changed(False)
        else:
            self._tell(f"Cell {status.number(cell)} is running; {key_name('app.stop')} stops the run.")

    def action_hold(self) -> None:
        self._queue().pause(not self._queue().paused)
        requests_of(self).queue_changed(False)

    def action_retry(self) -> None:
        failed = [cell.cell for cell in self._left_out if cell.status in ("failed", "killed")]
        if failed:
            self._queue().requeue(failed)
            requests_of(self).queue_changed(True)
        else:
            self._tell("No failed cells.")

    def action_oom_rule(self) -> None:
        requests_of(self).set_oom_rule(not self._view.skips_after_oom)

    def _tell(self, text: str) -> None:
        self.app.notify(text, severity="warning", markup=False, timeout=4)


def _set_aside(state: SessionState) -> list[Line]:
    """The lanes that run no more cells, each with its reason."""
    lanes = [lane for lane in state.lanes.values() if lane.set_aside is not None]
    found = [
        line((f"lane {each.lane.lane}, {status.place(each.lane)}, set aside: {format.plain(each.set_aside or '')}",
              "caution"))
        for each in lanes[:_MOST_SET_ASIDE]
    ]  # fmt: skip
    more = len(lanes) - _MOST_SET_ASIDE
    return [*found, *([line((f"{format.plural(more, 'more lane')} set aside", "caution"))] if more > 0 else [])]


def _why(cell: CellState | None, state: SessionState) -> tuple[Span, ...]:
    if cell is not None and state.side_by_side and cell.status in ("queued", "running"):
        return (status.stage_of(state, cell),)
    if cell is None or cell.status == "queued":
        return ()
    mark = status.status(cell)
    reason = cell.skipped_because if cell.status == "skipped" else status.how_it_ended(cell)
    if cell.status in ("running", "cancelled") or not reason:
        return (mark,)
    return (mark, Span(f": {format.plain(reason)}", "muted"))
