"""Reports on the screen: which cell they are about, asking for one, and telling when it is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cs336_tui.events import ReportFinished
from cs336_tui.session.state import CellState
from cs336_tui.tui.panes.report import ReportPane
from cs336_tui.tui.panes.results import ResultsPane
from cs336_tui.tui.screen import TABS
from cs336_tui.tui.session import Session

if TYPE_CHECKING:
    from cs336_tui.tui.app import Cs336App

_TAB_OF = {"oom": "memory"}
"""The tab that shows a report, where it is not named as the report's kind."""


class ReportDesk:
    """Serves the tabs of reports of `app`."""

    def __init__(self, app: Cs336App) -> None:
        self._app = app
        self._chosen: tuple[Session, int] | None = None

    def cell(self, session: Session) -> CellState | None:
        """The cell that reports are about: the one that somebody chose, else the one that runs or was looked at."""
        if self._chosen is not None and self._chosen[0] is session:
            return session.state.cells.get(self._chosen[1]) or session.cell
        return session.cell

    def choose(self, session: Session, cell: int) -> None:
        """Stay with this cell, whichever runs."""
        self._chosen = session, cell
        session.looked_at = cell

    def follow(self) -> None:
        """Be about the cell that runs again."""
        self._chosen = None

    def step(self, by: int) -> None:
        """Go to the session's next cell, or the one before."""
        session = self._app.shown
        cells, now = list(session.state.cells), self.cell(session)
        if cells:
            place = min(max(cells.index(now.cell) + by if now else 0, 0), len(cells) - 1)
            self.choose(session, cells[place])
            self._app.main.query_one(ResultsPane).cursor = place

    def ask(self, wanted: ReportPane.Wanted) -> bool:
        """Have the report made; False when it cannot be asked for."""
        source, subject = self._app.live.source, wanted.subject
        if source is None or subject.spec is None or not subject.can_ask:
            return False
        if subject.cell is not None:
            self.choose(self._app.live, subject.cell)
        source.ask(wanted.kind, subject.spec, subject.cell)
        return True

    @property
    def in_progress(self) -> str:
        """The report that is being made and how far it is, for the top line; empty when none is."""
        reports = self._app.live.state.reports
        latest = reports[max(reports)] if reports and self._app.run_in_progress else None
        return f"{latest.kind}: {latest.stage} ..." if latest and latest.status is None else ""

    def finished(self, event: ReportFinished) -> None:
        """Say so where the report cannot be seen."""
        report = self._app.live.state.reports.get(event.report)
        if report is None or event.status == "cancelled" or event.at < self._app.live.news_since:
            return
        tab = TABS[_TAB_OF.get(report.kind, report.kind)]
        if self._app.main.shows(tab.id) and self._app.shown is self._app.live and event.status == "ok":
            return
        if event.status != "ok":
            text = f"{tab.label} of {report.spec.title}: {event.error or event.status} ({tab.key})"
            self._app.notify(text, title="No report", severity="error", markup=False, timeout=10)
        elif report.kind == "oom":
            text = f"Why {report.spec.title} ran out of memory can be read in {tab.label} ({tab.key})."
            self._app.notify(text, title="Out of memory", severity="warning", markup=False)
        else:
            self._app.notify(f"{tab.label} of {report.spec.title}: ready ({tab.key}).", title="Report", markup=False)
