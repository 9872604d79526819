"""Peak memory and step time over how many blocks are recomputed together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import sqrt
from typing import Literal, NamedTuple

from cs336_tui.analysis.grouping import groups, telling
from cs336_tui.analysis.measures import Runs, largest, resident_bytes, tensor_bytes
from cs336_tui.analysis.merge import Result, ddof_of, grouped, measured, pooled
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import MemoryReport
from cs336_tui.export.footnotes import ACTIVATIONS_MEAN, Signs
from cs336_tui.export.layout import layout_column, not_timed, size_column, tables_of, time_column
from cs336_tui.export.results import TableError
from cs336_tui.export.tables import Column, Table, known
from cs336_tui.stats.quantities import NONE, ByteUnit, Notation, counted
from cs336_tui.stats.summaries import Summary

Mark = Literal["best", "least activations", "neighbour"]

_BASES = ("measured", "predicted")
"""Measures by which memory is compared, the most telling first. Not by RSS, of which tensors are but a part."""

_ROWS_BY = ("checkpoint", "nesting")


class _Choice(NamedTuple):
    """One number of blocks `k` that are recomputed together, 0 for none; `nested` if these lie in halves of halves."""

    k: int
    nested: bool = False

    @classmethod
    def of(cls, spec: CellSpec) -> _Choice:
        return cls(spec.checkpoint, spec.checkpoint > 0 and spec.nesting != "off")

    @property
    def words(self) -> str:
        return f"{self.k} nested" if self.nested else str(self.k)


_PLAIN = _Choice(0)


class _Point(NamedTuple):
    """Peaks of one choice, in bytes."""

    choice: _Choice
    summary: Summary | None
    predicted: int | None
    measured: int | None
    rss: int | None
    """Resident memory of the whole process."""
    predicted_activations: int | None
    recorded_activations: int | None


def checkpointing_tables(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    """As `cs336_tui.export.layout.WriteUp.make`: a row for each number of blocks, a table for all else that differs.
    Raises `TableError` where nothing is to be shown."""
    apart = telling(results, but=_ROWS_BY)
    kinds = list(groups(results, apart).values())
    kept = [members for members in kinds if any(result.spec.checkpoint for result in members)]
    if not kept:
        raise TableError("layout checkpointing: no cell recomputes activations; run some with --checkpoint 0,1,2,4")
    others = len(results) - sum(map(len, kept))
    left_out = (f"left out (no counterpart recomputes activations): {counted(others, 'cell')}",) if others else ()
    notation = Notation("ms", decimals)
    return tuple(table for members in kept for table in _tables(_once(members), apart, notation, left_out))


def _once(members: Sequence[Result]) -> Sequence[Result]:
    """The results without those of nested groups of 0 blocks, where the same model ran without nesting."""
    plain = any(not result.spec.checkpoint and result.spec.nesting == "off" for result in members)
    return [result for result in members if result.spec.checkpoint or result.spec.nesting == "off" or not plain]


def _tables(
    members: Sequence[Result], apart: Sequence[str], notation: Notation, notes: Sequence[str]
) -> tuple[Table, ...]:
    points = {choice: _point(choice, runs) for choice, runs in _by_choice(members).items()}
    basis, best = _best(list(points.values()))
    activations, least = _least_activations(list(points.values()))
    marks = _marks(points, best, least)
    signs = Signs()
    shown: dict[Mark, str] = {}
    if best is not None:
        shown["best"] = signs.of(f"least memory by {basis} peak{_and_alike(list(points.values()), basis, best)}")
        if any("neighbour" in found for found in marks.values()):
            shown["neighbour"] = signs.of(f"one block more or less than k = {best.words}")
    if least is not None and least != best:
        shown["least activations"] = signs.of(f"least {activations} activation peak, but not the least memory")

    def point(row: Runs) -> _Point:
        return points[_Choice.of(row.first.spec)]

    def peak(header: str, read: Callable[[_Point], int | None]) -> Column[Runs]:
        return size_column(f"{header} ({unit.name})", lambda row: read(point(row)), unit.bytes, unit.figure)

    def time(header: str, field: str, otherwise: Callable[[Runs], str]) -> Column[Runs]:
        return time_column(header, lambda row: point(row).summary, field, notation, otherwise)

    sizes = (size for point in points.values() for size in (point.predicted, point.measured, point.rss) if size)
    unit = ByteUnit.for_largest(max(sizes, default=0))
    base = points[_PLAIN].summary if _PLAIN in points else None
    nested = any(choice.nested for choice in points)
    has_rss = any(point.rss for point in points.values())
    columns = (
        layout_column("k", lambda row: point(row).choice.k),
        *(
            [layout_column("nesting", lambda row: "halves" if point(row).choice.nested else "off", left=True)]
            if nested
            else []
        ),
        Column(
            "mark",
            read=lambda row: ", ".join(marks.get(point(row).choice, ())),
            text=lambda row: "".join(shown[mark] for mark in marks.get(point(row).choice, ())),
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
    return tables_of(members, columns, caption, said, rows_by=_ROWS_BY, apart=apart, places=_ROWS_BY)


def _by_choice(results: Sequence[Result]) -> dict[_Choice, list[Result]]:
    return grouped(sorted(results, key=lambda result: _Choice.of(result.spec)), lambda result: _Choice.of(result.spec))


def _point(choice: _Choice, runs: Sequence[Result]) -> _Point:
    from cs336_tui.analysis.memory import activation_peak

    first, ran = runs[0], measured(runs)
    prediction = first.state.prediction_of(first.spec)
    recorded = next(filter(None, (run.state.content_of(MemoryReport, run.spec) for run in runs)), None)
    tensors = largest(map(tensor_bytes, ran))
    if tensors is None and recorded:
        tensors = recorded.peak_bytes
    return _Point(
        choice=choice,
        summary=pooled(runs, ddof_of(runs)),
        predicted=prediction.peak_bytes if prediction else None,
        measured=tensors,
        rss=None if tensors is not None else largest(resident_bytes(run.cell) for run in ran),
        predicted_activations=prediction.activation_peak_bytes if prediction else None,
        recorded_activations=activation_peak(recorded) if recorded else None,
    )


def _least_activations(points: Sequence[_Point]) -> tuple[str, _Choice | None]:
    """By what the activation peaks of all points are known, and the choice with the least; None where two have it."""
    for basis in ("recorded", "predicted"):
        sizes = {point.choice: getattr(point, f"{basis}_activations") for point in points}
        found = {choice: size for choice, size in sizes.items() if size is not None}
        if len(found) == len(points) > 1:
            least = min(found, key=lambda choice: found[choice])
            return basis, least if list(found.values()).count(found[least]) == 1 else None
    return "", None


def _best(points: Sequence[_Point]) -> tuple[str, _Choice | None]:
    """By what the points can be compared, and the choice with the least of it; of equals the fastest. None of a single
    point, or where nothing is known of all that were measured."""
    timed = [point for point in points if point.summary]
    for basis in _BASES:
        found = {point.choice: size for point in points if (size := getattr(point, basis))}
        if len(found) > 1 and all(point.choice in found for point in timed):
            times = {point.choice: point.summary.mean_s for point in timed if point.summary}
            return basis, min(found, key=lambda choice: (found[choice], times.get(choice, float("inf")), choice))
    return "", None


def _beside(best: _Choice) -> tuple[_Choice, ...]:
    """A block more and one less; less than one is the model as it is."""
    return tuple(_Choice(k, best.nested and k > 0) for k in (best.k - 1, best.k + 1))


def _marks(
    points: Mapping[_Choice, _Point], best: _Choice | None, least: _Choice | None
) -> dict[_Choice, tuple[Mark, ...]]:
    """The marks of each choice; `best` may have the least activations too."""
    marks: dict[_Choice, tuple[Mark, ...]] = {}
    if best is not None:
        marks |= {choice: ("neighbour",) for choice in _beside(best) if choice in points} | {best: ("best",)}
    if least is not None and least != best:
        marks[least] = (*marks.get(least, ()), "least activations")
    return marks


def _and_alike(points: Sequence[_Point], basis: str, best: _Choice) -> str:
    """Which other choices have the same peak, so that not memory chose between them."""
    sizes = {point.choice: getattr(point, basis) for point in points}
    if alike := [choice.words for choice in sorted(sizes) if choice != best and sizes[choice] == sizes[best]]:
        return f", which k = {' and '.join(alike)} has too; of these the fastest"
    return ""


def _notes(points: Mapping[_Choice, _Point], best: _Choice | None, layers: int) -> Iterator[str]:
    blocks = counted(layers, "block")
    yield (
        "k: each group of k consecutive blocks keeps only its input for backward; 0: every block keeps its activations"
    )
    if any(choice.nested for choice in points):
        yield (
            f"nesting halves: of N = {blocks} each half keeps what enters it, and so on down to groups "
            "of k: about log2(N/k) + 1 inputs at once, and N (1 + log2(N/k)) / 2 blocks computed again instead of N"
        )
    if any(point.measured for point in points.values()):
        yield ("measured peak: the device allocator's peak; where a run cannot count it, the memory report's")
    elif not any(point.rss for point in points.values()):
        yield f"measured peak {NONE}: no allocator counts it here, and no memory report was made"
    yield ACTIVATIONS_MEAN
    if any(point.rss for point in points.values()):
        yield "peak RSS: the whole process since its start, with the interpreter and torch; not tensors alone"
    if best is None:
        yield "the best k is not marked: peaks of tensors are not known, see cs336-tui estimate and cs336-tui memory"
    elif missing := [choice.words for choice in _beside(best) if 0 <= choice.k <= layers and choice not in points]:
        yield f"not run: k = {' and '.join(missing)}, beside the best"
    yield (
        f"of N = {blocks} N/k inputs are kept and the activations of k live at a time, which is least at "
        f"k = sqrt(N a / b) for inputs of a and activations of b bytes a block; sqrt(N) = {sqrt(layers):.1f} were they "
        "alike (Chen et al. 2016, arXiv:1604.06174)"
    )


def _slowdown(point: _Point, base: Summary | None) -> float | None:
    mean = point.summary.mean_s if point.summary else None
    return mean / base.mean_s if mean and base and base.mean_s else None
