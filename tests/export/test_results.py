"""The results of several sessions in one table, with chosen columns, units and digits."""

import json

import pytest

from cs336_tui.export.formats import render
from cs336_tui.export.notation import Notation
from cs336_tui.export.results import COLUMNS, TableError, results_table
from cs336_tui.export.tables import Table
from tests.export.grids import LAPTOP, SMALL, by, grid, merged, moved_session
from tests.samples import a_spec, mixed_session, session_start, state_of


def shown(table: Table) -> list[dict[str, str]]:
    return [dict(zip((column.header for column in table.columns), row, strict=True)) for row in table.rows]


def test_chosen_columns_in_the_chosen_order() -> None:
    table = results_table(merged(state_of(mixed_session())), columns=["pass", "mean", "size", "params", "reserved"])
    assert [column.header for column in table.columns] == [
        "pass", "mean (ms)", "size", "parameters", "peak reserved (GB)",
    ]  # fmt: skip
    assert table.rows[0] == ("forward+backward", "153.20", "small", "129M", "4.00")
    assert table.records[0] == {
        "pass": "forward+backward", "mean_s": pytest.approx(0.1532), "size": "small", "num_params": 128_634_624,
        "peak_reserved_bytes": 4_000_000_000,
    }  # fmt: skip


def test_every_column_can_be_asked_for() -> None:
    table = results_table(merged(state_of(mixed_session())), columns=list(COLUMNS))
    assert len(json.loads(render(table, "json"))["rows"][0]) == len(COLUMNS)


def test_an_unknown_column_is_named_with_what_is_allowed() -> None:
    with pytest.raises(TableError, match=r"^column speed: expected some of size, .*tokens"):
        results_table(merged(state_of(mixed_session())), columns=["size", "speed"])


def test_no_result_is_said() -> None:
    with pytest.raises(TableError, match="no cell has a result yet"):
        results_table(merged(state_of(session_start([a_spec()]))))


@pytest.mark.parametrize(
    ("notation", "header", "mean"),
    [
        (Notation("s"), "mean (s)", "0.15320"),
        (Notation("us"), "mean (µs)", "153200"),
        (Notation("ms", 1), "mean (ms)", "153.2"),
        (Notation("s", 2), "mean (s)", "0.15"),
    ],
)
def test_times_are_written_in_the_unit_and_digits_asked_for(notation: Notation, header: str, mean: str) -> None:
    table = results_table(merged(state_of(mixed_session())), notation=notation)
    assert shown(table)[0][header] == mean
    assert f"times: {notation.symbol} per step" in "\n".join(table.footnotes)


def test_sessions_of_two_machines_are_told_apart() -> None:
    box = grid(by([SMALL], pass_=["forward"]), session="box")
    laptop = grid(by([SMALL], pass_=["forward"], device=["mps"]), session="laptop", environment=LAPTOP)
    table = results_table(merged(box, laptop))
    rows = shown(table)
    assert [row["session"] for row in rows] == ["box", "laptop"]
    assert "H100" in rows[0]["machine"]
    assert "laptop" in rows[1]["machine"]
    notes = "\n".join(table.footnotes)
    assert notes.count("std: sample standard deviation") == 1, "what both say is said once"
    assert "box: cuda:0: NVIDIA H100" in notes
    assert "laptop: mps: Some Laptop GPU" in notes
    assert "session" not in shown(results_table(merged(box)))[0]


def test_the_same_cell_twice_is_two_rows() -> None:
    state = grid(by([SMALL], pass_=["forward"]))
    assert [row["session"] for row in shown(results_table(merged(state, state)))] == ["sample", "sample (2)"]


def test_a_cell_that_ran_on_another_machine_is_marked() -> None:
    table = results_table(merged(moved_session()))
    assert [row["size"] for row in shown(table)] == ["small", "small †"]
    note = table.footnotes[0]
    assert note.startswith("† ")
    for words in ("torch 2.14.0 instead of 2.13.0", "NVIDIA A100 instead of NVIDIA H100"):
        assert words in note
    assert not any("†" in note for note in results_table(merged(state_of(mixed_session()))).footnotes)


def test_runs_of_one_spec_are_told_apart() -> None:
    specs = by([SMALL], pass_=["forward"]) * 2
    assert [row["repeat"] for row in shown(results_table(merged(grid(specs, repeats=(1, 2)))))] == ["1", "2"]
