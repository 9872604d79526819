"""The results of one session or several as a table: a row per cell, the chosen columns, what the numbers mean below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import msgspec

from cs336_tui.analysis.fields import FIELDS, OWN, VARIANTS, device_label, varies
from cs336_tui.analysis.measures import MEASURES, QUANTILES, Measure, Runs, energy_of
from cs336_tui.analysis.merge import Result, grouped, results_of
from cs336_tui.analysis.referee import agreeing
from cs336_tui.analysis.roofline import PeakLookup, why_unknown
from cs336_tui.config.axis import UserError
from cs336_tui.config.variants import IN_EXPORT, expected
from cs336_tui.events.peaks import PeakCache
from cs336_tui.export.subjects.results_columns import COLUMNS, ResultRow
from cs336_tui.export.subjects.roofline import ceiling_notes
from cs336_tui.export.writing.footnotes import has_result, machine_marks, results_notes, shows_allocated, shows_rss
from cs336_tui.export.writing.formats import render
from cs336_tui.export.writing.tables import Table, values_of
from cs336_tui.export.writing.verdicts import doubt_notes, trust_notes, without_numbers
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import MILLISECONDS, Notation, Rate, counted

_MODEL = ("size", "context", "batch", "pass", "precision", "device")
_MAY_VARY = ("edition", "arch", "vocab", "sync", "seed", "threads", "repeat")
_TIMES = ("warmup", "n", "mean", "std", "interval", "verdict", "median", "min", "max", "tokens")
_OF_COLLECTIVES = (
    "op", "backend", "device", "precision", "size", "ranks", "warmup", "n", "mean", "std", "min", "max", "skew",
    "algbw", "busbw", "interval", "verdict", "status",
)  # fmt: skip
"""Columns where every cell is a collective."""
_TIMES_AND_QUANTILES = tuple(chain.from_iterable((key, *QUANTILES * (key == "median")) for key in _TIMES))
_ENERGY = ("energy", "tokens_per_joule")
_WORK = frozenset(("flops", "sheet", "peak", "bandwidth"))
_TOLD = ("tokens", "memory", "flops")
"""Measures whose notes stand below every table in other words, or above the others."""


class TableError(UserError, ValueError):
    """A table that cannot be made as asked; one line names the value and what is allowed."""


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
        raise TableError(f"column {unknown[0]}: {expected(unknown[0], COLUMNS, see=IN_EXPORT)}")
    if not any(has_result(result.cell) for result in shown):
        raise TableError("no cell has a result yet")
    runs = [Runs.of(result, peaks or PeakCache().get) for result in shown]
    rate = Rate.for_all(MEASURES["flops"].read(each) for each in runs)
    found = [ResultRow(result, each, notation, rate) for result, each in zip(shown, runs, strict=True)]
    keys = columns or default_columns(found)
    marks = machine_marks(shown)
    units = {"unit": notation.symbol, "rate": rate.name}
    chosen = [COLUMNS[key]._replace(title=COLUMNS[key].header.format(**units)) for key in keys]
    if columns:  # what somebody named shall stay
        chosen = [column._replace(rank=0) for column in chosen]
    data = [*chosen, *([COLUMNS["peak_doubt"]] if "peak" in keys else [])]
    notes = (*marks.notes, *trust_notes(shown), *results_notes(results, notation))
    notes = (*notes, *_work_notes(found, keys, by_default=columns is None))
    table = Table.of(found, chosen, record=partial(values_of, data), caption=caption, footnotes=notes)
    marked = zip((f" {mark}" if (mark := marks.of(row.result)) else "" for row in found), table.rows, strict=True)
    rows, devices = ((first + mark, *rest) for mark, (first, *rest) in marked), dict.fromkeys(map(device_label, shown))
    about = f"Step times ({notation.symbol}) on {', '.join(devices)}"
    return msgspec.structs.replace(table, rows=tuple(rows), about=about)


def _work_notes(rows: Sequence[ResultRow], keys: Sequence[str], *, by_default: bool) -> Iterator[str]:
    """The meaning of FLOP/s, shares of peaks and energies, for the columns that there are."""
    if "flops" in keys:
        yield MEASURES["flops"].note
    if by_default or not _WORK.isdisjoint(keys):
        yield from dict.fromkeys(filter(None, (why_unknown(row.result) for row in rows)))
    if points := [row.point for row in rows if row.point]:
        yield from ceiling_notes(points, sheet="sheet" in keys, measured="peak" in keys)
    shown = [measure for key, measure in MEASURES.items() if key in keys and key not in _TOLD]
    yield from dict.fromkeys(_definition(measure, rows) for measure in shown if measure.note)
    if any(key in keys for key in _ENERGY):
        for device in dict.fromkeys(row.cell.spec.device for row in rows):
            there = [row.cell for row in rows if row.cell.spec.device == device and row.summary]
            whys = [why for cell in there if (why := energy_of(cell).why)]
            for reasons in sorted(grouped(whys, without_numbers).values(), key=len, reverse=True):
                differ = " (first cell)" * (len({*reasons}) > 1)
                some = f", of {len(reasons)} of {len(whys)} such cells" if len(reasons) < len(whys) else ""
                yield f"energy unknown on {device}{differ}: {reasons[0]}{some}"


def _definition(measure: Measure, rows: Sequence[ResultRow]) -> str:
    """The measure's definition, and of how many cells it is known in which way."""
    if measure.remark is None:
        return measure.note
    remarks = Counter(measure.remark(row.runs) for row in rows if measure.read(row.runs) is not None)
    known = " and ".join(f"{remark} of {counted(number, 'cell')}" for remark, number in remarks.items())
    return f"{measure.note}; {known or measure.missing}"


def default_columns(rows: Sequence[ResultRow]) -> tuple[str, ...]:
    """Those that every results table has, and of the others those whose values differ or are known."""
    results = [row.result for row in rows]

    def differs(key: str) -> bool:
        return len({result.spec.threads for result in results}) > 1 if key == "threads" else varies(results, key)

    def known(key: str) -> bool:
        return any(MEASURES[key].read(row.runs) is not None for row in rows)

    several = len({result.source for result in results}) > 1 or any(result.state.jobs for result in results)
    cells = [result.cell for result in results]
    recorded = all(result.spec.recording for result in results)
    if all(result.spec.is_collective for result in results):
        return (*(key for key in ("session", "machine") if several and differs(key)), *_OF_COLLECTIVES)
    times = _TIMES_AND_QUANTILES if any(result.spec.timer == "do_bench" for result in results) else _TIMES

    def unusual(key: str) -> bool:
        """True of a variant that does not follow from the model, which goes without saying."""
        return any(FIELDS[key].show(each) not in (FIELDS[key].usual, OWN, "") for each in results)

    return (
        *(key for key in ("session", "machine") if several and differs(key)),
        *("recording",) * any(result.spec.recording for result in results),
        *(_MODEL if not recorded else ("device",)),
        *filter(unusual, VARIANTS),
        *filter(differs, _MAY_VARY),
        *times * (not recorded),
        *("skew",) * any(cell.skew.n for cell in cells),
        *("flops",) * any(row.point for row in rows),
        *_ENERGY * known("energy"),
        *("compile_time",) * known("compile_time"),
        *("first_step", "whole", "within") * any(result.spec.within is not None for result in results),
        *("memory",) * shows_allocated(cells),
        *("rss",) * shows_rss(cells),
        *("agrees",) * any(agreeing(cell) for cell in cells),
        *("activations",) * any(row.cell.spec.checkpoint and row.runs.activations for row in rows),
        "status",
    )


def phase_names(results: Sequence[Result]) -> list[str]:
    """Their phases in the order of a step, in which the cell with most has them."""
    fullest_first = sorted(results, key=lambda result: -len(result.cell.phase_times_s))
    return list(dict.fromkeys(name for result in fullest_first for name in result.cell.phase_times_s))


NO_RESULTS = "No cell has a result yet."


def results_markdown(state: SessionState, *, brief: bool = False) -> str:
    """The results table of a session and its footnotes, as GitHub-flavoured markdown."""
    (found,) = results_parts(state, brief=brief)
    return f"{found}\n" if isinstance(found, str) else render(found, "markdown")


def results_parts(state: SessionState, *, brief: bool = False) -> tuple[Table | str]:
    """The results table of a session, with `brief` of its notes those on numbers in doubt alone, or that there is
    none."""
    results = results_of(state)
    try:
        table = results_table(results)
    except TableError:
        return (NO_RESULTS,)
    return (table.with_notes(doubt_notes(results)) if brief else table,)
