"""Whatever a report is: its tables, its figures and its document."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from cs336_tui.analysis.ab import runs_in_turns, turns_of
from cs336_tui.analysis.estimates import judge_all, target_here
from cs336_tui.analysis.merge import Result, title_of
from cs336_tui.analysis.roofline import points
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.peaks import PeakCache
from cs336_tui.events.reports import (
    KernelReport,
    MemoryReport,
    OomReport,
    PrecisionReport,
    Prediction,
    Report,
    prediction_key,
)
from cs336_tui.export.ab import turns_table
from cs336_tui.export.estimates import category_table, estimate_table, prediction_tables
from cs336_tui.export.figures import Drawing
from cs336_tui.export.kernels import kernel_document, kernel_tables
from cs336_tui.export.memory import memory_document, memory_tables, oom_document, oom_table, peaks_table
from cs336_tui.export.memory_figures import memory_figure
from cs336_tui.export.precision import precision_document, precision_tables, speedup_table
from cs336_tui.export.results import TableError
from cs336_tui.export.roofline import left_out, roofline_table
from cs336_tui.export.tables import Table
from cs336_tui.session.state import SessionState

REPORTS = ("ab", "predictions", "kernels", "memory", "precision", "mixed-precision", "roofline", "oom")
"""What `report_tables` may have."""
_KINDS: Mapping[str, type[Report]] = {"kernels": KernelReport, "memory": MemoryReport, "precision": PrecisionReport}


def tables_of_report(report: Report, *, min_bytes: int = 0) -> tuple[Table, ...]:
    """Every table of one report; allocations below `min_bytes` are left out."""
    match report:
        case KernelReport():
            return tuple(kernel_tables(report))
        case MemoryReport():
            return tuple(memory_tables(report, min_bytes=min_bytes))
        case PrecisionReport():
            return tuple(precision_tables(report))
        case OomReport():
            return (oom_table(report),)


def tables_of_reports(reports: Sequence[Report], *, min_bytes: int = 0) -> list[Table]:
    """The tables of several reports; first the peaks of recorded memories, side by side."""
    tables = [table for report in reports for table in tables_of_report(report, min_bytes=min_bytes)]
    recorded = [report for report in reports if isinstance(report, MemoryReport)]
    return [peaks_table(recorded), *tables] if recorded else tables


def document_of_report(report: Report) -> dict[str, Any]:
    """One report for programs, in base units."""
    match report:
        case KernelReport():
            return kernel_document(report)
        case MemoryReport():
            return memory_document(report)
        case PrecisionReport():
            return precision_document(report)
        case OomReport():
            return oom_document(report)


def drawings_of_report(report: Report) -> tuple[Drawing, ...]:
    """The figures of one report."""
    return (memory_figure(report),) if isinstance(report, MemoryReport) else ()


def report_drawings(states: Sequence[SessionState]) -> tuple[Drawing, ...]:
    """The figures of everything that was found out in these sessions, each under a name of its own."""
    found: dict[str, Drawing] = {}
    for report in (report for state in states for kind in _KINDS.values() for report in state.contents(kind)):
        for drawing in drawings_of_report(report):
            name, number = drawing.name, 1
            while name in found:
                number += 1
                name = f"{drawing.name}-{number}"
            found[name] = drawing._replace(name=name)
    return tuple(found.values())


def report_tables(
    states: Sequence[SessionState], results: Sequence[Result], wanted: Callable[[CellSpec], bool] = lambda _: True
) -> Mapping[str, tuple[Table, ...]]:
    """The tables of everything that was found out in these sessions, by `REPORTS`; what there is none of is left out.

    `results` are the sessions' cells, for two in turns and for fp32 against mixed precision; reports are those on the
    `wanted` specs.
    """
    found: dict[str, tuple[Table, ...]] = {}
    if in_turns := runs_in_turns(results):
        found["ab"] = tuple(
            turns_table(turns_of(rounds), [result for both in rounds for result in both]) for rounds in in_turns
        )
    titles = {id(result.state): result.session for result in results} if len(states) > 1 else {}
    if predicted := [
        _of_session(table, titles.get(id(state)) or title_of(state)) if len(states) > 1 else table
        for state in states
        for table in _predicted(state, wanted)
    ]:
        found["predictions"] = tuple(predicted)
    for name, kind in _KINDS.items():
        tables = tables_of_reports(
            [report for state in states for report in state.contents(kind) if wanted(report.spec)]
        )
        if tables:
            found[name] = tuple(tables)
    with contextlib.suppress(TableError):
        if (speedups := speedup_table(results)).rows:
            found["mixed-precision"] = (speedups,)
    reached, absent = points(results, PeakCache().get), left_out(results)
    if reached or absent:
        found["roofline"] = (roofline_table(reached, left_out=absent),)
    explained = [report for state in states for report in state.contents(OomReport) if wanted(report.spec)]
    if explained:
        found["oom"] = tuple(map(oom_table, explained))
    return found


def _predicted(state: SessionState, wanted: Callable[[CellSpec], bool]) -> Iterator[Table]:
    """What the session's cells need, judged for its machine's devices where these are known."""
    by_device: dict[str, list[Prediction]] = {}
    for prediction in _predictions(state):
        if wanted(prediction.spec):
            by_device.setdefault(prediction.spec.device, []).append(prediction)
    for device, predictions in by_device.items():
        environment = state.environment
        info = environment.device(device) if environment else None
        if info is None or environment is None:
            yield from prediction_tables(predictions)
        else:
            estimates = judge_all(predictions, target_here(info, environment, state.devices), state)
            yield estimate_table(estimates)
            yield category_table(estimates)


def _of_session(table: Table, title: str) -> Table:
    """The table, saying of which session it is."""
    return msgspec.structs.replace(
        table,
        caption=f"{table.caption}, session {title}",
        label=f"{table.label}-{title}",
        records=tuple({"session": title} | record for record in table.records),
    )


def _predictions(state: SessionState) -> list[Prediction]:
    """Of the cells, and of what else there are reports on; each once."""
    found: dict[CellSpec, Prediction] = {}
    for cell in state.cells.values():
        if prediction := state.prediction_of(cell.spec):
            found.setdefault(prediction_key(cell.spec), prediction)
    for report in state.reports.values():
        content = report.content
        if content is not None and not isinstance(content, PrecisionReport) and content.prediction:
            found.setdefault(prediction_key(content.spec), content.prediction)
    return list(found.values())
