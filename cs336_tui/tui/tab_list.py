"""The tabs of the app, a row each with its key, place and pane, and the app's keys."""

from __future__ import annotations

from importlib import import_module
from typing import Literal

import msgspec
from textual.widget import Widget

from cs336_tui.events.reports import ASKED_FOR, REPORTS
from cs336_tui.tui.keys import MEANINGS, bind, bind_keys, key_name


class PaneTab(msgspec.Struct, frozen=True):
    """A tab with its pane. On a large screen the panes ``above`` are always in sight and one of those ``below`` is."""

    id: str
    label: str
    key: str
    place: Literal["above", "below"]
    where: str
    """The module and the class of the pane."""
    at_start: bool = True
    """True if the pane is made with the screen, else it is made when the tab is first opened."""
    tall: bool = False
    """True if it opens with the screen to itself."""

    @property
    def title(self) -> str:
        """The key that opens it now, and the label."""
        return f"{key_name(f'app.open_{self.id}')} {self.label}"

    def pane(self) -> type[Widget]:
        """The class of the pane, imported when it is first wanted: the app starts without those that are not made
        `at_start`."""
        module, name = self.where.split(":")
        found: type[Widget] = getattr(import_module(f"cs336_tui.tui.{module}"), name)
        return found

    def make(self) -> Widget:
        """The pane of the tab. Not for the form, which is made from what the app was started with."""
        pane = self.pane()(id=self.id)
        pane.border_title = self.title
        return pane


TABS = {
    tab.id: tab
    for tab in (
        PaneTab("configure", "Configure", "1", "above", "configure.pane:ConfigurePane"),
        PaneTab("live", "Live", "2", "above", "tabs.live:LivePane"),
        PaneTab("device", "Device", "3", "above", "tabs.device:DevicePane"),
        PaneTab("results", "Results", "4", "below", "tabs.results:ResultsPane"),
        PaneTab("log", "Log", "5", "below", "tabs.live:LogPane"),
        PaneTab("queue", "Queue", "6", "below", "tabs.queue:QueuePane"),
        PaneTab("sessions", "Sessions", "7", "below", "tabs.sessions:SessionsPane"),
        PaneTab("compare", "Compare", "8", "below", "tabs.compare:ComparePane", at_start=False, tall=True),
        PaneTab("kernels", "Kernels", "9", "below", "tabs.kernels:KernelsPane", at_start=False, tall=True),
        PaneTab("memory", "Memory", "0", "below", "tabs.memory:MemoryPane", at_start=False, tall=True),
        PaneTab("estimate", "Estimate", "i", "below", "tabs.estimate:EstimatePane", at_start=False),
        PaneTab("roofline", "Roofline", "l", "below", "tabs.roofline:RooflinePane", at_start=False, tall=True),
        PaneTab("precision", "Precision", "p", "below", "tabs.precision:PrecisionPane", at_start=False),
        PaneTab("race", "Race", "C", "below", "tabs.race:RacePane", at_start=False, tall=True),
    )
}
"""In the order of the screen, which is that of their keys: digits, then letters by the alphabet, then capitals."""
REPORT_TABS = {kind: TABS[REPORTS[kind].tab] for kind in ASKED_FOR}
"""The tabs that make a report, by its kind."""
APP_KEYS = (
    bind("run", "run_cells", "Run", "app.run"),
    bind("run", "add_cells", "Add", "app.add"),
    bind("stop", "stop_cells", "Stop", "app.stop"),
    bind("resume", "resume", "Resume", "app.resume"),
    bind("back", "leave_opened", "Back", "app.back"),
    bind("tune", "tune", "Race", "app.tune"),
    bind("demo", "watch_demo", "Watch a made-up run", "app.demo", show=False),
    bind("next-cell", "follow_next(1)", "Next cell", "app.follow_next", shown_as="[ ]"),
    bind("cell-before", "follow_next(-1)", "Previous cell", "app.follow_before", show=False),
    bind("screen", "maximise", "Full screen", "app.maximise"),
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
