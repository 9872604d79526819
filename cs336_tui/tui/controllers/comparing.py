"""Which cells and sessions are compared, and keeping results as reference points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cs336_tui.analysis.merge import Result
from cs336_tui.session.cell_state import CellState
from cs336_tui.tui.background import in_background
from cs336_tui.tui.session import Session
from cs336_tui.tui.tabs.compare.pane import Compared, Source

if TYPE_CHECKING:
    from cs336_tui.tui.app import Cs336App


class MarkedCells:
    """Up to two cells, of whatever sessions, that are to be compared; a third takes the place of the first."""

    def __init__(self) -> None:
        self._marked: list[tuple[Source, CellState]] = []

    @property
    def cells(self) -> tuple[CellState, ...]:
        return tuple(cell for _, cell in self._marked)

    def turn(self, session: Session, cell: CellState) -> None:
        """Mark a cell, or no longer."""
        if cell in self.cells:
            self._marked = [(source, other) for source, other in self._marked if other is not cell]
        else:
            self._marked = [*self._marked, ((session.title, session.state), cell)][-2:]

    def compared(self, sessions: Sequence[Session]) -> Compared:
        """What Compare puts together."""
        return Compared(tuple((session.title or "session", session.state) for session in sessions), tuple(self._marked))


def keep_as_reference(app: Cs336App, results: Sequence[Result]) -> None:
    """Ask for a title and add the measured results to one's own reference points."""
    from cs336_tui.analysis.reference import ReferenceFileError, add_from
    from cs336_tui.tui.dialogs.questions import AskText

    def kept(title: str) -> str:
        try:
            added = add_from(results, title)
        except ReferenceFileError as error:
            return f"! {error}"
        left_out = f"; {len(added.left_out)} cells left out, the first: {added.left_out[0]}" if added.left_out else ""
        return f"{len(added.rows)} reference points kept as {title}{left_out}"

    def tell(outcome: str) -> None:
        if not app.screen_stack:
            return
        app.notify(outcome, title="Reference points", markup=False)
        app.refresh_panes()

    def entered(title: str | None) -> None:
        if title is not None:
            in_background(app, lambda: kept(title), tell)

    about = "A title for these cells among your own reference points, such as: my laptop."
    app.push_screen(
        AskText("Keep as reference", about, check=lambda title: "" if title else "a title is needed"), entered
    )
