"""Keeping the choices of the Configure pane as a preset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cs336_tui.config import presets
from cs336_tui.config.presets import Preset, PresetError
from cs336_tui.tui.configure.pane import ConfigurePane

if TYPE_CHECKING:
    from cs336_tui.tui.app import Cs336App


def save_preset(app: Cs336App) -> None:
    """Ask for a name and keep the choices under it; a name that is taken needs a second Enter."""
    from cs336_tui.tui.dialogs.questions import AskText

    pane = app.main.query_one(ConfigurePane)
    sweep = pane.sweep
    if sweep is None:
        app.notify(str(pane.problems[0]), title="Cannot be saved", severity="error", markup=False)
        return
    known = {preset.name: preset for preset in presets.all_presets().presets}

    def check(name: str) -> str:
        return "" if name else "a preset needs a name"

    def warn(name: str) -> str:
        if name not in known:
            return ""
        bundled = name in {preset.name for preset in presets.bundled()}
        what = "comes with cs336-tui; yours would take its place" if bundled else "exists already and would be replaced"
        return f"{name} {what}. Enter again: save it all the same."

    def entered(name: str | None) -> None:
        if name is None:
            return
        preset = Preset(name, known[name].about if name in known else "", sweep)
        try:
            path = presets.save(preset, overwrite=name in known)
        except PresetError as error:
            app.report(str(error))
            return
        pane.named(preset)
        app.notify(f"{name}, in {path}", title="Preset saved", markup=False)

    about = "The choices in Configure as a preset of your own. / in a name makes a folder."
    app.push_screen(AskText("Save as preset", about, pane.preset_name, check=check, warn=warn), entered)
