"""The CSV of a pivot or a layout names the settings of its cells, so that two models can share a file."""

import csv
import io
import json
from collections.abc import Iterable

import pytest

from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.pivot import pivot
from cs336_tui.export.pivot import pivot_table
from cs336_tui.export.writeups import PLAIN_LAYOUTS, layout_tables
from cs336_tui.export.writing.formats import render, render_all
from cs336_tui.export.writing.tables import Table
from tests.export.grids import SMALL, by, grid, merged


def results(**choices: Iterable[str]) -> tuple[Result, ...]:
    return merged(grid(by(**{"pass_": ["forward", "forward+backward"]} | choices)))


def by_pass(found: tuple[Result, ...]) -> Table:
    return pivot_table(pivot(found, ["size"], ["pass"], "mean"), found)


def rows_of(*tables: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(render_all(tables, "csv"))))


def test_a_pivot_s_csv_tells_the_model_and_the_settings() -> None:
    table = by_pass(results(model=["my_gpt:GPT"], compile=["default"]))
    for row in rows_of(table):
        assert (row["context"], row["batch"], row["precision"], row["device"]) == ("128", "4", "fp32", "cuda:0")
        assert (row["variants"], row["warmup"]) == ("GPT, compiled", "2")


def test_pivots_of_two_models_have_the_same_columns() -> None:
    own, reference = (rows_of(by_pass(results(model=[name])))[0] for name in ("my_gpt:GPT", "reference"))
    assert list(own) == list(reference)
    assert (own["variants"], reference["variants"]) == ("GPT", "")


def test_what_cells_do_not_share_is_not_said_for_all() -> None:
    specs = [
        *by([SMALL], attention=["naive"], compile=["default"], pass_=["forward"]),
        *by([SMALL], attention=["sdpa"], compile=["default"], pass_=["forward"], context_length=[256]),
    ]
    found = merged(grid(specs))
    table = pivot_table(pivot(found, ["attention"], ["context"], "mean"), found)
    rows = rows_of(table)
    assert {row["attention"] for row in rows} == {"naive", "sdpa"}
    assert {row["variants"] for row in rows} == {"compiled"}
    assert {row["size"] for row in rows} == {"small"}
    assert {row["context"] for row in rows} == {"128", "256"}


@pytest.mark.parametrize("layout", PLAIN_LAYOUTS)
def test_every_layout_s_csv_tells_them_too(layout: str) -> None:
    tables = layout_tables(results(model=["my_gpt:GPT"]), layout)
    for row in rows_of(*tables):
        assert (row["context"], row["batch"], row["precision"]) == ("128", "4", "fp32")
        assert row["variants"] == "GPT"


def test_no_other_format_changes() -> None:
    table = by_pass(results())
    assert list(json.loads(render(table, "json"))["rows"][0]) == [
        "size", "pass", "mean_s", "std_s", "n", "runs", "note", "marks",
    ]  # fmt: skip
    assert len(table.columns) == 3
