"""Reference points: step times that other people published, and one's own, beside a cell of the same model and pass.

They are points to look at, not truth: published "fp32" is sometimes TF32, and some forwards include the loss. So a
row that differs from the cell in anything says in what.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from cs336_tui.analysis.fields import device_label, size_label
from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.reference_file import (
    MIXED,
    Published,
    ReferenceFileError,
    arch_of,
    own,
    own_path,
    published,
    write,
)
from cs336_tui.config.sizes import dims_of
from cs336_tui.config.spec import CUSTOM_SIZE, CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.events.events import InForce
from cs336_tui.stats.quantities import count
from cs336_tui.stats.summaries import summarize

__all__ = [
    "REMARK",
    "Added",
    "Match",
    "Published",
    "ReferenceFileError",
    "add_from",
    "matching",
    "own",
    "own_path",
    "published",
    "sentence",
]

REMARK = 'published "fp32" is sometimes TF32 in truth, and some published forwards include the loss'
_VOCABULARY = 10_000


class Match(msgspec.Struct, frozen=True):
    """A reference point for a cell and what is to be said of it.

    `differences` counts the caveats that change a time: context, batch, precision, warm-up, architecture, vocabulary
    or synchronisation that differ or are unstated. Another edition and another number of steps change none.
    """

    row: Published
    caveats: tuple[str, ...]
    differences: int

    @property
    def is_exact(self) -> bool:
        return self.differences == 0


class Added(msgspec.Struct, frozen=True):
    """What became of results that were to be kept: the new rows, and a line for each cell that cannot be one."""

    rows: tuple[Published, ...]
    left_out: tuple[str, ...]


def matching(
    spec: CellSpec,
    in_force: InForce | None = None,
    rows: Sequence[Published] | None = None,
    *,
    inexact_too: bool = False,
) -> tuple[Match, ...]:
    """The reference points for a cell, exact ones first, each with its caveats.

    A row's dimensions and pass must be the cell's; what its size is called need not be (2025's 2.7B is 2026's xl). If
    no row is exact, those with the fewest differences are given; `inexact_too` gives all in any case. `in_force` is
    what the cell really ran in, if that is known. `rows` are the published and a person's own unless given.
    """
    rows = (*published(), *own()) if rows is None else rows
    found = [_match(spec, in_force, row) for row in rows if row.pass_ == spec.pass_ and _same_dims(spec, row)]
    if found and not inexact_too:
        fewest = min(match.differences for match in found)
        found = [match for match in found if match.differences == fewest]
    return tuple(sorted(found, key=lambda match: (match.differences, len(match.caveats))))


def sentence(spec: CellSpec, mean_s: float, matches: Iterable[Match]) -> str:
    """``small forward fp32: 16.1 ms here; 15.8 published on a Hopper-like GPU; 44.4 on A100 (context 512 there)``."""
    cell = ", ".join((f"{size_label(spec)} {spec.pass_} {spec.precision}", *spec.variants))
    parts = [f"{cell}: {_ms(mean_s * 1e3)} ms here"]
    said_published = False
    for match in matches:
        row = match.row
        word = f"noted as {row.source} " if row.own else "" if said_published else "published "
        said_published = said_published or not row.own
        caveats = f" ({'; '.join(match.caveats)})" if match.caveats else ""
        parts.append(f"{_ms(row.mean_ms)} {word}on {row.device}{caveats}")
    return "; ".join(parts if len(parts) > 1 else [*parts, "nothing published for this size and pass"])


def add_from(results: Iterable[Result], source: str, path: Path | None = None) -> Added:
    """Keep the measured results as one's own reference points under the title `source`; repeats become one row.

    What the columns of the file cannot say is left out. Raises `ReferenceFileError` when the title is empty or taken,
    nothing can be kept, or the file cannot be read or written; it is then as it was.
    """
    path = path or own_path()
    before = own(path)
    if not source.strip():
        raise ReferenceFileError("reference points need a title, such as: my laptop")
    if any(row.source == source for row in before):
        raise ReferenceFileError(f"reference points {source!r} exist already; choose another title")
    left_out: list[str] = []
    runs: dict[tuple[CellSpec, str], list[Result]] = {}
    for result in results:
        if why := _why_not(result):
            left_out.append(f"{result.spec.title}: {why}")
        else:
            runs.setdefault((result.spec, device_label(result)), []).append(result)
    rows = tuple(_row(spec, device, source, cells) for (spec, device), cells in runs.items())
    if not rows:
        raise ReferenceFileError(f"nothing to keep: {left_out[0] if left_out else 'no cells'}")
    write((*before, *rows), path)
    return Added(rows, tuple(left_out))


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
    return Published(
        source=source,
        device=device,
        edition=spec.edition,
        size=spec.size,
        context=spec.context_length,
        batch=spec.batch_size,
        pass_=spec.pass_,
        precision=spec.precision,
        warmup=len(cells[0].cell.warmup_times_s) if spec.warmup_auto else spec.warmup_steps,
        steps=spec.measure_steps if spec.steps_auto is None else cells[0].cell.running.n,
        mean_ms=round(summary.mean_s * 1e3, 6),
        std_ms=None if summary.std_s is None else round(summary.std_s * 1e3, 6),
        note=f"{len(cells)} runs" if len(cells) > 1 else "",
        own=True,
    )


def _same_dims(spec: CellSpec, row: Published) -> bool:
    return dims_of(row.size, row.edition, spec.vocab_size) == spec.dims


def _match(spec: CellSpec, in_force: InForce | None, row: Published) -> Match:
    differences = tuple(_differences(spec, in_force, row))
    return Match(row, (*differences, *_remarks(spec, row)), len(differences))


def _differences(spec: CellSpec, in_force: InForce | None, row: Published) -> Iterator[str]:
    """What would change a time, a caveat each."""
    for name, here, there in (
        ("context", spec.context_length, row.context),
        ("batch", spec.batch_size, row.batch),
        ("warm-up", "auto" if spec.warmup_auto else spec.warmup_steps, row.warmup),
    ):
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
    if spec.sync != "each-step":
        yield f"synchronised each step there, {spec.sync} here"


def _remarks(spec: CellSpec, row: Published) -> Iterator[str]:
    """What should change no time but is to be known."""
    if row.edition != spec.edition:
        called = f", where it is called {row.size}" if row.size != spec.size else ""
        yield f"edition {row.edition} there{called}"
    if row.steps is not None and (row.steps != spec.measure_steps or spec.steps_auto is not None):
        yield f"{row.steps} steps there"
    if row.note:
        yield row.note


def _ms(time_ms: float) -> str:
    """A time in ms, in three significant digits and never less than whole milliseconds."""
    return f"{time_ms:.{max(0, 2 - math.floor(math.log10(time_ms)))}f}" if time_ms > 0 else "0"
