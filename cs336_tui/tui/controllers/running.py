"""Runs cells, one after another, until nothing waits or the run is stopped, and makes between them what is asked for:
reports and peaks."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cs336_tui.config.presets import models_in, remember
from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.events import ReportFinished
from cs336_tui.events.peaks import DevicePeak, PeakError, WantedPeak, peak_key
from cs336_tui.events.prediction import report_key
from cs336_tui.events.reports import REPORTS, ReportKind
from cs336_tui.session.states import CellState
from cs336_tui.tui.background import in_background
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.configure.preview import devices_of
from cs336_tui.tui.format import plural
from cs336_tui.tui.host import Host
from cs336_tui.tui.keys import key_name, tab_name
from cs336_tui.tui.requests import RunOptions
from cs336_tui.tui.session import Session
from cs336_tui.tui.sources import LiveSource, PeakView
from cs336_tui.tui.tab_list import TABS
from cs336_tui.tui.tabs.report import About
from cs336_tui.tui.tabs.results import ResultsPane

if TYPE_CHECKING:
    from cs336_tui.config.tuned_sweep import Search
    from cs336_tui.tui.sources import BenchFactory


RACING = "A race runs, which nothing may disturb; try again after it."


class RunController:
    """Starts, adds to and stops what runs in the live session. Its end is told to `ended`."""

    def __init__(self, app: Host, reports: ReportController, bench_factory: BenchFactory | None) -> None:
        self._app, self._reports, self._bench_factory = app, reports, bench_factory
        self.cells_run = False
        """True if cells are among what runs."""
        self.stopping = False
        self.races = False
        """True if a race is what runs: nothing is added to it."""

    @property
    def _pane(self) -> ConfigurePane:
        return self._app.main.query_one(ConfigurePane)

    def source(self) -> LiveSource | None:
        """The live session's bench, made when it is first wanted; None if this app runs no cells."""
        if self._app.live.source is None:
            self.attach_bench(self._app.live, None)
        return self._app.live.source

    def attach_bench(self, session: Session, log: Path | None) -> bool:
        """Give a session a bench that runs its cells into `log`, a new one when None; False if this app runs none."""
        if self._bench_factory is None:
            return False
        session.source = LiveSource(self._bench_factory(partial(self._app.take, session), log), self._app.post_message)
        session.follow_log()
        return True

    def ask(self) -> None:
        if problems := self._pane.form.problems:
            self._app.notify(str(problems[0]), title="Cannot run", severity="error", markup=False)
        self._pane.request_run()

    def run(self, sweep: Sweep, options: RunOptions) -> None:
        """Run the cells of a sweep, or add them to those that run."""
        source = self.source()
        if self.races:
            self._app.notify(RACING, severity="warning")
        if source is None or self.stopping or self.races:
            return
        source.run(sweep, options)
        if models := models_in(sweep):
            in_background(self._app, partial(remember, models), self._pane.set_recent)
        if self.cells_run:
            added = plural(len(sweep) * options.repeats, "cell")
            self._app.notify(f"{added} added to the end of the queue.", title="Added", timeout=3)
        else:
            self.begin()

    @property
    def can_race(self) -> bool:
        """True if a race can begin: nothing runs, in an app that runs cells."""
        app = self._app
        return app.live.source is not None and not (app.replaying or app.run_in_progress)

    def ask_race(self) -> None:
        """Ask how the combinations of the chosen values are raced, and race them."""
        from cs336_tui.config.tuned_sweep import fields_of, start_of
        from cs336_tui.tui.dialogs.tune import TuneDialog

        pane, environment = self._pane, self._app.live.state.environment
        sweep, problem = pane.form.sweep, ""
        try:
            if not self.can_race:
                stop = f"stop what runs ({key_name('app.stop')}), or wait for it"
                problem = "a replay or watch runs no cells" if self._app.replaying else stop
            elif sweep is None or environment is None:
                problem = str(pane.form.problems[0]) if pane.form.problems else "this machine is still being read"
            else:
                over = pane.preset.over if sweep == pane.preset.sweep else ()
                one_pass = msgspec.structs.replace(sweep, passes=sweep.passes[-1:])
                (device,) = devices_of(start_of(one_pass, fields_of(over) if over else None), environment)
                TuneDialog(sweep, device, over).ask(self._race)
        except SpecError as error:
            problem = str(error)
        if problem:
            self._app.notify(problem, title="Cannot race", severity="error", markup=False)

    def _race(self, search: Search) -> None:
        source = self.source()
        if source is not None and self.can_race:
            source.race(search, self._pane.form.options)
            self.begin(races=True)

    def turn(self, spec: CellSpec) -> None:
        """Measure the exposed communication of a cell of ranks, if nothing runs."""
        source = self.source()
        if spec.brings_own_code and self._app.shown is not self._app.live:
            self._app.warn("This session names code of its own, which only a run of yours may use.")
        elif source is not None and self.can_race:
            source.turn(spec)
            self.begin()
        else:
            self._app.warn("Cells are run in turns where nothing else runs, in an app that runs cells.")

    def begin(self, *, races: bool = False) -> None:
        """Cells run from here on, or a race."""
        self.cells_run, self.races = True, races
        self._app.look_at(None)
        self._reports.follow()
        self._begin_work()
        main = self._app.main
        if main.wide:
            main.open_pane = "live"  # should the terminal become smaller
        elif main.open_pane != "queue":
            self._app.open_soon("race" if self.races else "live")

    def _begin_work(self) -> None:
        self._app.run_in_progress = True
        self._pane.set_running(True, adding=self.cells_run)
        self._changed()

    def _changed(self) -> None:
        self._app.stale = True
        self._app.refresh_bindings()

    def run_between(self, ask: Callable[..., bool], *wanted: object) -> None:
        """Have a report made or peaks measured between cells; `ask(*wanted)` is False when that cannot be asked for."""
        if self.stopping:
            self._app.notify("The run is stopping; try again when it has stopped.", severity="warning")
        elif self.races:
            self._app.notify(RACING, severity="warning")
        elif ask(*wanted):
            self._begin_work()

    def stop(self) -> None:
        source = self._app.live.source
        if source is not None and self._app.run_in_progress:
            self.stopping = True
            self._pane.set_running(True, stopping=True, adding=self.cells_run)
            source.cancel()
            self._changed()

    def ended(self) -> None:
        live = self._app.live
        if self.cells_run or self._app.replaying:
            live.end_run()
        self._app.run_in_progress = self.cells_run = self.stopping = self.races = False
        if self._app.replaying:
            live.state.break_off()
            gc.freeze()  # what was replayed is here to stay
        else:
            self._pane.set_running(False)
        self._changed()

    def queue_changed(self, waits: bool) -> None:
        """Run a cell that `waits` anew; that takes a stop back."""
        source = self._app.live.source
        if waits and not self.cells_run and source is not None:
            self.begin()
            source.work()
        elif waits and self.stopping:
            self.stopping = False
            self._begin_work()
        self._app.paint()

    def set_oom_rule(self, skip: bool) -> None:
        """Skip what is larger than a cell that ran out of memory, or no longer."""
        self._pane.set_skip_after_oom(skip)
        if (source := self._app.live.source) is not None:
            source.bench.skip_after_oom = skip
        self._app.refresh_panes()


class ReportController:
    """Serves the tabs of reports."""

    def __init__(self, app: Host) -> None:
        self._app = app
        self._chosen: tuple[Session, About] | None = None

    def about(self, session: Session) -> About | None:
        """The cell that reports are about: the chosen one, else the one that runs or was looked at. Of a session that
        was opened or is replayed, what its latest report is about, unless that cell has one."""
        if self._chosen is not None and self._chosen[0] is session:
            return self._chosen[1]
        cell = About(session.cell.spec, session.cell.cell) if session.cell else None
        choosing = session is self._app.live and not self._app.replaying
        reports = session.state.reports_on_cells
        if choosing or not reports or (cell and any(report.spec == cell.spec for report in reports)):
            return cell
        latest = reports[-1]
        return About(latest.spec, latest.cell)

    def choose(self, session: Session, about: About) -> None:
        """Stay with this, whichever cell runs."""
        self._chosen = session, about
        if about.cell is not None:
            session.looked_at = about.cell

    def choose_cell(self, cell: CellState) -> None:
        """Make a cell of the shown session the one that every pane is about."""
        if self._app.state.cells.get(cell.cell) is cell:  # another session may be shown meanwhile
            self.choose(self._app.shown, About(cell.spec, cell.cell))
            self._go_to(cell.cell)
            self._app.stale = True

    def follow(self) -> None:
        self._chosen = None

    def step(self, by: int) -> None:
        """Go to the next of the session's cells, then of what else there are reports on, each once, or to the one
        before."""
        session = self._app.shown
        everything, now = [About(cell.spec, cell.cell) for cell in session.state.cells.values()], self.about(session)
        needs = {report_key(about.spec) for about in everything}
        others = {report_key(report.spec): About(report.spec, None) for report in session.state.reports_on_cells}
        everything += [about for key, about in others.items() if key not in needs]
        if not everything:
            return
        place = everything.index(now) + by if now in everything else 0 if by > 0 else len(everything) - 1
        about = everything[min(max(place, 0), len(everything) - 1)]
        self.choose(session, about)
        if about.cell is not None:
            self._go_to(about.cell)
        self._app.paint()

    def _go_to(self, cell: int) -> None:
        self._app.main.query_one(ResultsPane).go_to(list(self._app.state.cells).index(cell))

    def ask(self, kind: ReportKind, spec: CellSpec, cell: int | None) -> bool:
        """Have the report made; `cell`: the number, if it is in the session. False when it cannot be asked for."""
        source = self._app.live.source
        if source is None:
            return False
        if self.about(self._app.live) is None:  # the choices in Configure, which are the person's own
            source.bench.trust.name(spec)
        if cell is not None:
            self.choose(self._app.live, About(spec, cell))
        source.ask(kind, spec, cell)
        return True

    def finished(self, event: ReportFinished) -> None:
        """Say so where the report cannot be seen."""
        live = self._app.live
        report = live.state.reports.get(event.report)
        if report is None or report.kind == "agreement" or event.status == "cancelled" or event.at < live.news_since:
            return
        tab = TABS[REPORTS[report.kind].tab]
        opens = key_name(f"app.open_{tab.id}")
        if self._app.main.shows(tab.id) and self._app.shown is live and event.status == "ok":
            return
        if event.status != "ok":
            text = f"{tab.label} of {report.spec.title}: {event.error or event.status} ({opens})"
            self._app.notify(text, title="No report", severity="error", markup=False, timeout=10)
        elif report.kind == "oom":
            text = f"Why {report.spec.title} ran out of memory can be read in {tab_name(tab.id)}."
            self._app.notify(text, title="Out of memory", severity="warning", markup=False)
        else:
            self._app.notify(f"{tab.label} of {report.spec.title}: ready ({opens}).", title="Report", markup=False)


class PeakController:
    """Serves the Roofline tab: has peaks measured and keeps them."""

    def __init__(self, app: Host) -> None:
        self._app = app
        self._waiting: list[WantedPeak] = []
        self._asked_at = 0.0
        self._problem = ""

    @property
    def view(self) -> PeakView:
        app = self._app
        here = app.live.state.environment if app.live.source is not None and not app.replaying else None
        return PeakView(app.judging.peaks.get, app.judging.version, here, self._progress, self._problem)

    @property
    def _progress(self) -> str:
        if not self._waiting:
            return ""
        first = self._waiting[0]
        if self._app.live.state.running_cell is not None:
            return f"{first.device} {first.precision}: waits for the running cell"
        more = f", {len(self._waiting) - 1} to follow" if len(self._waiting) > 1 else ""
        return f"measuring {first.device} {first.precision} ... {time.monotonic() - self._asked_at:.0f} s{more}"

    def ask(self, wanted: Sequence[WantedPeak]) -> bool:
        """Have these measured before the next cell; False when that cannot be asked for."""
        source = self._app.live.source
        if source is None or self._app.replaying or self._waiting or not wanted:
            return False
        self._waiting, self._asked_at, self._problem = list(wanted), time.monotonic(), ""
        source.measure_peaks(wanted, partial(self._app.call_later, self._take))  # told on another thread
        return True

    def _take(self, wanted: WantedPeak, found: DevicePeak | PeakError) -> None:
        self._waiting = [each for each in self._waiting if each != wanted]
        self._asked_at = time.monotonic()
        environment = self._app.live.state.environment
        if isinstance(found, PeakError):
            self._problem = f"{wanted.device} {wanted.precision}: {found}"
        elif environment is not None:
            # By the threads that were in force, so that it is never taken for a peak with others.
            self._app.judging.take_peak(peak_key(environment, wanted.device, wanted.precision, found.threads), found)
            if found.disturbance:
                self._problem = f"{wanted.device} {wanted.precision}: not kept, {found.disturbance}"
        self._app.refresh_panes()
