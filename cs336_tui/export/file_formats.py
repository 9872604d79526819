"""The formats of tables: their names, the suffixes of their files, and the format that a file's name asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cs336_tui.config.axis import UserError


class FileFormat(NamedTuple):
    """A format of tables. Each of its suffixes, without the dot, is taken for its name, too; `about` is its name for
    people."""

    name: str
    about: str
    suffixes: tuple[str, ...]
    """The first is that of new files."""


_TEXT = FileFormat("table", "plain text", (".txt", ".text"))
"""Its suffix says no more than that it is a text, so that it contradicts no other format."""
FILE_FORMATS: Mapping[str, FileFormat] = {
    each.name: each
    for each in (
        FileFormat("markdown", "Markdown", (".md", ".markdown")),
        FileFormat("latex", "LaTeX", (".tex", ".latex")),
        FileFormat("typst", "Typst", (".typ",)),
        FileFormat("csv", "CSV", (".csv",)),
        FileFormat("json", "JSON", (".json",)),
        FileFormat("html", "HTML", (".html", ".htm")),
        _TEXT,
    )
}
FORMATS = tuple(FILE_FORMATS)
SUFFIXES: Mapping[str, str] = {name: each.suffixes[0].removeprefix(".") for name, each in FILE_FORMATS.items()}
_BY_SUFFIX = {suffix: name for name, each in FILE_FORMATS.items() for suffix in each.suffixes}
_INSTEAD = {
    **dict.fromkeys((".svg", ".png"), "figures are written by cs336-tui export --figures DIR"),
    ".pdf": "pandoc or typst makes a PDF of .tex, .typ or .md; figures are written by cs336-tui export --figures DIR",
    **dict.fromkeys((".xlsx", ".xls", ".ods", ".tsv"), "spreadsheets open .csv"),
    **dict.fromkeys((".docx", ".odt", ".rtf"), "word processors open .html"),
}
"""The remedy for some suffixes that are none of a table."""


class FormatError(UserError):
    """A file's name and a format that do not go together; one line says how they would."""


def canonical(name: str) -> str:
    """The one spelling of a format's name: ``md`` is markdown. Other words stay as they are."""
    word = name.strip().lower()
    return _BY_SUFFIX.get(f".{word}", word)


def format_of(path: Path) -> str | None:
    """The format that the suffix of a file's name means, if there is one."""
    return _BY_SUFFIX.get(path.suffix.lower())


def named_suffixes() -> str:
    """``.md, .tex or .csv`` and so on: the suffix that each format's new files have."""
    *most, last = (each.suffixes[0] for each in FILE_FORMATS.values())
    return f"{', '.join(most)} or {last}"


def settled_format(asked: str | None, output: Path | None, usual: str) -> str:
    """The format of a file, or of standard output if `output` is None: what was asked for, else what the file's name
    says, else the `usual` one.

    Raises `FormatError` where name and format contradict each other, and for a suffix that is no format's.
    """
    if output is None:
        return asked or usual
    named = format_of(output)
    if asked is None:
        if named is None and output.suffix:
            raise FormatError(f"-o {output}: {why_unknown(output)}, or say --format")
        return named or usual
    if named not in (None, asked, _TEXT.name):
        suffix = FILE_FORMATS[asked].suffixes[0]
        raise FormatError(
            f"-o {output}: its name says {named}, --format says {asked}; leave out --format, or name it *{suffix}"
        )
    return asked


def check_markdown(option: str, path: Path) -> None:
    """Raise `FormatError` for the name of a file of markdown that says another format."""
    if path.suffix and format_of(path) not in ("markdown", _TEXT.name):
        raise FormatError(f"{option} {path}: this file is markdown; name it {path.with_suffix('.md').name}")


def why_unknown(path: Path) -> str:
    """Why the suffix of a file's name says no format, and what to do instead."""
    instead = _INSTEAD.get(path.suffix.lower())
    return f"{path.suffix} is not a table format{f' ({instead})' if instead else ''}; use {named_suffixes()}"
