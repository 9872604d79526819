"""Scratch folders of processes that run cells. Each goes with its process, that of a killed one with the next."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "cs336-tui-"
_OWNER = "owner"
"""A file that is locked for as long as the process lives that made the folder; children do not inherit that."""
_owned: dict[Path, int] = {}


def make_scratch(kind: str = "") -> Path:
    """A new folder for temporary files of this process. Raises OSError."""
    path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}"))
    with contextlib.suppress(OSError):  # a full disk, or a file system without locks; it is not found by others then
        draft = path / f"{_OWNER}.draft"
        _owned[path] = fd = os.open(draft, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.rename(path / _OWNER)
    return path


def end_scratch(path: Path) -> None:
    """Remove a folder of this process, and those of processes that were killed. Safe to call twice."""
    shutil.rmtree(path, ignore_errors=True)
    if (fd := _owned.pop(path, None)) is not None:
        os.close(fd)
    for other in path.parent.glob(f"{_PREFIX}*/{_OWNER}"):
        with contextlib.suppress(OSError):
            _remove_if_dead(other)


def _remove_if_dead(owner: Path) -> None:
    fd = os.open(owner, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_uid == os.getuid():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(owner.parent, ignore_errors=True)
    finally:
        os.close(fd)
