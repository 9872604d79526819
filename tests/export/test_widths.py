"""Tables on a terminal and on a page: what matters is there, nothing is wider or longer than there is room for."""

import re
from collections.abc import Iterable, Sequence
from functools import partial

import pytest
from rich.cells import cell_len
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.merge import results_of
from cs336_tui.export.subjects.results import results_table
from cs336_tui.export.writing.formats import plain_text
from cs336_tui.export.writing.narrow import PAGE, breakable, fits, markdown_rows, narrow, paged, without_breaks
from cs336_tui.export.writing.tables import Column, Source, Table, fitted
from cs336_tui.export.writing.terminal import Looks, Notes, Part, terminal_text
from cs336_tui.session import store
from tests.samples import DEMO_LOG

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


def plain_rows(headings: str, *rows: tuple[str, ...], left: str = "size why op outcome", **more: object) -> Table:
    columns = tuple(Column(name, left=name in left.split()) for name in headings.split())
    return Table(columns=columns, rows=rows, **more)  # type: ignore[arg-type]


RANKED = (Column("size", left=True), *(Column(f"c{rank}", rank=rank) for rank in range(1, 12)))
SHEET = Column("sheet", "data sheet (GB/s)")
WORDS = plain_rows("size why", ("small", "as " * 30), ("large", "as " * 30), caption="one · two · three")
FOUND = a_table(footnotes=("faster, by far", "times: ms per step"), findings=("faster, by far",))

TERMINALS: dict[str, tuple[Sequence[Part], dict[str, object]]] = {
    "a row has one verdict word, and one without a result its ending": ([a_table()], {}),
    "notes are shown on request, once": ([a_table(), a_table(caption="Again")], {"verbose": True}),
    "notes are counted otherwise": ([a_table(footnotes=("one", "two", "three"))], {}),
    "notes on a card are counted, too": (["a card", Notes(("one", "two"))], {}),
    "what does not fit goes by rank and is named": ([a_table()], {"width": 34}),
    "the lowest rank goes last": ([a_table()], {"width": 30}),
    "a verdict stays in any width": ([a_table()], {"width": 20}),
    "a line above the table breaks between what it lists and leaves out what nothing is known of": (
        [
            Table(
                columns=(Column("size", left=True), SHEET, Column("warmup", "warm-up"), Column("n")),
                rows=(("small", "unknown", "5", "10"), ("large", "unknown", "5", "10")),
            )
        ],
        {"width": 25},
    ),
    "a caption breaks behind a dot": ([WORDS], {"width": 12}),
    "a long text breaks between words": ([WORDS], {"width": 40}),
    "more than eight columns are not shown even where they fit": (
        [Table(columns=RANKED, rows=tuple((f"s{n}", *(str(n + rank) for rank in range(11))) for n in range(2)))],
        {"width": 200},
    ),
    "a doubt without a column for it gets one": (
        [plain_rows("size mean", ("small", "1.0"), ("large", "2.0"), doubts=("contended", ""))],
        {},
    ),
    "an outcome in doubt has a question mark": (
        [plain_rows("size outcome", ("small", "same"), ("large", "faster"), doubts=("contended", ""))],
        {},
    ),
    "long texts are folded between words and numbers never": (
        [plain_rows("op time why", ("a" * 10, "1234567.25", f"it took {'very ' * 20}long"), ("b", "1.5", "short"))],
        {"width": 60},
    ),
    "what was found is no note behind an option": ([FOUND], {}),
}


@pytest.mark.parametrize("case", TERMINALS)
def test_tables_on_a_terminal(case: str, snapshot: SnapshotAssertion) -> None:
    parts, looks = TERMINALS[case]
    text = terminal_text(parts, PLAIN._replace(**looks))
    assert text == snapshot
    assert case.startswith("a verdict stays") or max(map(cell_len, text.splitlines())) <= looks.get("width", 80)


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
    state = store.load(DEMO_LOG)
    text = terminal_text([results_table(results_of(state))], PLAIN._replace(width=width))
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert "mean" in text
    assert "verdict" in text
    assert lines[0].startswith("every row: context 512")
    if width >= 60:
        rows = [line.split() for line in lines if re.search(r"(fp32|bf16-mixed) ", line)]
        assert len({tuple(row[:3]) for row in rows}) == len(rows) == len(state.cells)


def a_plain_table(columns: int, rows: int = 3, text: str = "12345.678") -> Table:
    return Table(
        columns=(Column("name", left=True), *(Column(f"c{number}") for number in range(columns))),
        rows=tuple((f"row {row}", *(f"{text}{row}{column}" for column in range(columns))) for row in range(rows)),
        caption="All",
        footnotes=("a note",),
    )


def test_a_wide_table_becomes_several_under_the_same_names_and_loses_no_column() -> None:
    pieces = list(narrow(a_plain_table(20)))
    assert len(pieces) > 1
    assert all(fits(piece) for piece in pieces)
    assert [column.key for piece in pieces for column in piece.columns[1:]] == [f"c{n}" for n in range(20)]
    assert all(piece.texts("name") == ("row 0", "row 1", "row 2") for piece in pieces)


def with_ranks(table: Table) -> Table:
    columns = tuple(column._replace(rank=place) for place, column in enumerate(table.columns))
    return Table(columns=columns, rows=table.rows, footnotes=table.footnotes)


def with_alike(table: Table) -> Table:
    rows = tuple((row[0], "same", "", *row[3:6], *["x" * 9] * 7) for row in table.rows)
    return Table(columns=table.columns, rows=rows)


PAGES: dict[str, Iterable[Table]] = {
    "a table that fits stays as it is": [*narrow(a_plain_table(3)), *paged(a_plain_table(3, rows=5))],
    "a wide one is cut into several": narrow(a_plain_table(20)),
    "columns of a rank are left out first and named": narrow(with_ranks(a_plain_table(9))),
    "what all rows say is said once and what is empty not at all": narrow(with_alike(a_plain_table(12))),
    "a single wide row stands upright": narrow(a_plain_table(20, rows=1)),
}


@pytest.mark.parametrize("case", PAGES)
def test_tables_of_a_page(case: str, snapshot: SnapshotAssertion) -> None:
    assert "\n".join(map(plain_text, PAGES[case])) == snapshot


def test_a_long_table_is_cut_into_pages_of_about_one_length() -> None:
    pieces = list(paged(a_plain_table(3, rows=100)))
    assert [row for piece in pieces for row in piece.rows] == list(a_plain_table(3, rows=100).rows)
    assert pieces[0].caption == f"All, rows 1 to {len(pieces[0].rows)} of 100"
    lengths = [len(piece.rows) for piece in pieces]
    assert max(lengths) - min(lengths) <= len(pieces)


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
