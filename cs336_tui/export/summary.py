"""The summary of one session or several as markdown: findings first, then figures, every cell, the reports, the
provenance, and the raw steps as an appendix. Measurements alone, no conclusions.

No table is wider than a page (`narrow`), so that pandoc and a browser set it without cutting.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from cs336_tui.analysis.findings import Timed
from cs336_tui.analysis.grouping import shared
from cs336_tui.analysis.measures import MEASURES, Runs, allocated_bytes
from cs336_tui.analysis.merge import RECORDED, Result, grouped, measured, results_of, without_visits
from cs336_tui.export.findings import CI, NamedCells, findings, short_names
from cs336_tui.export.reports import head, report_sections, report_tables
from cs336_tui.export.subjects.results import NO_RESULTS, phase_names, results_table
from cs336_tui.export.subjects.results_columns import COLUMNS
from cs336_tui.export.writing import provenance
from cs336_tui.export.writing.footnotes import (
    FAILED,
    ending_of,
    has_result,
    machine_marks,
    progress,
    reading_notes,
    status_of,
    std_kind,
    title_of,
)
from cs336_tui.export.writing.formats import noted_once
from cs336_tui.export.writing.narrow import markdown_rows, narrow, paged
from cs336_tui.export.writing.tables import Column, Table
from cs336_tui.export.writing.texts import bullets, code_block, markdown_escape
from cs336_tui.export.writing.verdicts import Names, judgement_of, verdict_table
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.session.store import session_time, standing_of
from cs336_tui.stats.quantities import (
    MILLISECONDS,
    NONE,
    UNKNOWN,
    counted,
    fixed_milliseconds,
    gigabytes,
    half_width,
    millisecond_decimals,
    milliseconds,
    named,
    sparkline,
)
from cs336_tui.stats.summaries import summarize

SPARKLINE_BARS = 36
"""Bars at most for the warm-up and for the measured steps each: both fit into a line of a page."""
OUTPUT_LINES = 20
"""Lines of a failed cell's output that are shown, the last ones."""
_LINE = 88
"""Characters of a line of a command."""
_PHASES_NOTE = "phases: mean over the n measured steps on the device; host enqueue: the host's time to launch the step"


def summary_markdown(state: SessionState) -> str:
    """The summary of one session, without figures; reads well at any moment of it."""
    return document([state])


def document(states: Sequence[SessionState], figures: str = "", files: str = "", *, paging: bool = True) -> str:
    """The whole text; parts without content are left out. `figures` and `files` are markdown. Without `paging` tables
    are as long as they are."""
    results = results_of(*states)
    cells = without_visits(results)
    apart = set(map(id, cells))
    visits = [result for result in results if id(result) not in apart]
    several = len(states) > 1
    title = f"cs336-tui: {len(states)} sessions" if several else f"cs336-tui session {_session(states[0])}"
    parts = {
        "Findings": _findings(results, states, paging),
        "Figures": figures,
        "Cells": _cells(cells, paging),
        **{name: _tables(tables, paging) for name, tables in report_sections(states, results)},
        "Failures": _failures(results),
        "Provenance": "\n\n".join(filter(None, (_provenance(state, several) for state in states))),
        "Appendix: visits": _cells(visits, paging),
        "Appendix: every step": _every_step(states, several),
        "Files": files,
    }
    heads = [f"# {markdown_escape(title)}", *(_opening(state, several) for state in states)]
    return "\n\n".join([*heads, *(f"## {name}\n\n{body}" for name, body in parts.items() if body)]) + "\n"


def _session(state: SessionState) -> str:
    session = state.started.session if state.started else "unnamed"
    return f"{session}: {state.name}" if state.name else session


def _opening(state: SessionState, named: bool) -> str:
    """When the session began, how far it came, and its note; in bold that it is not whole."""
    at = session_time(state.started.session, state.started.at) if state.started else ""
    begun = f"Started {at}. " if at else ""
    done = sum(cell.is_over and cell.status != "cancelled" for cell in state.cells.values())
    came = progress(state)
    if done < len(state.cells):
        first, _, rest = came.partition(" (")
        came = f"**Partial: {first}**" + (f" ({rest}" if rest else "")
    ended = _ENDED[state.ended.reason] if state.ended else "the session has not ended"
    standing = standing_of(state, runs=state.ended is None)
    if standing.can_resume and state.started:
        ended = f"{standing.words}, `cs336-tui resume {state.started.session}` runs what is left"
    name = f"Session {markdown_escape(_session(state))}. " if named else ""
    note = f"\n\nNote: {markdown_escape(state.note)}" if state.note else ""
    return f"{name}{begun}{came}; {ended}.{note}"


_ENDED = {
    "finished": "the session is over", "cancelled": "the session was stopped", "interrupted": "the session broke off",
}  # fmt: skip


def _findings(results: Sequence[Result], states: Sequence[SessionState], paging: bool) -> str:
    told = [f"**{each.topic}:** {markdown_escape(each.text)}" for each in findings(results, states)]
    races = chain.from_iterable(report_tables(states, results, keys=["race"]).values())
    tables = [*map(head, races), *filter(None, [first_table(without_visits(results))])]
    parts = (bullets(told), _tables(tables, paging) if tables else NO_RESULTS)
    return "\n\n".join(filter(None, parts))


def _cells(results: Sequence[Result], paging: bool) -> str:
    """Every cell's times, the trust in them, rates and memory, and phases: a table each."""
    shown, names = [result for result in results if has_result(result.cell)], short_names(results)
    of_results = _of_results(shown, names) if measured(shown) else ()
    tables = (*of_results, _trust(shown, names), *_phases(shown, names))
    return _tables((table for table in tables if table.rows), paging)


_TIMES = ("n", "mean", "std", "median", "p20", "p80", "min", "max")
_WORK = (
    "warmup", "tokens", "algbw", "busbw", "skew", "flops", "energy", "tokens_per_joule", "compile_time", "first_step",
    "whole", "memory", "rss", "activations",
)  # fmt: skip


def _of_results(results: Sequence[Result], names: Names) -> Iterator[Table]:
    """The columns of the results table by subject, each row under its short name."""
    found = results_table(results)
    heads = {column.key: place for place, column in enumerate(found.columns)}
    marks = machine_marks(results)
    cells = [" ".join(filter(None, (names[result.source, result.cell.cell], marks.of(result)))) for result in results]
    notes: dict[str, None] = {}
    for several in grouped(results, lambda result: result.source).values():
        notes |= dict.fromkeys(reading_notes(several[0].state, [each.cell for each in several]))
    by_status = {
        status: named([names[each.source, each.cell.cell] for each in members], last="; and ")
        for status, members in grouped(results, lambda result: status_of(result.cell)).items()
    }
    for caption, keys in (("Step times", _TIMES), ("Throughput and memory", _WORK)):
        places = [heads[COLUMNS[key].key] for key in keys if COLUMNS[key].key in heads]
        of_memory = keys is _WORK
        below = [note for note in notes if note.startswith(("peak ", "memory ")) == of_memory]
        below += marks.notes
        if of_memory:
            below += (f"{status}: {several}" for status, several in by_status.items() if status not in ("ok", RECORDED))
        part = found.at(places)
        rows = zip(cells, part.rows, results, strict=True)
        yield Table(
            columns=(Column("cell", left=True), *(column._replace(rank=0) for column in part.columns)),
            rows=tuple((name, *row) for name, row, result in rows if of_memory or result.is_measured),
            caption=caption,
            footnotes=tuple(below),
        )


def _tables(tables: Iterable[Table], paging: bool) -> str:
    """Tables no wider, and with `paging` no longer than a page, each under its caption as pandoc knows it."""
    narrowed = [piece for table in tables for piece in narrow(table)]
    return "\n\n".join(_table(piece) for each in noted_once(narrowed) for piece in (paged(each) if paging else [each]))


def _table(table: Table) -> str:
    caption = f"Table: {markdown_escape(table.caption)}" if table.caption else ""
    notes = bullets(map(markdown_escape, table.footnotes))
    return "\n\n".join(filter(None, (caption, markdown_rows(table), notes)))


def _trust(results: Sequence[Result], names: Names) -> Table:
    """The verdicts and intervals; advice on warm-up, which many cells share, as notes."""
    found = verdict_table(results, names=names)
    advice = Counter(found.texts("warmup_advice"))
    notes = (f"warm-up: {text} ({counted(number, 'cell')})" for text, number in advice.most_common())
    kept = found.without("n", "mean_s", "warmup_advice")
    return msgspec.structs.replace(kept, footnotes=(*kept.footnotes, *notes))


def _phases(results: Sequence[Result], names: Names) -> Iterator[Table]:
    """Mean device time of each phase over the measured steps, and the host's time to enqueue a step."""
    timed = [result for result in results if result.cell.phase_times_s]
    if not timed:
        return

    def mean_ms(times_s: Sequence[float]) -> str:
        found = summarize(times_s)
        return milliseconds(found.mean_s, found.std_s)[0]

    def phase(name: str) -> Column[Result]:
        return Column(f"{name} (ms)", text=lambda each: mean_ms(each.cell.phase_times_s.get(name, ())))

    columns: tuple[Column[Result], ...] = (
        Column("cell", left=True, text=lambda each: names[each.source, each.cell.cell]),
        *map(phase, phase_names(timed)),
        Column("host enqueue (ms)", text=lambda each: mean_ms(each.cell.times.host_s)),
    )
    yield Table.of(timed, columns, caption="Phases", footnotes=(_PHASES_NOTE,))


def _failures(results: Sequence[Result]) -> str:
    """The ending of each cell that failed, with the last lines of its output."""
    names, parts = short_names(results), list[str]()
    for result in (each for each in results if each.cell.status in FAILED):
        name = markdown_escape(names[result.source, result.cell.cell])
        parts += [f"### {name}", markdown_escape(ending_of(result.cell))]
        if tail := result.cell.output.rstrip().splitlines()[-OUTPUT_LINES:]:
            parts.append(code_block("\n".join(tail)))
    return "\n\n".join(parts)


def _provenance(state: SessionState, named: bool) -> str:
    """Machine, versions, settings in force, commands and notices of a session."""
    commands = "\n".join(map(command_lines, state.commands))
    notices = [notice.text for notice in state.notices]
    parts = (
        f"### Session {markdown_escape(_session(state))}" if named else "",
        bullets(map(markdown_escape, _environment(state))),
        f"Command:\n\n{code_block(commands, 'sh')}" if commands else "",
        f"Notices:\n\n{bullets(map(markdown_escape, notices))}" if notices else "",
    )
    return "\n\n".join(filter(None, parts))


def command_lines(command: str) -> str:
    """The command, broken before options so that no line is longer than a page is wide, to be pasted as it is."""
    if len(command) <= _LINE or shlex.join(shlex.split(command)) != command:
        return command
    lines = [""]
    for word in map(shlex.quote, shlex.split(command)):
        # A value stays beside its option.
        if word.startswith("--") and len(lines[-1]) > _LINE // 2:
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


def _environment(state: SessionState) -> Iterator[str]:
    yield from provenance.version_notes(state.environment)
    if env := state.environment:
        if env.cpu_count:
            yield f"host {env.host}: {env.cpu}, {env.cpu_count} CPUs, {gigabytes(env.memory_bytes)} GB memory"
        if env.threads is not None:
            yield f"torch's default thread count: {env.threads}"
        if env.start_method:
            yield f"start method of the cells' processes: {env.start_method}"
    yield from provenance.setting_notes(state, list(state.cells.values()))
    if env:
        yield from env.problems


def _every_step(states: Sequence[SessionState], named: bool) -> str:
    parts = []
    for state in states:
        cells = [_times(n, cell, state.ddof) for n, cell in enumerate(state.cells.values(), 1) if cell.steps_done]
        parts += [f"### Session {markdown_escape(_session(state))}", *cells] if named and cells else cells
    return "\n\n".join(parts)


def _times(number: int, cell: CellState, ddof: int) -> str:
    warmup, measured_s = cell.warmup_times_s, cell.step_times_s
    top = max(*warmup, *measured_s, 0.0)
    bars = "│".join(sparkline(times, top, SPARKLINE_BARS) for times in (warmup, measured_s))
    found = summarize(measured_s or warmup, ddof)
    decimals = max(3, millisecond_decimals(found.mean_s, found.std_s))
    shared = -(-max(len(warmup), len(measured_s)) // SPARKLINE_BARS)
    binned = f", each bar the slowest of up to {shared} steps" if shared > 1 else ""
    lines = [f"`{bars}` warm-up │ measured, from 0 to {fixed_milliseconds(top, decimals)} ms{binned}"]
    for kind, times in (("warm-up", warmup), ("measured", measured_s)):
        if times:
            lines.append(f"{kind}, ms: {' '.join(fixed_milliseconds(t, decimals) for t in times)}")
    return f"#### {number}. {markdown_escape(title_of(cell))}: {status_of(cell)}\n\n{bullets(lines)}"


MOST_ROWS = 24
"""Rows of the first table; of more cells it has the `MOST_ROWS` / 4 fastest and as many slowest."""


class _Row(NamedTuple):
    """A row: a timed cell, or one that ended without timings."""

    name: str
    result: Result
    timed: Timed | None


def first_table(results: Sequence[Result]) -> Table | None:
    """Cell, mean ± std, interval, throughput, peak memory, verdict; None of no cell that has a result. Repeats of a
    cell are one row. Of more than `MOST_ROWS` cells those at both ends stand here."""
    cells = NamedCells.of(results)
    by_first = {id(run): each for each in cells.timed for run in each.runs}
    rows: list[_Row] = []
    for result in results:
        found = by_first.get(id(result))
        has_failed = has_result(result.cell) and result.cell.status in FAILED
        if found.first is result if found else has_failed:
            rows.append(_Row(cells.name(result), result, found))
    if not rows:
        rows = [_Row(cells.name(result), result, None) for result in results if has_result(result.cell)]
    if not rows:
        return None
    notes: list[str] = []
    if len(rows) > MOST_ROWS:
        up = sorted((row for row in rows if row.timed), key=lambda row: row.timed.mean_s if row.timed else 0.0)
        ends = MOST_ROWS // 4
        if len(up) > 2 * ends:
            notes.append(f"the {ends} fastest and the {ends} slowest of {len(up)} timed cells; all are under Cells")
            rows = [*up[:ends], *up[-ends:]]
        else:
            notes.append(f"the first {MOST_ROWS} of {len(rows)} cells; all are under Cells")
            rows = rows[:MOST_ROWS]
    columns = [each for each in _columns(rows) if {*map(each.cell, rows)} - {NONE, UNKNOWN, ""} or each.key == "cell"]
    if cells.timed:
        notes.append(f"± std: {std_kind(results[0].state.ddof)}")
    if len(cells.timed) > 1:
        notes.append(f"[a, b]: {CI} of a ratio of mean step times, Welch's of its logarithm")
    if any(len(each.runs) > 1 for each in cells.timed):
        notes.append(f"{CI} of several runs: Student's, from the runs' means")
    same = shared([row.result for row in rows]) if len(rows) > 1 else ""
    caption = f"Cells, each with {same}" if same else ""
    return Table.of(rows, columns, record=lambda row: {"cell": row.name}, caption=caption, footnotes=notes)


def _columns(rows: Sequence[_Row]) -> Sequence[Column[_Row]]:
    memory = MEASURES["memory" if any(allocated_bytes(row.result.cell) is not None for row in rows) else "rss"]
    rate = MEASURES["busbw" if all(row.result.spec.is_collective for row in rows) else "tokens"]

    def stage(row: _Row) -> str:
        return row.result.cell.stage if row.result.cell.stage and not row.result.spec.recording else NONE

    if not any(row.timed for row in rows):
        return (
            Column("cell", left=True, text=lambda row: row.name),
            Column("status", left=True, text=lambda row: status_of(row.result.cell)),
            Column("stage", left=True, text=stage),
            Column("steps", "steps done", text=lambda row: str(row.result.cell.steps_done or NONE)),
        )

    def mean(row: _Row) -> str:
        return MILLISECONDS.mean_and_std(row.timed.summary) if row.timed else row.result.ending

    def half(row: _Row) -> str:
        return half_width(row.timed.low, row.timed.high, row.timed.mean_s) if row.timed else NONE

    def runs(row: _Row) -> Runs:
        return Runs(row.timed.runs, row.result.state.ddof) if row.timed else Runs.of(row.result)

    def throughput(row: _Row) -> str:
        return rate.quantity.text(rate.read(runs(row))) if row.timed else NONE

    def peak(row: _Row) -> str:
        size = memory.read(runs(row))
        return NONE if size is None else memory.quantity.text(size)

    def verdict(row: _Row) -> str:
        found = [judgement_of(run.cell, run.state) for run in (row.timed.runs if row.timed else ())]
        names = [name for each in found if each for name in (each.doubts or each.holding)]
        return names[0].name if names else NONE

    return (
        Column("cell", left=True, text=lambda row: row.name),
        Column("mean", "mean ± std (ms)", text=mean),
        Column("interval", f"{CI} (± %)", text=half),
        Column("rate", rate.heading, text=throughput),
        Column("memory", memory.heading, text=peak),
        Column("verdict", left=True, text=verdict),
    )
