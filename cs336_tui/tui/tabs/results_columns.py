"""The columns of the Results tab: those of exports, in another order of importance, filled as cells run. Each that is
filled has its room from the start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from cs336_tui.analysis.fields import FIELDS, shown_of, warmup_done
from cs336_tui.analysis.measures import FLOP_RATE, MEASURES, QUANTILES, SIZE, Energy, Quantity, Runs, allocated_bytes
from cs336_tui.analysis.merge import Result
from cs336_tui.events.peaks import WRONG_PEAK
from cs336_tui.export.subjects.results_columns import COLUMNS, ResultRow
from cs336_tui.export.writing.tables import Column, Value
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import MILLISECONDS, percent
from cs336_tui.stats.summaries import Summary
from cs336_tui.tui import format
from cs336_tui.tui.format import CELL_KEYS, cell_columns, unique_names
from cs336_tui.tui.judging import Assessment
from cs336_tui.tui.tabs.status import VERDICT_ROOM, verdict

if TYPE_CHECKING:
    from cs336_tui.analysis.roofline import RooflinePoint


class _Runs(Runs):
    """A cell alone: its statistics so far while it runs, under the ceilings that were found for it."""

    def __init__(self, result: Result, found: Assessment | None) -> None:
        super().__init__((result,), result.state.ddof, alone=True)
        self._found = found

    @cached_property
    def summary(self) -> Summary | None:
        """Without reading the steps of a finished cell from its file."""
        cell = self.first.cell
        if cell.finished is None:
            return cell.running.summary(self.ddof)
        known = cell.finished.summary
        return known.with_ddof(self.ddof) if known and known.n else cell.summary(self.ddof)

    @cached_property
    def points(self) -> Sequence[RooflinePoint]:
        return [self._found.limit] if self._found and self._found.limit else []

    @cached_property
    def energy(self) -> Energy:
        """As it was worked out aside: it takes the samples of the whole cell."""
        return self._found.energy if self._found and self._found.energy else Energy()


class ShownRow(msgspec.Struct, frozen=True, dict=True):
    """A row's cell, with its verdicts. The columns of exports read it in place of a `ResultRow`; what they need for
    that is made where one does, as a session can have thousands of rows."""

    state: SessionState
    cell: CellState
    found: Assessment | None
    notation: ClassVar = MILLISECONDS

    @property
    def result(self) -> Result:
        return Result(0, "", self.state, self.cell)

    @cached_property
    def runs(self) -> Runs:
        return _Runs(self.result, self.found)

    @property
    def share_of_peak(self) -> float | None:
        """Of the measured peak; if there is none, of the data sheet's."""
        running = self.cell.running
        return self.found.share_of_peak(running.mean) if self.found and running.n else None


ASKED = (*CELL_KEYS, "warmup", "repeat")
"""Columns, beside those of variants, whose texts are known before a cell runs."""
_NEVER_DROPPED, TELLING, VERDICT, STD = range(4)
"""Ranks of the mean, of choices in which cells differ, of the verdict and of the std."""
_OF_STEPS: Mapping[str, Callable[[ShownRow], float | None]] = {
    "n": lambda row: row.cell.running.n,
    "mean": lambda row: row.cell.running.mean if row.cell.running.n else None,
    "std": lambda row: row.cell.running.std(row.state.ddof),
}
"""Measures that are known without the cell's steps."""
_SO_FAR = ("tokens", "skew", "algbw", "busbw")
"""Others that are known while it runs."""
_SHOWN: Mapping[Quantity, Callable[[Any], str]] = {SIZE: format.size, FLOP_RATE: format.flops}
"""Numbers that have a unit each, as they come one by one."""


def shortened(texts: Sequence[str]) -> list[str]:
    """The texts of a row with short names of passes."""
    return [format.SHORT_PASSES.get(text, text) for text in texts]


def result_columns(cells: Sequence[CellState], variants: Mapping[str, set[str]]) -> tuple[Column[ShownRow], ...]:
    """The columns for these cells, with those of variants in which they differ. Where every cell is a collective, both
    bandwidths are in GB/s."""
    several = {key: shown for key, shown in variants.items() if len(shown) > 1}
    repeats = {"repeat": 4} if any(cell.repeat > 1 for cell in cells) else {}
    if cells and all(cell.spec.is_collective for cell in cells):
        others = dict.fromkeys((key for key in several if key not in ("op", "ranks", "workload")), 1)
        ranks = {"cell": 9, "op": 0, "size": 0, "ranks": 0, **others, "precision": 8, "device": 10, "warmup": 7, "n": 6,
                 "mean": 0, "std": 5, "skew": 4, "algbw": 5, "busbw": 0, "verdict": VERDICT, "median": 11, "memory": 12,
                 **repeats}  # fmt: skip
        return _ranked(ranks, cells)
    names = {key: unique_names(shown) for key, shown in several.items()}
    ranks = {"context": 5, "batch": 8, "pass": 4, "precision": 4, "device": 10, "model": _NEVER_DROPPED}
    recorded = bool(cells) and all(cell.spec.recording for cell in cells)
    skew = {"skew": 4} if any(cell.spec.ranks > 1 for cell in cells) else {}
    results = {"warmup": 7, "n": 6, "mean": _NEVER_DROPPED, "std": STD, "verdict": VERDICT, "median": 11, **skew,
               "tokens": 4, "flops": 12, "peak": 13, "memory": 5, **repeats}  # fmt: skip
    of_cells = cell_columns(lambda row: row.cell.spec, ranks, names, recorded=recorded)
    return *_ranked({"cell": 9}, cells), *of_cells, *_ranked(results, cells)


_ALIKE = {"rss": "memory", "sheet": "peak"}
"""Columns of exports that are one here with another."""


def named_columns(names: Sequence[str], columns: Sequence[Column[ShownRow]]) -> tuple[Column[ShownRow], ...]:
    """The columns of these names, as `export --columns` has them, in their order: the last is dropped first. Every
    choice has a column, also one in which the cells do not differ; what only exports have is left out."""
    known = {column.key: column for column in columns}
    found: dict[str, Column[ShownRow]] = {}
    for name in names:
        key = _ALIKE.get(name, name)
        is_choice = key in FIELDS and FIELDS[key].kind in ("choice", "model") and key != "params"
        if key in known or is_choice or key in MEASURES:
            found[key] = known.get(key) or _column(key)
    return tuple(column._replace(rank=rank) for rank, column in enumerate(found.values()))


def _share(row: ShownRow) -> str:
    """In % of the measured peak; if there is none, of the data sheet's, and so named."""
    share = row.share_of_peak if row.cell.is_over else None
    if share is None or row.found is None:
        return format.NOT_YET
    of = " % of spec" if not row.found.peak_is_measured else " % wrong peak" if share > WRONG_PEAK else ""
    return f"{percent(share)}{of}"


def _peak(row: ShownRow) -> float | None:
    """Allocated as the device counts it, else of tensors, else of the process."""
    allocated = allocated_bytes(row.cell)
    return MEASURES["memory"].figure(Runs.of(row.result))[0] if allocated is None else allocated


def _judged(row: ShownRow) -> str | None:
    """The verdicts by which cells are sorted: doubted ones after the others."""
    judgement = row.found.judgement if row.found else None
    return f"{judgement.is_doubted:d} {judgement.label}" if judgement else None


_OWN: Mapping[str, Mapping[str, Any]] = {
    "verdict": {"read": _judged, "text": lambda row: verdict(row.cell, row.found).text, "room": VERDICT_ROOM},
    "memory": {"title": "peak", "read": lambda row: _peak(row), "text": None, "show": format.size},
    "peak": {"read": lambda row: row.share_of_peak, "text": _share},
}
"""Columns that the tab reads and shows otherwise."""


def _ranked(ranks: Mapping[str, int], cells: Iterable[CellState]) -> tuple[Column[ShownRow], ...]:
    """The columns of these keys with their ranks."""
    return tuple(_column(key, cells)._replace(rank=rank) for key, rank in ranks.items())


def _column(key: str, cells: Iterable[CellState] = ()) -> Column[ShownRow]:
    """The exported column as the tab has it, with room for what these cells come to."""
    exported: Column[Any] = COLUMNS[key]
    title = (exported.short or exported.header).format(unit=MILLISECONDS.symbol)
    column = exported._replace(key=key, title=title)._replace(**_OWN.get(key, {}))
    if key in _OWN or key == "cell":
        return column
    if key == "warmup":  # an automatic one tells the number of its steps, once it is over
        open_ = (cell.spec for cell in cells if cell.spec.warmup_is_open)
        most = max((len(f"{shown_of(spec, key)} ({spec.warmup_steps})") for spec in open_), default=0)
        return column._replace(read=None, text=lambda row: warmup_done(row.cell), room=most)
    if key in FIELDS:
        return column._replace(read=None, text=lambda row: FIELDS[key].show(row.result))
    if key == "n":
        column = column._replace(room=len(str(max((cell.spec.measure_steps for cell in cells), default=1))))
    show = _SHOWN.get(MEASURES[key].quantity)

    def source(row: ShownRow) -> ShownRow | ResultRow:
        """The row; old logs lack quantiles, for which alone all steps are read."""
        return ResultRow(row.result, Runs.of(row.result)) if key in QUANTILES else row

    def read(row: ShownRow) -> Value:
        if key in _OF_STEPS:
            return _OF_STEPS[key](row)
        return exported.value(source(row)) if key in _SO_FAR or row.cell.is_over else None

    def text(row: ShownRow) -> str:
        value = read(row)
        if value is None:
            return format.NOT_YET
        return show(value) if show else exported.cell(source(row))

    return column._replace(read=read, text=text)


def sort_value(column: Column[ShownRow], row: ShownRow) -> Any:
    """The value by which cells are sorted, comparable within the column; None while it is not known. What is measured
    counts once the cell is over: a running one keeps its row."""
    if column.key in FIELDS and not row.cell.spec.recording:
        return FIELDS[column.key].order(row.result)
    if column.read is None:
        return column.cell(row)
    return column.read(row) if row.cell.is_over or not column.room else None
