"""One table in every format: whole, escaped, and accepted by the format's readers."""

import csv
import io
import json
import re

import msgspec
import pytest
from markdown_it import MarkdownIt

from cs336_tui.export.writing.files import FORMATS, SUFFIXES
from cs336_tui.export.writing.formats import answer, latex_escape, page, render, render_all
from cs336_tui.export.writing.tables import Column, Table
from cs336_tui.export.writing.texts import markdown_escape
from tests.export.html_reader import Reader
from tests.loading import loaded_with

HOSTILE = r'50 % & #1 a_b {x} ~ ^ $ \ <b> | "q" `c` *d* [e]'
TABLE = Table(
    columns=(Column("size", left=True), Column("mean (ms)"), Column("mean (ms)")),
    rows=(("small", "16.10 ± 0.12", HOSTILE), ("2.7B", "OOM", "")),
    records=(
        {"size": "small", "n": 10, "mean_s": 0.0161, "note": None, "times_s": (0.1, 0.2)},
        {"size": HOSTILE, "n": None, "mean_s": None, "note": "OOM", "times_s": ()},
    ),
    caption=f"Step times {HOSTILE}",
    footnotes=("std: sample standard deviation, n − 1", f"- {HOSTILE}"),
    label="some table+1",
)


def test_every_format_has_a_suffix_of_its_own() -> None:
    assert tuple(SUFFIXES) == FORMATS
    assert len(set(SUFFIXES.values())) == len(FORMATS)


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_ends_its_last_line(format_: str) -> None:
    assert render(TABLE, format_).endswith("\n")


def test_markdown_shows_the_text_as_it_is() -> None:
    html = MarkdownIt("commonmark").enable("table").render(render(TABLE, "markdown"))
    rows = Reader(html).rows
    assert rows == [["size", "mean (ms)", "mean (ms)"], ["small", "16.10 ± 0.12", HOSTILE], ["2.7B", "OOM", ""]]
    assert html.count("<li>") == 2
    assert html.startswith("<p><strong>Step times 50 % &amp; #1")


def test_latex_is_a_booktabs_table_with_caption_label_and_notes() -> None:
    text = render(TABLE, "latex")
    for word in (r"\usepackage{booktabs}", r"\begin{tabular}{lrr}", r"\toprule", r"\midrule", r"\bottomrule"):
        assert word in text
    caption = next(line for line in text.splitlines() if line.startswith(r"\caption{Step times 50 \% \& \#1 a\_b"))
    assert caption.endswith(r"}\label{tab:some-table-1}")
    assert text.index(r"\begin{table}") < text.index(caption) < text.index(r"\end{table}")
    assert r"small & 16.10 $\pm$ 0.12 & 50 \% \& \#1" in text
    assert text.index(r"\end{tabular}") < text.index("n $-$ 1") < text.index(r"\end{table}")
    begun, ended = re.findall(r"\\begin\{(\w+)\}", text), re.findall(r"\\end\{(\w+)\}", text)
    assert sorted(begun) == sorted(ended)


def test_latex_leaves_nothing_unescaped() -> None:
    text = latex_escape(HOSTILE)
    assert not re.search(r"(?<!\\)[%&#_]", text)
    assert r"\textbackslash{}" in text
    assert r"\textasciitilde{}" in text
    assert latex_escape("a -- b --- c") == r"a -{}- b -{}-{}- c"


def test_typst_holds_strings_that_nothing_in_them_can_end() -> None:
    text = render(TABLE, "typst")
    assert text.startswith("#figure(\n")
    assert "columns: 3, align: (left, right, right, )" in text
    assert ") <tab:some-table-1>" in text
    strings = [json.loads(found) for found in re.findall(r'"(?:[^"\\]|\\.)*"', text)]
    assert strings == [
        TABLE.caption, *(column.header for column in TABLE.columns), *(cell for row in TABLE.rows for cell in row),
        *TABLE.footnotes,
    ]  # fmt: skip
    without = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    assert without.count("(") == without.count(")")


def test_csv_has_the_records_in_base_units() -> None:
    first, second = csv.DictReader(io.StringIO(render(TABLE, "csv")))
    assert first == {"size": "small", "n": "10", "mean_s": "0.0161", "note": "", "times_s": "0.1;0.2"}
    assert second == {"size": HOSTILE, "n": "", "mean_s": "", "note": "OOM", "times_s": ""}


def test_json_has_the_records_and_says_what_they_are() -> None:
    found = json.loads(render(TABLE, "json"))
    assert found["caption"] == TABLE.caption
    assert found["rows"][0] == {"size": "small", "n": 10, "mean_s": 0.0161, "note": None, "times_s": [0.1, 0.2]}
    assert found["notes"] == list(TABLE.footnotes)


def test_html_is_whole_escaped_and_sets_numbers_right() -> None:
    reader = Reader(page("a < b", render(TABLE, "html")))
    assert not reader.open
    assert reader.rows[0] == ["size", "mean (ms)", "mean (ms)"]
    assert reader.rows[1] == ["small", "16.10 ± 0.12", HOSTILE]
    assert ["right" in name.split() for name in reader.classes] == [False, True, True] * 3


def test_several_tables_make_one_csv_and_one_json() -> None:
    assert len(list(csv.reader(io.StringIO(render_all([TABLE, TABLE], "csv"))))) == 5
    assert len(json.loads(render_all([TABLE, TABLE], "json"))["tables"]) == 2
    assert render_all([TABLE, TABLE], "latex").count("usepackage") == 1


def test_what_draws_and_lays_out_is_loaded_by_the_first_export_only() -> None:
    heavy = ("pandas", "matplotlib", "numpy", "jinja2", "markdown_it")
    assert loaded_with(["cs336_tui.cli.export", "cs336_tui.export.subjects.results"], *heavy) == set()


@pytest.mark.parametrize(
    "text", ["[]", "[812.3, 41.2]", "1.8 [1.7, 1.9]", "[1](x)", "[1][2]", "[1]: x", "[x]", "[ ] y"]
)
def test_brackets_in_markdown_show_as_they_are(text: str) -> None:
    table = Table(columns=(Column("a", left=True),), rows=((text,),), records=({"a": text},), footnotes=(text,))
    source = render(table, "markdown")
    html = MarkdownIt("commonmark").enable("table").render(source + "\n[1]: https://example.org\n")
    assert Reader(html).rows[1] == [text]
    assert "<a " not in html


def test_an_array_is_copied_from_markdown_as_it_is() -> None:
    assert "[812.3, 41.2]" in markdown_escape("[812.3, 41.2]")


def test_a_heading_keeps_its_braces_and_units_in_every_format() -> None:
    headings = ("mean (µs)", "{x}", "[y]")
    table = Table(columns=tuple(map(Column, headings)), rows=(("1", "2", "3"),), records=({"a": 1},))
    assert r"mean (\textmu{}s) & \{x\} & {}[y] \\" in render(table, "latex")
    assert Reader(render(table, "html")).rows[0] == list(headings)


def test_a_header_of_groups_spans_its_columns() -> None:
    columns = [
        Column("size", left=True),
        Column("a", "ms", group="CPU"),
        Column("b", "ms", group="CUDA"),
        Column("c", "s", group="CUDA"),
    ]
    table = Table(columns=tuple(columns), rows=(("small", "1", "2", "3"),))
    assert render(table, "markdown").splitlines()[0] == "| size  | CPU ms | CUDA ms | CUDA s |"
    latex = render(table, "latex")
    assert r"\multicolumn{1}{l}{} & \multicolumn{1}{c}{CPU} & \multicolumn{2}{c}{CUDA} \\" in latex
    assert "\\\\\n" + r"\unexpanded{\cmidrule(lr){2-2}\cmidrule(lr){3-4}}" in latex
    assert r"size & ms & ms & s \\" in latex
    assert '<th colspan="2" class="group" >CUDA</th>' in render(table, "html")
    assert 'table.cell(colspan: 2, align: center, "CUDA"), "size", "ms", "ms", "s"' in render(table, "typst")


@pytest.mark.parametrize("format_", ["markdown", "latex", "typst", "html", "table"])
def test_a_note_is_said_once_in_a_document(format_: str) -> None:
    """A sign's note stays below its own table, as does the number of rows that are shown."""
    notes = ("one profiled step", "† suspect", "the first 20 of 31 rows")
    first, second = (msgspec.structs.replace(TABLE, footnotes=(*notes, own)) for own in ("only here", "only there"))
    text = answer([first, second], format_)
    assert [text.count(note) for note in ("one profiled step", "suspect", "the first 20 of 31 rows")] == [1, 2, 2]
    assert text.count("only here") == text.count("only there") == 1
    assert [*json.loads(answer([first, second], "json"))["tables"][1]["notes"]] == [*notes, "only there"]
