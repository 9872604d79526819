"""`cs336-tui config` and `presets`: the file of settings and single ones of it; the named sweeps, and what one of them
holds."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from cs336_tui.cli import suggestions
from cs336_tui.cli.flags import session_dir_option
from cs336_tui.cli.help import Choice, Group, option_under
from cs336_tui.cli.suggestions import of_setting, offer
from cs336_tui.config import settings
from cs336_tui.config.choices import command_of
from cs336_tui.config.presets import QUICK, all_presets, bundled, to_toml, user_preset_dir
from cs336_tui.config.problems import EDITIONS, every_problem
from cs336_tui.config.settings import KEYS, Found, SettingError
from cs336_tui.config.variants import expected
from cs336_tui.export.writing.texts import one_line
from cs336_tui.stats.quantities import counted


@click.group("config", cls=Group, invoke_without_command=True)
@option_under(
    "Output", "--path", "Print the path of the file alone; it need not be there.", name="path_only", is_flag=True
)
@session_dir_option
@click.pass_context
def config(context: click.Context, path_only: bool, session_dir: Path) -> str | int | None:  # noqa: ARG001
    """Your settings, which options of the command line win over.

    Without a subcommand: writes the file, with every setting, its default and what it is for. If it is there, prints
    the settings in force.
    """
    path = settings.settings_path()
    if path_only:
        return str(path)
    if context.invoked_subcommand is not None:
        return None
    if not path.exists():
        settings.write_template(path)
        return f"wrote {path}"
    found = _read()
    lines = [f"{key} = {_shown(getattr(found.settings, key))}" for key in KEYS]
    click.echo("\n".join([f"# {path}", *lines]))
    return int(bool(found.problems))


@config.command("get", short_help="Print one setting.")
@click.argument("key", shell_complete=offer(KEYS))
@session_dir_option
def config_get(key: str, session_dir: Path) -> str:  # noqa: ARG001
    """Print the setting KEY: its value in the file, or its default. A key of the app is keymap.ACTION."""
    outer, _, inner = key.partition(".")
    if outer not in KEYS:
        raise SettingError(f"{key}: no such setting; {expected(key, KEYS)}")
    value = getattr(_read().settings, outer)
    if inner and inner not in value:
        raise SettingError(f"{key}: the key is not moved")
    value = value[inner] if inner else value
    return value if isinstance(value, str) and value else _shown(value)


@config.command("set", short_help="Change one setting.")
@click.argument("key", shell_complete=offer(KEYS))
@click.argument("value", shell_complete=offer(of_setting))
@session_dir_option
def config_set(key: str, value: str, session_dir: Path) -> str:  # noqa: ARG001
    """Change the setting KEY in the file, which keeps its comments; a file is begun if there is none. Several columns
    are separated by commas. A key of the app is keymap.ACTION."""
    typed = settings.from_words(key, value)
    outer, _, inner = key.partition(".")
    path = settings.settings_path()
    before = settings.read_settings(path).settings
    known: Any = {**before.keymap, inner: typed} if inner else typed
    wanted = Found(msgspec.structs.replace(settings.Settings(), **{outer: known}), lines={key: 0}, path=path)
    if problem := next((each for each in _checked(wanted).problems if f", {key}: " in each), None):
        raise SettingError(f"{key}: {problem.partition(f', {key}: ')[2]}")
    settings.save_setting(key, typed, path)
    return f"{key} = {_shown(typed)} in {path}"


def _read() -> Found:
    """The settings in force; what is wrong with the file goes to standard error."""
    found = _checked(settings.read_settings())
    for problem in found.problems:
        click.echo(f"cs336-tui: {one_line(problem)}", err=True)
    return found


def _checked(found: Found) -> Found:
    from textual.theme import BUILTIN_THEMES

    from cs336_tui.cli.launch import theme_dir
    from cs336_tui.config.spec import SpecError
    from cs336_tui.tui import preferences

    own = (*preferences.load_bundled().themes, *preferences.load_user(theme_dir()).themes)
    found = preferences.checked(found, [*(theme.name for theme in own), *BUILTIN_THEMES])
    try:
        all_presets().find(found.settings.preset)
    except SpecError as error:
        found = found.without("preset", str(error))
    return found


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@click.group("presets", cls=Group, invoke_without_command=True)
@option_under("Output", "--edition", "Handout edition. [default: the newest]", type=Choice(EDITIONS))
@option_under("Output", "--all", "Every preset, also those that are of no problem.", name="every", is_flag=True)
@session_dir_option
@click.pass_context
def presets(context: click.Context, edition: str | None, every: bool, session_dir: Path) -> None:  # noqa: ARG001
    """List the presets: those of a handout's problems, and your own."""
    from tabulate import tabulate

    if context.invoked_subcommand is not None:
        return
    found = all_presets()
    of_problems = {row.preset(of) for of, row in every_problem() if of == (edition or EDITIONS[0])} | {QUICK.name}
    aside = {preset.name for preset in bundled() if not every} - of_problems
    shown = [preset for preset in found.presets if preset.name not in aside]
    rows = [(one_line(preset.name), one_line(preset.about)) for preset in shown]
    if sys.stdout.isatty():
        listed = click.HelpFormatter(width=shutil.get_terminal_size().columns)
        listed.write_dl(rows)
        text = listed.getvalue().rstrip()
    else:
        text = tabulate(rows, ["preset", "what it runs"], tablefmt="plain", disable_numparse=True)
    more = f"\n\n{counted(len(aside), 'preset')} more: --edition, or --all" if aside else ""
    click.echo(f"{text}{more}\n\nYour own: {user_preset_dir()} (a TOML file each; `presets show NAME` is a start)")
    for problem in found.problems:
        click.echo(f"cs336-tui: {problem}", err=True)


@presets.command("show", short_help="Show one preset as TOML.")
@click.argument("name", shell_complete=offer(suggestions.presets))
@session_dir_option
def presets_show(name: str, session_dir: Path) -> str:  # noqa: ARG001
    """Show what the preset NAME holds, as TOML."""
    preset = all_presets().find(name)
    return f"# {preset.name}\n{to_toml(preset)}\n# {command_of(preset.sweep)}"
