"""The terminal app: takes in what happens, shows it, and hands what people ask for to the controllers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from cs336_tui.config.presets import QUICK, Preset
from cs336_tui.config.settings import NO_FILE, Found
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.peaks import PeakCache
from cs336_tui.runner.trust import Untrusted
from cs336_tui.tui.background import SummaryAutosave
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.controllers import dialogs
from cs336_tui.tui.controllers.running import PeakController, ReportController, RunController
from cs336_tui.tui.controllers.sessions import SessionController
from cs336_tui.tui.ending import EndOnSignals, farewell
from cs336_tui.tui.host import Host
from cs336_tui.tui.keys import printed_key
from cs336_tui.tui.painter import Painter
from cs336_tui.tui.preferences import VARIABLE_DEFAULTS, ThemeChoice, checked, keymap_of
from cs336_tui.tui.requests import Requests, RunOptions
from cs336_tui.tui.screen import MainScreen
from cs336_tui.tui.session import ReplaySource, Session
from cs336_tui.tui.sources import Ended, News
from cs336_tui.tui.tab_list import APP_KEYS
from cs336_tui.tui.tabs.device import DevicePane
from cs336_tui.tui.tabs.live import LivePane
from cs336_tui.tui.tabs.results import ResultsPane
from cs336_tui.tui.widgets.menu_bars import TabBar

if TYPE_CHECKING:
    from cs336_tui.tui.sources import BenchFactory

LOW_BANDWIDTH_HZ = 0.5
"""With ``--low-bandwidth``: the most refreshes a second."""


class Cs336App(Host):
    """Choose, run, watch, compare and export benchmarks, or watch a session's log again.

    With a `bench_factory`, called when something is on the screen, it runs cells; with `replay` it plays that log at
    `speed`; with `watch` it follows that log, or the jobs of its session, as others write them; `opened` is shown
    first. `initial`, of that name, and `options` fill the Configure pane, less what this machine lacks of the fields in
    `may_leave_out`.
    `summary_path` is rewritten after every finished cell. `session_dir` is where the Sessions tab looks, unless given
    beside the bench's log. `settings` are the person's, with what is wrong in their file; `theme`, `refresh_hz` and
    `low_bandwidth` are those in force. Call `close` when `run` has returned, however it did.
    """

    TITLE = "cs336-tui"
    CSS_PATH = "app.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*APP_KEYS]

    def __init__(
        self,
        bench_factory: BenchFactory | None = None,
        *,
        replay: Path | None = None,
        watch: Path | None = None,
        opened: Path | None = None,
        speed: float = 1.0,
        theme: str | None = None,
        refresh_hz: float = 2.0,
        low_bandwidth: bool = False,
        initial: Sweep | None = None,
        initial_name: str = "command line",
        options: RunOptions | None = None,
        may_leave_out: Collection[str] = (),
        summary_path: Path | None = None,
        user_theme_dir: Path | None = None,
        session_dir: Path | None = None,
        peaks: PeakCache | None = None,
        settings: Found = NO_FILE,
    ) -> None:
        replaying = replay is not None or watch is not None
        super().__init__(Session(watch or replay), settings, peaks, replaying=replaying)
        self.themes = ThemeChoice(self, theme, settings.settings.theme, user_theme_dir)
        if summary_path:
            self.autosave = SummaryAutosave(summary_path, lambda problem: self.post_message(News(problem)))
        self.animation_level = "none"
        self._preset, self._options = Preset(initial_name, "", initial) if initial else QUICK, options
        self._refresh_s = 1 / (min(refresh_hz, LOW_BANDWIDTH_HZ) if low_bandwidth else refresh_hz)
        self._watches, self._shown_first = watch is not None, opened
        self._styled_for = self.theme, self.get_css_variables()
        self.stylesheet.set_variables(self._styled_for[1])
        self._replay: ReplaySource | None = None
        if replay:
            self._replay = ReplaySource(
                replay,
                lambda events: self.take(self.live, events),
                lambda session: self.call_later(self._painter.take_all, session),
                self.post_message,
                speed,
            )
        self._reports, self._peaks = ReportController(self), PeakController(self)
        self._runs = RunController(self, self._reports, bench_factory)
        self._sessions = SessionController(self, self._runs, session_dir)
        self.action_run_cells = self.action_add_cells = self._runs.ask
        self.action_tune, self.action_resume = self._runs.ask_race, self._sessions.resume_shown
        self.action_watch_demo = self._sessions.watch_demo
        self._painter = Painter(
            self, self._reports, self._peaks, self._runs, self._sessions, self._replay, may_leave_out
        )
        self.requests = self._requests()

    def _requests(self) -> Requests:
        runs, reports, sessions = self._runs, self._reports, self._sessions
        return Requests(
            run=runs.run,
            choices_changed=self.show_soon,
            queue_changed=runs.queue_changed,
            set_oom_rule=runs.set_oom_rule,
            make_report=partial(runs.run_between, reports.ask),
            step_cell=reports.step,
            measure_peaks=partial(runs.run_between, self._peaks.ask),
            turn=runs.turn,
            choose_cell=reports.choose_cell,
            follow_cell=self.follow,
            read_cell=partial(dialogs.read_cell, self),
            keep_as_reference=partial(dialogs.keep_as_reference, self),
            save_best=partial(dialogs.save_best, self),
            do_with_session=sessions.do,
            open_recording=sessions.recordings.take,
            stop_reading=sessions.recordings.stop,
            compare_marked=sessions.marked,
        )

    # How it starts and ends.

    def run(self, *arguments: Any, **options: Any) -> Any:
        """Run it until it is quit or a signal ends it; returns what Textual's own `run` does."""
        with EndOnSignals(lambda code: self.exit(return_code=code), self.close, self.farewell):
            return super().run(*arguments, **options)

    def get_default_screen(self) -> Screen[object]:
        return MainScreen(self._preset, self._options, self._painter.paint)  # type: ignore[return-value]

    def refresh_css(self, animate: bool = True) -> None:
        """Style everything again for another theme. At the start Textual asks for it too, when nothing has changed."""
        wanted = self.theme, self.get_css_variables()
        if wanted != self._styled_for:
            self._styled_for = wanted
            super().refresh_css(animate)

    def get_css_variables(self) -> dict[str, str]:
        """Those of the theme; none before one of ours is on, when Textual asks for those of its own."""
        return super().get_css_variables() if hasattr(self, "themes") else {}

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return VARIABLE_DEFAULTS

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:  # noqa: ARG002
        from cs336_tui.tui import complete
        from cs336_tui.tui.controllers.commands import commands

        complete()
        yield from commands(self, self.themes.names)

    def on_mount(self) -> None:
        self.set_interval(self._refresh_s, self._painter.tick)
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        """Do what may wait until something is on the screen."""
        if not gc.isenabled():  # as `cs336-tui` starts
            gc.freeze()
            gc.enable()
        if problems := (*self.themes.load(), *self._settle()):
            self.report("\n".join(problems))
        source = self._runs.source()
        if source is not None:
            self._sessions.find_last(source.bench.log_path.parent)
        self.paint()
        if self._replay:
            self.main.query_one(ConfigurePane).disabled = True
            self.main.open("live")
            self.run_in_progress = self.live.playing = True
            self._replay.begin()
        elif self._watches:
            self.main.query_one(ConfigurePane).disabled = True
            self.main.open("queue")
            self._sessions.watch(self.live)
        elif source:
            source.begin()
        if self._shown_first:
            self._sessions.open_log(self._shown_first)
        self.refresh_bindings()

    def _settle(self) -> Sequence[str]:
        """Take the settings that the first frame does not need; a line for each that is wrong."""
        if self._found.lines:
            self._found = checked(self._found, self.available_themes)
            if moved := self.settings.keymap:
                self.set_keymap(keymap_of(moved))
                self.main.show_keys()
            self.main.query_one(ResultsPane).choose(self.settings.columns)
        return self._found.problems

    async def on_unmount(self) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End the run, its processes, the log and the summary; blocks up to some seconds. Safe to call twice."""
        for resource in (*self._sessions.sources, self._sessions.demo, self._replay, self.autosave):
            if resource is not None:
                resource.close()

    def farewell(self) -> str:
        """The last words in the terminal, once the app is closed: its session, and how to go on with it."""
        return farewell(session.path for session in (self.live, self.shown) if session.path is not None)

    @property
    def log_problems(self) -> list[str]:
        """One line for each log that could not be written to its end, and for the summary."""
        summary = self.autosave.problem if self.autosave else None
        return list(filter(None, (*(source.bench.log_problem for source in self._sessions.sources), summary)))

    # What happens.

    def on_ended(self, message: Ended) -> None:
        if not self.is_up:
            return
        if not self._painter.fold():  # it is over when all that it told has been taken in
            self.call_later(self.on_ended, message)
            return
        if message.watched:
            self._sessions.watch_ended(message.watched)
        elif not (self.live.source and self.live.source.busy):  # else what was added went to whoever runs the cells
            self._runs.ended()
            self._sessions.run_ended()
        if isinstance(message.problem, Untrusted):
            self._sessions.ask_trust(message.problem)
        elif message.problem:
            self.report(message.problem)
        self.refresh_bindings()
        self.paint()

    def on_news(self, message: News) -> None:
        if message.title:
            self.notify(message.text, title=message.title, markup=False)
        else:
            self.report(message.text)

    def open(self, pane: str) -> None:
        super().open(pane)
        if pane == "sessions":
            self._sessions.reload()
        elif pane == "estimate":
            self._painter.estimates()

    def on_tab_bar_chosen(self, message: TabBar.Chosen) -> None:
        self.open(message.tab)

    # What keys ask for.

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        runs, replaying = self._runs, self.replaying
        has_cell = self.shown.cell is not None and self.main.shows("live")
        possible = {
            "run_cells": not (replaying or runs.cells_run or runs.stopping),
            "add_cells": runs.cells_run and not (runs.races or runs.stopping),
            "tune": runs.can_race,
            "stop_cells": self.shown.watched or (self.run_in_progress and not (replaying or runs.stopping)),
            "resume": self._sessions.can_resume or self._sessions.last_stopped is not None,
            "watch_demo": not (replaying or self.run_in_progress),
            "pause": self._played and not self._played.at_end,
            "faster": self._played and not self._played.at_end,
            "leave_opened": self._opened is not None,
            "follow_next": self.state.side_by_side and len(self.state.running) > 1,
            "save_preset": not replaying,
            "maximise": self.main.can_maximise,
            "zoom_axis": has_cell and not self.main.has_strip,
            "next_gpu": self.main.shows("device") and self.main.query_one(DevicePane).has_several,
            "read_cell": has_cell and self.main.focused is None,
        }
        return bool(possible.get(action, True))

    def get_key_display(self, binding: Binding) -> str:
        """As Textual's; a key that was moved as texts print it."""
        return printed_key(binding.key) if binding.id in self.keymap else super().get_key_display(binding)

    def action_leave_opened(self) -> None:
        self.look_at(None)

    def action_follow_next(self, by: int) -> None:
        self.shown.follow_next(by)
        self.paint()

    def action_next_gpu(self) -> None:
        self.main.query_one(DevicePane).next_gpu()
        self.paint()

    def action_maximise(self) -> None:
        self.main.maximise()
        self.open(self.main.open_pane)

    def action_zoom_axis(self) -> None:
        live = self.main.query_one(LivePane)
        live.zoomed = not live.zoomed
        self.paint()

    def action_read_cell(self) -> None:
        if (cell := self.shown.cell) is not None:
            dialogs.read_cell(self, cell)

    def action_stop_cells(self) -> None:
        if self.shown.watched:
            self._sessions.ask_cancel(self.shown)
        else:
            self._runs.stop()

    @property
    def _played(self) -> ReplaySource | None:
        """The player of the log on the screen, if there is one."""
        return self._replay or self._sessions.played

    def action_pause(self) -> None:
        if played := self._played:
            played.pace.paused = not played.pace.paused
            self.paint()

    def action_faster(self, by: int) -> None:
        if played := self._played:
            played.change_speed(by)
            self.paint()

    action_export = dialogs.export
    action_copy_table = dialogs.copy_table
    action_save_preset = dialogs.save_preset
    action_help = dialogs.read_help
    action_ask_quit = dialogs.ask_quit

    action_choose_theme = dialogs.choose_theme

    def action_command_palette(self) -> None:
        from cs336_tui.tui.controllers.commands import Palette

        if self.screen.id != "--command-palette":
            self.push_screen(Palette())
