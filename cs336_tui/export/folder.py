"""The session summary as one folder: text, tables, figures, the logs, and a page that opens alone in a browser."""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cs336_tui.analysis.merge import Result, merge, title_of
from cs336_tui.analysis.pivot import PivotError, pivot, suggest
from cs336_tui.analysis.reference import ReferenceFileError
from cs336_tui.analysis.roofline import points
from cs336_tui.events.peaks import PeakCache
from cs336_tui.export import markdown
from cs336_tui.export.figures import FIGURE_FORMATS, Absent, Drawing, drawings
from cs336_tui.export.files import AlreadyThere, ExportError, problem_of
from cs336_tui.export.formats import SUFFIXES, page, render_all
from cs336_tui.export.pivot import pivot_table
from cs336_tui.export.reference import reference_table
from cs336_tui.export.reports import report_drawings, report_tables
from cs336_tui.export.results import TableError, results_table
from cs336_tui.export.roofline import left_out, roofline_figure
from cs336_tui.export.summary import summary_markdown
from cs336_tui.export.tables import Table
from cs336_tui.export.verdicts import verdict_table
from cs336_tui.export.writeups import LAYOUTS, layout_tables
from cs336_tui.session.state import SessionState

TEXT, PAGE, TABLES, FIGURES = "summary.md", "summary.html", "tables", "figures"
TABLE_FORMATS = ("markdown", "latex", "typst", "csv")


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
        found["reference"] = (reference_table(results),)
    return found


def figures_of(states: Sequence[SessionState], results: Sequence[Result]) -> tuple[Drawing | Absent, ...]:
    """Every figure of these results and of what was found out in their sessions."""
    roofline = roofline_figure(points(results, PeakCache().get), left_out(results))
    return *drawings(results), roofline, *report_drawings(states)


def _fill(folder: Path, sources: Sequence[Source]) -> None:
    states = [source.state for source in sources]
    results = merge([(title_of(state), state) for state in states])
    tables = {**tables_of(results), **report_tables(states, results)}
    (folder / TABLES).mkdir()
    for name, several in tables.items():
        for format_ in TABLE_FORMATS:
            _write(folder / TABLES / f"{name}.{SUFFIXES[format_]}", render_all(several, format_))
    drawn: list[Drawing] = []
    missing: list[Absent] = []
    (folder / FIGURES).mkdir()
    for figure in figures_of(states, results):
        if isinstance(figure, Absent):
            missing.append(figure)
            continue
        drawn.append(figure)
        for format_ in FIGURE_FORMATS:
            (folder / FIGURES / f"{figure.name}.{format_}").write_bytes(figure.render(format_))
    for name, source in _log_names(sources).items():
        shutil.copyfile(source.log, folder / name)
    text = _text(sources, tables, drawn, missing)
    _write(folder / TEXT, text)
    _write(folder / PAGE, _page(text, folder))


def _text(
    sources: Sequence[Source],
    tables: Mapping[str, tuple[Table, ...]],
    drawn: Sequence[Drawing],
    missing: Sequence[Absent],
) -> str:
    """The summary of each session, then its tables and figures; of several sessions first what they say together."""
    shown = "\n\n".join(
        f"![{markdown.escape(_one_line(figure.title))}]({FIGURES}/{figure.name}.svg)" for figure in drawn
    )
    absent = markdown.bullets(f"no figure {figure.name}: {markdown.escape(figure.reason)}" for figure in missing)
    links = markdown.bullets(
        f"{name}: " + ", ".join(f"[{format_}]({TABLES}/{name}.{SUFFIXES[format_]})" for format_ in TABLE_FORMATS)
        for name in tables
    )
    logs = markdown.bullets(f"[{name}]({name})" for name in _log_names(sources))
    parts = [(title, body) for title, body in (("Figures", f"{shown}\n\n{absent}".strip()), ("Tables", links),
                                               ("Session logs", logs)) if body]  # fmt: skip
    files = "\n\n".join(f"## {title}\n\n{body}" for title, body in parts)
    if len(sources) == 1:
        return f"{summary_markdown(sources[0].state)}\n{files}\n"
    together = render_all(tables["results"], "markdown") if "results" in tables else ""
    head = f"# cs336-tui: {len(sources)} sessions\n\n## Results\n\n{together}\n{files}"
    return "\n\n".join([head, *(summary_markdown(source.state).rstrip() for source in sources)]) + "\n"


def _page(text: str, folder: Path) -> str:
    """The summary as one HTML page, the figures within it. Links to files beside it stay links."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    for file in sorted((folder / FIGURES).glob("*.svg")):
        data = base64.b64encode(file.read_bytes()).decode()
        body = body.replace(f'src="{FIGURES}/{file.name}"', f'src="data:image/svg+xml;base64,{data}"')
    title = text.partition("\n")[0].removeprefix("# ")
    return page(title, body)


def _log_names(sources: Sequence[Source]) -> dict[str, Source]:
    """The name of each log in the folder."""
    if len(sources) == 1:
        return {"session.jsonl": sources[0]}
    names: dict[str, Source] = {}
    for number, source in enumerate(sources, 1):
        name = source.log.name if source.log.name not in names else f"{source.log.stem}-{number}{source.log.suffix}"
        names[name] = source
    return names


def _check(path: Path, *, overwrite: bool) -> None:
    if not path.parent.is_dir():
        raise ExportError(path, f"directory {path.parent} does not exist", "create it or choose another path")
    if not path.exists():
        return
    if not path.is_dir():
        raise ExportError(path, "is a file", "choose another name for the folder")
    inside = {entry.name for entry in path.iterdir()}
    ours = {TEXT, PAGE, TABLES, FIGURES}
    if others := sorted(name for name in inside - ours if not name.endswith(".jsonl")):
        raise ExportError(path, f"holds other things ({others[0]})", "choose another name for the folder")
    if inside and TEXT not in inside:
        raise ExportError(path, "holds no earlier summary", "choose another name for the folder")
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


def _one_line(text: str) -> str:
    return " ".join(text.split())
