"""What is looked at: panes, sessions, cells."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from textual import on

from cs336_tui.config.presets import Preset
from cs336_tui.tui.configure.form import RunOptions
from cs336_tui.tui.controllers import comparing
from cs336_tui.tui.controllers.reports import ReportDesk
from cs336_tui.tui.controllers.sessions import SessionDesk
from cs336_tui.tui.display import Display
from cs336_tui.tui.session import Session
from cs336_tui.tui.tabs.report import About
from cs336_tui.tui.tabs.results import ResultsPane
from cs336_tui.tui.tabs.sessions import SessionsPane
from cs336_tui.tui.widgets.bars import TabBar
from cs336_tui.tui.widgets.rows import Rows

if TYPE_CHECKING:
    from cs336_tui.tui.app import Cs336App
    from cs336_tui.tui.background import SummaryKeeper
    from cs336_tui.tui.controllers.estimates import EstimateDesk
    from cs336_tui.tui.tabs.estimate import EstimatePane
    from cs336_tui.tui.tabs.roofline import RooflinePane


class Looking(Display):
    """Brings panes into sight, and the sessions and cells that they are about. `session_dir`: see `Cs336App`."""

    def __init__(
        self,
        refresh_hz: float,
        preset: Preset,
        options: RunOptions | None,
        keeper: SummaryKeeper | None,
        session_dir: Path | None,
    ) -> None:
        super().__init__(refresh_hz, preset, options, keeper)
        self._reports = ReportDesk(self._whole)
        self._desk = SessionDesk(self._whole, session_dir)
        self._marked = comparing.MarkedCells()
        self._estimates: EstimateDesk | None = None

    @property
    def _whole(self) -> Cs336App:
        """The app as those know it who carry out what people ask for; there is no other."""
        return self  # type: ignore[return-value]

    def look_at(self, session: Session | None) -> None:
        """Show another session, or the app's own again."""
        self._opened = None if session is self.live else session
        if self._opened is not None and not self.main.wide:
            self.action_open("results")
        self.refresh_bindings()
        self.refresh_panes()

    def action_leave_opened(self) -> None:
        """From a session that was opened to the app's own."""
        self.look_at(None)

    def action_open(self, pane: str) -> None:
        """Bring a pane into sight and put the focus into it."""
        self._open(pane)
        self.call_after_refresh(self.main.focus_pane, pane)

    @on(TabBar.Chosen)
    def _open_tab(self, message: TabBar.Chosen) -> None:
        self._open(message.tab)

    def _open(self, pane: str) -> None:
        self.main.open(pane)
        if pane == "sessions":
            self._desk.reload()
        elif pane == "estimate":
            self._begin_estimates()
        self.refresh_panes()

    def _begin_estimates(self) -> None:
        from cs336_tui.tui.controllers.estimates import EstimateDesk

        if self._estimates is None:
            self._estimates = EstimateDesk(self._whole)

    def on_estimate_pane_switched(self) -> None:
        """The session's cells instead of those of the choices, or back."""
        if self._estimates is not None:
            self._estimates.turn()
            self.paint()

    def on_estimate_pane_gpu_named(self, message: EstimatePane.GpuNamed) -> None:
        """Judge for a GPU that need not be here, or for this machine again."""
        if self._estimates is not None:
            self._estimates.name_gpu(message.name)
            self.paint()

    @on(Rows.Moved, "#results")
    def _look_at(self, message: Rows.Moved) -> None:
        cells = tuple(self.state.cells)
        if message.index < len(cells):  # the session that is shown may have changed meanwhile
            cell = self.state.cells[cells[message.index]]
            self._reports.choose(self.shown, About(cell.spec, cell.cell))
            self._fresh = True

    def on_roofline_pane_looked_at(self, message: RooflinePane.LookedAt) -> None:
        """The cell of a point is the one that every pane is about."""
        place = list(self.state.cells).index(message.cell.cell)
        self.main.query_one(ResultsPane).cursor = place
        self._reports.choose(self.shown, About(message.cell.spec, message.cell.cell))
        self._fresh = True
        if message.opened:
            from cs336_tui.tui.controllers import dialogs

            dialogs.read_cell(self._whole, place)

    @on(Rows.Chosen, "#results")
    def _open_detail(self, message: Rows.Chosen) -> None:
        from cs336_tui.tui.controllers import dialogs

        dialogs.read_cell(self._whole, message.index)

    @on(ResultsPane.Marked)
    def _mark_cell(self, message: ResultsPane.Marked) -> None:
        self._marked.turn(self.shown, message.cell)
        self.paint()

    @on(SessionsPane.Asked)
    def _session_asked(self, message: SessionsPane.Asked) -> None:
        self._desk.do(message.wish, message.info)

    @on(SessionsPane.Marked)
    def _sessions_marked(self) -> None:
        self._desk.marked()
