"""Layouts: the kinds of table of published write-ups. Their CSV, and that of a pivot, names the settings of its cells,
so that two models can share a file."""

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
from tests.export.grids import SMALL, by, grid, merged
from tests.export.keeping import csv_rows, kept
from tests.samples import LAPTOP, a_spec, cell_end, cell_start, session_start, sized, state_of, steps

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


@pytest.mark.parametrize("layout", ["forward-only", "devices"])
def test_forward_with_the_loss_in_it_takes_the_place_of_forward_where_there_is_none_and_other_passes_are_left_out(
    layout: str, snapshot: SnapshotAssertion
) -> None:
    with_loss = by([SMALL], pass_=["forward+loss", "forward+backward"])
    every = (with_loss, [*with_loss, *by([SMALL], pass_=["forward", "train-step"])])
    assert kept(*(table for specs in every for table in layout_tables(merged(grid(specs)), layout))) == snapshot


@pytest.mark.parametrize("layout", ["warm-up", "by-mean"])
def test_repeats_are_pooled(layout: str, snapshot: SnapshotAssertion) -> None:
    repeated = grid(by([SMALL], pass_=["forward"]) * 3, repeats=(1, 2, 3))
    assert kept(*layout_tables(merged(repeated), layout)) == snapshot


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


def test_steps_timed_otherwise_say_so_beside_those_of_do_bench(snapshot: SnapshotAssertion) -> None:
    both = grid(by([SMALL], pass_=["forward"], timer=["step", "do_bench"]))
    assert kept(*layout_tables(merged(both), "do_bench")) == snapshot


def of_passes(**choices: Iterable[str]) -> tuple[Result, ...]:
    return merged(grid(by(**{"pass_": ["forward", "forward+backward"]} | choices)))


UNLIKE = [
    *by([SMALL], attention=["naive"], compile=["default"], pass_=["forward"]),
    *by([SMALL], attention=["sdpa"], compile=["default"], pass_=["forward"], context_length=[256]),
]
OWN = {"model": ["my_gpt:GPT"], "compile": ["default"]}
PIVOTS: dict[str, tuple[tuple[Result, ...], str, str]] = {
    "the csv of a pivot tells the model and the settings": (of_passes(**OWN), "size", "pass"),
    "that of another model has the same columns": (of_passes(model=["reference"]), "size", "pass"),
    "what cells do not share is not said for all": (merged(grid(UNLIKE)), "attention", "context"),
}


@pytest.mark.parametrize("case", PIVOTS)
def test_data_of_pivots(case: str, snapshot: SnapshotAssertion) -> None:
    """JSON has the figures alone."""
    found, rows, columns = PIVOTS[case]
    table = pivot_table(pivot(found, [rows], [columns], "mean"), found)
    assert [render(table, format_) for format_ in ("csv", "json")] == snapshot
