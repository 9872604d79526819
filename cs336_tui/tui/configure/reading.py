"""Texts of the form's entries read into numbers, names and pairs, with all that is wrong with them."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from cs336_tui.config.axis import NUMBERS, SpecError
from cs336_tui.config.counts import INTERVAL, Auto, auto_of, duration_of, share_of
from cs336_tui.config.spec import ModelDims
from cs336_tui.config.sweep import LaneCount

USUAL_STEPS = 10
"""Measured steps in place of those that cannot be read."""
_WHOLE = f"expected {NUMBERS[int]}"
_SEVERAL = ", or several as 1,2,4"
_PAIRS = "expected name=value, several with commas; a value that holds a comma in quotes"
_OPEN = "a quote or backslash is left open"
_T = TypeVar("_T")
_I = TypeVar("_I")


def joined(pieces: Iterable[str]) -> str:
    """Pieces as `FormReader.pieces` reads them: with commas, those in quotes that need it, as `shlex.quote` makes them,
    which leaves a lone comma bare."""
    words: list[str] = []
    for piece in pieces:
        quoted = "'" + piece.replace("'", "'\"'\"'") + "'"
        words.append(quoted if set(piece) & set(",'\"\\") else piece)
    return ", ".join(words)


class FormReader:
    """Reads text into numbers and collects what is wrong, each problem once."""

    def __init__(self) -> None:
        self.problems: dict[str, SpecError] = {}

    def add(self, *problems: SpecError) -> None:
        for problem in problems:
            self.problems.setdefault(str(problem), problem)

    def attempt(self, make: Callable[[], _T], instead: _I) -> _T | _I:
        try:
            return make()
        except SpecError as error:
            self.add(error)
            return instead

    def number(self, field: str, text: str, instead: Any, kind: type = int) -> Any:
        """A number of this kind; `instead` when it is none."""
        return self.attempt(lambda: _number(field, text, f"expected {NUMBERS[kind]}", kind), instead)

    def lanes(self, text: str) -> LaneCount:
        """A number of lanes, or ``auto``."""
        if text.strip() == "auto":
            return "auto"
        return self.attempt(lambda: _number("lanes", text, "expected a whole number, at least 1, or auto"), 1)

    def warmups(self, text: str) -> Auto | tuple[int, ...]:
        """Warm-up steps, one or several, or ``auto`` or a time alone, with or without the most."""
        end = f"{_SEVERAL}, or auto alone, or a time as 10s"
        return self.attempt(lambda: auto_of("warmup_steps", text) or self.numbers("warmup_steps", text, more=end), (1,))

    def steps(self, text: str) -> tuple[int | Auto, float | None]:
        """A number of measured steps; or an automatic one and the share to which the mean's interval is to narrow."""
        return self.attempt(lambda: _measured_steps(text), (USUAL_STEPS, None))

    def numbers(self, field: str, text: str, kind: type = int, more: str = _SEVERAL) -> tuple[Any, ...]:
        """Numbers of this kind between commas; 1, which every field allows, if a text is none."""
        words = text.split(",")
        if not words[-1].strip():
            words.pop()
        allowed = f"expected {NUMBERS[kind]}{more}"
        return self.attempt(lambda: tuple(_number(field, word, allowed, kind) for word in words), (kind(1),))

    def pieces(self, field: str, text: str) -> tuple[str, ...]:
        """Texts between commas, without those that are empty; quotes and backslashes as a shell reads them."""
        lexer = shlex.shlex(text, posix=True)
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = ",", True, ""
        try:
            return tuple(filter(None, map(str.strip, lexer)))
        except ValueError:
            self.add(SpecError(field, " ".join(text.split()), _OPEN))
            return ()

    def pairs(self, field: str, text: str) -> tuple[tuple[str, str], ...]:
        """``name=value`` between commas."""
        found: list[tuple[str, str]] = []
        for piece in self.pieces(field, text):
            name, equals, value = piece.partition("=")
            if name.strip() and equals:
                found.append((name.strip(), value.strip()))
            else:
                self.add(SpecError(field, " ".join(piece.split()), _PAIRS))
        return tuple(found)

    def dims(self, texts: dict[str, str]) -> ModelDims | None:
        """Dimensions of a custom model; None when they are wrong."""
        values: dict[str, Any] = {
            field: self.attempt(partial(_number, field, text, _WHOLE), None) for field, text in texts.items()
        }
        return None if None in values.values() else self.attempt(lambda: ModelDims(**values), None)

    def seconds(self, text: str) -> float | None:
        """A positive duration; None when empty."""
        if not text.strip():
            return None
        allowed = "expected seconds, more than 0, or nothing"
        found = self.attempt(lambda: float(_number("timeout_s", text, allowed, float)), None)
        if found is None or 0 < found < math.inf:
            return found
        self.add(SpecError("timeout_s", " ".join(text.split()), allowed))
        return None


def _measured_steps(text: str) -> tuple[int | Auto, float | None]:
    """Parse ``10``, ``auto``, ``auto:200``, ``auto 2%`` or ``30s``. Raises `SpecError`."""
    if by_time := auto_of("measure_steps", text) if duration_of(text.partition(":")[0]) else None:
        return by_time, None
    count, _, share = " ".join(text.split()).partition(" ")
    automatic = auto_of("measure_steps", count)
    if automatic is None:
        return _number("measure_steps", text, f"{_WHOLE}, or auto, or as auto 2%, or a time as 30s"), None
    return automatic, share_of(share, "measure_steps") if share else INTERVAL


def _number(field: str, text: str, allowed: str, kind: type = int) -> Any:
    with suppress(ValueError):
        if kind is not int or re.fullmatch(r"-?[0-9]{1,15}", text.strip(), re.ASCII):
            return kind(text)
    raise SpecError(field, " ".join(text.split()) or "(empty)", allowed)
