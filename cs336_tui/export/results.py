"""The results of one session or several as a table: a row per cell, the chosen columns, what the numbers mean below."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cs336_tui.events import CellFinished
from cs336_tui.export.cells import has_result, shows_allocated, shows_rss, status_of
from cs336_tui.export.footnotes import machine_marks, results_notes
from cs336_tui.export.markdown import Align
from cs336_tui.export.notation import MILLISECONDS, Notation
from cs336_tui.export.provenance import SETTINGS
from cs336_tui.export.tables import Column, Table, Value
from cs336_tui.quantities import count, gigabytes
from cs336_tui.session.fields import FIELDS, num_params
from cs336_tui.session.merge import Result
from cs336_tui.session.state import CellState
from cs336_tui.stats import Summary

LEFT = frozenset(
    ("size", "pass", "precision", "device", "machine", "session", "edition", "arch", "vocab", "sync", "seed", "threads",
     "torch")
)  # fmt: skip
"""Fields whose columns are set to the left."""

_WHOLE_NUMBERS = frozenset(
    ("vocab", "context", "batch", "warmup", "steps", "seed", "repeat", "d_model", "d_ff", "num_layers", "num_heads")
)
_MODEL = ("size", "context", "batch", "pass", "precision", "device")
_MAY_VARY = ("edition", "arch", "vocab", "sync", "seed", "threads", "repeat")
_TIMES = ("warmup", "n", "mean", "std", "median", "min", "max", "tokens")


class TableError(ValueError):
    """A table that cannot be made as asked; one line names the value and what is allowed."""


class _Row(NamedTuple):
    result: Result
    summary: Summary | None
    notation: Notation

    @property
    def cell(self) -> CellState:
        return self.result.cell

    @property
    def n(self) -> int:
        return self.summary.n if self.summary else 0

    @property
    def finished(self) -> CellFinished | None:
        return self.result.cell.finished


class _Source(NamedTuple):
    """A column that can be asked for: what it shows, and the same as data, under its name there."""

    header: str
    show: Callable[[_Row], str]
    name: str
    read: Callable[[_Row], Value]
    align: Align = "right"


def data_value(key: str, shown: str) -> Value:
    """What a field shows, as data: numbers as numbers."""
    return int(shown) if key in _WHOLE_NUMBERS and shown.isdigit() else shown


def _field(key: str) -> _Source:
    field = FIELDS[key]
    return _Source(
        field.title,
        lambda row: field.show(row.result),
        key,
        lambda row: data_value(key, field.show(row.result)),
        "left" if key in LEFT else "right",
    )


def _statistic(word: str) -> _Source:
    name = f"{word}_s"
    return _Source(
        f"{word} ({{unit}})",
        lambda row: row.notation.of(row.summary, name),
        name,
        lambda row: row.summary[name] if row.summary else None,
    )


def _peak(header: str, name: str) -> _Source:
    def read(row: _Row) -> int | None:
        found: int | None = getattr(row.finished, name) if row.finished else None
        return found

    return _Source(f"{header} (GB)", lambda row: gigabytes(read(row)), name, read)


_threads = SETTINGS["threads"]
COLUMNS: Mapping[str, _Source] = {
    **{key: _field(key) for key in FIELDS},
    "params": _field("params")._replace(name="num_params", read=lambda row: num_params(row.result)),
    # As it was asked for; what was in force is a footnote.
    "threads": _field("threads")._replace(
        show=lambda row: _threads(row.cell.spec), read=lambda row: row.cell.spec.threads
    ),
    "cell": _Source("cell", lambda row: str(row.cell.cell + 1), "cell", lambda row: row.cell.cell),
    "n": _Source("n", lambda row: str(row.n), "n", lambda row: row.n),
    **{word: _statistic(word) for word in ("mean", "std", "median", "min", "max", "p95")},
    "tokens": _Source(
        "tokens/s", lambda row: count(row.cell.tokens_per_s), "tokens_per_s", lambda row: row.cell.tokens_per_s
    ),
    "memory": _peak("peak allocated", "peak_allocated_bytes"),
    "reserved": _peak("peak reserved", "peak_reserved_bytes"),
    "rss": _peak("peak RSS", "peak_rss_bytes"),
    "status": _Source("status", lambda row: status_of(row.cell), "status", lambda row: row.cell.status, "left"),
}
"""What a column can show, by the key that ``--columns`` takes."""


def results_table(
    results: Sequence[Result],
    *,
    columns: Sequence[str] | None = None,
    notation: Notation = MILLISECONDS,
    caption: str = "",
) -> Table:
    """A row per result that is over or has a timed step, in order.

    Without `columns` those are shown that tell the results apart, and every statistic. A cell that ran on another
    machine, device or torch than its session's first one is marked. Raises `TableError` for a column that does not
    exist, or when there is nothing to show.
    """
    shown = [result for result in results if has_result(result.cell)]
    if unknown := [key for key in columns or () if key not in COLUMNS]:
        raise TableError(f"column {unknown[0]}: expected some of {', '.join(COLUMNS)}")
    if not shown:
        raise TableError("no cell has a result yet")
    sources = [COLUMNS[key] for key in columns or default_columns(shown)]
    marks = machine_marks(shown)
    rows: list[tuple[str, ...]] = []
    records: list[dict[str, Value]] = []
    for result in shown:
        row = _Row(result, result.cell.summary(result.state.ddof), notation)
        first, *rest = (source.show(row) for source in sources)
        mark = marks.of(result)
        rows.append((f"{first} {mark}" if mark else first, *rest))
        records.append({source.name: source.read(row) for source in sources})
    return Table(
        columns=tuple(Column(source.header.format(unit=notation.symbol), source.align) for source in sources),
        rows=tuple(rows),
        records=tuple(records),
        caption=caption,
        footnotes=(*marks.notes, *results_notes(results, notation)),
    )


def default_columns(results: Sequence[Result]) -> tuple[str, ...]:
    """Those that every results table has, and of the others those whose values differ."""

    def varies(key: str) -> bool:
        shown = _threads if key == "threads" else None
        return len({shown(result.spec) if shown else FIELDS[key].show(result) for result in results}) > 1

    several = len({result.source for result in results}) > 1
    cells = [result.cell for result in results]
    return (
        *(key for key in ("session", "machine") if several and varies(key)),
        *_MODEL,
        *filter(varies, _MAY_VARY),
        *_TIMES,
        *("memory",) * shows_allocated(cells),
        *("rss",) * shows_rss(cells),
        "status",
    )
