"""The Precision tab: what other precisions than fp32 bought in this session, and one cell's dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from cs336_tui.analysis.merge import merge, title_of
from cs336_tui.events.reports import PrecisionReport, ReportKind
from cs336_tui.session.state import ReportState, SessionState
from cs336_tui.tui import format
from cs336_tui.tui.background import in_background
from cs336_tui.tui.tabs.report import ReportPane, Subject
from cs336_tui.tui.widgets.lines import Line, Span

if TYPE_CHECKING:
    from cs336_tui.analysis.precision import SpeedUp
    from cs336_tui.tui.tabs.page import Page

# What makes the page is imported when it is wanted: the app starts without.

_AT_ONCE = 300
"""Speed-ups among up to so many cells are worked out in the middle of a frame; among more on a thread."""


class _Settled(NamedTuple):
    """Differs whenever there may be another speed-up."""

    state: int
    finished_at: tuple[float | None, ...]


class PrecisionPane(ReportPane):
    """Speed-ups over fp32 in the session, always; below them the subject's report or how to get it."""

    BORDER_TITLE = "Precision"

    kind: ClassVar[ReportKind] = "precision"
    about: ClassVar[str] = (
        "A precision report runs one step of this cell and reads the dtypes of every module by hooks, beside the "
        "course's toy model under autocast and its accumulation experiment. It takes about as long as one step."
    )

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._counted: _Settled | None = None
        """What the speed-ups were worked out from."""
        self._speedups: Sequence[SpeedUp] | None = None
        """None while they are worked out."""
        self._drawn: tuple[int | None, int] | None = None
        """The report and the width for which page and rows were made; None when these are out of date."""
        self._page: Page | None = None
        self._below: Sequence[Line] = ()

    def show(self, subject: Subject) -> None:
        self._find_speedups(subject.state)
        latest = subject.state.report_of(self.kind, subject.spec) if subject.spec else None
        if latest is not None and latest.content is not None:
            super().show(subject)
        else:
            self.subject, self.report = subject, None
            page = self._drawn_page(None)
            self.fill((*page.rows, (), *self._without(latest)), [self.title()])

    def draw(self, report: ReportState) -> None:
        found = report.content
        assert isinstance(found, PrecisionReport)
        page = self._drawn_page(report)
        where = Span(f" · {format.plain(found.device_name)} · torch {found.torch}", "muted")
        self.fill((*page.rows, (), *self._below), [self.title(where)])

    def action_choose(self) -> None:
        """The reason of a speed-up's verdict."""
        detail = self._page.details.get(self.cursor) if self._page else None
        if detail is None:
            return
        from cs336_tui.tui.dialogs.reader import Reader
        from cs336_tui.tui.tabs.page import wrapped

        def write(width: int) -> list[Line]:
            return [line for text in detail.splitlines() for line in wrapped(text, width, indent="  ") or [()]]

        self.app.push_screen(Reader("Speed-up", write))

    def _drawn_page(self, report: ReportState | None) -> Page:
        """The speed-ups; they and the report's rows are made anew only when they would be others."""
        width = max(self.content_size.width, 12)
        of = (report.report if report else None, width)
        if self._page is None or of != self._drawn:
            from cs336_tui.tui.tabs.precision_page import report_rows, speedups_page

            self._drawn, self._page, self._below = of, speedups_page(self._speedups, width), ()
            if report is not None and isinstance(report.content, PrecisionReport):
                self._below = report_rows(report.content, width)
        return self._page

    def _find_speedups(self, state: SessionState) -> None:
        """Work the speed-ups out anew if another cell is over."""
        settled = _Settled(
            id(state), tuple(cell.finished.at if cell.finished else None for cell in state.cells.values())
        )
        if settled == self._counted:
            return
        from cs336_tui.analysis.precision import mixed_speedups

        if self._counted is None or settled.state != self._counted.state:
            self._speedups = self._drawn = None
        self._counted = settled
        results = merge([(title_of(state), state)])
        if len(results) <= _AT_ONCE:
            self._take(settled, mixed_speedups(results))
        else:
            in_background(self, partial(mixed_speedups, results), partial(self._take_and_show, settled))

    def _take(self, settled: _Settled, speedups: Sequence[SpeedUp]) -> None:
        if settled == self._counted:  # else something else was asked meanwhile
            self._speedups, self._drawn = speedups, None

    def _take_and_show(self, settled: _Settled, speedups: Sequence[SpeedUp]) -> None:
        self._take(settled, speedups)
        self.show(self.subject)
