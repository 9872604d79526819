"""Writes the man pages from the commands: ``python -m tools.man``, which ``make docs`` and ``make dist`` run.

One page for `cs336-tui` and one for each command, as ``man cs336-tui-bench``. The wheel has them.
"""

from __future__ import annotations

import inspect
import os
import re
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from cs336_tui import __version__
from cs336_tui.cli.help import Heading, record_of, under_headings
from cs336_tui.cli.main import COMMANDS
from tools.reference import commands

FOLDER = Path("share") / "man" / "man1"
_FILES = {
    "~/.local/share/cs336-tui/sessions": "Session logs; --session-dir names another folder.",
    "~/.config/cs336-tui/presets": "Presets of your own, a TOML file each.",
    "~/.config/cs336-tui/themes": "Themes of your own, a TOML file each.",
}
_EXAMPLES = {
    "cs336-tui --preset 2026/benchmarking_script": "Open the app with the choices of a handout's problem.",
    "cs336-tui bench --size small,medium --context 128,256 --pass forward,train-step -o results.md":
        "Run eight cells without the app, and write their table.",
    "cs336-tui resume last": "Run the cells of the newest session that have no result yet.",
    "cs336-tui export last --pivot size:pass --format latex": "Print a table for a write-up.",
    "cs336-tui estimate --size xl --gpu 'H100 80GB'": "Predict whether a cell fits a GPU that is not here.",
}  # fmt: skip
_EXITS = {
    "0": "All was done; a cell that ran out of memory counts as done.",
    "1": "A cell failed, or something could not be written.",
    "2": "A command line that cannot be run.",
    "130": "Interrupted.",
}


def main() -> None:
    print(f"wrote {write(Path(__file__).parents[1])} pages in {FOLDER}")


def write(root: Path) -> int:
    """Writes every page below `root`, takes away those of commands that are gone, and returns their number."""
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for path in folder.glob("*.1"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    return len(made)


def pages() -> Mapping[str, str]:
    """Each page's text, by its file's name."""
    found = commands()
    return {f"{_dashed(title)}.1": "\n".join(_page(title, found)) + "\n" for title in found}


def _dashed(title: str) -> str:
    return title.replace(" ", "-")


def _page(title: str, found: Mapping[str, click.Command]) -> Iterator[str]:
    command, whole = found[title], title == "cs336-tui"
    context = click.Context(command, info_name=title)
    about = command.get_short_help_str(400) if whole or title.count(" ") > 1 else COMMANDS[title.split()[1]].about
    day = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    yield f'.TH {_text(_dashed(title).upper())} 1 {day} "cs336-tui {__version__}" "cs336-tui"'
    yield from (".SH NAME", rf"{_text(_dashed(title))} \- {_text(about.rstrip('.'))}")
    pieces = ["[OPTIONS]", "[COMMAND]"] if whole else command.collect_usage_pieces(context)
    yield from (".SH SYNOPSIS", f".B {_text(title)}", _text(" ".join(pieces)))
    yield ".SH DESCRIPTION"
    paragraphs = inspect.cleandoc(command.help or "").partition("\f")[0].strip().split("\n\n")
    for number, paragraph in enumerate(paragraphs):
        yield from ((".PP",) if number else ())
        yield from _lines(paragraph)
    if whole:
        yield from _commands()
    yield ".SH OPTIONS"
    for heading, options in under_headings(command, context).items():
        yield from _options(heading, [record_of(each, context) for each in options])
    if whole:
        yield from (".SH EXIT STATUS", *_terms(_EXITS))
        yield from (".SH FILES", "On Linux, unless XDG_DATA_HOME and XDG_CONFIG_HOME say otherwise:", *_terms(_FILES))
        yield from (".SH EXAMPLES", *_terms(_EXAMPLES))
    others = [each for each in found if each.startswith(f"{title} ")] if whole else ["cs336-tui"]
    yield ".SH SEE ALSO"
    for number, each in enumerate(others, 1):
        yield f".BR {_text(_dashed(each))} (1){',' if number < len(others) else ''}"


def _commands() -> Iterator[str]:
    yield ".SH COMMANDS"
    for heading in dict.fromkeys(each.heading for each in COMMANDS.values() if each.about):
        yield f".SS {_text(heading)}"
        yield from _terms(
            {name: each.about for name, each in COMMANDS.items() if each.about and each.heading == heading}
        )


def _options(heading: Heading, records: list[tuple[str, str]]) -> Iterator[str]:
    yield f".SS {_text(heading)}"
    for names, about in records:
        yield from (".TP", _names(names), *_lines(about or "See the description."))


def _names(names: str) -> str:
    """``-o, --output FILE`` with the names bold and the value in italics."""
    return re.sub(
        r"(--?[\w-]+)|([^\s,/][^\s]*)",
        lambda found: rf"\fB{_text(found[1])}\fR" if found[1] else rf"\fI{_text(found[2])}\fR",
        names,
    )


def _terms(terms: Mapping[str, str]) -> Iterator[str]:
    for term, about in terms.items():
        yield from (".TP", f".B {_text(term)}", *_lines(about))


def _lines(text: str) -> Iterator[str]:
    """A paragraph, in lines that a diff can show."""
    for line in textwrap.wrap(" ".join(text.split()), 78, break_on_hyphens=False, break_long_words=False):
        yield _text(line)


def _text(text: str) -> str:
    """Text as roff reads it: no escape, no request, minus signs where a shell wants them."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("`", "").replace("'", r"\(aq")
    escaped = "".join(each if each.isascii() else rf"\[u{ord(each):04X}]" for each in escaped)
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


if __name__ == "__main__":
    main()
