"""The rows of reference points: the published ones, and a person's own file of them."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import platformdirs

from cs336_tui.config.axis import UserError
from cs336_tui.config.reading import packaged, read_text
from cs336_tui.config.spec import AXES, EDITIONS, PASSES, PRECISIONS, SpecError, dims_of
from cs336_tui.config.values import message_dims, sharing_of

MIXED = "mixed"
"""A published precision that does not say mixed with what."""

_TEXTS = ("source", "device", "edition", "size", "precision")
_COUNTS = ("context", "batch", "warmup", "steps", "ranks")
_TIMES = ("mean_ms", "std_ms", "communication_ms")
_PERCENTS = ("top_percent", "matmul_percent")
_TIMED = ("source", "device", "edition", "size", "context", "batch", "pass", "precision", "warmup", "steps",
          "mean_ms", "std_ms", "note")  # fmt: skip
"""Columns that every file has."""
COLUMNS = (*_TIMED, "part", "peak", "top_kernel", "top_launches", *_PERCENTS, "op", "backend", "ranks",
           "parallel", "communication_ms", "board")  # fmt: skip
"""Columns of the published and of a person's own file; what is unstated is empty."""
PARTS = ("forward", "loss", "backward", "optimizer", "forward+backward")
"""The parts of a step that a peak or kernels may be of."""
_PEAK = re.compile(r"([0-9]+(?:\.[0-9]+)?) (GB|GiB)")
_BACKENDS = tuple(name for name in AXES["backend"].values if name != "auto")
_BYTES = {"GB": 10**9, "GiB": 2**30}

WAYS = {
    "none": "none", "naive": "data parallel", "flat": "data parallel", "overlap": "data parallel",
    "bucketed": "data parallel", "ddp": "data parallel", "sharded-optimizer": "sharded optimizer",
    "zero1": "sharded optimizer", "fsdp": "FSDP", "fsdp2": "FSDP",
}  # fmt: skip
"""Ways in which published ranks share a step, and torch's, each with what it is a kind of."""

Figure = Literal["time", "peak", "kernels"]
"""The figures that a reference point may hold."""


class ReferenceFileError(UserError):
    """Reference points that cannot be read or kept; one line names the file, the line and what is allowed."""


class Published(msgspec.Struct, frozen=True, kw_only=True, rename={"pass_": "pass"}):
    """A mean step time in ms, a peak of memory, the kernels of a step, or several of these, of a size of an edition's
    table; None is unstated. `own`: kept by the person here."""

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
    mean_ms: float | None = None
    std_ms: float | None = None
    note: str = ""
    part: str = ""
    """The part of the pass, one of `PARTS`, that the peak or the kernels are of; empty: the whole."""
    peak: str = ""
    """Peak of allocated memory as it was published, with its unit: ``46 GB``, ``18.053 GiB``."""
    top_kernel: str = ""
    """The kernel with the most time, as far as its name was published."""
    top_launches: int | None = None
    top_percent: float | None = None
    """Its share of the kernels' time."""
    matmul_percent: float | None = None
    """The share of all matrix products."""
    op: str = ""
    """Of a collective: the operation. Its `size` is that of the whole array, such as ``10MB``; it has no pass."""
    backend: str = ""
    ranks: int | None = None
    """Of a model None is 1; its `batch` is that of each rank."""
    parallel: str = ""
    """The way in which several ranks share a step, one of `WAYS`, perhaps with its buckets: ``bucketed:10MB``."""
    communication_ms: float | None = None
    """Time in which gradients were communicated, after backward."""
    board: str = ""
    """Of an entry of a handout's leaderboard ``verified`` or ``not marked``; its `size` is in no table of sizes."""
    own: bool = False

    @property
    def arch(self) -> str:
        return arch_of(self.edition)

    @property
    def peak_bytes(self) -> int | None:
        return bytes_of_peak(self.peak) if self.peak else None

    def holds(self, figure: Figure) -> bool:
        """True if it is a point of such a figure."""
        if figure == "kernels":
            return bool(self.top_kernel) or self.matmul_percent is not None
        return self.mean_ms is not None if figure == "time" else bool(self.peak)


def bytes_of_peak(text: str) -> int:
    """Bytes of a peak such as ``46 GB`` or ``18.053 GiB``. Raises ValueError."""
    found = _PEAK.fullmatch(text)
    if not found:
        raise ValueError(f"peak {text}: expected a number of GB or GiB, such as 46 GB")
    return round(float(found[1]) * _BYTES[found[2]])


def arch_of(edition: str) -> str:
    """The architecture that the edition's handout has."""
    return "gelu-learned" if edition == "2024" else "swiglu-rope"


@cache
def published() -> tuple[Published, ...]:
    """The reference points that come with the product, each with its source."""
    return tuple(row for row in _packaged() if not row.board)


def leaderboard(edition: str) -> tuple[Published, ...]:
    """The published entries of a handout's leaderboard, the fastest first."""
    entries = (row for row in _packaged() if row.board and row.edition == edition)
    return tuple(sorted(entries, key=lambda row: row.mean_ms or 0.0))


@cache
def _packaged() -> tuple[Published, ...]:
    return parse(packaged("published.csv"), "published.csv")


def own_path() -> Path:
    """The file of a person's own reference points."""
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


def points(rows: Sequence[Published] | None = None) -> Sequence[Published]:
    """These reference points; unless given the published ones and a person's own. Raises like `own`."""
    return (*published(), *own()) if rows is None else rows


def write(rows: Iterable[Published], path: Path) -> None:
    """Replace the file at once, so that a crash leaves the old one or the new one. Raises `ReferenceFileError`."""
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(map(msgspec.to_builtins, rows))
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ReferenceFileError(f"{path}: {error.strerror}; nothing was kept") from None


def parse(text: str, where: str) -> tuple[Published, ...]:
    """The rows of a CSV. Raises `ReferenceFileError` naming the line in `where`, the value and what is allowed."""
    reader = csv.DictReader(io.StringIO(text, newline=""))
    header = reader.fieldnames or ()
    problems = [f"no column {name}" for name in _TIMED if name not in header]
    problems += [f"unknown column {name}" for name in header if name not in COLUMNS]
    if problems:
        raise ReferenceFileError(f"{where}, line 1: {problems[0]}: expected {', '.join(COLUMNS)}")
    rows: list[Published] = []
    for fields in reader:
        try:
            rows.append(_parsed(fields))
        except (ValueError, SpecError) as error:
            raise ReferenceFileError(f"{where}, line {reader.line_num}: {error}") from None
    return tuple(rows)


def _parsed(fields: dict[Any, Any]) -> Published:
    if None in fields or None in fields.values():
        raise ValueError(f"expected {len(fields.keys() - {None})} fields, one for each column")
    for name in _TEXTS:
        if not fields[name].strip():
            raise ValueError(f"{name} is empty")
    op = fields.get("op", "")
    choices: dict[str, tuple[str, ...]] = {"edition": EDITIONS, "precision": (*PRECISIONS, MIXED)}
    choices |= {"op": AXES["collective"].values, "backend": _BACKENDS} if op else {"pass": PASSES}
    for name, allowed in choices.items():
        if fields[name] not in allowed:
            raise ValueError(f"{name} {fields[name]}: expected one of {', '.join(allowed)}")
    if (part := fields.get("part", "")) and part not in PARTS:
        raise ValueError(f"part {part}: expected one of {', '.join(PARTS)}, or nothing for the whole pass")
    if op:
        message_dims(fields["size"])
    elif not fields.get("board"):
        dims_of(fields["size"], fields["edition"])
    texts = {name: fields.get(name, "").strip() for name in (*_COUNTS, "top_launches", *_TIMES, *_PERCENTS)}
    numbers = {name: _count(name, texts[name]) for name in (*_COUNTS, "top_launches")}
    times = {name: _number(name, texts[name], "milliseconds") for name in _TIMES}
    percents = {name: _number(name, texts[name], "0 to 100", 100) for name in _PERCENTS}
    parallel = fields.get("parallel", "")
    shares = not op and (numbers["ranks"] or 1) > 1
    if shares != bool(parallel) or (parallel and sharing_of(parallel).name not in WAYS):
        raise ValueError(f"parallel {parallel}: expected one of {', '.join(WAYS)} of a model on 2 or more ranks")
    row = msgspec.convert(fields | numbers | times | percents, Published)
    if op and (row.pass_ or row.context or row.batch or (row.ranks or 0) < 2 or row.mean_ms is None):
        raise ValueError(f"op {op}: expected 2 or more ranks and mean_ms, no pass, no context and no batch")
    if row.peak:
        bytes_of_peak(row.peak)
    elif not row.holds("time") and not row.holds("kernels"):
        raise ValueError("mean_ms is empty, and so are peak, top_kernel and matmul_percent")
    return row


def _count(name: str, text: str) -> int | None:
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name} {text}: expected a whole number, or nothing where it is unstated")
    return int(text) if text else None


def _number(name: str, text: str, expected: str, most: float = math.inf) -> float | None:
    """A finite number of 0 to `most`, None of an empty text. Raises ValueError with what is expected."""
    try:
        number = float(text) if text else None
    except ValueError:
        number = math.nan
    if number is not None and not (0 <= number <= most and math.isfinite(number)):
        raise ValueError(f"{name} {text}: expected {expected}")
    return number
