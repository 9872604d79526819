"""The Log tab: which cells ran, what they printed, how they failed, and what the tool has to say; newest last."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from cs336_tui.events import CellFinished, CellStarted, ChildOutput, Event, Notice
from cs336_tui.session.state import CellState, SessionState
from cs336_tui.tui import format
from cs336_tui.tui.panes import status
from cs336_tui.tui.widgets.lines import Line, Span, line
from cs336_tui.tui.widgets.rows import Rows

LIMIT = 5000
"""Rows kept; the session log has all of them."""


class LogPane(Rows):
    """Each row starts with its cell's number; it follows the newest row until somebody scrolls up."""

    BORDER_TITLE = "Log"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(follow=True, id=id)
        self._kept: deque[Line] = deque(maxlen=LIMIT)
        self.where = ""
        """The session log's path."""

    def take(self, events: Sequence[Event], state: SessionState) -> None:
        """Add the rows of these events, which `state` holds already."""
        for event in events:
            match event:
                case Notice():
                    self._kept.extend(_rows(Span("  ! ", "caution"), event.text))
                case ChildOutput():
                    cell = state.cells.get(event.cell) if event.cell is not None else None
                    self._kept.extend(_rows(_label(state, cell), event.text))
                case CellStarted() if cell := state.cells.get(event.cell):
                    self._kept.append(line(_label(state, cell), (f"▶ {cell.spec.title}", "muted")))
                case CellFinished(status="failed" | "killed" | "oom") if cell := state.cells.get(event.cell):
                    self._kept.append(line(_label(state, cell), (f"✗ {status.how_it_ended(cell)}", "bad")))
                    self._kept.extend(_rows(_label(state, cell), event.error or ""))
                case _:
                    pass

    def show(self) -> None:
        where = [line((f"The session log is {self.where}", "muted"))] if self.where else []
        if self._kept:
            self.fill((*where, *self._kept))
            return
        self.fill((), [(), line(("Nothing yet. What a cell prints, and notices, appear here.", "muted")), *where])


def _label(state: SessionState, cell: CellState | None) -> Span:
    return Span(f"{status.number(state, cell):>3} " if cell else "  · ", "muted")


def _rows(label: Span, text: str) -> list[Line]:
    return [(label, Span(format.plain(row))) for row in text.splitlines()]
