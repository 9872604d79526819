"""The columns of tables of results, by the keys that ``--columns`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from cs336_tui.analysis.fields import FIELDS, NUMBERS, num_params, threads_words
from cs336_tui.analysis.measures import BANDWIDTH, FLOP_RATE, MEASURES, QUANTILES, SIZE, Measure, Runs
from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.referee import agreeing
from cs336_tui.events.peaks import WRONG_PEAK
from cs336_tui.export.writing.tables import Column, Value
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import MILLISECONDS, NOT_MEASURED, UNKNOWN, UNSTATED, Notation, Rate, bandwidth, percent
from cs336_tui.stats.summaries import Summary

if TYPE_CHECKING:
    from cs336_tui.analysis.judgement import Judgement
    from cs336_tui.analysis.roofline import RooflinePoint
    from cs336_tui.stats.intervals import MeanInterval

LEFT = frozenset(FIELDS) - NUMBERS.keys() - {"params"} | {"vocab", "seed"}
"""Fields whose columns are set to the left."""
_SHORT = {"context": "ctx", "repeat": "run"}
"""Headings of fields on a screen, where these are others."""
_ROOM = 8
"""For ``1178.80`` and ``44.8k``; of spreads, such as ``0.0094``, one less."""
_SPREADS = ("std", "skew")


class ResultRow(NamedTuple):
    """A result with what its columns are made of."""

    result: Result
    runs: Runs
    notation: Notation = MILLISECONDS
    rate: Rate = Rate.for_all(())

    @property
    def cell(self) -> CellState:
        return self.result.cell

    @property
    def summary(self) -> Summary | None:
        return self.runs.summary

    @property
    def point(self) -> RooflinePoint | None:
        return self.runs.point

    @property
    def judgement(self) -> Judgement | None:
        from cs336_tui.export.writing.verdicts import judgement_of  # late: the app starts with the columns alone

        return judgement_of(self.cell, self.result.state)

    @property
    def interval(self) -> MeanInterval | None:
        return self.judgement.interval if self.judgement else None


def data_value(key: str, shown: str) -> Value:
    """The text of a field as data: numbers as numbers, None if there is none."""
    if not shown:
        return None
    try:
        return NUMBERS[key](shown) if key in NUMBERS else shown
    except ValueError:  # such as ``auto (12)`` steps
        return shown


def _field(key: str) -> Column[ResultRow]:
    field = FIELDS[key]

    def text(row: ResultRow) -> str:
        return field.show_done(row.result)

    return Column(
        key, field.title, key in LEFT, read=lambda row: data_value(key, text(row)), text=text, short=_SHORT.get(key)
    )


def _of(measure: Measure) -> Column[ResultRow]:
    """The column of a measure."""

    def text(row: ResultRow) -> str:
        value = measure.read(row.runs)
        if measure.quantity is FLOP_RATE:
            return row.rate.show(value)
        if measure.summary is None:
            return measure.quantity.text(value)
        found = measure.summary(row.runs)
        return row.notation.time(value, mean_s=found.mean_s, std_s=found.std_s) if found else UNKNOWN

    def read(row: ResultRow) -> float | None:
        return measure.read(row.runs)

    quantity, room = measure.quantity, _ROOM - 1 if measure.key in _SPREADS else _ROOM
    # On a screen the unit of a size is in its text and that of bandwidths above the table.
    short = measure.name if quantity in (SIZE, BANDWIDTH) else f"{measure.name} {quantity.unit}".rstrip()
    short = "FLOP/s" if quantity is FLOP_RATE else short
    return Column(measure.data, measure.heading, read=read, text=text, room=room, short=short)


def _judged(title: str, key: str, read: Callable[[Judgement], str]) -> Column[ResultRow]:
    """A text of the judgement; nothing is said of a cell without timings."""
    return Column(key, title, left=True, read=lambda row: read(row.judgement) if row.judgement else None)


def percent_of_measured(share: float | None, unknown: str = UNKNOWN) -> str:
    """A share of a measured peak in %, and that this is wrong where it must be."""
    return percent(share, unknown) + (" (wrong peak)" if (share or 0) > WRONG_PEAK else "")


def _share(key: str, show: Callable[[float | None, str], str], unknown: str) -> Column[ResultRow]:
    """A share of a peak, in %; `unknown` if a measured cell has no such peak."""
    measure = MEASURES[key]

    def text(row: ResultRow) -> str:
        return show(measure.read(row.runs), unknown) if row.point else UNKNOWN

    return _of(measure)._replace(text=text)


def _bandwidth(row: ResultRow) -> float | None:
    """Achieved at least, where that is the bound."""
    return row.point.bytes_per_s if row.point and row.point.bound == "bandwidth" else None


def _show_bandwidth(row: ResultRow) -> str:
    share = row.point.share_of_bandwidth if row.point else None
    return UNKNOWN if (found := _bandwidth(row)) is None else f"≥ {bandwidth(found)} (≥ {percent(share)} %)"


def _status(row: ResultRow) -> str:
    from cs336_tui.export.writing.footnotes import status_of  # late, as the judgement

    return status_of(row.cell)


def _agrees(row: ResultRow) -> str:
    found = agreeing(row.cell)
    return f"{found[0]} of {found[1]}" if found else ""


_DOUBT: Column[ResultRow] = Column(
    "measured_peak_doubt",
    "measured peak in doubt",
    left=True,
    read=lambda row: row.point.measured.doubt if row.point and row.point.measured else None,
    show=lambda doubt: doubt or UNKNOWN,
)
"""Goes into the data wherever a share of the measured peak does."""
_BY_RANK = (
    ("verdict",),
    ("memory", "rss", "warmup", "threads"),
    ("tokens", "skew", "seed", "sync"),
    ("flops", "algbw", "activations", "sheet"),
    ("interval", "peak", "compile_time", "whole"),
    ("device", "machine", "torch"),
    ("n", "params", "first_step", "within", "bandwidth"),
    ("energy",),
    ("tokens_per_joule", "reserved", "advice", "cell", "agrees"),
    ("status",),
    ("median",),
    ("min", "max", "p95", *QUANTILES, "unobservable", "peak_doubt"),
)
_RANKS = {key: rank for rank, keys in enumerate(_BY_RANK, 1) for key in keys}
"""Ranks of columns (`Column.rank`); those without one tell cells apart, or are the mean and its std.
The verdict goes last: notes tell the doubts, too."""
_COLUMNS: Mapping[str, Column[ResultRow]] = {
    **{key: _field(key) for key in FIELDS},
    "params": _field("params")._replace(key="num_params", read=lambda row: num_params(row.result)),
    # As it was asked for; what was in force is a footnote.
    "threads": _field("threads")._replace(
        read=lambda row: row.cell.spec.threads, text=lambda row: threads_words(row.cell.spec)
    ),
    "cell": Column("cell", read=lambda row: row.cell.cell, text=lambda row: str(row.cell.cell + 1), short="#"),
    **{key: _of(measure) for key, measure in MEASURES.items()},
    "sheet": _share("sheet", percent, UNSTATED),
    "peak": _share("peak", percent_of_measured, NOT_MEASURED)._replace(short="% peak", room=len("105 % wrong peak")),
    "verdict": _judged("verdict", "verdict", lambda judgement: judgement.label),
    "interval": Column(
        "interval_half_share",
        "95 % of mean (± %)",
        read=lambda row: row.interval.half_share if row.interval else None,
        text=lambda row: row.interval.half_width if row.interval else UNKNOWN,
    ),
    "unobservable": _judged(
        "not observable", "not_observable", lambda it: ", ".join(c.name for c in it.not_observable)
    ),
    "advice": _judged("warm-up advice", "warmup_advice", lambda judgement: judgement.warmup_advice),
    "peak_doubt": _DOUBT,
    "bandwidth": Column("min_bytes_per_s", "bandwidth (GB/s)", read=_bandwidth, text=_show_bandwidth),
    "agrees": Column("agrees_with_naive", "naive attention", text=_agrees, read=lambda row: _agrees(row) or None),
    "status": Column("status", left=True, read=lambda row: row.cell.status, text=_status),
}
COLUMNS = {key: column._replace(rank=_RANKS.get(key, 0)) for key, column in _COLUMNS.items()}
"""Every column, by the key that ``--columns`` takes."""
