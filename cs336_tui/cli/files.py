"""The options of a command that writes files: where to, and in which format."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from cs336_tui.cli.flags import FILE
from cs336_tui.cli.help import under
from cs336_tui.cli.streams import TERMINAL, remember_verbose
from cs336_tui.config.reading import is_file
from cs336_tui.export.writing.files import (
    FORMATS,
    AlreadyThere,
    canonical,
    check_markdown,
    format_of,
    named_suffixes,
    settled_format,
)


class _FormatChoice(click.Choice[str]):
    """The formats of tables; a suffix of one is its name, too."""

    def normalize_choice(self, choice: Any, ctx: click.Context | None) -> str:
        return canonical(super().normalize_choice(choice, ctx))


def _settled(usual: str) -> Callable[[click.Context, click.Parameter, str | None], str]:
    """The callback of ``--format``, which knows ``--output`` and ``--force``, as these are eager; a file that may not
    be written is refused before anything runs. Where nothing was said of a format or a
    file, and somebody looks, it is `TERMINAL`."""

    def settle(context: click.Context, _: click.Parameter, asked: str | None) -> str:
        if context.meta.pop(_AS_JSON, False):
            if asked not in (None, "json"):
                raise click.UsageError(f"--json and --format {asked} contradict each other; leave one of them out")
            asked = "json"
        output: Path | None = context.params.get("output")
        if asked is None and output is None and sys.stdout.isatty():
            return TERMINAL
        found = settled_format(asked, output, usual)
        if output is not None and is_file(output) and not context.params.get("force"):
            raise AlreadyThere(output)
        return found

    return settle


verbose_option = under(
    "Output",
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=remember_verbose,
        help="On a terminal: the notes on the numbers, too.",
    ),
)
_AS_JSON = "cs336_tui.as_json"
_json = click.option(
    "--json",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, given: context.meta.__setitem__(_AS_JSON, given),
    help="The same as --format json.",
)
json_option = under("Output", _json)


def _text_or_json(context: click.Context, _: click.Parameter, asked: str | None) -> str:
    if context.meta.pop(_AS_JSON, False):
        if asked == "table":
            raise click.UsageError("--json and --format table contradict each other; leave one of them out")
        return "json"
    return asked or "table"


text_or_json = under(
    "Output",
    click.option(
        "--format",
        "format_",
        type=_FormatChoice(("table", "json"), case_sensitive=False),
        callback=_text_or_json,
        help="Format of the output. [default: table]",
    ),
    _json,
)
"""For what is a text, or JSON for programs."""


def say_written(path: Path) -> None:
    """Say on standard error that a file was written, and its format where the name of ``--output`` says none."""
    context = click.get_current_context(silent=True)
    given = context.params if context else {}
    unnamed = path == given.get("output") and "format_" in given and format_of(path) is None
    click.echo(f"wrote {path}" + (f", as {given['format_']}" if unnamed else ""), err=True)


def _markdown_file(given: str | None) -> str | None:
    if given not in (None, "auto"):
        check_markdown("--summary", Path(given))
    return given


def file_options(usual: str = "markdown") -> tuple[Callable[[Any], Any], ...]:
    """The file and its format: that of the file's name, else the usual one."""
    return (
        under(
            "Output",
            click.option(
                "-o",
                "--output",
                type=FILE,
                is_eager=True,
                help=f"Write here instead of standard output, in the format of the name's suffix: {named_suffixes()}.",
            ),
            click.option(
                "--format",
                "format_",
                type=_FormatChoice((usual, *(each for each in FORMATS if each != usual)), case_sensitive=False),
                callback=_settled(usual),
                help="Format of the output. "
                f"[default: by the suffix of -o, else {usual}; on a terminal a table of its width]",
            ),
            click.option("--force", is_flag=True, is_eager=True, help="Overwrite existing files."),
            verbose_option,
        ),
    )


data_options = (
    *file_options(),
    under(
        "Output",
        click.option(
            "--summary",
            metavar="FILE|auto",
            callback=lambda _context, _option, given: _markdown_file(given),
            help="Also keep a session summary here, as markdown; auto names it.",
        ),
    ),
)
