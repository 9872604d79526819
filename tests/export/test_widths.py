"""Tables on a terminal and on a page: what matters is there, nothing is wider or longer than there is room for."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from rich.cells import cell_len

from cs336_tui.export.subjects.results import results_of, results_table
from cs336_tui.export.writing.narrow import PAGE, breakable, fits, markdown_rows, narrow, paged, without_breaks
from cs336_tui.export.writing.tables import Column, Source, Table, fitted
from cs336_tui.export.writing.terminal import MOST_COLUMNS, Looks, Notes, terminal_text
from cs336_tui.session import store

DEMO = Path(__file__).parent.parent / "data" / "demo-session.jsonl"

PLAIN = Looks(width=80, styled=False)
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def a_table(**changes: object) -> Table:
    given: dict[str, object] = {
        "columns": (
            Column("size", left=True), Column("context"), Column("mean_s", "mean (ms)"), Column("std_s", "std", rank=1),
            Column("max_s", "max", rank=9), Column("verdict", left=True), Column("status", left=True),
        ),
        "rows": (
            ("small", "512", "14.945", "0.057", "15.0", "steady, launch-bound", "ok"),
            ("large", "512", "1141.8", "2.3", "1150.9", "contended, outliers", "ok"),
            ("10B", "512", "n/a", "n/a", "n/a", "n/a", "oom"),
        ),
        "caption": "Times",
        "footnotes": ("† another machine", "times: ms per step"),
    }  # fmt: skip
    return Table(**{**given, **changes})  # type: ignore[arg-type]


def test_a_row_has_one_verdict_word_and_one_without_a_result_its_ending() -> None:
    assert terminal_text([a_table()], PLAIN) == (
        "Times\n"
        "every row: context 512\n"
        "size   mean (ms)    std     max  verdict\n"
        "──────────────────────────────────────────\n"
        "small     14.945  0.057    15.0  steady\n"
        "large   1141.8    2.3    1150.9  contended\n"
        "10B          n/a    n/a     n/a  oom\n"
        "- † another machine\n"
        "\n"
        "1 note on these numbers: -v shows it\n"
    )


def test_notes_are_shown_on_request_and_counted_otherwise() -> None:
    text = terminal_text([a_table(), a_table(caption="Again")], PLAIN._replace(verbose=True))
    assert text.count("- times: ms per step\n") == 1
    assert "-v" not in text
    many = a_table(footnotes=("one", "two", "three"))
    assert terminal_text([many], PLAIN).endswith("\n3 notes on these numbers: -v shows them\n")
    assert terminal_text(["a card", Notes(("one", "two"))], PLAIN).startswith("a card\n\n2 notes")


def test_what_does_not_fit_goes_by_rank_and_is_named() -> None:
    assert "+ 1 column: max; " in terminal_text([a_table()], PLAIN._replace(width=34))
    assert "+ 2 columns: std, max; " in terminal_text([a_table()], PLAIN._replace(width=30))
    assert "verdict" in terminal_text([a_table()], PLAIN._replace(width=20)), "a verdict stays in any width"


def test_a_line_above_the_table_breaks_between_what_it_lists_and_leaves_out_what_nothing_is_known_of() -> None:
    columns = (
        Column("size", left=True), Column("sheet", "data sheet (GB/s)"), Column("warmup", "warm-up"), Column("n"),
    )  # fmt: skip
    rows = (("small", "unknown", "5", "10"), ("large", "unknown", "5", "10"))
    assert terminal_text([Table(columns=columns, rows=rows)], PLAIN._replace(width=25)).splitlines()[:2] == [
        "every row: warm-up 5 ·",
        "n 10",
    ]


def test_a_caption_breaks_behind_a_dot_and_a_long_text_between_words() -> None:
    rows = (("small", "as " * 30), ("large", "as " * 30))
    table = Table(columns=(Column("size", left=True), Column("why", left=True)), rows=rows, caption="one · two · three")
    lines = terminal_text([table], PLAIN._replace(width=12)).splitlines()
    assert lines[:2] == ["one · two ·", "three"]
    wide = terminal_text([table], PLAIN._replace(width=40))
    assert "every row: why as as as" in wide
    assert "a\n" not in wide


def test_more_than_eight_columns_are_not_shown_even_where_they_fit() -> None:
    columns = (Column("size", left=True), *(Column(f"c{rank}", rank=rank) for rank in range(1, 12)))
    rows = tuple((f"s{row}", *(str(row + rank) for rank in range(11))) for row in range(2))
    text = terminal_text([Table(columns=columns, rows=rows)], PLAIN._replace(width=200))
    assert text.splitlines()[0].split() == ["size", *(f"c{rank}" for rank in range(1, MOST_COLUMNS))]
    assert "+ 4 columns: c8, c9, c10, c11; " in text


def test_a_doubt_without_a_column_for_it_gets_one_and_an_outcome_a_question_mark() -> None:
    columns, rows = (Column("size", left=True), Column("mean")), (("small", "1.0"), ("large", "2.0"))
    text = terminal_text([Table(columns=columns, rows=rows, doubts=("contended", ""))], PLAIN)
    assert [line.split() for line in text.splitlines()[2:4]] == [["small", "1.0", "contended"], ["large", "2.0"]]
    columns, rows = (Column("size", left=True), Column("outcome", left=True)), (("small", "same"), ("large", "faster"))
    text = terminal_text([Table(columns=columns, rows=rows, doubts=("contended", ""))], PLAIN)
    assert [line.split()[-1] for line in text.splitlines()[2:4]] == ["same?", "faster"]


def test_long_texts_are_folded_between_words_and_numbers_never() -> None:
    columns = (Column("op", left=True), Column("time"), Column("why", left=True))
    rows = (("a" * 10, "1234567.25", "it took " + "very " * 20 + "long"), ("b", "1.5", "short"))
    text = terminal_text([Table(columns=columns, rows=rows)], PLAIN._replace(width=60))
    assert max(map(cell_len, text.splitlines())) <= 60
    assert "1234567.25" in text
    assert "verylong" not in text.replace(" ", "").replace("\n", "").replace("veryvery", "")


def test_escape_sequences_are_ours_alone() -> None:
    table = a_table(rows=(("\x1b[31msmall\x1b]0;x\x07", "512", "1.0", "0.1", "1.1", "steady", "ok"),))
    assert "\x1b" not in terminal_text([table, "a \x1b[5mcard"], PLAIN)
    styled = terminal_text([table], PLAIN._replace(styled=True))
    assert re.sub(" +\n", "\n", ESCAPE.sub("", styled)) == terminal_text([table], PLAIN)
    assert "\x1b[32m" in styled, "steady is green"
    weights = terminal_text([table], PLAIN._replace(styled=True, coloured=False))
    assert {*ESCAPE.findall(weights)} <= {"\x1b[0m", "\x1b[1m", "\x1b[2m"}


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_results_fit_any_width_and_keep_what_tells_cells_apart(width: int) -> None:
    state = store.load(DEMO)
    text = terminal_text([results_table(results_of(state))], PLAIN._replace(width=width))
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert "mean" in text
    assert "verdict" in text
    assert lines[0].startswith("every row: context 512")
    if width >= 60:
        rows = [line.split() for line in lines if re.search(r"(fp32|bf16-mixed) ", line)]
        assert len({tuple(row[:3]) for row in rows}) == len(rows) == len(state.cells)


def test_what_was_found_is_no_note_behind_an_option() -> None:
    table = a_table(footnotes=("faster, by far", "times: ms per step"), findings=("faster, by far",))
    text = terminal_text([table], PLAIN)
    assert "- faster, by far\n" in text
    assert "1 note on these numbers" in text


def a_plain_table(columns: int, rows: int = 3, text: str = "12345.678") -> Table:
    return Table(
        columns=(Column("name", left=True), *(Column(f"c{number}") for number in range(columns))),
        rows=tuple((f"row {row}", *(f"{text}{row}{column}" for column in range(columns))) for row in range(rows)),
        caption="All",
        footnotes=("a note",),
    )


def test_a_table_that_fits_stays_as_it_is() -> None:
    assert list(narrow(a_plain_table(3))) == [a_plain_table(3)]


def test_a_wide_table_becomes_several_under_the_same_names_and_loses_no_column() -> None:
    pieces = list(narrow(a_plain_table(20)))
    assert len(pieces) > 1
    assert all(fits(piece) for piece in pieces)
    assert [column.key for piece in pieces for column in piece.columns[1:]] == [f"c{n}" for n in range(20)]
    assert all(piece.texts("name") == ("row 0", "row 1", "row 2") for piece in pieces)
    assert [piece.footnotes for piece in pieces] == [()] * (len(pieces) - 1) + [("a note",)]
    assert [piece.caption for piece in pieces[:2]] == ["All", "All, continued"]


def test_columns_of_a_rank_are_left_out_first_and_named() -> None:
    table = a_plain_table(9)
    ranked = tuple(column._replace(rank=place) for place, column in enumerate(table.columns))
    (piece,) = narrow(Table(columns=ranked, rows=table.rows, footnotes=table.footnotes))
    kept = [column.key for column in piece.columns]
    assert kept == ["name", *(f"c{number}" for number in range(len(kept) - 1))]
    assert piece.footnotes[-1].startswith("left out for want of room: c8, c7")


def test_what_all_rows_say_is_said_once_and_what_is_empty_not_at_all() -> None:
    table = a_plain_table(12)
    rows = tuple((row[0], "same", "", *row[3:6], *["x" * 9] * 7) for row in table.rows)
    (piece,) = narrow(Table(columns=table.columns, rows=rows))
    assert [column.key for column in piece.columns] == ["name", "c2", "c3", "c4"]
    assert piece.footnotes == ("all rows: c0 same, " + ", ".join(f"c{n} {'x' * 9}" for n in range(5, 12)),)


def test_a_single_wide_row_stands_upright() -> None:
    (piece,) = narrow(a_plain_table(20, rows=1))
    assert len(piece.columns) == 2
    assert piece.rows[:2] == (("name", "row 0"), ("c0", "12345.67800"))


def test_a_long_table_is_cut_into_pages_of_about_one_length() -> None:
    pieces = list(paged(a_plain_table(3, rows=100)))
    assert [row for piece in pieces for row in piece.rows] == list(a_plain_table(3, rows=100).rows)
    assert pieces[0].caption == f"All, rows 1 to {len(pieces[0].rows)} of 100"
    lengths = [len(piece.rows) for piece in pieces]
    assert max(lengths) - min(lengths) <= len(pieces)
    assert list(paged(a_plain_table(3, rows=5))) == [a_plain_table(3, rows=5)]


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
