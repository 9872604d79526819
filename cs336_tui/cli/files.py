"""The output of a command: the options that say where to and in which format, and what writes it there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from cs336_tui.cli.flags import FILE, session_dir_option
from cs336_tui.cli.help import Choice, option, option_under, options, under
from cs336_tui.cli.streams import TERMINAL, is_verbose, remember_verbose, shown
from cs336_tui.export.writing.files import (
    FORMATS,
    ExportError,
    canonical,
    check_markdown,
    check_writable,
    format_of,
    named_suffixes,
    settled_format,
    write_atomically,
)
from cs336_tui.export.writing.texts import json_text as json_text

if TYPE_CHECKING:
    from cs336_tui.export.writing.tables import Table


class _FormatChoice(Choice):
    """The formats of tables; a suffix of one is its name, too."""

    def normalize_choice(self, choice: Any, ctx: click.Context | None) -> str:
        return canonical(super().normalize_choice(choice, ctx))


def _settled(usual: str) -> Callable[[click.Context, click.Parameter, str | None], str]:
    """The callback of ``--format``, which knows ``--output`` and ``--no-clobber``, as these are eager; a file that
    cannot or may not be written is refused before anything runs. Where nothing was said of a format or a file, and
    somebody looks, it is `TERMINAL`."""

    def settle(context: click.Context, _: click.Parameter, asked: str | None) -> str:
        if context.meta.pop(_AS_JSON, False):
            if asked not in (None, "json"):
                raise click.UsageError(f"--json and --format {asked} contradict each other; leave one of them out")
            asked = "json"
        output: Path | None = context.params.get("output")
        if asked is None and output is None and sys.stdout.isatty():
            return TERMINAL
        found = settled_format("markdown" if asked == GITHUB else asked, output, usual)
        if output is not None and not context.resilient_parsing:
            check_writable(output, overwrite=context.params.get("overwrite", True))
        return GITHUB if asked == GITHUB else found

    return settle


GITHUB = "github"
"""Markdown as GitHub folds it, which some commands write."""


verbose_option = option_under(
    "Output",
    "-v --verbose",
    "Every note on the numbers, not only on those in doubt.",
    is_flag=True,
    expose_value=False,
    callback=remember_verbose,
)
_AS_JSON = "cs336_tui.as_json"
json_option = option_under(
    "Output",
    "--json",
    "The same as --format json.",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, given: context.meta.__setitem__(_AS_JSON, given),
)


text_or_json = under(
    "Output",
    option(
        "--format",
        "Format of the output. [default: table]",
        name="format_",
        type=_FormatChoice(("table", "json"), case_sensitive=False),
        callback=_settled("table"),
    ),
    json_option,
)
"""For what is a text, or JSON for programs."""


class Destination(NamedTuple):
    """The format of what a command says, and the file for it; None is standard output."""

    format: str
    file: Path | None = None
    overwrite: bool = True

    @property
    def is_brief(self) -> bool:
        """True if it is text for a reader who did not ask for every note, and no document."""
        return self.file is None and self.format in ("markdown", "table") and not is_verbose()

    def deliver(self, text: str) -> str:
        """The text, or nothing when it went to the file.

        Raises `ExportError` when it cannot be written, and prints it first.
        """
        if self.file is None:
            return text
        try:
            write_atomically(self.file, text, overwrite=self.overwrite)
        except ExportError:
            click.echo(text, nl=False)
            raise
        say_written(self.file)
        return ""

    def show(self, tables: Sequence[Table], title: str = "cs336-tui") -> str:
        """Deliver tables in the format."""
        return self.deliver(shown(tables, self.format, title))


def is_given(parameter: str) -> bool:
    """True if the command line of the command that runs has this parameter."""
    return click.get_current_context().get_parameter_source(parameter) is ParameterSource.COMMANDLINE


def say_written(path: Path) -> None:
    """Say on standard error that a file was written, and its format where the name of ``--output`` says none."""
    context = click.get_current_context(silent=True)
    given = context.params if context else {}
    unnamed = path == given.get("output") and "format_" in given and format_of(path) is None
    click.echo(f"wrote {path}" + (f", as {given['format_']}" if unnamed else ""), err=True)


def file_options(usual: str = "markdown", *more: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The file and its format, one of `FORMATS` or `more`: that of the file's name, else the usual one. The command
    gets both as `to`; and the folder of the sessions."""
    of_file: Callable[[Callable[..., Any]], Callable[..., Any]] = under(
        "Output",
        option(
            "-o --output",
            f"Write here instead of standard output, in the format of the name's suffix: {named_suffixes()}.",
            type=FILE,
            is_eager=True,
        ),
        option(
            "--format",
            f"Format of the output. [default: by the suffix of -o, else {usual}; on a terminal a table of its width]",
            name="format_",
            type=_FormatChoice((usual, *(each for each in FORMATS if each != usual), *more), case_sensitive=False),
            callback=_settled(usual),
        ),
        option(
            "--force/--no-clobber",
            "Write over files that are there, or refuse to.",
            name="overwrite",
            default=True,
            is_eager=True,
        ),
        verbose_option,
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def run(*words: Any, format_: str, output: Path | None = None, overwrite: bool = True, **given: Any) -> Any:
            return command(*words, to=Destination(format_, output, overwrite), **given)

        return of_file(session_dir_option(run))

    return decorate


def _markdown_file(_context: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    if given not in (None, "auto"):
        check_markdown("--summary", Path(given))
    return given


data_options = options(
    file_options(),
    option_under(
        "Output",
        "--summary FILE|auto",
        "Also keep a session summary here, as markdown; auto names it.",
        callback=_markdown_file,
    ),
)
