"""Tables of variants of a step: as it is written beside torch.compile's, the optimizer's share of it, and its peak
memory and time over how many blocks are recomputed together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import sqrt
from typing import Literal, NamedTuple

import msgspec

from cs336_tui.analysis.fields import FIELDS, values
from cs336_tui.analysis.grouping import groups, label, telling
from cs336_tui.analysis.measures import Runs, allocated_bytes, largest, mean_of, resident_bytes, tensor_bytes
from cs336_tui.analysis.merge import Result, ddof_of, grouped, measured, pooled, runs_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import ModelPrepared
from cs336_tui.events.reports import MemoryReport
from cs336_tui.export.subjects.layout import (
    PLACES,
    Kept,
    Layout,
    Maker,
    layout_column,
    not_timed,
    setting,
    share_column,
    size_column,
    tables_of,
    time_column,
    value,
)
from cs336_tui.export.subjects.results import TableError
from cs336_tui.export.writing.footnotes import ACTIVATIONS_MEAN, Signs
from cs336_tui.export.writing.tables import Column, Source, Table, Value, attributes, known
from cs336_tui.stats.quantities import NONE, UNKNOWN, ByteUnit, Notation, counted
from cs336_tui.stats.ratio import LEVEL, Ratio, ratio_of
from cs336_tui.stats.summaries import Summary

_WRITTEN = "off"


def compiled_tables(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    """As `subjects.layout.WriteUp.make`: for each mode and place a table with a row for each pass, and for
    whatever else differs; of a model that was run in this mode, beside the same as it is written.

    Raises `TableError` where nothing was compiled.
    """
    modes = [mode for mode in values(results, "compile") if mode != _WRITTEN]
    if not modes:
        raise TableError("layout compiled: no cell ran under torch.compile; run with --compile off,default")
    names = ("size", *telling(results, but=("size", "pass", "compile", *PLACES)))
    apart = telling(results, but=("pass", "compile", *names))
    tables: list[Table] = []
    for mode in modes:
        for members in groups(results, apart).values():
            rows = groups([each for each in members if each.spec.compile in (_WRITTEN, mode)], (*names, "pass"))
            kept = [each for row in rows.values() if any(_is(mode, run) for run in row) for each in row]
            if kept:
                tables += _compiled_tables(kept, mode, names, apart, Notation("ms", decimals))
    return tuple(tables)


def _compiled_tables(
    results: Sequence[Result], mode: str, names: Sequence[str], apart: Sequence[str], notation: Notation
) -> Iterator[Table]:
    """The table of one mode; of everything else that is in no column all results show the same."""

    def prepared(row: Runs) -> list[ModelPrepared]:
        """The result of compiling, of each run that got so far."""
        return [run.cell.prepared for run in _of(row, mode) if run.cell.prepared is not None]

    columns = (
        *(setting(FIELDS[key].title, key) for key in (*names, "pass")),
        *_time("as written", _WRITTEN, notation),
        *_time("compiled", mode, notation),
        Column("speed-up", text=partial(_shown, mode)),
        lambda row: attributes(_speedup(row, mode), **_BOUNDS),
        Column("compile (s)", read=lambda row: mean_of(each.compile_s for each in prepared(row)), show=known("{:.1f}")),
        layout_column("graphs", lambda row: max((each.graphs for each in prepared(row)), default=None)),
        layout_column(
            "graph breaks", lambda row: max((len(each.graph_breaks) for each in prepared(row)), default=None)
        ),
    )
    caption, rows_by = f"Step time as written and under torch.compile, mode {mode}", (*names, "pass")
    notes = tuple(_compiled_notes(results, mode, rows_by))
    for table in tables_of(results, columns, caption, notes, rows_by=rows_by, apart=apart, places=("compile",)):
        records = tuple({"compile": mode, **record} for record in table.records)
        named = f"{mode}-{table.label}" if table.label else mode
        yield msgspec.structs.replace(table, records=records, label=named)


def _is(mode: str, result: Result) -> bool:
    return result.spec.compile == mode


def _of(row: Runs, mode: str) -> list[Result]:
    return [run for run in row.runs if _is(mode, run)]


def _time(header: str, mode: str, notation: Notation) -> Iterator[Source[Runs]]:
    """Mean and std of the runs in this mode, of a row that has those of both; numbers apart for programs."""

    def summary(row: Runs) -> Summary | None:
        part = row.only(partial(_is, mode))
        return part.summary if part else None

    def show(row: Runs) -> str:
        found = summary(row)
        return notation.mean_and_std(found) if found else next((run.ending for run in _of(row, mode)), "not run")

    def milliseconds(row: Runs) -> dict[str, Value]:
        times_s = attributes(summary(row), "mean_s", "std_s")
        mean, std = (None if time_s is None else time_s * 1e3 for time_s in times_s.values())
        return {f"{header} mean (ms)": mean, f"{header} std (ms)": std}

    yield Column(f"{header} ({notation.symbol})", text=show)
    yield milliseconds


_BOUNDS = {"speed-up": "ratio", "speed-up low": "low", "speed-up high": "high"}


def _speedup(row: Runs, mode: str) -> Ratio | None:
    """Mean time as written over mean time compiled."""
    return ratio_of(runs_of(_of(row, _WRITTEN)), runs_of(_of(row, mode)))


def _shown(mode: str, row: Runs) -> str:
    ratio = _speedup(row, mode)
    return f"{ratio.ratio:.3g} {ratio.bounds('.3g')}" if ratio else UNKNOWN


def _compiled_notes(results: Sequence[Result], mode: str, named: Sequence[str]) -> Iterator[str]:
    yield "times: mean ± std in ms a step; without compile time, unless a line below says so"
    yield (
        "speed-up: mean time as written over mean time compiled, more is faster; "
        f"{LEVEL * 100:g} % confidence interval in brackets"
    )
    yield (
        "compile (s): from the first call until no call compiled any more, from empty caches unless "
        "TORCHINDUCTOR_CACHE_DIR names one; the model is compiled, loss and optimizer are not"
    )
    if any(_is(mode, each) and not each.spec.warmup_steps for each in measured(results)):
        yield "warm-up 0: the first step as written is cold; a compiled one is not, compiling has run the model"
    if not all(any(_is(_WRITTEN, run) for run in row) for row in groups(results, named).values()):
        yield f"no speed-up without a run as written; add --compile {_WRITTEN},{mode}"
    reasons: dict[str, None] = {}
    for result in results:
        prepared = result.cell.prepared
        if _is(mode, result) and prepared is not None:
            reasons |= {f"graph break in {label(result, named)}: {why}": None for why in prepared.graph_breaks}
    yield from reasons
    for result in measured(results):
        if result.cell.finished and (times := result.cell.finished.recompilations):
            yield f"{label(result, named)}: compiled again {times} time{'s' * (times > 1)} during warm-up and measuring"
    yield from not_timed(results)


def _with_optimizer(results: Sequence[Result]) -> Kept:
    """The training steps. Raises `TableError` where there are none."""
    kept = [result for result in results if result.spec.pass_ == "train-step"]
    if not kept:
        raise TableError("layout optimizers: no cell with pass train-step, the one that has an optimizer")
    notes = [_FOREACH] if any(result.spec.optimizer in ("adamw", "adamw-foreach") for result in kept) else []
    if any(tensor_bytes(result) is not None and allocated_bytes(result.cell) is None for result in measured(kept)):
        notes.append("peak allocated: where a run cannot count it, the memory report's")
    if others := len(results) - len(kept):
        notes.append(f"left out (no optimizer): {others} of other passes")
    return Kept(kept, notes)


_FOREACH = (
    "adamw is what torch chooses by itself: foreach on CUDA, for-loop elsewhere; foreach computes on lists of tensors "
    "and needs temporaries as large as the parameters, fused needs none"
)


def _of_phase(field: str) -> Maker:
    def missing(runs: Runs) -> str:
        return UNKNOWN if runs.summary else runs.first.ending if field == "mean_s" else NONE

    return lambda header, notation: time_column(header, lambda runs: runs.phase("optimizer"), field, notation, missing)


def _share_of(phase: str) -> Maker:
    def read(runs: Runs) -> float | None:
        times_s, steps_s = runs.phase_times_s(phase), runs.times_s
        # A step timed without its phases would make the share too small.
        return sum(times_s) / sum(steps_s) if times_s and len(times_s) == len(steps_s) else None

    return lambda header, _: share_column(header, read, lambda runs: UNKNOWN if runs.summary else NONE)


def _in_force(runs: Runs) -> str:
    said = {run.cell.in_force.optimizer for run in runs.runs if run.cell.in_force and run.cell.in_force.optimizer}
    return ", ".join(sorted(said)) or UNKNOWN


OPTIMIZERS = Layout(
    "The optimizer's share of a training step",
    ("size", "optimizer"),
    {
        "size": "size",
        "optimizer": "optimizer",
        "in force": value(_in_force, left=True),
        "optimizer (ms)": _of_phase("mean_s"),
        "std (ms)": _of_phase("std_s"),
        "step (ms)": "mean",
        "step std (ms)": "std",
        "share of step (%)": _share_of("optimizer"),
        "zero_grad (%)": _share_of("zero_grad"),
        "peak allocated (GB)": lambda header, _: size_column(
            header, lambda runs: largest(map(tensor_bytes, runs.counted)), otherwise=lambda _: UNKNOWN
        ),
    },
    (
        "optimizer: the phase that updates the parameters, mean over the measured steps; share of step: all steps' "
        "optimizer phases over all steps' times",
    ),
    keep=_with_optimizer,
    optional=("peak allocated (GB)",),
)
"""A row for each size and optimizer, a table for all else that differs."""


Mark = Literal["best", "least activations", "neighbour"]

_BASES = ("measured peak", "predicted peak")
"""Peaks by which memory is compared, the most telling first. Not by RSS, of which tensors are but a part."""
_ACTIVATIONS = ("recorded activation peak", "predicted activation peak")
_RSS = "peak RSS"
"""Resident memory of the whole process."""
_PEAKS = ("predicted peak", "measured peak", "predicted activation peak", "recorded activation peak", _RSS)
"""Columns of peaks, by their headings without a unit."""

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


_Peaks = Mapping[_Choice, Mapping[str, int | None]]
"""Bytes of each choice, by `_PEAKS`."""


def checkpointing_tables(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    """As `subjects.layout.WriteUp.make`: a row for each number of blocks, a table for all else that differs.
    Raises `TableError` where nothing is to be shown."""
    apart = telling(results, but=_ROWS_BY)
    kinds = list(groups(results, apart).values())
    kept = [members for members in kinds if any(result.spec.checkpoint for result in members)]
    if not kept:
        raise TableError("layout checkpointing: no cell recomputes activations; run some with --checkpoint 0,1,2,4")
    others = len(results) - sum(map(len, kept))
    left_out = (f"left out (no counterpart recomputes activations): {counted(others, 'cell')}",) if others else ()
    tables: list[Table] = []
    for members in kept:
        # Nested groups of 0 blocks are the model as it is, which counts once.
        plain = any(not result.spec.checkpoint and result.spec.nesting == "off" for result in members)
        once = [each for each in members if each.spec.checkpoint or each.spec.nesting == "off" or not plain]
        tables += _checkpointing_tables(once, apart, Notation("ms", decimals), left_out)
    return tuple(tables)


def _checkpointing_tables(
    members: Sequence[Result], apart: Sequence[str], notation: Notation, notes: Sequence[str]
) -> tuple[Table, ...]:
    by_choice = grouped(members, lambda result: _Choice.of(result.spec))
    peaks = {choice: _peaks(by_choice[choice]) for choice in sorted(by_choice)}
    summaries = {choice: pooled(runs, ddof_of(runs)) for choice, runs in by_choice.items()}
    means_s = {choice: summary.mean_s for choice, summary in summaries.items() if summary and summary.mean_s}
    basis, best = _best(peaks, means_s)
    activations, least = _least_activations(peaks)
    marks = _marks(peaks, best, least)
    signs = Signs()
    shown: dict[Mark, str] = {}
    if best is not None:
        alike = [choice.words for choice, of in peaks.items() if choice != best and of[basis] == peaks[best][basis]]
        # Not memory chose between them.
        faster = f", which k = {' and '.join(alike)} has too; of these the fastest" if alike else ""
        shown["best"] = signs.of(f"least memory by {basis}{faster}")
        if any("neighbour" in found for found in marks.values()):
            shown["neighbour"] = signs.of(f"one block more or less than k = {best.words}")
    if least is not None and least != best:
        shown["least activations"] = signs.of(f"least {activations}, but not the least memory")

    def choice_of(row: Runs) -> _Choice:
        return _Choice.of(row.first.spec)

    def peak(name: str) -> Column[Runs]:
        return size_column(f"{name} ({unit.name})", lambda row: peaks[choice_of(row)][name], unit.bytes, unit.figure)

    def time(header: str, field: str, otherwise: Callable[[Runs], str]) -> Column[Runs]:
        return time_column(header, lambda row: summaries[choice_of(row)], field, notation, otherwise)

    unit = ByteUnit.for_largest(max((of[key] or 0 for of in peaks.values() for key in (*_BASES, _RSS)), default=0))
    base_s = means_s.get(_PLAIN)

    def slowdown(row: Runs) -> float | None:
        mean_s = means_s.get(choice_of(row))
        return mean_s / base_s if mean_s and base_s else None

    def marks_of(row: Runs) -> tuple[Mark, ...]:
        return marks.get(choice_of(row), ())

    mark = Column[Runs]("mark", read=lambda row: ", ".join(marks_of(row)))
    columns = [layout_column("k", lambda row: choice_of(row).k)]
    if any(choice.nested for choice in peaks):
        columns.append(layout_column("nesting", lambda row: "halves" if choice_of(row).nested else "off", left=True))
    columns += [
        mark._replace(text=lambda row: "".join(map(shown.__getitem__, marks_of(row)))),
        *(peak(header) for header in _PEAKS if header != _RSS or _any_known(peaks, _RSS)),
        time("step time (ms)", "mean_s", lambda row: row.first.ending),
        time("std (ms)", "std_s", lambda _: NONE),
        Column("time / k = 0", read=slowdown, show=known("{:.2f}", NONE)),
    ]
    said = (*signs.notes, *_checkpointing_notes(peaks, best, members[0].spec.num_layers), *notes, *not_timed(members))
    caption = "Activations recomputed in groups of k blocks"
    return tables_of(members, columns, caption, said, rows_by=_ROWS_BY, apart=apart, places=_ROWS_BY)


def _peaks(runs: Sequence[Result]) -> Mapping[str, int | None]:
    """The peaks of one choice."""
    from cs336_tui.analysis.memory import activation_peak

    first, ran = runs[0], measured(runs)
    prediction = first.state.prediction_of(first.spec)
    recorded = next(filter(None, (run.state.content_of(MemoryReport, run.spec) for run in runs)), None)
    tensors = largest(map(tensor_bytes, ran))
    if tensors is None and recorded:
        tensors = recorded.peak_bytes
    return {
        "predicted peak": prediction.peak_bytes if prediction else None,
        "measured peak": tensors,
        "predicted activation peak": prediction.activation_peak_bytes if prediction else None,
        "recorded activation peak": activation_peak(recorded) if recorded else None,
        _RSS: None if tensors is not None else largest(resident_bytes(run.cell) for run in ran),
    }


def _any_known(peaks: _Peaks, key: str) -> bool:
    return any(of[key] for of in peaks.values())


def _least_activations(peaks: _Peaks) -> tuple[str, _Choice | None]:
    """By what the activation peaks of all choices are known, and the one with the least; None where two have it."""
    for basis in _ACTIVATIONS:
        found = {choice: size for choice, of in peaks.items() if (size := of[basis]) is not None}
        if len(found) == len(peaks) > 1:
            least = min(found, key=lambda choice: found[choice])
            return basis, least if list(found.values()).count(found[least]) == 1 else None
    return "", None


def _best(peaks: _Peaks, means_s: Mapping[_Choice, float]) -> tuple[str, _Choice | None]:
    """By what the choices can be compared, and the one with the least of it; of equals the fastest. None of a single
    choice, or where nothing is known of all that were measured."""
    for basis in _BASES:
        found = {choice: size for choice, of in peaks.items() if (size := of[basis])}
        if len(found) > 1 and means_s.keys() <= found.keys():
            return basis, min(found, key=lambda choice: (found[choice], means_s.get(choice, float("inf")), choice))
    return "", None


def _beside(best: _Choice) -> tuple[_Choice, ...]:
    """A block more and one less; less than one is the model as it is."""
    return tuple(_Choice(k, best.nested and k > 0) for k in (best.k - 1, best.k + 1))


def _marks(peaks: _Peaks, best: _Choice | None, least: _Choice | None) -> dict[_Choice, tuple[Mark, ...]]:
    """The marks of each choice; `best` may have the least activations too."""
    marks: dict[_Choice, tuple[Mark, ...]] = {}
    if best is not None:
        marks |= {choice: ("neighbour",) for choice in _beside(best) if choice in peaks} | {best: ("best",)}
    if least is not None and least != best:
        marks[least] = (*marks.get(least, ()), "least activations")
    return marks


def _checkpointing_notes(peaks: _Peaks, best: _Choice | None, layers: int) -> Iterator[str]:
    blocks = counted(layers, "block")
    yield (
        "k: each group of k consecutive blocks keeps only its input for backward; 0: every block keeps its activations"
    )
    if any(choice.nested for choice in peaks):
        yield (
            f"nesting halves: of N = {blocks} each half keeps what enters it, and so on down to groups "
            "of k: about log2(N/k) + 1 inputs at once, and N (1 + log2(N/k)) / 2 blocks computed again instead of N"
        )
    if _any_known(peaks, "measured peak"):
        yield ("measured peak: the device allocator's peak; where a run cannot count it, the memory report's")
    elif not _any_known(peaks, _RSS):
        yield f"measured peak {NONE}: no allocator counts it here, and no memory report was made"
    yield ACTIVATIONS_MEAN
    if _any_known(peaks, _RSS):
        yield "peak RSS: the whole process since its start, with the interpreter and torch; not tensors alone"
    if best is None:
        yield "the best k is not marked: peaks of tensors are not known, see cs336-tui estimate and cs336-tui memory"
    elif missing := [choice.words for choice in _beside(best) if 0 <= choice.k <= layers and choice not in peaks]:
        yield f"not run: k = {' and '.join(missing)}, beside the best"
    yield (
        f"of N = {blocks} N/k inputs are kept and the activations of k live at a time, which is least at "
        f"k = sqrt(N a / b) for inputs of a and activations of b bytes a block; sqrt(N) = {sqrt(layers):.1f} were they "
        "alike (Chen et al. 2016, arXiv:1604.06174)"
    )
