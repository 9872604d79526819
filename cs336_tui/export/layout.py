"""The parts of every table for write-ups: rows of runs, columns, and tables for each setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from cs336_tui.analysis.fields import FIELDS, values
from cs336_tui.analysis.grouping import SHARED, TELLING, groups, label, shared, shown, telling
from cs336_tui.analysis.merge import Result, ddof_of, grouped, measured, pooled
from cs336_tui.export.footnotes import provenance_notes
from cs336_tui.export.results_columns import data_value
from cs336_tui.export.tables import Column, Table, Value, as_text
from cs336_tui.export.verdicts import doubt_word
from cs336_tui.stats.quantities import NONE, Notation
from cs336_tui.stats.summaries import Summary

PLACES = ("device", "machine", "session", "torch", "threads")


class Row(NamedTuple):
    """All runs of one cell. `summary` is over their steps, None where no run was measured."""

    runs: Sequence[Result]
    summary: Summary | None

    @property
    def first(self) -> Result:
        return self.runs[0]

    @property
    def times_s(self) -> tuple[float, ...]:
        return tuple(time_s for run in measured(self.runs) for time_s in run.cell.step_times_s)


def layout_column(
    header: str, read: Callable[[Row], Value], show: Callable[[Row], str] | None = None, *, left: bool = False
) -> Column[Row]:
    """A column whose header is its key, too; `show` returns the text, or nothing for the value as it is."""
    found: Column[Row] = Column(header, left=left, rank=_RANKS.get(header, 0), read=read)
    return found if show is None else found._replace(text=lambda row: show(row) or as_text(read(row)))


_RANKS = {"num_params": 1, "d_model": 2, "d_ff": 3, "num_layers": 4, "num_heads": 4, "times": 9}
"""Ranks of columns beside the times of a layout, by their headers."""


def time_column(
    header: str,
    found: Callable[[Row], Summary | None],
    field: str,
    notation: Notation,
    otherwise: Callable[[Row], str],
) -> Column[Row]:
    """A field of a summary: ms as data, in the notation as text. `otherwise` gives the text of a row without one."""

    def read(row: Row) -> float | None:
        time_s = summary[field] if (summary := found(row)) else None
        return None if time_s is None else time_s * 1e3

    return layout_column(header, read, lambda row: notation.of(one, field) if (one := found(row)) else otherwise(row))


def size_column(
    header: str,
    found: Callable[[Row], int | None],
    unit_bytes: float,
    show: Callable[[int], str],
    otherwise: Callable[[Row], str] = lambda _: NONE,
) -> Column[Row]:
    """Bytes, as data in a unit of so many. `otherwise` gives the text of a row without any."""
    return layout_column(
        header,
        lambda row: None if (size := found(row)) is None else size / unit_bytes,
        lambda row: otherwise(row) if (size := found(row)) is None else show(size),
    )


class WriteUp(NamedTuple):
    """A kind of table; `make` takes results and decimal places of the layout's own unit, None to follow the std."""

    about: str
    make: Callable[[Sequence[Result], int | None], tuple[Table, ...]]
    published: Callable[[Sequence[Result], int | None], tuple[Table, ...]] | None = None
    """The same with the names and the order of rows of published tables, where those are others."""


def tables_of(
    results: Sequence[Result],
    columns: Sequence[Column[Row]],
    caption: str,
    notes: Sequence[str],
    *,
    rows_by: Sequence[str],
    apart: Sequence[str] = (),
    places: Sequence[str] = (),
    sort: Callable[[Row], float] | None = None,
) -> tuple[Table, ...]:
    """A table for each value of the fields in `apart` and of those that `rows_by` and `places` do not tell apart."""
    keys = (*apart, *telling(results, but=(*rows_by, *apart, *(TELLING if places else ()))))
    ddof = ddof_of(results)
    tables: list[Table] = []
    for members in groups(results, keys).values():
        rows = [Row(runs, pooled(runs, ddof)) for runs in groups(members, rows_by).values()]
        if sort:
            rows.sort(key=sort)
        chosen, named = dict(zip(keys, shown(members[0], keys), strict=True)), (*rows_by, *keys, *places)
        said = label(members[0], keys).replace(" · ", ", ")
        # Where one CSV holds several tables, what tells them apart; the layout's own columns say the rest.
        extra = {key: data_value(key, text) for key, text in chosen.items() if key not in apart or places}
        tables.append(
            Table.of(
                rows,
                columns,
                record=partial(_record, columns, extra),
                caption=f"{caption}, {said}" if said else caption,
                footnotes=(*notes, *_counted(members), *_fixed(members, named), *provenance_notes(members)),
                settings=settings_of(members, named),
                label="-".join(f"{key}-{text}" for key, text in chosen.items()),
                doubt=lambda row: doubt_word(row.runs) if row.summary else "",
            )
        )
    return tuple(tables)


def _record(columns: Sequence[Column[Row]], extra: dict[str, Value], row: Row) -> dict[str, Value]:
    return extra | {column.key: column.value(row) for column in columns}


def _counted(results: Sequence[Result]) -> Iterator[str]:
    """Over how many steps the figures are: repeats of a cell make more than one run's."""
    runs = grouped(measured(results), lambda result: (result.spec, *shown(result, PLACES))).values()
    if runs:
        counts = [sum(result.cell.running.n for result in alike) for alike in runs]
        yield steps_note(counts, max(map(len, runs)), "of each cell")


def steps_note(counts: Sequence[int], most_runs: int, of: str) -> str:
    """The least and the largest number of measured steps, and of how many runs they are."""
    together = f", of up to {most_runs} runs pooled" if most_runs > 1 else ""
    return f"n: {' to '.join(map(str, sorted({min(counts), max(counts)})))} measured steps {of}{together}"


def setting(header: str, key: str, *, left: bool = False) -> Column[Row]:
    return layout_column(header, lambda row: data_value(key, FIELDS[key].show(row.first)), left=left)


def statistic(header: str, field: str, notation: Notation) -> Column[Row]:
    """A field of the summary. Where there is none, the mean's column says why."""

    def show(row: Row) -> str:
        if row.summary is None:
            return row.first.ending if field == "mean_s" else NONE
        return notation.of(row.summary, field)

    def read(row: Row) -> float | None:
        time_s = row.summary[field] if row.summary else None
        return None if time_s is None else notation.scaled(time_s)

    return layout_column(header, read, show)


def not_timed(results: Sequence[Result]) -> Iterator[str]:
    """Why cells have no numbers; what several say is said once."""
    yield from dict.fromkeys(
        f"{each.spec.title}: {': '.join(filter(None, (each.ending, each.cell.skipped_because)))}"
        for each in results
        if not each.is_measured
    )


def _fixed(results: Sequence[Result], named: Sequence[str]) -> Iterator[str]:
    own = () if any(result.spec.synchronised != result.spec.sync for result in results) else ("sync",)
    if same := shared(results, named, (*SHARED, "warmup", "steps", "edition", "arch", "vocab", *own)):
        yield f"every row: {same}"


_SETTINGS = ("size", "context", "batch", "pass", "precision", "device", "warmup")


def settings_of(results: Sequence[Result], named: Sequence[str]) -> dict[str, Value]:
    """The settings that are not `named`, and variants, as the roofline's records call them; None where cells differ."""
    texts = {key: values(results, key) for key in _SETTINGS if key not in named}
    each = [result.spec.variants for result in results]
    common = (variant for variant in dict.fromkeys(chain(*each)) if all(variant in some for some in each))
    found: dict[str, Value] = {key: data_value(key, one[0]) if len(one) == 1 else None for key, one in texts.items()}
    return found | {"variants": ", ".join(common)}
