"""The Kernels tab: where one step's time goes, by kernel, kind, part of the model, and inside attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec
from textual.binding import Binding, BindingType

from cs336_tui.events.reports import KernelReport
from cs336_tui.session.state import ReportState
from cs336_tui.tui import format
from cs336_tui.tui.tabs.report import ReportPane, Subject
from cs336_tui.tui.widgets.lines import Line, Span, line, width_of

if TYPE_CHECKING:
    from cs336_tui.tui.tabs.kernels.table import Found, Selection
    from cs336_tui.tui.widgets.columns import Laid, Sheet

# What makes the pages is imported when there is a report: the app starts without.

View = Literal["kernels", "kinds", "parts", "attention"]
VIEWS: tuple[View, ...] = ("kernels", "kinds", "parts", "attention")
_TALL = 16
"""From so many rows on there is room above the table for a whole note and the trace's path."""
_FILTERS = ("phase", "part", "kind", "search", "sort", "turn", "clear")


class KernelsPane(ReportPane):
    """One of the views of a kernel report. Enter opens a kernel, or the kernels of a kind or part."""

    BORDER_TITLE = "Kernels"
    kind = "kernels"
    about = (
        "Profiles one step after warm-up and shows where its time goes: each kernel (on a CPU each operator), kinds, "
        "parts of the model, matmul against softmax. Takes seconds, and minutes for the largest models on a CPU."
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("v", "view(1)", "View", id="kernels.view"),
        Binding("V", "view(-1)", "View before", show=False, id="kernels.view_before"),
        Binding("f", "phase(1)", "Phase", id="kernels.phase"),
        Binding("F", "phase(-1)", "Phase before", show=False, id="kernels.phase_before"),
        Binding("m", "part(1)", "Part", id="kernels.part"),
        Binding("M", "part(-1)", "Part before", show=False, id="kernels.part_before"),
        Binding("K", "kind(1)", "Kind", id="kernels.kind"),
        Binding("slash", "search", "Search", key_display="/", id="kernels.search"),
        Binding("greater_than_sign", "sort(1)", "Sort", key_display="< >", id="kernels.sort"),
        Binding("less_than_sign", "sort(-1)", "Sort by the column before", show=False, id="kernels.sort_before"),
        Binding("o", "turn", "Order", id="kernels.order"),
        Binding("escape", "clear", "All", key_display="Esc", id="kernels.clear"),
        Binding("y", "copy", "Copy table", id="kernels.copy"),
    ]

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.view: View = "kernels"
        self._chosen: Selection | None = None
        self._shown: KernelReport | None = None
        self._found: Found | None = None
        self._sheet: Sheet | None = None
        self._laid: tuple[int, Laid] | None = None

    @property
    def selection(self) -> Selection:
        """Which kernels the first view shows."""
        from cs336_tui.tui.tabs.kernels.table import Selection

        return self._chosen or Selection()

    # From a report to the screen.

    def show(self, subject: Subject) -> None:
        had = self.report is not None
        super().show(subject)
        if had != (self.report is not None):
            self.refresh_bindings()  # without a report there is nothing to look through

    def draw(self, report: ReportState) -> None:
        from cs336_tui.tui.tabs.kernels.table import still_valid

        assert isinstance(report.content, KernelReport)
        if report.content is not self._shown:
            self._shown, self._sheet = report.content, None
            self._chosen = still_valid(report.content, self.selection)
        if self._sheet is None:
            self._make(report.content)
        heading = self._heading(report.content)
        self.draw_from(len(self._fitted), lambda first, last: (heading, self._fitted.lines(first, last)),
                       heading_rows=len(heading))  # fmt: skip

    def _make(self, content: KernelReport) -> None:
        from cs336_tui.tui.tabs.kernels import shares as kernel_shares
        from cs336_tui.tui.tabs.kernels import table as kernels

        self._laid = None
        match self.view:
            case "kernels":
                self._found = kernels.select(content, self.selection)
                self._sheet = kernels.kernels_sheet(content, self.selection, self._found)
            case "kinds":
                self._sheet = kernel_shares.kinds_sheet(content)
            case "parts":
                self._sheet = kernel_shares.parts_sheet(content)
            case "attention":
                self._sheet = kernel_shares.attention_sheet(content)

    @property
    def _fitted(self) -> Laid:
        """The sheet at the present width."""
        from cs336_tui.tui.widgets.columns import Laid

        assert self._sheet is not None
        width = max(self.content_size.width, 12)
        if self._laid is None or self._laid[0] != width:
            self._laid = (width, Laid(self._sheet, width))
        return self._laid[1]

    def _heading(self, content: KernelReport) -> list[Line]:
        from cs336_tui.tui.tabs.kernels.shares import summary
        from cs336_tui.tui.widgets.lines import wrapped

        assert self._sheet is not None
        width, tall = self.content_size.width, self.content_size.height >= _TALL
        lines = [*self._joined(self.title(), self._views())]
        about = line((_fitting(summary(content), width), "text"))
        lines += self._joined(about, line((self._filters(content), "strong"))) if self.view == "kernels" else [about]
        if content.note:
            note = wrapped(f"! {content.note}", width, "caution", "  ")
            lines += note if tall else [line((f"! {format.plain(content.note)}", "caution"))]
        if content.trace and tall:
            lines += wrapped(f"trace, for ui.perfetto.dev: {content.trace}", width, "muted", "  ")
        lines += wrapped(self._sheet.lead, width, "strong") if self._sheet.lead else []
        return [*lines, self._fitted.heading] if self._sheet.rows else lines

    def _joined(self, left: Line, right: Line) -> list[Line]:
        """Both on one line where there is room for them and for which rows are in sight."""
        room = self.content_size.width - len("  000–000 of 000")
        if width_of(left) + 3 + width_of(right) <= room:
            return [(*left, Span("   "), *right)]
        return [left, right]

    def _views(self) -> Line:
        spans: list[Span] = []
        for view in VIEWS:
            spans += [Span(f" {view} ", "tab-on" if view == self.view else "tab"), Span("│", "muted")]
        return (*spans[:-1], Span(" v", "key"))

    def _filters(self, content: KernelReport) -> str:
        from cs336_tui.tui.tabs.kernels.table import described

        assert self._found is not None
        return described(content, self.selection, self._found)

    # What the keys do.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("view", "copy") or action in _FILTERS:
            if self.report is None:
                return False
            if action == "clear":
                return self.view == "kernels" and self.selection.filters
            return action not in _FILTERS or self.view == "kernels"
        return super().check_action(action, parameters)

    def action_view(self, by: int) -> None:
        """The next view."""
        self._open(VIEWS[(VIEWS.index(self.view) + by) % len(VIEWS)])

    def action_phase(self, by: int) -> None:
        """Kernels of another phase only."""
        from cs336_tui.tui.tabs.kernels.table import phases

        if self._shown:
            choices = phases(self._shown)
            at = choices.index(self.selection.phase)
            self._select(phase=choices[(at + by) % len(choices)])

    def action_part(self, by: int) -> None:
        """Kernels of another named part of the model only."""
        from cs336_tui.tui.tabs.kernels.table import ranges

        if self._shown:
            self._select(range=_next(ranges(self._shown, self.selection), self.selection.range, by))

    def action_kind(self, by: int) -> None:
        """Kernels of another kind only."""
        from cs336_tui.tui.tabs.kernels.table import kinds

        if self._shown:
            self._select(kind=_next(kinds(self._shown, self.selection), self.selection.kind, by))

    def action_sort(self, by: int) -> None:
        """By the next column."""
        from cs336_tui.tui.tabs.kernels.table import SORTS

        at = SORTS.index(self.selection.sort)
        self._select(sort=SORTS[(at + by) % len(SORTS)], reversed=False)

    def action_turn(self) -> None:
        """The other way round."""
        self._select(reversed=not self.selection.reversed)

    def action_search(self) -> None:
        """Kernels with a text in their names only."""
        from cs336_tui.tui.dialogs.questions import AskText

        def entered(text: str | None) -> None:
            if text is not None:
                self._select(text=text)

        about = "Part of a name, in full or short, in any case; nothing for all."
        self.app.push_screen(AskText("Search kernels", about, self.selection.text), entered)

    def action_clear(self) -> None:
        """All kernels again."""
        self._chosen = self.selection.cleared()
        self._open("kernels")

    def action_choose(self) -> None:
        if self.report is None or self._sheet is None or self.cursor >= len(self._sheet.keys):
            return
        key = self._sheet.keys[self.cursor]
        match self.view:
            case "kernels" if key is not None:
                self._read(key)
            case "kinds":
                self._chosen = msgspec.structs.replace(self.selection.cleared(), kind=key)
                self._open("kernels")
            case "parts":
                self._chosen = msgspec.structs.replace(self.selection.cleared(), range=key)
                self._open("kernels")

    def action_copy(self) -> None:
        """The table in sight, all its rows and columns, to the terminal's clipboard, also over SSH."""
        if self._shown is None or self._sheet is None:
            return
        what = f"{self._shown.spec.title} · " + (self._filters(self._shown) if self.view == "kernels" else self.view)
        self.app.copy_to_clipboard(self._sheet.markdown(what))
        self.app.notify("The table was sent to the terminal's clipboard as markdown.", title="Copied")

    def _read(self, name: str) -> None:
        from cs336_tui.tui.dialogs.reader import Reader
        from cs336_tui.tui.tabs.kernels.table import detail

        content, phase = self._shown, self.selection.phase
        assert content is not None
        self.app.push_screen(
            Reader(content.activity.removesuffix("s").capitalize(), lambda width: detail(content, name, phase, width))
        )

    def _select(self, **changes: object) -> None:
        self._chosen = msgspec.structs.replace(self.selection, **changes)
        self._open(self.view)

    def _open(self, view: View) -> None:
        self.view, self._sheet, self.cursor = view, None, 0
        self.refresh_bindings()
        self.show(self.subject)


def _fitting(parts: tuple[str, ...], width: int) -> str:
    """As many of them as there is room for, at least the first."""
    shown = parts[0]
    for part in parts[1:]:
        if len(shown) + len(part) + 3 > width:
            break
        shown += f" · {part}"
    return shown


def _next(choices: tuple[str | None, ...], present: str | None, by: int) -> str | None:
    """The choice after the present one; the first where that is no longer among them."""
    at = choices.index(present) if present in choices else 0
    return choices[(at + by) % len(choices)]
