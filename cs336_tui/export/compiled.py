"""Steps as they are written beside torch.compile's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

import msgspec

from cs336_tui.analysis.fields import FIELDS, values
from cs336_tui.analysis.grouping import groups, label, telling
from cs336_tui.analysis.merge import Result, ddof_of, measured, pooled, runs_of
from cs336_tui.events.events import ModelPrepared
from cs336_tui.export.layout import PLACES, Row, layout_column, not_timed, setting, tables_of
from cs336_tui.export.results import TableError
from cs336_tui.export.results_columns import LEFT
from cs336_tui.export.tables import Column, Table, Value, known
from cs336_tui.stats.quantities import UNKNOWN, Notation
from cs336_tui.stats.ratio import LEVEL, Ratio, ratio_of
from cs336_tui.stats.summaries import Summary

_WRITTEN = "off"
_ENDINGS = {
    "as written": ("mean (ms)", "std (ms)"),
    "compiled": ("mean (ms)", "std (ms)"),
    "speed-up": ("", "low", "high"),
}
"""The value of a column in a record that is several numbers."""


def compiled_tables(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    """As `cs336_tui.export.layout.Layout.make`: for each mode and place a table with a row for each pass, and for
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
        *(setting(FIELDS[key].title, key, left=key in LEFT) for key in (*names, "pass")),
        _time("as written", _WRITTEN, notation),
        _time("compiled", mode, notation),
        layout_column("speed-up", lambda row: _ratio_numbers(_speedup(row, mode)), lambda row: _shown(row, mode)),
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
            records=tuple({"compile": mode} | _flat(record) for record in table.records),
            label=f"{mode}-{table.label}" if table.label else mode,
        )


def _is(mode: str, result: Result) -> bool:
    return result.spec.compile == mode


def _of(row: Row, mode: str) -> list[Result]:
    return [run for run in row.runs if _is(mode, run)]


def _time(header: str, mode: str, notation: Notation) -> Column[Row]:
    """Mean and std of the runs in this mode, of a row that has those of both."""

    def summary(row: Row) -> Summary | None:
        return pooled(_of(row, mode), ddof_of(row.runs))

    def read(row: Row) -> Value:
        found = summary(row)
        numbers = (found.mean_s, found.std_s) if found else (None, None)
        return tuple(math.nan if number is None else number * 1e3 for number in numbers)

    def show(row: Row) -> str:
        found = summary(row)
        return notation.mean_and_std(found) if found else next((run.ending for run in _of(row, mode)), "not run")

    return layout_column(f"{header} ({notation.symbol})", read, show)


def _speedup(row: Row, mode: str) -> Ratio | None:
    """Mean time as written over mean time compiled."""
    return ratio_of(runs_of(_of(row, _WRITTEN)), runs_of(_of(row, mode)))


def _ratio_numbers(ratio: Ratio | None) -> tuple[float, ...]:
    bounds = (ratio.low, ratio.high) if ratio else (None, None)
    return (ratio.ratio if ratio else math.nan, *(math.nan if bound is None else bound for bound in bounds))


def _shown(row: Row, mode: str) -> str:
    ratio = _speedup(row, mode)
    return f"{ratio.ratio:.3g} {ratio.bounds('.3g')}" if ratio else UNKNOWN


def _prepared(runs: Sequence[Result], mode: str) -> list[ModelPrepared]:
    """The result of compiling, of each run that got so far."""
    return [run.cell.prepared for run in runs if _is(mode, run) and run.cell.prepared is not None]


def _compile_s(row: Row, mode: str) -> float | None:
    """The time that compiling took, in seconds; of several runs the mean."""
    taken = [each.compile_s for each in _prepared(row.runs, mode) if each.compile_s is not None]
    return fmean(taken) if taken else None


def _flat(record: dict[str, Value]) -> dict[str, Value]:
    """A record whose numbers stand alone, each under a name that says which it is."""
    found: dict[str, Value] = {}
    for key, value in record.items():
        name = key.partition(" (")[0]
        if name not in _ENDINGS or not isinstance(value, tuple):
            found[key] = value
            continue
        for ending, number in zip(_ENDINGS[name], value, strict=True):
            found[f"{name} {ending}".rstrip()] = None if math.isnan(number) else number
    return found


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
