"""Tables that are wider than a line of LaTeX's text are shrunk to it."""

import msgspec

from cs336_tui.export.writing.formats import render, render_all
from cs336_tui.export.writing.tables import Column, Table

PACKAGE = r"\usepackage{graphicx}"


def table(columns: int) -> Table:
    return Table(
        columns=tuple(Column(f"column {number}") for number in range(columns)),
        rows=(("12.34 ± 0.56",) * columns,),
        records=(),
        caption="A caption",
        footnotes=("a note",),
        label=f"of-{columns}",
    )


def test_a_wide_table_is_shrunk_to_the_line_and_says_what_that_needs() -> None:
    text = render(table(12), "latex")
    head = text[: text.index(r"\begin{table}")]
    assert r"\usepackage{booktabs}" in head
    assert PACKAGE in head
    assert all(line.startswith("%") for line in head.splitlines())
    parts = (
        r"\caption{",
        r"\begin{lrbox}{\tablebox}",
        r"\begin{tabular}",
        r"\end{tabular}",
        r"\end{lrbox}",
        r"\resizebox{",
    )
    assert sorted(parts, key=text.index) == list(parts)
    shrunk = text[text.index(r"\resizebox{") : text.index("a note")].splitlines()[0]
    assert shrunk.endswith(r"{!}{\usebox{\tablebox}}"), "no space beside the table"
    assert r"\ifdim\width>\linewidth" in shrunk, "nothing is ever enlarged"
    assert text.count("{") == text.count("}")


def test_a_narrow_table_needs_no_more_than_before() -> None:
    text = render(table(4), "latex")
    assert "resizebox" not in text
    assert PACKAGE not in text


def test_of_several_tables_only_the_wide_one_is_shrunk() -> None:
    text = render_all([table(4), table(12)], "latex")
    assert text.count(PACKAGE) == text.count(r"\resizebox") == 1
    assert text.index("tab:of-4") < text.index("tab:of-12") < text.index(r"\resizebox")


def test_notes_that_a_page_has_no_room_for_stand_below_the_float() -> None:
    """A float cannot be broken over two pages."""
    few, many = (msgspec.structs.replace(table(4), footnotes=tuple(map(str, range(n)))) for n in (3, 60))
    assert render(few, "latex").rstrip().endswith(r"\end{table}")
    text = render(many, "latex")
    below = text[text.index(r"\end{table}") :]
    assert r"Notes on Table~\ref{tab:of-4}:" in below
    assert below.index("0\\\\\n1") < below.index("59")
    assert "minipage" not in text
    assert text.count("{") == text.count("}")


def test_columns_of_a_rank_are_left_out_by_name_where_a_page_is_too_narrow() -> None:
    ranked = tuple(Column(f"column {number}", rank=number) for number in range(12))
    rows = tuple(("small", *[f"{place * 100 + number}.00 ± 0.56" for number in range(11)]) for place in (1, 2))
    wide = msgspec.structs.replace(table(12), columns=ranked, rows=rows)
    for format_ in ("latex", "typst"):
        text = render(wide, format_)
        assert "columns left out to fit the page: column " in text
        assert "column 11; CSV and JSON have all" in text
        assert "column 0" in text.partition("left out")[0]
    assert "left out" not in render(wide, "markdown")
    alike = msgspec.structs.replace(wide, rows=tuple(("x", "fp32", *row[2:]) for row in rows))
    assert "all rows: column 1 fp32" in render(alike, "latex")
