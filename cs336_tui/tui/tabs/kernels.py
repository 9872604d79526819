"""The Kernels tab: where one step's time goes, by kernel, kind, part of the model, inside attention, over all cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import ClassVar, Literal, get_args

import msgspec
from textual.binding import BindingType

from cs336_tui.analysis import kernels
from cs336_tui.analysis.kernel_cells import CellPart, kernel_cells
from cs336_tui.analysis.merge import merge, title_of
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.export.subjects.kernel_use import nouns
from cs336_tui.session.states import ReportState
from cs336_tui.tui import format
from cs336_tui.tui.background import Works
from cs336_tui.tui.dialogs.windows import AskText, ChoiceList, Reader
from cs336_tui.tui.keys import bind, bind_keys, key_name
from cs336_tui.tui.tabs import kernel_listing, kernel_sheets
from cs336_tui.tui.tabs.kernel_listing import Selection
from cs336_tui.tui.tabs.report import ReportPane
from cs336_tui.tui.tabs.status import settled_of
from cs336_tui.tui.widgets.columns import Copied, Laid, Sheet
from cs336_tui.tui.widgets.lines import Line, facts, joined, line, views_line, wrapped

KernelsView = Literal["kernels", "kinds", "parts", "icicle", "attention", "gaps", "ranks", "cells"]
VIEWS: tuple[KernelsView, ...] = get_args(KernelsView)
_WITHOUT_REPORT: tuple[KernelsView, ...] = ("kernels", "cells")
"""The views of a cell that has no report, where another one has."""
_SHEETS: dict[KernelsView, Callable[[KernelReport], Sheet]] = {
    "kinds": kernel_sheets.kinds_sheet,
    "parts": kernel_sheets.parts_sheet,
    "icicle": kernel_sheets.icicle_sheet,
    "attention": kernel_sheets.attention_sheet,
    "gaps": kernel_sheets.gaps_sheet,
    "ranks": kernel_sheets.ranks_sheet,
}
_AT_ONCE = 100
"""Most cells whose kernels are set side by side within a frame; those of more are on a thread."""
_TALL = 16
"""Rows from which a whole note and the trace's path fit above the table."""


class KernelsPane(ReportPane, Works[Sequence[CellPart]]):
    """Shows one view of a kernel report, or of those of all cells. Enter opens a kernel, the kernels of a kind or part,
    all figures of a rank or of a cell's part."""

    kind = "kernels"
    elsewhere = "Kernels are in a trace of torch's profiler or an nsys report of that run: {opens}."
    varying = ("make", "step_cell", "view", "next", "within", "clear", "columns")
    about = (
        "Profiles one step after warm-up and shows where its time goes: each kernel (on a CPU each operator), kinds, "
        "parts of the model, matmul against softmax. Takes seconds, and minutes for the largest models on a CPU."
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("view", "view(1)", "View", "kernels.view", shown_as="v V"),
        bind("view-before", "view(-1)", "Previous view", "kernels.view_before", show=False),
        bind("search", "search", "Search", "kernels.search"),
        bind("sort", "next('sort', 1)", "Sort", "kernels.sort", shown_as="< >"),
        bind("sort-before", "next('sort', -1)", "Sort by the previous column", "kernels.sort_before", show=False),
        bind("order", "turn", "Order", "kernels.order"),
        bind("phase", "next('phase', 1)", "Phase", "kernels.phase", shown_as="f F"),
        bind("phase-before", "next('phase', -1)", "Previous phase", "kernels.phase_before", show=False),
        bind("part", "next('range', 1)", "Part", "kernels.part", shown_as="y Y"),
        bind("part-before", "next('range', -1)", "Previous part", "kernels.part_before", show=False),
        bind("kind", "next('kind', 1)", "Kind", "kernels.kind"),
        bind("within", "within", "Range", "kernels.range"),
        bind_keys("escape", "clear", "All", "kernels.clear", shown_as="Esc"),
    ]

    view: KernelsView = "kernels"
    selection = Selection()
    """The kernels that the first view shows."""
    _shown: KernelReport | None = None
    _selected = ""
    """The selection in words; of another view its name."""
    _laid: Laid | None = None
    """None: to be made again."""

    def _show(self) -> None:
        if self.view != "cells" or not self._any_profile:
            super()._show()
            return
        latest = self._latest
        self.report = latest if latest is not None and latest.content is not None else None
        state, width = self.subject.state, max(self.content_size.width, 12)
        made = sum(report.status is not None for report in state.reports.values())
        if self.is_outdated((state, settled_of(state), len(state.cells), made)):
            work = partial(kernel_cells, (state,), merge([(title_of(state), state)]))
            self.work_out(work, lambda: self._open(self.view, keep=True), at_once=len(state.cells) <= _AT_ONCE)
            self._laid = None
        title = line(("Kernels of all cells", "title"), f" · {key_name('rows.choose')}: every figure of a row")
        first, room = [title, views_line(self._views, self.view, "kernels.view")], width - len("  000–000 of 000")
        if self.worked_out is None:
            self.fill((), [*joined(first, room), (), line(("working out ...", "muted"))])
            return
        laid = self._lay(partial(kernel_sheets.cells_sheet, self.worked_out), width)
        heading = [*joined([*first, *laid.above], room), *wrapped(laid.sheet.lead, width, "strong"), laid.heading]
        self.draw_from(len(laid), lambda first, last: (heading, laid.lines(first, last)), heading_rows=len(heading))

    @property
    def _any_profile(self) -> bool:
        return any(isinstance(each.content, KernelReport) for each in self.subject.state.reports.values())

    @property
    def _views(self) -> tuple[KernelsView, ...]:
        if self.report is None:
            return _WITHOUT_REPORT
        content = self.report.content
        several = isinstance(content, KernelReport) and bool(content.ranks)
        return tuple(view for view in VIEWS if several or view != "ranks")

    def above(self) -> list[Line]:
        return [self.title(), *([views_line(self._views, self.view, "kernels.view")] if self._any_profile else [])]

    def draw(self, report: ReportState) -> None:
        content, width = report.content, max(self.content_size.width, 12)
        assert isinstance(content, KernelReport)
        if content is not self._shown:
            self._shown, self._laid = content, None
            self.selection = kernel_listing.still_valid(content, self.selection)
            if self.view not in self._views:
                self.view = "kernels"
        laid = self._lay(partial(self._sheet, content), width)
        heading = self._heading(content, laid)
        lines_below = {"ranks": kernel_sheets.timelines, "icicle": kernel_sheets.icicles}.get(self.view)
        below = [*lines_below(content, width)] if lines_below else []

        def lines(first: int, last: int) -> tuple[Sequence[Line], Sequence[Line]]:
            after = below[max(first - len(laid), 0) : max(last - len(laid), 0)]
            return heading, [*laid.lines(first, last), *after]

        self.draw_from(len(laid) + len(below), lines, heading_rows=len(heading))

    def _lay(self, sheet: Callable[[], Sheet], width: int) -> Laid:
        """The sheet as it is in this width; it is made again only where it may have changed."""
        page = self.columns_page
        self._laid = self._laid.at(width, page) if self._laid else Laid(sheet(), width, page)
        self.pages = self._laid.pages
        return self._laid

    def _sheet(self, content: KernelReport) -> Sheet:
        if self.view != "kernels":
            self._selected = self.view
            return _SHEETS[self.view](content)
        found = kernel_listing.select(content, self.selection)
        self._selected = kernel_listing.described(content, self.selection, found)
        return kernel_listing.kernels_sheet(content, self.selection, found)

    def _heading(self, content: KernelReport, laid: Laid) -> list[Line]:
        width, tall = self.content_size.width, self.content_size.height >= _TALL
        room = width - len("  000–000 of 000")  # the rows in sight
        lines = joined([self.title(), views_line(self._views, self.view, "kernels.view")], room)
        shorter, *longer = accumulate(kernel_sheets.summary(content), "{} · {}".format)
        about = line(max((text for text in longer if len(text) <= width), key=len, default=shorter))
        chosen, *more = (line((part, "strong")) for part in self._selected.split(" · "))
        filters = [facts(chosen, more, room)] if self.view == "kernels" else []
        lines += joined([about, *filters, *laid.above], room)
        if self.view == "ranks":  # which tells of all ranks, and of their traces
            pass
        elif tall:
            lines += kernel_listing.remarks(content, width)
        elif content.note:
            lines.append(line((f"! {format.plain(content.note)}", "caution")))
        lines += wrapped(laid.sheet.lead, width, "strong") if laid.sheet.lead else []
        return [*lines, laid.heading] if laid.sheet.table.rows else lines

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action not in ("view", "next", "within", "search", "turn", "clear"):
            here = action != "step_cell" or self.view != "cells" or not self._any_profile
            return here and super().check_action(action, parameters)
        if action == "view":
            return self.report is not None or self._any_profile
        return self.report is not None and self.view == "kernels" and (action != "clear" or self.selection.filters)

    def action_view(self, by: int) -> None:
        views = self._views
        at = views.index(self.view) if self.view in views else 0
        self._open(views[(at + by) % len(views)])

    def action_next(self, field: str, by: int) -> None:
        """Take the next choice of a filter, or of the order; after the first, if the present one is gone."""
        if self._shown:
            choices = kernel_listing.choices(self._shown, self.selection, field)
            present = getattr(self.selection, field)
            at = choices.index(present) if present in choices else 0
            is_reversed = self.selection.reversed and field != "sort"
            self._select(**{field: choices[(at + by) % len(choices)]}, reversed=is_reversed)

    def click_heading(self, x: int) -> None:
        if self.view == "kernels" and self._shown and (layout := self.layout_now):
            column = layout.column_at(x)
            key = column.key if column else "short"  # the name takes the rest
            if key == self.selection.sort:
                self.action_turn()
            else:
                self._select(sort=key, reversed=False)

    def action_turn(self) -> None:
        self._select(reversed=not self.selection.reversed)

    def action_search(self) -> None:
        """Ask for a part of a name, and select the kernels with it."""
        about = "Part of a name, in full or short, in any case; nothing for all."
        AskText("Search kernels", about, self.selection.text).ask(lambda text: self._select(text=text))

    def action_within(self) -> None:
        """Ask for a range, and select the kernels that it encloses at any depth."""
        if self._shown is None:
            return
        names = kernels.range_names(self._shown)
        at = names.index(self.selection.within) + 1 if self.selection.within in names else 0
        told = [("all", "kernels of every range"), *kernel_listing.range_choices(self._shown, names)]
        chosen = ChoiceList("Kernels within a range", told, at)
        chosen.ask(lambda place: self._select(within=names[place - 1] if place else ""))

    def action_clear(self) -> None:
        self.selection = self.selection.cleared()
        self._open("kernels")

    def action_choose(self) -> None:
        content, phase = self._shown, self.selection.phase
        if self.view == "cells":
            parts = self.worked_out or ()
            if self._laid and self.cursor < len(parts):
                part = parts[self.cursor]
                self.app.push_screen(Reader("Kernels of a cell", lambda width: kernel_sheets.cell_detail(part, width)))
            return
        if self.report is None or content is None or self._laid is None or self.cursor >= len(self._laid.sheet.keys):
            return
        key = self._laid.sheet.keys[self.cursor]
        if self.view == "kernels" and key is not None:
            title = nouns(content)[0].capitalize()
            self.app.push_screen(Reader(title, lambda width: kernel_listing.detail(content, key, phase, width)))
        elif self.view == "ranks" and key is not None:
            rank = int(key)
            self.app.push_screen(Reader(f"Rank {rank}", lambda width: kernel_sheets.rank_detail(content, rank, width)))
        elif field := {"kinds": "kind", "parts": "range"}.get(self.view):
            self.selection = msgspec.structs.replace(self.selection.cleared(), **{field: key})
            self._open("kernels")

    def copied(self) -> Copied | None:
        """The table as it stands, with all its rows and columns."""
        shown = None if self.view == "cells" else self._shown
        if self._laid is None or (self.report is None and self.view != "cells"):
            return None
        of = f"{shown.spec.title} · {self._selected}" if shown else "Kernels over cells"
        return Copied("The table", partial(self._laid.sheet.markdown, of))

    def _select(self, **changes: object) -> None:
        self.selection = msgspec.structs.replace(self.selection, **changes)
        self._open(self.view)

    def _open(self, view: KernelsView, *, keep: bool = False) -> None:
        """Show a view from its first row, or with `keep` from the one under the cursor."""
        self.columns_page = self.columns_page if view == self.view else 0
        self.view, self._laid, self.cursor = view, None, self.cursor if keep else 0
        self.show(self.subject)
