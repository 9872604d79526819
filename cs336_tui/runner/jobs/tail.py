"""Reads a session's log as another process writes it."""

from __future__ import annotations

from pathlib import Path

from cs336_tui.events.codec import from_line
from cs336_tui.events.events import Event
from cs336_tui.runner.jobs.folder import MOST_BYTES, read_shared
from cs336_tui.session.log import DAMAGE, LogError


class Tail:
    """The events of a log, those of whole lines that are new since the last `read`. A log that goes on after a line
    that cannot be read is damaged: `LogError`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Event]:
        data = read_shared(self._path, self._offset)
        while len(data) >= MOST_BYTES and (more := read_shared(self._path, self._offset + len(data))):
            data += more
        if (hole := data.find(b"\0")) >= 0:  # not delivered yet by a network file system
            data = data[:hole]
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        try:
            return [from_line(line) for line in data[:whole].splitlines() if line.strip()]
        except DAMAGE as error:
            raise LogError(f"{self._path}: damaged ({error})") from None
