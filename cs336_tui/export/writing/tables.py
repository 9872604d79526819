"""The one model of a table: for the screen, for plain text and for every export format."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple

import msgspec

from cs336_tui.stats.quantities import NONE, UNKNOWN, Units, counted

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from cs336_tui.config.spec import CellSpec
    from cs336_tui.events.kernel_report import KernelReport
    from cs336_tui.events.reports import MemoryReport
    from cs336_tui.stats.ratio import Ratio
    from cs336_tui.stats.summaries import Summary

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

Align = Literal["left", "right"]
Value = str | int | float | bool | None | tuple[float, ...]


def as_text(value: Value) -> str:
    """A value as it is; ``n/a`` for None."""
    return UNKNOWN if value is None else str(value)


class Column(NamedTuple, Generic[T]):
    """A column of items of type T. Code refers to it by `key`; only people read `title`."""

    key: str
    """Also the name of the value in JSON and CSV."""
    title: str | None = None
    """The heading, with its unit. None: the key."""
    left: bool = False
    """The side to which its texts are aligned."""
    rank: int = 0
    """Importance of the column: the highest rank is dropped first if not all fit; 0 stays."""
    read: Callable[[T], Value] | None = None
    """The raw value of an item, in base units. None: the item's record or attribute named `key`."""
    show: Callable[[Any], str] = as_text
    """The value as text; the title has the unit. For one unit and number of decimals, `Scale.text`."""
    text: Callable[[T], str] | None = None
    """Instead of `show`, if the text needs more than the value."""
    group: str = ""
    """A heading above those of neighbours with the same group; formats with one row of headings put it before each."""
    room: int = 0
    """The width of its widest plausible text, which the screen keeps free from the start: its texts arrive one by one.
    0: all texts are known, and decide."""
    short: str | None = None
    """The heading on a screen, of `units` without one. None: the title."""
    units: Units = ()
    """On a screen the column is in one of these units of its raw value: the one that suits all columns of the table
    that have the same. Empty: its texts are those of the files."""

    @property
    def heading(self) -> str:
        """The heading without the group's."""
        return self.key if self.title is None else self.title

    @property
    def header(self) -> str:
        """The heading after the group's."""
        return f"{self.group} {self.heading}" if self.group else self.heading

    @property
    def align(self) -> Align:
        return "left" if self.left else "right"

    def value(self, item: T, record: Mapping[str, Value] | None = None) -> Value:
        """The raw value of an item, which may be known from its record."""
        if self.read is not None:
            return self.read(item)
        found: Value = record[self.key] if record and self.key in record else getattr(item, self.key)
        return found

    def cell(self, item: T, record: Mapping[str, Value] | None = None) -> str:
        """The text of an item."""
        return self.show(self.value(item, record)) if self.text is None else self.text(item)


SIGN = re.compile(r"[†‡§¶~]\d* ")
"""The beginning of a note whose sign a row has."""


def notes_left(count: int) -> str:
    """The words for notes that are not shown."""
    return f"{counted(count, 'note')} on these numbers: -v shows {'them' if count > 1 else 'it'}"


Source = Column[T] | Callable[[T], Mapping[str, Value]]
"""A column, or values by key that programs alone get."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table of plain text, with its raw values; each format escapes the text as it must.

    `rows` are for people, one text per column. `records` are for programs: numbers that were not rounded, in base units
    (seconds, bytes) unless a key names another, None if unknown; all records have the same keys.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    records: tuple[dict[str, Value], ...] = ()
    caption: str = ""
    about: str = ""
    """Its caption in formats that refer to a table by one, if it has none of its own."""
    footnotes: tuple[str, ...] = ()
    settings: dict[str, Value] = {}
    """Settings of all rows that no column has, such as the context length: columns of every row in CSV alone. None
    if rows differ in it."""
    label: str = "results"
    """For references in LaTeX and Typst, without its prefix ``tab:``."""
    doubts: tuple[str, ...] = ()
    """For each row a word that says why its numbers are in doubt, empty for one that is not; of a table without doubts
    nothing. What has no room for notes shows it in their place."""
    findings: tuple[str, ...] = ()
    """The footnotes that say what was found, which are shown where notes are not, too."""
    behind: int = 0
    """The number of last rows that a finding stands for where notes are not shown."""
    raw: dict[str, tuple[Value, ...]] = {}
    """The raw values of the columns with `units`, by key."""

    @classmethod
    def of(
        cls,
        items: Iterable[T],
        columns: Iterable[Source[T]],
        *,
        record: Callable[[T], dict[str, Value]] | None = None,
        caption: str = "",
        footnotes: Iterable[str] = (),
        settings: Mapping[str, Value] | None = None,
        label: str = "results",
        doubt: Callable[[T], str] | None = None,
    ) -> Table:
        """A row per item. The records are the `values_of` the columns, unless `record` makes them."""
        items, sources = tuple(items), tuple(columns)
        shown = [source for source in sources if isinstance(source, Column)]
        made = [record(item) if record else values_of(sources, item) for item in items]
        return cls(
            columns=tuple(column._replace(read=None, show=as_text, text=None) for column in shown),
            rows=tuple(
                tuple(column.cell(item, found) for column in shown) for item, found in zip(items, made, strict=True)
            ),
            records=tuple(made),
            caption=caption,
            footnotes=tuple(footnotes),
            settings=dict(settings or {}),
            label=label,
            doubts=tuple(map(doubt, items)) if doubt else (),
            raw={c.key: tuple(map(c.value, items, made)) for c in shown if c.units},
        )

    @property
    def without_notes(self) -> Table:
        return msgspec.structs.replace(self, footnotes=())

    def with_notes(self, kept: Container[str]) -> Table:
        """The table with these notes and those of its signs alone, and with the number of the others."""
        notes = [note for note in self.footnotes if note in kept or SIGN.match(note)]
        left = len(self.footnotes) - len(notes)
        return msgspec.structs.replace(self, footnotes=(*notes, *((notes_left(left),) if left else ())))

    @property
    def in_brief(self) -> Table:
        """The table without the rows that a finding stands for."""
        shown = len(self.rows) - self.behind
        return msgspec.structs.replace(self, rows=self.rows[:shown], doubts=self.doubts[:shown], behind=0)

    @property
    def floating_caption(self) -> str:
        """The caption of a float, which is never empty: a label refers to it."""
        return self.caption or self.about or self.label.replace("-", " ").capitalize()

    def texts(self, key: str) -> tuple[str, ...]:
        """The texts of one column."""
        place = [column.key for column in self.columns].index(key)
        return tuple(row[place] for row in self.rows)

    def facts(self, place: int) -> dict[str, str]:
        """The texts of a row that say something, by heading."""
        texts = zip((column.header for column in self.columns), self.rows[place], strict=True)
        return {heading: text for heading, text in texts if text not in ("", NONE)}

    @property
    def alike(self) -> tuple[int, ...]:
        """The places of columns, but for the first, in which all of several rows say the same."""
        texts = zip(*self.rows, strict=True)
        return tuple(place for place, cells in enumerate(texts) if place and len(cells) > 1 and len({*cells}) == 1)

    def at(self, places: Iterable[int]) -> Table:
        """The table with the columns at these places alone; the records are the same."""
        kept = tuple(places)
        columns, *rows = (tuple(row[place] for place in kept) for row in (self.columns, *self.rows))
        return msgspec.structs.replace(self, columns=columns, rows=tuple(rows))

    def rows_at(self, places: Iterable[int]) -> Table:
        """The table with the rows and records at these places alone."""
        kept = tuple(places)
        rows, records = (tuple(each[place] for place in kept) for each in (self.rows, self.records))
        return msgspec.structs.replace(self, rows=rows, records=records)

    def without(self, *keys: str) -> Table:
        """The table without these columns; the records are the same."""
        return self.at(place for place, column in enumerate(self.columns) if column.key not in keys)


def fitted(
    widths: Sequence[int],
    ranks: Sequence[int | None],
    room: int,
    *,
    gap: int,
    most: int | None = None,
    least: Sequence[int] = (),
) -> dict[int, int]:
    """The columns that stay, by place, and the width of each in characters; each takes its `gap`, too.

    First columns with a rank go, the highest first and of one rank the last, while there are more than `most` or no
    room. Then those of rank 0 go from the right, as long as not even the `least` widths have room. Then what is left
    gives up width, the widest first, down to these, by default none. A column whose rank is None stays.
    """
    kept = dict(enumerate(widths))
    least = least or widths

    def is_over(taken: Iterable[int]) -> bool:
        return sum(taken) + gap * len(kept) > room

    for place in sorted(kept, key=lambda place: (-(ranks[place] or 0), -place)):
        if ranks[place] and (is_over(kept.values()) or len(kept) > (most or len(kept))):
            del kept[place]
    for place in reversed([*kept]):
        if ranks[place] is not None and is_over(least[place] for place in kept):
            del kept[place]
    while is_over(kept.values()) and (wide := [place for place, width in kept.items() if width > least[place]]):
        kept[max(wide, key=kept.__getitem__)] -= 1
    return kept


def values_of(sources: Iterable[Source[T]], item: T) -> dict[str, Value]:
    """The raw values of an item by key, in the order of their sources. A column adds none where its key has one
    already, nor where it has a `text` and does not `read`: that is for people alone."""
    record: dict[str, Value] = {}
    for source in sources:
        if not isinstance(source, Column):
            record |= source(item)
        elif source.key not in record and (source.read or not source.text):
            record[source.key] = source.value(item)
    return record


def cell_record(spec: CellSpec, *keys: str) -> dict[str, Value]:
    """Keys and values that tell cells apart in one list of records, as in CSV; if given, these keys alone. What is not
    known of a recording, and what a collective does not have, is None."""
    found: dict[str, Value] = {
        "size": spec.size_label, "context": spec.context_length, "batch": spec.batch_size, "pass": spec.pass_,
        "variants": ", ".join(spec.variants), "precision": spec.precision, "device": spec.device,
    }  # fmt: skip
    if spec.is_collective:
        found |= dict.fromkeys(("context", "batch", "pass"))
    if spec.recording:
        found = dict.fromkeys(found) | {"device": spec.device, "recording": spec.recording}
    return {key: found[key] for key in keys or found}


def summary_record(name: str, summary: Summary | None) -> dict[str, Value]:
    """Mean, std and number of the steps of a side, in seconds."""
    return attributes(summary, "mean_s", "std_s", prefix=f"{name}_") | {f"{name}_n": summary.n if summary else 0}


def ratio_record(ratio: Ratio | None, *keys: str) -> dict[str, Value]:
    """The fields of a ratio, all but the ratio itself unless `keys` name it."""
    return attributes(ratio, *keys, "low", "high", "level", "method")


def attributes(of: object, *names: str, prefix: str = "", **renamed: str) -> dict[str, Any]:
    """These attributes by name after a `prefix`, and those of `renamed` by other keys; all None of None."""
    keys = {f"{prefix}{name}": name for name in names} | renamed
    return {key: None if of is None else getattr(of, name) for key, name in keys.items()}


def known(template: str, unknown: str = UNKNOWN) -> Callable[[Any], str]:
    """Shows a value in a format such as ``{:.3g}``, and None as `unknown`."""
    return lambda value: unknown if value is None else template.format(value)


def report_table(
    report: KernelReport | MemoryReport,
    label: str,
    items: Iterable[T],
    columns: Iterable[Source[T]],
    what: str,
    footnotes: Iterable[str],
    *,
    record: Callable[[T], Mapping[str, Value]] | None = None,
    kind: str = "",
) -> Table:
    """A table of one report, as `Table.of` makes it. Its records begin with `kind`, if given, and the cell."""
    spec, columns = report.spec, tuple(columns)
    first: dict[str, Value] = {"table": kind} if kind else {}
    first |= cell_record(spec)
    as_record = record or (lambda item: values_of(columns, item))
    made = Table.of(items, columns, record=lambda item: first | dict(as_record(item)), footnotes=footnotes)
    caption = f"{what}: {spec.heading} · {report.device_name}, torch {report.torch}"
    return msgspec.structs.replace(made, caption=caption, label=f"{label}-{spec.title}")
