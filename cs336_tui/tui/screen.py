"""The one screen: panes, tabs and how they share a terminal of any size."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable

from textual import events
from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.reactive import Reactive
from textual.screen import Screen
from textual.widget import AwaitMount, Widget

from cs336_tui.config.presets import QUICK, Preset
from cs336_tui.events.environment import Environment
from cs336_tui.session.state import SessionState
from cs336_tui.session.store import session_time
from cs336_tui.tui import format
from cs336_tui.tui.compositor import TightCompositor
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.configure.preview import Cells, Preview
from cs336_tui.tui.requests import RunOptions
from cs336_tui.tui.tab_list import TABS
from cs336_tui.tui.widgets.columns import middle
from cs336_tui.tui.widgets.lines import Line, Lines, line, spread, width_of
from cs336_tui.tui.widgets.menu_bars import KeyBar, TabBar

WIDE_COLUMNS, WIDE_ROWS = 110, 30
"""From this size on the three panes and a tab are shown together; below it one tab fills the screen."""
ROOMY_COLUMNS, VAST_COLUMNS = 160, 190
"""From these widths on the form has two columns, and the Device pane more room."""
PAIR_COLUMNS = 76
"""From this width on the Device pane stands beside the Live pane."""
_SHORTEST_NAME = 8
"""Least width to which a session's name is cut in the top line."""
_ABOVE, _BELOW = ([tab for tab in TABS.values() if tab.place == place] for place in ("above", "below"))


class MainScreen(Screen[None]):
    """Holds the panes. Which are shown follows from the terminal's size and from the open tab. `fill` is called once,
    when the panes have their sizes and nothing has been drawn yet."""

    focused: Reactive[Widget | None] = Reactive(None, repaint=False)
    """As `Screen.focused`, but only the widgets concerned are repainted: 1 kB a Tab instead of 20."""

    def __init__(
        self, preset: Preset = QUICK, options: RunOptions | None = None, fill: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__()
        self.fill, self._filled = fill, False
        self._compositor = TightCompositor()
        self._preset, self._options = preset, options
        self.preview = Preview(self)
        self._mounting: dict[str, AwaitMount] = {}
        self.open_pane = "configure"
        """The pane that fills a small screen."""
        self.open_tab = "results"
        """The tab below the panes of a large screen."""
        self._alone: bool | None = None
        """True if a person gave the open pane the screen, False if they took it; None: as its tab opens."""
        self._offers_race = self._runs = False

    def compose(self) -> ComposeResult:
        self._classify()
        yield Lines(id="header")
        with Horizontal(id="panes"):
            configure = ConfigurePane(self._preset, self._options, id="configure")
            configure.border_title = TABS["configure"].title
            yield configure
            yield from (tab.make() for tab in _ABOVE if tab.id != "configure")
        yield TabBar(id="tabs")
        with Container(id="content"):
            yield from (tab.make() for tab in _BELOW if tab.at_start)
        yield KeyBar(id="keys")

    @property
    def _room(self) -> tuple[int, int]:
        """Columns and rows; before the first layout, what the terminal says."""
        size = self.size or (self.app.size if self.app.is_headless else shutil.get_terminal_size())
        return size[0], size[1]

    @property
    def wide(self) -> bool:
        return self._is_large and not self._is_alone

    @property
    def paired(self) -> bool:
        return self._room[0] >= PAIR_COLUMNS and not self._is_alone

    @property
    def _is_large(self) -> bool:
        width, height = self._room
        return width >= WIDE_COLUMNS and height >= WIDE_ROWS

    @property
    def _is_alone(self) -> bool:
        return TABS[self.open_pane].tall if self._alone is None else self._alone

    @property
    def has_strip(self) -> bool:
        """True if Live has two lines above a pane that has the screen, while something runs."""
        return self._runs and self._is_large and self._is_alone and TABS[self.open_pane].place == "below"

    @property
    def can_maximise(self) -> bool:
        return self._is_large or (self._room[0] >= PAIR_COLUMNS and self.tab_at_focus in ("live", "device"))

    def maximise(self) -> None:
        """Give the pane at the focus the screen, or take it away again, once it is opened."""
        self._alone, self.open_pane = not self._is_alone, self.tab_at_focus

    def open(self, pane: str) -> None:
        tab = TABS[pane]
        content = self.query_one("#content")
        if not tab.at_start and pane not in (child.id for child in content.children):
            self._mounting[pane] = content.mount(tab.make())
        if tab.place == "below":
            self.open_tab = pane
        self._alone = self._alone if pane == self.open_pane else None
        self.open_pane = pane
        self.lay_out()

    def shows(self, pane: str) -> bool:
        """True if a pane is in sight at this size."""
        if self.wide:
            return TABS[pane].place == "above" or pane == self.open_tab
        shown = self._shown
        beside = (pane == "device" and shown == "live" and self.paired) or (pane == "live" and self.has_strip)
        return pane == shown or beside

    def head(self, state: SessionState, session: str, mode: str) -> None:
        """Show the session in the top line."""
        header = self.query_one("#header", Lines)
        header.paint([heading(state, session, mode, header.content_size.width)])

    def take(self, *, race: bool, runs: bool) -> None:
        """Have the Race tab in the bar, or leave it out, when its key still opens it; know whether something runs."""
        if (race, runs) != (self._offers_race, self._runs):
            self._offers_race, self._runs = race, runs
            self.lay_out()

    @property
    def chosen(self) -> Cells:
        """The cells of the choices in Configure, as far as they are known."""
        return self.preview.cells(self.query_one(ConfigurePane).choices)

    async def made(self, pane: str) -> None:
        """Wait until a pane that was opened is there."""
        if (mounting := self._mounting.pop(pane, None)) is not None:
            await mounting

    async def filled(self, pane: str) -> None:
        """Wait until the rows of a pane are there, if they come from a thread."""
        coming: asyncio.Event | None = getattr(self.query_one(f"#{pane}"), "coming", None)
        if coming is not None:
            await coming.wait()

    async def focus_pane(self, pane: str) -> None:
        """Put the focus on the first thing in a pane that can have it."""
        await self.made(pane)
        target = self.query_one(f"#{pane}")
        for widget in (target, *target.query("*")):
            if widget.focusable:
                self.set_focus(widget)
                return
        self.set_focus(None)

    @property
    def tab_at_focus(self) -> str:
        """The tab whose pane has the focus, else the one that was opened last."""
        within = self.focused.ancestors_with_self if self.focused else ()
        return next((each.id for each in within if each.id in TABS), None) or self.open_pane

    def lay_out(self) -> None:
        for pane in self.query_one("#content").children:
            pane.display = pane.id == (self.open_tab if self.wide else self.open_pane)
        if self._classify():
            self.update_node_styles(animate=False)
        tabs, active = (_BELOW, self.open_tab) if self.wide else ([*TABS.values()], self.open_pane)
        shown = {tab.id: tab.title for tab in tabs if tab.id != "race" or self._offers_race or tab.id == active}
        self.query_one(TabBar).offer(shown, active)

    on_mount = on_resize = lay_out

    def show_keys(self) -> None:
        """Show the keys of tabs that were moved."""
        for tab in TABS.values():
            for pane in self.query(f"#{tab.id}"):
                pane.border_title = tab.title
        self.lay_out()

    def _on_screen_resume(self, event: events.ScreenResume) -> None:
        """Before Textual's own: at the start, when nothing has been laid out, all has just been styled."""
        event.refresh_styles = event.refresh_styles and self.stack_updates > 0

    def _compositor_refresh(self) -> None:
        """As Textual's; the first time, when the panes have just got their sizes, they are filled before."""
        if not self._filled:
            self._filled = True
            for lines in self.query(Lines):
                lines.show_again()
            self.fill()
        super()._compositor_refresh()

    @property
    def _shown(self) -> str:
        """The tab that is open at this size."""
        if self.wide:
            return self.open_tab
        return "live" if self.open_pane == "device" and self.paired else self.open_pane

    def _classify(self) -> bool:
        """Set the classes that the style sheet arranges panes by, all in one go; true if any changed."""
        shown = "below" if TABS[self._shown].place == "below" else self._shown
        wanted = {"-wide": self.wide, "-compact": not self.wide, "-paired": self.paired}
        columns = self._room[0]
        wanted |= {"-roomy": columns >= ROOMY_COLUMNS, "-vast": columns >= VAST_COLUMNS, "-strip": self.has_strip}
        wanted |= {f"-show-{name}": name == shown for name in ("below", *(tab.id for tab in _ABOVE))}
        before = self.classes
        for name, on in wanted.items():
            self.set_class(on, name, update=False)
        return self.classes != before


def heading(state: SessionState, session: str, mode: str, width: int) -> Line:
    """Session (and `mode`, such as ``replay ×2``) on the left; device, driver and torch on the right as they fit."""
    session = format.plain(state.name or session_time(id := state.started.session if state.started else session) or id)
    name, how = ("cs336-tui", "title"), [(f" · {mode}", "caution")] if mode else []
    room = width - width_of(line(name, " · session ", *how))
    session = middle(session, room) if room >= _SHORTEST_NAME else ""
    left = line(name, *([(f" · session {session}", "text")] if session else []), *how)
    if state.environment is None:
        return spread(left, line(("reading this machine ...", "muted")), width)
    parts = _machine(state.environment, state)
    while len(parts) > 1 and width_of(left) + len(" · ".join(parts)) + 2 > width:
        parts.pop(-2 if len(parts) > 2 else -1)
    return spread(left, line((" · ".join(parts), "text")), width)


def _machine(environment: Environment, state: SessionState) -> list[str]:
    cell = state.running_cell
    environment = (cell.environment if cell and state.side_by_side else None) or environment
    name = cell.spec.device if cell else environment.resolve(("auto",))[0]
    info = environment.device(name)
    parts = [info.label if info else name if environment.python else "recorded elsewhere"]
    # Those on which cells run side by side, unless there is one, or lanes share it.
    devices = {(lane.lane.machine, lane.lane.device) for lane in state.lanes.values() if lane.set_aside is None}
    if len(devices) > 1 and not state.jobs:
        parts[0] = f"{len(devices)} × {parts[0]}"
    if job := next(reversed(state.jobs.values()), None):
        parts.insert(0, " ".join(filter(None, (job.submitted.launcher, format.plain(job.submitted.where)))))
    if environment.driver:
        parts.append(f"driver {environment.driver}")
    if environment.torch or environment.python:  # a recording may tell neither
        parts.append(f"torch {environment.torch}" if environment.torch else "no torch")
    return parts
