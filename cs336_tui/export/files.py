"""Writing an export so that it is whole or not there, and never in another file's place unasked."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

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
        super().__init__(path, "already exists", "choose another name, or overwrite it with --force")


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
    except OSError as error:
        raise ExportError(folder, (error.strerror or str(error)).lower(), "choose another folder") from None
    except ValueError:
        raise ExportError(folder, NO_NAME, "choose another folder") from None


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
