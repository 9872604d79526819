"""The terminal app: what people ask for, and who carries it out."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.app import SystemCommand
from textual.binding import BindingType
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widget import MountError
from textual.worker import WorkerFailed

from cs336_tui.config.presets import QUICK, Preset
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.events import (
    CellFinished,
    CellsQueued,
    EnvironmentRead,
    Event,
    Notice,
    ReportFinished,
    SessionResumed,
    StageChanged,
)
from cs336_tui.events.peaks import PeakCache
from cs336_tui.tui.configure.form import RunOptions
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.configure.possible import ALL
from cs336_tui.tui.controllers import comparing, exports
from cs336_tui.tui.controllers.peaks import PeakDesk
from cs336_tui.tui.controllers.running import Running
from cs336_tui.tui.dialogs.reader import Reader
from cs336_tui.tui.dialogs.window import Palette
from cs336_tui.tui.judging import Judging, is_timed
from cs336_tui.tui.keys import APP_KEYS
from cs336_tui.tui.live_source import LiveSource, RunEnded, Sink, Trouble
from cs336_tui.tui.replay_source import Replayed, ReplaySource, sweep_of
from cs336_tui.tui.screen import View
from cs336_tui.tui.session import Session
from cs336_tui.tui.signals import EndOnSignals
from cs336_tui.tui.tabs.compare.pane import ComparePane
from cs336_tui.tui.tabs.live import LivePane
from cs336_tui.tui.themes import ThemeChoice

if TYPE_CHECKING:
    from textual.driver import Driver

    from cs336_tui.runner.bench import Bench
    from cs336_tui.tui.tabs.roofline import RooflinePane

    BenchFactory = Callable[[Sink, Path | None], Bench]
    """Makes the bench of a new session, or of the one with this log. It is given the sink for the bench's events."""

GET_READY_S = 1.0
"""So long after the machine was read, what judging needs is loaded, unless a cell is being timed by then."""
OPENED_WITHIN_S = 2.0
"""So long keys and clicks wait for a window at most."""
LOW_BANDWIDTH_HZ = 0.5
LOW_BANDWIDTH_DETAIL_S = 5.0
"""With ``--low-bandwidth``: the most refreshes a second, and seconds between the Live pane's details."""


class Cs336App(Running):
    """Choose, run, watch, compare and export benchmarks, or watch a session's log again.

    With a `bench_factory` the app runs cells: the factory is called when something is on the screen. With `replay` it
    plays that log at `speed` instead. `initial` and `options` fill the Configure pane; what this machine lacks of the
    fields in `may_leave_out` is left out of them. `summary_path` is rewritten after every finished cell. `session_dir`
    is where the Sessions tab looks, unless given beside the bench's log. Call `close` when `run` has returned, however
    it did.
    """

    TITLE = "cs336-tui"
    CSS_PATH = "app.tcss"

    BINDINGS: ClassVar[list[BindingType]] = [*APP_KEYS]

    def __init__(
        self,
        bench_factory: BenchFactory | None = None,
        *,
        replay: Path | None = None,
        speed: float = 1.0,
        theme: str | None = None,
        refresh_hz: float = 2.0,
        low_bandwidth: bool = False,
        initial: Sweep | None = None,
        options: RunOptions | None = None,
        may_leave_out: Collection[str] = (),
        summary_path: Path | None = None,
        user_theme_dir: Path | None = None,
        session_dir: Path | None = None,
        peaks: PeakCache | None = None,
    ) -> None:
        keeper = None
        if summary_path is not None:
            from cs336_tui.tui.background import SummaryKeeper

            keeper = SummaryKeeper(summary_path, lambda why: self.post_message(Trouble(why)))
        preset = Preset("command line", "", initial) if initial else QUICK
        refresh_hz = min(refresh_hz, LOW_BANDWIDTH_HZ) if low_bandwidth else refresh_hz
        super().__init__(refresh_hz, preset, options, keeper, session_dir)
        self._low_bandwidth = low_bandwidth
        self._themes = ThemeChoice(self, theme, user_theme_dir)
        self._replay = ReplaySource(replay, self.sink, self.post_message, speed) if replay else None
        self._bench_factory = bench_factory
        self._may_leave_out = may_leave_out
        self.judging = Judging(self, self._is_timing, self._judged, peaks)
        self._peaks = PeakDesk(self)

    def get_driver_class(self) -> type[Driver]:
        found = super().get_driver_class()
        if found.__name__ != "LinuxDriver":  # one that somebody asked for in the environment
            return found
        from cs336_tui.tui.terminal import Driver as OwnDriver

        return OwnDriver

    # What happens.

    async def on_event(self, event: events.Event) -> None:
        """Keys and clicks wait for a window that is being opened, and mean nothing to an app that is ending."""
        if isinstance(event, events.InputEvent) and not event.is_forwarded and self.screen_stack:
            if self._exit:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.screen._mounted_event.wait(), OPENED_WITHIN_S)
        await super().on_event(event)

    def _handle_exception(self, error: Exception) -> None:
        """As Textual's; that a handler finds its widgets gone while the app ends is no crash."""
        cause = error.error if isinstance(error, WorkerFailed) else error
        if not (self._exit and isinstance(cause, NoMatches | MountError)):
            super()._handle_exception(error)

    def react(self, event: Event) -> None:
        """What an event of the app's session means for the rest of the screen."""
        match event:
            case EnvironmentRead() if not self.replaying:
                self.main.query_one(ConfigurePane).set_environment(event.environment, self._may_leave_out)
                self._begin_estimates()
                self.set_timer(GET_READY_S, self.judging.get_ready)
            case StageChanged() | CellFinished():
                self.judging.go_on()
            case CellsQueued() if self._replay and event.specs:
                self.load_preset(Preset(self._replay.path.stem, "", sweep_of(event.specs)))
            case SessionResumed() if event.at >= self.live.news_since:
                self._desk.resumed()
            case ReportFinished() if not self.replaying:
                self._reports.finished(event)
            case Notice() if event.at >= self.live.news_since:
                self.live.follow_log()
                self.notify(event.text, severity="warning", markup=False)
            case _:
                pass

    @on(RunEnded)
    def _run_ended(self, message: RunEnded) -> None:
        if not self.screen_stack:
            return
        self._fold_inbox()
        if self._inbox:  # the run is over when all that it told has been taken in
            self.call_later(self._run_ended, message)
            return
        if self.live.source is None or not self.live.source.busy:  # else what was added went to whoever runs the cells
            if self._cells_run or self.replaying:
                self.live.end_run()
            self.run_in_progress = self._cells_run = self._stopping = False
            self._desk.run_ended()
            if self.replaying:
                self.live.state.break_off()
                gc.freeze()  # what was replayed is here to stay
            else:
                self.main.query_one(ConfigurePane).set_running(False)
            self._fresh = True
            self.refresh_bindings()
        if message.error:
            self.report(message.error)

    @on(Replayed)
    def _replayed(self, message: Replayed) -> None:
        """A log that is played at once is read at once."""
        if self.screen_stack:
            self.live = message.session
            if queued := self.live.state.queued:
                self.react(queued)
            for notice in self.live.state.notices:
                self.react(notice)
            self._fresh = True

    @on(Trouble)
    def _trouble(self, message: Trouble) -> None:
        if self.screen_stack:
            self.report(message.text)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:  # noqa: ARG002
        from cs336_tui.tui.commands import commands

        return commands(self)

    @property
    def replaying(self) -> bool:
        return self._replay is not None

    @property
    def theme_names(self) -> tuple[str, ...]:
        """Names of our own and the person's themes."""
        return self._themes.names

    def run(self, *arguments: Any, **options: Any) -> Any:
        """Run it until it is quit or a signal ends it; returns what Textual's own `run` does."""
        with EndOnSignals(lambda code: self.exit(return_code=code), self.close):
            return super().run(*arguments, **options)

    def on_mount(self) -> None:
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        """What may wait until something is on the screen."""
        if not gc.isenabled():  # as `cs336-tui` starts
            gc.freeze()
            gc.enable()
        if problems := self._themes.load():
            self.report("\n".join(problems))
        if self._low_bandwidth:
            self.main.query_one(LivePane).detail_interval_s = LOW_BANDWIDTH_DETAIL_S
        source = self._make_source()
        self.paint()
        if self._replay:
            self.main.query_one(ConfigurePane).disabled = True
            self.main.open("live")
            self.run_in_progress = True
            self._replay.begin()
        elif source:
            source.begin()
        self.refresh_bindings()

    def attach_bench(self, session: Session, log: Path | None) -> bool:
        """Give a session a bench that runs its cells into `log`, a new one when None; False if this app runs none."""
        if self._bench_factory is None:
            return False
        bench = self._bench_factory(lambda events: self._take(session, events), log)
        session.source = LiveSource(bench, self.post_message)
        session.follow_log()
        self._desk.use_folder(session.source.log_path.parent)
        return True

    def view(self) -> View:
        return View(
            self.shown,
            self.live,
            self._mode,
            self.replaying,
            self.run_in_progress and not self.replaying,
            self._marked.compared(self._desk.compared),
            self._marked.cells,
            self._reports.about(self.shown),
            self._estimates,
            self.judging,
            self._peaks,
        )

    def _is_timing(self) -> bool:
        """Whether work on this machine would show in a cell's numbers; a replayed cell is long over."""
        return not self.replaying and self.run_in_progress and is_timed(self.live.state.running_cell)

    def _judged(self) -> None:
        self._fresh = True
        if isinstance(self.screen, Reader):
            self.screen.write()

    @property
    def _mode(self) -> str:
        """What is out of the ordinary, for the top line."""
        source = self.live.source
        if self._opened is not None:
            return "opened, b goes back" + (" to what runs" if self.run_in_progress else "")
        if self._replay:
            return self._replay.mode
        if self._stopping:
            return "stopping ..."
        if source is not None and self.run_in_progress and source.queue.paused:
            return "paused"
        return self._reports.in_progress

    # What people ask for.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        running = not self.replaying and self.run_in_progress
        match action:
            case "run_cells":
                return not self.replaying and not self._cells_run and not self._stopping
            case "add_cells":
                return self._cells_run and not self._stopping
            case "stop_cells":
                return running and not self._stopping
            case "pause" | "faster":
                return self.replaying and self.run_in_progress
            case "leave_opened":
                return self._opened is not None
            case "save_preset":
                return not self.replaying
            case _:
                return True

    def action_pause(self) -> None:
        """Hold the replay, or let it go on."""
        if self._replay:
            self._replay.pace.paused = not self._replay.pace.paused
            self.paint()

    def action_faster(self, by: int) -> None:
        """Change the replay's speed."""
        if self._replay:
            self._replay.change_speed(by)
            self.paint()

    def on_roofline_pane_peak_wanted(self, message: RooflinePane.PeakWanted) -> None:
        """Measure what a device can do, between cells."""
        if self._stopping:
            self.notify("What runs is being stopped; ask again when it is over.", severity="warning")
        elif self._peaks.ask(message.wanted):
            self._begin_work()

    @on(ComparePane.KeepWanted)
    def _keep_as_reference(self, message: ComparePane.KeepWanted) -> None:
        comparing.keep_as_reference(self, message.results)

    @on(ConfigurePane.ExportRequested)
    def action_export(self) -> None:
        """Ask where the results and the summary go."""
        exports.export(self)

    def action_copy_table(self) -> None:
        """The results table to the clipboard of the terminal, also over SSH."""
        exports.copy_table(self)

    def load_preset(self, preset: Preset) -> None:
        """Fill the Configure pane with what of a preset this machine can run."""
        self.main.query_one(ConfigurePane).load(preset, () if self.replaying else ALL)

    def action_save_preset(self) -> None:
        """Keep the choices under a name."""
        from cs336_tui.tui.controllers.presets import save_preset

        save_preset(self)

    def action_next_theme(self) -> None:
        """The next of our own and the person's themes."""
        self.theme = self._themes.next()
        self.clear_notifications()
        self.notify(self.theme, title="Theme", timeout=2)

    def action_command_palette(self) -> None:
        """Every action by name."""
        if self.screen.id != "--command-palette":
            self.push_screen(Palette())

    def action_help(self) -> None:
        """Keys, and what each number means."""
        from cs336_tui.tui.controllers import dialogs

        dialogs.read_help(self)

    def action_ask_quit(self) -> None:
        """Quit, after a question while cells run."""
        from cs336_tui.tui.controllers import dialogs

        dialogs.ask_quit(self)

    @property
    def log_problems(self) -> list[str]:
        """One line for each log that could not be written to its end."""
        return [source.log_problem for source in self._live_sources if source.log_problem]

    @property
    def _live_sources(self) -> list[LiveSource]:
        return [source for source in (self.live.source, *self._desk.other_sources) if source is not None]

    async def on_unmount(self) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End the run, its processes, the log and the summary; blocks up to some seconds. Safe to call twice."""
        for source in self._live_sources:
            source.close()
        if self._replay is not None:
            self._replay.close()
        if self._keeper is not None:
            self._keeper.close()
