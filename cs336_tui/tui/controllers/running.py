"""Running what people ask for: cells and reports, one after another, until nothing waits or somebody stops it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from textual import on

from cs336_tui.config.recent_models import models_in, remember
from cs336_tui.config.sweep import Sweep
from cs336_tui.tui.background import in_background
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.controllers.looking import Looking
from cs336_tui.tui.live_source import LiveSource
from cs336_tui.tui.session import Session
from cs336_tui.tui.tabs.queue import QueuePane
from cs336_tui.tui.tabs.report import ReportPane


class Running(Looking):
    """Starts, adds to and stops what runs. What runs is the live session's source; its end comes as a message."""

    _stopping = False
    _cells_run = False
    """Whether cells are among what runs; else it is reports only."""

    def attach_bench(self, session: Session, log: Path | None) -> bool:
        """Give a session a bench that runs its cells into `log`, a new one when None; False if this app runs none."""
        raise NotImplementedError

    def _make_source(self) -> LiveSource | None:
        """The bench, made when something is on the screen, or sooner for somebody who presses Run before that."""
        if self.live.source is None:
            self.attach_bench(self.live, None)
        return self.live.source

    def action_run_cells(self) -> None:
        """Ask the Configure pane, which knows whether the choices are valid."""
        pane = self.main.query_one(ConfigurePane)
        if pane.problems:
            self.notify(str(pane.problems[0]), title="Cannot run", severity="error", markup=False)
        pane.request_run()

    action_add_cells = action_run_cells

    @on(ConfigurePane.RunRequested)
    def _run(self, message: ConfigurePane.RunRequested) -> None:
        source = self._make_source()
        if source is None or self._stopping:
            return
        adding = self._cells_run
        source.run(message.sweep, message.options)
        self._remember_models(message.sweep)
        if adding:
            count = len(message.sweep) * message.options.repeats
            self.notify(f"{count} cell{'s' * (count != 1)} added behind those that wait.", title="Added", timeout=3)
        else:
            self.begin_run()

    def _remember_models(self, sweep: Sweep) -> None:
        """Offer a person's own models that run now before others from here on."""
        if models := models_in(sweep):
            in_background(self, partial(remember, models), self.main.query_one(ConfigurePane).set_recent)

    def begin_run(self) -> None:
        """Cells of the app's session are about to run."""
        self._cells_run = True
        self._opened = None
        self._reports.follow()
        self._begin_work()
        if self.main.wide:
            self.main.open_pane = "live"  # should the terminal become smaller
        elif self.main.open_pane != "queue":
            self.action_open("live")

    def _begin_work(self) -> None:
        """Cells are about to run, or reports to be made."""
        self.run_in_progress = True
        self.main.query_one(ConfigurePane).set_running(True, adding=self._cells_run)
        self._fresh = True
        self.refresh_bindings()

    @on(ReportPane.Wanted)
    def _make_report(self, message: ReportPane.Wanted) -> None:
        if self._stopping:
            self.notify("What runs is being stopped; ask again when it is over.", severity="warning")
        elif self._reports.ask(message):
            self._begin_work()

    @on(ReportPane.CellStepped)
    def _step_cell(self, message: ReportPane.CellStepped) -> None:
        self._reports.step(message.by)
        self.paint()

    @on(ConfigurePane.StopRequested)
    def action_stop_cells(self) -> None:
        """Stop what runs and what waits."""
        if self.live.source is not None and self.run_in_progress:
            self._stopping = True
            self.main.query_one(ConfigurePane).set_running(True, stopping=True, adding=self._cells_run)
            self.live.source.cancel()
            self._fresh = True
            self.refresh_bindings()

    @on(QueuePane.Changed)
    def _queue_changed(self, message: QueuePane.Changed) -> None:
        if message.waits and not self._cells_run and self.live.source is not None:
            self.begin_run()
            self.live.source.work()
        elif message.waits and self._stopping:  # what waits anew takes the stop back
            self._stopping = False
            self._begin_work()
        self.paint()

    @on(QueuePane.OomRuleTurned)
    def _turn_oom_rule(self, message: QueuePane.OomRuleTurned) -> None:
        self.main.query_one(ConfigurePane).set_skip_after_oom(message.skip)
        if self.live.source is not None:
            self.live.source.skip_after_oom = message.skip
        self.refresh_panes()
