"""The parts of every table for write-ups: rows of runs, columns, and tables for each setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from cs336_tui.analysis.fields import FIELDS, values
from cs336_tui.analysis.grouping import SHARED, TELLING, groups, label, shared, shown, telling
from cs336_tui.analysis.measures import MEASURES, TIME, Measure, Runs
from cs336_tui.analysis.merge import Result, ddof_of, grouped, measured
from cs336_tui.export.subjects.results_columns import LEFT, data_value
from cs336_tui.export.writing.footnotes import provenance_notes
from cs336_tui.export.writing.tables import Column, Source, Table, Value, as_text
from cs336_tui.export.writing.verdicts import doubt_word
from cs336_tui.stats.quantities import NONE, Notation, Unit, gigabytes, percent
from cs336_tui.stats.summaries import Summary

PLACES = ("device", "machine", "session", "torch", "threads")


def layout_column(
    header: str, read: Callable[[Runs], Value], show: Callable[[Runs], str] | None = None, *, left: bool = False
) -> Column[Runs]:
    """A column whose header is its key, too; `show` returns the text, or nothing for the value as it is."""
    found: Column[Runs] = Column(header, left=left, rank=_RANKS.get(header, 0), read=read)
    return found if show is None else found._replace(text=lambda row: show(row) or as_text(read(row)))


_RANKS = {"num_params": 1, "d_model": 2, "d_ff": 3, "num_layers": 4, "num_heads": 4, "times": 9}
"""Ranks of columns beside the times of a layout, by their headers."""


def time_column(
    header: str,
    found: Callable[[Runs], Summary | None],
    field: str,
    notation: Notation,
    otherwise: Callable[[Runs], str] = lambda _: NONE,
) -> Column[Runs]:
    """A field of a summary, in the notation's unit. `otherwise` gives the text of a row without one."""

    def read(runs: Runs) -> float | None:
        time_s = summary[field] if (summary := found(runs)) else None
        return None if time_s is None else notation.scaled(time_s)

    return layout_column(
        header, read, lambda runs: notation.of(one, field) if (one := found(runs)) else otherwise(runs)
    )


def size_column(
    header: str,
    found: Callable[[Runs], int | None],
    unit_bytes: float = 1e9,
    show: Callable[[int], str] = gigabytes,
    otherwise: Callable[[Runs], str] = lambda _: NONE,
) -> Column[Runs]:
    """Bytes, as data in a unit of so many, GB unless given. `otherwise` gives the text of a row without any."""
    return layout_column(
        header,
        lambda runs: None if (size := found(runs)) is None else size / unit_bytes,
        lambda runs: otherwise(runs) if (size := found(runs)) is None else show(size),
    )


def share_column(
    header: str, read: Callable[[Runs], float | None], otherwise: Callable[[Runs], str] = lambda _: NONE
) -> Column[Runs]:
    """A share in %. `otherwise` gives the text of a row without one."""
    return layout_column(
        header,
        lambda runs: None if (share := read(runs)) is None else share * 100,
        lambda runs: otherwise(runs) if (share := read(runs)) is None else percent(share),
    )


class WriteUp(NamedTuple):
    """A kind of table; `make` takes results and decimal places of the layout's own unit, None to follow the std."""

    about: str
    make: Callable[[Sequence[Result], int | None], tuple[Table, ...]]
    published: Callable[[Sequence[Result], int | None], tuple[Table, ...]] | None = None
    """The same with the names and the order of rows of published tables, where those are others."""


def tables_of(
    results: Sequence[Result],
    columns: Sequence[Source[Runs]],
    caption: str,
    notes: Sequence[str],
    *,
    rows_by: Sequence[str],
    apart: Sequence[str] = (),
    places: Sequence[str] = (),
    sort: Callable[[Runs], float] | None = None,
) -> tuple[Table, ...]:
    """A table for each value of the fields in `apart` and of those that `rows_by` and `places` do not tell apart."""
    keys = (*apart, *telling(results, but=(*rows_by, *apart, *(TELLING if places else ()))))
    ddof = ddof_of(results)
    tables: list[Table] = []
    for members in groups(results, keys).values():
        rows = [Runs(runs, ddof) for runs in groups(members, rows_by).values()]
        if sort:
            rows.sort(key=sort)
        chosen, named = dict(zip(keys, shown(members[0], keys), strict=True)), (*rows_by, *keys, *places)
        said = label(members[0], keys).replace(" · ", ", ")
        # Where one CSV holds several tables, what tells them apart; the layout's own columns say the rest.
        extra = {key: data_value(key, text) for key, text in chosen.items() if key not in apart or places}
        tables.append(
            Table.of(
                rows,
                (_always(extra), *columns),
                caption=f"{caption}, {said}" if said else caption,
                footnotes=(*notes, *_counted(members), *_fixed(members, named), *provenance_notes(members)),
                settings=settings_of(members, named),
                label="-".join(f"{key}-{text}" for key, text in chosen.items()),
                doubt=lambda row: doubt_word(row.runs) if row.summary else "",
            )
        )
    return tuple(tables)


def _always(values: Mapping[str, Value]) -> Source[Runs]:
    """The same values of every row."""
    return lambda _: values


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


def setting(header: str, key: str) -> Column[Runs]:
    """A field."""
    return layout_column(header, lambda runs: data_value(key, FIELDS[key].show(runs.first)), left=key in LEFT)


def measure_column(header: str, measure: Measure, notation: Notation) -> Column[Runs]:
    """A measure of a row's runs. Where there is no mean of their steps, its column says why."""

    def why(runs: Runs) -> str:
        return runs.first.ending if measure.data == "mean_s" else NONE

    if measure.quantity is TIME and measure.data in Summary.__struct_fields__:
        return time_column(header, lambda runs: runs.summary, measure.data, notation, why)
    if measure.summary is not None:
        return time_column(header, measure.summary, "mean_s", notation)

    def scaled(runs: Runs) -> float | None:
        value = measure.read(runs)
        return value if value is None or measure.quantity.per == 1 else value / measure.quantity.per

    def text(runs: Runs) -> str:
        return measure.quantity.text(measure.read(runs)) if runs.summary or measure.read(runs) is not None else NONE

    return layout_column(header, scaled, text)


def part_column(header: str, key: str, notation: Notation, keep: Callable[[Result], bool]) -> Column[Runs]:
    """A measure of those of a row's runs that `keep` is true of; where there is none, why."""
    whole = measure_column(header, MEASURES[key], notation)

    return layout_column(
        header,
        lambda runs: whole.value(part) if (part := runs.only(keep)) else None,
        lambda runs: whole.cell(part) if (part := runs.only(keep)) else NONE,
    )


Maker = Callable[[str, Notation], Column[Runs]]
"""Makes a column from its header."""
REST = "*"
"""In the rows of a layout, all fields that tell the results apart and are not named."""


def value(read: Callable[[Runs], Value], show: Callable[[Runs], str] | None = None, *, left: bool = False) -> Maker:
    """A column of neither a field nor a measure, as `layout_column` makes it."""
    return lambda header, _: layout_column(header, read, show, left=left)


class Kept(NamedTuple):
    """The results that a layout shows, and notes on the others."""

    results: Sequence[Result]
    notes: Sequence[str] = ()


class Layout(NamedTuple):
    """A table for write-ups that is nothing but fields and measures, a row for each value of the fields `rows`.

    `columns` are fields or measures by key, or makers of columns, each by its header; with `names_rows` after those of
    the rows' fields, and without those of `optional` that nothing is known of. `apart` and `sort` are as of
    `tables_of`. Unless `is_silent`, notes say why cells have no numbers.
    """

    caption: str
    rows: tuple[str, ...]
    columns: Mapping[str, str | Maker]
    notes: tuple[str, ...] = ()
    unit: Unit = "ms"
    keep: Callable[[Sequence[Result]], Kept] = Kept
    optional: tuple[str, ...] = ()
    names_rows: bool = False
    apart: tuple[str, ...] = ()
    sort: Callable[[Runs], float] | None = None
    is_silent: bool = False

    def tables(self, results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
        """As `WriteUp.make`."""
        notation, kept = Notation(self.unit, decimals), self.keep(results)
        rest = telling(kept.results, but=self.rows)
        rows = tuple(chain.from_iterable(rest if key == REST else (key,) for key in self.rows))
        named = {FIELDS[key].title: key for key in rows} if self.names_rows else {}
        columns = [_column(header, source, notation) for header, source in (named | dict(self.columns)).items()]
        alone = list(map(Runs.of, measured(kept.results))) if self.optional else []
        known = [
            column
            for column in columns
            if column.key not in self.optional or any(column.value(runs) is not None for runs in alone)
        ]
        notes = (*self.notes, *kept.notes, *(() if self.is_silent else not_timed(kept.results)))
        return tables_of(kept.results, known, self.caption, notes, rows_by=rows, apart=self.apart, sort=self.sort)


def _column(header: str, source: str | Maker, notation: Notation) -> Column[Runs]:
    if not isinstance(source, str):
        return source(header, notation)
    return setting(header, source) if source in FIELDS else measure_column(header, MEASURES[source], notation)


def not_timed(results: Sequence[Result]) -> Iterator[str]:
    """Why cells have no numbers; what several say is said once."""
    without = ((each.spec.title, each.ending, each.cell.skipped_because) for each in results if not each.is_measured)
    yield from dict.fromkeys(f"{title}: {': '.join(filter(None, why))}" for title, *why in without)


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
