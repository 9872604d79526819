"""The Roofline tab: a drawing and a table of the session's cells under the peaks of their device."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.events import Resize

from cs336_tui.export.writing.formats import render
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.tui.background import in_background
from cs336_tui.tui.charts.roofline import Bandwidths
from cs336_tui.tui.keys import bind, key_name, tab_name
from cs336_tui.tui.requests import WantedPeak, requests_of
from cs336_tui.tui.sources import PeakView
from cs336_tui.tui.tabs import status
from cs336_tui.tui.tabs.roofline_lines import Roofline, chart_lines, doubts, invitation, peak_wanted, roofline_of
from cs336_tui.tui.widgets.columns import Laid
from cs336_tui.tui.widgets.lines import Line, Lines, line, paragraphs, wrapped
from cs336_tui.tui.widgets.rows import Rows, WideRows

_BESIDE = 100
"""Width from which the table is beside the drawing, not under it."""


class RooflinePane(Container):
    """Draws the machine and the precision of the cell under the table's cursor."""

    DEFAULT_CSS = """
    RooflinePane {
        layout: vertical;
        #roofline-chart { height: 3fr; width: 1fr; }
        #roofline-rows { height: 2fr; width: 1fr; }
        &.-beside { layout: horizontal; }
        &.-beside #roofline-chart { height: 1fr; width: 1fr; margin-right: 2; }
        &.-beside #roofline-rows { height: 1fr; width: 1fr; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("make", "measure", "Measure the peak", "roofline.measure"),
        bind("copy", "copy", "Copy table", "roofline.copy"),
    ]

    coming: asyncio.Event | None = None

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._chart = Lines(id="roofline-chart")
        self._rows = WideRows(id="roofline-rows")
        self._counted: tuple[int, ...] | None = None
        """Source of the roofline."""
        self._roofline: Roofline | None = None
        """None while it is made."""
        self._view: PeakView | None = None
        self._in_sight: CellState | None = None
        self._laid: Laid | None = None
        self._charts = Bandwidths()

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
            cells = [point.result.cell.cell for point in self._roofline.points]
            here = self._in_sight.cell if self._in_sight else None
            self._rows.cursor = cells.index(here) if here in cells else len(cells) - 1

    def _find(self, state: SessionState, view: PeakView) -> None:
        settled = (id(state), status.settled_of(state), view.version, id(view.here))
        if settled == self._counted:
            return
        if self._counted is None or settled[0] != self._counted[0]:
            self._roofline = None
        self._counted = settled
        make = partial(roofline_of, state, view.find, view.here)
        self.coming = in_background(self, make, partial(self._take, settled, state))

    def _take(self, settled: tuple[int, ...], state: SessionState, found: Roofline) -> None:
        if settled != self._counted:  # something else was asked meanwhile
            return
        is_first, self._roofline, self._laid = self._roofline is None, found, Laid(found.sheet, 12)
        if is_first:
            self._follow()
        self._paint(state)
        self.refresh_bindings()

    def _paint(self, state: SessionState) -> None:
        chart, rows, roofline = self._chart, self._rows, self._roofline
        width, height = chart.content_size
        if roofline is None or self._laid is None or not roofline.points:
            drawn = self._bandwidths(state, width, height) if roofline is not None else ()
            chart.paint(drawn or self._without(state, width))
            rows.pages = ()
            rows.fill(())
            return
        chosen = min(rows.cursor, len(roofline.points) - 1)
        said = self._said(roofline, chosen, width)
        chart.paint([*said, *chart_lines(roofline, chosen, width, height - len(said))])
        self._laid = laid = self._laid.at(max(rows.content_size.width, 12), rows.columns_page)
        rows.pages = laid.pages
        heading = [*laid.above, laid.heading]
        rows.draw_from(len(laid), lambda first, last: (heading, laid.lines(first, last)), heading_rows=len(heading))

    def _bandwidths(self, state: SessionState, width: int, height: int) -> Sequence[Line]:
        """Of collectives, which compute nothing, busbw over size."""
        cells = [cell for cell in state.cells.values() if cell.spec.is_collective]
        here = self._in_sight if self._in_sight in cells else cells[-1] if cells else None
        return self._charts.lines(state, status.settled_of(state), here.spec, width, height) if here else ()

    def _without(self, state: SessionState, width: int) -> list[Line]:
        """In place of a roofline: why there is none."""
        if self._roofline is None:
            return [line(("making the roofline ...", "muted"))]
        if absent := self._roofline.left_out:
            return paragraphs((f"! {text}" for text in absent), width, "caution")
        if any(cell.spec.is_collective for cell in state.cells.values()):
            why = "A collective computes nothing; its busbw over size is drawn here once two sizes are timed."
            return wrapped(why, width, "muted")
        if state.is_recorded:
            why = (
                "Recorded elsewhere: no step was timed, and the model's FLOPs are not known, so there is no point here."
            )
            return wrapped(why, width, "muted")
        how = (
            f"Choose cells in {tab_name('configure')} and press {key_name('app.run')}; "
            "each cell that succeeds is a point here."
            if state.running_cell is None
            else "The running cell is the first; it is shown here when it ends."
        )
        return [line(("No cell has been measured yet.", "strong")), (), *wrapped(how, width, "muted")]

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
        """The peaks that the key measures: all that are missing, else that of the cell under the cursor again."""
        roofline, view = self._roofline, self._view
        if roofline is None or view is None or view.here is None or view.progress or not roofline.points:
            return ()
        if roofline.missing:
            return roofline.missing
        again = peak_wanted(roofline.points[min(self._rows.cursor, len(roofline.points) - 1)], view.here)
        return (again,) if again else ()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        if action == "copy":
            return self._roofline is not None and self._roofline.table is not None
        return action != "measure" or bool(self._wanted)

    def action_measure(self) -> None:
        if wanted := self._wanted:
            requests_of(self).measure_peaks(wanted)

    def action_copy(self) -> None:
        """Copy the whole table to the terminal's clipboard, also over SSH."""
        if self._roofline is not None and self._roofline.table is not None:
            self.app.copy_to_clipboard(render(self._roofline.table, "markdown"))
            self.app.notify("The table was sent to the terminal's clipboard as markdown.", title="Copied")

    @on(Rows.Moved)
    @on(Rows.Chosen)
    def _tell(self, message: Rows.Moved | Rows.Chosen) -> None:
        message.stop()
        points = self._roofline.points if self._roofline else ()
        if message.index < len(points):
            cell = points[message.index].result.cell
            requests_of(self).choose_cell(cell)
            if isinstance(message, Rows.Chosen):
                requests_of(self).read_cell(cell)
