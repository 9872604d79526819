"""Tables, figures and documents of every report; `REPORTS` in `events.reports` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from cs336_tui.analysis.ab import runs_in_turns, turns_of
from cs336_tui.analysis.estimates import Estimate, judge_all
from cs336_tui.analysis.kernel_cells import kernel_cells
from cs336_tui.analysis.kernels import RangeError
from cs336_tui.analysis.merge import Result, grouped, title_of, without_visits
from cs336_tui.analysis.roofline import points
from cs336_tui.analysis.targets import target_here
from cs336_tui.analysis.tuning import race_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.events.peaks import PeakCache
from cs336_tui.events.prediction import Prediction, prediction_key
from cs336_tui.events.reports import (
    REPORTS,
    AgreementReport,
    MemoryReport,
    OomReport,
    PrecisionReport,
    RankMemoryReport,
    Report,
    ReportType,
)
from cs336_tui.export.subjects.comparison import agreement_tables, turns_table
from cs336_tui.export.subjects.estimates import category_table, estimate_table
from cs336_tui.export.subjects.flame_graph import NESTINGS, flame_figure
from cs336_tui.export.subjects.kernel_cells import kernel_cells_table
from cs336_tui.export.subjects.kernels import kernel_document, kernel_tables, pairs_table
from cs336_tui.export.subjects.memory import memory_document, memory_tables
from cs336_tui.export.subjects.memory_peaks import CellPeaks, memory_figure, oom_table, peaks_table, rank_memory_table
from cs336_tui.export.subjects.precision import (
    EXPERIMENTS,
    experiment_tables,
    modules_table,
    precision_document,
    speedup_table,
)
from cs336_tui.export.subjects.roofline import left_out, roofline_table
from cs336_tui.export.subjects.tuning import gains_table, race_table
from cs336_tui.export.writing.drawing import Drawing
from cs336_tui.export.writing.tables import Table
from cs336_tui.export.writing.texts import untaken
from cs336_tui.session.state import SessionState

MOST_ROWS = 20
"""Rows of a table that the summary shows; the folder and the commands have them all."""

_Wanted = Callable[[CellSpec], bool]


class _Exports(NamedTuple):
    """The exporters of a report that a child process made."""

    tables: Callable[..., Iterable[Table]]
    document: Callable[[Any], dict[str, Any]]
    """For programs, in base units."""
    drawings: Callable[[Any], tuple[Drawing, ...]] = lambda _: ()
    of_all: Callable[[Sequence[Any]], Iterable[Table]] = lambda _: ()
    """Tables over several reports of the kind, before those of each."""
    shared: tuple[str, ...] = ()
    """Keys of the document that no cell changes: of several reports they stand once."""


_EXPORTS: Mapping[type[Report], _Exports] = {
    KernelReport: _Exports(
        kernel_tables, kernel_document, lambda report: tuple(flame_figure(report, nesting) for nesting in NESTINGS)
    ),
    MemoryReport: _Exports(
        memory_tables,
        memory_document,
        lambda report: (memory_figure(report),),
        lambda reports: (peaks_table([*map(CellPeaks.recorded, reports)]),),
    ),
    RankMemoryReport: _Exports(lambda _: (), msgspec.to_builtins, of_all=lambda found: (rank_memory_table(found),)),
    PrecisionReport: _Exports(
        lambda report: (modules_table(report),), precision_document, of_all=experiment_tables, shared=EXPERIMENTS
    ),
    OomReport: _Exports(lambda report: (oom_table(report),), msgspec.to_builtins),
    AgreementReport: _Exports(lambda _: (), msgspec.to_builtins, of_all=agreement_tables),
}


def tables_of_reports(
    reports: Sequence[Report], *, min_bytes: int = 0, ddof: int = 1, ranges: Sequence[str] = ()
) -> list[Table]:
    """The tables of several reports: first those over all of a kind, such as the peaks of recorded memories.

    Allocations below `min_bytes` are left out; the std of kernels divides by n - `ddof`, 1 as nsys has it; with
    `ranges`, kernels that these do not all enclose are left out. Raises `RangeError` if they enclose none at all.
    """
    own: Mapping[type, Mapping[str, Any]] = {
        MemoryReport: {"min_bytes": min_bytes},
        KernelReport: {"ddof": ddof, "ranges": ranges},
    }
    tables: list[Table] = []
    without: RangeError | None = None
    for kind, exports in _EXPORTS.items():
        if alike := [report for report in reports if isinstance(report, kind)]:
            tables += exports.of_all(alike)
    for report in reports:
        options = own.get(type(report), {})
        try:
            tables += _EXPORTS[type(report)].tables(report, **options)
        except RangeError as error:
            without = without or error
    if without and not tables:
        raise without
    return tables


def document_of_reports(reports: Sequence[Report]) -> dict[str, Any]:
    """Reports of one kind for programs, in base units: one itself, several under ``reports``. What no cell changes
    stands beside that list, and in a report only where it found something else."""
    documents = [_EXPORTS[type(report)].document(report) for report in reports]
    if len(documents) == 1:
        return documents[0]
    once = {key: documents[0][key] for key in _EXPORTS[type(reports[0])].shared} if reports else {}
    own = [{key: each[key] for key in each if key not in once or each[key] != once[key]} for each in documents]
    return {**once, "reports": own}


def drawings_of_reports(reports: Iterable[Report]) -> tuple[Drawing, ...]:
    """The figures of several reports."""
    return tuple(drawing for report in reports for drawing in _EXPORTS[type(report)].drawings(report))


def report_drawings(states: Sequence[SessionState]) -> tuple[Drawing, ...]:
    """The figures of all reports of these sessions, each under a name of its own."""
    found: dict[str, Drawing] = {}
    reports = [report for state in states for kind in _EXPORTS for report in state.contents(kind)]
    for drawing in drawings_of_reports(reports):
        name = untaken(drawing.name, found)
        found[name] = drawing._replace(name=name)
    return tuple(found.values())


def report_tables(
    states: Sequence[SessionState],
    results: Sequence[Result],
    wanted: _Wanted = lambda _: True,
    ddof: int = 1,
    ranges: Sequence[str] = (),
    keys: Iterable[str] = tuple(REPORTS),
) -> Mapping[str, tuple[Table, ...]]:
    """The tables of these sessions' reports, by the `keys` of `REPORTS`; a report without tables is left out.

    `results` are the sessions' cells, for the reports that are worked out from cells; the others are those on the
    `wanted` specs, of kernels those that all `ranges` enclose. `ddof` is that of kernels' stds; cells have their
    session's.
    """

    def tables(key: str, type_: ReportType) -> Iterable[Table]:
        if type_.content is None:
            return _FROM_CELLS[key](states, results, wanted)
        reports = [r for state in states for r in state.contents(type_.content) if wanted(r.spec)]
        return tables_of_reports(reports, ddof=ddof, ranges=ranges)

    made = {key: tuple(tables(key, REPORTS[key])) for key in keys}
    return {key: found for key, found in made.items() if found}


def report_sections(
    states: Sequence[SessionState], results: Sequence[Result]
) -> Iterator[tuple[str, tuple[Table, ...]]]:
    """Title and tables of each report that the sessions have but of races; of long ones the first rows."""
    cells = without_visits(results)
    for key in (key for key in REPORTS if key != "race"):
        of = results if key == "kernels-over-cells" else cells  # a visit may have been profiled
        for tables in report_tables(states, of, keys=[key]).values():
            yield REPORTS[key].title, tuple(map(head, tables))


def head(table: Table) -> Table:
    """The table with its first rows, as many as a summary shows."""
    if len(table.rows) <= MOST_ROWS:
        return table
    last = table.rows[-1:] if table.label == "ab" else ()  # what all rounds come to
    more = f"the first {MOST_ROWS} of {len(table.rows)} rows" + (" and the last" if last else "")
    return msgspec.structs.replace(table, rows=(*table.rows[:MOST_ROWS], *last), footnotes=(*table.footnotes, more))


def _races(states: Sequence[SessionState], _: Sequence[Result], wanted: _Wanted) -> Iterator[Table]:
    for state in states:
        if race := race_of(state):
            rows = race_table(race, state.cells)
            kept = [place for place, entry in enumerate(race.entries) if wanted(entry.spec)]
            tables = (rows.rows_at(kept), gains_table(race)) if kept else ()
            for table in filter(None, tables):
                yield _of_session(table, title_of(state)) if len(states) > 1 else table


def _in_turns(_: Sequence[SessionState], results: Sequence[Result], __: _Wanted) -> Iterator[Table]:
    for rounds in runs_in_turns(results):
        yield turns_table(turns_of(rounds), [result for both in rounds for result in both])


def _predicted(states: Sequence[SessionState], results: Sequence[Result], wanted: _Wanted) -> Iterator[Table]:
    """The needs of the sessions' cells, judged for their machines' devices where these are known."""
    titles = {id(result.state): result.session for result in results}
    for state in states:
        shown = (prediction for prediction in _predictions(state) if wanted(prediction.spec))
        for device, predictions in grouped(shown, lambda prediction: prediction.spec.device).items():
            cells: Sequence[Prediction | Estimate] = predictions
            if (here := state.environment) and (info := here.device(device)):
                cells = judge_all(predictions, target_here(info, here, state.devices), state)
            for table in (estimate_table(cells), category_table(cells)):
                yield _of_session(table, titles.get(id(state)) or title_of(state)) if len(states) > 1 else table


def _kernels(states: Sequence[SessionState], results: Sequence[Result], wanted: _Wanted) -> Iterator[Table]:
    if parts := kernel_cells(states, results, wanted):
        yield kernel_cells_table(parts)
        reports = list({id(part.report): part.report for part in parts if part.report}.values())
        if len(reports) == 2:
            yield pairs_table(*reports)


def _speedups(_: Sequence[SessionState], results: Sequence[Result], __: _Wanted) -> Iterator[Table]:
    if (table := speedup_table(results)).rows:
        yield table


def _roofline(_: Sequence[SessionState], results: Sequence[Result], __: _Wanted) -> Iterator[Table]:
    reached, absent = points(results, PeakCache().get), left_out(results)
    if reached or absent:
        yield roofline_table(reached, left_out=absent)


_FROM_CELLS: Mapping[str, Callable[[Sequence[SessionState], Sequence[Result], _Wanted], Iterable[Table]]] = {
    "race": _races,
    "ab": _in_turns,
    "predictions": _predicted,
    "kernels-over-cells": _kernels,
    "mixed-precision": _speedups,
    "roofline": _roofline,
}


def _of_session(table: Table, title: str) -> Table:
    records = tuple({"session": title, **record} for record in table.records)
    caption, label = f"{table.caption}, session {title}", f"{table.label}-{title}"
    return msgspec.structs.replace(table, caption=caption, label=label, records=records)


def _predictions(state: SessionState) -> list[Prediction]:
    """The predictions of the cells, and of what else there are reports on; each once."""
    found: dict[CellSpec, Prediction] = {}
    for cell in state.cells.values():
        if prediction := state.prediction_of(cell.spec):
            found.setdefault(prediction_key(cell.spec), prediction)
    for report in state.reports.values():
        content = report.content
        if content is not None and not isinstance(content, PrecisionReport | AgreementReport) and content.prediction:
            found.setdefault(prediction_key(content.spec), content.prediction)
    return list(found.values())
