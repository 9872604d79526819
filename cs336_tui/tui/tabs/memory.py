"""The Memory tab: where a step's memory goes, as recorded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from textual.binding import BindingType

from cs336_tui.events.reports import MemoryReport, OomReport, RankMemoryReport
from cs336_tui.session.states import CellState, ReportState
from cs336_tui.tui.background import Works
from cs336_tui.tui.dialogs.windows import Reader, text_reader
from cs336_tui.tui.keys import bind, bind_keys, key_name
from cs336_tui.tui.tabs import memory_tables, memory_timeline
from cs336_tui.tui.tabs.memory_tables import blocks_page, peaks_page, saved_page
from cs336_tui.tui.tabs.memory_timeline import EventWindow
from cs336_tui.tui.tabs.report import ReportPane, Subject
from cs336_tui.tui.widgets.lines import Line, Span, joined, views_line, wrapped
from cs336_tui.tui.widgets.rows import Page

if TYPE_CHECKING:
    from cs336_tui.analysis.memory import Timeline  # which imports numpy


MemoryView = Literal["timeline", "peaks", "largest", "blocks", "saved", "OOM"]
VIEWS: tuple[MemoryView, ...] = ("timeline", "peaks", "largest", "blocks", "saved")
LEVELS_MB = (0, 1, 10, 50, 100, 500, 1000)
"""Detail levels: smaller allocations are left out, MB (10⁶ bytes)."""
_FIRST_LEVEL = 1
"""Level of a record's list; a lower one where nothing is that large."""
_AT_ONCE = 50_000
"""Most events that are read within a frame; more are read on a thread."""
_LOW, _TALL_WIDE, _TALL = 12, 18, 30
"""Rows from which there is room for the record's note; for all about it, beside a picture or above it."""


class MemoryPane(ReportPane, Works["Timeline"]):
    """Shows one view of the subject's memory report; of a cell that ran out of memory, the reason."""

    kind = "memory"
    elsewhere = "Memory is in a CUDA memory snapshot of that run (.pickle): {opens}."
    varying = ("make", "go", "level")
    about = (
        "Every allocation of one step after warm-up: what is live when and for what, the largest allocations "
        "and where they come from, what each block saves for backward and how its backward changes memory. Recording "
        "takes a few seconds, apart from any timing."
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("view", "view(1)", "View", "memory.view", shown_as="v V"),
        bind("view-before", "view(-1)", "Previous view", "memory.view_before", show=False),
        bind_keys("right", "go(1)", "Moment", "memory.right", shown_as="←→"),
        bind_keys("left", "go(-1)", "Previous moment", "memory.left", show=False),
        bind("further", "go(10)", "Ten on", "memory.further_right", also="shift+right", show=False, shown_as="."),
        bind("further-back", "go(-10)", "Ten back", "memory.further_left", also="shift+left", show=False, shown_as=","),
        bind("closer", "zoom(0.5)", "Zoom", "memory.zoom_in", shown_as="+ -"),
        bind("farther", "zoom(2.0)", "Zoom out", "memory.zoom_out", show=False),
        bind("peak", "peak", "Peak", "memory.peak"),
        bind("closer", "level(-1)", "Level", "memory.level", shown_as="+ -"),
        bind("farther", "level(1)", "Level", "memory.level_up", show=False),
        bind_keys("enter", "choose", "Details", "memory.details"),
        # After the keys of the timeline, so that those come first in it.
        bind("further", "columns(1)", "Columns", memory_tables.COLUMNS, first="right", show=False),
        bind("further-back", "columns(-1)", "Previous columns", "memory.columns_before", first="left", show=False),
    ]

    view: MemoryView = "timeline"
    event = 0
    """The event under the timeline's cursor."""
    window: EventWindow | None = None
    _level = _FIRST_LEVEL
    _view_before: MemoryView = "timeline"
    """The view before OOM."""
    _page = Page(())
    _page_of: tuple[object, ...] = ()

    def show(self, subject: Subject) -> None:
        another, self.subject = subject.spec != self.subject.spec, subject
        recorded = self._latest is not None and self._latest.content is not None
        if another and self._failed and not recorded and self.view not in ("peaks", "OOM"):
            self._view_before, self.view = self.view, "OOM"  # the reason first
        if self.view == "OOM" and self._failed is None:
            self.view = self._view_before
        super().show(subject)

    def _show(self) -> None:
        """Peaks, and the reason why a cell ran out of memory, need no record of the subject."""
        state, width, turned = self.subject.state, self.content_size.width, self.columns_page
        if self.view == "peaks":
            over = tuple(cell.finished for cell in state.cells.values())
            reports = sum(report.content is not None for report in state.reports.values())
            make = partial(peaks_page, state, self.subject.spec, width, turned)
            self._fill(self._cached(make, over, reports, len(state.predictions)))
        elif self.view == "OOM" and (cell := self._failed):
            latest, prediction = state.report_of("oom", cell.spec), state.prediction_of(cell.spec)
            if latest is not None and isinstance(latest.content, OomReport):
                self._fill(self._cached(partial(memory_tables.oom_page, latest.content, prediction, width, turned)))
            else:
                ended = memory_tables.failure_lines(cell, prediction, width)
                self.fill((), [*self.above(), *ended, (), *self._unexplained(latest, width)])
        else:
            super()._show()

    @property
    def _failed(self) -> CellState | None:
        """The subject's cell, if it ran out of memory."""
        cell = self.subject.state.cells.get(-1 if self.subject.cell is None else self.subject.cell)
        return cell if cell is not None and cell.status == "oom" else None

    @property
    def views(self) -> tuple[MemoryView, ...]:
        return (*VIEWS, "OOM") if self._failed or self.view == "OOM" else VIEWS

    def above(self) -> list[Line]:
        level = f" ≥ {LEVELS_MB[self._level]} MB" if self.view == "largest" else ""
        names = [view + level * (view == "largest") for view in self.views]
        return joined([self.title(), views_line(names, self.view + level, "memory.view")], self.content_size.width)

    def draw(self, report: ReportState) -> None:
        record = report.content
        if isinstance(record, RankMemoryReport):
            reports = self.subject.state.contents(RankMemoryReport)
            page = memory_tables.ranks_page(reports, record, self.content_size.width, self.columns_page)
            self.pages, (first, *names) = page.pages, page.heading
            self.fill(page.rows, [self.title(*first), *names])
            return
        assert isinstance(record, MemoryReport)
        if self.is_outdated((id(record),)):
            self.window, self.event = None, record.peak_event
            largest = max(record.bytes, default=0)
            self._level = sum(level * 10**6 <= largest for level in LEVELS_MB[1 : _FIRST_LEVEL + 1])
            self.work_out(partial(_read, record), self.resort, at_once=record.events <= _AT_ONCE)
        timeline = self.worked_out
        if timeline is None:
            self.fill((), [*self.above(), (Span("reading the record ...", "strong"),)])
            return
        width, height = self.content_size
        prediction = self.subject.state.prediction_of(record.spec) or record.prediction
        summary = memory_timeline.summary(record, prediction, width)
        if self.view == "timeline":
            self._show_timeline(timeline, [*self.above(), summary])
            return
        make = {"saved": partial(saved_page, record), "blocks": partial(blocks_page, record)}.get(
            self.view, partial(memory_tables.largest_page, timeline, LEVELS_MB[self._level])
        )
        self._fill(self._cached(partial(make, width, self.columns_page)), [summary] if height >= _LOW else [])

    def _show_timeline(self, timeline: Timeline, heading: list[Line]) -> None:
        width, height = self.content_size
        record = timeline.report
        room = max(memory_timeline.columns_in(width), 1)
        window = self.window or EventWindow.whole(record.events, room)
        self.window = window.in_room(room)
        if height >= (_TALL_WIDE if width >= memory_timeline.BESIDE else _TALL):
            heading += memory_timeline.about(record, width)
        elif record.note and height >= _LOW:
            heading += wrapped(record.note, width, "muted")[:1]
        make = partial(memory_timeline.timeline_page, timeline, self.window, self.event, width, height - len(heading))
        page = self._cached(make)
        self.fill(page.rows, [*heading, *page.heading])

    def _fill(self, page: Page, about: Sequence[Line] = ()) -> None:
        """Show the page; on a low screen the columns' names and one row outlast what explains them."""
        heading = self.above()
        room = max(self.content_size.height - len(heading) - 1, 0)
        told = [*about, *page.heading]
        self.pages = page.pages
        self.fill(page.rows, [*heading, *told[max(len(told) - room, 0) :]])

    def _unexplained(self, latest: ReportState | None, width: int) -> list[Line]:
        """In place of the reason: the progress of a second attempt, or how to start one."""
        if latest is not None and latest.status is None:
            return wrapped(f"finding out why: {latest.stage} ...", width, "strong")
        if ("oom", self.subject.spec) in self.subject.asked:
            stop = f"{key_name('app.stop')} stops everything"
            return wrapped(f"Next: the reason, in a separate run; {stop}.", width, "strong")
        if self.subject.spec is not None and self.subject.spec.ranks > 1:
            return wrapped("Cells of several ranks are not run again; the error names the rank.", width, "muted")
        ended = wrapped(f"{latest.status}: {latest.error or 'stopped'}", width, "caution") if latest else []
        if not self.subject.can_ask:
            return [*ended, *wrapped("No report of the reason in this session.", width)]
        press = f"Press {key_name('report.make')} to run it again in its own process"
        return [*ended, *wrapped(f"{press}: what was live when memory ran out.", width)]

    def _cached(self, make: partial[Page], *more: object) -> Page:
        """The page that is shown, if it was made alike of the same, and of the same `more`; else a new one."""
        if (of := (make.func, make.args, *more)) != self._page_of:
            self._page, self._page_of = make(), of
        return self._page

    @property
    def _shown(self) -> Timeline | None:
        """The subject's record, once it is read."""
        timeline = self.worked_out
        return timeline if timeline and self.report and self.report.content is timeline.report else None

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("go", "zoom", "peak"):
            return self.view == "timeline" and self._shown is not None
        return self.view == "largest" if action == "level" else super().check_action(action, parameters)

    def action_view(self, by: int) -> None:
        self.view = self.views[(self.views.index(self.view) + by) % len(self.views)]
        self.cursor = self.columns_page = 0
        self.show(self.subject)

    def action_make(self) -> None:
        self._make("oom" if self.view == "OOM" else self.kind)

    def action_go(self, columns: int) -> None:
        """Move the timeline's cursor by columns, to the highest moment of the new column."""
        timeline, window = self._shown, self.window
        if timeline is None or window is None:
            return
        column = (window.column_of(self.event) or 0) + columns
        if not 0 <= column < window.columns:
            event = min(max(window.edge(column), 0), timeline.events - 1)
            window = window.following(event)
            column = window.column_of(event) or 0
        self.window, self.event = window, int(timeline.moments(window.columns, window.first, window.end)[column])
        self.show(self.subject)

    def _to_event(self, event: int) -> None:
        if self._shown is not None and self.window is not None:
            self.event, self.window = event, self.window.following(event)
            self.show(self.subject)

    def action_zoom(self, factor: float) -> None:
        """Show `factor` times as many events around the cursor."""
        if self._shown is not None and self.window is not None:
            room = max(memory_timeline.columns_in(self.content_size.width), 1)
            self.window = self.window.zoomed(factor, self.event, room)
            self.show(self.subject)

    def action_peak(self) -> None:
        if self._shown:
            self._to_event(self._shown.report.peak_event)

    def action_edge(self, direction: int) -> None:
        if self.view != "timeline" or self._shown is None:
            super().action_edge(direction)
        else:
            self._to_event(0 if direction < 0 else self._shown.events - 1)

    def action_step(self, rows: int) -> None:
        """In the timeline, go to where the next phase begins, or the one before."""
        if self.view != "timeline" or self._shown is None:
            super().action_step(rows)
            return
        begins = [span.first for span in self._shown.report.phases if span.end > span.first]
        found = [event for event in begins if (event > self.event if rows > 0 else event < self.event)]
        if found:
            self._to_event(found[0] if rows > 0 else found[-1])

    def action_level(self, by: int) -> None:
        """Leave out more small allocations, or fewer."""
        self._level = min(max(self._level + by, 0), len(LEVELS_MB) - 1)
        self.cursor = 0
        self.show(self.subject)

    def action_choose(self) -> None:
        """Open everything about the timeline's moment, or about a row."""
        timeline, event = self._shown, self.event
        if self.view != "timeline":
            if detail := self._page.details.get(self.cursor):
                self.app.push_screen(text_reader("Memory", detail))
        elif timeline is not None:
            self.app.push_screen(Reader("Live memory", partial(memory_timeline.moment_details, timeline, event)))


def _read(record: MemoryReport) -> Timeline:
    from cs336_tui.analysis.memory import Timeline

    timeline = Timeline(record)
    timeline.live_total  # noqa: B018
    return timeline
