"""`cs336-tui completion`: the scripts by which bash, zsh and fish complete commands, options and their values.

They are click's, but for what click leaves out: values with commas, colons and spaces, and ``--option=value``.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import PurePath

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

from cs336_tui.cli.help import Choice, command
from cs336_tui.config.reading import packaged

VARIABLE = "_CS336_TUI_COMPLETE"
"""The environment variable in which a shell asks; click's name for it."""
PLACES = {
    "bash": ("~/.local/share/bash-completion/completions/cs336-tui", "where the package bash-completion is installed"),
    "zsh": ("~/.zfunc/_cs336-tui", "with `fpath+=~/.zfunc; autoload -Uz compinit; compinit` in ~/.zshrc"),
    "fish": ("~/.config/fish/completions/cs336-tui.fish", "where fish finds it by itself"),
}
"""The file of each shell's script, and what else it needs."""
_SPECIAL, _ESCAPED = re.compile(r"([^\w@%+=:,./~-])"), r"\\\1"
SHELLS = tuple(PLACES)


class _Whole(ShellComplete):
    """Completes the value of ``--option=value`` as the whole word, and says nothing where it fails."""

    def complete(self) -> str:
        try:
            return super().complete()
        except Exception:  # a traceback would stand in the line that a person types
            return ""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        found = super().get_completions(args, incomplete)
        option = re.match(r"--[\w-]+=", incomplete)
        if option:
            for item in found:
                item.value = f"{option[0]}{item.value}"
        return found


class _Bash(_Whole, BashComplete):
    """Bash hands over the line, and completes from the last colon or equals sign on."""

    source_template = packaged("completion.bash")

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)
        incomplete = words.pop() if words and not line.endswith((" ", "\t")) else ""
        self._incomplete = incomplete
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem[str]) -> str:
        word = os.environ["COMP_CWORD"]
        quote = word[:1] if word[:1] in ("'", '"') else ""
        part = "".join(split_arg_string(word)) if word not in ("=", ":") else ""
        rest = item.value[len(self._incomplete) - len(part) :] if self._incomplete.endswith(part) else item.value
        return f"{item.type},{rest if quote else _SPECIAL.sub(_ESCAPED, rest)}"


class _Zsh(_Whole, ZshComplete):
    pass


class _Fish(_Whole, FishComplete):
    source_template = packaged("completion.fish")


_CLASSES: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


def register() -> None:
    """Answer the shells by the classes above."""
    for name, made in _CLASSES.items():
        add_completion_class(made, name)


def script(shell: str) -> str:
    """The script of a shell; its first lines say where to put it."""
    place, besides = PLACES[shell]
    told = f"# Completes cs336-tui in {shell}. To keep it, {besides}:\n#   cs336-tui completion {shell} > {place}\n"
    now = "cs336-tui completion fish | source" if shell == "fish" else f'eval "$(cs336-tui completion {shell})"'
    text = _CLASSES[shell](click.Group(), {}, "cs336-tui", VARIABLE).source()
    head, newline, body = text.partition("\n") if text.startswith("#") else ("", "", text)
    return f"{head}{newline}{told}# For this shell alone:\n#   {now}\n\n{body.lstrip()}"


@command("completion")
@click.argument("shell", type=Choice(SHELLS), required=False)
def completion(*, shell: str | None) -> str:
    """Print the script by which SHELL completes commands, options and values: presets, sizes, sessions, columns.

    SHELL is bash (4.4 or newer), zsh or fish; that of $SHELL unless said. The script's first lines say where to put it.
    """
    found = shell or PurePath(os.environ.get("SHELL", "")).name
    if found not in SHELLS:
        raise click.UsageError(f"name a shell: {', '.join(SHELLS)}")
    if sys.stdout.isatty():
        place, besides = PLACES[found]
        click.echo(f"To keep it, {besides}: cs336-tui completion {found} > {place}", err=True)
    return script(found)
