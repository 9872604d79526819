"""A terminal for tests and benchmarks: a real pty, a real process, and a screen that an emulator keeps."""

import contextlib
import fcntl
import os
import re
import termios
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import ptyprocess
import pyte

T = TypeVar("T")


_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;?<>=]*[ -/]*[@-~]|[\]P][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")


def painted(raw: bytes) -> int:
    """The cells that an output writes: what is left of it without escape sequences."""
    return len(_ESCAPES.sub(b"", raw).decode().replace("\r", "").replace("\n", ""))


class Terminal:
    """Runs a command in a pty of the given size and shows what a person would see.

    `bytes_written` counts what the command wrote, `raw` keeps it. Waiting is for what appears on the screen, never
    for a time. With `emulate` False there is no screen and only `until_bytes` can wait: the emulator costs more than
    the app it watches, which would show in timings.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 120,
        rows: int = 40,
        env: dict[str, str] | None = None,
        emulate: bool = True,
        cwd: Path | None = None,
    ) -> None:
        self._emulate = emulate
        # A test runner's idea of the terminal's size would override the pty's own.
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        environment = inherited | {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"} | (env or {})
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._changed = threading.Condition()
        self._reads = threading.Event()
        self._reads.set()
        self.bytes_written = 0
        self.is_over = False
        self.started_at = time.perf_counter()
        self.raw = bytearray()
        self.process = ptyprocess.PtyProcess.spawn(list(command), env=environment, dimensions=(rows, columns), cwd=cwd)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            self._reads.wait()
            try:
                data = self.process.read(65536)
            except (EOFError, OSError, ValueError):  # the last is a terminal closed on our side
                break
            with self._changed:
                self.bytes_written += len(data)
                self.raw += data
                if self._emulate:
                    self._stream.feed(data)
                self._changed.notify_all()
        with self._changed:
            self.is_over = True
            self._changed.notify_all()

    @property
    def pid(self) -> int:
        pid: int = self.process.pid
        return pid

    def text(self) -> str:
        """The screen, a line a row."""
        with self._changed:
            return "\n".join(self._screen.display)

    def look(self, read: Callable[[pyte.Screen], T]) -> T:
        """The result of `read` on the screen, which does not change meanwhile."""
        with self._changed:
            return read(self._screen)

    def until(self, seen: str | Callable[[str], bool], timeout_s: float = 60.0) -> float:
        """Wait until the screen shows the text (or satisfies the predicate); returns seconds since the start.

        Raises AssertionError with the screen when it does not happen in time.
        """
        wanted = (lambda text: seen in text) if isinstance(seen, str) else seen
        with self._changed:
            found = self._changed.wait_for(lambda: wanted("\n".join(self._screen.display)), timeout_s)
            now = time.perf_counter()
        assert found, f"{seen!r} did not appear; the screen was:\n{self.text()}"
        return now - self.started_at

    def until_bytes(self, wanted: bytes, timeout_s: float = 60.0) -> float:
        """Wait until the command has written these bytes; returns seconds since the start."""
        with self._changed:
            found = self._changed.wait_for(lambda: wanted in self.raw, timeout_s)
            now = time.perf_counter()
        assert found, f"{wanted!r} was not written; the end was {bytes(self.raw[-2000:])!r}"
        return now - self.started_at

    def send(self, keys: str, seen: str | Callable[[str], bool] | None = None) -> None:
        """Type these keys, and wait `until` the screen shows what they bring, where that is given."""
        self.process.write(keys.encode())
        if seen is not None:
            self.until(seen)

    def resize(self, columns: int, rows: int) -> None:
        with self._changed:
            self._screen.resize(rows, columns)
        self.process.setwinsize(rows, columns)

    def stall(self, press: str, quiet_s: float = 1.0) -> None:
        """Read no more, as a connection that hangs, and press these keys until nothing more can be written."""
        self._reads.clear()
        waiting, since = -1, time.monotonic()
        while time.monotonic() - since < quiet_s:
            self.send(press)
            time.sleep(0.05)
            before, waiting = (
                waiting,
                int.from_bytes(fcntl.ioctl(self.process.fd, termios.FIONREAD, bytes(4)), "little"),
            )
            if waiting != before:
                since = time.monotonic()

    def read_on(self) -> None:
        """The opposite of `stall`."""
        self._reads.set()

    def takes_lines(self) -> bool:
        """True if the terminal echoes typed keys and hands them on line by line, as at a shell's prompt."""
        modes = termios.tcgetattr(self.process.fd)[3]
        return bool(modes & termios.ECHO and modes & termios.ICANON)

    def hang_up(self) -> None:
        """Close the terminal under the process, as a lost connection does."""
        os.close(self.process.fd)

    def wait(self, timeout_s: float = 20.0) -> int | None:
        """Wait for the process to end; its exit status, None when a signal ended it."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.is_over, timeout_s), f"still running:\n{self.text()}"
        self.process.wait()
        status: int | None = self.process.exitstatus
        return status

    def close(self) -> None:
        """End the process, if it still runs, and give the terminal back. Safe after any end."""
        with contextlib.suppress(ptyprocess.PtyProcessError, OSError):
            if self.process.isalive():
                self.process.kill(9)
        with contextlib.suppress(ptyprocess.PtyProcessError, OSError):
            self.process.close(force=True)
