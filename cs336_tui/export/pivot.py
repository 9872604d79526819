"""A pivot as a table: rows by columns of what was chosen, one value in each crossing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import msgspec

from cs336_tui.analysis.fields import FIELDS
from cs336_tui.analysis.grouping import shown
from cs336_tui.analysis.measures import MEASURES, TIME
from cs336_tui.analysis.merge import Result, grouped, without_turns
from cs336_tui.analysis.pivot import SPEEDUP, UNDOUBTED, VALUES, Figure, Key, Pivot
from cs336_tui.export.subjects.layout import settings_of, steps_note
from cs336_tui.export.subjects.results_columns import LEFT, data_value
from cs336_tui.export.writing.footnotes import Signs, provenance_notes
from cs336_tui.export.writing.tables import Column, Table, Value, attributes
from cs336_tui.export.writing.verdicts import doubt_word
from cs336_tui.stats.quantities import MILLISECONDS, UNKNOWN, Notation
from cs336_tui.stats.ratio import NO_INTERVAL

_BARE = ("size", "pass", "precision", "device", "machine", "session")
"""Fields whose values speak for themselves in a header."""

_KEYS: Mapping[str, Mapping[str, str]] = {
    "mean": {"mean_s": "value", "std_s": "std"},
    "median": {"median_s": "value", "std_s": "std"},
    SPEEDUP: {"speedup": "value", "low": "low", "high": "high"},
    "memory": {"peak_bytes": "value"},
}
"""The fields of a figure that its record holds, by their keys there, if it is not the value alone."""


def pivot_table(
    pivot: Pivot, results: Sequence[Result], *, notation: Notation = MILLISECONDS, caption: str = ""
) -> Table:
    """The `figures_table` of these results, with the doubts about them and the notes on where they come from."""
    results, _ = without_turns(results)
    table = figures_table(pivot, notation=notation, caption=caption)
    by_row = grouped(results, lambda result: shown(result, pivot.rows))
    # Sizes are in no doubt.
    doubts = ("" if pivot.value in UNDOUBTED else doubt_word(by_row.get(row, ())) for row in pivot.row_keys)
    return msgspec.structs.replace(
        table,
        footnotes=(*table.footnotes, *provenance_notes(results, std=pivot.value in ("mean", "std"))),
        settings=settings_of(results, (*pivot.rows, *pivot.columns)),
        doubts=tuple(doubts),
    )


def figures_table(pivot: Pivot, *, notation: Notation = MILLISECONDS, caption: str = "") -> Table:
    """The figures of a pivot. A record is one figure; without a value its `note` says why."""
    signs, substitute = Signs(), substitute_of(pivot)
    columns = [Column(key, FIELDS[key].title, left=key in LEFT) for key in pivot.rows]
    columns += [Column(_heading(pivot, key, notation)) for key in pivot.column_keys]

    def text(row: Key, column: Key) -> str:
        figure = pivot.figure(row, column)
        if figure is None:
            return ""
        marks = "".join(f" {signs.of(mark)}" for mark in figure.marks if mark != substitute)
        return (figure.note or UNKNOWN if figure.value is None else figure_text(pivot, figure, notation)) + marks

    rows = [(*row, *(text(row, column) for column in pivot.column_keys)) for row in pivot.row_keys]
    return Table(
        columns=tuple(columns),
        rows=tuple(rows),
        records=tuple(
            _record(pivot, *place, figure)
            for place in product(pivot.row_keys, pivot.column_keys)
            if (figure := pivot.figure(*place)) is not None
        ),
        caption=caption or default_caption(pivot, notation),
        footnotes=(*signs.notes, *pivot.notes, *_notes(pivot)),
        label=f"{pivot.value}-" + "-".join((*pivot.rows, *pivot.columns)).replace("_", "-"),
    )


def default_caption(pivot: Pivot, notation: Notation = MILLISECONDS) -> str:
    """The figures, their rows and columns, and the baseline: ``Mean step time ± std (ms), size by pass``."""
    rows, columns = (" and ".join(FIELDS[key].title for key in keys) for keys in (pivot.rows, pivot.columns))
    named = ", ".join(filter(None, [value_title(pivot, notation), " by ".join(filter(None, (rows, columns)))]))
    return named[0].upper() + named[1:]


def value_title(pivot: Pivot, notation: Notation) -> str:
    """The value with its unit; of a speed-up, also over what it is."""
    title, measure = VALUES[pivot.value], MEASURES.get(pivot.value)
    if measure:
        if measure.quantity is TIME:
            spread = " ± std" if pivot.value == "mean" else ""
            return f"{title}{spread} ({notation.symbol})"
        unit = f" ({measure.quantity.unit})" if measure.quantity.unit else ""
        return f"{substitute_of(pivot) or title}{unit}"
    over = ", ".join(f"{FIELDS[key].title} {shown}" for key, shown in (pivot.baseline or {}).items())
    return f"{title} over {over} [{pivot.level * 100:g} % interval]"


def _heading(pivot: Pivot, key: Key, notation: Notation) -> str:
    parts = (
        text if field in _BARE else f"{FIELDS[field].title} {text}"
        for field, text in zip(pivot.columns, key, strict=True)
    )
    return " · ".join(parts) or value_title(pivot, notation)


def figure_text(pivot: Pivot, figure: Figure, notation: Notation = MILLISECONDS) -> str:
    """The value of a figure that has one, without its unit."""
    value, measure = figure.value, MEASURES.get(pivot.value)
    assert value is not None
    if measure is None:
        return _speedup(figure, value)
    if measure.quantity is not TIME:
        return measure.quantity.text(value)
    shown = notation.time(value, mean_s=value, std_s=figure.std)
    if pivot.value == "mean" and figure.std is not None:
        return f"{shown} ± {notation.time(figure.std, mean_s=value, std_s=figure.std)}"
    return shown


def _speedup(figure: Figure, value: float) -> str:
    if figure.is_baseline:
        return "1 (baseline)"
    if figure.low is None or figure.high is None:
        return f"{value:{'.2f' if value >= 1 else '.3g'}} {NO_INTERVAL}"
    half = (figure.high - figure.low) / 2
    decimals = min(max(1 - math.floor(math.log10(half)), 2), 4) if half > 0 else 4
    return f"{value:.{decimals}f} [{figure.low:.{decimals}f}, {figure.high:.{decimals}f}]"


def _record(pivot: Pivot, row: Key, column: Key, figure: Figure) -> dict[str, Value]:
    keys = zip((*pivot.rows, *pivot.columns), (*row, *column), strict=True)
    record: dict[str, Value] = {key: data_value(key, shown) for key, shown in keys}
    own = {MEASURES[pivot.value].data: "value"} if pivot.value in MEASURES else {}
    record |= attributes(figure, **_KEYS.get(pivot.value, own)) | attributes(figure, "n", "runs")
    return record | {"note": figure.note or None, "marks": "; ".join(figure.marks)}


def substitute_of(pivot: Pivot) -> str:
    """The title of the measure that every figure has in place of its own, as where no allocator counts."""
    measure = MEASURES.get(pivot.value)
    known = [figure for figure in pivot.figures.values() if figure.value is not None]
    titles = measure.substitutes if measure and known else ()
    return next((title for title in titles if all(title in figure.marks for figure in known)), "")


def _notes(pivot: Pivot) -> Iterable[str]:
    if known := [figure for figure in pivot.figures.values() if figure.value is not None]:
        said = steps_note([figure.n for figure in known], max(figure.runs for figure in known), "in each figure")
        yield f"{said}, without the warm-up steps"
    if measure := MEASURES.get(pivot.value):
        if note := "1 GB is 10⁹ bytes" if substitute_of(pivot) else measure.note:
            yield note
    else:
        yield (
            "speed-up: the baseline's mean step time over the figure's, more is faster; "
            f"{pivot.level * 100:g} % confidence interval in brackets"
        )
    told = (key for key in pivot.fixed if key not in ("machine", "torch", "session", "params"))
    if fixed := [f"{FIELDS[key].title} {pivot.fixed[key]}" for key in told]:
        yield f"every cell: {', '.join(fixed)}"
