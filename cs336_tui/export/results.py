"""The results of one session or several as a table: a row per cell, the chosen columns, what the numbers mean below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from cs336_tui.analysis.collectives import algbw, busbw, mean_step_s
from cs336_tui.analysis.energy import Energy, energy_of
from cs336_tui.analysis.fields import FIELDS, NUMBERS, OWN, VARIANTS, device_label, num_params, varies
from cs336_tui.analysis.merge import Result, grouped, merge, title_of
from cs336_tui.analysis.roofline import PeakLookup, RooflinePoint, point_of, why_unknown
from cs336_tui.config.axis import UserError
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.peaks import PeakCache
from cs336_tui.export.footnotes import (
    ACTIVATIONS_MEAN,
    has_result,
    machine_marks,
    results_notes,
    shows_allocated,
    shows_rss,
    status_of,
)
from cs336_tui.export.formats import render
from cs336_tui.export.peaks import UNSTATED, percent_of_measured
from cs336_tui.export.provenance import SETTINGS
from cs336_tui.export.roofline import ACHIEVED, NOT_MEASURED, ceiling_notes
from cs336_tui.export.tables import Column, Table, Value, known
from cs336_tui.export.verdicts import half_width, judgement_of, trust_notes, without_numbers
from cs336_tui.session.cell_state import CellState
from cs336_tui.session.state import ActivationPeak, SessionState
from cs336_tui.stats.quantities import (
    MILLISECONDS,
    UNKNOWN,
    Notation,
    Rate,
    bandwidth,
    count,
    counted,
    gigabytes,
    percent,
)
from cs336_tui.stats.summaries import Summary

if TYPE_CHECKING:
    from cs336_tui.analysis.verdicts import Judgement
    from cs336_tui.stats.intervals import MeanInterval

LEFT = frozenset(FIELDS) - NUMBERS.keys() - {"params"} | {"vocab", "seed"}
"""Fields whose columns are set to the left."""
_MODEL = ("size", "context", "batch", "pass", "precision", "device")
_MAY_VARY = ("edition", "arch", "vocab", "sync", "seed", "threads", "repeat")
_TIMES = ("warmup", "n", "mean", "std", "interval", "verdict", "median", "min", "max", "tokens")
QUANTILES = ("p20", "p80")
"""Quantiles of the step times, beside the median, as `triton.testing.do_bench` gives them."""
_OF_COLLECTIVES = (
    "op", "backend", "device", "precision", "size", "ranks", "warmup", "n", "mean", "std", "min", "max", "skew",
    "algbw", "busbw", "interval", "verdict", "status",
)  # fmt: skip
"""Columns where every cell is a collective."""
_TIMES_AND_QUANTILES = tuple(chain.from_iterable((key, *QUANTILES * (key == "median")) for key in _TIMES))
_ENERGY = ("energy", "tokens_per_joule")
_WORK = frozenset(("flops", "sheet", "peak", "bandwidth"))
ENERGY_NOTE = (
    "energy: mean power while the steps were measured (by the GPU's counter, pauses included) times the mean step time"
)


BANDWIDTH_NOTE = (
    "algbw: bytes of the whole array over the mean time of the slowest rank; busbw: that times 2(n-1)/n of all-reduce, "
    "(n-1)/n of all-gather, reduce-scatter and all-to-all, 1 of broadcast, for n ranks; MB is 10⁶ bytes, MiB 2²⁰"
)


class TableError(UserError, ValueError):
    """A table that cannot be made as asked; one line names the value and what is allowed."""


class _Row(NamedTuple):
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


def _field(key: str) -> Column[_Row]:
    field = FIELDS[key]
    return Column(
        key,
        field.title,
        key in LEFT,
        read=lambda row: data_value(key, field.show_done(row.result)),
        text=lambda row: field.show_done(row.result),
    )


def _statistic(word: str) -> Column[_Row]:
    key = f"{word}_s"
    return Column(
        key,
        f"{word} ({{unit}})",
        read=lambda row: row.summary[key] if row.summary else None,
        text=lambda row: row.notation.of(row.summary, key),
    )


def _peak(title: str, key: str) -> Column[_Row]:
    return Column(key, f"{title} (GB)", read=lambda row: getattr(row.cell.finished, key, None), show=gigabytes)


def _judged(title: str, key: str, read: Callable[[Judgement], str]) -> Column[_Row]:
    """A text of the judgement; nothing is said of a cell without timings."""
    return Column(key, title, left=True, read=lambda row: read(row.judgement) if row.judgement else None)


def _share(title: str, key: str, read: Callable[[RooflinePoint], float | None], unknown: str) -> Column[_Row]:
    """A share of a peak, in %; `unknown` if a measured cell has no such peak."""
    in_words = percent_of_measured if key == "share_of_measured_peak" else percent

    def text(row: _Row) -> str:
        return in_words(read(row.point), unknown) if row.point else UNKNOWN

    return Column(key, title, read=lambda row: read(row.point) if row.point else None, text=text)


def _bandwidth(row: _Row) -> float | None:
    """Achieved at least, where that is the bound."""
    return row.point.bytes_per_s if row.point and row.point.bound == "bandwidth" else None


def _of_message(key: str, compute: Callable[[CellSpec, float], float]) -> Column[_Row]:
    """A bandwidth of a collective over its mean step time."""

    def read(row: _Row) -> float | None:
        step_s = mean_step_s(row.result)
        return None if step_s is None else compute(row.result.spec, step_s)

    return Column(f"{key}_bytes_per_s", f"{key} (GB/s)", read=read, show=bandwidth)


def _show_bandwidth(row: _Row) -> str:
    found = _bandwidth(row)
    share = row.point.share_of_bandwidth if row.point else None
    return UNKNOWN if found is None else f"≥ {bandwidth(found)} (≥ {percent(share)} %)"


def _compile_s(row: _Row) -> float | None:
    """The time of torch.compile before the first step; in no step's time."""
    return row.cell.prepared.compile_s if row.cell.prepared else None


def _skew_s(row: _Row) -> float | None:
    """Mean over the measured steps of several ranks."""
    skew = row.cell.skew
    return skew.mean if skew.n else None


def _show_skew(row: _Row) -> str:
    mean_s = _skew_s(row)
    return row.notation.time(mean_s, mean_s=mean_s, std_s=row.cell.skew.std(row.result.state.ddof))


_DOUBT: Column[_Row] = Column(
    "measured_peak_doubt",
    "measured peak in doubt",
    left=True,
    read=lambda row: row.point.measured.doubt if row.point and row.point.measured else None,
    show=lambda doubt: doubt or UNKNOWN,
)
"""Goes into the data wherever a share of the measured peak does."""
_RANKS: Mapping[str, int] = {
    "std": 1,
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
"""Ranks of columns (`Column.rank`); those without one tell cells apart, or are the time and the verdict."""
_COLUMNS: Mapping[str, Column[_Row]] = {
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
    "compile_time": Column("compile_s", "compile (s)", read=_compile_s, show=known("{:.1f}")),
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


def results_table(
    results: Sequence[Result],
    *,
    columns: Sequence[str] | None = None,
    notation: Notation = MILLISECONDS,
    caption: str = "",
    peaks: PeakLookup | None = None,
) -> Table:
    """A row per result that is over or has a timed step, in order; of a session that has ended, one per cell.

    Without `columns` those are shown that tell the results apart, and every statistic. A cell that ran on another
    machine, device or torch than its session's first one is marked. Below stands what is wrong with which numbers.
    `peaks` finds what was measured of a device, by default in the user's cache. Raises `TableError` for a column that
    does not exist, or when there is nothing to show.
    """
    shown = [result for result in results if result.state.ended or has_result(result.cell)]
    if unknown := [key for key in columns or () if key not in COLUMNS]:
        raise TableError(f"column {unknown[0]}: expected some of {', '.join(COLUMNS)}")
    if not any(has_result(result.cell) for result in shown):
        raise TableError("no cell has a result yet")
    found = _rows(shown, notation, peaks or PeakCache().get)
    keys = columns or default_columns(found)
    marks = machine_marks(shown)
    units = {"unit": notation.symbol, "rate": found[0].rate.name}
    chosen = [COLUMNS[key]._replace(title=COLUMNS[key].header.format(**units)) for key in keys]
    if columns:  # what somebody named shall stay
        chosen = [column._replace(rank=0) for column in chosen]
    data = [*chosen, *([_DOUBT] if "peak" in keys else [])]
    table = Table.of(
        found,
        chosen,
        record=lambda row: {column.key: column.value(row) for column in data},
        caption=caption,
        footnotes=(
            *marks.notes,
            *trust_notes(shown),
            *results_notes(results, notation),
            *_work_notes(found, keys, by_default=columns is None),
        ),
    )
    marked = zip((f" {mark}" if (mark := marks.of(row.result)) else "" for row in found), table.rows, strict=True)
    rows, devices = ((first + mark, *rest) for mark, (first, *rest) in marked), dict.fromkeys(map(device_label, shown))
    return msgspec.structs.replace(
        table, rows=tuple(rows), about=f"Step times ({notation.symbol}) on {', '.join(devices)}"
    )


def _rows(results: Sequence[Result], notation: Notation, peaks: PeakLookup) -> list[_Row]:
    points = [point_of(result, peaks) for result in results]
    rate = Rate.for_all(point.flops_per_s for point in points if point)
    return [
        _Row(result, result.cell.full_summary(result.state.ddof), point, energy_of(result.cell), notation, rate)
        for result, point in zip(results, points, strict=True)
    ]


def _work_notes(rows: Sequence[_Row], keys: Sequence[str], *, by_default: bool) -> Iterator[str]:
    """The meaning of FLOP/s, shares of peaks and energies, for the columns that there are."""
    if "flops" in keys:
        yield ACHIEVED
    if by_default or not _WORK.isdisjoint(keys):
        yield from dict.fromkeys(filter(None, (why_unknown(row.result) for row in rows)))
    if points := [row.point for row in rows if row.point]:
        yield from ceiling_notes(points, sheet="sheet" in keys, measured="peak" in keys)
    if "activations" in keys:
        bases = Counter(row.activations.basis for row in rows if row.activations)
        how = " and ".join(f"{basis} of {counted(number, 'cell')}" for basis, number in bases.items())
        yield f"{ACTIVATIONS_MEAN}; {how or 'not known'}"
    if "busbw" in keys or "algbw" in keys:
        yield BANDWIDTH_NOTE
    if any(key in keys for key in _ENERGY):
        yield ENERGY_NOTE
        for device in dict.fromkeys(row.cell.spec.device for row in rows):
            whys = [row.energy.why for row in rows if row.cell.spec.device == device and row.summary and row.energy.why]
            for reasons in sorted(grouped(whys, without_numbers).values(), key=len, reverse=True):
                differ = " (first cell)" * (len({*reasons}) > 1)
                some = f", of {len(reasons)} of {len(whys)} such cells" if len(reasons) < len(whys) else ""
                yield f"energy unknown on {device}{differ}: {reasons[0]}{some}"


def default_columns(rows: Sequence[_Row]) -> tuple[str, ...]:
    """Those that every results table has, and of the others those whose values differ or are known."""
    results = [row.result for row in rows]

    def differs(key: str) -> bool:
        return len({result.spec.threads for result in results}) > 1 if key == "threads" else varies(results, key)

    several = len({result.source for result in results}) > 1 or any(result.state.jobs for result in results)
    cells = [result.cell for result in results]
    recorded = all(result.spec.recording for result in results)
    if all(result.spec.is_collective for result in results):
        return (*(key for key in ("session", "machine") if several and differs(key)), *_OF_COLLECTIVES)
    times = _TIMES_AND_QUANTILES if any(result.spec.timer == "do_bench" for result in results) else _TIMES
    return (
        *(key for key in ("session", "machine") if several and differs(key)),
        *("recording",) * any(result.spec.recording for result in results),
        *(_MODEL if not recorded else ("device",)),
        # What follows from the model goes without saying.
        *(
            key
            for key in VARIANTS
            if any(FIELDS[key].show(each) not in (FIELDS[key].usual, OWN, "") for each in results)
        ),
        *filter(differs, _MAY_VARY),
        *times * (not recorded),
        *("skew",) * any(cell.skew.n for cell in cells),
        *("flops",) * any(row.point for row in rows),
        *_ENERGY * any(row.energy.joules_per_step is not None for row in rows),
        *("compile_time",) * any(_compile_s(row) is not None for row in rows),
        *("first_step", "whole", "within") * any(result.spec.within is not None for result in results),
        *("memory",) * shows_allocated(cells),
        *("rss",) * shows_rss(cells),
        *("activations",) * any(row.cell.spec.checkpoint and row.activations for row in rows),
        "status",
    )


NO_RESULTS = "No cell has a result yet."


def results_markdown(state: SessionState) -> str:
    """The results table of a session and its footnotes, as GitHub-flavoured markdown."""
    try:
        return render(results_table(results_of(state)), "markdown")
    except TableError:
        return f"{NO_RESULTS}\n"


def results_parts(state: SessionState) -> tuple[Table | str]:
    """The results table of a session, or that there is none, for a terminal."""
    try:
        return (results_table(results_of(state)),)
    except TableError:
        return (NO_RESULTS,)


def results_of(state: SessionState) -> tuple[Result, ...]:
    """The cells of one session, for what takes those of several."""
    return merge([(title_of(state), state)])
