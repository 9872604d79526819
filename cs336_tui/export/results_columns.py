"""The columns of tables of results, by the keys that ``--columns`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from cs336_tui.analysis.collectives import algbw, busbw, mean_step_s
from cs336_tui.analysis.energy import Energy
from cs336_tui.analysis.fields import FIELDS, NUMBERS, num_params
from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.roofline import RooflinePoint
from cs336_tui.config.spec import CellSpec
from cs336_tui.export.footnotes import status_of
from cs336_tui.export.peaks import percent_of_measured
from cs336_tui.export.provenance import SETTINGS
from cs336_tui.export.roofline import NOT_MEASURED
from cs336_tui.export.tables import Column, Value, known
from cs336_tui.export.verdicts import half_width, judgement_of
from cs336_tui.session.state import ActivationPeak
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import UNKNOWN, UNSTATED, Notation, Rate, bandwidth, count, gigabytes, percent
from cs336_tui.stats.summaries import Summary

if TYPE_CHECKING:
    from cs336_tui.analysis.judgement import Judgement
    from cs336_tui.stats.intervals import MeanInterval


LEFT = frozenset(FIELDS) - NUMBERS.keys() - {"params"} | {"vocab", "seed"}
"""Fields whose columns are set to the left."""
QUANTILES = ("p20", "p80")
"""Quantiles of the step times, beside the median, as `triton.testing.do_bench` gives them."""


class ResultRow(NamedTuple):
    """A result with what its columns are made of."""

    result: Result
    summary: Summary | None
    point: RooflinePoint | None
    energy: Energy
    notation: Notation
    rate: Rate

    @property
    def cell(self) -> CellState:
        return self.result.cell

    @property
    def judgement(self) -> Judgement | None:
        return judgement_of(self.cell, self.result.state)

    @property
    def activations(self) -> ActivationPeak | None:
        return self.result.state.activation_peak_of(self.cell.spec)

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
    return Column(
        key,
        field.title,
        key in LEFT,
        read=lambda row: data_value(key, field.show_done(row.result)),
        text=lambda row: field.show_done(row.result),
    )


def _statistic(word: str) -> Column[ResultRow]:
    key = f"{word}_s"
    return Column(
        key,
        f"{word} ({{unit}})",
        read=lambda row: row.summary[key] if row.summary else None,
        text=lambda row: row.notation.of(row.summary, key),
    )


def _peak(title: str, key: str) -> Column[ResultRow]:
    return Column(key, f"{title} (GB)", read=lambda row: getattr(row.cell.finished, key, None), show=gigabytes)


def _judged(title: str, key: str, read: Callable[[Judgement], str]) -> Column[ResultRow]:
    """A text of the judgement; nothing is said of a cell without timings."""
    return Column(key, title, left=True, read=lambda row: read(row.judgement) if row.judgement else None)


def _share(title: str, key: str, read: Callable[[RooflinePoint], float | None], unknown: str) -> Column[ResultRow]:
    """A share of a peak, in %; `unknown` if a measured cell has no such peak."""
    in_words = percent_of_measured if key == "share_of_measured_peak" else percent

    def text(row: ResultRow) -> str:
        return in_words(read(row.point), unknown) if row.point else UNKNOWN

    return Column(key, title, read=lambda row: read(row.point) if row.point else None, text=text)


def _bandwidth(row: ResultRow) -> float | None:
    """Achieved at least, where that is the bound."""
    return row.point.bytes_per_s if row.point and row.point.bound == "bandwidth" else None


def _of_message(key: str, compute: Callable[[CellSpec, float], float]) -> Column[ResultRow]:
    """A bandwidth of a collective over its mean step time."""

    def read(row: ResultRow) -> float | None:
        step_s = mean_step_s(row.result)
        return None if step_s is None else compute(row.result.spec, step_s)

    return Column(f"{key}_bytes_per_s", f"{key} (GB/s)", read=read, show=bandwidth)


def _show_bandwidth(row: ResultRow) -> str:
    found = _bandwidth(row)
    share = row.point.share_of_bandwidth if row.point else None
    return UNKNOWN if found is None else f"≥ {bandwidth(found)} (≥ {percent(share)} %)"


def compile_s_of(row: ResultRow) -> float | None:
    """The time of torch.compile before the first step; in no step's time."""
    return row.cell.prepared.compile_s if row.cell.prepared else None


def _skew_s(row: ResultRow) -> float | None:
    """Mean over the measured steps of several ranks."""
    skew = row.cell.skew
    return skew.mean if skew.n else None


def _show_skew(row: ResultRow) -> str:
    mean_s = _skew_s(row)
    return row.notation.time(mean_s, mean_s=mean_s, std_s=row.cell.skew.std(row.result.state.ddof))


_DOUBT: Column[ResultRow] = Column(
    "measured_peak_doubt",
    "measured peak in doubt",
    left=True,
    read=lambda row: row.point.measured.doubt if row.point and row.point.measured else None,
    show=lambda doubt: doubt or UNKNOWN,
)
"""Goes into the data wherever a share of the measured peak does."""
_RANKS: Mapping[str, int] = {
    "verdict": 1,
    "memory": 2,
    "rss": 2,
    "warmup": 2,
    "threads": 2,
    "tokens": 3,
    "skew": 3,
    "seed": 3,
    "sync": 3,
    "flops": 4,
    "algbw": 4,
    "activations": 4,
    "sheet": 4,
    "interval": 5,
    "peak": 5,
    "compile_time": 5,
    "whole": 5,
    "device": 6,
    "machine": 6,
    "torch": 6,
    "n": 7,
    "params": 7,
    "first_step": 7,
    "within": 7,
    "bandwidth": 7,
    "energy": 8,
    "tokens_per_joule": 9,
    "reserved": 9,
    "advice": 9,
    "cell": 9,
    "status": 10,
    "median": 11,
    **dict.fromkeys(("min", "max", "p95", *QUANTILES, "unobservable", "peak_doubt"), 12),
}
"""Ranks of columns (`Column.rank`); those without one tell cells apart, or are the mean and its std.
The verdict goes last: notes tell the doubts, too."""
_COLUMNS: Mapping[str, Column[ResultRow]] = {
    **{key: _field(key) for key in FIELDS},
    "params": _field("params")._replace(key="num_params", read=lambda row: num_params(row.result)),
    # As it was asked for; what was in force is a footnote.
    "threads": _field("threads")._replace(
        read=lambda row: row.cell.spec.threads, text=lambda row: SETTINGS["threads"](row.cell.spec)
    ),
    "cell": Column("cell", read=lambda row: row.cell.cell, text=lambda row: str(row.cell.cell + 1)),
    "n": Column("n", read=lambda row: row.summary.n if row.summary else 0),
    **{word: _statistic(word) for word in ("mean", "std", "median", "min", "max", "p95", *QUANTILES)},
    "algbw": _of_message("algbw", algbw),
    "busbw": _of_message("busbw", busbw),
    "tokens": Column("tokens_per_s", "tokens/s", read=lambda row: row.cell.tokens_per_s, show=count),
    "skew": Column("skew_s", "skew ({unit})", read=_skew_s, text=_show_skew),
    "memory": _peak("peak allocated", "peak_allocated_bytes"),
    "reserved": _peak("peak reserved", "peak_reserved_bytes"),
    "rss": _peak("peak RSS", "peak_rss_bytes"),
    "activations": Column(
        "activation_peak_bytes",
        "activation peak (GB)",
        read=lambda row: row.activations.bytes if row.activations else None,
        show=gigabytes,
    ),
    "verdict": _judged("verdict", "verdict", lambda judgement: judgement.label),
    "interval": Column(
        "interval_half_share",
        "95 % of mean (± %)",
        read=lambda row: row.interval.half_share if row.interval else None,
        text=lambda row: half_width(row.interval) if row.interval else UNKNOWN,
    ),
    "unobservable": _judged(
        "not observable",
        "not_observable",
        lambda judgement: ", ".join(check.name for check in judgement.not_observable),
    ),
    "advice": _judged("warm-up advice", "warmup_advice", lambda judgement: judgement.warmup_advice),
    "flops": Column(
        "flops_per_s",
        "achieved ({rate})",
        read=lambda row: row.point.flops_per_s if row.point else None,
        text=lambda row: row.rate.show(row.point.flops_per_s if row.point else None),
    ),
    "sheet": _share("% of data sheet", "share_of_sheet_peak", lambda point: point.share_of_sheet, UNSTATED),
    "peak": _share("% of measured peak", "share_of_measured_peak", lambda point: point.share_of_measured, NOT_MEASURED),
    "peak_doubt": _DOUBT,
    "bandwidth": Column("min_bytes_per_s", "bandwidth (GB/s)", read=_bandwidth, text=_show_bandwidth),
    "energy": Column(
        "joules_per_step", "energy (J/step)", read=lambda row: row.energy.joules_per_step, show=known("{:.3g}")
    ),
    "tokens_per_joule": Column(
        "tokens_per_joule", "tokens/J", read=lambda row: row.energy.tokens_per_joule, show=count
    ),
    "compile_time": Column("compile_s", "compile (s)", read=compile_s_of, show=known("{:.1f}")),
    "first_step": Column(
        "until_first_step_s",
        "until first step (s)",
        read=lambda row: row.cell.until_first_step_s,
        show=known("{:.1f}"),
    ),
    "whole": Column("whole_run_s", "whole run (s)", read=lambda row: row.cell.whole_run_s, show=known("{:.1f}")),
    "status": Column("status", left=True, read=lambda row: row.cell.status, text=lambda row: status_of(row.cell)),
}
COLUMNS = {key: column._replace(rank=_RANKS.get(key, 0)) for key, column in _COLUMNS.items()}
"""Every column, by the key that ``--columns`` takes."""
