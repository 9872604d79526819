"""Errors in a user's code, told in one line that ends with the user's own frame."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

import cs336_tui

SITES = ("site-packages", "dist-packages")  # Names of folders of installed packages
_NEVER = tuple(os.path.realpath(Path(package.__file__ or "").parent) for package in (torch, cs336_tui))
"""Folders whose files are not a user's, wherever they lie."""

_MOST_CHARACTERS = 1000  # Limit of an error's message


class ImportProblem(Exception):
    """The reason for which a user's code cannot be used, in one line; its cause is the error behind it, if any."""

    code: str | None = None  # The user's name of code that no cell can use


class OwnWords(ValueError):
    """An error of this program in a user's code, whose message needs no class name."""


_FOLDERS: dict[bool, set[str]] = {True: set(), False: set()}  # True for files imported by name


def remember(folder: str, *, named: bool) -> None:
    """Remember that files below this folder are the user's, or if not `named` perhaps installed there."""
    _FOLDERS[named].add(os.path.realpath(folder))
    is_users_file.cache_clear()


@lru_cache(maxsize=4096)
def is_users_file(file: str, *, named_only: bool = False) -> bool:
    """True if this is a user's file, not one of torch, this program or an installed package."""
    path = os.path.realpath(file)
    if any(_below(path, folder) for folder in _NEVER):
        return False
    folders = _FOLDERS[True] if named_only else _FOLDERS[True] | _FOLDERS[False]
    return any(
        _below(path, folder) and not any(part in SITES for part in Path(path[len(folder) :]).parts)
        for folder in folders
    )


def _below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def raise_interrupt(error: BaseException) -> None:
    """Raise Ctrl-C again, which ends the program. In a child, which ignores Ctrl-C, code raised it."""
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        raise error


def message_of(error: BaseException) -> str:
    """The error's message as encodable text, at most 65,536 characters."""
    return _encodable(lambda: str(error))


def is_triton(error: BaseException) -> bool:
    """True of an error that Triton raises, as of a kernel that does not compile or needs too much shared memory."""
    return type(error).__module__.startswith("triton.")


def message_line(error: BaseException, telling: Callable[[str], object] = bool) -> str:
    """The first line of the message for which `telling` holds, else the first one; at most 1,000 characters."""
    while is_triton(error) and error.__cause__ is not None and is_triton(error.__cause__):
        error = error.__cause__  # of a function that a kernel calls
    lines = message_of(error).strip().splitlines() or [""]
    if is_triton(error):  # which quotes the source first
        lines = [line for line in reversed(lines) if line.strip("^ ")] or lines
    return _shortened(next(filter(telling, lines), lines[0]))


def _encodable(read: Callable[[], str]) -> str:
    try:
        return read()[: 1 << 16].encode(errors="backslashreplace").decode()
    except BaseException as broken:  # a user's class may raise anything here
        return f"(its message cannot be read: {type(broken).__name__})"


def _shortened(line: str) -> str:
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]} ..."


def in_one_line(error: BaseException) -> str:
    """``ValueError: bad shape (model.py:42 in forward)``; without a place if no frame is the user's."""
    if isinstance(error, SystemExit):
        said = f"called sys.exit({'' if error.code is None else _shortened(_encodable(lambda: repr(error.code)))})"
        return f"{said}{_in_brackets(_place(error))}"
    if isinstance(error, SyntaxError) and error.filename and is_users_file(error.filename):
        place = f"{Path(error.filename).name}:{error.lineno}"
        return f"{type(error).__name__}: {error.msg}{_in_brackets(place)}"
    if isinstance(error, OwnWords):  # the user's line comes first, where nothing cuts it off
        own_line = _place(error)
        return f"{own_line}: {message_line(error)}" if own_line else message_line(error)
    said = message_line(error)
    return f"{type(error).__name__}{f': {said}' if said else ''}{_in_brackets(_place(error))}"


def told(error: BaseException) -> str:
    """As `in_one_line`, with a subject if that begins with a verb."""
    return f"the model {in_one_line(error)}" if isinstance(error, SystemExit) else in_one_line(error)


def place_of(function: Callable[..., Any]) -> str:
    """`` (model.py:42 in forward)``, the place of a user's function; empty for other functions."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not is_users_file(code.co_filename):
        return ""
    return _in_brackets(f"{Path(code.co_filename).name}:{code.co_firstlineno} in {code.co_name}")


def print_traceback(error: BaseException) -> None:
    """Print the error's traceback to standard error, from the user's first frame on, if any."""
    trace = error.__traceback__
    while trace is not None and not is_users_file(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    shown = error.__traceback__ if trace is None else trace
    if isinstance(error, SyntaxError):  # names its place; its frames are the import system's
        shown = None
    with suppress(Exception):  # standard error may be full, closed or replaced
        traceback.print_exception(type(error), error, shown, file=sys.stderr)


@contextmanager
def explained(what: str, hint: Callable[[BaseException], str] = lambda _: "") -> Iterator[None]:
    """Turn errors of a user's code inside, except Ctrl-C, into an `ImportProblem` of `what`, error and `hint`."""
    try:
        yield
    except ImportProblem:
        raise
    except BaseException as error:
        raise_interrupt(error)
        raise ImportProblem(f"{what}: {in_one_line(error)}{hint(error)}") from error


@contextmanager
def of_code(name: str) -> Iterator[None]:
    """Mark the named code as unusable in every cell if it is wrong itself, not if it raises."""
    try:
        yield
    except ImportProblem as problem:
        if problem.__cause__ is None:
            problem.code = name
        raise


def kind_of(thing: object) -> str:
    """``a list`` or ``an int``, for a sentence; ``nothing`` for None."""
    kind = thing.__name__ if isinstance(thing, type) else type(thing).__name__
    return "nothing" if thing is None else f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _place(error: BaseException) -> str | None:
    """The user's innermost frame: of named code if possible, else of the searched folders."""
    frames = list(traceback.walk_tb(error.__traceback__))[::-1]
    for named_only in (True, False):
        for frame, line in frames:
            code = frame.f_code
            if is_users_file(code.co_filename, named_only=named_only):
                inside = "" if code.co_name == "<module>" else f" in {code.co_name}"
                return f"{Path(code.co_filename).name}:{line}{inside}"
    return None


def _in_brackets(place: str | None) -> str:
    return f" ({place})" if place else ""
