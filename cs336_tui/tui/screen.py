"""The one screen: panes, tabs and how they share a terminal of any size."""

from __future__ import annotations

import shutil
from typing import NamedTuple

from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.reactive import Reactive
from textual.screen import Screen
from textual.widget import Widget

from cs336_tui.presets import PRESETS, Preset
from cs336_tui.session.state import CellState, SessionState
from cs336_tui.tui.form import RunOptions
from cs336_tui.tui.heading import heading
from cs336_tui.tui.panes.configure import ConfigurePane
from cs336_tui.tui.panes.device import DevicePane, Run
from cs336_tui.tui.panes.live import LivePane
from cs336_tui.tui.panes.log import LogPane
from cs336_tui.tui.panes.results import ResultsPane
from cs336_tui.tui.tight import TightCompositor
from cs336_tui.tui.widgets.key_bar import KeyBar
from cs336_tui.tui.widgets.lines import Lines
from cs336_tui.tui.widgets.tab_bar import Tab, TabBar

WIDE_COLUMNS, WIDE_ROWS = 110, 30
"""From this size on the three panes and a tab are shown together; below it one tab fills the screen."""
PAIR_COLUMNS = 76
"""From this width on the Device pane stands beside the Live pane."""

_TABS = {
    "configure": Tab("configure", "Configure", "1"),
    "live": Tab("live", "Live", "2"),
    "results": Tab("results", "Results", "3"),
    "log": Tab("log", "Log", "4"),
    "device": Tab("device", "Device", "5"),
}


class View(NamedTuple):
    """What there is to show: the session, and which part of it."""

    state: SessionState
    session: str
    """Its name before it has begun."""
    mode: str
    """Such as ``replay ×2``; mostly empty."""
    cell: CellState | None
    """The cell that runs, or was looked at last."""
    run: Run | None
    """The latest run."""
    replaying: bool


class MainScreen(Screen[None]):
    """Holds the panes. Which are shown follows from the terminal's size and from the open tab."""

    focused: Reactive[Widget | None] = Reactive(None, repaint=False)
    """As `Screen.focused`, but only the widgets concerned are repainted: 1 kB a Tab instead of 20."""

    def __init__(self, preset: Preset = PRESETS[0], options: RunOptions | None = None) -> None:
        super().__init__()
        self._compositor = TightCompositor()
        self._preset, self._options = preset, options
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
        if pane in ("results", "log"):
            self.open_tab = pane
        self.open_pane = pane
        self.lay_out()

    def shows(self, pane: str) -> bool:
        """Whether a pane is in sight at this size."""
        if self.wide:
            return pane not in ("results", "log") or pane == self.open_tab
        if pane == "device" and self.paired:
            return self.open_pane in ("live", "device")
        return pane == self.open_pane or (pane == "live" and self.paired and self.open_pane == "device")

    def show(self, view: View) -> None:
        """Bring every pane that is in sight up to date; only what differs is sent to the terminal."""
        state = view.state
        header = self.query_one("#header", Lines)
        header.paint([heading(state, view.session, view.mode, header.content_size.width)])
        if self.shows("live"):
            self.query_one(LivePane).show(state, view.cell, self._invitation(view.replaying))
        if self.shows("device"):
            self.query_one(DevicePane).show(state, view.run)
        if self.shows("results"):
            self.query_one(ResultsPane).show(state, view.cell)
        if self.shows("log"):
            self.query_one(LogPane).show()

    def _invitation(self, replaying: bool) -> str:
        if replaying:
            return "The log has not come to its first cell."
        where = "on the left" if self.wide else "in Configure (1)"
        return f"Choose {where}, then press r to run."

    def focus_pane(self, pane: str) -> None:
        """Put the focus on the first thing in a pane that can have it."""
        target = self.query_one(f"#{pane}")
        for widget in (target, *target.query("*")):
            if widget.focusable:
                widget.focus()
                return
        self.set_focus(None)

    def lay_out(self) -> None:
        """Show what fits."""
        if self._classify():
            self.update_node_styles(animate=False)
        names: tuple[str, ...] = ("configure", "live", "results", "log")
        if self.wide:
            names = ("results", "log")
        elif not self.paired:
            names = (*names, "device")
        self.query_one(TabBar).offer([_TABS[name] for name in names], self._shown)

    @property
    def _shown(self) -> str:
        """The tab that is open at this size."""
        if self.wide:
            return self.open_tab
        return "live" if self.open_pane == "device" and self.paired else self.open_pane

    def _classify(self) -> bool:
        """Set the classes that the style sheet arranges panes by, all in one go; true if any changed."""
        on = {"-wide" if self.wide else "-compact", f"-show-{self._shown}", *(["-paired"] if self.paired else [])}
        off = {"-wide", "-compact", "-paired", *(f"-show-{name}" for name in _TABS)} - on
        changed = not on <= self.classes or bool(off & self.classes)
        self.remove_class(*off, update=False)
        self.add_class(*on, update=False)
        return changed
