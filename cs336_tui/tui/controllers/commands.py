"""The command palette: every action by name, every tab, every preset."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial

from textual import on
from textual.app import SystemCommand
from textual.await_complete import AwaitComplete
from textual.binding import Binding
from textual.command import Command, CommandList, CommandPalette
from textual.widgets import OptionList

from cs336_tui.config.presets import all_presets
from cs336_tui.export.writing.files import FILE_FORMATS
from cs336_tui.tui.compositor import TightCompositor
from cs336_tui.tui.controllers import dialogs
from cs336_tui.tui.dialogs.windows import Dialog, text_reader
from cs336_tui.tui.help import ABOUT, ACTIONS, bindings_by_id, of_pane, printed, told_of
from cs336_tui.tui.host import Host
from cs336_tui.tui.tab_list import APP_KEYS, REPORT_TABS, TABS, PaneTab
from cs336_tui.tui.tabs.report import ReportPane

_TITLES = {"app.tune": "Tune: race these choices"}
"""Names of actions that say more than the last row has room for."""
_OFTEN = ("csv", "latex", "markdown")
"""The formats that are wanted often; Export has all."""


def commands(app: Host, themes: Iterable[str]) -> Iterator[SystemCommand]:
    """Every action with its key; tabs, exports, reports, presets, settings and these themes."""
    bindings = bindings_by_id(app.keymap)
    for key in APP_KEYS:
        if key.id in ACTIONS and not (app.replaying and key.id == "app.save_preset"):
            about = _sentence(ACTIONS[key.id], bindings[key.id])
            title = _TITLES.get(key.id, key.description)
            yield SystemCommand(title, about, getattr(app, f"action_{key.action}"))
    for tab in TABS.values():
        about = _sentence(ABOUT[tab.id], bindings[f"app.open_{tab.id}"])
        yield SystemCommand(f"Show the {tab.label} tab", about, partial(app.action_open, tab.id))
    for name in _OFTEN:
        about = f"Results as {FILE_FORMATS[name].about}, or another table"
        yield SystemCommand(f"Export {name}", about, partial(dialogs.export, app, format_=name))
    for what, about in (("figures", "As SVG, PDF and PNG"), ("summary", "A folder to hand in")):
        yield SystemCommand(f"Export {what}", about, partial(dialogs.export, app, what=what))
    for kind, tab in REPORT_TABS.items():
        about = f"{tab.label} of the cell under the cursor, made between two cells"
        yield SystemCommand(
            f"Report {kind}", _sentence(about, bindings["report.make"]), partial(_make_report, app, tab)
        )
    about = "Whether the cells fit it"
    yield SystemCommand(
        "Estimate for another GPU", _sentence(about, bindings["estimate.gpu"]), partial(_estimate, app, "gpu")
    )
    about = "The largest batch of each cell that fits the target GPU"
    yield SystemCommand(
        "Largest batch that fits", _sentence(about, bindings["estimate.largest"]), partial(_estimate, app, "largest")
    )
    for tab in TABS.values():
        for binding in of_pane(tab):
            if binding.show and binding.id != "report.make" and (told := told_of(binding.id, tab.id)):
                about = _sentence(told, bindings[binding.id or ""])
                yield SystemCommand(f"{tab.label}: {binding.description}", about, partial(_act, app, tab, binding))
    yield SystemCommand("Settings", "The effective settings, and the file with them", partial(_read_settings, app))
    about = "Write that file with every setting, its default and what it is for"
    yield SystemCommand("Settings file", about, partial(_write_settings, app))
    if not app.replaying:
        for preset in all_presets().presets:
            yield SystemCommand(f"Preset {preset.name}", preset.about, partial(app.load_preset, preset))
    for theme in themes:
        yield SystemCommand(f"Theme {theme}", "Colours, kept for good", KeepTheme(app, theme))


def _sentence(about: str, binding: Binding) -> str:
    """The action in words, followed by its keys."""
    return f"{about[0].upper()}{about[1:].removesuffix('.')} ({printed(binding)})"


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


def _read_settings(app: Host) -> None:
    from cs336_tui.config.settings import KEYS, described, settings_path

    rows = [f"{key} = {json.dumps(getattr(app.settings, key), ensure_ascii=False)}" for key in KEYS]
    told = [text for key, row in zip(KEYS, rows, strict=True) for text in (row, f"  {described()[key].about}", "")]
    there = "" if settings_path().exists() else ", which is not there: all settings have their defaults"
    change = ["To change one: cs336-tui config set KEY VALUE", f"They are kept in {settings_path()}{there}."]
    app.push_screen(text_reader("Settings", "\n".join([*told, *change])))


def _write_settings(app: Host) -> None:
    from cs336_tui.config.settings import SettingError, write_template

    try:
        app.notify(f"Written: {write_template()}", title="Settings", markup=False)
    except SettingError as error:
        app.notify(str(error), title="Settings", severity="warning", markup=False)


async def _make_report(app: Host, tab: PaneTab) -> None:
    await app.action_open(tab.id)
    app.main.query_one(f"#{tab.id}", ReportPane).action_make()


async def _estimate(app: Host, action: str) -> None:
    """Do what a key of the Estimate tab does."""
    from cs336_tui.tui.tabs.estimate import EstimateList

    await app.action_open("estimate")
    await app.main.query_one(EstimateList).run_action(action)


class KeepTheme:
    """Keeps a theme; the palette previews it."""

    def __init__(self, app: Host, theme: str) -> None:
        self._app, self.theme = app, theme

    def __call__(self) -> None:
        dialogs.keep_theme(self._app, self.theme)


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
        self.app.theme = command.theme if isinstance(command, KeepTheme) else self._theme_before

    def _action_cursor_down(self) -> None:
        if self._has_list:
            super()._action_cursor_down()

    def _action_command_list(self, action: str) -> None:
        if self._has_list:
            super()._action_command_list(action)

    @property
    def _has_list(self) -> bool:
        return bool(self.query(CommandList))
