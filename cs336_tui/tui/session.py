"""A session as the screen shows it: its state, the rows of its log, the cell looked at, and its source; and the source
that plays a log again."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cs336_tui.analysis.eta import Outlook, Prices, outlook_of, takes_s
from cs336_tui.events import events as ev
from cs336_tui.session.load import Pace, load, replay
from cs336_tui.session.log import LogError, LogReader
from cs336_tui.session.state import SessionState, fold
from cs336_tui.session.states import CellState
from cs336_tui.session.store import SessionInfo, Standing, describe, session_time, standing_of
from cs336_tui.tui.sources import Ended, Post, Sink, thread
from cs336_tui.tui.tabs.device import Run
from cs336_tui.tui.tabs.live import LOG_ROWS, log_rows
from cs336_tui.tui.tabs.status import by_lane

if TYPE_CHECKING:
    from cs336_tui.analysis.tuning import Race
    from cs336_tui.tui.configure.preview import Cells
    from cs336_tui.tui.sources import LiveSource, WatchSource
    from cs336_tui.tui.widgets.lines import Line

_OF_CELLS = ev.CellFinished | ev.CellRequeued | ev.CellsQueued
_OF_RACES = _OF_CELLS | ev.CellSkipped | ev.CellStarted | ev.ReportFinished | ev.TuningEnded | ev.TuningStarted
"""Events after which a race stands otherwise."""
_MANY = 100
_STEADY = 0.01
_OUTLOOK_S = 4.0
"""The least time between two looks at the time that is left of more than `_MANY` running cells."""
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Speeds of a replay that the keys go through."""


class Session:
    """One session in the app. `source` runs its cells; it is None for one that is replayed, watched or only looked
    at."""

    def __init__(self, path: Path | None = None) -> None:
        self.state = SessionState()
        self.path = path
        """Its log; None while there is none."""
        self.log: deque[Line] = deque(maxlen=LOG_ROWS)
        """The rows of the Log tab."""
        self.source: LiveSource | None = None
        self.watched: WatchSource | None = None
        """Follows it, if others run it."""
        self.looked_at: int | None = None
        """The cell that the Live pane shows between cells, and where several run side by side."""
        self._chosen = False  # by the user; until the cell ends
        self._outlook: Outlook | None = None
        self._outlook_until = 0.0
        self._takes: tuple[Cells, Prices, float | None] | None = None
        self._folded = False  # since the time was worked out
        self._standing: tuple[bool, Standing] | None = None
        self._info: SessionInfo | None = None
        self._race: Race | None = None
        self.playing = False
        """True if its log is replayed: what runs at its end is shown so."""
        self.latest_run: Run | None = None
        self.problem = ""
        """Why its log could not be read to the end."""
        self.news_since = 0.0
        """Unix time; notices of before are history."""

    @property
    def id(self) -> str:
        """Name of its log; empty while nothing is known."""
        if self.state.started:
            return self.state.started.session
        return self.path.stem if self.path else ""

    @property
    def title(self) -> str:
        """Its name, else the time at which it began."""
        return self.state.name or session_time(self.id) or self.id

    @property
    def cell(self) -> CellState | None:
        """The cell that runs, of several the one that is followed, else the one that was looked at last."""
        running = None if self.state.side_by_side else self.state.running_cell
        return running or self.state.cells.get(-1 if self.looked_at is None else self.looked_at)

    @property
    def standing(self) -> Standing:
        """Its progress."""
        # What is left of a race that was stopped may be nothing; other cells will run, as they have not been stopped.
        may_run = self.source is not None and (self.source.busy or not self.state.has_unfinished_race)
        runs = self.playing or self.watched is not None or may_run
        if self._standing is None or self._standing[0] != runs:
            self._standing = runs, standing_of(self.state, runs=runs)
        return self._standing[1]

    @property
    def info(self) -> SessionInfo | None:
        """Its entry in the list of sessions as of now; None while it has no log with cells."""
        if self.path is None or not self.state.cells:
            return None
        if self._info is None:
            self._info = describe(self.state, self.path)
        return msgspec.structs.replace(self._info, **msgspec.structs.asdict(self.standing))

    @property
    def race(self) -> Race | None:
        """Its race as of now; None if it has none."""
        if self._race is None and self.state.tuning is not None:
            from cs336_tui.analysis.tuning import race_of

            self._race = race_of(self.state)
        return self._race

    def outlook(self) -> Outlook:
        """The time that its cells take, worked out once after each `fold`; where very many run, every few seconds."""
        if self._outlook is None or (self._folded and time.monotonic() >= self._outlook_until):
            self._outlook, self._folded = outlook_of(self.state), False
            self._outlook_until = time.monotonic() + (_OUTLOOK_S if len(self.state.running) > _MANY else 0.0)
        return self._outlook

    def takes_s(self, cells: Cells) -> float | None:
        """Seconds that these cells would take, by the prices of those that were timed; None is unknown. It stays until
        it changes by `_STEADY`: each step changes the prices a little."""
        prices = self.outlook().prices
        if self._takes is None or self._takes[0] is not cells or self._takes[1] is not prices:
            found = takes_s(prices, [spec for spec, _ in cells.cells], cells.lanes)
            before = self._takes[2] if self._takes and self._takes[0] is cells else None
            if before is not None and found is not None and abs(found - before) <= _STEADY * before:
                found = before
            self._takes = cells, prices, found
        return self._takes[2]

    def follow(self, cell: CellState) -> bool:
        """Look at a cell that has begun, until it ends. Returns False where the one that runs is looked at anyway."""
        if not self.state.side_by_side or cell.started_at is None:
            return False
        self.looked_at, self._chosen = cell.cell, True
        return True

    def follow_next(self, by: int) -> None:
        """Look at the next running cell, in the order of lanes."""
        if running := by_lane(self.state):
            numbers = [cell.cell for cell in running]
            at = numbers.index(self.looked_at) + by if self.looked_at in numbers else 0
            self.follow(running[at % len(running)])

    def _follow_on(self) -> None:
        """Look at a running cell, if the one before has ended: at the newest that measures, else the newest."""
        state = self.state
        if state.side_by_side and not self._chosen and self.looked_at not in state.running:
            measured = (number for number in reversed(state.running) if state.cells[number].stage == "measuring")
            self.looked_at = next(measured, self.looked_at if state.current is None else state.current)

    def follow_log(self) -> None:
        """Know where its source writes the log, which may go on elsewhere."""
        if self.source is not None:
            self.path = self.source.bench.log_path

    def fold(self, events: Sequence[ev.Event]) -> None:
        """Bring it up to date with what happened."""
        self._folded, self._standing = True, None
        if any(isinstance(event, _OF_CELLS | ev.SessionAnnotated) for event in events):
            self._info = None
        if self.state.tuning is None or any(isinstance(event, _OF_RACES) for event in events):
            self._race = None
        for event in events:
            self.state.apply(event)
            if isinstance(event, ev.CellsQueued):
                self.latest_run = Run(event.at)
            elif isinstance(event, ev.CellStarted):
                self.looked_at = self.looked_at if self.state.side_by_side else event.cell
            elif isinstance(event, ev.CellFinished | ev.CellRequeued) and event.cell == self.looked_at:
                self._chosen = False
        self._follow_on()
        self.note(events)

    def note(self, events: Iterable[ev.Event]) -> None:
        """Add the rows of these events, which its state includes, to the log."""
        for event in events:
            self.log.extend(log_rows(event, self.state))

    def end_run(self) -> None:
        """Nothing runs any more."""
        if self.latest_run and self.state.last_at:
            self.latest_run = Run(self.latest_run.started_at, self.state.last_at)


def read_session(path: Path) -> Session:
    """The session of a log; where the log is damaged, what comes before that, and the `problem`."""
    session = Session(path)
    try:
        session.state = load(path)
    except LogError as error:
        session.problem = str(error).replace(str(path), path.name)
        with contextlib.suppress(LogError):
            fold(LogReader(path), session.state)
    state = session.state
    # What the Log tab has rows for, as far as the state remembers.
    told: list[ev.Event] = [*state.notices, *state.output]
    for cell in state.cells.values():
        if cell.started_at is not None:
            told.append(ev.CellStarted(at=cell.started_at, cell=cell.cell))
            session.looked_at = cell.cell
        if cell.finished is not None:
            told.append(cell.finished)
    session.note(sorted(told, key=lambda event: event.at))
    session._follow_on()
    if state.queued:
        session.latest_run = Run(state.queued.at, state.last_at)
    gc.freeze()  # it is here to stay; a full collection of a long session would hold up the screen for 0.1 s
    return session


class ReplaySource:
    """Plays a session log; its pace can be changed while it plays. Without waits, at speed 0, `take_all` is called on
    another thread with all that the log holds."""

    def __init__(self, path: Path, sink: Sink, take_all: Callable[[Session], object], post: Post, speed: float) -> None:
        self.path, self.pace = path, Pace(speed)
        self._sink, self._take_all, self._post = sink, take_all, post
        self._stop = threading.Event()
        self.at_end = False

    @property
    def mode(self) -> str:
        """Pace of the replay, in words."""
        if self.at_end:
            return "replay, at its end"
        return "replay paused" if self.pace.paused else f"replay ×{self.pace.speed:g}"

    def begin(self) -> None:
        thread("replay", self._play)

    def close(self) -> None:
        self._stop.set()

    def change_speed(self, by: int) -> None:
        """The next faster (1) or slower (-1) speed."""
        nearest = min(range(len(SPEEDS)), key=lambda index: abs(SPEEDS[index] - self.pace.speed))
        self.pace.speed = SPEEDS[min(max(nearest + by, 0), len(SPEEDS) - 1)]

    def _play(self) -> None:
        problem = ""
        try:
            if self.pace.speed or self.pace.paused:
                replay(self.path, self._sink, stop=self._stop, pace=self.pace)
            else:
                session = read_session(self.path)
                problem = session.problem
                self._take_all(session)
        except LogError as unreadable:
            problem = str(unreadable)
        self.at_end = True
        if not self._stop.is_set():
            self._post(Ended(problem))
