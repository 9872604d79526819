"""Tables that are wider than a line of LaTeX's text are shrunk to it."""

from cs336_tui.export.formats import render, render_all
from cs336_tui.export.tables import Column, Table

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
