"""The part of the app that its controllers use: its state, and the ways to change it or to notify the person."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from textual import on

from cs336_tui.config.presets import Preset
from cs336_tui.config.settings import Found, Settings
from cs336_tui.events.environment import LEFT_OUT
from cs336_tui.events.events import Event, Notice
from cs336_tui.events.peaks import PeakCache
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.tui.background import SummaryAutosave
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.judging import TIMED, Judging
from cs336_tui.tui.preferences import ThemeChoice
from cs336_tui.tui.requests import Requests
from cs336_tui.tui.screen import MainScreen
from cs336_tui.tui.session import Session
from cs336_tui.tui.terminal import SteadyApp, in_time
from cs336_tui.tui.widgets.lines import Lines


class Host(SteadyApp):
    """An app without controllers, which `Cs336App` adds. `settings` are the person's."""

    requests: Requests
    themes: ThemeChoice
    autosave: SummaryAutosave | None = None
    """Is told the events of `live`."""

    def __init__(self, live: Session, settings: Found, peaks: PeakCache | None, *, replaying: bool) -> None:
        super().__init__()
        self._found = settings
        self.live = live
        """The session that the app runs or replays."""
        self._opened: Session | None = None  # another session, looked at instead
        self.judging = Judging(self, self._is_timing, self._judged, peaks)
        self.replaying = replaying
        """True if the app plays a log, or watches one that others write, instead of running cells."""
        self.run_in_progress = False
        """True while cells run, reports are made, or a log is played."""
        self.stale = False
        """True if something else is to be shown than what was painted last; the next refresh shows it."""
        self.inbox: deque[tuple[Session, Sequence[Event]]] = deque()
        """Batches of events that were taken and not folded yet."""
        self.copied: tuple[object, float] = None, 0.0
        """The tab and the columns that were copied last, if there are more, and when."""
        self.export_folder: Path | None = None
        """The folder that was exported to last; None: the one that the app was started in."""

    @property
    def settings(self) -> Settings:
        """The person's settings, without those that are wrong."""
        return self._found.settings

    @property
    def main(self) -> MainScreen:
        """The screen below all dialogs."""
        main = self.screen_stack[0]
        assert isinstance(main, MainScreen)
        return main

    @property
    def is_up(self) -> bool:
        """True if there is a screen: not before the app starts, nor when it has ended."""
        return bool(self.screen_stack)

    @property
    def shown(self) -> Session:
        """The session on the screen: `live`, or another one that was opened."""
        return self._opened or self.live

    @property
    def state(self) -> SessionState:
        """State of the session on the screen."""
        return self.shown.state

    @property
    def keymap(self) -> Mapping[str, str]:
        """The keys of the actions that were moved, by their ids."""
        return self._keymap

    def _is_timing(self) -> bool:
        """True if work on this machine would show in a cell's numbers; a replayed cell is long over."""
        times = any(cell.stage in TIMED for cell in self.live.state.running_cells)
        return self.run_in_progress and not self.replaying and times

    def take(self, session: Session, events: Sequence[Event]) -> None:
        """Take a batch of a session's events, from any thread, without waiting; the next refresh shows them. A message
        for each costs too much."""
        if self.autosave is not None and session is self.live:
            self.autosave.take(events, session)
        self.inbox.append((session, events))

    @on(Lines.Resized)
    def paint(self) -> None:
        """Show the newest state in every pane that is in sight; only what differs is sent to the terminal."""
        if self.is_up:
            self.main.fill()

    def confirm(self, question: str, yes: str, no: str, then: Callable[[], object], *, q_means: bool = False) -> None:
        """Ask a question, unless one is being asked; `yes` calls `then`."""
        from cs336_tui.tui.dialogs.windows import Confirm

        if not isinstance(self.screen, Confirm):
            Confirm(question, yes, no, q_means=q_means).ask(lambda agreed: agreed and then())

    def ask_text(self, then: Callable[[str], object], title: str, about: str, value: str = "", **options: Any) -> None:
        """Ask for a line of text, with the options of `AskText`; `then` is given it."""
        from cs336_tui.tui.dialogs.windows import AskText

        AskText(title, about, value, **options).ask(then)

    def refresh_panes(self) -> None:
        """Show the newest state as soon as what was asked for has been laid out."""
        self.call_after_refresh(self.paint)

    def show_soon(self) -> None:
        """Something else is to be shown than what was painted last."""
        self.stale = True

    def follow(self, cell: CellState) -> None:
        """Look at a cell in the Live pane until it ends, where that is the person's choice."""
        if self.shown.follow(cell):
            self.paint()

    def report(self, text: str) -> None:
        """Tell the person of a failure, and keep it in the Log tab."""
        if self.is_up:
            self.notify(text, severity="error", markup=False, timeout=10)
            self.shown.note([Notice(at=self.state.last_at or 0.0, text=text)])
            self.stale = True

    def warn(self, text: str) -> None:
        """Tell the person why nothing comes of what was asked for."""
        self.notify(text, severity="warning", markup=False, timeout=5)

    def look_at(self, session: Session | None) -> None:
        """Show another session, or `live` again."""
        self._opened = None if session is self.live else session
        if self._opened is not None and self._opened.watched:
            self.open_soon("queue")
        elif self._opened is not None and self._opened.state.tuning is not None:
            self.open_soon("race")
        elif self._opened is not None:
            state = self._opened.state
            report = next(iter(state.reports.values()), None) if state.is_recorded and len(state.cells) == 1 else None
            self.open_soon(report.kind if report else "results")
        self.refresh_bindings()
        self.refresh_panes()

    def load_preset(self, preset: Preset) -> None:
        """Fill the Configure pane with what of a preset this machine can run."""
        self.main.query_one(ConfigurePane).load(preset, () if self.replaying else LEFT_OUT)

    def open(self, pane: str) -> None:
        """Bring a pane into sight."""
        self.main.open(pane)
        self.refresh_bindings()
        self.refresh_panes()

    def open_soon(self, pane: str) -> None:
        """Bring a pane into sight, and put the focus into it once it is there."""
        self.open(pane)
        self.call_after_refresh(self.main.focus_pane, pane)

    async def action_open(self, pane: str) -> None:
        """Open a tab. What is typed meanwhile waits, so that it is for the tab and its rows."""
        self.open(pane)
        await self.main.made(pane)
        await self.laid_out()
        self.paint()  # before it has the focus, so that its cursor stands where the session does
        await in_time(self.main.filled(pane))
        await self.main.focus_pane(pane)

    def _judged(self) -> None:
        self.stale = True
        if self.screen is not self.main:
            from cs336_tui.tui.dialogs.windows import Reader

            if isinstance(self.screen, Reader):
                self.screen.write()
