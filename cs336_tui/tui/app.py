"""The terminal app: folds events into a session's state and shows it at a steady pace."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.screen import Screen

from cs336_tui.events import CellsQueued, CellStarted, DeviceSampled, EnvironmentRead, Event, Notice
from cs336_tui.presets import PRESETS, Preset
from cs336_tui.session.state import SessionState
from cs336_tui.sweep import Sweep
from cs336_tui.tui import themes
from cs336_tui.tui.form import RunOptions
from cs336_tui.tui.keys import APP_KEYS
from cs336_tui.tui.messages import RunEnded, Trouble
from cs336_tui.tui.panes.configure import ConfigurePane
from cs336_tui.tui.panes.device import Run
from cs336_tui.tui.panes.live import LivePane
from cs336_tui.tui.panes.log import LogPane
from cs336_tui.tui.screen import MainScreen, View
from cs336_tui.tui.sources import LiveSource, ReplaySource, Sink, sweep_of
from cs336_tui.tui.theme_choice import ThemeChoice
from cs336_tui.tui.widgets.lines import Lines
from cs336_tui.tui.widgets.rows import Rows
from cs336_tui.tui.widgets.tab_bar import TabBar

if TYPE_CHECKING:
    from cs336_tui.runner.bench import Bench

IDLE_REFRESH_S = 2.0
"""How often the Device pane is shown while nothing runs."""
LOW_BANDWIDTH_HZ = 0.5
LOW_BANDWIDTH_DETAIL_S = 5.0
"""With ``--low-bandwidth``: the most refreshes a second, and seconds between the Live pane's details."""


class Cs336App(App[None]):
    """Choose, run, watch and export benchmarks, or watch a session's log again.

    With a `bench_factory` the app runs cells: the factory is called when something is on the screen, with the sink
    that takes the bench's events. With `replay` it plays that log at `speed` instead. `initial` and `options` fill
    the Configure pane. `summary_path` is rewritten after every finished cell. Call `close` when `run` has returned,
    however it did.
    """

    TITLE = "cs336-tui"
    CSS_PATH = "app.tcss"

    BINDINGS: ClassVar[list[BindingType]] = [*APP_KEYS]

    def __init__(
        self,
        bench_factory: Callable[[Sink], Bench] | None = None,
        *,
        replay: Path | None = None,
        speed: float = 1.0,
        theme: str | None = None,
        refresh_hz: float = 2.0,
        low_bandwidth: bool = False,
        initial: Sweep | None = None,
        options: RunOptions | None = None,
        summary_path: Path | None = None,
        user_theme_dir: Path | None = None,
    ) -> None:
        super().__init__()
        self.animation_level = "none"
        self.state = SessionState()
        self._inbox: deque[Sequence[Event]] = deque()
        self.run_in_progress = False
        self._stopping = False
        self._latest_run: Run | None = None
        self._looked_at: int | None = None
        """The cell that the Live pane shows between cells."""
        self._preset = Preset("command line", "", initial) if initial else PRESETS[0]
        self._options = options
        self._low_bandwidth = low_bandwidth
        self._refresh_s = 1 / (min(refresh_hz, LOW_BANDWIDTH_HZ) if low_bandwidth else refresh_hz)
        self._fresh = self._fresh_sample = False
        self._painted_at = 0.0
        self._themes = ThemeChoice(self, theme, user_theme_dir)
        self._keeper = None
        if summary_path is not None:
            from cs336_tui.tui.keeper import SummaryKeeper

            self._keeper = SummaryKeeper(summary_path, lambda why: self.post_message(Trouble(why)))
        self._replay = ReplaySource(replay, self.sink, self.post_message, speed) if replay else None
        self._bench_factory = bench_factory
        self._bench: LiveSource | None = None

    # From any thread into the state.

    def sink(self, events: Sequence[Event]) -> None:
        """Take a batch of events, from any thread, without waiting; the next refresh shows them.

        A message for each would cost more than everything that is drawn.
        """
        if self._keeper is not None:
            self._keeper.take(events)
        self._inbox.append(events)

    def _fold_inbox(self) -> None:
        """Bring the state up to date with what has arrived."""
        while self._inbox and self.screen_stack:  # none while the app closes; the session log has it all
            self._fold(self._inbox.popleft())

    def _fold(self, events: Sequence[Event]) -> None:
        for event in events:
            self.state.apply(event)
            match event:
                case EnvironmentRead() if not self.replaying:
                    self._main.query_one(ConfigurePane).set_environment(event.environment)
                case CellsQueued():
                    self._latest_run = Run(event.at)
                    if self.replaying and event.specs:
                        self.load_preset(
                            Preset(self._replay.path.stem if self._replay else "", "", sweep_of(event.specs))
                        )
                case CellStarted():
                    self._looked_at = event.cell
                case Notice():
                    self.notify(event.text, severity="warning", markup=False)
                case _:
                    pass
        self._main.query_one(LogPane).take(events, self.state)
        if all(isinstance(event, DeviceSampled) for event in events):
            self._fresh_sample = True
        else:
            self._fresh = True

    @on(RunEnded)
    def _run_ended(self, message: RunEnded) -> None:
        if not self.screen_stack:
            return
        self._fold_inbox()
        self.run_in_progress = self._stopping = False
        if self._latest_run and self.state.last_at:
            self._latest_run = Run(self._latest_run.started_at, self.state.last_at)
        if not self.replaying:
            self._main.query_one(ConfigurePane).set_running(False)
        if message.error:
            self._report(message.error)
        self._fresh = True
        self.refresh_bindings()

    @on(Trouble)
    def _trouble(self, message: Trouble) -> None:
        if self.screen_stack:
            self._report(message.text)

    def _report(self, text: str) -> None:
        """Tell the person now, and keep it in the Log tab."""
        self.notify(text, severity="error", markup=False, timeout=10)
        self._main.query_one(LogPane).take([Notice(at=self.state.last_at or 0.0, text=text)], self.state)
        self._fresh = True

    # From the state to the screen.

    def get_default_screen(self) -> Screen[object]:
        return MainScreen(self._preset, self._options)  # type: ignore[return-value]

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return themes.VARIABLE_DEFAULTS

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:  # noqa: ARG002
        from cs336_tui.tui.commands import commands

        return commands(self)

    @property
    def _main(self) -> MainScreen:
        main = self.screen_stack[0]
        assert isinstance(main, MainScreen)
        return main

    @property
    def replaying(self) -> bool:
        return self._replay is not None

    @property
    def theme_names(self) -> tuple[str, ...]:
        """Names of our own and the person's themes."""
        return self._themes.names

    def on_mount(self) -> None:
        self.set_interval(self._refresh_s, self._tick)
        self.call_after_refresh(self._begin)

    def on_resize(self) -> None:
        """Repaint all: a terminal that shrank and grew back has lost its content, and Textual sees no new size."""
        self.screen.refresh()

    def _begin(self) -> None:
        """What may wait until something is on the screen."""
        from cs336_tui.tui.signals import end_on_signals

        if not gc.isenabled():  # as `cs336-tui` starts
            gc.freeze()
            gc.enable()
        end_on_signals(lambda code: self.exit(return_code=code))
        if problems := self._themes.load():
            self._report("\n".join(problems))
        if self._low_bandwidth:
            self._main.query_one(LivePane).detail_interval_s = LOW_BANDWIDTH_DETAIL_S
        bench = self._make_bench()
        self.paint()
        if self._replay:
            self._main.query_one(ConfigurePane).disabled = True
            self._main.open("live")
            self.run_in_progress = True
            self._replay.begin()
        elif bench:
            self._main.query_one(LogPane).where = str(bench.log_path)
            bench.begin()
        self.refresh_bindings()

    def _make_bench(self) -> LiveSource | None:
        """The bench, made when something is on the screen, or sooner for somebody who presses Run before that."""
        if self._bench is None and self._bench_factory is not None:
            self._bench = LiveSource(self._bench_factory(self.sink), self.post_message)
        return self._bench

    def _tick(self) -> None:
        self._fold_inbox()
        idle_for = time.monotonic() - self._painted_at
        if self._fresh or (self._fresh_sample and (self.run_in_progress or idle_for >= IDLE_REFRESH_S)):
            self.paint()

    @on(Lines.Resized)
    def paint(self) -> None:
        """Show the newest state in every pane that is in sight; only what differs is sent to the terminal."""
        self._fold_inbox()
        self._painted_at = time.monotonic()
        self._fresh = self._fresh_sample = False
        session = self._bench.log_path.stem if self._bench else ""
        cell = self.state.running_cell or self.state.cells.get(-1 if self._looked_at is None else self._looked_at)
        mode = self._replay.mode if self._replay else "stopping ..." if self._stopping else ""
        self._main.show(View(self.state, session, mode, cell, self._latest_run, self.replaying))

    # What people ask for.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        match action:
            case "run_cells":
                return not self.replaying and not self.run_in_progress
            case "stop_cells":
                return not self.replaying and self.run_in_progress and not self._stopping
            case "pause" | "faster":
                return self.replaying and self.run_in_progress
            case _:
                return True

    def action_run_cells(self) -> None:
        """Ask the Configure pane, which knows whether the choices are valid."""
        pane = self._main.query_one(ConfigurePane)
        if pane.problems:
            self.notify(str(pane.problems[0]), title="Cannot run", severity="error", markup=False)
        pane.request_run()

    @on(ConfigurePane.RunRequested)
    def _run(self, message: ConfigurePane.RunRequested) -> None:
        bench = self._make_bench()
        if bench is None or self.run_in_progress:
            return
        self.run_in_progress = True
        self._main.query_one(ConfigurePane).set_running(True)
        bench.run(message.sweep, ddof=message.options.ddof, timeout_s=message.options.timeout_s)
        if self._main.wide:
            self._main.open_pane = "live"  # should the terminal become smaller
        else:
            self.action_open("live")
        self.refresh_bindings()

    @on(ConfigurePane.StopRequested)
    def action_stop_cells(self) -> None:
        """Stop the running cell and those after it."""
        if self._bench is not None and self.run_in_progress:
            self._stopping = True
            self._main.query_one(ConfigurePane).set_running(True, stopping=True)
            self._bench.cancel()
            self._fresh = True
            self.refresh_bindings()

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

    def action_open(self, pane: str) -> None:
        """Bring a pane into sight and put the focus into it."""
        self._main.open(pane)
        self.call_after_refresh(self._main.focus_pane, pane)
        self.call_after_refresh(self.paint)

    @on(TabBar.Chosen)
    def _open_tab(self, message: TabBar.Chosen) -> None:
        self._main.open(message.tab)
        self.call_after_refresh(self.paint)

    @on(Rows.Moved, "#results")
    def _look_at(self, message: Rows.Moved) -> None:
        self._looked_at = list(self.state.cells)[message.index]
        self._fresh = True

    @on(Rows.Chosen, "#results")
    def _open_detail(self, message: Rows.Chosen) -> None:
        from cs336_tui.tui.dialogs.cell_detail import cell_detail
        from cs336_tui.tui.dialogs.reader import Reader

        cell = list(self.state.cells.values())[message.index]
        self.push_screen(Reader(f"Cell {message.index + 1}", lambda width: cell_detail(self.state, cell, width)))

    @on(ConfigurePane.ExportRequested)
    def action_export(self) -> None:
        """Ask where the results and the summary go."""
        from cs336_tui.tui.dialogs.export import ExportDialog

        if self._has_results():
            self.push_screen(ExportDialog(self.state, self.copy_to_clipboard), self._exported)

    def _exported(self, what: str | None) -> None:
        if what:
            self.notify(what, title="Exported", markup=False)

    def action_copy_table(self) -> None:
        """The results table to the clipboard of the terminal, also over SSH."""
        from cs336_tui.export.table import results_markdown

        if self._has_results():
            self.copy_to_clipboard(results_markdown(self.state))
            self.notify("The results table was sent to the terminal's clipboard.", title="Copied")

    def _has_results(self) -> bool:
        if not self.state.finished_cells:
            self.notify("There are no results yet: no cell is over.", severity="warning")
        return bool(self.state.finished_cells)

    def load_preset(self, preset: Preset) -> None:
        """Fill the Configure pane with a preset."""
        self._main.query_one(ConfigurePane).load(preset)

    def action_next_theme(self) -> None:
        """The next of our own and the person's themes."""
        self.theme = self._themes.next()
        self.clear_notifications()
        self.notify(self.theme, title="Theme", timeout=2)

    def action_help(self) -> None:
        """Keys, and what each number means."""
        from cs336_tui.tui.dialogs.reader import Reader
        from cs336_tui.tui.help import help_lines

        self.push_screen(Reader("Help", lambda width: help_lines(width, replaying=self.replaying)))

    def action_ask_quit(self) -> None:
        """Quit, after a question while cells run."""
        from cs336_tui.tui.dialogs.confirm import Confirm

        if self.replaying or not self.run_in_progress:
            self.exit()
        elif not isinstance(self.screen, Confirm):
            question = (
                "Cells are still running. Finished steps are in the session log; the running cell will be stopped."
            )
            self.push_screen(Confirm(question, yes="Stop and quit", no="Keep running"), self._quit_if)

    def _quit_if(self, yes: bool | None) -> None:
        if yes:
            self.exit()

    # The end.

    async def on_unmount(self) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End the run, its processes, the log and the summary; blocks up to some seconds. Safe to call twice."""
        for source in (self._bench, self._replay):
            if source is not None:
                source.close()
        if self._keeper is not None:
            self._keeper.close()
