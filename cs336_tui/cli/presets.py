"""`cs336-tui presets`: the named sweeps, and what one of them holds."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click

from cs336_tui.cli import suggestions
from cs336_tui.cli.flags import session_dir_option
from cs336_tui.cli.help import Group
from cs336_tui.cli.suggestions import offer
from cs336_tui.config.choices import command_of
from cs336_tui.config.presets import all_presets, to_toml, user_preset_dir
from cs336_tui.export.writing.texts import one_line


@click.group("presets", cls=Group, invoke_without_command=True)
@session_dir_option
@click.pass_context
def presets(context: click.Context, session_dir: Path) -> None:  # noqa: ARG001  # every command takes it
    """List the presets: named sweeps of each handout edition, and your own."""
    from tabulate import tabulate

    if context.invoked_subcommand is not None:
        return
    found = all_presets()
    rows = [(one_line(preset.name), one_line(preset.about)) for preset in found.presets]
    if sys.stdout.isatty():
        listed = click.HelpFormatter(width=shutil.get_terminal_size().columns)
        listed.write_dl(rows)
        text = listed.getvalue().rstrip()
    else:
        text = tabulate(rows, ["preset", "what it runs"], tablefmt="plain", disable_numparse=True)
    click.echo(f"{text}\n\nYour own: {user_preset_dir()} (a TOML file each; `presets show NAME` is a start)")
    for problem in found.problems:
        click.echo(f"cs336-tui: {problem}", err=True)


@presets.command("show", short_help="Show one preset as TOML.")
@click.argument("name", shell_complete=offer(suggestions.presets))
@session_dir_option
def presets_show(name: str, session_dir: Path) -> str:  # noqa: ARG001
    """Show what the preset NAME holds, as TOML."""
    preset = all_presets().find(name)
    return f"# {preset.name}\n{to_toml(preset)}\n# {command_of(preset.sweep)}"
