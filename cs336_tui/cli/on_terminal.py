"""Output of a command to a terminal: styled tables of the terminal's width."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from cs336_tui.cli.streams import Styled

if TYPE_CHECKING:
    from cs336_tui.export.tables import Table
    from cs336_tui.export.terminal import Looks, Part

TERMINAL = "terminal"
"""The format of what has none and goes to a terminal, beside those that ``--format`` takes."""
_VERBOSE = "cs336_tui.verbose"


def remember_verbose(context: click.Context, _option: click.Parameter, value: bool) -> None:
    """The callback of ``-v``, so that no command has to pass it on."""
    context.meta[_VERBOSE] = value


def shown(tables: Sequence[Table], format_: str, title: str = "cs336-tui") -> str:
    """Tables in one of the formats that ``--format`` takes, as `formats.answer`, or laid out for this terminal."""
    if format_ == TERMINAL:
        return on_terminal(tables)
    from cs336_tui.export.formats import answer

    return answer(tables, format_, title)


def on_terminal(parts: Sequence[Part]) -> str:
    """Tables, paragraphs and labelled texts laid out for this terminal."""
    from cs336_tui.export.terminal import terminal_text

    return Styled(terminal_text(parts, looks_here()))


def is_verbose() -> bool:
    """True if the command that runs was given ``-v``."""
    context = click.get_current_context(silent=True)
    return bool(context and context.meta.get(_VERBOSE, False))


def looks_here() -> Looks:
    """The terminal of standard output; ``COLUMNS``, ``NO_COLOR`` and ``TERM`` are obeyed."""
    from cs336_tui.export.terminal import Looks

    return Looks(
        width=max(shutil.get_terminal_size().columns, 40),
        styled=os.environ.get("TERM", "dumb") not in ("dumb", "unknown", ""),
        coloured=not os.environ.get("NO_COLOR"),
        verbose=is_verbose(),
    )
