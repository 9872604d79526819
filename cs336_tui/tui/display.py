"""From events to the screen: sessions are folded as they come and shown at a steady pace."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import on
from textual.app import App
from textual.events import Resize
from textual.geometry import Size
from textual.screen import Screen

from cs336_tui.config.presets import Preset
from cs336_tui.events.events import DeviceSampled, Event, Notice
from cs336_tui.session.state import SessionState
from cs336_tui.tui import themes
from cs336_tui.tui.configure.form import RunOptions
from cs336_tui.tui.screen import MainScreen, View
from cs336_tui.tui.session import Session
from cs336_tui.tui.widgets.lines import Lines

if TYPE_CHECKING:
    from cs336_tui.tui.background import SummaryKeeper

IDLE_REFRESH_S = 2.0
"""How often the Device pane is shown while nothing runs."""
FOLD_S = 0.025
"""So long events are folded in one go; then keys have their turn. A session that is resumed brings many at once."""
_SLICE = 200


class Display(App[None]):
    """Takes events from any thread and shows what they come to; what people ask for is its subclass's.

    `live` is the session that the app runs or replays. `keeper` is told its events, too.
    """

    def __init__(
        self, refresh_hz: float, preset: Preset, options: RunOptions | None, keeper: SummaryKeeper | None
    ) -> None:
        super().__init__()
        self.animation_level = "none"
        self.live = Session()
        self._opened: Session | None = None
        """Another session that somebody looks at."""
        self._inbox: deque[tuple[Session, Sequence[Event]]] = deque()
        self._folding_on = False
        self.run_in_progress = False
        self._preset, self._options = preset, options
        self._keeper = keeper
        self._refresh_s = 1 / refresh_hz
        self._fresh = self._fresh_sample = False
        self._painted_at = 0.0

    def view(self) -> View:
        """What there is to show."""
        raise NotImplementedError

    def react(self, event: Event) -> None:
        """What an event of the app's session means for more than the session."""

    # From any thread into the state.

    def sink(self, events: Sequence[Event]) -> None:
        """Take a batch of events of the app's session, from any thread, without waiting; the next refresh shows them.

        A message for each would cost more than everything that is drawn.
        """
        self._take(self.live, events)

    def _take(self, session: Session, events: Sequence[Event]) -> None:
        if self._keeper is not None and session is self.live:
            self._keeper.take(events, session)
        self._inbox.append((session, events))

    def _fold_inbox(self) -> None:
        """Bring the states up to date with what has arrived, or with some of it when that is much."""
        until = time.monotonic() + FOLD_S
        while self._inbox and self.screen_stack:  # none while the app closes; the session log has it all
            session, events = self._inbox.popleft()
            for start in range(0, len(events), _SLICE):
                if time.monotonic() > until:
                    self._inbox.appendleft((session, events[start:]))
                    if not self._folding_on:
                        self._folding_on = self.call_later(self._fold_on)
                    return
                self._fold(session, events[start : start + _SLICE])

    def _fold_on(self) -> None:
        self._folding_on = False
        self._fold_inbox()

    def _fold(self, session: Session, events: Sequence[Event]) -> None:
        session.fold(events)
        if session is self.live:
            for event in events:
                self.react(event)
        if all(isinstance(event, DeviceSampled) for event in events):
            self._fresh_sample = True
        else:
            self._fresh = True

    def report(self, text: str) -> None:
        """Tell the person now, and keep it in the Log tab."""
        self.notify(text, severity="error", markup=False, timeout=10)
        self.shown.book.take([Notice(at=self.state.last_at or 0.0, text=text)], self.state)
        self._fresh = True

    # From the state to the screen.

    def get_default_screen(self) -> Screen[object]:
        return MainScreen(self._preset, self._options)  # type: ignore[return-value]

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return themes.VARIABLE_DEFAULTS

    @property
    def main(self) -> MainScreen:
        """The screen below all dialogs."""
        main = self.screen_stack[0]
        assert isinstance(main, MainScreen)
        return main

    @property
    def shown(self) -> Session:
        """The session that is on the screen."""
        return self._opened or self.live

    @property
    def state(self) -> SessionState:
        """What is known of the session that is on the screen."""
        return self.shown.state

    def on_mount(self) -> None:
        self.set_interval(self._refresh_s, self._tick)

    def on_resize(self, event: Resize) -> None:
        """Repaint all: a terminal that shrank and grew back has lost its content, and Textual sees no new size.

        Textual's signal handler may be interrupted by itself, and then an older size is the last that it tells.
        """
        self.screen.refresh()
        if not self.is_headless and (actual := Size(*shutil.get_terminal_size())) != event.size:
            self.post_message(Resize(actual, actual))

    def _tick(self) -> None:
        self._fold_inbox()
        idle_for = time.monotonic() - self._painted_at
        if self._fresh or (self._fresh_sample and (self.run_in_progress or idle_for >= IDLE_REFRESH_S)):
            self.paint()

    def refresh_panes(self) -> None:
        """Paint as soon as what was asked for has been laid out."""
        self.call_after_refresh(self.paint)

    @on(Lines.Resized)
    def paint(self) -> None:
        """Show the newest state in every pane that is in sight; only what differs is sent to the terminal."""
        self._fold_inbox()
        if not self.is_running:  # the app closes, and its panes go one by one
            return
        self._painted_at = time.monotonic()
        self._fresh = self._fresh_sample = False
        self.main.show(self.view())
