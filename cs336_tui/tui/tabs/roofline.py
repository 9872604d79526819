"""The Roofline tab: a drawing and a table of the session's cells under the peaks of their device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.events import Resize
from textual.message import Message

from cs336_tui.session.cell_state import CellState
from cs336_tui.session.state import SessionState
from cs336_tui.tui.background import in_background
from cs336_tui.tui.tabs.roofline_points import (
    Roofline,
    chart_lines,
    chosen_point,
    doubts,
    invitation,
    peak_wanted,
    roofline_of,
)
from cs336_tui.tui.tabs.status import settled_of
from cs336_tui.tui.widgets.columns import Laid
from cs336_tui.tui.widgets.lines import Line, Lines, line, wrapped
from cs336_tui.tui.widgets.rows import Rows

if TYPE_CHECKING:
    from cs336_tui.tui.live_source import PeakView, WantedPeak

_BESIDE = 100
"""Width from which the table is beside the drawing, not under it."""


class RooflinePane(Container):
    """Draws the machine and the precision of the cell under the table's cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "measure", "Measure the peak", id="roofline.measure"),
        Binding("c", "copy", "Copy table", id="roofline.copy"),
    ]

    class PeakWanted(Message):
        """The user wants these peaks measured."""

        def __init__(self, wanted: Sequence[WantedPeak]) -> None:
            super().__init__()
            self.wanted = tuple(wanted)

    class LookedAt(Message):
        """The cursor went to the point of this cell; `opened`: the user wants its details."""

        def __init__(self, cell: CellState, *, opened: bool = False) -> None:
            super().__init__()
            self.cell, self.opened = cell, opened

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._chart = Lines(id="roofline-chart")
        self._rows = Rows(id="roofline-rows")
        self._counted: tuple[int, ...] | None = None
        """What the roofline is made from."""
        self._roofline: Roofline | None = None
        """None while it is made."""
        self._view: PeakView | None = None
        self._in_sight: CellState | None = None
        self._laid: tuple[Roofline, int, Laid] | None = None

    def compose(self) -> ComposeResult:
        yield self._chart
        yield self._rows

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.width >= _BESIDE, "-beside")

    def show(self, state: SessionState, in_sight: CellState | None, view: PeakView) -> None:
        """Paint; without focus the cursor is on the cell `in_sight`."""
        could = self._wanted
        self._view, self._in_sight = view, in_sight
        self._find(state, view)
        if not self._rows.has_focus:
            self._follow()
        self._paint(state)
        if self._wanted != could:
            self.refresh_bindings()

    def _follow(self) -> None:
        if self._roofline is not None:
            self._rows.cursor = chosen_point(self._roofline, self._in_sight.cell if self._in_sight else None)

    def _find(self, state: SessionState, view: PeakView) -> None:
        settled = (id(state), settled_of(state), view.version, id(view.here))
        if settled == self._counted:
            return
        if self._counted is None or settled[0] != self._counted[0]:
            self._roofline = None
        self._counted = settled
        in_background(self, partial(roofline_of, state, view.find, view.here), partial(self._take, settled, state))

    def _take(self, settled: tuple[int, ...], state: SessionState, found: Roofline) -> None:
        if settled != self._counted:  # something else was asked meanwhile
            return
        is_first, self._roofline = self._roofline is None, found
        if is_first:
            self._follow()
        self._paint(state)
        self.refresh_bindings()

    def _paint(self, state: SessionState) -> None:
        chart, rows, roofline = self._chart, self._rows, self._roofline
        width, height = chart.content_size
        if roofline is None:
            chart.paint([line(("making the roofline ...", "muted"))])
            rows.fill(())
        elif not roofline.points and roofline.left_out:
            chart.paint([each for text in roofline.left_out for each in wrapped(f"! {text}", width, "caution")])
            rows.fill(())
        elif not roofline.points:
            chart.paint([line(("No cell has been measured yet.", "strong")), (), *self._empty(state, width)])
            rows.fill(())
        else:
            chosen = min(rows.cursor, len(roofline.points) - 1)
            said = self._said(roofline, chosen, width)
            drawn = chart_lines(roofline, chosen, width, height - len(said))
            chart.paint([*said, *drawn])
            laid = self._fitted(roofline)
            rows.draw_from(len(laid), lambda first, last: ([laid.heading], laid.lines(first, last)), heading_rows=1)

    def _fitted(self, roofline: Roofline) -> Laid:
        width = max(self._rows.content_size.width, 12)
        if self._laid is None or self._laid[:2] != (roofline, width):
            self._laid = roofline, width, Laid(roofline.sheet, width)
        return self._laid[2]

    def _empty(self, state: SessionState, width: int) -> list[Line]:
        if state.running_cell is not None:
            return wrapped("The running cell is the first; it is shown here when it ends.", width, "muted")
        return wrapped(
            "Choose cells in Configure (1) and press r; each cell that succeeds is a point here.", width, "muted"
        )

    def _said(self, roofline: Roofline, chosen: int, width: int) -> list[Line]:
        """The measurement that runs, its problem, and what to do."""
        view = self._view
        if view is not None and view.progress:
            return wrapped(view.progress, width, "strong")
        said = wrapped(f"! {view.problem}", width, "caution") if view and view.problem else []
        said += doubts(roofline, chosen, can_measure=bool(self._wanted) and not roofline.missing, width=width)
        return [*said, *invitation(roofline, can_measure=bool(self._wanted), width=width)]

    @property
    def _wanted(self) -> tuple[WantedPeak, ...]:
        """The peaks that n measures: all that are missing, else that of the cell under the cursor again."""
        roofline, view = self._roofline, self._view
        if roofline is None or view is None or view.here is None or view.progress or not roofline.points:
            return ()
        if roofline.missing:
            return roofline.missing
        again = peak_wanted(roofline.points[min(self._rows.cursor, len(roofline.points) - 1)], view.here)
        return (again,) if again else ()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        match action:
            case "measure":
                return bool(self._wanted)
            case "copy":
                return self._roofline is not None and self._roofline.table is not None
            case _:
                return True

    def action_measure(self) -> None:
        if wanted := self._wanted:
            self.post_message(self.PeakWanted(wanted))

    def action_copy(self) -> None:
        """Copy the whole table to the terminal's clipboard, also over SSH."""
        from cs336_tui.export.formats import render

        if self._roofline is not None and self._roofline.table is not None:
            self.app.copy_to_clipboard(render(self._roofline.table, "markdown"))
            self.app.notify("The table was sent to the terminal's clipboard as markdown.", title="Copied")

    @on(Rows.Moved)
    def _look_at(self, message: Rows.Moved) -> None:
        message.stop()
        self._tell(message.index)

    @on(Rows.Chosen)
    def _open(self, message: Rows.Chosen) -> None:
        message.stop()
        self._tell(message.index, opened=True)

    def _tell(self, index: int, *, opened: bool = False) -> None:
        points = self._roofline.points if self._roofline else ()
        if index < len(points):
            self.post_message(self.LookedAt(points[index].result.cell, opened=opened))
