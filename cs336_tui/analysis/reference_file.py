"""Reference points as they are kept: a CSV of published step times that comes with the product, and a person's own."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from cs336_tui.config.reading import read_text
from cs336_tui.config.sizes import dims_of
from cs336_tui.config.spec import EDITIONS, PASSES, PRECISIONS, SpecError

MIXED = "mixed"
"""A published precision that does not say mixed with what."""

_TEXTS = ("source", "device", "edition", "size", "pass", "precision")
_COUNTS = ("context", "batch", "warmup", "steps")
_TIMES = ("mean_ms", "std_ms")
COLUMNS = ("source", "device", "edition", "size", "context", "batch", "pass", "precision", "warmup", "steps",
           "mean_ms", "std_ms", "note")  # fmt: skip
"""Of both files; in a cell of the table, what is unstated is empty."""


class ReferenceFileError(Exception):
    """Reference points that cannot be read or kept; one line names the file, the line and what is allowed."""


class Published(msgspec.Struct, frozen=True, kw_only=True, rename={"pass_": "pass"}):
    """A mean step time in ms of a size of an edition's table; None is unstated. `own`: kept by the person here."""

    source: str
    device: str
    edition: str
    size: str
    context: int | None
    batch: int | None
    pass_: str
    precision: str
    warmup: int | None
    steps: int | None
    mean_ms: float
    std_ms: float | None
    note: str = ""
    own: bool = False

    @property
    def arch(self) -> str:
        """The architecture that the edition's handout has."""
        return arch_of(self.edition)


def arch_of(edition: str) -> str:
    """The architecture that the edition's handout has."""
    return "gelu-learned" if edition == "2024" else "swiglu-rope"


@cache
def published() -> tuple[Published, ...]:
    """The reference points that come with the product, each with its source."""
    return parse((files("cs336_tui") / "data" / "published.csv").read_text(encoding="utf-8"), "published.csv")


def own_path() -> Path:
    """Where a person's own reference points are kept."""
    return platformdirs.user_data_path("cs336-tui", appauthor=False) / "reference.csv"


def own(path: Path | None = None) -> tuple[Published, ...]:
    """A person's own reference points, none where there is no file. Raises `ReferenceFileError` naming the line."""
    path = path or own_path()
    try:
        text = read_text(path)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ReferenceFileError(f"{path}: cannot be read: {error.strerror}") from None
    return tuple(msgspec.structs.replace(row, own=True) for row in parse(text, str(path)))


def write(rows: Iterable[Published], path: Path) -> None:
    """Put the rows in place of the file at once, so that a crash leaves the old one or the new one.

    Raises `ReferenceFileError`.
    """
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(msgspec.to_builtins(row) for row in rows)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ReferenceFileError(f"{path}: {error.strerror}; nothing was kept") from None


def parse(text: str, where: str) -> tuple[Published, ...]:
    """The rows of a CSV. Raises `ReferenceFileError` naming the line in `where`, the value and what is allowed."""
    reader = csv.DictReader(io.StringIO(text, newline=""))
    header = reader.fieldnames or ()
    for problem, names in (
        ("no column", [name for name in COLUMNS if name not in header]),
        ("unknown column", [name for name in header if name not in COLUMNS]),
    ):
        if names:
            raise ReferenceFileError(f"{where}, line 1: {problem} {names[0]}: expected {', '.join(COLUMNS)}")
    rows: list[Published] = []
    for fields in reader:
        try:
            rows.append(_row(fields))
        except (ValueError, SpecError) as error:
            raise ReferenceFileError(f"{where}, line {reader.line_num}: {error}") from None
    return tuple(rows)


def _row(fields: dict[Any, Any]) -> Published:
    if None in fields or None in fields.values():
        raise ValueError(f"expected {len(COLUMNS)} fields, one for each column")
    for name in (*_TEXTS, "mean_ms"):
        if not fields[name].strip():
            raise ValueError(f"{name} is empty")
    for name, allowed in (("edition", EDITIONS), ("pass", PASSES), ("precision", (*PRECISIONS, MIXED))):
        if fields[name] not in allowed:
            raise ValueError(f"{name} {fields[name]}: expected one of {', '.join(allowed)}")
    dims_of(fields["size"], fields["edition"])
    numbers = {name: _count(name, fields[name].strip()) for name in _COUNTS}
    times = {name: _time(name, fields[name].strip()) for name in _TIMES}
    return msgspec.convert(fields | numbers | times, Published)


def _count(name: str, text: str) -> int | None:
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name} {text}: expected a whole number, or nothing where it is unstated")
    return int(text) if text else None


def _time(name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        time_ms = float(text)
    except ValueError:
        time_ms = math.nan
    if not 0 <= time_ms < math.inf:
        raise ValueError(f"{name} {text}: expected milliseconds")
    return time_ms
