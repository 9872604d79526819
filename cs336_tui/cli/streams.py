"""The standard streams of a command: there in any case, and what is lost on them is heard of or does not matter.

Whatever a command writes goes through them, and what a terminal would obey is taken out there (`texts.plain`).
Tables on a terminal are styled and have its width.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import shutil
import stat
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from cs336_tui.export.writing.tables import Table
    from cs336_tui.export.writing.terminal import Part


PATIENCE_S = 1.0
"""The time that a standard error that takes nothing is waited for; once it has taken nothing, no longer at all."""


def settle_streams() -> None:
    """Have all three streams, also those that were closed; to be called before anything else is opened.

    Writing to a standard output that is closed, full or gone raises OSError with ``standard output`` as its file name.
    What standard error does not take, as a terminal whose connection hangs, is dropped: a run is worth more than the
    lines beside it. Streams that somebody has replaced stay as they are.
    """
    for fd, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):  # so that writing to 1 is an error
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest number that is free
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is sys.__stdout__:
        sys.stdout = _Output(open(1, "wb", closefd=False), *_encoding_of(sys.stdout), line_buffering=os.isatty(1))  # noqa: SIM115
    if sys.stderr is sys.__stderr__:
        sys.stderr = _Plain(_Errors(), *_encoding_of(sys.stderr), write_through=True)


def in_one_line(error: OSError) -> str:
    """``results.md: No space left on device``, of a name longer than 80 characters its ends."""
    if error.errno == errno.ENOENT and error.filename is None and os.stat(os.curdir).st_nlink == 0:  # noqa: PTH116
        return "the current folder has been removed; go to another one"
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    shown = [name if len(name) <= 80 else f"{name[:60]}...{name[-16:]}" for name in names]
    return ": ".join([*shown, error.strerror or str(error)])


class Styled(str):
    """A text of our own for a terminal, whose escape sequences are meant; what it holds from outside is `plain`."""

    __slots__ = ()


class _Plain(io.TextIOWrapper):
    """Takes out of each text, unless it is `Styled`, what a terminal would obey."""

    def write(self, text: str, /) -> int:
        from cs336_tui.export.writing.texts import plain  # late: the app starts without it

        self.write_as_is(text if isinstance(text, Styled) else plain(text))
        return len(text)

    def write_as_is(self, text: str) -> None:
        """Write a text of our own, its escape sequences included."""
        super().write(text)


class _Output(_Plain):
    def write_as_is(self, text: str) -> None:
        try:
            super().write_as_is(text)
        except OSError as error:
            raise self._lost(error) from None

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise self._lost(error) from None

    def _lost(self, error: OSError) -> OSError:
        with contextlib.suppress(OSError):  # what is left in the buffer must not fail again when the interpreter ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return OSError(error.errno, error.strerror, "standard output")


class _Errors(io.RawIOBase):
    """Standard error that nobody is held up by: what it has no room for within `PATIENCE_S` is dropped."""

    def __init__(self) -> None:
        self._fd = 2
        with contextlib.suppress(OSError):  # opened anew, as others share the one that is there
            if os.isatty(2) or stat.S_ISFIFO(os.fstat(2).st_mode):
                name = os.ttyname(2) if os.isatty(2) else "/dev/fd/2"
                self._fd = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        self._is_stalled = False

    def write(self, data: Buffer, /) -> int:
        left = memoryview(data).cast("B")
        size, give_up_at = len(left), time.monotonic() + (0.0 if self._is_stalled else PATIENCE_S)
        with contextlib.suppress(OSError):
            while left:
                try:
                    left = left[os.write(self._fd, left) :]
                except BlockingIOError:
                    rest_s = give_up_at - time.monotonic()
                    if rest_s <= 0 or not select.select([], [self._fd], [], rest_s)[1]:
                        break
        self._is_stalled = bool(left)
        return size

    def writable(self) -> bool:
        return True

    @property
    def name(self) -> str:
        return "<stderr>"

    def fileno(self) -> int:
        return 2

    def isatty(self) -> bool:
        return os.isatty(2)


class StatusLines:
    """Lines at the end of a stream, redrawn in place where that is a terminal; elsewhere nothing. They change no mode
    of the terminal, so that whatever ends the process, nothing has to be set back."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_live = stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        self._shown = 0

    @property
    def size(self) -> os.terminal_size:
        with contextlib.suppress(OSError, ValueError, io.UnsupportedOperation):
            return os.get_terminal_size(self._stream.fileno())
        return os.terminal_size((80, 24))

    def show(self, lines: Sequence[str]) -> None:
        """Draw these in place of the last ones; none may be wider than the terminal."""
        if self.is_live:
            self._redraw(lines)
            self._shown = len(lines)

    def say(self, text: str) -> None:
        """Draw one line, of a text that is made plain."""
        from cs336_tui.export.writing.texts import one_line

        self.show([one_line(text)])

    def clear(self) -> None:
        if self._shown:
            self._redraw([])
            self._shown = 0

    def _redraw(self, lines: Sequence[str]) -> None:
        write = self._stream.write_as_is if isinstance(self._stream, _Plain) else self._stream.write
        up = f"\x1b[{self._shown - 1}A" if self._shown > 1 else ""
        write(f"\r{up}\x1b[J" + "\n".join(lines))
        self._stream.flush()


def _encoding_of(stream: TextIO | None) -> tuple[str, str]:
    """That of the stream, so that every text can be written."""
    if stream is None:
        return "utf-8", "backslashreplace"
    return stream.encoding, "surrogateescape" if stream.errors == "surrogateescape" else "backslashreplace"


TERMINAL = "terminal"
"""The format of what has none and goes to a terminal, beside those that ``--format`` takes."""
_VERBOSE = "cs336_tui.verbose"


def remember_verbose(context: click.Context, _option: click.Parameter, value: bool) -> None:
    """The callback of ``-v``, so that no command has to pass it on."""
    context.meta[_VERBOSE] = value


def shown(tables: Sequence[Table], format_: str, title: str = "cs336-tui") -> str:
    """Tables in one of the formats that ``--format`` takes, as `formats.answer`, or laid out for this terminal."""
    if format_ == TERMINAL:
        return on_terminal(tables)
    from cs336_tui.export.writing.formats import answer

    return answer(tables, format_, title)


def on_terminal(parts: Sequence[Part]) -> str:
    """Tables, paragraphs and labelled texts laid out for the terminal of standard output; ``COLUMNS``, ``NO_COLOR`` and
    ``TERM`` are obeyed."""
    from cs336_tui.export.writing.terminal import Looks, terminal_text

    looks = Looks(
        width=max(shutil.get_terminal_size().columns, 40),
        styled=os.environ.get("TERM", "dumb") not in ("dumb", "unknown", ""),
        coloured=not os.environ.get("NO_COLOR"),
        verbose=is_verbose(),
    )
    return Styled(terminal_text(parts, looks))


def laid_out(parts: Sequence[Part], format_: str) -> str:
    """Parts for this terminal if that is the format, else as plain text."""
    if format_ == TERMINAL:
        return on_terminal(parts)
    from cs336_tui.export.writing.terminal import plain_parts

    return plain_parts(parts)


def is_verbose() -> bool:
    """True if the command that runs was given ``-v``."""
    context = click.get_current_context(silent=True)
    return bool(context and context.meta.get(_VERBOSE, False))
