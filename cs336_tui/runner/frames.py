"""Messages on a pipe: a length, then that many bytes.

The child writes each message at once, so that a step is safe the moment it is over; the parent reads whatever
has gathered in one system call, so that ten thousand steps a second do not wake it ten thousand times.
"""

from __future__ import annotations

import os
import struct
import sys

_HEADER = struct.Struct("<I")
_CHUNK = 1 << 20


def enlarge(fd: int) -> None:
    """Let the pipe hold about a megabyte where the system allows it."""
    if sys.platform == "linux":
        import fcntl

        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _CHUNK)
        except OSError:  # over the user's limit: the default size only makes a very fast child wait between steps
            return


def write_frame(fd: int, payload: bytes) -> None:
    """Write one message. Blocks while the pipe is full; raises BrokenPipeError when nobody reads any more."""
    data = memoryview(_HEADER.pack(len(payload)) + payload)
    while data:
        data = data[os.write(fd, data) :]


class FrameReader:
    """Splits what arrives on a pipe into messages."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        # Read into one buffer for good: `os.read` would map and unmap a fresh megabyte each time.
        self._arrived = memoryview(bytearray(_CHUNK))
        self._buffer = bytearray()
        self.at_end = False
        """Whether the writer has closed its end."""

    def read(self) -> list[bytes]:
        """The messages completed by one read, oldest first; blocks only when the pipe is empty and still open."""
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
