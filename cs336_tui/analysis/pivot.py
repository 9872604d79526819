"""Results as a table of figures: rows by columns of what was chosen, one value in each crossing. Every choice that
varies must be named in rows or columns, only repeats of one spec are pooled, and a figure of several machines, torch
versions or sessions is an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from cs336_tui.analysis.fields import (
    FIELDS,
    OWN,
    PivotError,
    field_named,
    in_common,
    in_words,
    one_by_one,
    owner,
    values,
    values_meant,
    varies,
)
from cs336_tui.analysis.grouping import PLACES, UsualPlaces, place_notes, shown
from cs336_tui.analysis.measures import MEASURES, SIZE, TIME, Runs
from cs336_tui.analysis.merge import ENDINGS, Result, ddof_of, grouped, measured, runs_of, without_turns
from cs336_tui.stats.quantities import counted
from cs336_tui.stats.quantities import named as few
from cs336_tui.stats.ratio import LEVEL, ratio_of

Key = tuple[str, ...]
"""The texts of a row, column or figure in each of its fields."""


def baseline_of(figures: Iterable[Key], named: Sequence[str], chosen: dict[str, str]) -> dict[Key, Key]:
    """For each figure that has one, the figure with the baseline's values and all else the same; if there is none, the
    one asked the same otherwise, as another machine has other devices, and another model an attention and arguments of
    its own. `named` are the fields of rows and columns, `chosen` the baseline's values. Raises `PivotError` if no
    figure or several fit."""
    choices = [key for key in named if FIELDS[key].kind in ("choice", "run") and key not in chosen]
    shows = {figure: dict(zip(named, figure, strict=True)) for figure in figures}
    loose = [key for key in choices if owner(key) or any(fields[key] == OWN for fields in shows.values())]

    def fixed(figure: Key) -> Key:
        return tuple(shows[figure][key] for key in choices if key not in loose)

    alike = grouped((figure for figure, fields in shows.items() if fields == fields | chosen), fixed)
    if not alike:
        raise PivotError(f"baseline {in_words(chosen)}: no cell has all of these")
    found: dict[Key, Key] = {}
    for figure, fields in shows.items():
        near = alike.get(fixed(figure), [])
        candidates = [each for each in near if all(_fits(key, fields, shows[each]) for key in loose)]
        exact = [candidate for candidate in candidates if shows[candidate] == fields | chosen]
        match exact or candidates:
            case [base]:
                found[figure] = base
            case [first, second, *_]:
                differ = next(key for key in named if shows[first][key] != shows[second][key])
                options = ", ".join(dict.fromkeys(shows[candidate][differ] for candidate in candidates))
                raise PivotError(f"baseline {in_words(chosen)}: fits several; add {differ}, one of {options}")
    return found


def _fits(key: str, fields: Mapping[str, str], base: Mapping[str, str]) -> bool:
    """True if both show the same, or what follows from the model of one of them."""
    of_others = bool(of := owner(key)) and fields.get(of) != base.get(of)
    return of_others or fields[key] == base[key] or OWN in (fields[key], base[key])


def _chosen(named: Sequence[str], taken: Mapping[str, Sequence[str]], wanted: Mapping[str, str]) -> dict[str, str]:
    """The baseline that a person wants as field keys and what they show; `named` are the fields of rows and columns,
    `taken` what each field takes. Raises `PivotError`, also without a baseline."""
    example = f", such as {named[0]}={taken[named[0]][0]}" if named else ""
    if not wanted:
        raise PivotError(f"speed-up needs a baseline{example or ': there is one figure only'}")
    chosen: dict[str, str] = {}
    for name, text in wanted.items():
        field, said = field_named(name), f"baseline {name}={text}"
        if field.key not in named:
            raise PivotError(f"{said}: {field.title} is in neither rows nor columns{example}")
        meant = values_meant(field, text, taken[field.key], said)
        if len(meant) > 1:
            raise PivotError(f"{said}: fits several; a baseline is one value")
        chosen[field.key] = meant[0]
    return chosen


SPEEDUP = "speedup"
"""The value that compares two figures; all others are measures of one."""
_TITLES = {key: measure.title for key, measure in MEASURES.items() if measure.pivoted}
_TIMES = {key: title for key, title in _TITLES.items() if MEASURES[key].quantity is TIME}
VALUES: Mapping[str, str] = _TIMES | {SPEEDUP: "speed-up"} | _TITLES
"""The values of a figure and their titles for people."""
UNDOUBTED = frozenset(key for key in _TITLES if MEASURES[key].quantity is SIZE)
"""Values that no verdict is about: verdicts are about steps' times."""
_PREFERRED = ("size", "pass", "precision", "warmup", "device", "context")


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One crossing. `value` is in base units of its measure, or times (speed-up). `std`, of all `n` steps of all
    `runs`, is in seconds, for times. `low` and `high` bound a speed-up's confidence interval. A figure without a value
    has a `note`: one of `ENDINGS`, or why there is none. `marks` are for footnotes."""

    value: float | None = None
    std: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    runs: int = 0
    note: str = ""
    marks: tuple[str, ...] = ()
    is_baseline: bool = False


class Pivot(msgspec.Struct, frozen=True, kw_only=True):
    """The table. `rows` and `columns` are field keys; their keys hold what is shown, in natural order. `fixed` is what
    all cells share, by field; `notes` say what differs and is not named. A crossing without a cell is not in
    `figures`."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    row_keys: tuple[Key, ...]
    column_keys: tuple[Key, ...]
    figures: dict[tuple[Key, Key], Figure]
    fixed: dict[str, str]
    value: str
    baseline: dict[str, str] | None
    ddof: int
    level: float = LEVEL
    notes: tuple[str, ...] = ()

    def figure(self, row: Key, column: Key) -> Figure | None:
        return self.figures.get((row, column))


def pivot(
    results: Sequence[Result],
    rows: Sequence[str],
    columns: Sequence[str],
    value: str = "mean",
    baseline: Mapping[str, str] | None = None,
    level: float = LEVEL,
) -> Pivot:
    """A table of `value` for rows by columns of fields, named by key or title.

    Repeats of one spec become one figure: mean, median and std are over the steps of all runs together, alone or else
    in turns; memory is the largest peak of any. A speed-up is the mean time of the `baseline` over that of the figure,
    so more is faster; `baseline` picks, for each figure, the one that differs in these fields alone. Its interval is
    `ratio_of`'s.

    Raises `PivotError` for an unknown value or field, a field named twice or that does not vary, a choice that varies
    and is not named, cells of several places in one figure, no results, and a baseline that is missing or not clear.
    """
    if value not in VALUES:
        raise PivotError(f"value {value}: expected one of {', '.join(VALUES)}")
    results, turns_notes = without_turns(results)
    if baseline and value != SPEEDUP:
        raise PivotError(f"a baseline is for value speedup, not for {value}")
    if not any(result.cell.is_over for result in results):
        raise PivotError("nothing to pivot: no cell has a result yet")
    row_keys, column_keys = (tuple(field_named(name).key for name in names) for names in (rows, columns))
    named = (*row_keys, *column_keys)
    taken = {key: values(results, key) for key in (*FIELDS, *named)}
    _check(results, named, taken)
    groups = grouped(results, lambda result: shown(result, named))
    if mixed := _mixed(results, named):
        raise PivotError(_left_out(mixed, taken, "cells of one figure"))

    ddof = ddof_of(results)
    usual = UsualPlaces(map(_typical, groups.values()), named)
    chosen = _chosen(named, taken, baseline or {}) if value == SPEEDUP else None
    base = baseline_of(groups, named, chosen) if chosen else {}
    figures = {key: _figure(cells, value, ddof, usual.marks(_typical(cells))) for key, cells in groups.items()}
    if chosen:
        figures = {key: _speedup(key, base.get(key), figures, groups, level) for key in figures}
    split = len(row_keys)
    return Pivot(
        rows=row_keys,
        columns=column_keys,
        row_keys=_in_order(row_keys, {key[:split]: cells[0] for key, cells in groups.items()}),
        column_keys=_in_order(column_keys, {key[split:]: cells[0] for key, cells in groups.items()}),
        figures={(key[:split], key[split:]): figure for key, figure in figures.items()},
        fixed={
            each: text
            for key in FIELDS
            if FIELDS[key].kind != "run"
            for each in one_by_one(results, key)
            if (text := in_common(results, each))
        },
        value=value,
        baseline=chosen,
        ddof=ddof,
        level=level,
        notes=(*turns_notes, *place_notes(results, named)),
    )


def varying(results: Sequence[Result]) -> tuple[str, ...]:
    """Keys of the fields that differ between results and can be pivoted on; not what only follows from the model."""
    varied = (key for key in FIELDS if varies(results, key))
    return tuple(each for key in varied for each in one_by_one(results, key) if varies(results, each))


def suggest(results: Sequence[Result]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Rows and columns that fit the results: of size, pass, precision, warm-up, device and context the first that
    varies by the second, everything else that must be named with the rows. `pivot` takes them for any results."""
    choices = [key for key in varying(results) if FIELDS[key].kind == "choice"]
    choices.sort(key=lambda key: _PREFERRED.index(key) if key in _PREFERRED else len(_PREFERRED))
    rows, columns = [*choices[:1], *choices[2:]], choices[1:2]
    while mixed := _mixed(results, (*rows, *columns)):
        (columns if rows and not columns else rows).append(mixed[0])
    return tuple(rows), tuple(columns)


def _check(results: Sequence[Result], named: Sequence[str], taken: Mapping[str, Key]) -> None:
    """Every named field must vary, and every choice that varies must be named once."""
    for key in named:
        title, texts = FIELDS[key].title, taken[key]
        if named.count(key) > 1:
            raise PivotError(f"pivot on {title}: named twice")
        if len(texts) == 1:
            others = ", ".join(FIELDS[other].title for other, several in taken.items() if len(several) > 1)
            raise PivotError(f"pivot on {title}: every cell has {texts[0]}; fields that vary: {others or 'none'}")
    together = {part for key in named for part in one_by_one(results, key)}
    missing = [key for key in varying(results) if FIELDS[key].kind == "choice" and key not in together]
    if missing:
        raise PivotError(_left_out(missing, {key: values(results, key) for key in missing}, "different cells"))


def _left_out(keys: Sequence[str], taken: Mapping[str, Key], what: str) -> str:
    """The cells that a pivot without these fields would mix, and the remedy."""
    said = " and ".join(f"{FIELDS[key].title} ({few(taken[key], 5, ', ')})" for key in keys)
    grammar = "varies but is" if len(keys) == 1 else "vary but are"
    first = keys[0]
    return (
        f"{said} {grammar} in neither rows nor columns, which would mix {what}: "
        f"add {first}, or keep one, such as {first}={taken[first][0]}"
    )


def _mixed(results: Sequence[Result], named: Sequence[str]) -> list[str]:
    """Fields, not named, in which the measured cells of some figure differ; the most telling first."""
    figures = grouped(measured(results), lambda result: shown(result, named)).values()
    implied = (*PLACES, *(key for key, field in FIELDS.items() if field.kind == "model"))
    return [
        key
        for key in implied
        if key not in named and any(len(set(map(FIELDS[key].show, cells))) > 1 for cells in figures)
    ]


def _in_order(keys: Sequence[str], of: Mapping[Key, Result]) -> tuple[Key, ...]:
    """The keys of rows or columns, each with a result that shows it, in the natural order of its fields."""
    return tuple(sorted(of, key=lambda key: tuple(FIELDS[name].order(of[key]) for name in keys)))


def _typical(cells: Sequence[Result]) -> Result:
    """One of the cells that a figure's value comes from."""
    return next((result for result in cells if result.is_measured), cells[0])


def _figure(cells: Sequence[Result], value: str, ddof: int, marks: tuple[str, ...]) -> Figure:
    """The crossing; with value speedup without its value, for which there must be others."""
    endings = Counter(result.ending for result in cells if not result.is_measured)
    runs, measure = Runs(cells, ddof), MEASURES.get(value)
    summary = runs.summary
    if summary is None or not summary.mean_s:
        return Figure(note=min(endings, key=ENDINGS.index, default="no time passed"), marks=marks)
    has_retried = any(cell.finished and cell.finished.num_alloc_retries for cell in runs.cells)
    lost = (f"{number} of {counted(len(cells), 'run')}: {ending}" for ending, number in endings.items())
    retries = ("allocator retries, which make the timing suspect",) if has_retried else ()
    number, remark = measure.figure(runs) if measure else (None, "")
    return Figure(
        value=number,
        std=summary.std_s if measure and measure.quantity is TIME else None,
        n=summary.n,
        runs=len(runs.counted),
        note=measure.missing if measure and number is None else "",
        marks=(*marks, *lost, *((remark,) if remark else ()), *retries),
    )


def _speedup(
    key: Key, over: Key | None, figures: Mapping[Key, Figure], groups: Mapping[Key, Sequence[Result]], level: float
) -> Figure:
    """The figure as its baseline's mean time over its own; `over` is the key of the baseline."""
    found, change = figures[key], msgspec.structs.replace
    if not found.n:
        return found
    if over is None:
        return change(found, note="no baseline")
    if over == key:
        return change(found, value=1.0, is_baseline=True)
    if not figures[over].n:
        return change(found, note=f"baseline {figures[over].note}")
    ratio = ratio_of(runs_of(groups[over]), runs_of(groups[key]), level)
    if ratio is None:
        return change(found, note="one step")
    return change(found, value=ratio.ratio, low=ratio.low, high=ratio.high)
