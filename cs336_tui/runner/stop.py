"""A request to stop that another thread can make and a waiting thread hears at once."""

from __future__ import annotations

import os
import threading


class StopSignal:
    """Like `threading.Event`, and also readable as a file descriptor, so that one wait covers pipes and this."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._event = threading.Event()

    def set(self) -> None:
        if not self._event.is_set():
            self._event.set()
            os.write(self._write, b"s")

    def clear(self) -> None:
        if self._event.is_set():
            self._event.clear()
            os.read(self._read, 1)

    def is_set(self) -> bool:
        return self._event.is_set()

    def fileno(self) -> int:
        return self._read

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)
