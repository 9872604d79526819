"""Following the file that a child prints to."""

from __future__ import annotations

import codecs
from pathlib import Path

CELL_LIMIT = 1 << 20
"""Bytes of one child's output that are followed; a child that prints more is cut with a line that says so."""


class OutputTail:
    """New text of a growing file since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def read(self) -> str:
        """Text added since the last call, empty when there is none or no file yet."""
        try:
            size = self._path.stat().st_size
            if size <= self._offset or self._offset >= CELL_LIMIT:
                return ""
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(CELL_LIMIT - self._offset)
        except FileNotFoundError:
            return ""
        self._offset += len(data)
        text = self._decoder.decode(data)
        if self._offset >= CELL_LIMIT:
            text += f"\n(output cut here: more than {CELL_LIMIT >> 20} MiB)\n"
        return text


def last_line(path: Path) -> str:
    """The last line that says something in a file of output, at most 300 characters of it; empty when none does."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - (1 << 16)))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
