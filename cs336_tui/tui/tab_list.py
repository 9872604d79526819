"""The tabs of the app, a row each with its key, place, pane and what it shows of a frame, and the app's keys."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from textual.widget import Widget

from cs336_tui.events.reports import ASKED_FOR, REPORTS
from cs336_tui.tui.configure.form import Forecast
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.configure.preview import Cells
from cs336_tui.tui.judging import Judging
from cs336_tui.tui.keys import MEANINGS, bind, bind_keys, key_name, tab_name
from cs336_tui.tui.session import Session
from cs336_tui.tui.sources import PeakView
from cs336_tui.tui.tabs.device import DevicePane
from cs336_tui.tui.tabs.live import Around, LivePane, LogPane
from cs336_tui.tui.tabs.queue import QueuePane, QueueView
from cs336_tui.tui.tabs.report import About, Subject
from cs336_tui.tui.tabs.results import ResultsPane
from cs336_tui.tui.tabs.sessions import Compared, SessionsPane

if TYPE_CHECKING:
    from cs336_tui.tui.tabs.estimate import Estimated
    from cs336_tui.tui.tabs.race_lines import Raced


class Frame(msgspec.Struct, frozen=True):
    """The content of one refresh of the screen, made anew for each; what takes time is a function, called only for a
    tab that is in sight."""

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
    forecast: Callable[[], Forecast] | None = None

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

        shown, state, race = self.shown, self.shown.state, self.shown.race
        if race is None:
            return None
        # This app, another process or a replay goes on with it, if it is not over.
        runs = self.races and self.is_live if shown.source else shown.playing or shown.watched is not None
        goes_on = state.has_unfinished_race and state.ended is None and runs
        return raced(state, race, goes_on=goes_on, left=self.left)

    @property
    def race_words(self) -> str:
        """The race of the shown session in a line; empty if it has none."""
        if (race := self.shown.race) is None:
            return ""
        from cs336_tui.tui.tabs.race_lines import race_words

        return race_words(race)

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


class PaneTab(msgspec.Struct, frozen=True):
    """A tab with its pane. On a large screen the panes ``above`` are always in sight and one of those ``below`` is."""

    id: str
    label: str
    key: str
    place: Literal["above", "below"]
    show: Callable[[Any, Frame], object]
    """Bring the pane, which is in sight, up to date."""
    pane: Callable[[], type[Widget]]
    """The class of the pane; a function, as the app starts without those that are not made `at_start`."""
    at_start: bool = True
    """True if the pane is made with the screen, else it is made when the tab is first opened."""
    is_wanted: Callable[[Frame], bool] = lambda _: True
    """False where the bar leaves the tab out; its key opens it nevertheless."""

    @property
    def title(self) -> str:
        """The key that opens it now, and the label."""
        return f"{key_name(f'app.open_{self.id}')} {self.label}"

    def make(self) -> Widget:
        """The pane of the tab. Not for the form, which is made from what the app was started with."""
        pane = self.pane()(id=self.id)
        pane.border_title = self.title
        return pane


def _show_live(pane: LivePane, frame: Frame) -> None:
    shown = frame.shown
    around = Around(frame.held, shown.outlook, frame.left, frame.race_words)
    pane.show(shown.state, shown.cell, _invitation(frame), frame.judging, around)


def _invitation(frame: Frame) -> str:
    if frame.shown.state.reports_on_cells and (frame.replaying or not frame.is_live):
        made = ", ".join(tab_name(tab.id) for tab in REPORT_TABS.values())
        return f"This session has reports and no cells: {made}."
    if frame.shown.state.jobs:
        return f"No cell has started. {tab_name('queue')} shows what each one waits for."
    if frame.replaying:
        return "The replay has not reached its first cell yet."
    if frame.running and frame.is_live and frame.shown.state.environment is None:
        return "Reading this machine; the run starts then."
    where = "on the left" if frame.wide else f"in {tab_name('configure')}"
    return f"Choose {where}, then press {key_name('app.run')} to run."


def _later(module: str, pane: str) -> Callable[[], type[Widget]]:
    """The class of a pane in a module of `tabs` that is imported when it is first wanted."""
    return lambda: getattr(import_module(f"cs336_tui.tui.tabs.{module}"), pane)


def _show_report(pane: Any, frame: Frame) -> None:
    pane.show(frame.subject)


def _show_sessions(pane: SessionsPane, frame: Frame) -> None:
    own, opened = frame.live, None if frame.is_live else frame.shown.path
    pane.show(None if frame.replaying else own.path, opened, None if frame.replaying else own.info)


def _show_configure(pane: ConfigurePane, frame: Frame) -> None:
    pane.look_at(frame.shown.state)
    pane.offer_resume(frame.can_resume)
    if frame.forecast:
        pane.foresee(frame.forecast())


TABS = {
    tab.id: tab
    for tab in (
        PaneTab("configure", "Configure", "1", "above", _show_configure, lambda: ConfigurePane),
        PaneTab("live", "Live", "2", "above", _show_live, lambda: LivePane),
        PaneTab("device", "Device", "3", "above",
                lambda pane, frame: pane.show(frame.shown.state, frame.shown.latest_run, frame.shown.cell),
                lambda: DevicePane),
        PaneTab("results", "Results", "4", "below",
                lambda pane, frame: pane.show(frame.shown.state, frame.shown.cell,
                                              [cell for _, cell in frame.compared.cells], frame.judging),
                lambda: ResultsPane),
        PaneTab("log", "Log", "5", "below", lambda pane, frame: pane.show(frame.shown.book), lambda: LogPane),
        PaneTab("queue", "Queue", "6", "below", lambda pane, frame: pane.show(frame.queue), lambda: QueuePane),
        PaneTab("sessions", "Sessions", "7", "below", _show_sessions, lambda: SessionsPane),
        PaneTab("compare", "Compare", "8", "below", lambda pane, frame: pane.show(frame.compared),
                _later("compare", "ComparePane"), at_start=False),
        PaneTab("kernels", "Kernels", "9", "below", _show_report, _later("kernels", "KernelsPane"), at_start=False),
        PaneTab("memory", "Memory", "0", "below", _show_report, _later("memory", "MemoryPane"), at_start=False),
        PaneTab("estimate", "Estimate", "i", "below",
                lambda pane, frame: frame.estimated and pane.show(frame.estimated()),
                _later("estimate", "EstimatePane"), at_start=False),
        PaneTab("roofline", "Roofline", "l", "below",
                lambda pane, frame: pane.show(frame.shown.state, frame.shown.cell, frame.peaks),
                _later("roofline", "RooflinePane"), at_start=False),
        PaneTab("precision", "Precision", "p", "below", _show_report, _later("precision", "PrecisionPane"),
                at_start=False),
        PaneTab("race", "Race", "C", "below",
                lambda pane, frame: pane.show(frame.shown.state, frame.raced, begins=frame.races),
                _later("race", "RacePane"), at_start=False, is_wanted=lambda frame: frame.has_race),
    )
}  # fmt: skip
"""In the order of the screen, which is that of their keys: digits, then letters by the alphabet, then capitals."""
REPORT_TABS = {kind: TABS[REPORTS[kind].tab] for kind in ASKED_FOR}
"""The tabs that make a report, by its kind."""
APP_KEYS = (
    bind("run", "run_cells", "Run", "app.run"),
    bind("run", "add_cells", "Add", "app.add"),
    bind("stop", "stop_cells", "Stop", "app.stop"),
    bind("resume", "resume", "Resume", "app.resume"),
    bind("back", "leave_opened", "Back", "app.back"),
    bind("tune", "tune", "Tune", "app.tune"),
    bind("next-cell", "follow_next(1)", "Next cell", "app.follow_next", shown_as="[ ]"),
    bind("cell-before", "follow_next(-1)", "Previous cell", "app.follow_before", show=False),
    bind("axis", "zoom_axis", "Zoom axis", "live.zoom"),
    bind("gpu", "next_gpu", "Next GPU", "device.gpu"),
    bind_keys("enter", "read_cell", "Details", "live.details", show=False),
    bind("pause", "pause", "Pause", "replay.pause", also="space", shown_as="P"),
    bind("faster", "faster(1)", "Faster", "replay.faster", shown_as="{ }"),
    bind("slower", "faster(-1)", "Slower", "replay.slower", show=False),
    bind("export", "export", "Export", "app.export"),
    bind("help", "help", "Help", "app.help", shown_as="?"),
    bind("quit", "ask_quit", "Quit", "app.quit", shown_as="q"),
    bind("copy", "copy_table", "Copy", "app.copy"),
    *(bind_keys(tab.key, f"open('{tab.id}')", tab.label, f"app.open_{tab.id}", show=False) for tab in TABS.values()),
    bind("save", "save_preset", "Save preset", "app.save_preset"),
    bind("theme", "choose_theme", "Theme", "app.theme"),
    bind("commands", "command_palette", "Commands", "app.commands", shown_as=":"),
    bind_keys(MEANINGS["redraw"].keys, "redraw", "Redraw", "app.redraw", show=False, priority=True),
    bind_keys(MEANINGS["quit-now"].keys, "quit", "Quit now", "app.quit_now", show=False, priority=True),
)
"""The app's keys. Every binding has an id, by which the help describes it and a keymap can move it to another key."""
