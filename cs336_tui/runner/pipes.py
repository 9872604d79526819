"""Connects the app and its children: messages on a pipe, a stop signal, the file that a child prints to; and the app
and its threads. A child writes a message at once, so that a step is safe; the parent reads all that has gathered, so
that it wakes less often."""

from __future__ import annotations

import codecs
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

CELL_LIMIT = 1 << 20
"""Bytes of a child's output that are followed; the rest is cut with a line that says so."""
_HEADER = struct.Struct("<I")
_CAPACITY = 1 << 20
_T = TypeVar("_T")
_READ = 1 << 17  # each rank of a running cell has a buffer of this size


def enlarge(fd: int) -> None:
    """Let the pipe hold a megabyte if the system allows it."""
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):  # over the user's limit: a very fast child then waits between steps
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _CAPACITY)


def write_frame(fd: int, payload: bytes) -> None:
    """Write one message. Blocks while the pipe is full; raises BrokenPipeError when nobody reads."""
    data = memoryview(_HEADER.pack(len(payload)) + payload)
    while data:
        data = data[os.write(fd, data) :]


class FrameReader:
    """Splits what arrives on a pipe into messages."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # One buffer for all reads: `os.read` would make a fresh one each time.
        self._arrived = memoryview(bytearray(_READ))
        self._buffer = bytearray()
        self.at_end = False
        """True once the writer has closed its end."""

    def read(self) -> list[bytes]:
        """The messages completed by one read, oldest first; blocks while the pipe is empty and open."""
        size = os.readv(self._fd, [self._arrived])
        self.at_end = not size
        self._buffer += self._arrived[:size]
        frames: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer, start)
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append(bytes(self._buffer[start + _HEADER.size : end]))
            start = end
        del self._buffer[:start]
        return frames


class StopSignal:
    """Like `threading.Event`, and a readable file descriptor, so that one wait covers pipes and this."""

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


class OutputTail:
    """Follows a growing file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def read(self) -> str:
        """The text added since the last call; empty without new text or without a file."""
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


def end_of(path: Path) -> str:
    """The last 64 KiB of a file; empty without one."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - (1 << 16)))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_line(path: Path) -> str:
    """The last line of a file that is not blank, at most 300 characters of it; empty without one."""
    return next((line.strip()[:300] for line in reversed(end_of(path).split("\n")) if line.strip()), "")


@contextmanager
def beside(name: str, work: Callable[[threading.Event], object]) -> Iterator[None]:
    """While entered, `work` is done on a thread of this name, whose end is waited for; its event is set then."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Aside:
    """A thread that makes calls in order. It does not hold up the end of the program."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, what: Callable[[], _T]) -> Future[_T]:
        """Make the call when those before it are done."""
        future: Future[_T] = Future()
        self._calls.put((future, what))
        return future

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, what = call
            try:
                future.set_result(what())
            except BaseException as error:
                future.set_exception(error)

    def close(self, within_s: float) -> None:
        """End the thread after the calls that wait; a call that takes longer goes on by itself."""
        self._calls.put(None)
        self._thread.join(within_s)
