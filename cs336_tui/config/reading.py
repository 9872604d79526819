"""Reads regular files from anywhere, small ones where these are expected, and writes small files whole."""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import tomllib
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

UNREADABLE = (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of reading and decoding a file, whatever it holds."""
LARGEST_BYTES = 1 << 17
"""Maximum size of a file that people write by hand, such as a preset."""
MOST_DOTS = 500
"""Maximum number of dots in a TOML key."""


NO_NAME = "no file can have this name"
"""The problem of a name for which Python raises ValueError: it has a NUL, or is no Unicode."""


def packaged(name: str) -> str:
    """The text of a file that comes with the package, of its folder ``data``."""
    return (Path(__file__).parents[1] / "data" / name).read_text(encoding="utf-8")


def exists(path: Path) -> bool:
    """As `Path.exists`, and False for a name that no file can have, for which that may raise."""
    return os.path.exists(path)  # noqa: PTH110


def is_file(path: Path) -> bool:
    """As `Path.is_file`, and False for a name that no file can have, for which that may raise."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    """As `Path.is_dir`, and False for a name that no folder can have, for which that may raise."""
    return os.path.isdir(path)  # noqa: PTH112


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading, without ever waiting for one: a pipe or a device is refused. Raises OSError."""
    try:
        return open(path, "rb", opener=_opened)  # a path's own `open` takes no opener
    except ValueError:
        raise OSError(errno.EINVAL, NO_NAME) from None


def _opened(path: str, flags: int) -> int:
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "not a regular file")


def private(path: str, flags: int) -> int:
    """An opener for files that their owner alone is to read."""
    return os.open(path, flags, 0o600)


def read_small(path: Path, limit: int = LARGEST_BYTES) -> bytes:
    """All of a regular file of at most `limit` bytes. Raises OSError."""
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit // 1024} KiB")
    return data


def write_quietly(path: Path, data: bytes) -> None:
    """Write a whole file and make its folder; a file that cannot be written is left as it was."""
    draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    with suppress(OSError):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(data)
            draft.replace(path)
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)


def file_named_by(key: bytes) -> str:
    """The name of a cache's file for a key. Others may come to the same name, so the file has to hold its key. Not by a
    cryptographic hash: the library that Python takes these from is 4 MB."""
    return f"{zlib.crc32(key):08x}.json"


def read_text(path: Path) -> str:
    """The text of a small file. Raises OSError, which says what is wrong with it, also where it is not UTF-8."""
    try:
        return read_small(path).decode()
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, f"not UTF-8: byte {error.start}") from None


class TomlError(ValueError):
    """A text that is not TOML; one line says why."""


def parse_toml(text: str) -> dict[str, Any]:
    """The document that a TOML text from anywhere describes. Raises `TomlError`."""
    if max(part.count(".") for part in re.split("[=\n]", text)) > MOST_DOTS:  # tomllib's time and memory are quadratic
        raise TomlError(f"not TOML as it is read here: more than {MOST_DOTS} dots in a key or a line")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise TomlError("not TOML: nested too deeply") from None
    except ValueError as error:  # of which TOML's own error is one; a number of too many digits is another
        raise TomlError(f"not TOML: {' '.join(str(error).split())}") from None
