"""Exports read by other programs: pandoc reads LaTeX, Typst, markdown and HTML, Typst's compiler compiles its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cs336_tui.config.axis import UserError
from cs336_tui.export.catalogue import SUMMARY, Choice, formats_of, offers, text_of
from cs336_tui.export.writing.files import SUFFIXES
from cs336_tui.export.writing.formats import render, render_all
from cs336_tui.export.writing.tables import Column, Table
from cs336_tui.session.state import SessionState
from cs336_tui.session.store import load

DEMO = Path(__file__).parents[1] / "data" / "demo-session.jsonl"
READERS = {"latex": "latex", "typst": "typst", "markdown": "gfm", "html": "html"}
GROUPED = Table(
    columns=(
        Column("size", left=True),
        Column("a", "ms", group="CPU"),
        Column("b", "ms", group="CUDA"),
        Column("c", "s", group="CUDA"),
    ),
    rows=(("small", "1", "2", "3"),),
    caption="Devices side by side",
    label="devices",
)
WIDE = Table(
    columns=tuple(Column(f"column {number}") for number in range(12)),
    rows=(("12.34 ± 0.56",) * 12,),
    caption="More than a line",
    footnotes=("one note", "[another] note"),
    label="wide",
)


def pandoc(file: Path | str, format_: str) -> dict[str, Any]:
    """The document as pandoc reads it, without a warning."""
    pypandoc = pytest.importorskip("pypandoc", reason="pip install pypandoc_binary")
    words = [pypandoc.get_pandoc_path(), "-f", READERS[format_], "-t", "json", "--fail-if-warnings"]
    text = file.read_text() if isinstance(file, Path) else file
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tables_in(found: object) -> Iterator[dict[str, Any]]:
    """The tables of pandoc's document, wherever they stand."""
    if isinstance(found, dict):
        if found.get("t") == "Table":
            yield found
        found = list(found.values())
    if isinstance(found, list):
        for each in found:
            yield from tables_in(each)


def words_of(found: object) -> str:
    """The text of a part of pandoc's document."""
    if isinstance(found, dict):
        if found.get("t") == "Math":
            return str(found["c"][1]).replace(r"\pm", "±")
        return str(found["c"]) if found.get("t") == "Str" else " ".join(map(words_of, found.values()))
    return " ".join(map(words_of, found)) if isinstance(found, list) else ""


def grid(table: dict[str, Any]) -> list[list[str]]:
    """The texts of a table's cells, its head first."""
    _, _, _, head, bodies, _ = table["c"]
    rows = [*head[1], *(row for body in bodies for row in (*body[2], *body[3]))]
    return [[" ".join(words_of(cell[4]).split()) for cell in row[1]] for row in rows]


@pytest.fixture(scope="module")
def demo() -> SessionState:
    return load(DEMO)


@pytest.mark.parametrize("format_", READERS)
def test_pandoc_reads_everything_that_a_session_is_exported_as(demo: SessionState, format_: str) -> None:
    texts = []
    for offer in offers(demo):
        if format_ in formats_of(offer.what) and offer.what != SUMMARY:
            try:
                texts.append(text_of(Choice(what=offer.what, format=format_), demo))
            except UserError:
                continue
    begin = {"latex": r"\begin{tabular}", "typst": "table(\n", "markdown": "\n| -", "html": "<table "}[format_]
    whole = "\n\n".join(texts)
    assert len(texts) > 12
    assert len(list(tables_in(pandoc(whole, format_)))) == whole.count(begin)


@pytest.mark.parametrize("format_", READERS)
def test_pandoc_finds_the_times_of_the_results_in_their_rows(demo: SessionState, format_: str) -> None:
    text = text_of(Choice(format=format_), demo)
    (table,) = tables_in(pandoc(text, format_))
    head, *rows = grid(table)
    mean = head.index("mean (ms)")
    expected = [cell.running.mean * 1e3 for cell in demo.cells.values() if cell.running.n]
    found = [float(row[mean]) for row in rows if row[mean] != "n/a"]
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("format_", READERS)
def test_what_is_wide_and_what_has_groups_is_whole_for_pandoc(format_: str) -> None:
    grouped, wide = tables_in(pandoc(render_all([GROUPED, WIDE], format_), format_))
    assert grid(grouped)[-1] == ["small", "1", "2", "3"]
    assert grid(wide)[-1] == ["12.34 ± 0.56"] * 12
    if format_ in ("latex", "typst"):
        assert words_of(grouped["c"][1]).split() == ["Devices", "side", "by", "side"]


def test_a_latex_table_is_referred_to_by_its_label() -> None:
    found = pandoc(render(GROUPED, "latex") + r"See Table~\ref{tab:devices}.", "latex")
    assert '"reference", "tab:devices"' in json.dumps(found)
    assert '"1"' in json.dumps(found["blocks"][-1]), "pandoc knows its number"


@pytest.mark.parametrize("what", ["results", "pivot", "layout devices", "layout raw-steps", "report roofline"])
def test_typst_compiles(demo: SessionState, what: str, tmp_path: Path) -> None:
    typst = pytest.importorskip("typst", reason="pip install typst")
    file = tmp_path / f"t.{SUFFIXES['typst']}"
    text = text_of(Choice(what=what, format="typst"), demo)
    label = text.partition(") <")[2].partition(">")[0]
    file.write_text(f"{text}\nSee @{label}.\n")
    assert typst.compile(str(file)).startswith(b"%PDF")
