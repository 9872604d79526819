"""The Log tab: what the children printed and what the tool has to say, newest last."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from cs336_tui.events import ChildOutput, Event, Notice
from cs336_tui.session.state import SessionState
from cs336_tui.tui import format
from cs336_tui.tui.panes import status
from cs336_tui.tui.widgets.lines import Line, line
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
        """The session log's path, shown while there is nothing else."""

    def take(self, events: Sequence[Event], state: SessionState) -> bool:
        """Add the rows of these events; true if there were any."""
        rows: list[Line] = []
        for event in events:
            match event:
                case Notice():
                    rows += [line(("  ! ", "caution"), format.plain(row)) for row in event.text.splitlines()]
                case ChildOutput():
                    cell = state.cells.get(event.cell) if event.cell is not None else None
                    label = f"{status.number(state, cell):>3} " if cell else "  · "
                    rows += [line((label, "muted"), format.plain(row)) for row in event.text.splitlines()]
                case _:
                    pass
        self._kept.extend(rows)
        return bool(rows)

    def show(self) -> None:
        if self._kept:
            self.fill(tuple(self._kept))
            return
        where = [line((f"The session log is {self.where}", "muted"))] if self.where else []
        self.fill((), [(), line(("Nothing yet. What a cell prints, and notices, appear here.", "muted")), *where])
