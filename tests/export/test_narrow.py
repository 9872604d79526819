"""Tables for a page: nothing is lost, nothing is wider or longer than the page."""

from functools import partial

from cs336_tui.export.writing.narrow import PAGE, breakable, fits, markdown_rows, narrow, paged, without_breaks
from cs336_tui.export.writing.tables import Column, Source, Table, fitted


def a_table(columns: int, rows: int = 3, text: str = "12345.678") -> Table:
    return Table(
        columns=(Column("name", left=True), *(Column(f"c{number}") for number in range(columns))),
        rows=tuple((f"row {row}", *(f"{text}{row}{column}" for column in range(columns))) for row in range(rows)),
        caption="All",
        footnotes=("a note",),
    )


def test_a_table_that_fits_stays_as_it_is() -> None:
    assert list(narrow(a_table(3))) == [a_table(3)]


def test_a_wide_table_becomes_several_under_the_same_names_and_loses_no_column() -> None:
    pieces = list(narrow(a_table(20)))
    assert len(pieces) > 1
    assert all(fits(piece) for piece in pieces)
    assert [column.key for piece in pieces for column in piece.columns[1:]] == [f"c{n}" for n in range(20)]
    assert all(piece.texts("name") == ("row 0", "row 1", "row 2") for piece in pieces)
    assert [piece.footnotes for piece in pieces] == [()] * (len(pieces) - 1) + [("a note",)]
    assert [piece.caption for piece in pieces[:2]] == ["All", "All, continued"]


def test_columns_of_a_rank_are_left_out_first_and_named() -> None:
    table = a_table(9)
    ranked = tuple(column._replace(rank=place) for place, column in enumerate(table.columns))
    (piece,) = narrow(Table(columns=ranked, rows=table.rows, footnotes=table.footnotes))
    kept = [column.key for column in piece.columns]
    assert kept == ["name", *(f"c{number}" for number in range(len(kept) - 1))]
    assert piece.footnotes[-1].startswith("left out for want of room: c8, c7")


def test_what_all_rows_say_is_said_once_and_what_is_empty_not_at_all() -> None:
    table = a_table(12)
    rows = tuple((row[0], "same", "", *row[3:6], *["x" * 9] * 7) for row in table.rows)
    (piece,) = narrow(Table(columns=table.columns, rows=rows))
    assert [column.key for column in piece.columns] == ["name", "c2", "c3", "c4"]
    assert piece.footnotes == ("all rows: c0 same, " + ", ".join(f"c{n} {'x' * 9}" for n in range(5, 12)),)


def test_a_single_wide_row_stands_upright() -> None:
    (piece,) = narrow(a_table(20, rows=1))
    assert len(piece.columns) == 2
    assert piece.rows[:2] == (("name", "row 0"), ("c0", "12345.67800"))


def test_a_long_table_is_cut_into_pages_of_about_one_length() -> None:
    pieces = list(paged(a_table(3, rows=100)))
    assert [row for piece in pieces for row in piece.rows] == list(a_table(3, rows=100).rows)
    assert pieces[0].caption == f"All, rows 1 to {len(pieces[0].rows)} of 100"
    lengths = [len(piece.rows) for piece in pieces]
    assert max(lengths) - min(lengths) <= len(pieces)
    assert list(paged(a_table(3, rows=5))) == [a_table(3, rows=5)]


def test_numbers_get_the_dashes_that_they_need_and_texts_the_rest() -> None:
    name = "a long name of several words that may wrap over lines of a cell and more"
    table = Table(columns=(Column("cell", left=True), Column("value")), rows=((name, "1234.5678901234567"),))
    rule = markdown_rows(table).splitlines()[1]
    text, number = (part.strip() for part in rule.strip("|").split("|"))
    assert (text[0], number[-1]) == (":", ":")
    assert len(number) >= len("1234.5678901234567")
    assert len(text) + len(number) <= PAGE


def test_long_words_may_break_and_are_whole_again_without_the_breaks() -> None:
    name = "cudnn_infer_volta_scudnn_128x64_relu_xregs_large_nn_v1"
    assert max(map(len, breakable(name).split("\u200b"))) < 20
    assert without_breaks(breakable(name)) == name
    assert breakable("forward+backward") == "forward+backward"


def test_columns_go_by_rank_then_texts_fold_and_only_then_the_last_without_a_rank_goes() -> None:
    fit = partial(fitted, [10, 20, 10, 10], [None, 0, 2, 2], gap=2)
    assert fit(58) == {0: 10, 1: 20, 2: 10, 3: 10}
    assert fit(57) == {0: 10, 1: 20, 2: 10}
    assert fit(58, most=2) == {0: 10, 1: 20}
    assert fit(30, least=[10, 8, 10, 10]) == {0: 10, 1: 16}
    assert fit(21, least=[10, 8, 10, 10]) == {0: 10}
    assert fit(5) == {0: 10}


def test_records_have_what_columns_read_and_what_programs_alone_get_in_order() -> None:
    columns: list[Source[int]] = [
        lambda item: {"unit": "m", "double": 2 * item},
        Column("half", read=lambda item: item / 2, show="{:.2f}".format),
        Column("double", text=lambda item: f"twice {item}"),
        Column("name", text=lambda item: f"number {item}"),
    ]
    table = Table.of([3], columns)
    assert table.rows == (("1.50", "twice 3", "number 3"),)
    assert list(table.records[0].items()) == [("unit", "m"), ("double", 6), ("half", 1.5)]
