"""The Kernels tab: where one step's time goes, by kernel, kind, part of the model, and inside attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, TypeVar

import msgspec
from textual.binding import Binding, BindingType

from cs336_tui.events.reports import KernelReport
from cs336_tui.session.state import ReportState
from cs336_tui.tui import format
from cs336_tui.tui.dialogs.questions import AskText
from cs336_tui.tui.dialogs.window import Reader
from cs336_tui.tui.tabs.kernels import shares, table
from cs336_tui.tui.tabs.kernels.table import SORTS, Found, Selection
from cs336_tui.tui.tabs.report import ReportPane, Subject
from cs336_tui.tui.widgets.columns import Laid, Sheet
from cs336_tui.tui.widgets.lines import Line, joined, line, views_line, wrapped

_T = TypeVar("_T")
KernelsView = Literal["kernels", "kinds", "parts", "attention"]
VIEWS: tuple[KernelsView, ...] = ("kernels", "kinds", "parts", "attention")
_SHEETS: dict[KernelsView, Callable[[KernelReport], Sheet]] = {
    "kinds": shares.kinds_sheet,
    "parts": shares.parts_sheet,
    "attention": shares.attention_sheet,
}
_TALL = 16
"""Rows from which a whole note and the trace's path fit above the table."""
_FILTERS = ("phase", "part", "kind", "search", "sort", "turn", "clear")


class KernelsPane(ReportPane):
    """Shows one view of a kernel report. Enter opens a kernel, or the kernels of a kind or part."""

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

    view: KernelsView = "kernels"
    selection = Selection()
    """The kernels that the first view shows."""
    _shown: KernelReport | None = None
    _found: Found | None = None
    _sheet: Sheet | None = None
    _laid: tuple[int, Laid] | None = None

    def show(self, subject: Subject) -> None:
        had = self.report is not None
        super().show(subject)
        if had != (self.report is not None):
            self.refresh_bindings()  # most keys need a report

    def draw(self, report: ReportState) -> None:
        assert isinstance(report.content, KernelReport)
        if report.content is not self._shown:
            self._shown, self._sheet = report.content, None
            self.selection = table.still_valid(report.content, self.selection)
        if self._sheet is None:
            self._make(report.content)
        heading = self._heading(report.content)
        self.draw_from(len(self._fitted), lambda first, last: (heading, self._fitted.lines(first, last)),
                       heading_rows=len(heading))  # fmt: skip

    def _make(self, content: KernelReport) -> None:
        self._laid = None
        if self.view == "kernels":
            self._found = table.select(content, self.selection)
            self._sheet = table.kernels_sheet(content, self.selection, self._found)
        else:
            self._sheet = _SHEETS[self.view](content)

    @property
    def _fitted(self) -> Laid:
        assert self._sheet is not None
        width = max(self.content_size.width, 12)
        if self._laid is None or self._laid[0] != width:
            self._laid = (width, Laid(self._sheet, width))
        return self._laid[1]

    def _heading(self, content: KernelReport) -> list[Line]:
        assert self._sheet is not None
        width, tall = self.content_size.width, self.content_size.height >= _TALL
        room = width - len("  000–000 of 000")  # the rows in sight
        lines = joined([self.title(), views_line(VIEWS, self.view)], room)
        about = line((_fitting(shares.summary(content), width), "text"))
        filters = [line((self._filters(content), "strong"))] if self.view == "kernels" else []
        lines += joined([about, *filters], room)
        if content.note:
            note = wrapped(f"! {content.note}", width, "caution", "  ")
            lines += note if tall else [line((f"! {format.plain(content.note)}", "caution"))]
        if content.trace and tall:
            lines += wrapped(f"trace, for ui.perfetto.dev: {content.trace}", width, "muted", "  ")
        lines += wrapped(self._sheet.lead, width, "strong") if self._sheet.lead else []
        return [*lines, self._fitted.heading] if self._sheet.table.rows else lines

    def _filters(self, content: KernelReport) -> str:
        assert self._found is not None
        return table.described(content, self.selection, self._found)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("view", "copy") or action in _FILTERS:
            if self.report is None:
                return False
            if action == "clear":
                return self.view == "kernels" and self.selection.filters
            return action not in _FILTERS or self.view == "kernels"
        return super().check_action(action, parameters)

    def action_view(self, by: int) -> None:
        self._open(_next(VIEWS, self.view, by))

    def action_phase(self, by: int) -> None:
        if self._shown:
            self._select(phase=_next(table.phases(self._shown), self.selection.phase, by))

    def action_part(self, by: int) -> None:
        if self._shown:
            self._select(range=_next(table.ranges(self._shown, self.selection), self.selection.range, by))

    def action_kind(self, by: int) -> None:
        if self._shown:
            self._select(kind=_next(table.kinds(self._shown, self.selection), self.selection.kind, by))

    def action_sort(self, by: int) -> None:
        self._select(sort=_next(SORTS, self.selection.sort, by), reversed=False)

    def action_turn(self) -> None:
        self._select(reversed=not self.selection.reversed)

    def action_search(self) -> None:
        """Ask for a part of a name, and select the kernels with it."""

        def entered(text: str | None) -> None:
            if text is not None:
                self._select(text=text)

        about = "Part of a name, in full or short, in any case; nothing for all."
        self.app.push_screen(AskText("Search kernels", about, self.selection.text), entered)

    def action_clear(self) -> None:
        self.selection = self.selection.cleared()
        self._open("kernels")

    def action_choose(self) -> None:
        if self.report is None or self._sheet is None or self.cursor >= len(self._sheet.keys):
            return
        key = self._sheet.keys[self.cursor]
        if self.view == "kernels":
            if key is not None:
                self._read(key)
        elif self.view != "attention":
            field = {"kinds": "kind", "parts": "range"}[self.view]
            self.selection = msgspec.structs.replace(self.selection.cleared(), **{field: key})
            self._open("kernels")

    def action_copy(self) -> None:
        """Copy the whole table to the terminal's clipboard, also over SSH."""
        if self._shown is None or self._sheet is None:
            return
        what = f"{self._shown.spec.title} · " + (self._filters(self._shown) if self.view == "kernels" else self.view)
        self.app.copy_to_clipboard(self._sheet.markdown(what))
        self.app.notify("The table was sent to the terminal's clipboard as markdown.", title="Copied")

    def _read(self, name: str) -> None:
        content, phase = self._shown, self.selection.phase
        assert content is not None
        self.app.push_screen(
            Reader(table.noun(content, 1).capitalize(), lambda width: table.detail(content, name, phase, width))
        )

    def _select(self, **changes: object) -> None:
        self.selection = msgspec.structs.replace(self.selection, **changes)
        self._open(self.view)

    def _open(self, view: KernelsView) -> None:
        self.view, self._sheet, self.cursor = view, None, 0
        self.refresh_bindings()
        self.show(self.subject)


def _fitting(parts: tuple[str, ...], width: int) -> str:
    """As many parts as fit, at least the first."""
    shown = parts[0]
    for part in parts[1:]:
        if len(shown) + len(part) + 3 > width:
            break
        shown += f" · {part}"
    return shown


def _next(choices: tuple[_T, ...], present: _T, by: int) -> _T:
    """The choice after the present one; after the first, if the present one is no longer a choice."""
    at = choices.index(present) if present in choices else 0
    return choices[(at + by) % len(choices)]
