"""Layouts: the kinds of table of published write-ups. Their CSV, and that of a pivot, names the settings of its cells,
so that two models can share a file."""

import json
from collections.abc import Iterable

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.pivot import pivot
from cs336_tui.events.events import ModelBuilt
from cs336_tui.export.pivot import pivot_table
from cs336_tui.export.subjects.results import TableError
from cs336_tui.export.writeups import PLAIN_LAYOUTS, layout_tables
from cs336_tui.export.writing.formats import render, render_all
from cs336_tui.export.writing.tables import Table
from tests.export.grids import LAPTOP, SMALL, by, grid, merged
from tests.export.keeping import csv_rows, kept
from tests.samples import a_spec, cell_end, cell_start, session_start, sized, state_of, steps

GRID = by(pass_=["forward", "forward+backward"], warmup_steps=[0, 5])


def results() -> tuple[Result, ...]:
    return merged(grid(GRID))


def test_the_csv_of_a_layout_has_its_columns_and_the_settings_of_its_cells() -> None:
    rows = csv_rows(render_all(layout_tables(results(), "forward-only"), "csv"))
    assert list(rows[0]) == [
        "size", "forward_only", "warmup_steps", "benchmark_steps", "avg", "std",
        "context", "batch", "precision", "device", "variants",
    ]  # fmt: skip
    assert len(rows) == 8
    assert float(rows[4]["avg"]) == pytest.approx(0.01)


def test_forward_only_leaves_out_other_passes_and_says_so() -> None:
    specs = by([SMALL], pass_=["forward", "train-step"])
    (table,) = layout_tables(merged(grid(specs)), "forward-only")
    assert len(table.rows) == 1
    assert any(note.startswith("left out") and "train-step" in note for note in table.footnotes)


@pytest.mark.parametrize("layout", ["forward-only", "devices"])
def test_forward_with_the_loss_in_it_takes_the_place_of_forward_where_there_is_none(layout: str) -> None:
    with_loss = by([SMALL], pass_=["forward+loss", "forward+backward"])
    (table,) = layout_tables(merged(grid(with_loss)), layout)
    assert "forward: with the loss in it" in table.footnotes
    assert "11.00" in str(table.rows) or "0.01100" in str(table.rows)
    (table,) = layout_tables(merged(grid([*with_loss, *by([SMALL], pass_=["forward"])])), layout)
    assert any("no column in this layout): forward+loss" in note for note in table.footnotes)
    assert "10.00" in str(table.rows) or "0.01000" in str(table.rows)


def test_the_warm_up_view_pools_repeats() -> None:
    (repeated,) = layout_tables(merged(grid(by([SMALL], pass_=["forward"]) * 2, repeats=(1, 2))), "warm-up")
    assert repeated.rows[0][3] == "8"
    assert repeated.rows[0][6].count(",") == 1


def test_devices_of_two_sessions_stand_side_by_side(snapshot: SnapshotAssertion) -> None:
    passes = ["forward", "forward+backward"]
    laptop = grid(by(pass_=passes, device=["cpu", "mps"]), session="laptop", environment=LAPTOP)
    assert kept(*layout_tables(merged(laptop, grid(by(pass_=passes), session="box")), "devices")) == snapshot


def test_parameters_less_the_head_are_the_published_ones() -> None:
    sizes = ("small", "medium", "large", "xl", "2.7B")
    specs = [a_spec(**sized(size, "2025"), pass_="forward", device="cpu") for size in sizes]
    events = [*session_start(specs), *cell_start(0), *steps(0, (), (0.1, 0.1)), cell_end(0)]
    told = [event for event in events if not isinstance(event, ModelBuilt)]
    (table,) = layout_tables(merged(state_of(told)), "devices")
    assert table.texts("num_params") == ("120.95M", "412.94M", "956.61M", "1.98B", "3.38B")


def test_two_machines_with_the_same_kind_of_device_and_other_thread_counts_are_told_apart() -> None:
    one, other = (
        grid(by([SMALL], pass_=["forward"], device=["cpu"]), session=name, environment=LAPTOP) for name in ("a", "b")
    )
    threads = grid(by([SMALL], pass_=["forward"], device=["cpu"], threads=[1, 4]), environment=LAPTOP)
    for found in (merged(one, other), merged(threads)):
        (table,) = layout_tables(found, "devices")
        headers = {column.header for column in table.columns if "forward_time" in column.header}
        assert len(headers) == 2
        assert all(header.startswith("CPU (") for header in headers)


def test_what_a_layout_has_no_column_for_gets_a_table_of_its_own() -> None:
    specs = by([SMALL], pass_=["forward"], context_length=[128, 256], precision=["fp32", "bf16-mixed"])
    for layout, number in {"forward-only": 4, "min-max": 4, "raw-steps": 4, "by-mean": 1, "devices": 4}.items():
        tables = layout_tables(merged(grid(specs)), layout)
        assert len(tables) == number, layout
        assert len({table.caption for table in tables}) == number
        rows = csv_rows(render_all(tables, "csv"))
        assert len({tuple(row.values()) for row in rows}) == 4, "no two rows of the csv look alike"


@pytest.mark.parametrize("layout", PLAIN_LAYOUTS)
def test_out_of_memory_is_said_and_never_a_number(layout: str) -> None:
    specs = by(pass_=["forward"])
    text = render_all(layout_tables(merged(grid(specs, oom=[1])), layout), "markdown")
    assert "OOM" in text


@pytest.mark.parametrize("layout", PLAIN_LAYOUTS)
def test_a_layout_of_sizes_passes_and_warm_ups(layout: str, snapshot: SnapshotAssertion) -> None:
    assert kept(*layout_tables(results(), layout)) == snapshot


def test_repeats_are_pooled() -> None:
    specs = by([SMALL], pass_=["forward"]) * 3
    (table,) = layout_tables(merged(grid(specs, repeats=(1, 2, 3))), "by-mean")
    assert (len(table.rows), table.records[0]["profile_steps"]) == (1, 12)
    assert "n: 12 measured steps of each cell, of up to 3 runs pooled" in table.footnotes


def test_no_two_tables_have_the_same_label() -> None:
    tables = [table for layout in PLAIN_LAYOUTS for table in layout_tables(results(), layout)]
    assert len({table.label for table in tables}) == len(tables)


def test_a_caption_is_used_and_an_unknown_layout_named() -> None:
    assert [table.caption for table in layout_tables(results(), "forward-only", caption="Mine")] == [
        "Mine (Step times in seconds, warm-up 0)", "Mine (Step times in seconds, warm-up 5)",
    ]  # fmt: skip
    with pytest.raises(TableError, match="layout nope: expected one of forward-only, min-max"):
        layout_tables(results(), "nope")
    with pytest.raises(TableError, match="no cell has measured steps"):
        layout_tables(merged(grid(by([SMALL]), oom=[0])), "min-max")


def test_the_quantiles_of_do_bench_are_of_all_steps() -> None:
    specs = by([SMALL], pass_=["forward"], timer=["do_bench"], warmup_for=[0.025], steps_for=[0.1])
    (table,) = layout_tables(merged(grid(specs)), "do_bench")
    times_ms = [time_s * 1e3 for result in merged(grid(specs)) for time_s in result.cell.step_times_s]
    (record,) = table.records
    for header, share in {"median (ms)": 50, "p20 (ms)": 20, "p80 (ms)": 80, "min (ms)": 0, "max (ms)": 100}.items():
        assert record[header] == pytest.approx(np.percentile(times_ms, share))
    assert record["n"] == len(times_ms)
    assert not any(note.startswith("not timed as do_bench") for note in table.footnotes)


def test_steps_timed_otherwise_say_so_beside_those_of_do_bench() -> None:
    (table,) = layout_tables(merged(grid(by([SMALL], pass_=["forward"], timer=["step", "do_bench"]))), "do_bench")
    assert [record["timer"] for record in table.records] == ["step", "do_bench"]
    assert not any("sync each-step" in note for note in table.footnotes), "do_bench synchronises once"
    assert len([note for note in table.footnotes if note.startswith("not timed as do_bench does: ")]) == 1


def of_passes(**choices: Iterable[str]) -> tuple[Result, ...]:
    return merged(grid(by(**{"pass_": ["forward", "forward+backward"]} | choices)))


def by_pass(found: tuple[Result, ...]) -> Table:
    return pivot_table(pivot(found, ["size"], ["pass"], "mean"), found)


def rows_of(*tables: Table) -> list[dict[str, str]]:
    return csv_rows(render_all(tables, "csv"))


def test_a_pivot_s_csv_tells_the_model_and_the_settings() -> None:
    table = by_pass(of_passes(model=["my_gpt:GPT"], compile=["default"]))
    for row in rows_of(table):
        assert (row["context"], row["batch"], row["precision"], row["device"]) == ("128", "4", "fp32", "cuda:0")
        assert (row["variants"], row["warmup"]) == ("GPT, compiled", "2")


def test_pivots_of_two_models_have_the_same_columns() -> None:
    own, reference = (rows_of(by_pass(of_passes(model=[name])))[0] for name in ("my_gpt:GPT", "reference"))
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
    tables = layout_tables(of_passes(model=["my_gpt:GPT"]), layout)
    for row in rows_of(*tables):
        assert (row["context"], row["batch"], row["precision"]) == ("128", "4", "fp32")
        assert row["variants"] == "GPT"


def test_no_other_format_changes() -> None:
    table = by_pass(of_passes())
    assert list(json.loads(render(table, "json"))["rows"][0]) == [
        "size", "pass", "mean_s", "std_s", "n", "runs", "note", "marks",
    ]  # fmt: skip
    assert len(table.columns) == 3
