"""The columns of the Results tab. Each that is filled as cells run has its room from the start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from cs336_tui.analysis.fields import FIELDS, NUMBERS, shown_of
from cs336_tui.analysis.measures import BANDWIDTH, FLOP_RATE, MEASURES, RATE, SIZE, TIME, Measure, Runs, peak_bytes
from cs336_tui.analysis.merge import Result
from cs336_tui.config.counts import duration_words
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.peaks import WRONG_PEAK
from cs336_tui.export.tables import Column
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.tui import format
from cs336_tui.tui.judging import Assessment
from cs336_tui.tui.tabs import status
from cs336_tui.tui.tabs.status import VERDICT_ROOM, verdict
from cs336_tui.tui.titles import CELL_KEYS, cell_columns, unique_names


class ShownCell(msgspec.Struct, frozen=True):
    """A row's cell, with its verdicts."""

    state: SessionState
    cell: CellState
    found: Assessment | None

    @property
    def mean_s(self) -> float | None:
        return self.cell.running.mean if self.cell.running.n else None

    @property
    def std_s(self) -> float | None:
        return self.cell.running.std(self.state.ddof)

    @property
    def median_s(self) -> float | None:
        summary = self.cell.summary(1) if self.cell.is_over else None
        return summary.median_s if summary else None

    @property
    def warmup(self) -> str:
        """The setting; if it is automatic, with the number of steps that it took."""
        spec, finished = self.cell.spec, self.cell.finished
        if not spec.warmup_is_open:
            return str(spec.warmup_steps)
        word = _warmup_words(spec)
        return f"{word} ({finished.warmup_steps_done})" if finished else word

    @property
    def runs(self) -> Runs:
        """The cell, of which measures are read."""
        return Runs.of(Result(0, "", self.state, self.cell))

    @property
    def share_of_peak(self) -> str:
        """In % of the measured peak; if there is none, of the data sheet's, and so named."""
        found = self.found
        share = found.share_of_peak(self.cell.running.mean) if found and self.cell.is_over else None
        if share is None or found is None:
            return format.NOT_YET
        of = " % of spec" if not found.peak_is_measured else " % wrong peak" if share > WRONG_PEAK else ""
        return f"{share * 100:.3g}{of}"


ASKED = (*CELL_KEYS, "warmup", "run")
"""Columns, beside those of variants, whose texts are known before a cell runs."""
_TIME, _SPREAD, _RATE, _SHARE = 8, 7, 8, 16
"""Room for ``1178.80``, ``0.0094``, ``44.8k`` and ``53.3 % of spec``."""
_NEVER_DROPPED, TELLING, VERDICT, STD = range(4)
"""Ranks of the mean, of choices in which cells differ, of the verdict and of the std."""


def shortened(texts: Sequence[str]) -> list[str]:
    """The texts of a row with short names of passes."""
    return [format.SHORT_PASSES.get(text, text) for text in texts]


def result_columns(cells: Sequence[CellState], variants: Mapping[str, set[str]]) -> tuple[Column[ShownCell], ...]:
    """The columns for these cells, with those of variants in which they differ."""
    if cells and all(cell.spec.is_collective for cell in cells):
        return _of_collectives(cells, variants)
    names = {key: unique_names(shown) for key, shown in variants.items() if len(shown) > 1}
    ranks = {"context": 5, "batch": 8, "pass": 4, "precision": 4, "device": 10, "model": _NEVER_DROPPED}
    recorded = bool(cells) and all(cell.spec.recording for cell in cells)
    return (
        _NUMBER,
        *cell_columns(lambda item: item.cell.spec, ranks, names, recorded=recorded),
        _warmup(cells),
        _count(cells),
        _MEAN,
        _std(STD),
        _verdict(VERDICT),
        _MEDIAN,
        *([_measured("skew", 4)] if any(cell.spec.ranks > 1 for cell in cells) else []),
        _measured("tokens", 4),
        Column("flops", "FLOP/s", rank=12, read=_flops_per_s, show=format.flops, room=_RATE),
        Column("share_of_peak", "% peak", rank=13, read=_share, text=lambda item: item.share_of_peak, room=_SHARE),
        _peak(5),
        *_run(cells),
    )


_OF_EXPORTS = {"cell": "#", "memory": "peak", "rss": "peak", "peak": "share_of_peak", "sheet": "share_of_peak"}
"""Keys of columns here, by the names in exports, where these differ."""


def named_columns(names: Sequence[str], columns: Sequence[Column[ShownCell]]) -> tuple[Column[ShownCell], ...]:
    """The columns of these names, as `export --columns` has them, in their order: the last is dropped first. Every
    choice has a column, also one in which the cells do not differ; what only exports have is left out."""
    known = {column.key: column for column in columns}
    found: dict[str, Column[ShownCell]] = {}
    for name in names:
        key = _OF_EXPORTS.get(name, name)
        if key in known:
            found[key] = known[key]
        elif key in MEASURES:
            found[key] = _measured(key)
        elif key in FIELDS and FIELDS[key].kind in ("choice", "model") and key != "params":
            found[key] = _choice(key)
    return tuple(column._replace(rank=rank) for rank, column in enumerate(found.values()))


def _choice(key: str, rank: int = _NEVER_DROPPED) -> Column[ShownCell]:
    return Column(key, FIELDS[key].title, key not in NUMBERS, rank, text=lambda item: shown_of(item.cell.spec, key))


def _of_collectives(cells: Sequence[CellState], variants: Mapping[str, set[str]]) -> tuple[Column[ShownCell], ...]:
    """The columns where every cell is a collective; both bandwidths are in GB/s."""
    others = (key for key, shown in variants.items() if len(shown) > 1 and key not in ("op", "ranks", "workload"))
    return (
        _NUMBER,
        *map(_choice, ("op", "size", "ranks")),
        *(_choice(key, 1) for key in others),
        _choice("precision", 8),
        _choice("device", 10),
        _warmup(cells),
        _count(cells),
        _MEAN,
        _std(5),
        _measured("skew", 4),
        _measured("algbw", 5),
        _measured("busbw"),
        _verdict(VERDICT),
        _MEDIAN,
        _peak(12),
        *_run(cells),
    )


_ROOMS = {TIME: _TIME, RATE: _RATE, SIZE: _RATE, BANDWIDTH: _TIME}
_SO_FAR = ("tokens", "skew", "algbw", "busbw")
"""Measures that are known while a cell runs."""


def _measured(key: str, rank: int = _NEVER_DROPPED) -> Column[ShownCell]:
    """The column of a measure."""
    measure = MEASURES[key]

    def read(item: ShownCell) -> float | None:
        return measure.read(item.runs) if key in _SO_FAR or item.cell.is_over else None

    room = _SPREAD if key == "skew" else _ROOMS.get(measure.quantity, _TIME)
    return Column(
        key, _heading(measure), rank=rank, read=read, text=lambda item: _text(measure, item, read(item)), room=room
    )


def _heading(measure: Measure) -> str:
    if measure.quantity is TIME:
        return f"{measure.name} ms"
    if measure.quantity is FLOP_RATE:
        return "FLOP/s"
    of_itself = measure.quantity in (SIZE, BANDWIDTH) or not measure.quantity.unit
    return measure.name if of_itself else f"{measure.name} {measure.quantity.unit}"


def _text(measure: Measure, item: ShownCell, value: float | None) -> str:
    if value is None:
        return format.NOT_YET
    if measure.summary is not None:
        summary = measure.summary(item.runs)
        return format.ms(value, summary.std_s if summary else None)
    if measure.quantity is FLOP_RATE:
        return format.flops(value)
    return format.size(value) if measure.quantity is SIZE else measure.quantity.text(value)


_NUMBER: Column[ShownCell] = Column("#", rank=9, text=lambda item: str(status.number(item.cell)))


def _of_steps(key: str, rank: int = _NEVER_DROPPED, room: int = _TIME) -> Column[ShownCell]:
    """The column of a statistic that is known without the cell's steps, by its attribute."""
    read = attrgetter(f"{key}_s")
    return Column(key, f"{key} ms", rank=rank, read=read, text=lambda i: format.ms(read(i), i.std_s), room=room)


_MEAN, _MEDIAN = _of_steps("mean"), _of_steps("median", 11)


def _std(rank: int) -> Column[ShownCell]:
    return _of_steps("std", rank, _SPREAD)


def _verdict(rank: int) -> Column[ShownCell]:
    return Column(
        "verdict",
        left=True,
        rank=rank,
        read=_judged,
        text=lambda item: verdict(item.cell, item.found, whole=False).text,
        room=VERDICT_ROOM,
    )


def _peak(rank: int) -> Column[ShownCell]:
    return Column("peak", rank=rank, read=lambda item: peak_bytes(item.cell), show=format.size, room=_RATE)


def _warmup(cells: Iterable[CellState]) -> Column[ShownCell]:
    """With room for the number of steps that an automatic warm-up takes."""
    most = [len(f"{_warmup_words(cell.spec)} ({cell.spec.warmup_steps})") for cell in cells if cell.spec.warmup_is_open]
    return Column("warmup", "warm-up", rank=7, room=max(most, default=0))


def _warmup_words(spec: CellSpec) -> str:
    return "auto" if spec.warmup_for is None else duration_words(spec.warmup_for)


def _count(cells: Iterable[CellState]) -> Column[ShownCell]:
    most = max((cell.spec.measure_steps for cell in cells), default=1)
    return Column("n", rank=6, read=lambda item: item.cell.running.n, room=len(str(most)))


def _run(cells: Iterable[CellState]) -> list[Column[ShownCell]]:
    repeats = any(cell.repeat > 1 for cell in cells)
    return [Column("run", rank=4, read=lambda item: item.cell.repeat)] if repeats else []


def _flops_per_s(item: ShownCell) -> float | None:
    return item.found.limit.flops_per_s if item.found and item.found.limit else None


def _share(item: ShownCell) -> float | None:
    return item.found.share_of_peak(item.mean_s) if item.found and item.mean_s else None


def _judged(item: ShownCell) -> str | None:
    """The verdicts by which cells are sorted: doubted ones after the others."""
    judgement = item.found.judgement if item.found else None
    return f"{judgement.is_doubted:d} {judgement.label}" if judgement else None


def sort_value(column: Column[ShownCell], item: ShownCell) -> Any:
    """The value by which cells are sorted, comparable within the column; None while it is not known. What is measured
    counts once the cell is over: a running one keeps its row."""
    if column.key == _NUMBER.key:
        return item.cell.cell
    if column.key in FIELDS and not item.cell.spec.recording:
        return FIELDS[column.key].order(Result(0, "", item.state, item.cell))
    if column.read is None:
        return column.cell(item)
    return column.read(item) if item.cell.is_over or not column.room else None
