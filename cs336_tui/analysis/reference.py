"""Reference points: published and own step times, peaks of memory and kernels beside a cell of the same model and pass.
They are not truth: published "fp32" is sometimes TF32, and some forwards include the loss. Each says in what it differs
from the cell."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import msgspec
import platformdirs

from cs336_tui.analysis.fields import device_label, shown_of
from cs336_tui.analysis.merge import Result, grouped
from cs336_tui.config.axis import UserError
from cs336_tui.config.reading import read_text
from cs336_tui.config.spec import CUSTOM_SIZE, EDITIONS, PASSES, PRECISIONS, CellSpec, SpecError, dims_of
from cs336_tui.config.variants import is_imported
from cs336_tui.events.events import EffectiveSettings
from cs336_tui.stats.quantities import count
from cs336_tui.stats.summaries import summarize

MIXED = "mixed"
"""A published precision that does not say mixed with what."""

_TEXTS = ("source", "device", "edition", "size", "pass", "precision")
_COUNTS = ("context", "batch", "warmup", "steps")
_TIMES = ("mean_ms", "std_ms")
_PERCENTS = ("top_percent", "matmul_percent")
_TIMED = ("source", "device", "edition", "size", "context", "batch", "pass", "precision", "warmup", "steps",
          "mean_ms", "std_ms", "note")  # fmt: skip
"""Columns that every file has."""
COLUMNS = (*_TIMED, "part", "peak", "top_kernel", "top_launches", *_PERCENTS)
"""Columns of the published and of a person's own file; what is unstated is empty."""
PARTS = ("forward", "loss", "backward", "optimizer", "forward+backward")
"""The parts of a step that a peak or kernels may be of."""
_PEAK = re.compile(r"([0-9]+(?:\.[0-9]+)?) (GB|GiB)")
_BYTES = {"GB": 10**9, "GiB": 2**30}

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
    own: bool = False

    @property
    def arch(self) -> str:
        return arch_of(self.edition)

    @property
    def peak_bytes(self) -> int | None:
        return peak_bytes(self.peak) if self.peak else None

    def holds(self, figure: Figure) -> bool:
        """True if it is a point of such a figure."""
        if figure == "kernels":
            return bool(self.top_kernel) or self.matmul_percent is not None
        return self.mean_ms is not None if figure == "time" else bool(self.peak)


def peak_bytes(text: str) -> int:
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
    return parse((files("cs336_tui") / "data" / "published.csv").read_text(encoding="utf-8"), "published.csv")


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
    for problem, names in (
        ("no column", [name for name in _TIMED if name not in header]),
        ("unknown column", [name for name in header if name not in COLUMNS]),
    ):
        if names:
            raise ReferenceFileError(f"{where}, line 1: {problem} {names[0]}: expected {', '.join(COLUMNS)}")
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
    for name, allowed in (("edition", EDITIONS), ("pass", PASSES), ("precision", (*PRECISIONS, MIXED))):
        if fields[name] not in allowed:
            raise ValueError(f"{name} {fields[name]}: expected one of {', '.join(allowed)}")
    if (part := fields.get("part", "")) and part not in PARTS:
        raise ValueError(f"part {part}: expected one of {', '.join(PARTS)}, or nothing for the whole pass")
    dims_of(fields["size"], fields["edition"])
    numbers = {name: _count(name, fields.get(name, "").strip()) for name in (*_COUNTS, "top_launches")}
    times = {name: _number(name, fields[name].strip(), "milliseconds") for name in _TIMES}
    percents = {name: _number(name, fields.get(name, "").strip(), "0 to 100", 100) for name in _PERCENTS}
    row = msgspec.convert(fields | numbers | times | percents, Published)
    if row.peak:
        peak_bytes(row.peak)
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


REMARK = 'published "fp32" is sometimes TF32 in truth, and some published forwards include the loss'
_VOCABULARY = 10_000


class Match(msgspec.Struct, frozen=True):
    """A reference point for a cell and what is to be said of it. `differences` counts the caveats that change its
    figure: context, batch, precision, architecture, vocabulary, and of a time warm-up or synchronisation, that differ
    or are unstated. Another edition and another number of steps change none."""

    row: Published
    caveats: tuple[str, ...]
    differences: int


class Added(msgspec.Struct, frozen=True):
    """The result of keeping results: the new rows, and a line for each cell that cannot be one."""

    rows: tuple[Published, ...]
    left_out: tuple[str, ...]


def matching(
    spec: CellSpec,
    in_force: EffectiveSettings | None = None,
    rows: Sequence[Published] | None = None,
    *,
    inexact_too: bool = False,
    figure: Figure = "time",
    any_pass: bool = False,
) -> tuple[Match, ...]:
    """The reference points of a figure for a cell, exact ones first, each with its caveats. A row's dimensions and pass
    must be the cell's, not the name of its size; `any_pass` lets another pass be a caveat. If no row is exact, those
    with the fewest differences are given; `inexact_too` gives all. `in_force` are the cell's effective settings, if
    known; `rows` are the published and own ones unless given."""
    rows = (*published(), *own()) if rows is None else rows
    found = []
    for row in filter(lambda row: row.holds(figure), rows):
        if (any_pass or _is_pass(row.pass_, spec)) and dims_of(row.size, row.edition, spec.vocab_size) == spec.dims:
            differences = tuple(_differences(spec, in_force, row, figure))
            found.append(Match(row, (*differences, *_remarks(spec, row)), len(differences)))
    if found and not inexact_too:
        fewest = min(match.differences for match in found)
        found = [match for match in found if match.differences == fewest]
    return tuple(sorted(found, key=lambda match: (match.differences, len(match.caveats))))


def _is_pass(published: str, spec: CellSpec) -> bool:
    """True if it is the cell's pass; a published forward may hold the loss, so it counts for both."""
    return published == spec.pass_ or (published, spec.pass_) == ("forward", "forward+loss")


def sentence(spec: CellSpec, mean_s: float, matches: Iterable[Match]) -> str:
    """``small forward fp32: 16.1 ms here; 15.8 published on a Hopper-like GPU; 44.4 on A100 (context 512 there)``."""
    cell = ", ".join((f"{spec.size_label} {spec.pass_} {spec.precision}", *spec.variants))
    parts = [f"{cell}: {_ms(mean_s * 1e3)} ms here"]
    said_published = False
    for match in matches:
        row = match.row
        word = f"noted as {row.source} " if row.own else "" if said_published else "published "
        said_published = said_published or not row.own
        caveats = f" ({'; '.join(match.caveats)})" if match.caveats else ""
        parts.append(f"{_ms(row.mean_ms or 0.0)} {word}on {row.device}{caveats}")
    return "; ".join(parts if len(parts) > 1 else [*parts, "nothing published for this size and pass"])


def add_from(results: Iterable[Result], source: str, path: Path | None = None) -> Added:
    """Keep the measured results, times and peaks, as one's own reference points under the title `source`; repeats
    become one row. Raises `ReferenceFileError` when the title is empty or taken, nothing can be kept, or the file
    cannot be read or written."""
    path = path or own_path()
    before = own(path)
    if not source.strip():
        raise ReferenceFileError("reference points need a title, such as: my laptop")
    if any(row.source == source for row in before):
        raise ReferenceFileError(f"reference points {source!r} exist already; choose another title")
    reasons = [(result, _why_not(result)) for result in results]
    left_out = tuple(f"{result.spec.title}: {why}" for result, why in reasons if why)
    kept = (result for result, why in reasons if not why)
    runs = grouped(kept, lambda result: (result.spec, device_label(result)))
    rows = tuple(_row(spec, device, source, cells) for (spec, device), cells in runs.items())
    if not rows:
        raise ReferenceFileError(f"nothing to keep: {left_out[0] if left_out else 'no cells'}")
    write((*before, *rows), path)
    return Added(rows, left_out)


def _why_not(result: Result) -> str | None:
    """Why the result cannot be a reference point, None when it can."""
    spec = result.spec
    if not result.is_measured:
        return result.ending
    if spec.size == CUSTOM_SIZE:
        return "a custom size has no name to find it by"
    if spec.vocab_size != _VOCABULARY:
        return f"reference points have vocabulary {_VOCABULARY:,}, not {spec.vocab_size:,}"
    if spec.arch != arch_of(spec.edition):
        return f"reference points of edition {spec.edition} are {arch_of(spec.edition)}, not {spec.arch}"
    if spec.variants:
        return f"reference points are of the reference model as it is written, not {', '.join(spec.variants)}"
    if spec.sync != "each-step":
        return f"reference points are synchronised each step, not {spec.sync}"
    return None


def _row(spec: CellSpec, device: str, source: str, cells: Sequence[Result]) -> Published:
    summary = summarize(time_s for result in cells for time_s in result.cell.step_times_s)
    assert summary.mean_s is not None, "only measured cells get here"
    peak = max((result.cell.finished.peak_allocated_bytes or 0 for result in cells if result.cell.finished), default=0)
    return Published(
        source=source,
        device=device,
        edition=spec.edition,
        size=spec.size,
        context=spec.context_length,
        batch=spec.batch_size,
        pass_=spec.pass_,
        precision=spec.precision,
        warmup=len(cells[0].cell.warmup_times_s) if spec.warmup_is_open else spec.warmup_steps,
        steps=cells[0].cell.running.n if spec.steps_are_open else spec.measure_steps,
        mean_ms=round(summary.mean_s * 1e3, 6),
        std_ms=None if summary.std_s is None else round(summary.std_s * 1e3, 6),
        note=f"{len(cells)} runs" if len(cells) > 1 else "",
        peak=f"{peak / 1e9:.6f} GB" if peak else "",
        own=True,
    )


def _differences(spec: CellSpec, in_force: EffectiveSettings | None, row: Published, figure: Figure) -> Iterator[str]:
    """Differences that change the figure, a caveat each."""
    settings: list[tuple[str, int | str, int | None]] = [
        ("context", spec.context_length, row.context),
        ("batch", spec.batch_size, row.batch),
    ]
    if figure == "time":
        settings.append(("warm-up", shown_of(spec, "warmup") if spec.warmup_is_open else spec.warmup_steps, row.warmup))
    for name, here, there in settings:
        if there is None:
            yield f"{name} unstated there"
        elif here != there:
            yield f"{name} {there} there, {here} here"
    if row.precision == MIXED and spec.precision.endswith("-mixed"):
        yield f"mixed with what is unstated there, {spec.precision} here"
    elif row.precision != spec.precision:
        yield f"{row.precision} there, {spec.precision} here"
    elif spec.precision == "fp32" and in_force and (in_force.allow_tf32 or in_force.matmul_precision != "highest"):
        yield "TF32 was in force here"
    if row.arch != spec.arch and not is_imported(spec.model):  # whose architecture is its own, whatever the spec says
        yield f"{row.arch} there, {spec.arch} here"
    yield from (f"{variant} here" for variant in spec.variants)
    if spec.vocab_size != _VOCABULARY:
        yield f"vocabulary {count(_VOCABULARY)} there, {count(spec.vocab_size)} here"
    if spec.sync != "each-step" and figure == "time":
        yield f"synchronised each step there, {spec.sync} here"


def _remarks(spec: CellSpec, row: Published) -> Iterator[str]:
    """Differences that change no figure, a caveat each."""
    if row.pass_ != spec.pass_:
        yield f"pass {row.pass_} there"
    if row.edition != spec.edition:
        called = f", where it is called {row.size}" if row.size != spec.size else ""
        yield f"edition {row.edition} there{called}"
    if row.steps is not None and (row.steps != spec.measure_steps or spec.steps_are_open):
        yield f"{row.steps} steps there"
    if row.note:
        yield row.note


def _ms(time_ms: float) -> str:
    """A time in ms, in three significant digits and never less than whole milliseconds."""
    return f"{time_ms:.{max(0, 2 - math.floor(math.log10(time_ms)))}f}" if time_ms > 0 else "0"
