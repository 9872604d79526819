"""The base of the tabs that show reports: one cell's report, or how to get one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

import msgspec
from textual.binding import BindingType

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import NO_MODEL
from cs336_tui.events.reports import ReportKind
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import ReportState
from cs336_tui.tui import format
from cs336_tui.tui.keys import bind, key_name, tab_name
from cs336_tui.tui.requests import requests_of
from cs336_tui.tui.widgets.columns import Copied
from cs336_tui.tui.widgets.lines import Line, Span, line, wrapped
from cs336_tui.tui.widgets.rows import WideRows

_NONE = ("No report for this cell in this session.", "muted")
_ENDINGS = {"cancelled": "was stopped", "oom": "ran out of memory", "killed": "was killed", None: "was interrupted"}


class About(msgspec.Struct, frozen=True):
    """The cell of a report; `cell`: its number, if it is in the session."""

    spec: CellSpec
    cell: int | None


class Subject(msgspec.Struct, frozen=True):
    """The content of the tabs of reports."""

    state: SessionState
    spec: CellSpec | None = None
    """The cell under the cursor; in a session without cells, the first that would run."""
    cell: int | None = None
    """Its number, if it is in the session."""
    can_ask: bool = False
    """True if this app can make a report: not in a replay or another session."""
    running: bool = False
    """True while a cell is timed; a report waits for its end."""
    asked: frozenset[tuple[str, CellSpec]] = frozenset()
    """Reports that wait, by kind and spec."""


class ReportPane(WideRows):
    """Shows the subject's report of one kind. Subclasses give `kind`, `about` and `draw`."""

    kind: ClassVar[ReportKind]
    about: ClassVar[str]
    """The contents of such a report and the time it takes, in one or two sentences."""
    elsewhere: ClassVar[str]
    """The place of such a thing where another made the recording that lacks it, in one sentence; `{opens}`: the key
    that opens a file."""
    varying: ClassVar[tuple[str, ...]] = ("make",)
    """Actions that are not always offered."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("make", "make", "Make report", "report.make"),
        bind("next-cell", "step_cell(1)", "Next cell", "report.next_cell", shown_as="[ ]"),
        bind("cell-before", "step_cell(-1)", "Previous cell", "report.cell_before", show=False),
    ]

    subject = Subject(SessionState())
    report: ReportState | None = None
    """The report that is shown; None if there is none with a content."""
    _offered: tuple[bool | None, ...] = ()

    def show(self, subject: Subject) -> None:
        """Paint what there is of the subject."""
        self.subject, self.pages = subject, ()
        self._show()
        offered = tuple(self.check_action(action, ()) for action in self.varying)
        if offered != self._offered:
            self._offered = offered
            self.refresh_bindings()

    def _show(self) -> None:
        latest = self._latest
        if latest is None or latest.content is None:
            self.report = None
            first, *more = self.above()
            self.fill((), [first, (), *more, *self._without(latest)])
        else:
            if self.report is None or self.report.report != latest.report:
                self.cursor = 0
            self.report = latest
            self.draw(latest)

    @property
    def _latest(self) -> ReportState | None:
        """The subject's latest report, perhaps without a content."""
        return self.subject.state.report_of(self.kind, self.subject.spec) if self.subject.spec else None

    def draw(self, report: ReportState) -> None:
        """Show a report with a content by `fill` or `draw_from`; the heading begins with `title`."""
        raise NotImplementedError

    def copied(self) -> Copied | None:
        """The tables of the report that is shown."""
        content = self.report.content if self.report else None
        if content is None:
            return None

        def make() -> str:
            from cs336_tui.export.reports import tables_of_reports
            from cs336_tui.export.writing.formats import render_all

            return render_all(tables_of_reports([content]), "markdown")

        return Copied(f"The {self.kind} report", make)

    def above(self) -> list[Line]:
        """The first lines."""
        return [self.title()]

    def title(self, *more: Span) -> Line:
        """The title of the subject, with other spans after it."""
        spec = self.subject.spec
        return line((format.plain(spec.title) if spec else "No cell yet", "title"), *more)

    def _without(self, latest: ReportState | None) -> Sequence[Line]:
        """In place of a report: its progress, why there is none, how to get one."""
        width = self.content_size.width
        subject = self.subject
        if subject.spec is None:
            where = f"Choose cells in {tab_name('configure')}, or put the cursor on one in {tab_name('results')}."
            return wrapped(where, width, "muted")
        if subject.spec.recording:
            others = any(subject.state.report_of(self.kind, cell.spec) for cell in subject.state.cells.values())
            step = key_name("report.cell_before", "report.next_cell")
            more = f" {step} goes to a cell of this session that has it." if others else ""
            opens = f"{key_name('sessions.open_file')} in {tab_name('sessions')} opens it"
            return wrapped(f"This recording has none. {self.elsewhere.format(opens=opens)}{more}", width, "muted")
        if subject.spec.is_collective:
            why = f"{NO_MODEL[0].upper()}{NO_MODEL[1:]}: no report is made of it."
            where = f"{tab_name('results')} has its bandwidths, {tab_name('roofline')} their curve over sizes."
            return wrapped(f"{why} {where}", width, "muted")
        if latest is not None and latest.status is None and not subject.state.ended:
            seconds = max(0.0, (subject.state.last_at or time.time()) - latest.started_at)
            return wrapped(f"{latest.stage} ... {seconds:.0f} s", width, "strong")
        if (self.kind, subject.spec) in subject.asked:
            when = "after the running cell" if subject.running else "next"
            stop = f"{key_name('app.stop')} stops everything"
            return wrapped(f"The report waits: it is made {when}. {stop}.", width, "strong")
        ended: list[Line] = []
        if latest is not None:
            error = f": {latest.error}" if latest.error and latest.status != "cancelled" else ""
            ended = [*wrapped(f"The report {_ENDINGS.get(latest.status, 'failed')}{error}.", width, "caution"), ()]
        when = "It is made after the running cell, never while one is timed." if subject.running else ""
        how = (f"Press {key_name('report.make')} to make it. {when}", "strong") if subject.can_ask else _NONE
        own = f"{key_name('app.open_sessions', 'sessions.open_file')} opens what another program recorded."
        return [*ended, *wrapped(self.about, width), (), *wrapped(how[0], width, how[1]), *wrapped(own, width, "muted")]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return (action != "make" or self._can_make) and super().check_action(action, parameters)

    @property
    def _can_make(self) -> bool:
        spec = self.subject.spec
        return self.subject.can_ask and spec is not None and not spec.is_collective

    def action_make(self) -> None:
        self._make(self.kind)

    def _make(self, kind: ReportKind) -> None:
        if self._can_make and self.subject.spec is not None:
            requests_of(self).make_report(kind, self.subject.spec, self.subject.cell)

    def action_step_cell(self, by: int) -> None:
        requests_of(self).step_cell(by)
