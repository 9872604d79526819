"""Tables of variants of a step: as it is written beside torch.compile's, and the optimizer's share of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from cs336_tui.analysis.fields import FIELDS, values
from cs336_tui.analysis.grouping import groups, label, telling
from cs336_tui.analysis.measures import Runs, allocated_bytes, largest, mean_of, tensor_bytes
from cs336_tui.analysis.merge import Result, measured, runs_of
from cs336_tui.events.events import ModelPrepared
from cs336_tui.export.layout import (
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
from cs336_tui.export.results import TableError
from cs336_tui.export.tables import Column, Source, Table, Value, attributes, known
from cs336_tui.stats.quantities import NONE, UNKNOWN, Notation, gigabytes
from cs336_tui.stats.ratio import LEVEL, Ratio, ratio_of
from cs336_tui.stats.summaries import Summary

_WRITTEN = "off"


def compiled_tables(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    """As `cs336_tui.export.layout.WriteUp.make`: for each mode and place a table with a row for each pass, and for
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
                tables += _tables(kept, mode, names, apart, Notation("ms", decimals))
    return tuple(tables)


def _tables(
    results: Sequence[Result], mode: str, names: Sequence[str], apart: Sequence[str], notation: Notation
) -> Iterator[Table]:
    """The table of one mode; of everything else that is in no column all results show the same."""
    columns = (
        *(setting(FIELDS[key].title, key) for key in (*names, "pass")),
        *_time("as written", _WRITTEN, notation),
        *_time("compiled", mode, notation),
        Column("speed-up", text=partial(_shown, mode)),
        lambda row: attributes(_speedup(row, mode), **_BOUNDS),
        Column("compile (s)", read=lambda row: _compile_s(row, mode), show=known("{:.1f}")),
        layout_column("graphs", lambda row: max((each.graphs for each in _prepared(row.runs, mode)), default=None)),
        layout_column(
            "graph breaks",
            lambda row: max((len(each.graph_breaks) for each in _prepared(row.runs, mode)), default=None),
        ),
    )
    made = tables_of(
        results,
        columns,
        f"Step time as written and under torch.compile, mode {mode}",
        tuple(_notes(results, mode, (*names, "pass"))),
        rows_by=(*names, "pass"),
        apart=apart,
        places=("compile",),
    )
    for table in made:
        yield msgspec.structs.replace(
            table,
            records=tuple({"compile": mode} | record for record in table.records),
            label=f"{mode}-{table.label}" if table.label else mode,
        )


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

    yield Column(f"{header} ({notation.symbol})", text=show)
    for word in ("mean", "std"):
        yield partial(_milliseconds, f"{header} {word} (ms)", f"{word}_s", summary)


def _milliseconds(key: str, field: str, summary: Callable[[Runs], Summary | None], row: Runs) -> Mapping[str, Value]:
    time_s = found[field] if (found := summary(row)) else None
    return {key: None if time_s is None else time_s * 1e3}


_BOUNDS = {"speed-up": "ratio", "speed-up low": "low", "speed-up high": "high"}


def _speedup(row: Runs, mode: str) -> Ratio | None:
    """Mean time as written over mean time compiled."""
    return ratio_of(runs_of(_of(row, _WRITTEN)), runs_of(_of(row, mode)))


def _shown(mode: str, row: Runs) -> str:
    ratio = _speedup(row, mode)
    return f"{ratio.ratio:.3g} {ratio.bounds('.3g')}" if ratio else UNKNOWN


def _prepared(runs: Sequence[Result], mode: str) -> list[ModelPrepared]:
    """The result of compiling, of each run that got so far."""
    return [run.cell.prepared for run in runs if _is(mode, run) and run.cell.prepared is not None]


def _compile_s(row: Runs, mode: str) -> float | None:
    """The time that compiling took, in seconds; of several runs the mean."""
    return mean_of(each.compile_s for each in _prepared(row.runs, mode))


def _notes(results: Sequence[Result], mode: str, named: Sequence[str]) -> Iterator[str]:
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


def _peak(header: str, _: Notation) -> Column[Runs]:
    return size_column(header, lambda runs: largest(map(tensor_bytes, runs.counted)), 1e9, gigabytes, lambda _: UNKNOWN)


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
        "peak allocated (GB)": _peak,
    },
    (
        "optimizer: the phase that updates the parameters, mean over the measured steps; share of step: all steps' "
        "optimizer phases over all steps' times",
    ),
    keep=_with_optimizer,
    optional=("peak allocated (GB)",),
)
"""A row for each size and optimizer, a table for all else that differs."""
