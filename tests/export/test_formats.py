"""One table in every format: whole, escaped, and accepted by the format's readers."""

import csv
import io
import json
from collections.abc import Callable

import msgspec
import pytest
from markdown_it import MarkdownIt
from syrupy.assertion import SnapshotAssertion

from cs336_tui.export.writing.files import FORMATS, SUFFIXES
from cs336_tui.export.writing.formats import answer, latex_escape, page, render, render_all
from cs336_tui.export.writing.tables import Column, Table
from cs336_tui.export.writing.texts import bullets, markdown_escape, one_line, untaken
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


def wide_table(columns: int, *footnotes: str) -> Table:
    return Table(
        columns=tuple(Column(f"column {number}") for number in range(columns)),
        rows=(("12.34 ± 0.56",) * columns,),
        records=(),
        caption="A caption",
        footnotes=footnotes or ("a note",),
        label=f"of-{columns}",
    )


GROUPS = (Column("size", left=True), Column("a", "ms", group="CPU"), *(Column(u, u, group="CUDA") for u in ("ms", "s")))

RANKED = msgspec.structs.replace(
    wide_table(12),
    columns=tuple(Column(f"column {number}", rank=number) for number in range(12)),
    rows=tuple(("small", *[f"{place * 100 + number}.00 ± 0.56" for number in range(11)]) for place in (1, 2)),
)
TABLES: dict[str, Table] = {
    "hostile texts": TABLE,
    "groups of columns": Table(
        columns=GROUPS, rows=(("small", "1", "2", "3"),), caption="Devices side by side", label="devices"
    ),
    "narrow": wide_table(4),
    "wider than a line": wide_table(12),
    "notes that a page has no room for stand below the float, which cannot be broken": wide_table(
        4, *map(str, range(60))
    ),
    "braces, brackets and units in headings": Table(
        columns=tuple(map(Column, ("mean (µs)", "{x}", "[y]"))), rows=(("1", "2", "3"),), records=({"a": 1},)
    ),
    "columns of a rank are left out by name where a page is too narrow": RANKED,
    "first what all rows say alike becomes a note": msgspec.structs.replace(
        RANKED, rows=tuple(("x", "fp32", *row[2:]) for row in RANKED.rows)
    ),
}


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("name", TABLES)
def test_a_table_in_a_format(name: str, format_: str, snapshot: SnapshotAssertion) -> None:
    assert render(TABLES[name], format_) == snapshot


def test_several_tables_make_one_csv_and_one_json() -> None:
    assert len(list(csv.reader(io.StringIO(render_all([TABLE, TABLE], "csv"))))) == 5
    assert len(json.loads(render_all([TABLE, TABLE], "json"))["tables"]) == 2
    assert "<title>a &lt; b</title>" in page("a < b", "")
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
    assert text != "[812.3, 41.2]" or text in source, "an array can be copied from the source"


@pytest.mark.parametrize("format_", ["markdown", "latex", "typst", "html", "table"])
def test_a_note_is_said_once_in_a_document(format_: str) -> None:
    """A sign's note stays below its own table, as does the number of rows that are shown."""
    notes = ("one profiled step", "† suspect", "the first 20 of 31 rows")
    first, second = (msgspec.structs.replace(TABLE, footnotes=(*notes, own)) for own in ("only here", "only there"))
    text = answer([first, second], format_)
    assert [text.count(note) for note in ("one profiled step", "suspect", "the first 20 of 31 rows")] == [1, 2, 2]
    assert text.count("only here") == text.count("only there") == 1
    assert [*json.loads(answer([first, second], "json"))["tables"][1]["notes"]] == [*notes, "only there"]


ESCAPED: dict[str, tuple[Callable[[str], str], str, str]] = {
    "signs": (latex_escape, "2²⁰ B ≥ √2 ≤ 10⁹", r"2$^2$$^0$ B $\geq$ $\surd$2 $\leq$ 10$^9$"),
    "what LaTeX knows by itself": (latex_escape, "– ü", "– ü"),
    "dashes": (latex_escape, "a -- b --- c", r"a -{}- b -{}-{}- c"),
    "no option of a line's end": (latex_escape, "[1, 2]", "{}[1, 2]"),
    "no form of a line's end": (latex_escape, "*", "{}*"),
    "no mathematics": (markdown_escape, "costs $1 or $2", r"costs \$1 or \$2"),
    "what would turn the order of writing": (one_line, "a\u202egnp\u2066\u2069b", "agnpb"),
}


@pytest.mark.parametrize("case", ESCAPED)
def test_what_a_format_takes_for_markup_is_escaped(case: str) -> None:
    escape, text, shown = ESCAPED[case]
    assert escape(text) == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("2026-01-02: ok", "2026-01-02: ok"),
        ("2. a list", r"2\. a list"),
        ("- a list", r"\- a list"),
        ("# no", r"\# no"),
    ],
)
def test_only_what_would_open_something_in_a_list_is_escaped(line: str, shown: str) -> None:
    assert bullets([line]) == f"- {shown}"


def test_a_taken_name_gets_the_first_free_number() -> None:
    assert [untaken("peak", taken) for taken in ((), ("peak",), ("peak", "peak-2", "peak-4"))] == [
        "peak", "peak-2", "peak-3",
    ]  # fmt: skip


PACKAGE = r"\usepackage{graphicx}"


def test_of_several_tables_only_the_wide_one_is_shrunk() -> None:
    text = render_all([wide_table(4), wide_table(12)], "latex")
    assert text.count(PACKAGE) == text.count(r"\resizebox") == 1
    assert text.index("tab:of-4") < text.index("tab:of-12") < text.index(r"\resizebox")
