"""The kinds of table that are found in write-ups, by name, with the headers that they have there.

Every choice for which a layout has no column gets tables of its own, so that rows that look alike are alike. Repeats of
a cell are pooled: a row is over the steps of all its runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain

import msgspec

from cs336_tui.analysis.effects import Trace, array, trace
from cs336_tui.analysis.fields import headless_params
from cs336_tui.analysis.grouping import groups, label, settled, shown, telling
from cs336_tui.analysis.measures import Runs
from cs336_tui.analysis.merge import Result, measured
from cs336_tui.config.variants import IN_EXPORT, expected
from cs336_tui.export.subjects.alone import tables_alone
from cs336_tui.export.subjects.data_parallel import collective_tables, data_parallel_tables, sharding_tables
from cs336_tui.export.subjects.layout import (
    PLACES,
    REST,
    Kept,
    Layout,
    Maker,
    WriteUp,
    layout_column,
    not_timed,
    part_column,
    setting,
    tables_of,
    value,
)
from cs336_tui.export.subjects.leaderboard import leaderboard_tables
from cs336_tui.export.subjects.results import TableError
from cs336_tui.export.subjects.scaling import scaling_tables
from cs336_tui.export.subjects.variants import OPTIMIZERS, checkpointing_tables, compiled_tables
from cs336_tui.export.writing.tables import Column, Table, known
from cs336_tui.stats.quantities import NONE, UNKNOWN, Notation, millisecond_decimals

_FORWARD, _WITH_LOSS, _BOTH = "forward", "forward+loss", "forward+backward"
_DIMS = ("d_model", "d_ff", "num_layers", "num_heads")
_CELL: Mapping[str, str | Maker] = {"size": "size", "pass": "pass", "warm-up": "warmup"}
_BY_CELL = ("size", "pass", "warmup")


def layout_tables(
    results: Sequence[Result], layout: str, *, decimals: int | None = None, caption: str = "", published: bool = False
) -> tuple[Table, ...]:
    """The tables of one of `LAYOUTS`, one for each setting that it has no column for. With `published` they have the
    names and the order of rows of published tables.

    Raises `TableError` for a layout that does not exist or has nothing to show.
    """
    if layout not in LAYOUTS:
        raise TableError(f"layout {layout}: {expected(layout, LAYOUTS, see=IN_EXPORT)}")
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


def _with_passes(results: Sequence[Result]) -> Kept:
    """The cells of the passes that a layout has columns for, and notes on them."""
    shown = (_forward_of(results), _BOTH)
    notes = ["forward: with the loss in it"] if _WITH_LOSS in shown else []
    if others := [name for name in dict.fromkeys(result.spec.pass_ for result in results) if name not in shown]:
        notes.append(f"left out (no column in this layout): {', '.join(others)}")
    return Kept([result for result in results if result.spec.pass_ in shown], notes)


def _forward_of(results: Sequence[Result]) -> str:
    """The pass that is a layout's forward: with the loss in it where no cell has it without."""
    passes = {result.spec.pass_ for result in results}
    return _WITH_LOSS if _WITH_LOSS in passes and _FORWARD not in passes else _FORWARD


def _is_forward(runs: Runs) -> bool:
    return runs.spec.pass_ != _BOTH


_FORWARD_COLUMNS: Mapping[str, str | Maker] = {
    "forward_only": value(_is_forward, left=True), "warmup_steps": "warmup", "benchmark_steps": "steps",
    "avg": "mean", "std": "std",
}  # fmt: skip
_FORWARD_ONLY = Layout(
    "Step times in seconds", ("pass", "size"), {"size": "size", **_FORWARD_COLUMNS},
    ("avg and std: seconds a step", "forward_only False: forward, loss and backward"),
    unit="s", keep=_with_passes, apart=("warmup",), is_silent=True,
)  # fmt: skip
_MIN_MAX_COLUMNS = {
    "Model": "size", "Pass": "pass", "Warmup": "warmup",
    "Min (s)": "min", "Max (s)": "max", "Avg (s)": "mean", "Std (s)": "std",
}  # fmt: skip
_MIN_MAX = Layout("Step times", _BY_CELL, _MIN_MAX_COLUMNS, unit="s", is_silent=True)


def _every_step(read: Callable[[Result], Sequence[float]]) -> Maker:
    """The times of every run, as arrays."""

    def make(header: str, notation: Notation) -> Column[Runs]:
        def times_ms(row: Runs) -> tuple[float, ...]:
            return tuple(time_s * 1e3 for run in row.counted for time_s in read(run))

        def text(row: Runs) -> str:
            decimals = notation.decimals
            if decimals is None:
                decimals = millisecond_decimals(row.summary.median_s if row.summary else None, None)
            return " ".join(array(read(run), decimals) for run in row.counted) or row.first.ending

        return layout_column(header, times_ms, text, left=True)

    return make


def _of_traces(read: Callable[[Trace], float | None], template: str) -> Maker:
    """A figure of every run."""

    def values(row: Runs) -> tuple[float | None, ...]:
        return tuple(read(trace(run)) for run in row.counted)

    return value(
        lambda row: tuple(number for number in values(row) if number is not None),
        lambda row: ", ".join(map(known(template), values(row))) or NONE,
    )


_RAW_STEPS = Layout(
    "Every step's time",
    _BY_CELL,
    {
        **_CELL,
        "warm-up steps (ms)": _every_step(lambda run: run.cell.warmup_times_s),
        "measured steps (ms)": _every_step(lambda run: run.cell.step_times_s),
    },
    ("a cell that ran several times has an array for each run",),
)
_WARM_UP = Layout(
    "Effect of warm-up",
    _BY_CELL,
    {
        **_CELL,
        "n": "n",
        "mean (ms)": "mean",
        "std (ms)": "std",
        "first step / median": _of_traces(lambda steps: steps.first_step_cost, "{:.2f}"),
        "steady after (steps)": _of_traces(lambda steps: steps.steady_after, "{:.0f}"),
    },
    (
        "first step: the cell's first, warm-up or not, over the median of the measured ones",
        "steady after: the number of steps after which all are within the median ± the larger of 3 robust standard "
        "deviations and 2 %",
        "a cell that ran several times has these for each run",
    ),
)


def _not_as_do_bench(results: Sequence[Result]) -> Kept:
    """All results, and a note on those that were timed otherwise."""
    others = dict.fromkeys(result.spec.title for result in results if result.spec.timer != "do_bench")
    return Kept(results, [f"not timed as do_bench does: {title}" for title in others])


_DO_BENCH = Layout(
    "Step times as do_bench gives them",
    ("size", REST, "pass"),
    {f"{word} (ms)": word for word in ("median", "p20", "p80", "mean", "min", "max")} | {"n": "n"},
    ("median, p20, p80: the 50, 20 and 80 % quantiles, linear between neighbours",),
    keep=_not_as_do_bench,
    names_rows=True,
)


def _by_mean(results: Sequence[Result], decimals: int | None, *, published: bool = False) -> tuple[Table, ...]:
    """Published with names such as ``small_forward_backward_warmup_1_mixed_False``; a forward with the loss in it is a
    forward where there is none without. The index is that of the rows before they are sorted, as they were run."""
    names = telling(results, but=("pass",)) or ("size",)
    kinds = {result.spec.precision: _is_mixed(result) for result in results}
    mixed = ["precision"] if len(set(kinds.values())) == len(kinds) else []  # it says each precision
    more, forward = telling(results, but=("size", "pass", "warmup", *mixed)), _forward_of(results)

    index = {key: place for place, key in enumerate(dict.fromkeys(shown(each, (*names, "pass")) for each in results))}

    def computation(row: Runs) -> str:
        pass_ = _FORWARD if published and row.spec.pass_ == forward else row.spec.pass_
        return pass_.translate(str.maketrans("+-", "__"))

    def name(row: Runs) -> str:
        """Published as above, then in the same way the fields that tell more apart."""
        if not published:
            return label(row.first, names)
        size, warmup = shown(row.first, ("size", "warmup"))
        words = [size, computation(row), "warmup", warmup, "mixed", str(_is_mixed(row.first))]
        return "_".join([*words, *chain(*zip(more, shown(row.first, more), strict=True))])

    def seconds(row: Runs, notation: Notation) -> str:
        std_s = row.summary.std_s if row.summary else None
        times = [notation.time(time_s, mean_s=time_s, std_s=std_s) for time_s in row.times_s]
        return f"[{', '.join(times)}]" if times else NONE

    def total_s(row: Runs) -> float | None:
        return sum(row.times_s) if row.times_s else None

    return Layout(
        "Step times in seconds, sorted by mean",
        (*names, "pass"),
        {
            "" if published else "index": value(lambda row: index[shown(row.first, (*names, "pass"))]),
            "name": value(name, left=True),
            "computation": value(computation, left=True),
            "times": lambda header, notation: layout_column(
                header, lambda row: row.times_s, lambda row: seconds(row, notation), left=True
            ),
            "mean_time": "mean",
            "median_time": "median",
            "std_dev": "std",
            "min_time": "min",
            "max_time": "max",
            "total_time": value(total_s, lambda row: known("{:.4g}", NONE)(total_s(row))),
            "profile_steps": "n",
        },
        ("all times in seconds; total_time: of the measured steps",),
        unit="s",
        sort=lambda row: row.mean_s or math.inf,
    ).tables(results, decimals)


def _is_mixed(result: Result) -> bool:
    return result.spec.precision.endswith("-mixed")


def _devices(results: Sequence[Result], decimals: int | None, *, published: bool = False) -> tuple[Table, ...]:
    """Published with the parameters in millions or billions."""
    (kept, left_out), forward = _with_passes(results), _forward_of(results)
    apart = telling(kept, but=("size", "pass", *PLACES))
    places = telling(kept, among=PLACES) or ("device",)
    ran = {key: members[0] for key, members in groups(kept, places).items()}
    kinds = {key: result.spec.device.partition(":")[0].upper() for key, result in ran.items()}
    number = Counter(kinds.values())
    # ``CPU``, ``MPS``, ``CUDA``; with what tells them apart where there are several of a kind.
    titles = {key: f"{kind} ({label(ran[key], places)})" if number[kind] > 1 else kind for key, kind in kinds.items()}

    def parameters(row: Runs) -> str:
        """As published tables have it: ``120.95M``, ``3.38B``."""
        count = headless_params(row.first)
        if count is None:
            return UNKNOWN
        return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.2f}M"

    def time(place: tuple[str, ...], name: str, pass_: str) -> Column[Runs]:
        def is_at(run: Result) -> bool:
            return run.spec.pass_ == pass_ and shown(run, places) == place

        found = part_column(f"{titles[place]} {name} (ms)", "mean", Notation("ms", decimals), is_at)
        return found._replace(title=f"{name} (ms)", group=titles[place])

    dims = (
        setting("Size", "size"),
        *(setting(key, key) for key in _DIMS),
        layout_column("num_params", parameters if published else lambda row: headless_params(row.first), parameters),
    )
    notes = (
        "forward_time, forward+backward: mean ms a step",
        "num_params: parameters without the output head, as published tables count them",
        *left_out,
        *(not_timed(kept) if published else ()),
    )
    tables: list[Table] = []
    for members in groups(kept, apart).values():
        passes = (("forward_time", forward), ("forward+backward", _BOTH))
        columns = (*dims, *(time(place, *each) for place in groups(members, places) for each in passes))
        caption, rows_by = "Mean step time in ms by device", ("size", *_DIMS)
        tables += tables_of(members, columns, caption, notes, rows_by=rows_by, apart=apart, places=places)
    return tuple(tables)


PLAIN_LAYOUTS: Mapping[str, WriteUp] = {
    "forward-only": WriteUp(
        "size, forward_only, warmup_steps, benchmark_steps, avg, std: seconds, a table for each warm-up setting",
        _FORWARD_ONLY.tables,
        # The size as its rows' names, and forward and backward before forward.
        _FORWARD_ONLY._replace(columns={"": "size", **_FORWARD_COLUMNS}, is_silent=False, sort=_is_forward).tables,
    ),
    "min-max": WriteUp(
        "Model, Pass, Warmup, Min (s), Max (s), Avg (s), Std (s)",
        _MIN_MAX.tables,
        _MIN_MAX._replace(rows=("size", "warmup", "pass"), is_silent=False).tables,
    ),
    "raw-steps": WriteUp("every step's time as arrays in ms, warm-up steps and measured ones apart", _RAW_STEPS.tables),
    "warm-up": WriteUp(
        "mean and std of each warm-up setting, what the first step cost, and after how many steps it was steady",
        _WARM_UP.tables,
    ),
    "by-mean": WriteUp(
        "index, name, computation, times, mean_time, median_time, std_dev, min_time, max_time, total_time, "
        "profile_steps: seconds, sorted by mean",
        _by_mean,
        partial(_by_mean, published=True),
    ),
    "do_bench": WriteUp(
        "median, p20, p80, mean, min, max and n in ms, a column for each setting that differs: what "
        "triton.testing.do_bench returns with quantiles 0.5, 0.2 and 0.8",
        _DO_BENCH.tables,
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
    "leaderboard": WriteUp(
        "an entry of a handout's leaderboard among the published ones, with the text to submit", leaderboard_tables
    ),
    "optimizers": WriteUp("the optimizer phase and its share of the step for each optimizer", OPTIMIZERS.tables),
}
"""All kinds of table, those of variants too, by the name that ``--layout`` takes."""
