"""The session summary: measurements and their provenance in one markdown document, without conclusions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from cs336_tui.export import markdown, provenance
from cs336_tui.export.cells import cells_with_results, ending_of, failed_cells, progress, status_of, title_of
from cs336_tui.export.footnotes import machine_marks
from cs336_tui.export.formats import render
from cs336_tui.export.reports import LIMIT, report_sections
from cs336_tui.export.results import NO_RESULTS, results_of, results_rows
from cs336_tui.export.tables import Align
from cs336_tui.export.verdicts import CAPTION as TRUST
from cs336_tui.export.verdicts import verdict_table
from cs336_tui.session.cell_state import CellState
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import fixed_milliseconds, gigabytes, millisecond_decimals, milliseconds, sparkline
from cs336_tui.stats.summaries import summarize

SPARKLINE_BARS = 60
"""Bars at most for the warm-up and for the measured steps each."""
OUTPUT_LINES = 20
"""Lines of a failed cell's output that are shown, the last ones."""

_RIGHT: Align = "right"
_PHASES_NOTE = "Means over the n measured steps: a phase's time on the device, and the host's time to enqueue the step."


def summary_markdown(state: SessionState) -> str:
    """As GitHub-flavoured markdown: where and what was run, the results, how far these can be trusted and how close
    they come to the limit, where time and memory went, every step, failures and notices.

    Reads well at any moment of a session; sections without content are left out.
    """
    reports = dict(report_sections(state))
    limit = reports.pop(LIMIT, "")
    sections = (
        ("Environment", markdown.bullets(map(markdown.escape, _environment(state)))),
        ("Command", markdown.code_block("\n".join(state.commands), "sh") if state.commands else ""),
        ("Results", _results(state)),
        (TRUST, _trust(state)),
        (LIMIT, limit),
        ("Phases", _phases(state)),
        *reports.items(),
        ("Step times", _step_times(state)),
        ("Failures", "\n\n".join(map(_failure, failed_cells(state)))),
        ("Notices", markdown.bullets(markdown.escape(notice.text) for notice in state.notices)),
    )
    session = state.started.session if state.started else "unnamed"
    named = f": {markdown.escape(state.name)}" if state.name else ""
    parts = [f"# cs336-tui session {session}{named}", _opening(state)]
    parts += [f"Note: {markdown.escape(state.note)}"] if state.note else []
    parts += [f"## {title}\n\n{body}" for title, body in sections if body]
    return "\n\n".join(parts) + "\n"


def _opening(state: SessionState) -> str:
    """When the session began, how far it came and whether it is over; one line."""
    started = (
        f"Started {datetime.fromtimestamp(state.started.at, UTC):%Y-%m-%d %H:%M:%S} UTC. " if state.started else ""
    )
    ended = f"session {state.ended.reason}" if state.ended else "the session has not ended"
    return f"{started}{progress(state)}; {ended}."


def _environment(state: SessionState) -> Iterator[str]:
    yield from provenance.version_notes(state.environment)
    if env := state.environment:
        yield (f"host {env.host}: {env.cpu}, {env.cpu_count} CPUs, {gigabytes(env.memory_bytes)} GB memory")
        if env.threads is not None:
            yield f"torch's default thread count: {env.threads}"
        if env.start_method:
            yield f"start method of the cells' processes: {env.start_method}"
    yield from provenance.setting_notes(state, list(state.cells.values()))
    if env:
        yield from env.problems


def _results(state: SessionState) -> str:
    cells = cells_with_results(state)
    if not cells:
        return NO_RESULTS
    notes = (*provenance.reading_notes(state, cells), *machine_marks(results_of(state)).notes)
    return f"{results_rows(state)}\n\n{markdown.bullets(map(markdown.escape, notes))}"


def _trust(state: SessionState) -> str:
    """The verdict on every cell with timings, what is wrong with those in doubt, and what could not be observed."""
    table = verdict_table(results_of(state), caption="")
    return render(table, "markdown").rstrip() if table.rows else ""


def _phases(state: SessionState) -> str:
    """Mean device time of each phase over the measured steps, and the host's time to enqueue a step."""
    cells = [cell for cell in state.cells.values() if cell.phase_times_s]
    if not cells:
        return ""
    # The cell with most phases has them all in the order of a step.
    fullest_first = sorted(cells, key=lambda cell: -len(cell.phase_times_s))
    names = list(dict.fromkeys(name for cell in fullest_first for name in cell.phase_times_s))
    rows = [
        [title_of(cell), *(_mean_ms(cell.phase_times_s.get(name, ())) for name in names), _mean_ms(cell.host_times_s)]
        for cell in cells
    ]
    headers = ["cell", *(f"{name} (ms)" for name in names), "host enqueue (ms)"]
    aligns: list[Align] = ["left", *(_RIGHT for _ in headers[1:])]
    return f"{markdown.table(headers, aligns, rows)}\n\n{_PHASES_NOTE}"


def _mean_ms(times_s: Sequence[float]) -> str:
    found = summarize(times_s)
    return milliseconds(found.mean_s, found.std_s)[0]


def _step_times(state: SessionState) -> str:
    return "\n\n".join(
        _cell_times(number, cell, state.ddof) for number, cell in enumerate(state.cells.values(), 1) if cell.steps_done
    )


def _cell_times(number: int, cell: CellState, ddof: int) -> str:
    warmup, measured = cell.warmup_times_s, cell.step_times_s
    top = max(*warmup, *measured, 0.0)
    bars = "│".join(sparkline(times, top, SPARKLINE_BARS) for times in (warmup, measured))
    found = summarize(measured or warmup, ddof)
    decimals = max(3, millisecond_decimals(found.mean_s, found.std_s))
    shared = -(-max(len(warmup), len(measured)) // SPARKLINE_BARS)
    binned = f", each bar the slowest of up to {shared} steps" if shared > 1 else ""
    lines = [f"`{bars}` warm-up │ measured, from 0 to {fixed_milliseconds(top, decimals)} ms{binned}"]
    for kind, times in (("warm-up", warmup), ("measured", measured)):
        if times:
            lines.append(f"{kind}, ms: {' '.join(fixed_milliseconds(t, decimals) for t in times)}")
    return f"### {number}. {markdown.escape(title_of(cell))}: {status_of(cell)}\n\n{markdown.bullets(lines)}"


def _failure(cell: CellState) -> str:
    text = f"### {markdown.escape(title_of(cell))}\n\n{markdown.escape(ending_of(cell))}"
    tail = cell.output.rstrip().splitlines()[-OUTPUT_LINES:]
    return f"{text}\n\n{markdown.code_block(chr(10).join(tail))}" if tail else text
