"""Reads a pickle of dicts, lists, numbers and strings, and refuses any other before it is loaded.

Every opcode is checked first. Admitted are those of plain containers, of numbers of at most nine bytes, of strings and
of the memo. Nothing that looks up a name, calls, builds an object or a large buffer gets to the unpickler. Tuples may
hold written integers alone, so that none is nested: hashing and comparing stay quick. Memory stays below a small
multiple of the file: memo places lie within its length, and a container has at least a few bytes.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from collections.abc import Callable
from typing import Any

from cs336_tui.session.load import uncollected

MOST_BYTES = 2**30
"""The largest file that is read."""
_STEP = 2**20
_FREE_CONTAINERS = 10**5
_BYTES_PER_CONTAINER = 8

_INTEGER = rb"(?:K.|M..|J....|\x8a(?:%s))" % b"|".join(b"\\x%02x.{%d}" % (size, size) for size in range(10))


class PickleRefused(ValueError):
    """The file is damaged or holds more than plain values; the message says which, in one clause."""


def load(data: bytes, go_on: Callable[[int], object] = lambda _: None) -> Any:
    """The pickle's value. `go_on` is called at least each MiB with the bytes behind it, and may raise to cancel. Raises
    `PickleRefused`."""
    _check(data, go_on)
    try:
        with uncollected():  # a million dicts in the making have nothing to collect
            return _Plain(_Source(data, go_on)).load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise PickleRefused("it is damaged") from error
    except (MemoryError, OverflowError, RecursionError) as error:
        raise PickleRefused("it does not fit into memory") from error


class _Plain(pickle.Unpickler):
    """The last line of defence: no name leads to anything."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is no plain value")


class _Source:
    """The pickle's bytes as the file that the unpickler wants; each reading tells how far it has come."""

    def __init__(self, data: bytes, go_on: Callable[[int], object]) -> None:
        self._file = io.BytesIO(data)
        self._view = memoryview(data)
        self._go_on = go_on
        self._told = 0

    def read(self, size: int, /) -> bytes:
        if self._file.tell() - self._told >= _STEP:
            self._told = self._file.tell()
            self._go_on(self._told)
        return self._file.read(size)

    def peek(self, size: int, /) -> bytes:
        """Without it a pickle that has no frames would be read opcode by opcode."""
        return bytes(self._view[self._file.tell() :][:size])

    def readline(self) -> bytes:
        return self._file.readline()


def _check(data: bytes, go_on: Callable[[int], object]) -> None:
    """Raises `PickleRefused` unless every opcode up to the end of the file is admitted."""
    size = len(data)
    if size > MOST_BYTES:
        raise PickleRefused(f"it has {size / 2**30:.1f} GiB, and at most {MOST_BYTES / 2**30:g} are read")
    if data.count(b"}") + data.count(b"]") > _FREE_CONTAINERS + size // _BYTES_PER_CONTAINER:
        raise PickleRefused("it holds more containers than a snapshot of its length")
    if data[:1] != b"\x80" or not 2 <= (data[1] if size > 1 else 0) <= pickle.HIGHEST_PROTOCOL:
        raise PickleRefused("it is no pickle of protocol 2 or later")
    run = _fixed(size).match
    place, told = 2, 0
    while True:
        found = run(data, place)
        assert found is not None
        end = found.end()
        if end == place:
            end = _after_other(data, place)
            if end > size:
                raise PickleRefused("it is damaged: it ends within a value")
            if data[place : place + 1] == b".":
                break
        place = end
        if place - told >= _STEP:
            told = place
            go_on(place)
    if end != size:
        raise PickleRefused("it is damaged: it goes on after its end")


def _fixed(size: int) -> re.Pattern[bytes]:
    """Opcodes of fixed length, many in a row; memo places of four bytes below the file's `size`, rounded up."""
    below = b"[\\x00-\\x%02x]" % min(size >> 16, 255) + b"\\x00" if size < 2**24 else b".[\\x00-\\x40]"
    place = b".." + below
    admitted = (
        b"[}\\])N\\x88\\x89(asue\\x94]",  # containers, None, True, False, marks, filling, memo
        _INTEGER + b"{2}\\x86",
        _INTEGER + b"\\x85",
        _INTEGER,
        b"[hq].",
        b"j....",
        b"r" + place,
        b"G.{8}",
        b"\\x95.{8}",
    )
    return re.compile(b"(?:" + b"|".join(admitted) + b"){0,65536}", re.DOTALL)


def _after_other(data: bytes, place: int) -> int:
    """The end of a string or of the pickle at `place`; past the data if it is cut off."""
    opcode = data[place : place + 1]
    if opcode == b".":
        return place + 1
    if opcode in (b"\x8c", b"X"):
        width = 1 if opcode == b"\x8c" else 4
        start = place + 1 + width
        return start + int.from_bytes(data[place + 1 : start], "little") if start <= len(data) else start
    if len(data) - place < _LONGEST and opcode in _FIXED:
        raise PickleRefused("it is damaged: it ends within a value")
    name = _NAMES.get(opcode, "an unknown opcode")
    raise PickleRefused(f"it holds more than plain dicts, lists, numbers and strings: {name} at byte {place:,}")


_NAMES = {each.code.encode("latin-1"): each.name for each in pickletools.opcodes}
_FIXED = (b"", b"K", b"M", b"J", b"G", b"h", b"j", b"q", b"r", b"\x8a", b"\x95")
"""Nothing, and admitted opcodes with an operand."""
_LONGEST = 11
