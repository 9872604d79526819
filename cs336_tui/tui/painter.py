"""From events to the screen: folds the sessions' events as they come and shows what they come to at a steady pace."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from cs336_tui.config.choices import sweep_of
from cs336_tui.config.presets import Preset
from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.configure.preview import Cells
from cs336_tui.tui.controllers.running import PeakController, ReportController, RunController
from cs336_tui.tui.controllers.sessions import SessionController
from cs336_tui.tui.host import Host
from cs336_tui.tui.keys import key_name, tab_name
from cs336_tui.tui.session import ReplaySource, Session
from cs336_tui.tui.tab_list import REPORT_TABS, TABS
from cs336_tui.tui.tabs.device import DevicePane
from cs336_tui.tui.tabs.live import Around, LivePane, LogPane
from cs336_tui.tui.tabs.queue import QueuePane, QueueView
from cs336_tui.tui.tabs.report import ReportPane, Subject
from cs336_tui.tui.tabs.results import ResultsPane
from cs336_tui.tui.tabs.sessions import SessionsPane, ran

if TYPE_CHECKING:
    from cs336_tui.tui.controllers.estimates import EstimateController
    from cs336_tui.tui.tabs.race_lines import Raced

IDLE_REFRESH_S = 2.0
"""Interval at which the Device pane is shown while nothing runs."""
PAINT_SHARE = 0.02
"""Share of a core that refreshing takes at most, unless that were rarer than every `LONGEST_REST_S`."""
LONGEST_REST_S = 1.0
FOLD_S = 0.025
"""The longest that events are folded in one go: a session that is resumed brings many at once."""
_SLICE = 200
GET_READY_S = 1.0
"""Judging's imports are loaded this long after the machine was read, unless a cell is being timed by then."""


class Painter:
    """Folds the events that the app took; `paint` shows their state."""

    def __init__(
        self,
        app: Host,
        reports: ReportController,
        peaks: PeakController,
        runs: RunController,
        sessions: SessionController,
        replay: ReplaySource | None,
        may_leave_out: Collection[str],
    ) -> None:
        self._app, self._replay, self._may_leave_out = app, replay, may_leave_out
        self._reports, self._peaks, self._runs, self._sessions = reports, peaks, runs, sessions
        self._estimates: EstimateController | None = None
        self._going_on = False
        self._stale_sample = False
        self._painted_at = 0.0
        self._rest_s = 0.0
        self._several = False

    def fold(self) -> bool:
        """Fold the events that have come; True if none is left. What is left after `FOLD_S` is folded among later
        messages, so that keys have turns between."""
        until, inbox = time.monotonic() + FOLD_S, self._app.inbox
        while inbox:
            session, events = inbox.popleft()
            for start in range(0, len(events), _SLICE):
                if time.monotonic() > until:
                    inbox.appendleft((session, events[start:]))
                    if not self._going_on:
                        self._going_on = self._app.call_later(self._go_on)
                    return False
                self._fold(session, events[start : start + _SLICE])
        return True

    def _go_on(self) -> None:
        self._going_on = False
        self.fold()

    def _fold(self, session: Session, events: Sequence[ev.Event]) -> None:
        if not self._app.is_up:  # the app closes; the session log has it all
            return
        session.fold(events)
        if session is self._app.live:
            for event in events:
                self.react(event)
        if all(isinstance(event, ev.DeviceSampled) for event in events):
            self._stale_sample = True
        else:
            self._app.stale = True

    def take_all(self, session: Session) -> None:
        """Make a log that was read at once the live session."""
        if not self._app.is_up:
            return
        self._app.live, session.playing = session, True
        told: tuple[ev.Event | None, ...] = (session.state.queued, session.state.tuning, *session.state.notices)
        for event in told:
            if event is not None:
                self.react(event)
        self._app.stale = True

    def react(self, event: ev.Event) -> None:
        """Do what an event of the live session means for more than the session."""
        app = self._app
        match event:
            case ev.EnvironmentRead() if not app.replaying:
                app.main.query_one(ConfigurePane).set_environment(event.environment, self._may_leave_out)
                self.estimates()
                app.set_timer(GET_READY_S, app.judging.get_ready)
            case ev.StageChanged():
                app.judging.go_on()
            case ev.CellFinished():
                if cell := app.live.state.cells.get(event.cell):
                    app.judging.take_end(app.live.state, cell)
            case ev.CellsQueued() if app.replaying and app.live.state.tuning is None:
                self._load([each for each in event.specs if not each.recording])
            case ev.TuningStarted():
                if app.replaying:
                    self._load(event.candidates)
                if app.shown is app.live:
                    app.open_soon("race")
            case ev.CellsQueued() if app.main.shows("sessions"):
                self._sessions.reload()  # it is new there
            case ev.SessionResumed() if event.at >= app.live.news_since:
                self._sessions.resumed()
            case ev.ReportFinished() if not app.replaying:
                self._reports.finished(event)
            case ev.Notice() if event.at >= app.live.news_since:
                app.live.follow_log()
                app.notify(event.text, severity="warning", markup=False)
            case _:
                pass

    def _load(self, specs: Sequence[CellSpec]) -> None:
        """Fill Configure with what makes these cells."""
        if specs:
            name = self._replay.path.stem if self._replay else self._app.live.id
            self._app.load_preset(Preset(name, "", sweep_of(specs)))

    def estimates(self) -> EstimateController:
        """The predictions, which are shown from the first call on."""
        from cs336_tui.tui.controllers.estimates import EstimateController

        self._estimates = self._estimates or EstimateController(self._app)
        return self._estimates

    def tick(self) -> None:
        self.fold()
        if self._app.is_up and self._app.main.shows("sessions"):
            self._sessions.keep_up()
        idle_for = time.monotonic() - self._painted_at
        if idle_for < self._rest_s:
            return
        if self._app.stale or (self._stale_sample and (self._app.run_in_progress or idle_for >= IDLE_REFRESH_S)):
            self.paint()

    def paint(self) -> None:
        """Show the newest state in every pane that is in sight; only what differs is sent to the terminal."""
        self.fold()
        if not self._app.is_running:  # the app closes, and its panes go one by one
            return
        self._painted_at, began = time.monotonic(), time.thread_time()
        self._app.stale = self._stale_sample = False
        main, estimates = self._app.main, self._estimates
        several = len(self._app.state.running) > 1
        if several is not self._several:
            self._several = several
            self._app.refresh_bindings()  # for the key that goes to the next running cell
        self._app.judging.next_frame()
        main.head(self._app.state, self._app.shown.id, self._mode)
        races = self._app.state.tuning is not None or (self._runs.races and self._is_live)
        runs = self._app.run_in_progress and self._is_live and self._app.shown.cell is not None
        main.take(race=races, runs=runs or bool(self._app.state.running))
        if estimates and main.shows("estimate"):
            estimates.take_choice()
        for tab in TABS:
            if main.shows(tab):
                self._show(main.query_one(f"#{tab}"))
        if estimates and (main.shows("configure") or main.shows("estimate")):
            estimates.ask()
        self._rest_s = min((time.thread_time() - began) / PAINT_SHARE, LONGEST_REST_S)

    def _show(self, pane: Any) -> None:
        """Bring a pane, which is in sight, up to date."""
        app, sessions, shown, state = self._app, self._sessions, self._app.shown, self._app.state
        match pane:
            case ConfigurePane():
                forecast = self._estimates.summary() if self._estimates else None
                pane.show(state, forecast, self._offers, can_resume=sessions.can_resume)
            case LivePane():
                around = Around(shown.outlook, self._held, self._left, self._race_words)
                pane.show(state, shown.cell, app.judging, around, lambda: (self._invitation, self._offers))
            case DevicePane():
                pane.show(state, shown.latest_run, shown.cell)
            case ResultsPane():
                pane.show(state, shown.cell, app.judging, shown.title)
            case LogPane():
                pane.show(shown.log, shown.path)
            case QueuePane():
                pane.show(self._queue)
            case SessionsPane():
                own, opened = app.live, None if self._is_live else shown.path
                pane.show(None if app.replaying else own.path, opened, None if app.replaying else own.info)
            case ReportPane():
                pane.show(self._subject)
            case _ if pane.id == "compare":
                pane.show(sessions.compared)
            case _ if pane.id == "estimate" and self._estimates:
                pane.show(self._estimates.estimated())
            case _ if pane.id == "roofline":
                pane.show(state, shown.cell, self._peaks.view)
            case _ if pane.id == "race":
                pane.show(state, self._raced, begins=self._runs.races)

    @property
    def _is_live(self) -> bool:
        """True if the session that the app runs or replays is shown, as mostly."""
        return self._app.shown is self._app.live

    @property
    def _runs_cells(self) -> bool:
        return self._app.run_in_progress and not self._app.replaying

    @property
    def _held(self) -> bool:
        source = self._app.live.source
        return self._is_live and source is not None and source.bench.queue.paused

    @property
    def _left(self) -> str:
        """The cells that a run left when it was stopped, and how it goes on; empty while it goes on."""
        standing = self._app.shown.standing
        if not standing.can_resume:
            return ""
        return standing.cells_left + (f", {key_name('app.resume')} resumes" if self._sessions.can_resume else "")

    @property
    def _raced(self) -> Raced | None:
        """The race of the shown session, if it has one."""
        from cs336_tui.tui.tabs.race_lines import raced

        shown, state, race = self._app.shown, self._app.state, self._app.shown.race
        if race is None:
            return None
        # This app, another process or a replay goes on with it, if it is not over.
        runs = self._runs.races and self._is_live if shown.source else shown.playing or shown.watched is not None
        goes_on = state.has_unfinished_race and state.ended is None and runs
        return raced(state, race, goes_on=goes_on, left=self._left)

    @property
    def _race_words(self) -> str:
        """The race of the shown session in a line; empty if it has none."""
        if (race := self._app.shown.race) is None:
            return ""
        from cs336_tui.tui.tabs.race_lines import race_words

        return race_words(race)

    @property
    def _subject(self) -> Subject:
        """The cell that reports are about; where the session has none, the first of the choices in Configure."""
        app, state, about = self._app, self._app.state, self._reports.about(self._app.shown)
        source = app.live.source if self._is_live and not app.replaying else None
        return Subject(
            state,
            about.spec if about else None if app.replaying or not self._is_live else app.main.chosen.first,
            about.cell if about else None,
            can_ask=source is not None,
            running=state.running_cell is not None,
            asked=frozenset((each.kind, each.spec) for each in source.bench.queue.asked) if source else frozenset(),
        )

    @property
    def _queue(self) -> QueueView:
        shown, main, runs = self._app.shown, self._app.main, self._runs_cells
        source = self._app.live.source if self._is_live else None
        rule = main.query_one(ConfigurePane).skips_after_oom
        return QueueView(
            shown.state,
            source.bench.queue if source else None,
            runs,
            source.bench.skip_after_oom if source and runs else rule,
            Cells() if source is None or shown.state.waiting or runs else main.chosen,
            shown.outlook,
            self._left and f"{shown.standing.stage}: {self._left}",
        )

    @property
    def _invitation(self) -> str:
        """Advice in the Live pane where nothing has run."""
        app, state = self._app, self._app.state
        if state.reports_on_cells and (app.replaying or not self._is_live):
            made = ", ".join(tab_name(tab.id) for tab in REPORT_TABS.values())
            return f"This session has reports and no cells: {made}."
        if state.jobs:
            return f"No cell has started. {tab_name('queue')} shows what each one waits for."
        if app.replaying:
            return "The replay has not reached its first cell yet."
        if self._runs_cells and self._is_live and state.environment is None:
            return "Reading this machine; the run starts then."
        where = "on the left" if app.main.wide else f"in {tab_name('configure')}"
        return f"Choose {where}, then press {key_name('app.run')} to run."

    @property
    def _offers(self) -> dict[str, str]:
        """Keys, and what they do first where nothing has run; none where that is out of place."""
        app, offers = self._app, dict[str, str]()
        if app.replaying or app.run_in_progress or not self._is_live or app.live.state.cells:
            return offers
        if (last := self._sessions.last) is not None:
            if self._sessions.last_stopped:
                offers[key_name("app.resume")] = f"resume the last session, {last.standing.cells_left}"
            said = " · ".join(filter(None, (last.name or last.begun, *ran(last))))
            offers[key_name("app.open_sessions", "sessions.open")] = f"open the last session: {said}"
        offers[key_name("app.demo")] = "watch a made-up run, to look around"
        offers[key_name("app.open_configure", "rows.choose")] = "choose a problem of the handout, as a ready sweep"
        return offers

    @property
    def _mode(self) -> str:
        """The state that is out of the ordinary, for the top line."""
        app = self._app
        if app.shown is not app.live:
            played = self._sessions.played
            how = f"made-up run, {played.mode}" if played else "watching" if app.shown.watched else "opened"
            return f"{how}, {key_name('app.back')} goes back" + (" to what runs" if app.run_in_progress else "")
        if app.live.watched:
            return "watching"
        if self._replay:
            return self._replay.mode
        if self._runs.stopping:
            return "stopping ..."
        if app.live.source is not None and app.run_in_progress and app.live.source.bench.queue.paused:
            return "paused"
        if self._sessions.can_resume:
            return f"{app.live.standing.words}, {key_name('app.resume')} resumes"
        reports = app.live.state.reports
        latest = reports[max(reports)] if reports and app.run_in_progress else None
        return f"{latest.kind}: {latest.stage} ..." if latest and latest.status is None else ""
