"""Writing an export so that it is whole or not there, and in the place of another file only where it may be."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from cs336_tui.config.axis import UserError
from cs336_tui.config.reading import NO_NAME


class ExportError(UserError):
    """An export that cannot be written; one line names the path, the reason and the remedy."""

    def __init__(self, path: Path, reason: str, remedy: str) -> None:
        self.path = path
        super().__init__(f"{path}: {reason}; {remedy}")


class AlreadyThere(ExportError):
    """The path holds something that may not be overwritten."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "already exists", "choose another name, or leave out --no-clobber")


class NoRoom(ExportError):
    """The disk or the quota is full."""

    exit_code = 1


def problem_of(error: OSError, path: Path) -> ExportError:
    """The system's refusal to write a path, in words."""
    reason, elsewhere = (error.strerror or str(error)).lower(), "choose another path"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoRoom(path, reason, f"free some space or {elsewhere}")
    return ExportError(path, reason, elsewhere)


def make_folder(folder: Path) -> None:
    """The folder, if it is not there yet. Raises `ExportError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else NO_NAME
        raise ExportError(folder, reason, "choose another folder") from None


def figures_beside(path: Path) -> Path:
    """The folder of a document's figures, named as the document."""
    return path.with_name(f"{path.stem}-figures")


def write_atomically(path: Path, content: str | bytes, *, overwrite: bool = False) -> None:
    """Write bytes, or text as UTF-8, to a temporary file beside `path` and rename it; no reader sees half of it.

    Without `overwrite` an existing file stays as it is, also when it appears at the last moment. A symbolic link is
    followed. Raises `AlreadyThere` or another `ExportError`; then nothing is left behind.
    """
    with _clear_errors(path):
        target = _target(path, overwrite)
        temporary = _create_beside(target)
        claimed = False
        try:
            with temporary.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            if not overwrite:
                # Rename replaces whatever is there, so the name is first claimed as an empty file of our own.
                target.touch(exist_ok=False)
                claimed = True
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            if claimed:
                target.unlink(missing_ok=True)
            raise


def check_free(path: Path, *, overwrite: bool = False) -> None:
    """Raise what `write_atomically` would raise now of the name alone."""
    with _clear_errors(path):
        _target(path, overwrite)


def check_writable(path: Path, *, overwrite: bool = False) -> None:
    """Raise what `write_atomically` would raise now, by creating and removing a temporary file beside `path`."""
    with _clear_errors(path):
        _create_beside(_target(path, overwrite)).unlink()


class LivingFile:
    """An export that is rewritten as a session goes on.

    The path is checked at once. The first write refuses an existing file unless `overwrite`; the file is ours from
    then on and later writes replace it. Raises like `write_atomically`.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self.path = path
        self._ours = overwrite
        check_writable(path, overwrite=overwrite)

    def write(self, text: str) -> None:
        write_atomically(self.path, text, overwrite=self._ours)
        self._ours = True


def _target(path: Path, overwrite: bool) -> Path:
    """The path behind symbolic links, known to be free or a file that may be overwritten."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise ExportError(path, "is a directory", f"name a file in it, such as {path / 'results.md'}")
    if target.exists() and not overwrite:
        raise AlreadyThere(path)
    if target.exists() and not target.is_file():
        raise ExportError(path, "is not a regular file", "choose another path")
    if target.suffix == ".jsonl" and target.exists():
        with target.open("rb") as file:
            if file.read(9) == b'{"type":"':
                raise ExportError(path, "is the log of a session", "choose another path")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "not writable")
    return target


def _create_beside(target: Path) -> Path:
    """A new empty file in the target's directory, with the permissions that a new file has for this user."""
    temporary = target.parent / f".cs336-tui-{os.urandom(8).hex()}.tmp"
    temporary.touch(exist_ok=False)
    return temporary


@contextlib.contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    elsewhere = "choose another path"
    try:
        yield
    except FileExistsError:
        raise AlreadyThere(path) from None
    except FileNotFoundError:
        raise ExportError(path, f"directory {path.parent} does not exist", f"create it or {elsewhere}") from None
    except NotADirectoryError:
        raise ExportError(path, f"{path.parent} is not a directory", elsewhere) from None
    except PermissionError:
        raise ExportError(path, "not writable by this user", elsewhere) from None
    except OSError as error:
        raise problem_of(error, path) from None
    except ValueError:
        raise ExportError(path, NO_NAME, elsewhere) from None


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
