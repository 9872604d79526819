"""`cs336-tui presets`: the named sweeps, and what one of them holds."""

from __future__ import annotations

from cs336_tui.config.presets import all_presets, to_toml, user_preset_dir
from cs336_tui.export.texts import one_line


def list_text() -> tuple[str, tuple[str, ...]]:
    """Every preset with what it is for, and a line for each file that could not be used."""
    from tabulate import tabulate

    found = all_presets()
    rows = [[one_line(preset.name), one_line(preset.about)] for preset in found.presets]
    text = tabulate(rows, ["preset", "what it runs"], tablefmt="plain", disable_numparse=True)
    return f"{text}\n\nYour own: {user_preset_dir()} (a TOML file each; `presets show NAME` is a start)", found.problems


def show_text(name: str) -> str:
    """The preset as its file would say it, and the command that runs it. Raises `SpecError`."""
    preset = all_presets().find(name)
    return f"# {preset.name}\n{to_toml(preset)}\n# {preset.sweep.command()}"
