"""The Log tab: starts, output and failures of cells, and notices; newest last."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from cs336_tui.events.events import CellFinished, CellSkipped, CellStarted, ChildOutput, Event, Notice
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.tui import format
from cs336_tui.tui.tabs import status
from cs336_tui.tui.widgets.lines import Line, Span, line
from cs336_tui.tui.widgets.rows import Rows

LIMIT = 5000
"""Most rows that are kept; the session log has all."""


class LogBook:
    """The rows of one session; `where`: the path of its log, empty if there is none."""

    def __init__(self, where: str = "") -> None:
        self.where = where
        self.rows: deque[Line] = deque(maxlen=LIMIT)

    def take(self, events: Iterable[Event], state: SessionState) -> None:
        """Add the rows of these events, which `state` includes."""
        for event in events:
            self.rows.extend(_rows_of(event, state))


class LogPane(Rows):
    """Each row starts with its cell's number. The newest row stays in sight until the user scrolls up."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(cursor=False, follow=True, id=id)
        self.book = LogBook()

    def show(self, book: LogBook) -> None:
        self.book = book
        text, path, room = "The session log is ", book.where, self.content_size.width
        if len(text) + len(path) > room:
            path = f"…{path[len(text) + 1 - room :]}"
        where = [line((text + path, "muted"))] if book.where else []
        if book.rows:
            self.fill((*where, *book.rows))
        else:
            self.fill((), [(), line(("Nothing yet. What a cell prints, and notices, appear here.", "muted")), *where])


def _rows_of(event: Event, state: SessionState) -> Sequence[Line]:
    match event:
        case Notice():
            return _rows(Span("  ! ", "caution"), event.text)
        case ChildOutput():
            cell = state.cells.get(event.cell) if event.cell is not None else None
            return _rows(_label(cell), event.text)
        case CellStarted() if cell := state.cells.get(event.cell):
            return [line(_label(cell), (f"▶ {cell.spec.title}", "muted"))]
        case CellSkipped() if cell := state.cells.get(event.cell):
            return [line(_label(cell), (f"» skipped: {format.plain(event.reason)}", "muted"))]
        case CellFinished(status="failed" | "killed" | "oom") if cell := state.cells.get(event.cell):
            ended = status.how_it_ended(cell) or event.status  # nothing to say of a cell that waits again already
            return [line(_label(cell), (f"✗ {ended}", "bad")), *_rows(_label(cell), event.error or "")]
        case _:
            return []


def _label(cell: CellState | None) -> Span:
    return Span(f"{status.number(cell):>3} " if cell else "  · ", "muted")


def _rows(label: Span, text: str) -> list[Line]:
    return [(label, Span(format.plain(row))) for row in text.splitlines()]
