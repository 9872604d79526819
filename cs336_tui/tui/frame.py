"""The content of one refresh of the screen: a session, and what the app is doing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from cs336_tui.session.states import CellState
from cs336_tui.tui.configure.preview import Cells
from cs336_tui.tui.judging import Judging
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.live_source import PeakView
from cs336_tui.tui.session import Session
from cs336_tui.tui.tabs.queue import QueueView
from cs336_tui.tui.tabs.report import About, Subject
from cs336_tui.tui.tabs.sessions import Compared

if TYPE_CHECKING:
    from cs336_tui.tui.tabs.estimate import Estimated
    from cs336_tui.tui.tabs.race_lines import Raced


class Frame(msgspec.Struct, frozen=True):
    """Made anew for each refresh; what takes time is a function, called only for a tab that is in sight."""

    shown: Session
    live: Session
    """The session that the app runs or replays; mostly the one that is shown."""
    mode: str
    """Such as ``replay ×2``; mostly empty."""
    replaying: bool
    running: bool
    wide: bool
    """True if the panes stand beside each other."""
    compared: Compared
    marked_cells: tuple[CellState, ...]
    """Cells to compare, the first as A."""
    reported: About | None
    """The cell that reports are about, where the session has one."""
    judging: Judging
    peaks: PeakView
    chosen: Callable[[], Cells]
    """The cells of the choices in Configure, as far as they are known."""
    can_resume: bool
    """True if this app can run what the shown session has left."""
    skip_after_oom: bool
    """As chosen in Configure."""
    races: bool = False
    """True while this app runs a race."""
    estimated: Callable[[], Estimated] | None = None
    """Content of the Estimate tab; None until an estimate is wanted, as `forecast`."""
    forecast: Callable[[], tuple[str, str]] | None = None
    """The end of Configure's summary, and its role."""

    @property
    def is_live(self) -> bool:
        return self.shown is self.live

    @property
    def held(self) -> bool:
        return self.is_live and self.live.source is not None and self.live.source.bench.queue.paused

    @property
    def left(self) -> str:
        """The cells that a run left when it was stopped, and how it goes on; empty while it goes on."""
        standing = self.shown.standing
        if not standing.can_resume:
            return ""
        return standing.cells_left + (f", {key_name('app.resume')} resumes" if self.can_resume else "")

    @property
    def has_race(self) -> bool:
        return self.shown.state.tuning is not None or (self.races and self.is_live)

    @property
    def raced(self) -> Raced | None:
        """The race of the shown session, if it has one."""
        from cs336_tui.tui.tabs.race_lines import raced

        race, left = self.shown.race, self.left
        return raced(self.shown.state, race, goes_on=self._race_goes_on, left=left) if race else None

    @property
    def race_words(self) -> str:
        """The race of the shown session in a line; empty if it has none."""
        if (race := self.shown.race) is None:
            return ""
        from cs336_tui.tui.tabs.race_lines import race_words

        return race_words(race)

    @property
    def _race_goes_on(self) -> bool:
        """True if the race is not over, and this app, another process or a replay goes on with it."""
        state, shown = self.shown.state, self.shown
        runs = self.races and self.is_live if shown.source else shown.playing or shown.watched is not None
        return state.has_unfinished_race and state.ended is None and runs

    @property
    def subject(self) -> Subject:
        state, about = self.shown.state, self.reported
        source = self.live.source if self.is_live and not self.replaying else None
        return Subject(
            state,
            about.spec if about else None if self.replaying or not self.is_live else self.chosen().first,
            about.cell if about else None,
            can_ask=source is not None,
            running=state.running_cell is not None,
            asked=frozenset((each.kind, each.spec) for each in source.bench.queue.asked) if source else frozenset(),
        )

    @property
    def queue(self) -> QueueView:
        state, source = self.shown.state, self.live.source if self.is_live else None
        waits = bool(state.waiting) or self.running
        return QueueView(
            state,
            source.bench.queue if source else None,
            self.running,
            source.bench.skip_after_oom if source and self.running else self.skip_after_oom,
            Cells() if source is None or waits else self.chosen(),
            self.shown.outlook,
            self.left and f"{self.shown.standing.stage}: {self.left}",
        )
