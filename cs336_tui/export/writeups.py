"""The kinds of table that are found in write-ups, by name, with the headers that they have there.

Every choice for which a layout has no column gets tables of its own, so that rows that look alike are alike. Repeats of
a cell are pooled: a row is over the steps of all its runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from cs336_tui.analysis.fields import FIELDS, headless_params
from cs336_tui.analysis.grouping import groups, label, settled, shown, telling
from cs336_tui.analysis.merge import Result, ddof_of, measured, pooled
from cs336_tui.analysis.warmup import Trace, array, trace
from cs336_tui.export.alone import tables_alone
from cs336_tui.export.checkpointing import checkpointing_tables
from cs336_tui.export.collectives import collective_tables
from cs336_tui.export.compiled import compiled_tables
from cs336_tui.export.data_parallel import data_parallel_tables, sharding_tables
from cs336_tui.export.layout import (
    PLACES,
    Row,
    WriteUp,
    layout_column,
    not_timed,
    setting,
    statistic,
    tables_of,
    time_column,
)
from cs336_tui.export.optimizers import optimizers_tables
from cs336_tui.export.rank_scaling import scaling_tables
from cs336_tui.export.results import TableError
from cs336_tui.export.results_columns import LEFT
from cs336_tui.export.tables import Column, Table
from cs336_tui.stats.quantities import NONE, UNKNOWN, Notation, millisecond_decimals
from cs336_tui.stats.summaries import Summary

_FORWARD, _WITH_LOSS, _BOTH = "forward", "forward+loss", "forward+backward"
_DIMS = ("d_model", "d_ff", "num_layers", "num_heads")
_CELL = (setting("size", "size", left=True), setting("pass", "pass", left=True), setting("warm-up", "warmup"))


def layout_tables(
    results: Sequence[Result], layout: str, *, decimals: int | None = None, caption: str = "", published: bool = False
) -> tuple[Table, ...]:
    """The tables of one of `LAYOUTS`, one for each setting that it has no column for. With `published` they have the
    names and the order of rows of published tables.

    Raises `TableError` for a layout that does not exist or has nothing to show.
    """
    if layout not in LAYOUTS:
        raise TableError(f"layout {layout}: expected one of {', '.join(LAYOUTS)}")
    if not measured(results):
        raise TableError("no cell has measured steps")
    found = LAYOUTS[layout]
    make = found.published if published and found.published else found.make
    tables = make(settled(results), decimals)
    if not tables:
        raise TableError(f"layout {layout}: no cell with pass {_FORWARD} or {_BOTH}")
    titled = "{0}" if not caption else "{1} ({0})" if len(tables) > 1 else "{1}"
    return tuple(
        msgspec.structs.replace(table, caption=titled.format(table.caption, caption), label=f"{layout}-{table.label}")
        for table in tables
    )


def _statistics(notation: Notation, **headers: str) -> Iterator[Column[Row]]:
    return (statistic(header, f"{word}_s", notation) for header, word in headers.items())


def _forward_only(results: Sequence[Result], decimals: int | None, *, published: bool = False) -> tuple[Table, ...]:
    """Published with the size as its rows' names, and forward and backward before forward."""
    notation = Notation("s", decimals)
    columns = (
        setting("" if published else "size", "size", left=True),
        layout_column("forward_only", lambda row: row.first.spec.pass_ != _BOTH, left=True),
        setting("warmup_steps", "warmup"),
        setting("benchmark_steps", "steps"),
        *_statistics(notation, avg="mean", std="std"),
    )
    kept, _, left_out = _with_passes(results)
    notes = (
        "avg and std: seconds a step",
        "forward_only False: forward, loss and backward",
        *left_out,
        *(not_timed(kept) if published else ()),
    )
    sort = (lambda row: row.first.spec.pass_ != _BOTH) if published else None
    by = ("pass", "size")
    return tables_of(kept, columns, "Step times in seconds", notes, rows_by=by, apart=("warmup",), sort=sort)


def _min_max(results: Sequence[Result], decimals: int | None, *, published: bool = False) -> tuple[Table, ...]:
    """Published with the warm-up before the pass in the order of rows."""
    notation = Notation("s", decimals)
    columns = (
        setting("Model", "size", left=True),
        setting("Pass", "pass", left=True),
        setting("Warmup", "warmup"),
        *_statistics(notation, **{"Min (s)": "min", "Max (s)": "max", "Avg (s)": "mean", "Std (s)": "std"}),
    )
    notes, by = (not_timed(results), ("size", "warmup", "pass")) if published else ((), ("size", "pass", "warmup"))
    return tables_of(results, columns, "Step times", tuple(notes), rows_by=by)


def _raw_steps(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    def times(title: str, read: Callable[[Result], Sequence[float]]) -> Column[Row]:
        def text(row: Row, run: Result) -> str:
            median_s = row.summary.median_s if row.summary else None
            return array(read(run), millisecond_decimals(median_s, None) if decimals is None else decimals)

        return layout_column(
            f"{title} steps (ms)",
            lambda row: tuple(time_s * 1e3 for run in measured(row.runs) for time_s in read(run)),
            lambda row: " ".join(text(row, run) for run in measured(row.runs)) or row.first.ending,
            left=True,
        )

    columns = (
        *_CELL,
        times("warm-up", lambda run: run.cell.warmup_times_s),
        times("measured", lambda run: run.cell.step_times_s),
    )
    notes = ("a cell that ran several times has an array for each run", *not_timed(results))
    return tables_of(results, columns, "Every step's time", notes, rows_by=("size", "pass", "warmup"))


def _warm_up(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    notation = Notation("ms", decimals)

    def each(header: str, read: Callable[[Trace], float | None], show: Callable[[float], str]) -> Column[Row]:
        """A figure of every run."""

        def values(row: Row) -> tuple[float | None, ...]:
            return tuple(read(trace(run)) for run in measured(row.runs))

        return layout_column(
            header,
            lambda row: tuple(value for value in values(row) if value is not None),
            lambda row: ", ".join(UNKNOWN if value is None else show(value) for value in values(row)) or NONE,
        )

    columns = (
        *_CELL,
        layout_column("n", lambda row: len(row.times_s)),
        *_statistics(notation, **{"mean (ms)": "mean", "std (ms)": "std"}),
        each("first step / median", lambda steps: steps.first_step_cost, lambda cost: f"{cost:.2f}"),
        each("steady after (steps)", lambda steps: steps.steady_after, lambda steps: f"{steps:.0f}"),
    )
    notes = (
        "first step: the cell's first, warm-up or not, over the median of the measured ones",
        "steady after: the number of steps after which all are within the median ± the larger of 3 robust standard "
        "deviations and 2 %",
        "a cell that ran several times has these for each run",
        *not_timed(results),
    )
    return tables_of(results, columns, "Effect of warm-up", notes, rows_by=("size", "pass", "warmup"))


def _by_mean(results: Sequence[Result], decimals: int | None, *, published: bool = False) -> tuple[Table, ...]:
    """Published with names such as ``small_forward_warmup_1_mixed_False``; a forward with the loss in it is a forward
    where there is none without."""
    notation = Notation("s", decimals)
    names = telling(results, but=("pass",)) or ("size",)
    more = _untold(results) if published else ()
    forward = _with_passes(results)[1]

    def computation(row: Row) -> str:
        pass_ = row.first.spec.pass_
        return _FORWARD if published and pass_ == forward else pass_

    columns = (
        layout_column(
            "name",
            lambda row: _joined(row.first, computation(row), more) if published else label(row.first, names),
            left=True,
        ),
        layout_column("computation", computation, left=True),
        layout_column("times", lambda row: row.times_s, lambda row: _seconds(row, notation), left=True),
        *_statistics(notation, mean_time="mean", median_time="median", std_dev="std", min_time="min", max_time="max"),
        layout_column(
            "total_time",
            lambda row: sum(row.times_s) if row.times_s else None,
            lambda row: f"{sum(row.times_s):.4g}" if row.times_s else NONE,
        ),
        layout_column("profile_steps", lambda row: len(row.times_s)),
    )
    notes = ("all times in seconds; total_time: of the measured steps", *not_timed(results))
    return tables_of(
        results,
        columns,
        "Step times in seconds, sorted by mean",
        notes,
        rows_by=(*names, "pass"),
        sort=lambda row: (row.summary and row.summary.mean_s) or math.inf,
    )


def _do_bench(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    notation = Notation("ms", decimals)
    names = ("size", *telling(results, but=("size", "pass")), "pass")
    headers = {"median (ms)": "median", "p20 (ms)": "p20", "p80 (ms)": "p80", "mean (ms)": "mean", "min (ms)": "min"}
    columns = (
        *(setting(FIELDS[key].title, key, left=key in LEFT) for key in names),
        *_statistics(notation, **headers, **{"max (ms)": "max"}),
        layout_column("n", lambda row: len(row.times_s)),
    )
    others = {result.spec.title: None for result in results if result.spec.timer != "do_bench"}
    notes = (
        "median, p20, p80: the 50, 20 and 80 % quantiles, linear between neighbours",
        *(f"not timed as do_bench does: {title}" for title in others),
        *not_timed(results),
    )
    return tables_of(results, columns, "Step times as do_bench gives them", notes, rows_by=names)


def _untold(results: Sequence[Result]) -> tuple[str, ...]:
    """Fields that tell results apart beside what a published name says: size, pass, warm-up, and mixed or not."""
    kinds = {result.spec.precision: _is_mixed(result) for result in results}
    said = len(set(kinds.values())) == len(kinds)
    return telling(results, but=("size", "pass", "warmup", *["precision"] * said))


def _is_mixed(result: Result) -> bool:
    return result.spec.precision.endswith("-mixed")


def _joined(result: Result, computation: str, more: Sequence[str]) -> str:
    """``small_forward_warmup_1_mixed_False``, and `more` fields in the same way."""
    size, warmup = shown(result, ("size", "warmup"))
    words = [size, computation, "warmup", warmup, "mixed", str(_is_mixed(result))]
    for key, text in zip(more, shown(result, more), strict=True):
        words += (key, text)
    return "_".join(words)


def _devices(results: Sequence[Result], decimals: int | None, *, published: bool = False) -> tuple[Table, ...]:
    """Published with the parameters in millions or billions."""
    kept, forward, left_out = _with_passes(results)
    apart = telling(kept, but=("size", "pass", *PLACES))
    places = telling(kept, among=PLACES) or ("device",)
    titles = _device_titles({key: members[0] for key, members in groups(kept, places).items()}, places)
    dims = (
        setting("Size", "size", left=True),
        *(setting(key, key) for key in _DIMS),
        layout_column(
            "num_params",
            lambda row: _parameters(headless_params(row.first)) if published else headless_params(row.first),
            lambda row: _parameters(headless_params(row.first)),
        ),
    )
    notes = (
        "forward_time, forward+backward: mean ms a step",
        "num_params: parameters without the output head, as published tables count them",
        *left_out,
        *(not_timed(kept) if published else ()),
    )
    tables: list[Table] = []
    for members in groups(kept, apart).values():
        times = (
            _at(place, f"{titles[place]} {name} (ms)", pass_, places, Notation("ms", decimals))._replace(
                title=f"{name} (ms)", group=titles[place]
            )
            for place in groups(members, places)
            for name, pass_ in (("forward_time", forward), ("forward+backward", _BOTH))
        )
        caption = "Mean step time in ms by device"
        tables += tables_of(
            members, (*dims, *times), caption, notes, rows_by=("size", *_DIMS), apart=apart, places=places
        )
    return tuple(tables)


PLAIN_LAYOUTS: Mapping[str, WriteUp] = {
    "forward-only": WriteUp(
        "size, forward_only, warmup_steps, benchmark_steps, avg, std: seconds, a table for each warm-up setting",
        _forward_only,
        partial(_forward_only, published=True),
    ),
    "min-max": WriteUp(
        "Model, Pass, Warmup, Min (s), Max (s), Avg (s), Std (s)", _min_max, partial(_min_max, published=True)
    ),
    "raw-steps": WriteUp("every step's time as arrays in ms, warm-up steps and measured ones apart", _raw_steps),
    "warm-up": WriteUp(
        "mean and std of each warm-up setting, what the first step cost, and after how many steps it was steady",
        _warm_up,
    ),
    "by-mean": WriteUp(
        "name, computation, times, mean_time, median_time, std_dev, min_time, max_time, total_time, profile_steps: "
        "seconds, sorted by mean",
        _by_mean,
        partial(_by_mean, published=True),
    ),
    "do_bench": WriteUp(
        "median, p20, p80, mean, min, max and n in ms, a column for each setting that differs: what "
        "triton.testing.do_bench returns with quantiles 0.5, 0.2 and 0.8",
        _do_bench,
    ),
    "devices": WriteUp(
        "Size, d_model, d_ff, num_layers, num_heads, num_params, then forward_time and forward+backward of each device "
        "in ms; sessions of several machines side by side",
        _devices,
        partial(_devices, published=True),
    ),
}
"""Kinds of table in which any session can be shown."""

LAYOUTS: Mapping[str, WriteUp] = {
    **PLAIN_LAYOUTS,
    "attention": WriteUp(
        "attention alone: forward, backward and memory before backward of each kind of attention side by side, over "
        "width and sequence length",
        partial(tables_alone, "attention"),
    ),
    "norm": WriteUp(
        "a norm alone: times, bandwidth and memory before backward of each kind of norm side by side, over width and "
        "rows",
        partial(tables_alone, "norm"),
    ),
    "collectives": WriteUp(
        "times and busbw of collectives: a row a size, numbers of ranks side by side", collective_tables
    ),
    "data-parallel": WriteUp(
        "several ranks: step time, gradient sync and exposed communication of each wrapper and size of its buckets, "
        "with their share of the step",
        data_parallel_tables,
    ),
    "sharding": WriteUp(
        "several ranks: peak memory and step time with and without sharding, and what sharding saves", sharding_tables
    ),
    "scaling": WriteUp(
        "several ranks: step time, tokens/s and efficiency over ranks, weak (batch per rank) or strong (global)",
        scaling_tables,
    ),
    "compiled": WriteUp("each pass as it is written and under torch.compile, with the speed-up", compiled_tables),
    "checkpointing": WriteUp(
        "peak memory and step time by how many blocks are recomputed together; the best is marked",
        checkpointing_tables,
    ),
    "optimizers": WriteUp("the optimizer phase and its share of the step for each optimizer", optimizers_tables),
}
"""All kinds of table, those of variants too, by the name that ``--layout`` takes."""


def _at(place: tuple[str, ...], header: str, pass_: str, places: Sequence[str], notation: Notation) -> Column[Row]:
    """The mean of one pass on one device, of a row that has all passes and devices of a model."""

    def runs(row: Row) -> list[Result]:
        return [run for run in row.runs if run.spec.pass_ == pass_ and shown(run, places) == place]

    def found(row: Row) -> Summary | None:
        return pooled(runs(row), ddof_of(row.runs))

    return time_column(header, found, "mean_s", notation, lambda row: next((run.ending for run in runs(row)), NONE))


def _device_titles(ran: Mapping[tuple[str, ...], Result], places: Sequence[str]) -> dict[tuple[str, ...], str]:
    """``CPU``, ``MPS``, ``CUDA``; with what tells them apart where there are several of a kind."""
    kinds = {key: result.spec.device.partition(":")[0].upper() for key, result in ran.items()}
    number = Counter(kinds.values())
    return {key: f"{kind} ({label(ran[key], places)})" if number[kind] > 1 else kind for key, kind in kinds.items()}


def _with_passes(results: Sequence[Result]) -> tuple[list[Result], str, tuple[str, ...]]:
    """The cells of the passes that a layout has columns for, which pass is its forward, and notes on both: with the
    loss in it where no cell has it without."""
    passes = list(dict.fromkeys(result.spec.pass_ for result in results))
    forward = _WITH_LOSS if _WITH_LOSS in passes and _FORWARD not in passes else _FORWARD
    others = [pass_ for pass_ in passes if pass_ not in (forward, _BOTH)]
    notes = ["forward: with the loss in it"] * (forward == _WITH_LOSS)
    notes += [f"left out (no column in this layout): {', '.join(others)}"] * bool(others)
    return [result for result in results if result.spec.pass_ in (forward, _BOTH)], forward, tuple(notes)


def _seconds(row: Row, notation: Notation) -> str:
    std_s = row.summary.std_s if row.summary else None
    times = [notation.time(time_s, mean_s=time_s, std_s=std_s) for time_s in row.times_s]
    return f"[{', '.join(times)}]" if times else NONE


def _parameters(number: int | None) -> str:
    """As published tables have it: ``120.95M``, ``3.38B``."""
    if number is None:
        return UNKNOWN
    return f"{number / 1e9:.2f}B" if number >= 1e9 else f"{number / 1e6:.2f}M"
