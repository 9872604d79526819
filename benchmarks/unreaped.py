"""A parent that never reaps, as the first process of many containers: what ends below it stays as a zombie."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cs336_tui.config.processes import lives

_PARENT = """
import ctypes, os, signal, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans below it are its own
path, words = sys.argv[1], sys.argv[2:]
with open(path + ".draft", "w") as file:
    file.write(str(subprocess.Popen(words).pid))
os.rename(path + ".draft", path)
for fd in (0, 1, 2):
    os.close(fd)
while True:
    signal.pause()
"""
PARENTS: set[int] = set()
"""The parents that run, which belong to no session."""


def below_parent(words: Sequence[str], path: Path) -> list[str]:
    """The command that runs `words` below such a parent, and writes the PID to `path`."""
    return [sys.executable, "-I", "-S", "-c", _PARENT, str(path), *words]


class Unreaped:
    """A command below such a parent, with the methods of `subprocess.Popen` that are used here."""

    def __init__(self, words: Sequence[str], **options: Any) -> None:
        with tempfile.TemporaryDirectory(prefix="unreaped-") as name:
            path = Path(name) / "pid"
            self._parent = subprocess.Popen(below_parent(words, path), **options)
            PARENTS.add(self._parent.pid)
            while not path.exists():
                time.sleep(0.005)
            self.pid = int(path.read_text())

    def poll(self) -> int | None:
        return None if lives(self.pid) else 0

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(0.01)
        return 0

    def kill(self) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the parent, and with it the zombies."""
        self._parent.kill()
        self._parent.wait()
        PARENTS.discard(self._parent.pid)
