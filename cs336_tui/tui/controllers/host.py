"""The part of the app that its controllers use."""

from __future__ import annotations

from pathlib import Path

from cs336_tui.config.presets import Preset
from cs336_tui.events.events import Notice
from cs336_tui.runner.capabilities import LEFT_OUT
from cs336_tui.session.state import SessionState
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.judging import Judging
from cs336_tui.tui.screen import MainScreen
from cs336_tui.tui.session import Session
from cs336_tui.tui.terminal import SteadyApp


class Host(SteadyApp):
    """State of the screen and of the run, and the ways to change either or to tell the person something."""

    live: Session
    """The session that the app runs or replays."""
    judging: Judging
    replaying = False
    """True if the app plays a log instead of running cells."""
    run_in_progress = False
    """True while cells run, reports are made, or a log is played."""
    stale = False
    """True if something else is to be shown than what was painted last; the next refresh shows it."""
    _opened: Session | None = None

    @property
    def shown(self) -> Session:
        """The session on the screen: `live`, or another one that was opened."""
        return self._opened or self.live

    @property
    def state(self) -> SessionState:
        """State of the session on the screen."""
        return self.shown.state

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

    def attach_bench(self, session: Session, log: Path | None) -> bool:
        """Give a session a bench that runs its cells into `log`, a new one when None; False if this app runs none."""
        raise NotImplementedError

    def action_open(self, pane: str) -> None:
        """Bring a pane into sight and put the focus into it."""
        raise NotImplementedError

    def look_at(self, session: Session | None) -> None:
        """Show another session, or `live` again."""
        self._opened = None if session is self.live else session
        if self._opened is not None and not self.main.wide:
            self.action_open("results")
        self.refresh_bindings()
        self.refresh_panes()

    def load_preset(self, preset: Preset) -> None:
        """Fill the Configure pane with what of a preset this machine can run."""
        self.main.query_one(ConfigurePane).load(preset, () if self.replaying else LEFT_OUT)

    def report(self, text: str) -> None:
        """Tell the person of a failure, and keep it in the Log tab."""
        if self.is_up:
            self.notify(text, severity="error", markup=False, timeout=10)
            self.shown.book.take([Notice(at=self.state.last_at or 0.0, text=text)], self.state)
            self.stale = True

    def paint(self) -> None:
        """Show the newest state now."""
        raise NotImplementedError

    def refresh_panes(self) -> None:
        """Show the newest state as soon as what was asked for has been laid out."""
        self.call_after_refresh(self.paint)
