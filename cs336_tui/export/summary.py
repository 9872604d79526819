"""The session summary: measurements and their provenance, without conclusions, as one markdown document or a folder.

The folder holds the text, tables, figures, the logs, and a page that opens alone in a browser.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec

from cs336_tui.analysis.merge import Result, merge
from cs336_tui.analysis.merge import title_of as session_title
from cs336_tui.analysis.pivot import PivotError, pivot, suggest
from cs336_tui.analysis.published import ReferenceFileError
from cs336_tui.analysis.roofline import points
from cs336_tui.events.peaks import PeakCache
from cs336_tui.export import provenance
from cs336_tui.export.drawing import Absent, Drawing
from cs336_tui.export.figures import drawings
from cs336_tui.export.files import AlreadyThere, ExportError, problem_of
from cs336_tui.export.footnotes import (
    FAILED,
    ending_of,
    has_result,
    machine_marks,
    progress,
    reading_notes,
    status_of,
    title_of,
)
from cs336_tui.export.formats import SUFFIXES, page, render, render_all
from cs336_tui.export.pivot import pivot_table
from cs336_tui.export.reference import reference_tables
from cs336_tui.export.reports import LIMIT, report_drawings, report_sections, report_tables
from cs336_tui.export.results import NO_RESULTS, TableError, results_of, results_table
from cs336_tui.export.roofline import left_out, roofline_figure
from cs336_tui.export.tables import Column, Table
from cs336_tui.export.texts import bullets, code_block, markdown_escape
from cs336_tui.export.verdicts import CAPTION as TRUST
from cs336_tui.export.verdicts import verdict_table
from cs336_tui.export.writeups import LAYOUTS, layout_tables
from cs336_tui.session.cell_state import CellState
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import fixed_milliseconds, gigabytes, millisecond_decimals, milliseconds, sparkline
from cs336_tui.stats.summaries import summarize

SPARKLINE_BARS = 60
"""Bars at most for the warm-up and for the measured steps each."""
OUTPUT_LINES = 20
"""Lines of a failed cell's output that are shown, the last ones."""
_PHASES_NOTE = "Means over the n measured steps: a phase's time on the device, and the host's time to enqueue the step."

TEXT, PAGE, TABLES, FIGURES = "summary.md", "summary.html", "tables", "figures"
TABLE_FORMATS = ("markdown", "latex", "typst", "csv")


def summary_markdown(state: SessionState) -> str:
    """As GitHub-flavoured markdown: where and what was run, the results, how far these can be trusted and how close
    they come to the limit, where time and memory went, every step, failures and notices.

    Reads well at any moment of a session; sections without content are left out.
    """
    reports, cells = dict(report_sections(state)), state.cells.values()
    trust = verdict_table(results_of(state), caption="")
    limit = reports.pop(LIMIT, "")
    sections = (
        ("Environment", _lines(_environment(state))),
        ("Command", code_block("\n".join(state.commands), "sh") if state.commands else ""),
        ("Results", _results(state)),
        (TRUST, render(trust, "markdown").rstrip() if trust.rows else ""),
        (LIMIT, limit),
        ("Phases", _phases(state)),
        *reports.items(),
        ("Step times", "\n\n".join(_times(n, cell, state.ddof) for n, cell in enumerate(cells, 1) if cell.steps_done)),
        ("Failures", "\n\n".join(_failure(cell) for cell in cells if cell.status in FAILED)),
        ("Notices", _lines(notice.text for notice in state.notices)),
    )
    session = state.started.session if state.started else "unnamed"
    named = f": {markdown_escape(state.name)}" if state.name else ""
    parts = [f"# cs336-tui session {session}{named}", _opening(state)]
    parts += [f"Note: {markdown_escape(state.note)}"] if state.note else []
    parts += [f"## {title}\n\n{body}" for title, body in sections if body]
    return "\n\n".join(parts) + "\n"


def _opening(state: SessionState) -> str:
    """When the session began, how far it came and whether it is over; one line."""
    at = state.started and datetime.fromtimestamp(state.started.at, UTC)
    ended = f"session {state.ended.reason}" if state.ended else "the session has not ended"
    return f"{f'Started {at:%Y-%m-%d %H:%M:%S} UTC. ' if at else ''}{progress(state)}; {ended}."


def _environment(state: SessionState) -> Iterator[str]:
    yield from provenance.version_notes(state.environment)
    if env := state.environment:
        yield f"host {env.host}: {env.cpu}, {env.cpu_count} CPUs, {gigabytes(env.memory_bytes)} GB memory"
        if env.threads is not None:
            yield f"torch's default thread count: {env.threads}"
        if env.start_method:
            yield f"start method of the cells' processes: {env.start_method}"
    yield from provenance.setting_notes(state, list(state.cells.values()))
    if env:
        yield from env.problems


def _results(state: SessionState) -> str:
    cells, results = list(filter(has_result, state.cells.values())), results_of(state)
    if not cells:
        return NO_RESULTS
    notes = (*reading_notes(state, cells), *machine_marks(results).notes)
    return render(msgspec.structs.replace(results_table(results), footnotes=notes), "markdown").rstrip()


def _phases(state: SessionState) -> str:
    """Mean device time of each phase over the measured steps, and the host's time to enqueue a step."""
    cells = [cell for cell in state.cells.values() if cell.phase_times_s]
    if not cells:
        return ""
    # The cell with most phases has them all in the order of a step.
    fullest_first = sorted(cells, key=lambda cell: -len(cell.phase_times_s))
    names = dict.fromkeys(name for cell in fullest_first for name in cell.phase_times_s)
    rows = [
        (title_of(cell), *(_mean_ms(cell.phase_times_s.get(name, ())) for name in names), _mean_ms(cell.times.host_s))
        for cell in cells
    ]
    headers = ["cell", *(f"{name} (ms)" for name in names), "host enqueue (ms)"]
    table = Table(columns=tuple(Column(header, left=header == "cell") for header in headers), rows=tuple(rows))
    return f"{render(table, 'markdown')}\n{_PHASES_NOTE}"


def _mean_ms(times_s: Sequence[float]) -> str:
    found = summarize(times_s)
    return milliseconds(found.mean_s, found.std_s)[0]


def _times(number: int, cell: CellState, ddof: int) -> str:
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
    return f"### {number}. {markdown_escape(title_of(cell))}: {status_of(cell)}\n\n{bullets(lines)}"


def _failure(cell: CellState) -> str:
    text = f"### {markdown_escape(title_of(cell))}\n\n{markdown_escape(ending_of(cell))}"
    tail = cell.output.rstrip().splitlines()[-OUTPUT_LINES:]
    return f"{text}\n\n{code_block(chr(10).join(tail))}" if tail else text


def _lines(texts: Iterable[str]) -> str:
    return bullets(map(markdown_escape, texts))


class Source(NamedTuple):
    """A session and the log that it was read from."""

    log: Path
    state: SessionState


def write_summary(path: Path, sources: Sequence[Source], *, overwrite: bool = False) -> None:
    """Write the summary of one session or several to the folder `path`, whole or not at all.

    It is made beside `path` and then renamed. With `overwrite` an earlier summary is replaced; a folder that holds
    anything else never is. Raises `ExportError`; then everything is as it was.
    """
    path = Path(os.path.realpath(path))
    _check(path, overwrite=overwrite)
    draft = path.parent / f".cs336-tui-{secrets.token_hex(8)}.tmp"
    try:
        draft.mkdir()
        _fill(draft, sources)
        _put_in_place(draft, path)
    except OSError as error:
        raise problem_of(error, path) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def tables_of(results: Sequence[Result]) -> Mapping[str, tuple[Table, ...]]:
    """Every table that these results give, by the name of its file: results, verdicts, pivots, the layouts of
    write-ups, reference points."""
    found: dict[str, tuple[Table, ...]] = {}
    with contextlib.suppress(TableError):
        found["results"] = (results_table(results),)
    if (verdicts := verdict_table(results)).rows:
        found["verdicts"] = (verdicts,)
    with contextlib.suppress(PivotError):
        rows, columns = suggest(results)
        for value in ("mean", "tokens", "memory"):
            found[f"pivot-{value}"] = (pivot_table(pivot(results, rows, columns, value), results),)
    for layout in LAYOUTS:
        with contextlib.suppress(TableError):
            found[layout] = layout_tables(results, layout)
    with contextlib.suppress(TableError, ReferenceFileError):
        found["reference"] = reference_tables(results)
    return found


def figures_of(states: Sequence[SessionState], results: Sequence[Result]) -> tuple[Drawing | Absent, ...]:
    """Every figure of these results and of what was found out in their sessions."""
    roofline = roofline_figure(points(results, PeakCache().get), left_out(results))
    return *drawings(results), roofline, *report_drawings(states)


def _fill(folder: Path, sources: Sequence[Source]) -> None:
    states = [source.state for source in sources]
    results = merge([(session_title(state), state) for state in states])
    tables = {**tables_of(results), **report_tables(states, results)}
    (folder / TABLES).mkdir()
    for (name, several), format_ in product(tables.items(), TABLE_FORMATS):
        _write(folder / TABLES / f"{name}.{SUFFIXES[format_]}", render_all(several, format_))
    figures = figures_of(states, results)
    drawn = [figure for figure in figures if isinstance(figure, Drawing)]
    missing = [figure for figure in figures if isinstance(figure, Absent)]
    (folder / FIGURES).mkdir()
    for figure in drawn:
        for format_, data in figure.files().items():
            (folder / FIGURES / f"{figure.name}.{format_}").write_bytes(data)
    for name, source in _log_names(sources).items():
        shutil.copyfile(source.log, folder / name)
    together = render_all(tables["results"], "markdown") if "results" in tables else ""
    text = _text(sources, tables, drawn, missing, together)
    _write(folder / TEXT, text)
    _write(folder / PAGE, _page(text, folder))


def _text(
    sources: Sequence[Source], names: Iterable[str], drawn: Sequence[Drawing], missing: Sequence[Absent], together: str
) -> str:
    """The summary of each session, then its tables and figures; of several sessions first what they say together."""
    shown = "\n\n".join(f"![{markdown_escape(figure.title)}]({FIGURES}/{figure.name}.svg)" for figure in drawn)
    absent = bullets(f"no figure {figure.name}: {markdown_escape(figure.reason)}" for figure in missing)
    parts = {
        "Figures": f"{shown}\n\n{absent}".strip(),
        "Tables": bullets(
            f"{name}: " + ", ".join(f"[{format_}]({TABLES}/{name}.{SUFFIXES[format_]})" for format_ in TABLE_FORMATS)
            for name in names
        ),
        "Session logs": bullets(f"[{name}]({name})" for name in _log_names(sources)),
    }
    files = "\n\n".join(f"## {title}\n\n{body}" for title, body in parts.items() if body)
    if len(sources) == 1:
        return f"{summary_markdown(sources[0].state)}\n{files}\n"
    head = f"# cs336-tui: {len(sources)} sessions\n\n## Results\n\n{together}\n{files}"
    return "\n\n".join([head, *(summary_markdown(source.state).rstrip() for source in sources)]) + "\n"


def _page(text: str, folder: Path) -> str:
    """The summary as one HTML page, the figures within it. Links to files beside it stay links."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    for file in sorted((folder / FIGURES).glob("*.svg")):
        data = base64.b64encode(file.read_bytes()).decode()
        body = body.replace(f'src="{FIGURES}/{file.name}"', f'src="data:image/svg+xml;base64,{data}"')
    return page(text.partition("\n")[0].removeprefix("# "), body)


def _log_names(sources: Sequence[Source]) -> dict[str, Source]:
    if len(sources) == 1:
        return {"session.jsonl": sources[0]}
    names: dict[str, Source] = {}
    for number, source in enumerate(sources, 1):
        log = source.log
        names[f"{log.stem}-{number}{log.suffix}" if log.name in names else log.name] = source
    return names


def _check(path: Path, *, overwrite: bool) -> None:
    if not path.parent.is_dir():
        raise ExportError(path, f"directory {path.parent} does not exist", "create it or choose another path")
    if not path.exists():
        return
    rename = "choose another name for the folder"
    if not path.is_dir():
        raise ExportError(path, "is a file", rename)
    inside = {entry.name for entry in path.iterdir()}
    ours = {TEXT, PAGE, TABLES, FIGURES}
    if others := sorted(name for name in inside - ours if not name.endswith(".jsonl")):
        raise ExportError(path, f"holds other things ({others[0]})", rename)
    if inside and TEXT not in inside:
        raise ExportError(path, "holds no earlier summary", rename)
    if inside and not overwrite:
        raise AlreadyThere(path)


def _put_in_place(draft: Path, path: Path) -> None:
    if not path.exists():
        draft.rename(path)
        return
    aside = path.parent / f".cs336-tui-{secrets.token_hex(8)}.old"
    path.rename(aside)
    try:
        draft.rename(path)
    except OSError:
        aside.rename(path)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
