"""Reference points: published and own step times, peaks of memory and kernels beside a cell of the same model and pass,
and times of collectives beside those of the same operation, size and number of ranks.
They are not truth: published "fp32" is sometimes TF32, and some forwards include the loss. Each says in what it differs
from the cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from cs336_tui.analysis.fields import device_label, shown_of
from cs336_tui.analysis.measures import allocated_bytes, largest
from cs336_tui.analysis.merge import Result, grouped
from cs336_tui.analysis.published import (
    MIXED,
    WAYS,
    Figure,
    Published,
    ReferenceFileError,
    arch_of,
    own,
    own_path,
    points,
    write,
)
from cs336_tui.config.spec import CUSTOM_SIZE, CellSpec, dims_of
from cs336_tui.config.values import bytes_of, sharing_of
from cs336_tui.config.variants import is_imported, short
from cs336_tui.events.events import EffectiveSettings
from cs336_tui.stats.quantities import count, counted, tenth_percent
from cs336_tui.stats.summaries import summarize

REMARK = 'published "fp32" is sometimes TF32 in truth, and some published forwards include the loss'
_VOCABULARY = 10_000
_NEAR = 0.08
"""Relative difference of sizes that are the same in another unit: 1 GiB is 7.4 % more than 1 GB."""


def remark_on(specs: Iterable[CellSpec]) -> str:
    """Notes on how published points differ from these cells."""
    if {spec.is_collective for spec in specs} == {True}:
        return "published times of collectives are seldom those of the slowest rank, from a barrier on"
    return REMARK


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
    figure: Figure = "time",
    any_pass: bool = False,
) -> tuple[Match, ...]:
    """The reference points of a figure for a cell, exact ones first, each with its caveats. A row's dimensions and pass
    must be the cell's, not the name of its size; `any_pass` lets another pass be a caveat. If no row is exact, those
    with the fewest differences are given. `in_force` are the cell's effective settings, if known; `rows` are the
    published and own ones unless given."""
    # A published forward may hold the loss, so it counts for both.
    passes = (spec.pass_, "forward") if spec.pass_ == "forward+loss" else (spec.pass_,)
    found = []
    for row in filter(lambda row: row.holds(figure), points(rows)):
        if _is_of(row, spec) and (spec.is_collective or any_pass or row.pass_ in passes):
            differences = tuple(_differences(spec, in_force, row, figure))
            found.append(Match(row, (*differences, *_remarks(spec, row)), len(differences)))
    fewest = min((match.differences for match in found), default=0)
    alike = (match for match in found if match.differences == fewest)
    return tuple(sorted(alike, key=lambda match: len(match.caveats)))


def _is_of(row: Published, spec: CellSpec) -> bool:
    """True if it is the cell's model on as many ranks, which share the step in the same kind of way; or its operation
    on its backend, of as many ranks and about its size: published MB may be MiB."""
    if spec.is_collective:
        same = (row.op, row.backend, row.ranks) == (spec.collective, spec.backend_in_use, spec.ranks)
        return same and math.isclose(bytes_of(row.size), bytes_of(spec.size), rel_tol=_NEAR)
    if row.op or (row.ranks or 1) != spec.ranks or dims_of(row.size, row.edition, spec.vocab_size) != spec.dims:
        return False
    return spec.ranks == 1 or WAYS[sharing_of(row.parallel).name] == _way(spec)


def _way(spec: CellSpec) -> str:
    """The kind of way in which the cell's ranks share a step."""
    name = sharing_of(spec.parallel).name
    if is_imported(name) and "fsdp" in short(name).lower():
        return "FSDP"
    if is_imported(name) or name == "ddp":
        return "sharded optimizer" if is_imported(spec.optimizer) else "data parallel"
    return WAYS[name]


def _variants(spec: CellSpec) -> tuple[str, ...]:
    """Variants of the model and of how it is run, but not those of several ranks."""
    whole = msgspec.structs.replace(spec, ranks=1, parallel="none", batch_is="per-rank", backend="auto")
    if _way(spec) == "sharded optimizer":
        whole = msgspec.structs.replace(whole, optimizer="adamw")
    return whole.variants


def sentence(spec: CellSpec, mean_s: float, matches: Iterable[Match]) -> str:
    """``small forward fp32: 16.1 ms here; 15.8 published on a Hopper-like GPU; 44.4 on A100 (context 512 there)``."""
    named = (f"{spec.size_label} {spec.pass_} {spec.precision}", *spec.variants)
    cell = spec.title if spec.is_collective else ", ".join(named)
    parts = [f"{cell}: {_ms(mean_s * 1e3)} ms here"]
    said_published = False
    for match in matches:
        row = match.row
        word = f"noted as {row.source} " if row.own else "" if said_published else "published "
        said_published = said_published or not row.own
        caveats = f" ({'; '.join(match.caveats)})" if match.caveats else ""
        parts.append(f"{_ms(row.mean_ms or 0.0)} {word}on {row.device}{caveats}")
    return "; ".join(parts if len(parts) > 1 else [*parts, nothing_published(spec)])


def nothing_published(spec: CellSpec) -> str:
    ranks = "" if spec.ranks == 1 else ", number of ranks and way to share a step"
    alike = "operation, backend, size and number of ranks" if spec.is_collective else f"size and pass{ranks}"
    return f"nothing published for this {alike}"


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
    if spec.is_collective:
        return None
    if spec.size == CUSTOM_SIZE:
        return "a custom size has no name to find it by"
    if spec.vocab_size != _VOCABULARY:
        return f"reference points have vocabulary {_VOCABULARY:,}, not {spec.vocab_size:,}"
    if spec.arch != arch_of(spec.edition):
        return f"reference points of edition {spec.edition} are {arch_of(spec.edition)}, not {spec.arch}"
    if is_imported(spec.parallel):
        return f"reference points are of torch's own ways to share a step, not {short(spec.parallel)}"
    if variants := _variants(spec):
        return f"reference points are of the reference model as it is written, not {', '.join(variants)}"
    if spec.sync != "each-step":
        return f"reference points are synchronised each step, not {spec.sync}"
    return None


def _row(spec: CellSpec, device: str, source: str, cells: Sequence[Result]) -> Published:
    summary = summarize(time_s for result in cells for time_s in result.cell.step_times_s)
    assert summary.mean_s is not None, "only measured cells get here"
    peak = largest(allocated_bytes(result.cell) for result in cells)
    has_model = not spec.is_collective
    return Published(
        source=source,
        device=device,
        edition=spec.edition,
        size=spec.size,
        context=spec.context_length if has_model else None,
        batch=spec.rank_batch_size if has_model else None,
        pass_=spec.pass_ if has_model else "",
        precision=spec.precision,
        warmup=len(cells[0].cell.warmup_times_s) if spec.warmup_is_open else spec.warmup_steps,
        steps=cells[0].cell.running.n if spec.steps_are_open else spec.measure_steps,
        mean_ms=round(summary.mean_s * 1e3, 6),
        std_ms=None if summary.std_s is None else round(summary.std_s * 1e3, 6),
        note=f"{len(cells)} runs" if len(cells) > 1 else "",
        peak=f"{peak / 1e9:.6f} GB" if peak is not None and has_model else "",
        op="" if has_model else spec.collective,
        backend="" if spec.ranks == 1 else spec.backend_in_use,
        ranks=None if spec.ranks == 1 else spec.ranks,
        parallel=spec.parallel if has_model and spec.ranks > 1 else "",
        own=True,
    )


def _differences(spec: CellSpec, in_force: EffectiveSettings | None, row: Published, figure: Figure) -> Iterator[str]:
    """Differences that change the figure, a caveat each."""
    settings: list[tuple[str, int | str, int | str | None]] = [
        ("context", spec.context_length, row.context),
        ("batch" if spec.ranks == 1 else "batch of a rank", spec.rank_batch_size, row.batch),
    ]
    if row.op:
        sizes = {bytes_of(row.size), bytes_of(spec.size)}
        settings = [("size", spec.size, row.size)] if len(sizes) > 1 else []
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
    if row.op:
        return
    if row.arch != spec.arch and not is_imported(spec.model):  # whose architecture is its own, whatever the spec says
        yield f"{row.arch} there, {spec.arch} here"
    yield from (f"{variant} here" for variant in _variants(spec))
    if spec.ranks > 1 and row.backend and row.backend != spec.backend_in_use:
        yield f"{row.backend} there, {spec.backend_in_use} here"
    if spec.vocab_size != _VOCABULARY:
        yield f"vocabulary {count(_VOCABULARY)} there, {count(spec.vocab_size)} here"
    if spec.sync != "each-step" and figure == "time":
        yield f"synchronised each step there, {spec.sync} here"


def _remarks(spec: CellSpec, row: Published) -> Iterator[str]:
    """Differences that change no figure, a caveat each."""
    if row.parallel and row.parallel != spec.parallel:
        way = short(spec.parallel) if is_imported(spec.parallel) else spec.parallel
        yield f"{row.parallel} there, {way} here"
    if row.communication_ms is not None and row.mean_ms:
        share = tenth_percent(row.communication_ms / row.mean_ms)
        yield f"of it {row.communication_ms:g} ms communication after backward there ({share})"
    if row.pass_ != spec.pass_ and not row.op:
        yield f"pass {row.pass_} there"
    if row.edition != spec.edition and not row.op:
        called = f", where it is called {row.size}" if row.size != spec.size else ""
        yield f"edition {row.edition} there{called}"
    if row.steps is not None and (row.steps != spec.measure_steps or spec.steps_are_open):
        yield f"{counted(row.steps, 'step')} there"
    if row.note:
        yield row.note


def _ms(time_ms: float) -> str:
    """A time in ms, in three significant digits and never less than whole milliseconds."""
    return f"{time_ms:.{max(0, 2 - math.floor(math.log10(time_ms)))}f}" if time_ms > 0 else "0"
