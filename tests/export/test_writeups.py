"""Layouts: the five kinds of table of published write-ups."""

import csv
import io

import numpy as np
import pytest

from cs336_tui.analysis.merge import Result
from cs336_tui.events.events import ModelBuilt
from cs336_tui.export.subjects.results import TableError
from cs336_tui.export.writeups import PLAIN_LAYOUTS, layout_tables
from cs336_tui.export.writing.formats import render, render_all
from cs336_tui.export.writing.tables import Table
from tests.export.grids import LAPTOP, SMALL, by, grid, merged
from tests.samples import a_spec, cell_end, cell_start, session_start, sized, state_of, steps

GRID = by(pass_=["forward", "forward+backward"], warmup_steps=[0, 5])


def table_text(table: Table) -> str:
    """The table itself in markdown."""
    return "\n".join(line for line in render(table, "markdown").splitlines() if line.startswith("|"))


def results() -> tuple[Result, ...]:
    return merged(grid(GRID))


def test_forward_only_has_a_table_for_each_warmup_setting() -> None:
    cold, warm = layout_tables(results(), "forward-only")
    assert table_text(warm) == "\n".join([
        "| size   | forward_only | warmup_steps | benchmark_steps |     avg |     std |",
        "| ------ | ------------ | -----------: | --------------: | ------: | ------: |",
        "| small  | True         |            5 |               4 | 0.01000 | 0.00012 |",
        "| medium | True         |            5 |               4 | 0.03000 | 0.00035 |",
        "| small  | False        |            5 |               4 | 0.03000 | 0.00035 |",
        "| medium | False        |            5 |               4 |  0.0900 |  0.0010 |",
    ])  # fmt: skip
    assert (cold.caption, warm.caption) == ("Step times in seconds, warm-up 0", "Step times in seconds, warm-up 5")
    rows = list(csv.DictReader(io.StringIO(render_all((cold, warm), "csv"))))
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


def test_min_max_has_a_row_for_each_model_pass_and_warmup() -> None:
    (table,) = layout_tables(results(), "min-max")
    assert [column.header for column in table.columns] == [
        "Model", "Pass", "Warmup", "Min (s)", "Max (s)", "Avg (s)", "Std (s)",
    ]  # fmt: skip
    assert table.rows[1] == ("small", "forward", "5", "0.00990", "0.01010", "0.01000", "0.00012")
    published, settings = "Model,Pass,Warmup,Min (s),Max (s),Avg (s),Std (s)", "context,batch,precision,device,variants"
    assert render(table, "csv").splitlines()[0] == f"{published},{settings}"
    assert len(table.rows) == 8


def test_raw_steps_are_arrays_with_and_without_warmup() -> None:
    (table,) = layout_tables(results(), "raw-steps")
    assert table.rows[0] == ("small", "forward", "0", "[]", "[100.00, 9.90, 10.10, 9.90]")
    assert table.rows[1][2:] == ("5", "[400.00, 400.00, 400.00, 400.00, 400.00]", "[10.10, 9.90, 10.10, 9.90]")
    assert [row[:3] for row in table.rows[2:4]] == [
        ("small", "forward+backward", "0"),
        ("small", "forward+backward", "5"),
    ]


def test_the_warm_up_view_tells_what_the_first_step_cost_and_when_it_was_steady() -> None:
    (table,) = layout_tables(results(), "warm-up")
    cold, warm = table.rows[:2]
    assert (*cold[:4], *cold[6:]) == ("small", "forward", "0", "4", "10.00", "1")
    assert (*warm[:4], *warm[6:]) == ("small", "forward", "5", "4", "40.00", "5")
    (repeated,) = layout_tables(merged(grid(by([SMALL], pass_=["forward"]) * 2, repeats=(1, 2))), "warm-up")
    assert repeated.rows[0][3] == "8"
    assert repeated.rows[0][6].count(",") == 1


def test_by_mean_is_sorted_and_has_the_published_header() -> None:
    (table,) = layout_tables(results(), "by-mean")
    assert [column.header for column in table.columns] == [
        "name", "computation", "times", "mean_time", "median_time", "std_dev", "min_time", "max_time", "total_time",
        "profile_steps",
    ]  # fmt: skip
    means = [record["mean_time"] for record in table.records]
    assert means == sorted(means)
    assert len(table.rows) == 8
    assert table.rows[0] == (
        "small · warm-up 5", "forward", "[0.01010, 0.00990, 0.01010, 0.00990]", "0.01000", "0.01000", "0.00012",
        "0.00990", "0.01010", "0.04", "4",
    )  # fmt: skip


def test_devices_of_two_sessions_stand_side_by_side() -> None:
    passes = ["forward", "forward+backward"]
    laptop = grid(by(pass_=passes, device=["cpu", "mps"]), session="laptop", environment=LAPTOP)
    box = grid(by(pass_=passes), session="box")
    (table,) = layout_tables(merged(laptop, box), "devices")
    assert [column.header for column in table.columns] == [
        "Size", "d_model", "d_ff", "num_layers", "num_heads", "num_params",
        "CPU forward_time (ms)", "CPU forward+backward (ms)", "MPS forward_time (ms)", "MPS forward+backward (ms)",
        "CUDA forward_time (ms)", "CUDA forward+backward (ms)",
    ]  # fmt: skip
    assert table.rows[0] == (
        "small", "768", "3072", "12", "12", "120.95M", "200.0", "600.0", "10.00", "30.00", "10.00", "30.00",
    )  # fmt: skip
    assert len(table.rows) == 2


def test_parameters_less_the_head_are_the_published_ones() -> None:
    sizes = ("small", "medium", "large", "xl", "2.7B")
    specs = [a_spec(**sized(size, "2025"), pass_="forward", device="cpu") for size in sizes]
    events = [*session_start(specs), *cell_start(0), *steps(0, (), (0.1, 0.1)), cell_end(0)]
    told = [event for event in events if not isinstance(event, ModelBuilt)]
    (table,) = layout_tables(merged(state_of(told)), "devices")
    assert table.texts("num_params") == ("120.95M", "412.94M", "956.61M", "1.98B", "3.38B")


def test_two_machines_with_the_same_kind_of_device_are_told_apart() -> None:
    one, other = (grid(by([SMALL], pass_=["forward"], device=["cpu"]), session=name, environment=environment)
                  for name, environment in (("a", LAPTOP), ("b", LAPTOP)))  # fmt: skip
    (table,) = layout_tables(merged(one, other), "devices")
    headers = [column.header for column in table.columns if "forward_time" in column.header]
    assert len(set(headers)) == 2
    assert all(header.startswith("CPU (") for header in headers)


def test_what_a_layout_has_no_column_for_gets_a_table_of_its_own() -> None:
    specs = by([SMALL], pass_=["forward"], context_length=[128, 256], precision=["fp32", "bf16-mixed"])
    for layout, number in {"forward-only": 4, "min-max": 4, "raw-steps": 4, "by-mean": 1, "devices": 4}.items():
        tables = layout_tables(merged(grid(specs)), layout)
        assert len(tables) == number, layout
        assert len({table.caption for table in tables}) == number
        rows = list(csv.DictReader(io.StringIO(render_all(tables, "csv"))))
        assert len({tuple(row.values()) for row in rows}) == 4, "no two rows of the csv look alike"


@pytest.mark.parametrize("layout", PLAIN_LAYOUTS)
def test_out_of_memory_is_said_and_never_a_number(layout: str) -> None:
    specs = by(pass_=["forward"])
    text = render_all(layout_tables(merged(grid(specs, oom=[1])), layout), "markdown")
    assert "OOM" in text


@pytest.mark.parametrize("layout", PLAIN_LAYOUTS)
def test_every_layout_says_std_device_and_precision_in_force(layout: str) -> None:
    for table in layout_tables(results(), layout):
        notes = "\n".join(table.footnotes)
        for words in ("sample standard deviation", "NVIDIA H100", "fp32 on cuda:0, as read back", "torch 2.13.0"):
            assert words in notes


def test_repeats_are_pooled() -> None:
    specs = by([SMALL], pass_=["forward"]) * 3
    (table,) = layout_tables(merged(grid(specs, repeats=(1, 2, 3))), "by-mean")
    assert (len(table.rows), table.records[0]["profile_steps"]) == (1, 12)
    assert "n: 12 measured steps of each cell, of up to 3 runs pooled" in table.footnotes


def test_other_thread_counts_are_other_devices() -> None:
    specs = by([SMALL], pass_=["forward"], device=["cpu"], threads=[1, 4])
    (table,) = layout_tables(merged(grid(specs, environment=LAPTOP)), "devices")
    assert sum("forward_time" in column.header for column in table.columns) == 2


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
