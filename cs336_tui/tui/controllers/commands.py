"""The command palette: every action by name, every tab, every preset."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from textual import on
from textual.app import SystemCommand
from textual.await_complete import AwaitComplete
from textual.binding import Binding
from textual.command import Command, CommandList, CommandPalette
from textual.notifications import SeverityLevel
from textual.widgets import OptionList

from cs336_tui.config.axis import Axis
from cs336_tui.config.meanings import meaning
from cs336_tui.config.presets import all_presets
from cs336_tui.export.writing.files import FILE_FORMATS
from cs336_tui.tui.background import tried
from cs336_tui.tui.compositor import TightCompositor
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.controllers import dialogs
from cs336_tui.tui.dialogs.windows import Dialog, text_reader
from cs336_tui.tui.help import ABOUT, ACTIONS, bindings_by_id, of_pane, printed, told_of
from cs336_tui.tui.host import Host
from cs336_tui.tui.tab_list import APP_KEYS, REPORT_TABS, TABS, PaneTab

_OFTEN = ("csv", "latex", "markdown")
"""The formats that are wanted often; Export has all."""


def commands(app: Host, themes: Iterable[str]) -> Iterator[SystemCommand]:
    """Every action with its key; tabs, exports, reports, presets, settings and these themes."""
    bindings = bindings_by_id(app.keymap)

    def command(title: str, about: str, do: Callable[[], object], id: str | None = None) -> SystemCommand:
        """An entry; with the `id` of a binding `about` becomes a sentence that ends with its keys."""
        if id:
            about = f"{about[0].upper()}{about[1:].removesuffix('.')} ({printed(bindings[id])})"
        return SystemCommand(title, about, do)

    def act(title: str, about: str, tab: PaneTab, id: str) -> SystemCommand:
        return command(title, about, partial(_act, app, tab, bindings[id]), id)

    for key in APP_KEYS:
        if key.id in ACTIONS and app.check_action(key.action, ()):
            title = "Tune: race these choices" if key.id == "app.tune" else key.description
            yield command(title, ACTIONS[key.id], getattr(app, f"action_{key.action}"), key.id)
    for tab in TABS.values():
        show = partial(app.action_open, tab.id)
        yield command(f"Show the {tab.label} tab", ABOUT[tab.id], show, f"app.open_{tab.id}")
    for name in _OFTEN:
        about = f"Results as {FILE_FORMATS[name].about}, or another table"
        yield command(f"Export {name}", about, partial(dialogs.export, app, format_=name))
    for what, about in (("figures", "As SVG, PDF and PNG"), ("summary", "A folder to hand in")):
        yield command(f"Export {what}", about, partial(dialogs.export, app, what=what))
    for kind, tab in REPORT_TABS.items():
        about = f"{tab.label} of the cell under the cursor, made between two cells"
        yield act(f"Report {kind}", about, tab, "report.make")
    yield act("Estimate for another GPU", "Whether the cells fit it", TABS["estimate"], "estimate.gpu")
    about = "The largest batch of each cell that fits the target GPU"
    yield act("Largest batch that fits", about, TABS["estimate"], "estimate.largest")
    for tab in TABS.values():
        for binding in of_pane(tab):
            if binding.show and binding.id != "report.make" and (told := told_of(binding.id, tab.id)):
                yield act(f"{tab.label}: {binding.description}", told, tab, binding.id or "")
    yield SystemCommand("Settings", "The effective settings, and the file with them", partial(_read_settings, app))
    about = "Write that file with every setting, its default and what it is for"
    yield SystemCommand("Settings file", about, partial(_write_settings, app))
    if not app.replaying:
        for axis in app.main.query_one(ConfigurePane).axes:
            label = (axis.label or axis.title).strip() or axis.option
            for value in ("", *(axis.values if axis.has_chips else ())):
                title, about = f"Go to {label}" + (f": {value}" if value else ""), meaning(axis.name, value or None)
                yield SystemCommand(title, about, partial(_go_to, app, axis, value), discover=False)
        for preset in all_presets().presets:
            yield SystemCommand(f"Preset {preset.name}", preset.about, partial(app.load_preset, preset))
    for theme in themes:
        yield SystemCommand(f"Theme {theme}", "Colours, kept for good", partial(dialogs.keep_theme, app, theme))


async def _act(app: Host, tab: PaneTab, binding: Binding) -> None:
    """Show a tab and do what a key of its pane does."""
    await app.action_open(tab.id)
    pane = app.main.query_one(f"#{tab.id}")
    for node in (pane, *pane.query("*")):
        if any(each.id == binding.id for _, each in node._bindings):
            if not await app.run_action(binding.action, node):
                text = f"{binding.description}: there is nothing to do this with here now."
                app.notify(text, severity="warning", markup=False)
            return


async def _go_to(app: Host, axis: Axis, value: str) -> None:
    await app.action_open("configure")
    await app.main.query_one(ConfigurePane).go_to(axis, value)


def _read_settings(app: Host) -> None:
    from cs336_tui.config.settings import KEYS, described, settings_path

    rows = [f"{key} = {json.dumps(getattr(app.settings, key), ensure_ascii=False)}" for key in KEYS]
    told = [text for key, row in zip(KEYS, rows, strict=True) for text in (row, f"  {described()[key].about}", "")]
    there = "" if settings_path().exists() else ", which is not there: all settings have their defaults"
    change = ["To change one: cs336-tui config set KEY VALUE", f"They are kept in {settings_path()}{there}."]
    app.push_screen(text_reader("Settings", "\n".join([*told, *change])))


def _write_settings(app: Host) -> None:
    from cs336_tui.config.settings import write_template

    path, problem = tried(write_template)
    severity: SeverityLevel = "warning" if problem else "information"
    app.notify(problem or f"Written: {path}", title="Settings", severity=severity, markup=False)


class Palette(CommandPalette):
    """Every action by name. A theme is on while the cursor is on it."""

    CSS_PATH = Dialog.CSS_PATH

    def __init__(self) -> None:
        super().__init__(id="--command-palette")
        self._theme_before = self.app.theme
        self._compositor = TightCompositor()

    def dismiss(self, result: None = None) -> AwaitComplete:
        self.app.theme = self._theme_before  # what was chosen, if it is one, comes next
        return super().dismiss(result) if self.app.screen is self else AwaitComplete()

    @on(OptionList.OptionHighlighted)
    def _preview(self, event: OptionList.OptionHighlighted) -> None:
        command = event.option.hit.command if isinstance(event.option, Command) else None
        theme = self._theme_before
        if isinstance(command, partial) and command.func is dialogs.keep_theme:
            theme = command.args[1]
        self.app.theme = theme

    def _action_cursor_down(self) -> None:
        if self._has_list:
            super()._action_cursor_down()

    def _action_command_list(self, action: str) -> None:
        if self._has_list:
            super()._action_command_list(action)

    @property
    def _has_list(self) -> bool:
        return bool(self.query(CommandList))
