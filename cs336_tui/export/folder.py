"""The summary as a folder: the text, tables, figures, the logs, and a page that opens alone in a browser."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, product
from pathlib import Path
from typing import NamedTuple

from cs336_tui.analysis.fields import PivotError, varies
from cs336_tui.analysis.merge import Result, measured, results_of, without_visits
from cs336_tui.analysis.pivot import pivot, suggest
from cs336_tui.analysis.published import ReferenceFileError
from cs336_tui.analysis.roofline import PeakLookup, points
from cs336_tui.config.reading import NO_NAME
from cs336_tui.events.peaks import PeakCache
from cs336_tui.events.reports import REPORTS
from cs336_tui.export.figures import drawings, race_figures
from cs336_tui.export.pivot import pivot_table
from cs336_tui.export.reference import reference_tables
from cs336_tui.export.reports import report_drawings, report_tables
from cs336_tui.export.subjects.results import TableError, results_table
from cs336_tui.export.subjects.roofline import left_out, roofline_figure
from cs336_tui.export.summary import document
from cs336_tui.export.writeups import LAYOUTS, layout_tables
from cs336_tui.export.writing.drawing import FIGURE_FORMATS, Absent, Drawing
from cs336_tui.export.writing.files import SUFFIXES, AlreadyThere, ExportError, problem_of
from cs336_tui.export.writing.formats import page, render_all
from cs336_tui.export.writing.narrow import without_breaks
from cs336_tui.export.writing.tables import Table
from cs336_tui.export.writing.texts import bullets, markdown_escape
from cs336_tui.export.writing.verdicts import verdict_table
from cs336_tui.session.state import SessionState

TEXT, PAGE, TABLES, FIGURES = "summary.md", "summary.html", "tables", "figures"
_RENAME = "choose another name for the folder"
TABLE_FORMATS = ("markdown", "latex", "typst", "csv")
_OTHER_LAYOUTS = ("forward-only", "min-max", "raw-steps", "by-mean")
"""Layouts with nothing that the results table lacks; ``export --layout`` has them."""
_NEEDED = {"warm-up": "warmup", "devices": "device"}
"""Layouts, and the field in which cells must differ."""
_CONTENTS: Mapping[str, str] = {
    "results": "every cell with every statistic",
    "verdicts": "the verdicts on every cell and the interval of its mean",
    "pivot-mean": "mean step times side by side",
    "pivot-tokens": "tokens/s side by side",
    "pivot-memory": "peak memory side by side",
    "reference": "these results beside published ones",
}


class Source(NamedTuple):
    """A session and the log that it was read from."""

    log: Path
    state: SessionState


def write_summary(
    path: Path,
    sources: Sequence[Source],
    *,
    overwrite: bool = False,
    with_logs: bool = False,
    every_format: bool = False,
) -> None:
    """Write the summary of one session or several to the folder `path`, whole or not at all. Tables are markdown and
    figures SVG, with `every_format` also all that there are.

    It is made beside `path` and then renamed. With `overwrite` an earlier summary is replaced; a folder that holds
    anything else never is, and one with the log of a session that is not among `sources` only `with_logs`. Raises
    `ExportError`; then everything is as it was.
    """
    try:
        path = Path(os.path.realpath(path))
        _check(path, overwrite=overwrite)
        if not with_logs and (lost := _lost_logs(path, sources)):
            raise ExportError(path, f"holds the log of another session ({lost[0]})", f"{_RENAME}, or say --force")
    except OSError as error:
        raise problem_of(error, path) from None
    except ValueError:
        raise ExportError(path, NO_NAME, "choose another path") from None
    draft = path.parent / f".cs336-tui-{secrets.token_hex(8)}.tmp"
    try:
        draft.mkdir()
        _fill(draft, sources, *((TABLE_FORMATS, FIGURE_FORMATS) if every_format else (TABLE_FORMATS[:1], ("svg",))))
        _put_in_place(draft, path)
    except OSError as error:
        raise problem_of(error, path) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def tables_of(results: Sequence[Result], peaks: PeakLookup | None = None) -> dict[str, tuple[Table, ...]]:
    """Every table that these results give, by the name of its file: results, verdicts, pivots, the layouts of
    write-ups, reference points. Visits of a race are in the first two alone. `peaks`: see `results_table`."""
    found: dict[str, tuple[Table, ...]] = {}
    with contextlib.suppress(TableError):
        found["results"] = (results_table(results, peaks=peaks),)
    if (verdicts := verdict_table(results)).rows:
        found["verdicts"] = (verdicts,)
    results = without_visits(results)
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
    """Every figure of these results and of what was found out in their sessions; of a race its own one stands for its
    visits."""
    races, cells = race_figures(states), without_visits(results)
    of_cells: tuple[Drawing | Absent, ...] = ()
    if cells or not races:
        of_cells = (*drawings(cells), roofline_figure(points(cells, PeakCache().get), left_out(cells)))
    return *races, *of_cells, *report_drawings(states)


def _fits(name: str, results: Sequence[Result]) -> bool:
    """True of a table that says something of these cells which no other table of the summary says."""
    if name in _NEEDED:
        return varies(measured(results), _NEEDED[name])
    if name == "do_bench":
        return any(result.spec.timer == "do_bench" for result in results)
    return name not in _OTHER_LAYOUTS and (not name.startswith("pivot") or len(measured(results)) > 1)


def _fill(folder: Path, sources: Sequence[Source], table_formats: Sequence[str], figure_formats: Sequence[str]) -> None:
    states = [source.state for source in sources]
    results = results_of(*states)
    tables = {name: several for name, several in tables_of(results).items() if _fits(name, results)}
    tables |= report_tables(states, results)
    (folder / TABLES).mkdir()
    for (name, several), format_ in product(tables.items(), table_formats):
        _write(folder / TABLES / f"{name}.{SUFFIXES[format_]}", render_all(several, format_))
    figures = [each for each in figures_of(states, results) if not each.name.startswith("flame-graph")]  # two a profile
    logs = _log_names(sources)
    drawn = [figure for figure in figures if isinstance(figure, Drawing)]
    (folder / FIGURES).mkdir()
    for figure in drawn:
        for format_, data in figure.files(figure_formats).items():
            (folder / FIGURES / f"{figure.name}.{format_}").write_bytes(data)
    for name, source in logs.items():
        shutil.copyfile(source.log, folder / name)
    shown = (f"![{markdown_escape(figure.title.splitlines()[0])}]({FIGURES}/{figure.name}.svg)" for figure in drawn)
    parts = "\n\n".join(shown), bullets(_index(tables, figures, logs, (table_formats, figure_formats)))
    _write(folder / TEXT, document(states, *parts))
    _write(folder / PAGE, _page(document(states, *parts, paging=False), folder))


def _index(
    names: Iterable[str],
    figures: Sequence[Drawing | Absent],
    logs: Iterable[str],
    formats: tuple[Sequence[str], Sequence[str]],
) -> Iterator[str]:
    """Every file of the folder and what it is; `formats` are those of tables and of figures."""

    def files(folder: str, name: str, about: str, suffixes: Iterable[str]) -> str:
        links = ", ".join(f"[{suffix}]({folder}/{name}.{suffix})" for suffix in suffixes)
        return f"{folder}/{name}: {markdown_escape(about)}: {links}"

    yield f"[{TEXT}]({TEXT}): this text; [{PAGE}]({PAGE}): the same as a page that opens alone in a browser"
    for name in logs:
        yield f"[{name}]({name}): the log, every event of the session; `cs336-tui show {name}` reads it"
    abouts = {key: report.title for key, report in REPORTS.items()}
    abouts |= {**{key: layout.about for key, layout in LAYOUTS.items()}, **_CONTENTS}
    for name in names:
        yield files(TABLES, name, abouts[name], (SUFFIXES[format_] for format_ in formats[0]))
    for figure in figures:
        if isinstance(figure, Drawing):
            yield files(FIGURES, figure.name, figure.title.splitlines()[0], formats[1])
    for figure in figures:
        if isinstance(figure, Absent):
            yield f"no figure {figure.name}: {markdown_escape(figure.reason)}"


def _page(text: str, folder: Path) -> str:
    """The summary as one HTML page, the figures within it. Links to files beside it stay links."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(without_breaks(text))
    body = re.sub(r"<p>Table: (.*)</p>\n<table>", r"<table>\n<caption>\1</caption>", body)
    number = count(1)
    body = re.sub(
        r'<p>(<img [^>]*alt="([^"]*)"[^>]*>)</p>',
        lambda found: f"<figure>{found[1]}<figcaption>Figure {next(number)}: {found[2]}</figcaption></figure>",
        body,
    )
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


def _lost_logs(path: Path, sources: Sequence[Source]) -> list[str]:
    """The logs in the folder that a new summary has not, neither by name nor by their first line."""

    def begin(log: Path) -> bytes:
        with log.open("rb") as file:
            return file.readline()

    kept, begins = _log_names(sources), [begin(source.log) for source in sources]
    return sorted(log.name for log in path.glob("*.jsonl") if log.name not in kept and begin(log) not in begins)


def _check(path: Path, *, overwrite: bool) -> None:
    if not path.parent.is_dir():
        raise ExportError(path, f"directory {path.parent} does not exist", "create it or choose another path")
    if not path.exists():
        return
    if not path.is_dir():
        raise ExportError(path, "is a file", _RENAME)
    inside = {entry.name for entry in path.iterdir()}
    ours = {TEXT, PAGE, TABLES, FIGURES}
    if others := sorted(name for name in inside - ours if not name.endswith(".jsonl")):
        raise ExportError(path, f"holds other things ({others[0]})", _RENAME)
    if inside and TEXT not in inside:
        raise ExportError(path, "holds no earlier summary", _RENAME)
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
