"""Runs cells and reports, one after another, until nothing waits or the run is stopped."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cs336_tui.config.presets import models_in, remember
from cs336_tui.config.spec import SpecError
from cs336_tui.config.sweep import Sweep
from cs336_tui.tui.background import in_background
from cs336_tui.tui.configure.form import devices_of
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.controllers.reports import ReportController
from cs336_tui.tui.format import plural
from cs336_tui.tui.host import Host
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.requests import RunOptions
from cs336_tui.tui.session import Session
from cs336_tui.tui.sources import LiveSource

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
        bench = self._bench_factory(partial(self._app.take, session), log)
        session.source = LiveSource(bench, self._app.post_message)
        session.follow_log()
        return True

    def ask(self) -> None:
        if problems := self._pane.problems:
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
        sweep, problem = pane.sweep, ""
        try:
            if not self.can_race:
                stop = f"stop what runs ({key_name('app.stop')}), or wait for it"
                problem = "a replay or watch runs no cells" if self._app.replaying else stop
            elif sweep is None or environment is None:
                problem = str(pane.problems[0]) if pane.problems else "this machine is still being read"
            else:
                over = pane.preset.over if sweep == pane.preset.sweep else ()
                (device,) = devices_of(start_of(sweep, fields_of(over) if over else None), environment)
                self._app.push_screen(TuneDialog(sweep, device, over), self._race)
        except SpecError as error:
            problem = str(error)
        if problem:
            self._app.notify(problem, title="Cannot race", severity="error", markup=False)

    def _race(self, search: Search | None) -> None:
        source = self.source()
        if search is not None and source is not None and self.can_race:
            source.race(search, self._pane.options)
            self.begin(races=True)

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
