"""Peak memory and step time over how many blocks are recomputed together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import sqrt
from typing import Literal, NamedTuple

from cs336_tui.analysis.grouping import groups, telling
from cs336_tui.analysis.merge import Result, ddof_of, measured, pooled
from cs336_tui.events.reports import MemoryReport
from cs336_tui.export.estimates import ACTIVATIONS_MEAN
from cs336_tui.export.footnotes import Signs
from cs336_tui.export.layout import Row, layout_column, not_timed, size_column, tables_of, time_column
from cs336_tui.export.results import TableError
from cs336_tui.export.tables import Column, Table, known
from cs336_tui.stats.quantities import NONE, ByteUnit, Notation, counted
from cs336_tui.stats.summaries import Summary

Mark = Literal["best", "least activations", "neighbour"]

_BASES = ("measured", "predicted")
"""Measures by which memory is compared, the most telling first. Not by RSS, of which tensors are but a part."""


class _Point(NamedTuple):
    """One number of blocks `k` that are recomputed together, 0 for none. Peaks in bytes."""

    k: int
    summary: Summary | None
    predicted: int | None
    measured: int | None
    rss: int | None
    """Of the whole process."""
    predicted_activations: int | None
    recorded_activations: int | None


def checkpointing_tables(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    """As `cs336_tui.export.layout.Layout.make`: a row for each number of blocks, a table for all else that differs.
    Raises `TableError` where nothing is to be shown."""
    apart = telling(results, but=("checkpoint",))
    kinds = list(groups(results, apart).values())
    kept = [members for members in kinds if any(result.spec.checkpoint for result in members)]
    if not kept:
        raise TableError("layout checkpointing: no cell recomputes activations; run some with --checkpoint 0,1,2,4")
    others = len(results) - sum(map(len, kept))
    left_out = (f"left out, as nothing like them recomputes activations: {counted(others, 'cell')}",) if others else ()
    return tuple(table for members in kept for table in _tables(members, apart, Notation("ms", decimals), left_out))


def _tables(
    members: Sequence[Result], apart: Sequence[str], notation: Notation, notes: Sequence[str]
) -> tuple[Table, ...]:
    points = {runs[0].spec.checkpoint: _point(runs) for runs in groups(members, ("checkpoint",)).values()}
    basis, best = _best(list(points.values()))
    activations, least = _least_activations(list(points.values()))
    marks = _marks(points, best, least)
    signs = Signs()
    shown: dict[Mark, str] = {}
    if best is not None:
        shown["best"] = signs.of(f"least memory by {basis} peak{_and_alike(list(points.values()), basis, best)}")
        if any("neighbour" in found for found in marks.values()):
            shown["neighbour"] = signs.of(f"one block more or less than k = {best}")
    if least is not None and least != best:
        shown["least activations"] = signs.of(f"least {activations} activation peak, but not the least memory")

    def point(row: Row) -> _Point:
        return points[row.first.spec.checkpoint]

    def peak(header: str, read: Callable[[_Point], int | None]) -> Column[Row]:
        return size_column(f"{header} ({unit.name})", lambda row: read(point(row)), unit.bytes, unit.figure)

    def time(header: str, field: str, otherwise: Callable[[Row], str]) -> Column[Row]:
        return time_column(header, lambda row: point(row).summary, field, notation, otherwise)

    sizes = (size for point in points.values() for size in (point.predicted, point.measured, point.rss) if size)
    unit = ByteUnit.for_largest(max(sizes, default=0))
    base = points[0].summary if 0 in points else None
    has_rss = any(point.rss for point in points.values())
    columns = (
        layout_column("k", lambda row: point(row).k),
        Column(
            "mark",
            read=lambda row: ", ".join(marks.get(point(row).k, ())),
            text=lambda row: "".join(shown[mark] for mark in marks.get(point(row).k, ())),
        ),
        peak("predicted peak", lambda point: point.predicted),
        peak("measured peak", lambda point: point.measured),
        peak("predicted activation peak", lambda point: point.predicted_activations),
        peak("recorded activation peak", lambda point: point.recorded_activations),
        *([peak("peak RSS", lambda point: point.rss)] if has_rss else []),
        time("step time (ms)", "mean_s", lambda row: row.first.ending),
        time("std (ms)", "std_s", lambda _: NONE),
        Column("time / k = 0", read=lambda row: _slowdown(point(row), base), show=known("{:.2f}", NONE)),
    )
    said = (*signs.notes, *_notes(points, best, members[0].spec.num_layers), *notes, *not_timed(members))
    caption = "Activations recomputed in groups of k blocks"
    return tables_of(members, columns, caption, said, rows_by=("checkpoint",), apart=apart, places=("checkpoint",))


def _point(runs: Sequence[Result]) -> _Point:
    from cs336_tui.analysis.memory import activation_peak

    first = runs[0]
    prediction = first.state.prediction_of(first.spec)
    over = [run.cell.finished for run in measured(runs) if run.cell.finished]
    allocated = max((found.peak_allocated_bytes for found in over if found.peak_allocated_bytes), default=None)
    recorded = _recorded(runs)
    tensors = allocated or (recorded.peak_bytes if recorded else None)
    rss = max((found.peak_rss_bytes for found in over if found.peak_rss_bytes), default=None)
    return _Point(
        k=first.spec.checkpoint,
        summary=pooled(runs, ddof_of(runs)),
        predicted=prediction.peak_bytes if prediction else None,
        measured=tensors,
        rss=None if tensors or first.spec.device.startswith("cuda") else rss,
        predicted_activations=prediction.activation_peak_bytes if prediction else None,
        recorded_activations=activation_peak(recorded) if recorded else None,
    )


def _recorded(runs: Sequence[Result]) -> MemoryReport | None:
    """A memory report on one of the runs' cells."""
    for run in runs:
        report = run.state.report_of("memory", run.spec)
        if report and isinstance(report.content, MemoryReport):
            return report.content
    return None


def _least_activations(points: Sequence[_Point]) -> tuple[str, int | None]:
    """By what the activation peaks of all points are known, and the k with the least; None where two have it."""
    for basis in ("recorded", "predicted"):
        found = {point.k: size for point in points if (size := getattr(point, f"{basis}_activations")) is not None}
        if len(found) == len(points) > 1:
            least = min(found, key=lambda k: found[k])
            return basis, least if list(found.values()).count(found[least]) == 1 else None
    return "", None


def _best(points: Sequence[_Point]) -> tuple[str, int | None]:
    """By what the points can be compared, and the k with the least of it; of equals the fastest. None of a single
    point, or where nothing is known of all that were measured."""
    timed = [point for point in points if point.summary]
    for basis in _BASES:
        found = {point.k: size for point in points if (size := getattr(point, basis))}
        if len(found) > 1 and all(point.k in found for point in timed):
            times = {point.k: point.summary.mean_s for point in timed if point.summary}
            return basis, min(found, key=lambda k: (found[k], times.get(k, float("inf")), k))
    return "", None


def _marks(points: Mapping[int, _Point], best: int | None, least: int | None) -> dict[int, tuple[Mark, ...]]:
    """The marks of each k; `best` may have the least activations too."""
    marks: dict[int, tuple[Mark, ...]] = {}
    if best is not None:
        marks |= {k: ("neighbour",) for k in (best - 1, best + 1) if k in points} | {best: ("best",)}
    if least is not None and least != best:
        marks[least] = (*marks.get(least, ()), "least activations")
    return marks


def _and_alike(points: Sequence[_Point], basis: str, best: int) -> str:
    """Which other k have the same peak, so that not memory chose between them."""
    sizes = {point.k: getattr(point, basis) for point in points}
    if alike := [k for k, size in sizes.items() if k != best and size == sizes[best]]:
        return f", which k = {' and '.join(map(str, sorted(alike)))} has too; of these the fastest"
    return ""


def _notes(points: Mapping[int, _Point], best: int | None, layers: int) -> Iterator[str]:
    yield "k: so many consecutive blocks keep for backward only what enters them; 0: all blocks keep their activations"
    if any(point.measured for point in points.values()):
        yield (
            "measured peak: what the device's allocator had given out at most; where a run cannot count that, as a "
            "memory report recorded it"
        )
    elif not any(point.rss for point in points.values()):
        yield f"measured peak {NONE}: no allocator counts it here, and no memory report was made"
    yield ACTIVATIONS_MEAN
    if any(point.rss for point in points.values()):
        yield "peak RSS: of the whole process since it began, the interpreter and torch included; not of tensors alone"
    if best is None:
        yield "the best k is not marked: peaks of tensors are not known, see cs336-tui estimate and cs336-tui memory"
    elif missing := [k for k in (best - 1, best + 1) if 0 <= k <= layers and k not in points]:
        yield f"not run: k = {' and '.join(map(str, missing))}, beside the best"
    yield (
        f"of N = {layers} blocks N/k inputs are kept and the activations of k live at a time, which is least at "
        f"k = sqrt(N a / b) for inputs of a and activations of b bytes a block; sqrt(N) = {sqrt(layers):.1f} were they "
        "alike (Chen et al. 2016, arXiv:1604.06174)"
    )


def _slowdown(point: _Point, base: Summary | None) -> float | None:
    mean = point.summary.mean_s if point.summary else None
    return mean / base.mean_s if mean and base and base.mean_s else None
