"""The one screen: panes, tabs and how they share a terminal of any size."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.reactive import Reactive
from textual.screen import Screen
from textual.widget import AwaitMount, Widget

from cs336_tui.config.presets import QUICK, Preset
from cs336_tui.events.environment import Environment
from cs336_tui.events.reports import ReportKind
from cs336_tui.session.cell_state import CellState
from cs336_tui.session.state import SessionState
from cs336_tui.tui import format
from cs336_tui.tui.configure.form import RunOptions
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.configure.preview import Cells, Preview
from cs336_tui.tui.judging import Judging
from cs336_tui.tui.session import Session
from cs336_tui.tui.tabs.compare.pane import Compared, ComparePane
from cs336_tui.tui.tabs.device import DevicePane
from cs336_tui.tui.tabs.live import LivePane
from cs336_tui.tui.tabs.log import LogPane
from cs336_tui.tui.tabs.queue import QueuePane, QueueView
from cs336_tui.tui.tabs.report import About, ReportPane, Subject
from cs336_tui.tui.tabs.results import ResultsPane
from cs336_tui.tui.tabs.sessions import SessionsPane
from cs336_tui.tui.terminal import TightCompositor
from cs336_tui.tui.widgets.bars import KeyBar, Tab, TabBar
from cs336_tui.tui.widgets.lines import Line, Lines, line, spread, width_of

if TYPE_CHECKING:
    from cs336_tui.tui.controllers.estimates import EstimateDesk
    from cs336_tui.tui.controllers.peaks import PeakDesk

WIDE_COLUMNS, WIDE_ROWS = 110, 30
"""From this size on the three panes and a tab are shown together; below it one tab fills the screen."""
PAIR_COLUMNS = 76
"""From this width on the Device pane stands beside the Live pane."""

REPORTS: tuple[ReportKind, ...] = ("kernels", "memory", "precision")
"""The tabs of reports, each named as its kind."""
_LATER = (*REPORTS, "estimate", "roofline")
"""Tabs whose panes are made when they are first opened: the app starts without."""
_LOWER = ("results", "log", "queue", "sessions", "compare", *_LATER)
"""The tabs of a large screen, which stand below its panes."""
_UPPER = ("configure", "live", "device")
"""The panes that are always in sight there."""
TABS = {
    tab.id: tab
    for tab in (
        Tab("configure", "Configure", "1"),
        Tab("live", "Live", "2"),
        Tab("results", "Results", "3"),
        Tab("log", "Log", "4"),
        Tab("device", "Device", "5"),
        Tab("queue", "Queue", "6"),
        Tab("sessions", "Sessions", "7"),
        Tab("compare", "Compare", "8"),
        Tab("kernels", "Kernels", "9"),
        Tab("memory", "Memory", "0"),
        Tab("precision", "Precision", "p"),
        Tab("estimate", "Estimate", "i"),
        Tab("roofline", "Roofline", "l"),
    )
}


class View(NamedTuple):
    """What there is to show: a session, and what the app is doing."""

    shown: Session
    live: Session
    """The session that the app runs or replays; mostly the one that is shown."""
    mode: str
    """Such as ``replay ×2``; mostly empty."""
    replaying: bool
    running: bool
    compared: Compared
    marked_cells: tuple[CellState, ...]
    """Those that are to be compared, the first as A."""
    reported: About | None
    """The cell that reports are about, where the session has one."""
    estimates: EstimateDesk | None
    """What the predictions come to; None until one is wanted."""
    judging: Judging
    """What is found out about cells besides their times."""
    peaks: PeakDesk
    """Which peaks are wanted and measured."""

    @property
    def is_live(self) -> bool:
        return self.shown is self.live

    @property
    def held(self) -> bool:
        """Whether what waits is held back."""
        return self.is_live and self.live.source is not None and self.live.source.queue.paused


class MainScreen(Screen[None]):
    """Holds the panes. Which are shown follows from the terminal's size and from the open tab."""

    focused: Reactive[Widget | None] = Reactive(None, repaint=False)
    """As `Screen.focused`, but only the widgets concerned are repainted: 1 kB a Tab instead of 20."""

    def __init__(self, preset: Preset = QUICK, options: RunOptions | None = None) -> None:
        super().__init__()
        self._compositor = TightCompositor()
        self._preset, self._options = preset, options
        self._preview = Preview(self, self._ask_to_paint)
        self._mounting: dict[str, AwaitMount] = {}
        self.open_pane = "configure"
        """The pane that fills a small screen."""
        self.open_tab = "results"
        """The tab below the panes of a large screen."""

    def compose(self) -> ComposeResult:
        self._classify()
        yield Lines(id="header")
        with Horizontal(id="panes"):
            yield ConfigurePane(self._preset, self._options, id="configure")
            yield LivePane(id="live")
            yield DevicePane(id="device")
        yield TabBar(id="tabs")
        with Container(id="content"):
            yield ResultsPane(id="results")
            yield LogPane(id="log")
            yield QueuePane(id="queue")
            yield SessionsPane(id="sessions")
            yield ComparePane(id="compare")  # the others when they are opened
        yield KeyBar(id="keys")

    @property
    def _room(self) -> tuple[int, int]:
        """Columns and rows; before the first layout, what the terminal says."""
        if self.size:
            return self.size.width, self.size.height
        size = self.app.size if self.app.is_headless else shutil.get_terminal_size()
        return size[0], size[1]

    @property
    def wide(self) -> bool:
        width, height = self._room
        return width >= WIDE_COLUMNS and height >= WIDE_ROWS

    @property
    def paired(self) -> bool:
        return self._room[0] >= PAIR_COLUMNS

    def on_mount(self) -> None:
        self.lay_out()

    def on_resize(self) -> None:
        self.lay_out()

    def open(self, pane: str) -> None:
        """Bring a pane into sight."""
        content = self.query_one("#content")
        if pane in _LATER and pane not in (child.id for child in content.children):
            self._mounting[pane] = content.mount(_made(pane))
        if pane in _LOWER:
            self.open_tab = pane
        self.open_pane = pane
        self.lay_out()

    def shows(self, pane: str) -> bool:
        """Whether a pane is in sight at this size."""
        if self.wide:
            return pane not in _LOWER or pane == self.open_tab
        if pane == "device" and self.paired:
            return self.open_pane in ("live", "device")
        return pane == self.open_pane or (pane == "live" and self.paired and self.open_pane == "device")

    def show(self, view: View) -> None:
        """Bring every pane that is in sight up to date; only what differs is sent to the terminal."""
        shown, state = view.shown, view.shown.state
        view.judging.next_frame()
        header = self.query_one("#header", Lines)
        header.paint([heading(state, shown.id, view.mode, header.content_size.width)])
        if self.shows("live"):
            invitation = self._invitation(view)
            self.query_one(LivePane).show(state, shown.cell, invitation, held=view.held, judging=view.judging)
        if self.shows("device"):
            self.query_one(DevicePane).show(state, shown.latest_run)
        if self.shows("results"):
            self.query_one(ResultsPane).show(state, shown.cell, view.marked_cells, view.judging)
        if self.shows("log"):
            log = self.query_one(LogPane)
            log.book = shown.book
            log.show()
        if self.shows("queue"):
            self.query_one(QueuePane).show(self._queue_view(view))
        if self.shows("sessions"):
            opened = None if view.is_live else shown.path
            self.query_one(SessionsPane).show(None if view.replaying else view.live.path, opened)
        if self.shows("compare"):
            self.query_one(ComparePane).show(view.compared)
        for name in REPORTS:
            if self.shows(name):
                self.query_one(f"#{name}", ReportPane).show(self._subject(view))
        if self.shows("roofline"):
            from cs336_tui.tui.tabs.roofline import RooflinePane

            self.query_one(RooflinePane).show(state, shown.cell, view.peaks.view)
        if view.estimates is not None:
            self._show_estimates(view.estimates)

    def _show_estimates(self, estimates: EstimateDesk) -> None:
        if self.shows("configure"):
            self.query_one(ConfigurePane).foresee(*estimates.summary())
        if self.shows("estimate"):
            from cs336_tui.tui.tabs.estimate import EstimatePane

            self.query_one(EstimatePane).show(estimates.estimated())
        if self.shows("configure") or self.shows("estimate"):
            estimates.ask()

    @property
    def chosen(self) -> Cells:
        """The cells of the choices in Configure, as far as they are known."""
        return self._preview.cells(self.query_one(ConfigurePane).choices)

    def _subject(self, view: View) -> Subject:
        state, about = view.shown.state, view.reported
        source = view.live.source if view.is_live and not view.replaying else None
        return Subject(
            state,
            about.spec if about else None if view.replaying or not view.is_live else self.chosen.first,
            about.cell if about else None,
            can_ask=source is not None,
            running=state.running_cell is not None,
            asked=source.asked if source else frozenset(),
        )

    def _queue_view(self, view: View) -> QueueView:
        source = view.live.source if view.is_live else None
        pane = self.query_one(ConfigurePane)
        waits = bool(view.shown.state.waiting) or view.running
        return QueueView(
            view.shown.state,
            source.queue if source else None,
            view.running,
            source.skip_after_oom if source and view.running else pane.options.skip_after_oom,
            self._preview.none if source is None or waits else self.chosen,
        )

    def _ask_to_paint(self) -> None:
        self.post_message(Lines.Resized())

    def _invitation(self, view: View) -> str:
        if view.shown.state.reports and (view.replaying or not view.is_live):
            return "This session has no cells, but reports: Kernels (9), Memory (0), Precision (p)."
        if view.replaying:
            return "The log has not come to its first cell."
        if view.running and view.is_live and view.shown.state.environment is None:
            return "The run begins when this machine has been read."
        where = "on the left" if self.wide else "in Configure (1)"
        return f"Choose {where}, then press r to run."

    async def focus_pane(self, pane: str) -> None:
        """Put the focus on the first thing in a pane that can have it."""
        if (mounting := self._mounting.pop(pane, None)) is not None:
            await mounting
        target = self.query_one(f"#{pane}")
        for widget in (target, *target.query("*")):
            if widget.focusable:
                widget.focus()
                return
        self.set_focus(None)

    def lay_out(self) -> None:
        """Show what fits."""
        for pane in self.query_one("#content").children:
            pane.display = pane.id == (self.open_tab if self.wide else self.open_pane)
        if self._classify():
            self.update_node_styles(animate=False)
        names = _LOWER if self.wide else tuple(name for name in TABS if name != "device" or not self.paired)
        self.query_one(TabBar).offer([TABS[name] for name in names], self._shown)

    @property
    def _shown(self) -> str:
        """The tab that is open at this size."""
        if self.wide:
            return self.open_tab
        return "live" if self.open_pane == "device" and self.paired else self.open_pane

    def _classify(self) -> bool:
        """Set the classes that the style sheet arranges panes by, all in one go; true if any changed."""
        shown = "below" if self._shown in _LOWER else self._shown
        on = {"-wide" if self.wide else "-compact", f"-show-{shown}", *(["-paired"] if self.paired else [])}
        off = {"-wide", "-compact", "-paired", *(f"-show-{name}" for name in (*_UPPER, "below"))} - on
        changed = not on <= self.classes or bool(off & self.classes)
        self.remove_class(*off, update=False)
        self.add_class(*on, update=False)
        return changed


def _made(pane: str) -> Widget:
    """The pane of a tab that is opened for the first time."""
    match pane:
        case "kernels":
            from cs336_tui.tui.tabs.kernels.pane import KernelsPane

            return KernelsPane(id=pane)
        case "memory":
            from cs336_tui.tui.tabs.memory.pane import MemoryPane

            return MemoryPane(id=pane)
        case "precision":
            from cs336_tui.tui.tabs.precision import PrecisionPane

            return PrecisionPane(id=pane)
        case "roofline":
            from cs336_tui.tui.tabs.roofline import RooflinePane

            return RooflinePane(id=pane)
        case _:
            from cs336_tui.tui.tabs.estimate import EstimatePane

            return EstimatePane(id=pane)


def heading(state: SessionState, session: str, mode: str, width: int) -> Line:
    """Session (and `mode`, such as ``replay ×2``) on the left; device, driver and torch on the right as they fit."""
    session = format.plain(state.name or format.session_time(state.started.session if state.started else session))
    left = line(
        ("cs336-tui", "title"),
        *([(f" · session {session}", "text")] if session else []),
        *([(f" · {mode}", "caution")] if mode else []),
    )
    if width_of(left) > width:
        left = line(("cs336-tui", "title"), *([(f" · {mode}", "caution")] if mode else []))
    if state.environment is None:
        return spread(left, line(("reading this machine ...", "muted")), width)
    parts = _machine(state.environment, state)
    while len(parts) > 1 and width_of(left) + len(" · ".join(parts)) + 2 > width:
        parts.pop(-2 if len(parts) > 2 else -1)
    return spread(left, line((" · ".join(parts), "text")), width)


def _machine(environment: Environment, state: SessionState) -> list[str]:
    """The device in use (else the best one), its driver, torch."""
    cell = state.running_cell
    name = cell.spec.device if cell else environment.resolve(("auto",))[0]
    info = environment.device(name)
    parts = [info.label if info else name]
    if environment.driver:
        parts.append(f"driver {environment.driver}")
    parts.append(f"torch {environment.torch}" if environment.torch else "no torch")
    return parts
