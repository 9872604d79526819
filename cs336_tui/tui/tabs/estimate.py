"""The Estimate tab: what each cell will need."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.message import Message

from cs336_tui.events.gpus import UnknownGpu, find_gpu, known_gpus
from cs336_tui.tui.dialogs.questions import AskText
from cs336_tui.tui.dialogs.reader import Reader
from cs336_tui.tui.tabs import estimate_detail as page
from cs336_tui.tui.tabs.estimate_detail import EstimateRow
from cs336_tui.tui.widgets.columns import table_lines
from cs336_tui.tui.widgets.lines import Line, Lines, line, wrapped
from cs336_tui.tui.widgets.rows import Rows

_BESIDE_FROM = 150
"""Width from which the detail is beside the list."""
_BELOW_FROM = 30
"""Height from which the detail is below the list."""

Whose = Literal["chosen", "session"]


class Estimated(NamedTuple):
    """The contents of the tab."""

    rows: tuple[EstimateRow, ...]
    whose: Whose
    """The cells of Configure's choices, or those of the session."""
    target: str = ""
    """The device, in words."""
    elsewhere: bool = False
    """Whether the device is a GPU that the user named."""
    why_none: str = ""
    waiting: str = ""
    """The state of missing predictions, in words."""
    total: str = ""
    """The time of all cells that fit; empty if unknown."""
    part: str = ""
    """Which cells have a row, in words; empty if all have."""
    can_switch: bool = False
    """Whether the choices and the session both have cells."""


class EstimateList(Rows):
    """The list, with the keys of the tab: a list's keys come before its pane's."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Details", id="estimate.detail"),
        Binding("g", "want('gpu')", "Another GPU", id="estimate.gpu"),
        Binding("v", "want('switch')", "Choices or session", id="estimate.switch"),
    ]
    can_switch = False

    class Wanted(Message):
        """The user wants to name a GPU, or to see the other cells."""

        def __init__(self, wish: str) -> None:
            super().__init__()
            self.wish = wish

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.can_switch if (action, parameters) == ("want", ("switch",)) else True

    def action_want(self, wish: str) -> None:
        self.post_message(self.Wanted(wish))


class EstimatePane(Container):
    """The list, and the detail of the cell under the cursor: beside or below it, or in a window on Enter."""

    BORDER_TITLE = "Estimate"

    DEFAULT_CSS = """
    EstimatePane {
        layout: horizontal;
        EstimateList { width: 1fr; height: 1fr; }
        #estimate-detail { width: 1fr; height: 1fr; display: none; }
        &.-beside #estimate-detail { display: block; margin-left: 2; }
        &.-below { layout: vertical; }
        &.-below EstimateList { height: 1fr; }
        &.-below #estimate-detail { display: block; height: 2fr; }
    }
    """

    class GpuNamed(Message):
        """Estimate for this GPU; None: the machine's own devices."""

        def __init__(self, name: str | None) -> None:
            super().__init__()
            self.name = name

    class Switched(Message):
        """The user wants the other cells: the session's instead of Configure's, or back."""

    def __init__(self, *, id: str | None = "estimate") -> None:
        super().__init__(id=id)
        self._shown = Estimated((), "chosen")
        self._list = EstimateList(cursor=True, id="estimate-list")
        self._detail = Lines(id="estimate-detail")

    def compose(self) -> ComposeResult:
        yield self._list
        yield self._detail

    @property
    def text(self) -> str:
        """What is shown, without styles."""
        return f"{self._list.text}\n{self._detail.text}"

    @property
    def _has_detail(self) -> bool:
        return self.has_class("-beside") or self.has_class("-below")

    def on_resize(self, event: events.Resize) -> None:
        beside = event.size.width >= _BESIDE_FROM
        self.set_class(beside, "-beside")
        self.set_class(not beside and event.size.height >= _BELOW_FROM, "-below")

    def show(self, estimated: Estimated) -> None:
        """Paint; the cursor stays on its row."""
        if not self.is_mounted:
            return
        if estimated.can_switch != self._list.can_switch:
            self._list.can_switch = estimated.can_switch
            self.refresh_bindings()
        if estimated.whose != self._shown.whose:
            self._list.cursor = 0
        self._shown = estimated
        self._paint()

    def _paint(self) -> None:
        shown, rows = self._shown, self._list
        width = rows.content_size.width
        title = self._title()
        if not shown.rows:
            rows.fill((), [title, (), *wrapped(shown.why_none, width, "muted")])
            self._paint_detail()
            return
        marks = [page.mark(row) for row in shown.rows]
        roles = ["text" if row.estimate else "muted" for row in shown.rows]
        names, *lines = table_lines(page.table(shown.rows), width, marks, roles=roles)
        brief = [] if self._has_detail else self._brief()
        rows.fill(lines, [title, *brief, names])
        self._paint_detail()

    def _brief(self) -> list[Line]:
        """Two lines on the cell under the cursor; always two, so that the list does not jump."""
        if self._list.content_size.height < 7:
            return []
        found = page.brief(self._current) if self._current else []
        return (found or [line((self._shown.waiting, "muted")), ()])[:2]

    @property
    def _current(self) -> EstimateRow | None:
        rows = self._shown.rows
        return rows[min(self._list.cursor, len(rows) - 1)] if rows else None

    def _title(self) -> Line:
        shown = self._shown
        cells = "Configure's choices" if shown.whose == "chosen" else "The session's cells"
        return line(
            (f"{cells}{', ' if shown.part else ' '}", "title"),
            (f"{shown.part} " if shown.part else "", "caution"),
            (f"for {shown.target} " if shown.target else "", "caution" if shown.elsewhere else "text"),
            (f"· {shown.total} " if shown.total else "", "strong"),
        )

    def _paint_detail(self) -> None:
        if self._has_detail:
            self._detail.paint(self._written(self._detail.content_size.width))

    def _written(self, width: int) -> list[Line]:
        return page.detail(self._current, width, self._shown.waiting) if self._current else []

    @on(Rows.Moved)
    def _moved(self, event: Rows.Moved) -> None:
        event.stop()
        self._paint()

    @on(Rows.Chosen)
    def _chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        if self._current:
            self.app.push_screen(Reader("Estimate", self._written))

    @on(EstimateList.Wanted)
    def _wanted(self, event: EstimateList.Wanted) -> None:
        event.stop()
        if event.wish == "gpu":
            self.ask_gpu()
        else:
            self.post_message(self.Switched())

    def ask_gpu(self) -> None:
        """Ask for a GPU, which need not be in this machine."""

        def entered(name: str | None) -> None:
            if name is not None:
                self.post_message(self.GpuNamed(name or None))

        names = ", ".join(gpu.name for gpu in known_gpus())
        about = f"Whether the cells fit a GPU that need not be here; empty: this machine.\nKnown: {names}"
        self.app.push_screen(AskText("GPU", about, check=_problem_of), entered)


def _problem_of(gpu: str) -> str:
    """Why this names no GPU; empty if it does, or is empty."""
    try:
        if gpu:
            find_gpu(gpu)
    except UnknownGpu as error:
        return str(error)
    return ""
